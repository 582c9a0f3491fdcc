//! Workers that train with parameter servers, pull rows of tables from them, or only make requests. All parameter servers are tasks
//! of one engine, which has its own process. Over TCP each is at its own transport address, and every worker has a session over a
//! socket with each of them, see `workers`; elsewhere, and if rows are pulled, a worker is a task, see `clients`. Through the
//! daemons of two hosts, the only ps is a client, too, see `attached`.

mod attached;
mod clients;
mod memory;
mod pair;
mod rows;
mod servers;
#[cfg(test)]
mod tests;
mod workers;

use super::engine::NAME;
use super::peers;
use crate::error::BenchError;
use crate::peer::{Growth, Peer, PeerJob, PeerProgram};
use crate::plan::{Bench, Fuse, Link, Mode, Plan, Size, SystemName, Training, Variant};
use crate::process::{self, Interface};
use crate::system::System;
use crate::systems::crowd::Crowd;
use crate::systems::training;

pub(super) use memory::OPEN_FILES;
pub(in crate::systems) use servers::serve;
pub(super) use workers::Workers as Sessions;

/// Parameter servers in a process of their own, and workers that are connected with all of them.
pub(in crate::systems) fn start(job: &PeerJob, program: &PeerProgram) -> Result<System, BenchError> {
    if job.plan.link != Link::Tcp || job.plan.has_hosted_workers() || job.system == SystemName::Whole {
        return clients::start(job, program);
    }
    let plan = &job.plan;
    process::allow_open_files("--workers x --ps", training::of(plan).pairs(), 1)?;
    System::with_peer(job, program, |peer| {
        let (workers, congestion) = connect(job, peer)?;
        let each = workers.resident_bytes_each;
        Ok(training::system((NAME, training::variant(plan)), plan, workers, each, peer)?.with_congestion(congestion))
    })
}

/// One parameter server whose workers all want small tensors. What a worker costs the engine is measured before the first one asks.
pub(in crate::systems) fn fan_in(job: &PeerJob, program: &PeerProgram) -> Result<System, BenchError> {
    process::allow_open_files("--peers", job.plan.peers, 1)?;
    System::with_peer(job, program, |peer| {
        let (client, congestion) = connect(job, peer)?;
        let variant = format!("{} peers", job.plan.peers);
        Ok(System::new(NAME, variant, &job.plan, client).with_congestion(congestion))
    })
}

/// What workers pull and push for a job: of a fan-in, as many tensors as are in flight, without a step; of peers that only connect,
/// nothing; of tables that are pulled whole, all of them by a plan.
fn pulled(job: &PeerJob) -> Plan {
    let plan = &job.plan;
    match (plan.bench, &plan.training) {
        (Bench::FanIn | Bench::Connect | Bench::Idle, _) => {
            let variant = Variant { request_buffers: plan.window, fuse: plan.fuse, ..Variant::default() };
            let size = Size { workers: plan.peers, ps: 1 };
            let training =
                Training { size, mode: Mode::Async, compute_us: 0, push: Vec::new(), variants: vec![variant] };
            let tensors = if plan.bench == Bench::FanIn { plan.window } else { 0 };
            Plan { step: vec![plan.size_bytes; tensors], training: Some(training), ..plan.clone() }
        }
        (Bench::Rows, Some(training)) if job.system == SystemName::Whole => {
            plan.with_variant(Variant { fuse: Fuse::Plan, ..training.variants[0] }).with_whole_tables()
        }
        _ => plan.clone(),
    }
}

/// The workers, and their sockets' congestion control. All workers call one ps, and then the next.
pub(super) fn connect(job: &PeerJob, peer: &Peer) -> Result<(Sessions, String), BenchError> {
    let (plan, growth) = (&pulled(job), Growth::of(peer)?);
    let (workers, congestion) = (training::of(plan).size.workers, plan.congestion.as_deref());
    let call = |address| Ok(Crowd::call(NAME, peers::GREETERS, 0, workers, address, congestion)?.0);
    let connected = peer.addresses().into_iter().map(call).collect::<Result<Vec<_>, BenchError>>()?;
    let congestion = connected[0].congestion()?;
    let each = growth.bytes_each(training::of(plan).pairs())?;
    Ok((Sessions::new(connected, plan, (each, Interface::with(job.hosts.consumer)?))?, congestion))
}
