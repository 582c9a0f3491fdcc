//! Workers that are engines, as training processes over verbs are: each with a shard of its own, a queue pair to every ps,
//! and memory that its device reaches. All are in this process, and their shards share its CPU. Bounded by
//! [`HOSTED_WORKERS_MAX`](crate::limits::HOSTED_WORKERS_MAX). A step is code on the shard: from every ps at once, a pull and then
//! a push.

#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::thread;
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures_util::future::try_join_all;
use sealane_fusion::{DType, Engine, Error, LocalEngine, LocalPair, LocalSending, Tensor, TensorMeta};
use sealane_runtime::Polling;
use sealane_transport::verbs::Verbs;

use super::super::consumer::{Lane, Way};
use super::super::engine::{self, NAME, Opened, QUEUE, Resting, on_shard, ps_task};
use super::super::peers;
use super::memory::Copies;
use super::servers::{self, REGISTERED_BYTES};
use crate::error::BenchError;
use crate::limits::{CONNECT_LIMIT, FILL, SLOWEST_BYTES_PER_SECOND, STALL_LIMIT};
use crate::peer::{PeerJob, PeerProgram};
use crate::plan::{Fuse, Mode, Plan, Variant};
use crate::process::Growth;
use crate::system::System;
use crate::systems::training::{self, Moved, Share, StepLog, Trainees};

/// Buffers of a worker's shared receive queue: of 16 KiB each, and more than a few ps can have on their way.
const QUEUE_DEPTH: u32 = 256;

/// See the module.
struct Engines {
    plan: Plan,
    /// Each with what its worker keeps from round to round.
    workers: Vec<(Engine, Worker)>,
    opened: Opened,
    resting: Resting,
}

/// Parameter servers in a process of their own, and an engine for every worker.
pub(super) fn start(job: &PeerJob, program: &PeerProgram) -> Result<System, BenchError> {
    let plan = &job.plan;
    System::with_peer(job, program, |peer| {
        let growth = Growth::of(peer.process_id())?;
        let (verbs, opened) = engine::verbs_settings(plan).expect("the link is verbs");
        let map = servers::map(training::of(plan), &peer.ready().ports);
        let mut engines = Engines::start(plan, &map, &verbs, opened)?;
        // The first pull makes the queue pairs.
        engines.make_steps(1)?;
        let each = growth.bytes_each(training::of(plan).pairs())?;
        engines.rest();
        let device = engines.opened.get().cloned();
        Ok(training::system((NAME, described(plan)), plan, engines, each, peer)?.with_device(device))
    })
}

/// The variant, with what only verbs can choose, and what a shared CPU forbids.
fn described(plan: &Plan) -> String {
    let (transfer, _) = plan.verbs().expect("the link is verbs");
    let waiting = if plan.polling && shares_cpu(plan) { ", workers parking" } else { "" };
    format!("{}, {transfer}{waiting}", training::variant(plan))
}

/// Whether a worker that spins would keep others from working.
fn shares_cpu(plan: &Plan) -> bool {
    training::of(plan).size.workers > 1
}

/// One engine for the worker of that number.
fn engine(plan: &Plan, map: &str, number: usize, verbs: Verbs) -> Result<Engine, BenchError> {
    // Workers call, and are not called: any address will do.
    let listeners = vec![engine::listener(plan)?.0];
    let mut settings = engine::settings(plan, map, &[peers::task(number)], listeners, Some(verbs))?;
    engine::let_rest(&mut settings);
    settings.session.window = plan.window;
    settings.connect_timeout = CONNECT_LIMIT;
    settings.request_timeout = request_timeout(plan);
    settings.slab_send_bytes =
        REGISTERED_BYTES + engine::room_bytes(&plan.step) + 2 * engine::room_bytes(&training::of(plan).push);
    settings.slab_receive_bytes = REGISTERED_BYTES;
    settings.fuse = engine::fuse(plan);
    if shares_cpu(plan) {
        settings.runtime.polling = Polling::Park;
    }
    engine::start(settings)
}

/// How long a worker waits for a tensor, which in synchronous mode may wait for all that the others move in a step.
fn request_timeout(plan: &Plan) -> Duration {
    let training = training::of(plan);
    let step: usize = plan.step.iter().chain(&training.push).sum();
    let slowest = (step * training.size.workers / SLOWEST_BYTES_PER_SECOND) as u64;
    STALL_LIMIT + Duration::from_micros(training.compute_us) + Duration::from_secs(slowest)
}

impl Engines {
    fn start(plan: &Plan, map: &str, verbs: &Verbs, opened: Opened) -> Result<Self, BenchError> {
        let mut verbs = verbs.clone();
        verbs.settings.queue_depth = QUEUE_DEPTH;
        let one = |number| {
            let engine = engine(plan, map, number, verbs.clone())?;
            let worker = Worker::new(&engine, plan, number)?;
            Ok((engine, worker))
        };
        let workers = (0..training::of(plan).size.workers).map(one).collect::<Result<_, BenchError>>()?;
        Ok(Self { plan: plan.clone(), workers, opened, resting: Resting::default() })
    }

    /// Every worker's steps, all workers at once: when each step began and ended.
    fn make_steps(&mut self, steps: u64) -> Result<Vec<Times>, BenchError> {
        let begin = |(engine, worker): (Engine, Worker)| {
            let plan = self.plan.clone();
            let job = engine.on_shard(0, async move |shard| worker.train(&shard, &plan, steps).await);
            (engine, job)
        };
        let begun: Vec<_> = self.workers.drain(..).map(begin).collect();
        let mut failure = None;
        let mut times = Vec::with_capacity(begun.len());
        for (engine, job) in begun {
            match job
                .wait()
                .map_err(BenchError::sealane("train"))
                .and_then(|ended| ended.map_err(BenchError::sealane("train")))
            {
                Ok((worker, made)) => {
                    self.workers.push((engine, worker));
                    times.push(made);
                }
                Err(error) => failure = failure.or(Some(error)),
            }
        }
        failure.map_or(Ok(times), Err)
    }
}

impl Trainees for Engines {
    fn train(&mut self, steps: u64, log: &mut StepLog) -> Result<(), BenchError> {
        for (worker, times) in self.make_steps(steps)?.into_iter().enumerate() {
            times.into_iter().for_each(|(began, ended)| log.completed(worker, began, ended));
        }
        Ok(())
    }

    fn moved(&self) -> Result<Option<Moved>, BenchError> {
        engine::moved(self.workers.iter().map(|(engine, _)| engine)).map(Some)
    }

    fn resume(&mut self) {
        self.resting.end();
    }

    fn rest(&mut self) {
        self.workers.iter().for_each(|(engine, _)| self.resting.begin(engine));
    }
}

impl Drop for Engines {
    fn drop(&mut self) {
        self.resting.end();
        // All at once: each takes its time to say goodbye.
        thread::scope(|scope| {
            for (engine, _) in &self.workers {
                scope.spawn(|| {
                    if let Err(error) = engine.stop() {
                        eprintln!("a worker's engine did not stop cleanly: {error}");
                    }
                });
            }
        });
    }
}

/// When each step began and ended.
pub(super) type Times = Vec<(Instant, Instant)>;

/// What a worker keeps from round to round.
pub(super) struct Worker {
    name: String,
    /// Its steps so far: the number of the next.
    step: i64,
    sides: Vec<Side>,
}

/// What it has of one ps.
struct Side {
    /// The tensors that it pulls, with their memory.
    lanes: Vec<Lane>,
    /// The gradients that it pushes: memory that is sent again and again.
    gradients: Vec<(TensorMeta, Bytes)>,
    copies: Option<Copies>,
}

impl Worker {
    /// The worker of that number, with memory on its engine's shard.
    pub(super) fn new(engine: &Engine, plan: &Plan, number: usize) -> Result<Self, BenchError> {
        let plan = plan.clone();
        on_shard(engine, "find memory for a worker's tensors", async move |shard| {
            let sides = training::shares(&plan).map(|share| Side::new(&shard, &plan, &share));
            Ok(Self { name: peers::task(number), step: 0, sides: sides.collect::<Result<_, Error>>()? })
        })
    }

    /// Makes so many steps, one after the other.
    pub(super) async fn train(mut self, shard: &LocalEngine, plan: &Plan, steps: u64) -> Result<(Self, Times), Error> {
        let training = training::of(plan);
        let task = shard.task(&self.name)?;
        let open = |(ps, side)| Open::new(shard, task.pair(&ps_task(ps))?, training.variants[0], side);
        let mut open: Vec<Open<'_>> = self.sides.iter_mut().enumerate().map(open).collect::<Result<_, Error>>()?;
        let compute = Duration::from_micros(training.compute_us);
        let mut times = Times::with_capacity(steps as usize);
        for step in (self.step..).take(steps as usize) {
            let began = Instant::now();
            let min_version = if training.mode == Mode::Sync { step } else { 0 };
            if compute.is_zero() && plan.fuse != Fuse::ReceiveWaitAll {
                let both = async |one: &mut Open<'_>| {
                    one.pull(min_version).await?;
                    one.push().await
                };
                try_join_all(open.iter_mut().map(both)).await?;
            } else {
                try_join_all(open.iter_mut().map(|one| one.pull(min_version))).await?;
                if !compute.is_zero() {
                    shard.shard().sleep(compute).await;
                }
                try_join_all(open.iter().map(Open::push)).await?;
            }
            times.push((began, Instant::now()));
        }
        open.into_iter().try_for_each(Open::close)?;
        self.step += steps as i64;
        Ok((self, times))
    }
}

impl Side {
    fn new(shard: &LocalEngine, plan: &Plan, share: &Share) -> Result<Self, Error> {
        let lane = |&tensor: &usize| Ok(Lane::new(tensor, engine::buffer(shard, plan, plan.step[tensor])?));
        let gradient =
            |&bytes: &usize| Ok((TensorMeta::new(DType::U8, &[bytes as u64])?, engine::filled(shard, plan, bytes)?));
        Ok(Self {
            lanes: share.numbers.iter().map(lane).collect::<Result<_, Error>>()?,
            gradients: share.pushed.iter().map(gradient).collect::<Result<_, Error>>()?,
            copies: training::of(plan).variants[0].copies.then(|| Copies::new(&share.pulled)),
        })
    }
}

/// A worker and a ps during a round.
struct Open<'a> {
    shard: &'a LocalEngine,
    pair: LocalPair,
    /// `None` where there is nothing to pull.
    way: Option<Way>,
    side: &'a mut Side,
    /// Pushes in flight at most, where each gradient is one.
    pushes: Option<usize>,
}

impl<'a> Open<'a> {
    fn new(shard: &'a LocalEngine, pair: LocalPair, variant: Variant, side: &'a mut Side) -> Result<Self, Error> {
        let way = match side.lanes.is_empty() {
            true => None,
            false => Some(Way::open(&pair, variant.fuse, false, &mut side.lanes)?),
        };
        let pushes = matches!(variant.fuse, Fuse::Off | Fuse::Turn).then_some(variant.request_buffers);
        Ok(Self { shard, pair, way, side, pushes })
    }

    /// Receives all tensors of the next step, and looks at each.
    async fn pull(&mut self, min_version: i64) -> Result<(), Error> {
        let Some(way) = &mut self.way else { return Ok(()) };
        let Side { lanes, copies, .. } = &mut *self.side;
        way.step(&self.pair, lanes, min_version).await?;
        for number in 0..lanes.len() {
            let bytes = way.bytes(lanes, number)?;
            if bytes.first() != Some(&FILL) || bytes.last() != Some(&FILL) {
                let reason = format!("{} arrived with other bytes than it left with", lanes[number].key());
                return Err(Error::InvalidArgument { reason: reason.into() });
            }
            if let Some(copies) = copies {
                copies.take(number, bytes);
            }
        }
        Ok(())
    }

    /// Pushes all gradients.
    async fn push(&self) -> Result<(), Error> {
        let gradients = self.side.gradients.iter();
        let Some(most) = self.pushes else {
            let tensors = gradients.map(|gradient| self.tensor(gradient)).collect::<Result<Vec<_>, Error>>()?;
            return if tensors.is_empty() { Ok(()) } else { self.pair.push_many(QUEUE, tensors).await };
        };
        let mut under_way: VecDeque<LocalSending> = VecDeque::with_capacity(most);
        for gradient in gradients {
            if under_way.len() == most
                && let Some(first) = under_way.pop_front()
            {
                first.await?;
            }
            under_way.push_back(self.pair.push(QUEUE, self.tensor(gradient)?));
        }
        for pushed in under_way {
            pushed.await?;
        }
        Ok(())
    }

    fn tensor(&self, (meta, bytes): &(TensorMeta, Bytes)) -> Result<Tensor, Error> {
        if self.side.copies.is_none() {
            return Tensor::new(meta.clone(), bytes.clone());
        }
        let mut copy = self.shard.allocate(bytes.len())?;
        copy.copy_from_slice(bytes);
        Tensor::new(meta.clone(), copy)
    }

    /// Takes the lanes' memory back.
    fn close(self) -> Result<(), Error> {
        self.way.map_or(Ok(()), |way| way.close(&mut self.side.lanes))
    }
}
