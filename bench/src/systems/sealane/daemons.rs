//! What two training processes of two hosts get: each is attached to the daemon of its host, and every tensor goes from client to daemon
//! to daemon to client. The daemons are the ones that run there, with their own settings and links.

use super::asking::{Asker, Batches, answer};
use super::attached::attach_as;
use super::engine::NAME;
use crate::error::BenchError;
use crate::peer::{PeerJob, PeerProgram, announce};
use crate::plan::{Bench, Fuse, Plan};
use crate::system::System;

/// The worker, attached to this host's daemon.
pub(in crate::systems) fn start(job: &PeerJob, program: &PeerProgram) -> Result<System, BenchError> {
    let plan = &job.plan;
    System::with_peer(job, program, |_| {
        let tasks @ [worker, _] = tasks(plan);
        let worker = attach_as(worker, plan, job.meeting_place.as_deref())?;
        let mut asker = Asker::new(NAME, plan, worker, Batches::new(plan, tasks))?;
        // The daemons connect.
        asker.one_batch()?;
        Ok(System::new(NAME, variant(plan), plan, asker))
    })
}

/// The ps, attached to its host's daemon.
pub(in crate::systems) fn serve(job: &PeerJob) -> Result<(), BenchError> {
    let tasks @ [_, ps] = tasks(&job.plan);
    let ps = attach_as(ps, &job.plan, job.meeting_place.as_deref())?;
    announce(&[])?;
    answer(&job.plan, &ps, &Batches::new(&job.plan, tasks)).map_err(BenchError::sealane("answer through its daemon"))
}

/// The worker's task, and the ps's.
fn tasks(plan: &Plan) -> [&str; 2] {
    plan.daemon.as_ref().expect("a plan through daemons names tasks").each_ref().map(String::as_str)
}

fn variant(plan: &Plan) -> String {
    let waiting = if plan.polling { "polling" } else { "parking" };
    match (plan.bench, plan.fuse) {
        (Bench::Rate, Fuse::Off) => format!("{waiting}, a call each, through the daemons"),
        (Bench::Rate, _) => format!("{waiting}, batched calls, through the daemons"),
        (Bench::Bandwidth, _) => format!("{waiting}, window {}, through the daemons", plan.window),
        _ => format!("{waiting}, through the daemons"),
    }
}
