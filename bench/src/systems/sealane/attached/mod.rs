//! The system under test over shared memory: an engine of one shard in the producer's process, and two clients of it in
//! this one, attached as its two tasks through the crate `sealane`, as a training process would. Every tensor goes from
//! client to engine to client; `rounds.rs` says what is timed.

mod host;
mod rounds;
mod steps;

use std::time::Duration;

use ::sealane::{Attach, Polling, Task};

use super::arena::step_bytes;
use super::names::{NAME, PS, WORKER};
use crate::error::BenchError;
use crate::limits::CONNECT_LIMIT;
use crate::peer::{Peer, PeerJob, PeerProgram};
use crate::plan::{Bench, Fuse, Plan};
use crate::sample::Sample;
use crate::system::{Rounds, System};
use crate::systems::meeting::Meeting;
use rounds::Clients;
use steps::Steps;

pub(in crate::systems) use host::serve;
pub(super) use host::{AREA_BYTES, admit_next};

/// Two clients of an engine, and what they do.
struct Attached {
    plan: Plan,
    clients: Play,
}

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

/// Two clients and the engine between them.
pub(in crate::systems) fn start(job: &PeerJob, program: &PeerProgram) -> Result<System, BenchError> {
    let meeting = Meeting::arrange()?;
    let job = PeerJob { meeting_place: Some(meeting.socket()), ..job.clone() };
    let mut peer = Peer::start(program, &job)?;
    let plan = job.plan;
    let clients = attach(&meeting, &plan, PS)
        .and_then(|ps| Play::new(&plan, ps, attach(&meeting, &plan, WORKER)?))
        .map_err(|failure| peer.blame(BenchError::sealane("attach")(failure)))?;
    peer.rest()?;
    Ok(System::new(NAME, variant(&plan), Attached { plan, clients }).with_peer(peer))
}

fn attach(meeting: &Meeting, plan: &Plan, task: &str) -> Result<Task, ::sealane::Error> {
    Attach::new(task)
        .socket(meeting.socket())
        .arena_bytes(if plan.bench == Bench::Fuse { step_bytes(&plan.step) } else { rounds::arena_bytes(plan) })
        .timeout(CONNECT_LIMIT)
        .polling(polling(plan))
        .attach()
}

/// With polling off a client does what it does unless told otherwise: looks for a while, then sleeps.
fn polling(plan: &Plan) -> Polling {
    if plan.polling { Polling::Spin } else { Polling::idle(Attach::IDLE_SPIN) }
}

fn variant(plan: &Plan) -> String {
    match (plan.bench, plan.fuse) {
        (Bench::Latency, _) if plan.polling => "polling, through the daemon".to_owned(),
        (Bench::Latency, _) => "parking, through the daemon".to_owned(),
        (Bench::Rate, Fuse::Off) => "polling, a call each".to_owned(),
        (Bench::Rate, Fuse::Turn) => "polling, batched calls".to_owned(),
        (Bench::Bandwidth, _) => format!("polling, window {}", plan.window),
        (Bench::Fuse, Fuse::Plan) => "polling, plan".to_owned(),
        (Bench::Fuse, _) => "polling, batched calls".to_owned(),
        (none, _) => none.is_measured_elsewhere(),
    }
}

impl Rounds for Attached {
    fn round(&mut self, length: Duration) -> Result<Sample, BenchError> {
        let sample = match (&mut self.clients, self.plan.bench) {
            (Play::Steps(steps), _) => steps.round(&self.plan, length),
            (Play::Tensors(clients), Bench::Latency) => clients.round_trips(&self.plan, length),
            (Play::Tensors(clients), _) => clients.throughput(&self.plan, length),
        };
        sample.map_err(BenchError::sealane("move tensors"))
    }
}
