//! Many bare connections to one thread that answers requests: the work of a fan-in without anything around it. Both sides
//! poll an epoll set.

mod askers;

use super::channel::NAME;
use crate::error::BenchError;
use crate::open_files;
use crate::peer::{Peer, PeerJob, PeerProgram};
use crate::system::System;
use crate::systems::{fanin, sockets};
use askers::Askers;

/// A listener whose peers all want small tensors.
pub(in crate::systems) fn start(job: &PeerJob, program: &PeerProgram) -> Result<System, BenchError> {
    let plan = &job.plan;
    open_files::allow_for("--peers", plan.peers, 1)?;
    let mut peer = Peer::start(program, job)?;
    let connect = |_| sockets::connect(peer.ready().port, plan.congestion.as_deref());
    let connected = (0..plan.peers).map(connect).collect::<Result<Vec<_>, _>>();
    let connections = connected.map_err(|failure| peer.blame(failure))?;
    let congestion = sockets::congestion(&connections[0])?;
    let askers = Askers::new(connections, plan)?;
    peer.rest()?;
    Ok(fanin::system(NAME, plan.peers, congestion, None, askers, peer))
}
