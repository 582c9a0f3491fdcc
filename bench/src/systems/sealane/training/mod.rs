//! Workers that train with parameter servers. All parameter servers are tasks of one engine, which has a process to itself.
//! Over TCP each is at a transport address of its own, and every worker has a session over a socket with each of them; over
//! verbs a worker is an engine, see `engines`; over shm it is a client of the parameter servers' engine, see `clients`.

mod clients;
mod engines;
mod memory;
mod pair;
mod servers;
mod workers;

use super::engine::NAME;
use super::peers;
use crate::error::BenchError;
use crate::peer::{PeerJob, PeerProgram};
use crate::plan::{Link, Plan, SystemName};
use crate::process::{self, Growth};
use crate::system::System;
use crate::systems::crowd::Crowd;
use crate::systems::training;
use workers::Workers;

pub(in crate::systems) use servers::serve;

/// Parameter servers in a process of their own, and workers that are connected with all of them.
pub(in crate::systems) fn start(job: &PeerJob, program: &PeerProgram) -> Result<System, BenchError> {
    match job.plan.link {
        Link::Verbs => engines::start(job, program),
        Link::Shm => clients::start(job, program),
        _ if job.plan.has_hosted_workers() || job.system == SystemName::Whole => clients::start(job, program),
        Link::Tcp | Link::Loopback => over_sockets(job, program),
    }
}

fn over_sockets(job: &PeerJob, program: &PeerProgram) -> Result<System, BenchError> {
    let plan = &job.plan;
    let training = training::of(plan);
    process::allow_open_files("--workers x --ps", training.pairs(), 1)?;
    System::with_peer(job, program, |peer| {
        let growth = Growth::of(peer.process_id())?;
        let connected = connect(plan, &peer.ready().ports)?;
        let congestion = connected[0].congestion()?;
        let each = growth.bytes_each(training.pairs())?;
        let workers = Workers::new(connected, plan)?;
        Ok(training::system((NAME, training::variant(plan)), plan, workers, each, peer)?.with_congestion(congestion))
    })
}

/// The workers' sockets, by ps: all workers call one, and then the next.
fn connect(plan: &Plan, ports: &[u16]) -> Result<Vec<Crowd<peers::Workers>>, BenchError> {
    let (workers, congestion) = (training::of(plan).size.workers, plan.congestion.as_deref());
    let call = |port: &u16| Ok(Crowd::call(NAME, peers::Workers::Silent, 0, workers, *port, congestion)?.0);
    ports.iter().map(call).collect()
}
