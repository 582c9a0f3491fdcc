//! The system under test: two engines, one in each process, over tcp or verbs, or one engine with both tasks over loopback. Over
//! shm: two clients of one engine, see `attached`.
//!
//! Both sides run on a shard of their engine, as a parameter server's own code would: the consumer requests each lane's tensor of
//! the next step as soon as the one before has arrived; the producer has sent it already, one step ahead.

use std::net::SocketAddr;
use std::time::Duration;

use sealane::Task;
use sealane_fusion::Engine;
use sealane_transport::tcp::congestion_of;

use super::consumer::{self, Lane};
use super::engine::{self, Links, Measured, NAME, PATIENCE, PS, WORKER, lanes, map};
use super::{producer, streams};
use crate::error::BenchError;
use crate::figures::Sample;
use crate::limits::{SLOWEST_BYTES_PER_SECOND, STALL_LIMIT};
use crate::peer::{Hosts, PeerJob, PeerProgram, announce, until_ended};
use crate::plan::{Bench, Fuse, Keys, Link, Plan, Security, SystemName};
use crate::system::{Client, System};
use crate::systems::client::check_arrival;

/// An engine on the consumer's side.
struct Sealane {
    name: &'static str,
    measured: Measured,
    lanes: Vec<Lane>,
}

/// Two processes; one TCP connection, or one queue pair and a TCP connection used only for the greeting.
pub(in crate::systems) fn between_processes(job: &PeerJob, program: &PeerProgram) -> Result<System, BenchError> {
    let plan = streams::rested(job);
    let (listener, address) = engine::listener(&plan, job.hosts.consumer)?;
    let congestion = (plan.link == Link::Tcp).then(|| congestion_of(&listener));
    // Between hosts, engines accept nobody without keys; a secret changes only the greeting.
    let security = match plan.security {
        Security::None if job.hosts != Hosts::default() => Security::Secret,
        security => security,
    };
    let keys = Keys::make(security, &[PS, WORKER])?;
    let job = PeerJob { consumer_port: Some(address.port()), keys, ..job.clone() };
    System::with_peer(&job, program, |peer| {
        let map = map(peer.address(), address);
        let (verbs, opened) = engine::verbs_settings(&plan).unzip();
        let links = Links { listener, verbs, keys: job.keys.as_ref() };
        let is_stream = job.system == SystemName::Stream;
        let timeout = if is_stream { PATIENCE } else { request_timeout(&plan) };
        let engine = engine::start_pair(&plan, map, &[WORKER], links, timeout)?;
        let device = opened.and_then(|opened| opened.get().cloned());
        let system = if is_stream {
            let task = Task::from(engine.task(WORKER).map_err(BenchError::sealane("start"))?);
            streams::dial(&job.plan, &task, Some(engine))?
        } else {
            let name = job.system.as_str();
            System::new(name, variant(&plan), &plan, Sealane::new(name, &plan, engine)?)
        };
        Ok(system.with_congestion(congestion).with_device(device))
    })
}

/// One process, one shard, and the loopback link.
pub(in crate::systems) fn in_memory(plan: &Plan) -> Result<System, BenchError> {
    let (listener, address) = engine::listener(plan, Hosts::default().consumer)?;
    let links = Links { listener, verbs: None, keys: None };
    let engine = engine::start_pair(plan, map(address, address), &[WORKER, PS], links, PATIENCE)?;
    producer::start(&engine, plan)?;
    Ok(System::new(NAME, variant(plan), plan, Sealane::new(NAME, plan, engine)?))
}

impl Sealane {
    fn new(name: &'static str, plan: &Plan, engine: Engine) -> Result<Self, BenchError> {
        let lanes = consumer::lanes(&engine, plan)?;
        Ok(Self { name, measured: Measured::new(engine), lanes })
    }
}

impl Client for Sealane {
    fn round(&mut self, plan: &Plan, length: Duration) -> Result<Sample, BenchError> {
        let mut lanes = std::mem::take(&mut self.lanes);
        let is_step = plan.bench == Bench::Fuse;
        if is_step {
            lanes.iter_mut().for_each(Lane::wipe);
        }
        let (sample, lanes) = consumer::round(&self.measured.engine, plan, lanes, length)?;
        self.lanes = lanes;
        let tensors = self.lanes.iter().filter(|_| is_step).map(Lane::bytes);
        check_arrival(self.name, tensors).map(|()| sample)
    }

    fn resume(&mut self) {
        self.measured.resume();
    }

    fn rest(&mut self) {
        self.measured.rest();
    }
}

/// The producer's process.
pub(in crate::systems) fn serve(job: &PeerJob) -> Result<(), BenchError> {
    let plan = streams::rested(job);
    let (listener, address) = engine::listener(&plan, job.hosts.producer)?;
    let port = address.port();
    let map = map(address, SocketAddr::new(job.hosts.consumer, job.consumer_port.unwrap_or(port)));
    let (verbs, _) = engine::verbs_settings(&plan).unzip();
    let links = Links { listener, verbs, keys: job.keys.as_ref() };
    let engine = engine::start_pair(&plan, map, &[PS], links, PATIENCE)?;
    if job.system == SystemName::Stream {
        let task = Task::from(engine.task(PS).map_err(BenchError::sealane("start"))?);
        announce(&[port])?;
        return streams::serve_dialer(&job.plan, &task);
    }
    producer::start(&engine, &plan)?;
    announce(&[port])?;
    until_ended()
}

/// How long the consumer waits for a tensor that is requested behind all others.
pub(super) fn request_timeout(plan: &Plan) -> Duration {
    let bytes: usize = lanes(plan).iter().sum();
    STALL_LIMIT + Duration::from_secs((bytes / SLOWEST_BYTES_PER_SECOND) as u64)
}

fn variant(plan: &Plan) -> String {
    let waiting = if plan.polling { "polling" } else { "parking" };
    let way = match (plan.bench, plan.fuse) {
        (Bench::Rate, Fuse::Off) => format!("{waiting}, a write each"),
        (Bench::Rate, Fuse::Turn) => format!("{waiting}, fused turns"),
        (Bench::Rate, Fuse::Push) => format!("{waiting}, push"),
        (Bench::Rate, Fuse::Receive) => format!("{waiting}, batches read in place"),
        (Bench::Rate | Bench::Fuse, Fuse::Receive | Fuse::ReceiveWaitAll) => format!("{waiting}, fused receive"),
        (Bench::Rate | Bench::Fuse, Fuse::Plan) => format!("{waiting}, plan"),
        (Bench::Bandwidth, _) => format!("{waiting}, window {}", plan.window),
        (Bench::Fuse, Fuse::Off) => format!("{waiting}, a write each, window {}", plan.window),
        (Bench::Fuse, Fuse::Turn) => format!("{waiting}, fused turns, window {}", plan.window),
        _ => waiting.to_owned(),
    };
    match (plan.verbs(), plan.security) {
        (Some((transfer, registration)), _) => format!("{way}, {transfer}, {registration}"),
        (None, Security::None) => way,
        (None, Security::Secret) => format!("{way}, shared secret"),
        (None, Security::Tls) => format!("{way}, TLS 1.3"),
    }
}
