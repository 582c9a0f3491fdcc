//! The consumer's side: one task on the shard, with all requests that are in flight.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use sealane_fusion::{Buffer, Engine, Error, LocalEngine, LocalPair, LocalReceiving, Tensor, Unreceived};

use super::{NAME, PS, WORKER, memory, pushes, steps};
use crate::error::BenchError;
use crate::plan::{Bench, Fuse, Plan};
use crate::sample::{Sample, record_round_trip, round_trip_histogram};
use crate::stopwatch::{RoundClock, Tally};

/// One of the requests that are in flight at once: its key, its next step, and the memory that it fills.
pub(super) struct Lane {
    key: String,
    step: i64,
    size_bytes: usize,
    buffer: Option<Buffer>,
}

pub(super) fn key_of(lane: usize) -> String {
    format!("layer_{lane}/kernel")
}

impl Lane {
    /// The lane of the tensor with that number, in memory of its size.
    pub(super) fn new(index: usize, buffer: Buffer) -> Self {
        Self { key: key_of(index), step: 0, size_bytes: buffer.len(), buffer: Some(buffer) }
    }

    pub(super) fn key(&self) -> &str {
        &self.key
    }

    /// The next step.
    pub(super) fn step(&self) -> i64 {
        self.step
    }

    /// The next step is this one.
    pub(super) fn go_on_from(&mut self, step: i64) {
        self.step = step;
    }

    /// Empties the lane's own memory.
    pub(super) fn wipe(&mut self) {
        self.buffer.iter_mut().for_each(|buffer| buffer.fill(0));
    }

    /// What lies in the lane's own memory.
    pub(super) fn bytes(&self) -> &[u8] {
        self.buffer.as_deref().unwrap_or_default()
    }

    /// The lane's own memory, until it [takes](Self::take_in) it back.
    pub(super) fn lend(&mut self) -> Buffer {
        self.buffer.take().expect("given back with every tensor")
    }

    /// Asks for the next step's tensor, into the lane's own memory.
    pub(super) fn ask(&mut self, pair: &LocalPair) -> LocalReceiving {
        let buffer = self.lend();
        pair.recv_into(self.step, &self.key, buffer)
    }

    /// Takes the memory back, with what was asked for in it.
    pub(super) fn take_in(&mut self, tensor: Tensor) -> Result<(), Error> {
        let buffer = tensor.into_buffer();
        if buffer.len() != self.size_bytes {
            let reason = format!("{NAME} answered {} bytes to a request for {}", buffer.len(), self.size_bytes);
            return Err(Error::InvalidArgument { reason: reason.into() });
        }
        self.buffer = Some(buffer);
        self.step += 1;
        Ok(())
    }

    /// Receives the next step's tensor.
    async fn pull(&mut self, pair: &LocalPair) -> Result<(), Error> {
        let tensor = self.ask(pair).await.map_err(|Unreceived { error, .. }| error)?;
        self.take_in(tensor)
    }
}

/// A lane for every tensor of the plan, with memory that it keeps.
pub(super) fn lanes(engine: &Engine, plan: &Plan) -> Result<Vec<Lane>, BenchError> {
    let plan = plan.clone();
    let job = engine.on_shard(0, async move |shard| {
        let lane = |(index, bytes)| Ok(Lane::new(index, memory::buffer(&shard, &plan, bytes)?));
        super::lanes(&plan).into_iter().enumerate().map(lane).collect::<Result<_, Error>>()
    });
    let failed = |reason: String| BenchError::Sealane { operation: "find memory for its tensors", reason };
    job.wait().map_err(|error| failed(error.to_string()))?.map_err(|error| failed(error.to_string()))
}

/// One round, the `number`th, on the engine's shard; gives the lanes back for the next.
pub(super) fn round(
    engine: &Engine,
    plan: &Plan,
    lanes: Vec<Lane>,
    number: i64,
    length: Duration,
) -> Result<(Sample, Vec<Lane>), BenchError> {
    let plan = plan.clone();
    let job = engine.on_shard(0, async move |shard| match plan.bench {
        Bench::Latency => round_trips(&shard, &plan, lanes, length).await,
        Bench::Rate if plan.fuse == Fuse::Push => Ok((pushes::round(&shard, &plan, length).await?, lanes)),
        Bench::Rate if plan.fuse.is_of_many() => steps::round(&shard, &plan, lanes, number, length).await,
        Bench::Rate | Bench::Bandwidth => throughput(&shard, &plan, lanes, length).await,
        Bench::Fuse => steps::round(&shard, &plan, lanes, number, length).await,
        none => none.is_measured_elsewhere(),
    });
    let failed = |reason: String| BenchError::Sealane { operation: "move tensors", reason };
    job.wait().map_err(|error| failed(error.to_string()))?.map_err(|error| failed(error.to_string()))
}

async fn round_trips(
    shard: &LocalEngine,
    plan: &Plan,
    mut lanes: Vec<Lane>,
    length: Duration,
) -> Result<(Sample, Vec<Lane>), Error> {
    let pair = shard.task(WORKER)?.pair(PS)?;
    let mut histogram: Histogram<u64> = round_trip_histogram();
    let clock = RoundClock::start(Instant::now(), length);
    let lane = &mut lanes[0];
    loop {
        if let Some(idle) = plan.idle() {
            shard.shard().sleep(idle).await;
        }
        let asked = Instant::now();
        lane.pull(&pair).await?;
        let answered = Instant::now();
        if clock.counts(asked) {
            record_round_trip(&mut histogram, answered - asked);
            if clock.is_over(answered) {
                return Ok((Sample::round_trips(histogram), lanes));
            }
        }
    }
}

/// A window of requests, answered in the order in which they were made: whoever is first in line is asked for anew.
async fn throughput(
    shard: &LocalEngine,
    plan: &Plan,
    lanes: Vec<Lane>,
    length: Duration,
) -> Result<(Sample, Vec<Lane>), Error> {
    let pair = shard.task(WORKER)?.pair(PS)?;
    let mut tally = Tally::start(Instant::now(), length);
    let ask = |mut lane: Lane| {
        let receiving = lane.ask(&pair);
        (lane, receiving)
    };
    let mut asked: VecDeque<_> = lanes.into_iter().map(ask).collect();
    let mut lanes = Vec::with_capacity(asked.len());
    let mut over = false;
    while let Some((mut lane, receiving)) = asked.pop_front() {
        lane.take_in(receiving.await.map_err(|Unreceived { error, .. }| error)?)?;
        // The turn's own clock: exact to the turn, and free.
        over |= tally.completed(1, shard.shard().now());
        if over {
            lanes.push(lane);
        } else {
            asked.push_back(ask(lane));
        }
    }
    Ok((tally.sample(plan), lanes))
}
