//! The system under test over shared memory: an engine of one shard in the producer's process, and two clients of it in
//! this one, attached as its two tasks through the crate `sealane`, as a training process would. Every tensor goes from
//! client to engine to client; `rounds.rs` says what is timed.

mod host;
mod rounds;
mod steps;

use std::time::Duration;

use ::sealane::{Attach, Polling, Task};

use super::{NAME, PS, WORKER};
use crate::error::BenchError;
use crate::limits::CONNECT_LIMIT;
use crate::peer::{Peer, PeerJob, PeerProgram};
use crate::plan::{Bench, Fuse, Plan};
use crate::sample::Sample;
use crate::system::System;
use crate::systems::meeting::Meeting;
use rounds::Clients;
use steps::Steps;

pub(in crate::systems) use host::serve;
pub(super) use host::{AREA_BYTES, admit_next};

/// Two clients and the engine between them.
pub(in crate::systems) struct Attached {
    plan: Plan,
    /// Before the engine's process, which they say goodbye to.
    clients: Play,
    peer: Peer,
}

/// What the two clients do.
enum Play {
    Tensors(Clients),
    Steps(Steps),
}

impl Play {
    fn new(plan: &Plan, ps: Task, worker: Task) -> Result<Play, ::sealane::Error> {
        Ok(match plan.bench {
            Bench::Fuse => Play::Steps(Steps::new(plan, ps, worker)?),
            _ => Play::Tensors(Clients::new(plan, ps, worker)?),
        })
    }
}

impl Attached {
    pub(in crate::systems) fn start(job: &PeerJob, program: &PeerProgram) -> Result<Self, BenchError> {
        let meeting = Meeting::arrange()?;
        let job = PeerJob { meeting_place: Some(meeting.socket()), ..job.clone() };
        let mut peer = Peer::start(program, &job)?;
        let plan = job.plan;
        let clients = attach(&meeting, &plan, PS)
            .and_then(|ps| Play::new(&plan, ps, attach(&meeting, &plan, WORKER)?))
            .map_err(|failure| peer.blame(failed("attach")(failure)))?;
        peer.rest()?;
        Ok(Self { plan, clients, peer })
    }
}

fn attach(meeting: &Meeting, plan: &Plan, task: &str) -> Result<Task, ::sealane::Error> {
    Attach::new(task)
        .socket(meeting.socket())
        .arena_bytes(if plan.bench == Bench::Fuse { steps::room_bytes(plan) } else { rounds::arena_bytes(plan) })
        .timeout(CONNECT_LIMIT)
        .polling(polling(plan))
        .attach()
}

/// With polling off a client does what it does unless told otherwise: looks for a while, then sleeps.
fn polling(plan: &Plan) -> Polling {
    if plan.polling { Polling::Spin } else { Polling::default() }
}

fn failed(operation: &'static str) -> impl FnOnce(::sealane::Error) -> BenchError {
    move |error| BenchError::Sealane { operation, reason: error.to_string() }
}

impl System for Attached {
    fn name(&self) -> &'static str {
        NAME
    }

    fn variant(&self) -> String {
        match (self.plan.bench, self.plan.fuse) {
            (Bench::Latency, _) if self.plan.polling => "polling, through the daemon".to_owned(),
            (Bench::Latency, _) => "parking, through the daemon".to_owned(),
            (Bench::Rate, Fuse::Off) => "polling, a call each".to_owned(),
            (Bench::Rate, Fuse::Turn) => "polling, batched calls".to_owned(),
            (Bench::Bandwidth, _) => format!("polling, window {}", self.plan.window),
            (Bench::Fuse, Fuse::Plan) => "polling, plan".to_owned(),
            (Bench::Fuse, _) => "polling, batched calls".to_owned(),
            (none, _) => none.is_measured_elsewhere(),
        }
    }

    fn congestion(&self) -> Option<&str> {
        None
    }

    fn resume(&mut self) -> Result<(), BenchError> {
        self.peer.resume()
    }

    fn round(&mut self, length: Duration) -> Result<Sample, BenchError> {
        let sample = match (&mut self.clients, self.plan.bench) {
            (Play::Steps(steps), _) => steps.round(&self.plan, length),
            (Play::Tensors(clients), Bench::Latency) => clients.round_trips(&self.plan, length),
            (Play::Tensors(clients), _) => clients.throughput(&self.plan, length),
        };
        sample.map_err(|failure| self.peer.blame(failed("move tensors")(failure)))
    }

    fn rest(&mut self) -> Result<(), BenchError> {
        self.peer.rest()
    }
}
