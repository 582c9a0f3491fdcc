//! The system under test: two engines, one in each process, over tcp or verbs, or one with both tasks where the link is
//! loopback. Over shm:
//! two clients of one engine, see `attached`.
//!
//! Both engines' sides run on a shard, as a parameter server's own code would: the consumer asks for `lane`'s tensor of the
//! next step as soon as the former has arrived; the producer has deposited it before, one step ahead.

mod attached;
mod consumer;
pub(super) mod fanin;
mod memory;
mod messages;
mod over_verbs;
mod peers;
mod producer;
mod published;
mod pushes;
mod steps;
#[cfg(test)]
mod tests;
pub(super) mod training;

use std::net::TcpListener;
use std::sync::mpsc;
use std::time::Duration;

use sealane_fusion::{EndpointMap, Engine, EngineSettings, Fuse as EngineFuse, Verbs};
use sealane_runtime::{Pin, Polling};
use sealane_transport::tcp::{TcpSettings, congestion_of};
use socket2::Socket;

use crate::error::BenchError;
use crate::limits::{SLOWEST_BYTES_PER_SECOND, STALL_LIMIT};
use crate::peer::{Peer, PeerJob, PeerProgram, announce};
use crate::plan::{Bench, Fuse, Keys, Link, Plan, Security};
use crate::rdma_device::RdmaDevice;
use crate::sample::Sample;
use crate::system::System;
use crate::systems::arrival;
use consumer::Lane;

pub(super) use attached::{Attached, serve as serve_attached};
pub(super) use peers::{Idle, Workers, greeting_bytes, serve as serve_peers};

const NAME: &str = "sealane";
const PS: &str = "ps:1";
const WORKER: &str = "worker:1";

/// A rested system is neither pinged nor given up: its peer process is stopped on purpose.
const PATIENCE: Duration = Duration::from_secs(24 * 3600);

/// An engine that consumes, and what it consumes from.
pub(in crate::systems) struct Sealane {
    name: &'static str,
    plan: Plan,
    engine: Engine,
    congestion: Option<String>,
    device: Option<RdmaDevice>,
    lanes: Vec<Lane>,
    rounds: i64,
    /// The producer's process; `None` where it is in this one.
    peer: Option<Peer>,
    /// Dropping it lets the shard's thread, which waits for it while others are measured, go on.
    resting: Option<mpsc::Sender<()>>,
}

impl Sealane {
    /// Two processes; one TCP connection, or one pair of queues and a TCP connection that only greets.
    pub(in crate::systems) fn between_processes(job: &PeerJob, program: &PeerProgram) -> Result<Self, BenchError> {
        let (listener, port) = listen(&job.plan)?;
        let congestion = (job.plan.link == Link::Tcp).then(|| congestion_of(&listener));
        let keys = Keys::make(job.plan.security, &[PS, WORKER])?;
        let job = PeerJob { consumer_port: Some(port), keys, ..job.clone() };
        let peer = Peer::start(program, &job)?;
        let map = map(peer.ready().port, port);
        let (verbs, opened) = over_verbs::settings(&job.plan).unzip();
        let links = Links { listener, verbs, keys: job.keys.as_ref() };
        let engine = engine(&job.plan, map, &[WORKER], links, request_timeout(&job.plan))?;
        let mut system = Self::new(&job.plan, engine)?;
        system.name = job.system.as_str();
        system.congestion = congestion;
        system.device = opened.and_then(|opened| opened.get().cloned());
        system.peer = Some(peer);
        system.rest()?;
        Ok(system)
    }

    /// One process, one shard, the loopback link.
    pub(in crate::systems) fn in_memory(plan: &Plan) -> Result<Self, BenchError> {
        let (listener, port) = listen(plan)?;
        let links = Links { listener, verbs: None, keys: None };
        let engine = engine(plan, map(port, port), &[WORKER, PS], links, PATIENCE)?;
        producer::start(&engine, plan)?;
        let mut system = Self::new(plan, engine)?;
        system.rest()?;
        Ok(system)
    }

    fn new(plan: &Plan, engine: Engine) -> Result<Self, BenchError> {
        let lanes = consumer::lanes(&engine, plan)?;
        let (congestion, device, peer, resting) = (None, None, None, None);
        Ok(Self { name: NAME, plan: plan.clone(), engine, congestion, device, lanes, rounds: 0, peer, resting })
    }
}

impl System for Sealane {
    fn name(&self) -> &'static str {
        self.name
    }

    fn variant(&self) -> String {
        variant(&self.plan)
    }

    fn congestion(&self) -> Option<&str> {
        self.congestion.as_deref()
    }

    fn device(&self) -> Option<&RdmaDevice> {
        self.device.as_ref()
    }

    fn resume(&mut self) -> Result<(), BenchError> {
        self.resting = None;
        self.peer.as_mut().map_or(Ok(()), Peer::resume)
    }

    fn round(&mut self, length: Duration) -> Result<Sample, BenchError> {
        let mut lanes = std::mem::take(&mut self.lanes);
        let is_step = self.plan.bench == Bench::Fuse;
        if is_step {
            lanes.iter_mut().for_each(Lane::wipe);
        }
        match consumer::round(&self.engine, &self.plan, lanes, self.rounds, length) {
            Ok((sample, lanes)) => {
                self.lanes = lanes;
                self.rounds += 1;
                let tensors = self.lanes.iter().filter(|_| is_step).map(Lane::bytes);
                arrival::check(self.name, tensors).map(|()| sample)
            }
            Err(failure) => Err(match &mut self.peer {
                Some(peer) => peer.blame(failure),
                None => failure,
            }),
        }
    }

    fn rest(&mut self) -> Result<(), BenchError> {
        if let Some(peer) = &mut self.peer {
            peer.rest()?;
        }
        // A spinning shard would take its CPU from whoever is measured next: hold its thread.
        let (resume, resumed) = mpsc::channel::<()>();
        self.resting = Some(resume);
        drop(self.engine.on_shard(0, async move |_| {
            let _ = resumed.recv();
        }));
        Ok(())
    }
}

impl Drop for Sealane {
    fn drop(&mut self) {
        self.resting = None;
        // The producer first: its end is what the consumer's engine would otherwise wait to tell it about.
        self.peer = None;
        if let Err(error) = self.engine.stop() {
            eprintln!("the measured engine did not stop cleanly: {error}");
        }
    }
}

/// The producer's process.
pub(in crate::systems) fn serve(job: &PeerJob) -> Result<(), BenchError> {
    let (listener, port) = listen(&job.plan)?;
    let map = map(port, job.consumer_port.unwrap_or(port));
    let (verbs, _) = over_verbs::settings(&job.plan).unzip();
    let links = Links { listener, verbs, keys: job.keys.as_ref() };
    let engine = engine(&job.plan, map, &[PS], links, PATIENCE)?;
    producer::start(&engine, &job.plan)?;
    announce(port)?;
    loop {
        // The process ends with its standard input or its parent.
        std::thread::park();
    }
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

fn listen(plan: &Plan) -> Result<(TcpListener, u16), BenchError> {
    let listener = TcpListener::bind(("127.0.0.1", 0)).map_err(BenchError::io("listen"))?;
    let port = listener.local_addr().map_err(BenchError::io("find the port"))?.port();
    let socket = Socket::from(listener);
    let failed = |error| BenchError::Sealane { operation: "set up its socket", reason: format!("{error}") };
    tcp_settings(plan).apply(&socket).map_err(failed)?;
    Ok((socket.into(), port))
}

fn tcp_settings(plan: &Plan) -> TcpSettings {
    TcpSettings { congestion: plan.congestion.clone().unwrap_or_default(), ..TcpSettings::default() }
}

/// Bytes of the tensors that are asked for under a key each: a window of one size, or all of a step.
fn lanes(plan: &Plan) -> Vec<usize> {
    if plan.step.is_empty() { vec![plan.size_bytes; plan.window] } else { plan.step.clone() }
}

/// How long the consumer waits for a tensor that is asked for behind all others.
fn request_timeout(plan: &Plan) -> Duration {
    let bytes: usize = lanes(plan).iter().sum();
    STALL_LIMIT + Duration::from_secs((bytes / SLOWEST_BYTES_PER_SECOND) as u64)
}

fn map(ps: u16, worker: u16) -> String {
    format!("{PS}=127.0.0.1:{ps}\n{WORKER}=127.0.0.1:{worker}\n")
}

/// What an engine's links are made with.
struct Links<'a> {
    listener: TcpListener,
    verbs: Option<Verbs>,
    keys: Option<&'a Keys>,
}

fn engine(
    plan: &Plan,
    map: String,
    tasks: &[&str],
    Links { listener, verbs, keys }: Links<'_>,
    request_timeout: Duration,
) -> Result<Engine, BenchError> {
    let failed = |reason: String| BenchError::Sealane { operation: "start", reason };
    let map = EndpointMap::parse(&map, "the bench's endpoint map").map_err(|error| failed(error.to_string()))?;
    let mut settings = EngineSettings::new(map, tasks).map_err(|error| failed(error.to_string()))?;
    settings.listeners = vec![listener];
    settings.tcp = tcp_settings(plan);
    settings.session.window = plan.window;
    settings.session.heartbeat = PATIENCE;
    settings.session.peer_timeout = PATIENCE;
    settings.request_timeout = request_timeout;
    settings.slab_send_bytes = memory::slab_bytes(plan);
    settings.verbs = verbs;
    if let Some(keys) = keys {
        settings.authentication = keys.authentication()?;
    }
    settings.slab_receive_bytes = 1 << 20;
    settings.fuse = match plan.fuse {
        Fuse::Off => EngineFuse::Off,
        Fuse::Turn | Fuse::Receive | Fuse::ReceiveWaitAll | Fuse::Plan | Fuse::Push => EngineFuse::Turn,
    };
    settings.runtime.polling = if plan.polling { Polling::Spin } else { Polling::default() };
    settings.runtime.executor = plan.executor.into();
    // The harness has pinned this thread, and a shard's thread inherits that.
    settings.runtime.pin = Pin::Off;
    settings.runtime.stall_report = Duration::ZERO;
    if matches!(plan.link, Link::Shm | Link::Loopback) {
        settings.session.parked_requests_max = settings.session.parked_requests_max.max(plan.window * 2);
    }
    Engine::start(settings).map_err(|error| failed(error.to_string()))
}
