//! Many workers that pull from one ps, whose engine has a process to itself: each worker is a session over a socket of its
//! own. What a worker costs the engine is measured before the first one asks.

pub(super) mod answers;
mod workers;

use super::names::NAME;
use super::peers::greeting::Silent;
use crate::error::BenchError;
use crate::open_files;
use crate::peer::{Peer, PeerJob, PeerProgram};
use crate::process::Growth;
use crate::system::System;
use crate::systems::crowd::Crowd;
use crate::systems::fanin;
use workers::Workers;

/// An engine whose peers all want small tensors.
pub(in crate::systems) fn start(job: &PeerJob, program: &PeerProgram) -> Result<System, BenchError> {
    let plan = &job.plan;
    open_files::allow_for("--peers", plan.peers, 1)?;
    let mut peer = Peer::start(program, job)?;
    let growth = Growth::of(peer.process_id())?;
    let called = Crowd::call(NAME, Silent, 0, plan.peers, peer.ready().port, plan.congestion.as_deref());
    let (crowd, _) = called.map_err(|failure| peer.blame(failure))?;
    let congestion = crowd.congestion()?;
    let resident_bytes_each = growth.bytes_each(plan.peers)?;
    let mut workers = Workers::new(crowd.into_sockets(), plan)?;
    workers.begin().map_err(|failure| peer.blame(failure))?;
    peer.rest()?;
    Ok(fanin::system(NAME, plan.peers, congestion, Some(resident_bytes_each), workers, peer))
}
