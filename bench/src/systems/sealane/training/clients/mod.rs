//! Workers that are clients of the parameter servers' engine, attached through the crate `sealane` as training processes of
//! its host are: each with a thread, an arena and rings of its own. The parameter servers are code on the engine's shard, as
//! over the other links; one that is a client as well would have a hop more. All workers are in this process and share its
//! CPU. Bounded by [`HOSTED_WORKERS_MAX`](crate::limits::HOSTED_WORKERS_MAX).

mod worker;

use std::thread;
use std::time::Duration;

use ::sealane::{Attach, Polling};

use super::super::NAME;
use super::super::peers::greeting;
use super::{broken, variant};
use crate::error::BenchError;
use crate::limits::CONNECT_LIMIT;
use crate::open_files;
use crate::peer::{Peer, PeerJob, PeerProgram};
use crate::plan::{Fuse, Plan};
use crate::process::Process;
use crate::systems::meeting::Meeting;
use crate::systems::training::{self, Experiment, Moved, StepLog, Trainees};
use worker::Worker;

/// Open files of a client: its socket, its doorbell, and what it sleeps on.
pub(super) const OPEN_FILES: usize = 3;

/// Of an arena or a receive area, what is not whole tensors: blocks that are cut for small ones, and the books' rounding.
const SLACK_BYTES: usize = 2 << 20;
const SLACK_BYTES_A_TENSOR: usize = 4 << 10;

/// See the module.
pub(in crate::systems) struct Clients(Vec<Worker>);

/// Parameter servers in a process of their own, and a client of their engine for every worker.
pub(in crate::systems) fn start(job: &PeerJob, program: &PeerProgram) -> Result<Experiment<Clients>, BenchError> {
    let workers = training::of(&job.plan).size.workers;
    open_files::allow_for("--workers", workers, OPEN_FILES)?;
    let meeting = Meeting::arrange()?;
    let job = PeerJob { meeting_place: Some(meeting.socket()), ..job.clone() };
    let mut peer = Peer::start(program, &job)?;
    let ps = Process::new(peer.process_id())?;
    let alone_bytes = ps.resident_bytes()?;
    let plan = &job.plan;
    let attach = |number| {
        let attach = Attach::new(&greeting::task(number)).socket(meeting.socket()).arena_bytes(arena_bytes(plan));
        let task = attach.timeout(CONNECT_LIMIT).polling(polling(plan)).attach()?;
        Worker::new(plan, task)
    };
    let clients = (0..workers).map(attach).collect::<Result<_, ::sealane::Error>>();
    let clients = Clients(clients.map_err(|error| peer.blame(failed("attach")(error)))?);
    let grown_bytes = ps.resident_bytes()? as f64 - alone_bytes as f64;
    peer.rest()?;
    let each = grown_bytes / training::of(plan).pairs() as f64;
    Experiment::new((NAME, described(plan)), plan, clients, None, each, peer)
}

/// The variant, with what a shared CPU forbids.
fn described(plan: &Plan) -> String {
    let waiting = if plan.polling && shares_cpu(plan) { ", workers parking" } else { "" };
    format!("{}{waiting}", variant(plan))
}

/// Whether a worker that spins would keep others from working.
fn shares_cpu(plan: &Plan) -> bool {
    training::of(plan).size.workers > 1
}

fn polling(plan: &Plan) -> Polling {
    match (shares_cpu(plan), plan.polling) {
        (true, _) => Polling::SpinThenSleep { idle_spin: Duration::ZERO },
        (false, true) => Polling::Spin,
        (false, false) => Polling::default(),
    }
}

fn failed(operation: &'static str) -> impl FnOnce(::sealane::Error) -> BenchError {
    move |error| BenchError::Sealane { operation, reason: error.to_string() }
}

/// Memory of a client for what it pulls with a plan, which lies where the engine puts it.
pub(super) fn area_bytes(plan: &Plan) -> u64 {
    (SLACK_BYTES + if plan.fuse == Fuse::Plan { room_bytes(&plan.step) } else { 0 }) as u64
}

/// Memory of a client for its gradients, once more where they are copied, and for what it pulls without a plan.
fn arena_bytes(plan: &Plan) -> u64 {
    let training = training::of(plan);
    let pushed = room_bytes(&training.push) * if training.variants[0].copies { 2 } else { 1 };
    let pulled = if plan.fuse == Fuse::Plan { 0 } else { room_bytes(&plan.step) };
    (SLACK_BYTES + pushed + pulled) as u64
}

/// Room for tensors of these sizes.
fn room_bytes(sizes: &[usize]) -> usize {
    // A small block has a power of two; a large one is found where a little more than it needs is free.
    sizes.iter().map(|bytes| bytes.next_power_of_two().min(bytes + (64 << 10)) + SLACK_BYTES_A_TENSOR).sum()
}

impl Trainees for Clients {
    fn train(&mut self, steps: u64, log: &mut StepLog) -> Result<(), BenchError> {
        let outcomes: Vec<_> = thread::scope(|scope| {
            let begun: Vec<_> = self.0.iter_mut().map(|worker| scope.spawn(|| worker.train(steps))).collect();
            begun.into_iter().map(|worker| worker.join().expect("a worker's thread does not panic")).collect()
        });
        for (worker, outcome) in outcomes.into_iter().enumerate() {
            for (began, ended) in outcome.map_err(broken)? {
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::{Bench, Training, Variant};

    #[test]
    fn an_arena_has_room_for_what_lies_in_it() {
        let (step, push) = (vec![100_000, 1], vec![70_000]);
        let plan = |fuse, copies| {
            let whole = Plan { step: step.clone(), fuse, ..Plan::new(Bench::Ps) };
            let variants = vec![Variant { fuse, copies, ..Variant::default() }];
            let training = Training { push: push.clone(), variants, ..training::of(&whole).clone() };
            Plan { training: Some(training), ..whole }
        };
        let [planned, copied, received] =
            [(Fuse::Plan, false), (Fuse::Plan, true), (Fuse::Receive, false)].map(|(fuse, copies)| plan(fuse, copies));
        assert!(
            area_bytes(&planned) as usize >= SLACK_BYTES + 100_001 && area_bytes(&received) as usize == SLACK_BYTES
        );
        assert!(arena_bytes(&planned) as usize >= SLACK_BYTES + 70_000);
        assert!(arena_bytes(&copied) >= arena_bytes(&planned) + 70_000);
        assert!(arena_bytes(&received) >= arena_bytes(&planned) + 100_001);
    }
}
