//! Workers that are engines, as training processes over verbs are: each with a shard of its own, a queue pair to every ps,
//! and memory that its device reaches. All are in this process, and their shards share its CPU. Bounded by
//! [`HOSTED_WORKERS_MAX`](crate::limits::HOSTED_WORKERS_MAX).

#[cfg(test)]
mod tests;
mod worker;

use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use sealane_fusion::metrics::SHOW_INTERVAL;
use sealane_fusion::{EndpointMap, Engine, EngineSettings, Fuse as EngineFuse, Verbs};
use sealane_runtime::{Pin, Polling};

use super::super::over_verbs::{self, Opened};
use super::super::peers::{greeting, host};
use super::super::{NAME, PATIENCE, memory, tcp_settings};
use super::servers::{self, REGISTERED_BYTES};
use super::{broken, variant};
use crate::error::BenchError;
use crate::limits::{CONNECT_LIMIT, SLOWEST_BYTES_PER_SECOND, STALL_LIMIT};
use crate::peer::{Peer, PeerJob, PeerProgram};
use crate::plan::{Fuse, Plan};
use crate::process::Process;
use crate::rdma_device::RdmaDevice;
use crate::systems::training::{self, Experiment, Moved, StepLog, Trainees};
use worker::Worker;

/// Buffers of a worker's shared receive queue: of 16 KiB each, and more than a few ps can have on their way.
const QUEUE_DEPTH: u32 = 256;

/// See the module.
pub(in crate::systems) struct Engines {
    plan: Plan,
    /// Each with what its worker keeps from round to round.
    workers: Vec<(Engine, Worker)>,
    opened: Opened,
    /// Dropping these lets the shards' threads, which wait for them while others are measured, go on.
    resting: Vec<mpsc::Sender<()>>,
}

/// Parameter servers in a process of their own, and an engine for every worker.
pub(in crate::systems) fn start(job: &PeerJob, program: &PeerProgram) -> Result<Experiment<Engines>, BenchError> {
    let plan = &job.plan;
    let mut peer = Peer::start(program, job)?;
    let ps = Process::new(peer.process_id())?;
    let alone_bytes = ps.resident_bytes()?;
    let (verbs, opened) = over_verbs::settings(plan).expect("the link is verbs");
    let map = servers::map(training::of(plan), &peer.ready().ports);
    let mut engines = Engines::start(plan, &map, &verbs, opened).map_err(|failure| peer.blame(failure))?;
    // The first pull makes the queue pairs.
    engines.make_steps(1).map_err(|failure| peer.blame(failure))?;
    let grown_bytes = ps.resident_bytes()? as f64 - alone_bytes as f64;
    engines.rest();
    peer.rest()?;
    let each = grown_bytes / training::of(plan).pairs() as f64;
    Experiment::new((NAME, described(plan)), plan, engines, None, each, peer)
}

/// The variant, with what only verbs can choose, and what a shared CPU forbids.
fn described(plan: &Plan) -> String {
    let (transfer, _) = plan.verbs().expect("the link is verbs");
    let waiting = if plan.polling && shares_cpu(plan) { ", workers parking" } else { "" };
    format!("{}, {transfer}{waiting}", variant(plan))
}

/// Whether a worker that spins would keep others from working.
fn shares_cpu(plan: &Plan) -> bool {
    training::of(plan).size.workers > 1
}

/// One engine for the worker of that number.
fn engine(plan: &Plan, map: &str, number: usize, verbs: Verbs) -> Result<Engine, BenchError> {
    let failed = |reason: String| BenchError::Sealane { operation: "start a worker", reason };
    let training = training::of(plan);
    let map = EndpointMap::parse(map, "the bench's endpoint map").map_err(|error| failed(error.to_string()))?;
    let task = greeting::task(number);
    let mut settings = EngineSettings::new(map, &[&task]).map_err(|error| failed(error.to_string()))?;
    // Workers call, and are not called: any address will do.
    settings.listeners = vec![host::listener(plan)?.0];
    settings.tcp = tcp_settings(plan);
    settings.verbs = Some(verbs);
    settings.session.window = plan.window;
    settings.session.heartbeat = PATIENCE;
    settings.session.peer_timeout = PATIENCE;
    settings.connect_timeout = CONNECT_LIMIT;
    settings.request_timeout = request_timeout(plan);
    settings.slab_send_bytes =
        REGISTERED_BYTES + memory::room_bytes(&plan.step) + 2 * memory::room_bytes(&training.push);
    settings.slab_receive_bytes = REGISTERED_BYTES;
    settings.fuse = if plan.fuse == Fuse::Off { EngineFuse::Off } else { EngineFuse::Turn };
    settings.runtime.polling = match (shares_cpu(plan), plan.polling) {
        (true, _) => Polling::Park,
        (false, true) => Polling::Spin,
        (false, false) => Polling::default(),
    };
    settings.runtime.executor = plan.executor.into();
    // The harness has pinned this thread, and a shard's thread inherits that.
    settings.runtime.pin = Pin::Off;
    settings.runtime.stall_report = Duration::ZERO;
    Engine::start(settings).map_err(|error| failed(error.to_string()))
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
        Ok(Self { plan: plan.clone(), workers, opened, resting: Vec::new() })
    }

    /// Every worker's steps, all workers at once: when each step began and ended.
    fn make_steps(&mut self, steps: u64) -> Result<Vec<worker::Times>, BenchError> {
        let begin = |(engine, worker): (Engine, Worker)| {
            let plan = self.plan.clone();
            let job = engine.on_shard(0, async move |shard| worker.train(&shard, &plan, steps).await);
            (engine, job)
        };
        let begun: Vec<_> = self.workers.drain(..).map(begin).collect();
        let mut failure = None;
        let mut times = Vec::with_capacity(begun.len());
        for (engine, job) in begun {
            match job.wait().map_err(broken).and_then(|ended| ended.map_err(broken)) {
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

    /// As every engine shows it of its peers, once what it shows is newer than the question.
    fn moved(&self) -> Result<Option<Moved>, BenchError> {
        let pass = |(engine, _): &(Engine, Worker)| {
            engine.on_shard(0, async |shard| shard.shard().sleep(2 * SHOW_INTERVAL).await)
        };
        let passing: Vec<_> = self.workers.iter().map(pass).collect();
        passing.into_iter().try_for_each(|job| job.wait().map_err(broken))?;
        let shards = self.workers.iter().flat_map(|(engine, _)| engine.figures());
        let moved = shards.flat_map(|shard| shard.peers).fold(Moved::default(), |moved, peer| Moved {
            messages: moved.messages + peer.counters.messages_sent + peer.counters.messages_received,
            bytes: moved.bytes + peer.counters.bytes_sent + peer.counters.bytes_received,
        });
        Ok(Some(moved))
    }

    fn device(&self) -> Option<&RdmaDevice> {
        self.opened.get()
    }

    fn resume(&mut self) {
        self.resting.clear();
    }

    fn rest(&mut self) {
        // A spinning shard would take its CPU from whoever is measured next: hold its thread.
        for (engine, _) in &self.workers {
            let (resume, resumed) = mpsc::channel::<()>();
            self.resting.push(resume);
            drop(engine.on_shard(0, async move |_| {
                let _ = resumed.recv();
            }));
        }
    }
}

impl Drop for Engines {
    fn drop(&mut self) {
        self.resting.clear();
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
