//! The system under test: two engines, one in each process, over tcp or verbs, or one with both tasks where the link is
//! loopback. Over shm: two clients of one engine, see `attached`.
//!
//! Both engines' sides run on a shard, as a parameter server's own code would: the consumer asks for `lane`'s tensor of the
//! next step as soon as the former has arrived; the producer has deposited it before, one step ahead.

use std::time::Duration;

use sealane_fusion::Engine;
use sealane_transport::tcp::congestion_of;

use super::consumer::{self, Lane};
use super::engine::{self, Links, NAME, PATIENCE, PS, Resting, WORKER, lanes, map};
use super::producer;
use crate::error::BenchError;
use crate::limits::{SLOWEST_BYTES_PER_SECOND, STALL_LIMIT};
use crate::peer::{PeerJob, PeerProgram, announce, until_ended};
use crate::plan::{Bench, Fuse, Keys, Link, Plan, Security};
use crate::sample::Sample;
use crate::system::{Rounds, System};
use crate::systems;

/// An engine that consumes.
struct Sealane {
    name: &'static str,
    plan: Plan,
    engine: Engine,
    lanes: Vec<Lane>,
    rounds: i64,
    resting: Resting,
}

/// Two processes; one TCP connection, or one pair of queues and a TCP connection that only greets.
pub(in crate::systems) fn between_processes(job: &PeerJob, program: &PeerProgram) -> Result<System, BenchError> {
    let (listener, port) = engine::listener(&job.plan)?;
    let congestion = (job.plan.link == Link::Tcp).then(|| congestion_of(&listener));
    let keys = Keys::make(job.plan.security, &[PS, WORKER])?;
    let job = PeerJob { consumer_port: Some(port), keys, ..job.clone() };
    System::with_peer(&job, program, |peer| {
        let map = map(peer.ready().port, port);
        let (verbs, opened) = engine::verbs_settings(&job.plan).unzip();
        let links = Links { listener, verbs, keys: job.keys.as_ref() };
        let engine = engine::start_pair(&job.plan, map, &[WORKER], links, request_timeout(&job.plan))?;
        let name = job.system.as_str();
        let rounds = Sealane::new(name, &job.plan, engine)?;
        let device = opened.and_then(|opened| opened.get().cloned());
        Ok(System::new(name, variant(&job.plan), rounds).with_congestion(congestion).with_device(device))
    })
}

/// One process, one shard, the loopback link.
pub(in crate::systems) fn in_memory(plan: &Plan) -> Result<System, BenchError> {
    let (listener, port) = engine::listener(plan)?;
    let links = Links { listener, verbs: None, keys: None };
    let engine = engine::start_pair(plan, map(port, port), &[WORKER, PS], links, PATIENCE)?;
    producer::start(&engine, plan)?;
    Ok(System::new(NAME, variant(plan), Sealane::new(NAME, plan, engine)?))
}

impl Sealane {
    /// One that rests.
    fn new(name: &'static str, plan: &Plan, engine: Engine) -> Result<Self, BenchError> {
        let lanes = consumer::lanes(&engine, plan)?;
        let mut system = Self { name, plan: plan.clone(), engine, lanes, rounds: 0, resting: Resting::default() };
        system.rest();
        Ok(system)
    }
}

impl Rounds for Sealane {
    fn round(&mut self, length: Duration) -> Result<Sample, BenchError> {
        let mut lanes = std::mem::take(&mut self.lanes);
        let is_step = self.plan.bench == Bench::Fuse;
        if is_step {
            lanes.iter_mut().for_each(Lane::wipe);
        }
        let (sample, lanes) = consumer::round(&self.engine, &self.plan, lanes, self.rounds, length)?;
        self.lanes = lanes;
        self.rounds += 1;
        let tensors = self.lanes.iter().filter(|_| is_step).map(Lane::bytes);
        systems::check_arrival(self.name, tensors).map(|()| sample)
    }

    fn resume(&mut self) {
        self.resting.end();
    }

    fn rest(&mut self) {
        self.resting.begin(&self.engine);
    }
}

impl Drop for Sealane {
    fn drop(&mut self) {
        self.resting.end();
        if let Err(error) = self.engine.stop() {
            eprintln!("the measured engine did not stop cleanly: {error}");
        }
    }
}

/// The producer's process.
pub(in crate::systems) fn serve(job: &PeerJob) -> Result<(), BenchError> {
    let (listener, port) = engine::listener(&job.plan)?;
    let map = map(port, job.consumer_port.unwrap_or(port));
    let (verbs, _) = engine::verbs_settings(&job.plan).unzip();
    let links = Links { listener, verbs, keys: job.keys.as_ref() };
    let engine = engine::start_pair(&job.plan, map, &[PS], links, PATIENCE)?;
    producer::start(&engine, &job.plan)?;
    announce(port)?;
    until_ended()
}

/// How long the consumer waits for a tensor that is asked for behind all others.
pub(super) fn request_timeout(plan: &Plan) -> Duration {
    let bytes: usize = lanes(plan).iter().sum();
    STALL_LIMIT + Duration::from_secs((bytes / SLOWEST_BYTES_PER_SECOND) as u64)
}

fn variant(plan: &Plan) -> String {
    let waiting = if plan.polling { "polling" } else { "parking" };
    let way = match (plan.bench, plan.fuse) {
        (Bench::Latency, _) => waiting.to_owned(),
        (Bench::Rate, Fuse::Off) => format!("{waiting}, a write each"),
        (Bench::Rate, Fuse::Turn) => format!("{waiting}, fused turns"),
        (Bench::Rate, Fuse::Push) => format!("{waiting}, push"),
        (Bench::Rate | Bench::Fuse, Fuse::Receive | Fuse::ReceiveWaitAll) => format!("{waiting}, fused receive"),
        (Bench::Rate | Bench::Fuse, Fuse::Plan) if plan.republish => {
            format!("{waiting}, plan, published each step")
        }
        (Bench::Rate | Bench::Fuse, Fuse::Plan) => format!("{waiting}, plan"),
        (Bench::Bandwidth, _) => format!("{waiting}, window {}", plan.window),
        (Bench::Fuse, Fuse::Off) => format!("{waiting}, a write each, window {}", plan.window),
        (Bench::Fuse, Fuse::Turn) => format!("{waiting}, fused turns, window {}", plan.window),
        (none, _) => none.is_measured_elsewhere(),
    };
    match (plan.verbs(), plan.security) {
        (Some((transfer, registration)), _) => format!("{way}, {transfer}, {registration}"),
        (None, Security::None) => way,
        (None, Security::Secret) => format!("{way}, shared secret"),
        (None, Security::Tls) => format!("{way}, TLS 1.3"),
    }
}
