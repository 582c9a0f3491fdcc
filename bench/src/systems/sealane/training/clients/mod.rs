//! Workers that are clients of the parameter servers' engine, attached through the crate `sealane` as training processes of
//! its host are: each with a thread, an arena and rings of its own. The parameter servers are code on the engine's shard, as
//! over the other links; one that is a client as well would have a hop more. All workers are in this process and share its
//! CPU. Bounded by [`HOSTED_WORKERS_MAX`](crate::limits::HOSTED_WORKERS_MAX).

mod worker;

use std::thread;

use ::sealane::{Attach, Polling};

use super::super::names::NAME;
use super::super::peers::greeting;
use super::room::{OPEN_FILES, arena_bytes};
use crate::error::BenchError;
use crate::limits::CONNECT_LIMIT;
use crate::open_files;
use crate::peer::{Peer, PeerJob, PeerProgram};
use crate::plan::Plan;
use crate::process::Growth;
use crate::system::System;
use crate::systems::meeting::Meeting;
use crate::systems::training::{self, Moved, StepLog, Trainees};
use worker::Worker;

/// See the module.
struct Clients(Vec<Worker>);

/// Parameter servers in a process of their own, and a client of their engine for every worker.
pub(super) fn start(job: &PeerJob, program: &PeerProgram) -> Result<System, BenchError> {
    let workers = training::of(&job.plan).size.workers;
    open_files::allow_for("--workers", workers, OPEN_FILES)?;
    let meeting = Meeting::arrange()?;
    let job = PeerJob { meeting_place: Some(meeting.socket()), ..job.clone() };
    let mut peer = Peer::start(program, &job)?;
    let growth = Growth::of(peer.process_id())?;
    let plan = &job.plan;
    let attach = |number| {
        let attach = Attach::new(&greeting::task(number)).socket(meeting.socket()).arena_bytes(arena_bytes(plan));
        let task = attach.timeout(CONNECT_LIMIT).polling(polling(plan)).attach()?;
        Worker::new(plan, task)
    };
    let clients = (0..workers).map(attach).collect::<Result<_, ::sealane::Error>>();
    let clients = Clients(clients.map_err(|error| peer.blame(BenchError::sealane("attach")(error)))?);
    let each = growth.bytes_each(training::of(plan).pairs())?;
    peer.rest()?;
    training::system((NAME, described(plan)), plan, clients, each, peer)
}

/// The variant, with what a shared CPU forbids.
fn described(plan: &Plan) -> String {
    let waiting = if plan.polling && shares_cpu(plan) { ", workers parking" } else { "" };
    format!("{}{waiting}", training::variant(plan))
}

/// Whether a worker that spins would keep others from working.
fn shares_cpu(plan: &Plan) -> bool {
    training::of(plan).size.workers > 1
}

fn polling(plan: &Plan) -> Polling {
    match (shares_cpu(plan), plan.polling) {
        (true, _) => Polling::Park,
        (false, true) => Polling::Spin,
        (false, false) => Polling::idle(Attach::IDLE_SPIN),
    }
}

impl Trainees for Clients {
    fn train(&mut self, steps: u64, log: &mut StepLog) -> Result<(), BenchError> {
        let outcomes: Vec<_> = thread::scope(|scope| {
            let begun: Vec<_> = self.0.iter_mut().map(|worker| scope.spawn(|| worker.train(steps))).collect();
            begun.into_iter().map(|worker| worker.join().expect("a worker's thread does not panic")).collect()
        });
        for (worker, outcome) in outcomes.into_iter().enumerate() {
            for (began, ended) in outcome.map_err(BenchError::sealane("train"))? {
                log.completed(worker, began, ended);
            }
        }
        Ok(())
    }

    /// Records in rings are no messages, and nobody counts them.
    fn moved(&self) -> Result<Option<Moved>, BenchError> {
        Ok(None)
    }
}
