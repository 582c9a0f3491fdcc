//! What two training processes of two hosts get: each is attached to the daemon of its host, and every tensor goes from client to daemon
//! to daemon to client. The daemons are the ones that run there, with their own settings and links.

use std::time::Duration;

use futures_util::FutureExt;
use sealane::{Plan as PullPlan, Task};

use super::asking::{Asker, Batches, answer};
use super::attached::{attach_as, check_pulled, unmoved};
use super::between::request_timeout;
use super::engine::{NAME, lanes};
use crate::error::BenchError;
use crate::peer::{PeerJob, PeerProgram, announce, until_ended};
use crate::plan::{Bench, Fuse, Plan};
use crate::system::{Client, System};

/// The worker, attached to this host's daemon.
pub(in crate::systems) fn start(job: &PeerJob, program: &PeerProgram) -> Result<System, BenchError> {
    let plan = &job.plan;
    System::with_peer(job, program, |_| {
        let tasks @ [worker, _] = tasks(plan);
        let worker = attach_as(worker, plan, job.meeting_place.as_deref())?;
        let batches = Batches::new(plan, tasks);
        // The first batch or pull makes the daemons connect.
        if plan.fuse == Fuse::Plan {
            let agreed = batches.plan(&worker).map_err(unmoved)?;
            let timeout = request_timeout(plan);
            let mut puller = Puller { plan: agreed, sizes: lanes(plan), timeout, _worker: worker };
            puller.step().now_or_never().expect("it waits within its calls")?;
            return Ok(System::new(NAME, variant(plan), plan, puller));
        }
        let mut asker = Asker::new(NAME, plan, worker, batches)?;
        asker.one_batch()?;
        Ok(System::new(NAME, variant(plan), plan, asker))
    })
}

/// A worker that pulls the tensors of a step by a plan.
struct Puller {
    plan: PullPlan,
    sizes: Vec<usize>,
    timeout: Duration,
    _worker: Task,
}

impl Client for Puller {
    async fn step(&mut self) -> Result<(), BenchError> {
        self.plan.pull_within(0, self.timeout).wait().map_err(unmoved)
    }

    fn check(&self) -> Result<(), BenchError> {
        check_pulled(&self.plan, self.sizes.iter().copied())
    }
}

/// The ps, attached to its host's daemon.
pub(in crate::systems) fn serve(job: &PeerJob) -> Result<(), BenchError> {
    let tasks @ [_, ps] = tasks(&job.plan);
    let ps = attach_as(ps, &job.plan, job.meeting_place.as_deref())?;
    let batches = Batches::new(&job.plan, tasks);
    if job.plan.fuse == Fuse::Plan {
        batches.publish(&job.plan, &ps).map_err(BenchError::sealane("publish through its daemon"))?;
        announce(&[])?;
        until_ended()
    }
    announce(&[])?;
    answer(&job.plan, &ps, &batches).map_err(BenchError::sealane("answer through its daemon"))
}

/// The worker's task, and the ps's.
pub(super) fn tasks(plan: &Plan) -> [&str; 2] {
    plan.daemon.as_ref().expect("a plan through daemons names tasks").each_ref().map(String::as_str)
}

fn variant(plan: &Plan) -> String {
    let waiting = if plan.polling { "polling" } else { "parking" };
    let way = match (plan.bench, plan.fuse) {
        (Bench::Rate, Fuse::Off) => ", a call each".to_owned(),
        (Bench::Fuse, Fuse::Off) => format!(", a call each, window {}", plan.window),
        (Bench::Fuse, Fuse::Plan) => ", plan".to_owned(),
        (Bench::Rate | Bench::Fuse, _) => ", batched calls".to_owned(),
        (Bench::Bandwidth, _) => format!(", window {}", plan.window),
        _ => String::new(),
    };
    format!("{waiting}{way}, through the daemons")
}
