//! The consumer's side: one task on the shard, with all requests in flight; in a round of steps, all tensors of a step go into
//! their own memory, then those of the next. With pushes, the consumer is the one that pushes.

use std::collections::VecDeque;
use std::ops::Range;
use std::time::{Duration, Instant};

use sealane_fusion::{
    AcceptOptions, Buffer, DType, Engine, Error, Keys, LocalEngine, LocalPair, LocalPlan, LocalReceiving,
    LocalReceivingBatch, LocalSending, Tensor, TensorMeta, Unreceived,
};

use super::engine::{self, ASKED, NAME, PS, QUEUE, SHOWN_AFTER, WORKER, key_of, on_shard, shown};
use crate::error::BenchError;
use crate::figures::Sample;
use crate::limits::FILL;
use crate::plan::{Bench, Fuse, Plan};
use crate::system::Client;
use crate::systems::client::{check_length, measure, steps};
use crate::systems::training::Moved;

/// A lane for every tensor of the plan, with its own memory.
pub(super) fn lanes(engine: &Engine, plan: &Plan) -> Result<Vec<Lane>, BenchError> {
    let plan = plan.clone();
    on_shard(engine, "find memory for its tensors", async move |shard| {
        let lane = |(index, bytes)| Ok(Lane::new(index, engine::buffer(&shard, &plan, bytes)?));
        engine::lanes(&plan).into_iter().enumerate().map(lane).collect()
    })
}

/// One round, on the engine's shard; returns the lanes for the next.
pub(super) fn round(
    engine: &Engine,
    plan: &Plan,
    lanes: Vec<Lane>,
    length: Duration,
) -> Result<(Sample, Vec<Lane>), BenchError> {
    let (plan, of_shard) = (plan.clone(), engine.clone());
    let job = engine.on_shard(0, async move |shard| {
        let mut consumer = Consumer::open(of_shard, &shard, &plan, lanes).map_err(failed)?;
        let sample = match consumer.way {
            Some(_) => steps(&mut consumer, &plan, length).await?,
            None => measure(&mut consumer, &plan, length).await?,
        };
        Ok((sample, consumer.close().map_err(failed)?))
    });
    job.wait().map_err(failed)?
}

fn failed(error: impl ToString) -> BenchError {
    BenchError::sealane("move tensors")(error)
}

fn unreceived(Unreceived { error, .. }: Unreceived) -> BenchError {
    failed(error)
}

/// One of the requests in flight at the same time: its key, its next step, and the memory that it fills.
pub(super) struct Lane {
    key: String,
    step: i64,
    size_bytes: usize,
    buffer: Option<Buffer>,
}

impl Lane {
    /// The lane of the tensor with that number, with memory of its size.
    fn new(index: usize, buffer: Buffer) -> Self {
        Self { key: key_of(index), step: 0, size_bytes: buffer.len(), buffer: Some(buffer) }
    }

    pub(super) fn wipe(&mut self) {
        self.buffer.iter_mut().for_each(|buffer| buffer.fill(0));
    }

    /// The contents of the lane's own memory.
    pub(super) fn bytes(&self) -> &[u8] {
        self.buffer.as_deref().unwrap_or_default()
    }

    /// Takes the lane's own memory, until [`take_in`](Self::take_in) returns it.
    fn lend(&mut self) -> Buffer {
        self.buffer.take().expect("given back with every tensor")
    }

    /// Requests the next step's tensor, into the lane's own memory.
    fn ask(&mut self, pair: &LocalPair) -> LocalReceiving {
        let buffer = self.lend();
        pair.recv_into(self.step, &self.key, buffer)
    }

    /// Takes the memory back, with the requested tensor in it.
    fn take_in(&mut self, tensor: Tensor) -> Result<(), BenchError> {
        let buffer = tensor.into_buffer();
        check_length(NAME, self.size_bytes, buffer.len())?;
        self.buffer = Some(buffer);
        self.step += 1;
        Ok(())
    }
}

/// Number of batches in a window, each moved by one call, so that the next is in flight when one has arrived.
const BATCHES: usize = 4;

/// Tensors of a window or a step that one call moves.
pub(super) fn batch(plan: &Plan) -> usize {
    match (plan.bench, plan.fuse) {
        (Bench::Rate, Fuse::Push | Fuse::Receive) => (plan.window / BATCHES).max(1),
        (Bench::Fuse, Fuse::Receive) => plan.step.len().max(1),
        _ => 1,
    }
}

struct Consumer<'a> {
    engine: Engine,
    shard: &'a LocalEngine,
    plan: &'a Plan,
    pair: LocalPair,
    lanes: Vec<Lane>,
    /// Requests, answered in the order in which they were made, that of the lanes, starting again with the first. Only requests are
    /// moved: lanes are large, and this is timed.
    asked: VecDeque<LocalReceiving>,
    /// The lane of the first request.
    first: usize,
    /// Requests made together, with their lanes, and the lane to request next.
    together: VecDeque<(Range<usize>, LocalReceivingBatch)>,
    next: usize,
    /// How the tensors of a step are requested.
    way: Option<Way>,
    /// What is pushed, and the number for each batch.
    pushed: (TensorMeta, Vec<u8>),
    pushing: VecDeque<(usize, LocalSending)>,
}

impl<'a> Consumer<'a> {
    fn open(engine: Engine, shard: &'a LocalEngine, plan: &'a Plan, mut lanes: Vec<Lane>) -> Result<Self, Error> {
        let pair = shard.task(WORKER)?.pair(PS)?;
        let is_of_steps = plan.bench == Bench::Fuse || plan.bench == Bench::Rate && plan.fuse == Fuse::Plan;
        let way = is_of_steps.then(|| Way::open(&pair, plan, &mut lanes)).transpose()?;
        let pushed = (TensorMeta::new(DType::U8, &[plan.size_bytes as u64])?, vec![FILL; plan.size_bytes]);
        // The producer has a fixed order: this round continues where the last one ended.
        let next = lanes.iter().position(|lane| lane.step < lanes[0].step).unwrap_or(0);
        let (asked, together, pushing) = (VecDeque::new(), VecDeque::new(), VecDeque::new());
        Ok(Self { engine, shard, plan, pair, lanes, asked, first: next, together, next, way, pushed, pushing })
    }

    /// Returns the lanes, with their memory.
    fn close(mut self) -> Result<Vec<Lane>, BenchError> {
        if let Some(Way::Planned(mut plan)) = self.way {
            for (number, lane) in self.lanes.iter_mut().enumerate() {
                lane.take_in(plan.pull_buffer_mut().take(number).map_err(failed)?)?;
            }
        }
        Ok(self.lanes)
    }

    /// Requests tensors of the next lanes by one call, to be read in place; returns their number.
    fn ask_together(&mut self) -> usize {
        let range = self.next..self.lanes.len().min(self.next + batch(self.plan));
        self.next = range.end % self.lanes.len();
        let lanes = &self.lanes[range.clone()];
        let keys = lanes.iter().map(|lane| lane.key.as_str());
        let receiving = self.pair.recv_many(lanes[0].step, keys, None);
        let count = range.len();
        self.together.push_back((range, receiving));
        count
    }

    fn push(&mut self, count: usize) {
        let (meta, bytes) = &self.pushed;
        let tensor = |_| Tensor::from_parts(meta.clone(), Buffer::copy_of(bytes));
        let pushing = self.pair.push_many(QUEUE, (0..count).map(tensor));
        self.pushing.push_back((count, pushing));
    }
}

impl Client for Consumer<'_> {
    fn ask(&mut self, mut count: usize) -> Result<(), BenchError> {
        if self.plan.fuse == Fuse::Push {
            while count > 0 {
                let batch = batch(self.plan).min(count);
                self.push(batch);
                count -= batch;
            }
            return Ok(());
        }
        if self.plan.fuse == Fuse::Receive {
            while count > 0 {
                count -= self.ask_together().min(count);
            }
            return Ok(());
        }
        for _ in 0..count {
            let lane = (self.first + self.asked.len()) % self.lanes.len();
            self.asked.push_back(self.lanes[lane].ask(&self.pair));
        }
        Ok(())
    }

    async fn take(&mut self) -> Result<usize, BenchError> {
        if let Some((count, pushing)) = self.pushing.pop_front() {
            return pushing.await.map(|()| count).map_err(failed);
        }
        if let Some((range, receiving)) = self.together.pop_front() {
            let (count, received) = (range.len(), receiving.await);
            for (lane, outcome) in self.lanes[range].iter_mut().zip(received.iter()) {
                check_length(NAME, lane.size_bytes, outcome.map_err(failed)?.bytes.len())?;
                lane.step += 1;
            }
            return Ok(count);
        }
        let receiving = self.asked.front_mut().expect("something was asked for");
        let tensor = receiving.await.map_err(unreceived)?;
        self.lanes[self.first].take_in(tensor)?;
        self.asked.pop_front();
        self.first = (self.first + 1) % self.lanes.len();
        Ok(1)
    }

    async fn exchange(&mut self, plan: &Plan) -> Result<(Instant, Instant), BenchError> {
        if let Some(idle) = plan.idle() {
            self.shard.shard().sleep(idle).await;
        }
        let asked = Instant::now();
        let lane = &mut self.lanes[0];
        let asking = plan.idle().map(|_| self.pair.send(lane.step, ASKED, Tensor::dead(DType::U8)));
        let tensor = lane.ask(&self.pair).await.map_err(unreceived)?;
        lane.take_in(tensor)?;
        let answered = Instant::now();
        if let Some(asking) = asking {
            asking.await.map_err(failed)?;
        }
        Ok((asked, answered))
    }

    async fn step(&mut self) -> Result<(), BenchError> {
        let way = self.way.as_mut().expect("opened where there are steps");
        way.step(&self.pair, &mut self.lanes).await
    }

    async fn moved(&mut self) -> Result<Option<Moved>, BenchError> {
        if self.plan.bench != Bench::Fuse {
            return Ok(None);
        }
        self.shard.shard().sleep(SHOWN_AFTER).await;
        Ok(Some(shown(&self.engine)))
    }

    /// The turn's own clock: exact to the turn, and free.
    fn now(&self) -> Instant {
        self.shard.shard().now()
    }
}

/// How the tensors of a step are requested.
enum Way {
    /// A recv for each tensor, all at once: the session's window decides how many are in flight. The list is empty between steps.
    OneByOne(Vec<LocalReceiving>),
    /// One request for all, by their keys. The list is empty between steps.
    Fused(Vec<Buffer>),
    /// One request for all, by the number of a plan.
    Planned(LocalPlan),
}

impl Way {
    fn open(pair: &LocalPair, plan: &Plan, lanes: &mut [Lane]) -> Result<Self, Error> {
        Ok(match plan.fuse {
            Fuse::Plan => {
                let mut agreed = pair.plan(Keys::new(lanes.iter().map(|lane| lane.key.as_str()))?);
                for (number, lane) in lanes.iter_mut().enumerate() {
                    agreed.pull_buffer_mut().set_destination(number, lane.lend());
                }
                Self::Planned(agreed)
            }
            fuse if fuse.is_of_many() => Self::Fused(Vec::with_capacity(lanes.len())),
            _ => Self::OneByOne(Vec::with_capacity(lanes.len())),
        })
    }

    /// Receives the lanes' tensors of their next step.
    async fn step(&mut self, pair: &LocalPair, lanes: &mut [Lane]) -> Result<(), BenchError> {
        match self {
            Self::OneByOne(receiving) => {
                receiving.extend(lanes.iter_mut().map(|lane| lane.ask(pair)));
                for (lane, receiving) in lanes.iter_mut().zip(receiving.drain(..)) {
                    lane.take_in(receiving.await.map_err(unreceived)?)?;
                }
                Ok(())
            }
            Self::Fused(memory) => {
                memory.extend(lanes.iter_mut().map(Lane::lend));
                let (step, keys) = (lanes[0].step, lanes.iter().map(|lane| lane.key.as_str()));
                let outcomes = pair.recv_fused_with(step, keys, memory.drain(..), None).await;
                for (lane, outcome) in lanes.iter_mut().zip(outcomes) {
                    lane.take_in(outcome.map_err(unreceived)?)?;
                }
                Ok(())
            }
            Self::Planned(plan) => plan.pull(0).await.map_err(failed),
        }
    }
}

/// The ps: accepts what comes, until the engine stops.
pub(super) fn accept_pushes(shard: &LocalEngine) -> Result<(), Error> {
    let acceptor = shard.task(PS)?.acceptor(QUEUE, AcceptOptions::default());
    drop(shard.shard().spawn(async move { while acceptor.accept_all().await.is_ok() {} }));
    Ok(())
}
