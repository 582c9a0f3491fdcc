//! The system under test over shared memory: an engine of one shard in the producer's process, and two clients of it in this
//! process, attached as its two tasks through the crate `sealane`, as a training process would be. Every tensor goes from client to
//! engine to client; `clients` says what is timed.
//!
//! For `direct`, `stream` and `grpc-connector` the ps is in the engine's process, and what the two tasks send each other bypasses
//! the engine, through memory that they share.
//!
//! The engine's process does what `sealane daemon` does, without its files, signals and checks of users: a thread admits the two
//! clients and then sleeps.

mod clients;
mod direct;

pub(super) use clients::{BATCHES, batches, check_pulled, unmoved};

use std::convert::Infallible;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use std::{process, thread};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use sealane::{Attach, Polling, Task};
use sealane_fusion::{Engine, Portion};
use sealane_transport::shm::attach::{self, Request, RequestError};

use super::asking::{self, Batches};
use super::engine::{self, Links, NAME, PS, WORKER, lanes, map, room_bytes};
use super::streams;
use crate::error::BenchError;
use crate::limits::{CLIENT_SPIN, CONNECT_LIMIT, IDLE_US_MAX, SIZE_BYTES_MAX, STALL_LIMIT};
use crate::peer::{PeerJob, PeerProgram, announce, until_ended};
use crate::plan::{Bench, Fuse, Plan, SystemName};
use crate::system::System;
use crate::systems::grpc;
use crate::systems::sockets::Meeting;
use clients::Clients;

/// Two clients and the engine between them.
pub(in crate::systems) fn start(job: &PeerJob, program: &PeerProgram) -> Result<System, BenchError> {
    let meeting = Meeting::arrange()?;
    let job = PeerJob { meeting_place: Some(meeting.socket()), ..job.clone() };
    let plan = streams::rested(&job);
    System::with_peer(&job, program, |_| {
        let socket = meeting.socket();
        let attach = |task, plan: &Plan| attach_as(task, plan, Some(&socket));
        if job.system == SystemName::Direct {
            return direct::system(&job.plan, attach(WORKER, &job.plan)?);
        }
        if job.system == SystemName::Stream {
            return streams::dial(&job.plan, &attach(WORKER, &job.plan)?, None);
        }
        if job.system == SystemName::GrpcConnector {
            return grpc::over_stream(&job, &attach(WORKER, &job.plan)?);
        }
        let (ps, worker) = (attach(PS, &plan)?, attach(WORKER, &plan)?);
        let clients = Clients::new(&plan, ps, worker).map_err(BenchError::sealane("attach"))?;
        Ok(System::new(NAME, variant(&plan), &plan, clients.with(meeting)))
    })
}

/// Attaches to the daemon at `socket`, by default at the one that clients find.
pub(super) fn attach_as(task: &str, plan: &Plan, socket: Option<&Path>) -> Result<Task, BenchError> {
    attach_with(task, plan, room_bytes(&lanes(plan)) as u64, socket)
}

/// Like [`attach_as`], with an arena of this size.
pub(super) fn attach_with(
    task: &str,
    plan: &Plan,
    arena_bytes: u64,
    socket: Option<&Path>,
) -> Result<Task, BenchError> {
    let attach = Attach::new(task).arena_bytes(arena_bytes).timeout(CONNECT_LIMIT);
    let attach = if let Some(socket) = socket { attach.socket(socket) } else { attach };
    // With polling off a client behaves as by default.
    // Longer than anything takes in a round of its own system; during rounds of others, those have the CPU to themselves.
    let spin = CLIENT_SPIN.max(2 * plan.idle().unwrap_or_default());
    let attach = if plan.polling { attach.polling(Polling::idle(spin)) } else { attach };
    attach.attach().map_err(BenchError::sealane("attach"))
}

fn variant(plan: &Plan) -> String {
    match (plan.bench, plan.fuse) {
        (Bench::Latency, _) if plan.polling => "polling, through the daemon".to_owned(),
        (Bench::Latency, _) => "parking, through the daemon".to_owned(),
        (Bench::Rate, Fuse::Off) => "polling, a call each".to_owned(),
        (Bench::Rate, Fuse::Push) => "polling, push".to_owned(),
        (Bench::Bandwidth, _) => format!("polling, window {}", plan.window),
        (Bench::Fuse, Fuse::Plan) => "polling, plan".to_owned(),
        _ => "polling, batched calls".to_owned(),
    }
}

/// How long a request waits: the longest gap of a round, since a recv is made before the gap, plus the stall limit.
const REQUEST_TIMEOUT: Duration = Duration::from_micros(IDLE_US_MAX).saturating_add(STALL_LIMIT);

/// Memory for tensors received without a destination. Only those of steps and queues need it: other small ones lie in the ring, and
/// large ones have a destination.
const AREA_BYTES: u64 = 1 << 20;

/// The engine's process, which also runs the ps for a direct lane.
pub(in crate::systems) fn serve(job: &PeerJob) -> Result<(), BenchError> {
    let plan = streams::rested(job);
    let (network, address) = engine::listener(&plan, job.hosts.producer)?;
    let links = Links { listener: network, verbs: None, keys: None };
    let engine = engine::start_pair(&plan, map(address, address), &[PS, WORKER], links, REQUEST_TIMEOUT)?;
    let clients = attach::listen(job.meeting_place()?).map_err(failed)?;
    announce(&[])?;
    // A queue gets at most half of it.
    let queued = if plan.fuse == Fuse::Push { 2 * room_bytes(&lanes(&plan)) } else { 0 };
    let area_bytes = AREA_BYTES + (room_bytes(&plan.step) + queued) as u64;
    if matches!(job.system, SystemName::Direct | SystemName::Stream | SystemName::GrpcConnector) {
        serve_clients(engine, clients, (area_bytes, true));
        let ps = attach_as(PS, &job.plan, Some(job.meeting_place()?))?;
        return match job.system {
            SystemName::Stream => streams::serve_dialer(&job.plan, &ps),
            SystemName::GrpcConnector => grpc::serve_stream(&job.plan, &ps),
            _ => asking::answer(&job.plan, &ps, &Batches::new(&job.plan, [WORKER, PS]))
                .map_err(BenchError::sealane("answer by a direct lane")),
        };
    }
    serve_clients(engine, clients, (area_bytes, false));
    until_ended()
}

/// Admits clients on a thread of its own, with this much memory for received tensors, and gives them what they ask for. Whether they may reach
/// each other without the engine is the last argument.
pub(in super::super) fn serve_clients(engine: Engine, listener: OwnedFd, portion: (u64, bool)) {
    thread::spawn(move || {
        let Err(failure) = serve_all(&engine, &listener, portion);
        // The other process shows what is written here.
        eprintln!("the daemon between the clients ended: {failure}");
        process::exit(1);
    });
}

fn serve_all(
    engine: &Engine,
    listener: &OwnedFd,
    (area_bytes, past_the_engine): (u64, bool),
) -> Result<Infallible, BenchError> {
    let mut attached = Vec::new();
    loop {
        match next_request(listener)? {
            (socket, Request::Attach(wish)) => {
                admit(engine, &socket, &wish, (area_bytes, past_the_engine))?;
                attached.push(socket);
            }
            (socket, Request::Lane { task, peer, .. }) => {
                let asker = attach::credentials(&socket).map_err(failed)?;
                // It does not matter if the client no longer waits.
                let _ = match engine.lane(&task, &peer, asker, past_the_engine) {
                    Ok(end) => end.give(&socket),
                    Err(error) => attach::refuse(&socket, &error),
                };
            }
            (socket, Request::Arena { arena, .. }) => {
                let asker = attach::credentials(&socket).map_err(failed)?;
                let _ = match engine.shared_arena(arena, asker.uid) {
                    Ok((memory, bytes)) => attach::show_arena(&socket, &memory, bytes),
                    Err(error) => attach::refuse(&socket, &error),
                };
            }
            (_, request) => return Err(unexpected(&request)),
        }
    }
}

fn next_request(listener: &OwnedFd) -> Result<(Arc<OwnedFd>, Request), BenchError> {
    let socket = loop {
        ready(listener, PollFlags::POLLIN)?;
        if let Some(socket) = attach::accept(listener).map_err(failed)? {
            break Arc::new(socket);
        }
    };
    loop {
        ready(&socket, PollFlags::POLLIN)?;
        if let Some(request) = attach::read_request(&socket).map_err(failed)? {
            return Ok((socket, request));
        }
    }
}

fn admit(
    engine: &Engine,
    socket: &Arc<OwnedFd>,
    wish: &attach::Attach,
    (area_bytes, past_the_engine): (u64, bool),
) -> Result<(), BenchError> {
    let portion = Portion {
        shards: engine.shards(),
        area_bytes,
        request_timeout: REQUEST_TIMEOUT,
        tensor_bytes_max: SIZE_BYTES_MAX as u64,
        views: past_the_engine,
        direct_lanes: past_the_engine,
        job: None,
    };
    let peer = attach::credentials(socket).map_err(failed)?;
    let made = portion.make(wish, peer, socket, &engine.tasks());
    let (ends, mut welcoming) = made.map_err(failed)?;
    engine.admit(ends).map_err(|error| {
        // If the client is gone, nobody needs to be told.
        let _ = attach::refuse(socket, &error);
        failed(error)
    })?;
    while !welcoming.step(socket).map_err(failed)? {
        ready(socket, PollFlags::POLLOUT)?;
    }
    Ok(())
}

fn unexpected(request: &Request) -> BenchError {
    failed(RequestError::Malformed(format!("{request:?} is not to attach")))
}

/// Waits until a socket can be read or written; for a stranger's socket the wait would be too long, but these belong to the
/// harness.
fn ready(socket: &OwnedFd, what: PollFlags) -> Result<(), BenchError> {
    match poll(&mut [PollFd::new(socket.as_fd(), what)], PollTimeout::NONE) {
        Ok(_) | Err(nix::errno::Errno::EINTR) => Ok(()),
        Err(errno) => Err(BenchError::io("wait for a client")(errno)),
    }
}

fn failed(error: impl std::fmt::Display) -> BenchError {
    BenchError::sealane("let a client in")(error)
}
