//! Workers that are engines, as training processes over verbs are: each with a shard of its own, a queue pair to every ps,
//! and memory that its device reaches. All are in this process, and their shards share its CPU. Bounded by
//! [`HOSTED_WORKERS_MAX`](crate::limits::HOSTED_WORKERS_MAX).

#[cfg(test)]
mod tests;
mod worker;

use std::thread;
use std::time::Duration;

use sealane_fusion::Engine;
use sealane_fusion::metrics::SHOW_INTERVAL;
use sealane_runtime::Polling;
use sealane_transport::verbs::Verbs;

use super::super::engine::{self, Resting};
use super::super::memory;
use super::super::names::NAME;
use super::super::over_verbs::{self, Opened};
use super::super::peers::greeting;
use super::servers::{self, REGISTERED_BYTES};
use crate::error::BenchError;
use crate::limits::{CONNECT_LIMIT, SLOWEST_BYTES_PER_SECOND, STALL_LIMIT};
use crate::peer::{Peer, PeerJob, PeerProgram};
use crate::plan::Plan;
use crate::process::Growth;
use crate::system::System;
use crate::systems::training::{self, Moved, StepLog, Trainees};
use worker::Worker;

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
    let mut peer = Peer::start(program, job)?;
    let growth = Growth::of(peer.process_id())?;
    let (verbs, opened) = over_verbs::settings(plan).expect("the link is verbs");
    let map = servers::map(training::of(plan), &peer.ready().ports);
    let mut engines = Engines::start(plan, &map, &verbs, opened).map_err(|failure| peer.blame(failure))?;
    // The first pull makes the queue pairs.
    engines.make_steps(1).map_err(|failure| peer.blame(failure))?;
    let each = growth.bytes_each(training::of(plan).pairs())?;
    engines.rest();
    peer.rest()?;
    let device = engines.opened.get().cloned();
    Ok(training::system((NAME, described(plan)), plan, engines, each, peer)?.with_device(device))
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
    let mut settings = engine::settings(plan, map, &[greeting::task(number)], listeners, Some(verbs))?;
    engine::let_rest(&mut settings);
    settings.session.window = plan.window;
    settings.connect_timeout = CONNECT_LIMIT;
    settings.request_timeout = request_timeout(plan);
    settings.slab_send_bytes =
        REGISTERED_BYTES + memory::room_bytes(&plan.step) + 2 * memory::room_bytes(&training::of(plan).push);
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

    /// As every engine shows it of its peers, once what it shows is newer than the question.
    fn moved(&self) -> Result<Option<Moved>, BenchError> {
        let pass = |(engine, _): &(Engine, Worker)| {
            engine.on_shard(0, async |shard| shard.shard().sleep(2 * SHOW_INTERVAL).await)
        };
        let passing: Vec<_> = self.workers.iter().map(pass).collect();
        passing.into_iter().try_for_each(|job| job.wait().map_err(BenchError::sealane("train")))?;
        let shards = self.workers.iter().flat_map(|(engine, _)| engine.figures());
        let moved = shards.flat_map(|shard| shard.peers).fold(Moved::default(), |moved, peer| Moved {
            messages: moved.messages + peer.counters.messages_sent + peer.counters.messages_received,
            bytes: moved.bytes + peer.counters.bytes_sent + peer.counters.bytes_received,
        });
        Ok(Some(moved))
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
