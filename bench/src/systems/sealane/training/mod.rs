//! Workers that train with parameter servers. All parameter servers are tasks of one engine, which has a process to itself.
//! Over TCP each is at a transport address of its own, and every worker has a session over a socket with each of them; over
//! verbs a worker is an engine, see `engines`; over shm it is a client of the parameter servers' engine, see `clients`.

mod clients;
mod engines;
mod memory;
mod pair;
pub(super) mod servers;
mod share;
mod versions;
mod workers;

use nix::errno::Errno;

use super::NAME;
use super::peers::greeting::Silent;
use crate::error::BenchError;
use crate::open_files;
use crate::peer::{Peer, PeerJob, PeerProgram};
use crate::plan::{Link, Plan};
use crate::process::Process;
use crate::system::System;
use crate::systems::crowd::Crowd;
use crate::systems::training::{self, Experiment};
use workers::Workers;

/// The queue of a ps into which gradients are pushed.
const QUEUE: &str = "gradients";

/// The task of a ps.
fn ps_task(number: usize) -> String {
    format!("ps{number:03}:1")
}

/// Parameter servers in a process of their own, and workers that are connected with all of them.
pub(in crate::systems) fn start(job: &PeerJob, program: &PeerProgram) -> Result<Box<dyn System>, BenchError> {
    Ok(match job.plan.link {
        Link::Verbs => Box::new(engines::start(job, program)?),
        Link::Shm => Box::new(clients::start(job, program)?),
        Link::Tcp | Link::Loopback => Box::new(over_sockets(job, program)?),
    })
}

fn over_sockets(job: &PeerJob, program: &PeerProgram) -> Result<Experiment<Workers>, BenchError> {
    let plan = &job.plan;
    let training = training::of(plan);
    open_files::allow_for("--workers x --ps", training.pairs(), 1)?;
    let mut peer = Peer::start(program, job)?;
    let ps = Process::new(peer.process_id())?;
    let alone_bytes = ps.resident_bytes()?;
    let connected = connect(plan, &peer.ready().ports).map_err(|failure| peer.blame(failure))?;
    let congestion = connected[0].congestion()?;
    let grown_bytes = ps.resident_bytes()? as f64 - alone_bytes as f64;
    let workers = Workers::new(connected, plan)?;
    peer.rest()?;
    let each = grown_bytes / training.pairs() as f64;
    Experiment::new((NAME, variant(plan)), plan, workers, congestion, each, peer)
}

/// The workers' sockets, by ps: all workers call one, and then the next.
fn connect(plan: &Plan, ports: &[u16]) -> Result<Vec<Crowd<Silent>>, BenchError> {
    let (workers, congestion) = (training::of(plan).size.workers, plan.congestion.as_deref());
    let call = |port: &u16| Ok(Crowd::call(NAME, Silent, 0, workers, *port, congestion)?.0);
    ports.iter().map(call).collect()
}

fn variant(plan: &Plan) -> String {
    let training = training::of(plan);
    format!("{}, {}", training.mode, training.variants[0])
}

fn broken(reason: impl ToString) -> BenchError {
    BenchError::Sealane { operation: "train", reason: reason.to_string() }
}

fn broken_by(operation: &'static str) -> impl FnOnce(Errno) -> BenchError {
    move |errno| BenchError::io(operation)(errno.into())
}
