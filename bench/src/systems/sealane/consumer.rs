//! The consumer's side: one task on the shard, with all requests that are in flight; of a round of steps, all tensors of a step
//! go into their own memory, then those of the next. With pushes, the consumer is who pushes.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use sealane_fusion::{
    AcceptOptions, Buffer, DType, Engine, Error, Keys, LocalEngine, LocalPair, LocalPlan, LocalReceiving, Tensor,
    TensorMeta, Unreceived,
};

use super::engine::{self, NAME, PS, QUEUE, WORKER, key_of, on_shard};
use super::producer;
use crate::error::BenchError;
use crate::limits::FILL;
use crate::plan::{Bench, Fuse, Plan};
use crate::sample::Sample;
use crate::stopwatch::{RoundTrips, StepTally, Tally};

/// A lane for every tensor of the plan, with memory that it keeps.
pub(super) fn lanes(engine: &Engine, plan: &Plan) -> Result<Vec<Lane>, BenchError> {
    let plan = plan.clone();
    on_shard(engine, "find memory for its tensors", async move |shard| {
        let lane = |(index, bytes)| Ok(Lane::new(index, engine::buffer(&shard, &plan, bytes)?));
        engine::lanes(&plan).into_iter().enumerate().map(lane).collect()
    })
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
    on_shard(engine, "move tensors", async move |shard| match plan.bench {
        Bench::Latency => round_trips(&shard, &plan, lanes, length).await,
        Bench::Rate if plan.fuse == Fuse::Push => Ok((push_round(&shard, &plan, length).await?, lanes)),
        Bench::Rate if plan.fuse.is_of_many() => step_round(&shard, &plan, lanes, number, length).await,
        Bench::Rate | Bench::Bandwidth => throughput(&shard, &plan, lanes, length).await,
        Bench::Fuse => step_round(&shard, &plan, lanes, number, length).await,
        none => none.is_measured_elsewhere(),
    })
}

async fn round_trips(
    shard: &LocalEngine,
    plan: &Plan,
    mut lanes: Vec<Lane>,
    length: Duration,
) -> Result<(Sample, Vec<Lane>), Error> {
    let pair = shard.task(WORKER)?.pair(PS)?;
    let mut trips = RoundTrips::start(Instant::now(), length);
    let lane = &mut lanes[0];
    loop {
        if let Some(idle) = plan.idle() {
            shard.shard().sleep(idle).await;
        }
        let asked = Instant::now();
        lane.pull(&pair).await?;
        if trips.completed(asked, Instant::now()) {
            return Ok((trips.sample(), lanes));
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

/// One of the requests that are in flight at once: its key, its next step, and the memory that it fills.
pub(super) struct Lane {
    key: String,
    step: i64,
    size_bytes: usize,
    buffer: Option<Buffer>,
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
    fn go_on_from(&mut self, step: i64) {
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
    fn lend(&mut self) -> Buffer {
        self.buffer.take().expect("given back with every tensor")
    }

    /// Asks for the next step's tensor, into the lane's own memory.
    pub(super) fn ask(&mut self, pair: &LocalPair) -> LocalReceiving {
        let buffer = self.lend();
        pair.recv_into(self.step, &self.key, buffer)
    }

    /// Takes the memory back, with what was asked for in it.
    fn take_in(&mut self, tensor: Tensor) -> Result<(), Error> {
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
    pub(super) async fn pull(&mut self, pair: &LocalPair) -> Result<(), Error> {
        let tensor = self.ask(pair).await.map_err(|Unreceived { error, .. }| error)?;
        self.take_in(tensor)
    }
}

/// The key under which the worker says that it wants the next version published.
pub(super) const NEXT: &str = "next";

/// Step after step until the round, the `number`th, is over.
async fn step_round(
    shard: &LocalEngine,
    plan: &Plan,
    mut lanes: Vec<Lane>,
    number: i64,
    length: Duration,
) -> Result<(Sample, Vec<Lane>), Error> {
    let pair = shard.task(WORKER)?.pair(PS)?;
    let counts = plan.bench == Bench::Fuse;
    let before = if counts { producer::messages_sent(shard, &pair, 2 * number).await? } else { 0 };
    let mut way = Way::open(&pair, plan.fuse, plan.republish, &mut lanes)?;
    let mut tally = StepTally::start(Instant::now(), length);
    loop {
        let began = Instant::now();
        way.step(&pair, &mut lanes, 0).await?;
        if tally.completed(began, Instant::now()) {
            break;
        }
    }
    way.close(&mut lanes)?;
    if !counts {
        return Ok((tally.tensors_per_second(lanes.len()), lanes));
    }
    let sent = producer::messages_sent(shard, &pair, 2 * number + 1).await? - before;
    Ok((tally.sample(plan, Some(sent as f64 / tally.steps() as f64)), lanes))
}

/// How the tensors of a step are asked for.
pub(super) enum Way {
    /// A recv a tensor, all at once: the session's window decides how many are in flight. The list is empty between steps.
    OneByOne(Vec<LocalReceiving>),
    /// One request for all, by their keys. The list is empty between steps.
    Fused(Vec<Buffer>),
    /// One request for all, by the plan's number.
    Planned(Planned),
}

pub(super) struct Planned {
    plan: LocalPlan,
    /// The last version that was pulled, if each step has one of its own.
    version: Option<i64>,
}

impl Way {
    /// The way of these lanes; with `republish` each step of a plan has a version of its own, which is asked for.
    pub(super) fn open(pair: &LocalPair, fuse: Fuse, republish: bool, lanes: &mut [Lane]) -> Result<Self, Error> {
        Ok(match fuse {
            Fuse::Off | Fuse::Turn => Self::OneByOne(Vec::with_capacity(lanes.len())),
            Fuse::Push => unreachable!("who pushes asks for nothing"),
            Fuse::Receive | Fuse::ReceiveWaitAll => Self::Fused(Vec::with_capacity(lanes.len())),
            Fuse::Plan => {
                let mut agreed = pair.plan(Keys::new(lanes.iter().map(Lane::key))?);
                for (number, lane) in lanes.iter_mut().enumerate() {
                    agreed.tray_mut().set_destination(number, lane.lend());
                }
                Self::Planned(Planned { plan: agreed, version: republish.then(|| lanes[0].step()) })
            }
        })
    }

    /// Receives the lanes' tensors of their next step; what is published, at `min_version` or newer.
    pub(super) async fn step(&mut self, pair: &LocalPair, lanes: &mut [Lane], min_version: i64) -> Result<(), Error> {
        match self {
            Self::OneByOne(receiving) => {
                receiving.extend(lanes.iter_mut().map(|lane| lane.ask(pair)));
                for (lane, receiving) in lanes.iter_mut().zip(receiving.drain(..)) {
                    lane.take_in(receiving.await.map_err(|Unreceived { error, .. }| error)?)?;
                }
                Ok(())
            }
            Self::Fused(memory) => {
                memory.extend(lanes.iter_mut().map(Lane::lend));
                let (step, keys) = (lanes[0].step(), lanes.iter().map(Lane::key));
                let outcomes = pair.recv_fused_with(step, keys, memory.drain(..), None).await;
                for (lane, outcome) in lanes.iter_mut().zip(outcomes) {
                    lane.take_in(outcome.map_err(|Unreceived { error, .. }| error)?)?;
                }
                Ok(())
            }
            Self::Planned(planned) => planned.step(pair, min_version).await,
        }
    }

    /// What a step has brought to a lane.
    pub(super) fn bytes<'a>(&'a self, lanes: &'a [Lane], number: usize) -> Result<&'a [u8], Error> {
        match self {
            Self::Planned(planned) => Ok(planned.plan.tray().get(number)?.bytes()),
            Self::OneByOne(_) | Self::Fused(_) => Ok(lanes[number].bytes()),
        }
    }

    /// Gives the lanes their memory back.
    pub(super) fn close(self, lanes: &mut [Lane]) -> Result<(), Error> {
        let Self::Planned(Planned { mut plan, version }) = self else { return Ok(()) };
        for (number, lane) in lanes.iter_mut().enumerate() {
            lane.take_in(plan.tray_mut().take(number)?)?;
            lane.go_on_from(version.unwrap_or_default());
        }
        Ok(())
    }
}

impl Planned {
    async fn step(&mut self, pair: &LocalPair, min_version: i64) -> Result<(), Error> {
        let Some(version) = &mut self.version else { return self.plan.pull(min_version).await };
        *version += 1;
        // The pull says whether it was heard.
        drop(pair.send(*version, NEXT, producer::word()?));
        self.plan.pull(*version).await
    }
}

/// Batches that the window is divided into, so that the next is in flight when one has been taken.
const BATCHES: usize = 4;

/// Tensors accepted at once at most.
const ACCEPTED_MAX: usize = 4096;

/// The ps: takes what comes, until the engine stops.
pub(super) fn accept_pushes(shard: &LocalEngine) -> Result<(), Error> {
    let acceptor = shard.task(PS)?.acceptor(QUEUE, AcceptOptions::default());
    drop(shard.shard().spawn(async move { while acceptor.accept_many(ACCEPTED_MAX).await.is_ok() {} }));
    Ok(())
}

/// The worker: a window of pushes in flight until the round is over. What counts is what the queue has taken.
async fn push_round(shard: &LocalEngine, plan: &Plan, length: Duration) -> Result<Sample, Error> {
    let pair = shard.task(WORKER)?.pair(PS)?;
    let meta = TensorMeta::new(DType::U8, &[plan.size_bytes as u64])?;
    let bytes = vec![FILL; plan.size_bytes];
    let batch = (plan.window / BATCHES).max(1);
    let mut under_way = VecDeque::new();
    let mut tally = Tally::start(Instant::now(), length);
    let mut over = false;
    loop {
        while !over && under_way.len() < BATCHES.min(plan.window) {
            let tensor = |_| Tensor::from_parts(meta.clone(), Buffer::copy_of(&bytes));
            under_way.push_back(pair.push_many(QUEUE, (0..batch).map(tensor)));
        }
        let Some(pushed) = under_way.pop_front() else { break };
        pushed.await?;
        over |= tally.completed(batch as u64, shard.shard().now());
    }
    Ok(tally.sample(plan))
}
