//! What `connect` measures: all peers call and greet one listener at once, and go again. One storm a round.

use std::time::Duration;

use super::crowd::{Crowd, Manners};
use crate::error::BenchError;
use crate::open_files;
use crate::peer::{Peer, PeerJob, PeerProgram};
use crate::plan::Plan;
use crate::sample::{Metric, Sample};
use crate::system::System;

/// A listener in a process of its own, and those who call it.
pub(super) struct Storm<M> {
    manners: M,
    plan: Plan,
    system: &'static str,
    congestion: String,
    visits: u64,
    peer: Peer,
}

impl<M: Manners> Storm<M> {
    /// Starts the listener, which then has had one storm already that does not count.
    pub(super) fn start(job: &PeerJob, program: &PeerProgram, manners: M) -> Result<Self, BenchError> {
        open_files::allow_for("--peers", job.plan.peers, 1)?;
        let peer = Peer::start(program, job)?;
        let (plan, system) = (job.plan.clone(), job.system.as_str());
        let mut storm = Self { manners, plan, system, congestion: String::new(), visits: 0, peer };
        let (crowd, _) = storm.call()?;
        storm.congestion = crowd.congestion()?;
        storm.part(crowd)?;
        storm.rest()?;
        Ok(storm)
    }

    fn call(&mut self) -> Result<(Crowd<M>, Duration), BenchError> {
        let (visit, port, congestion) = (self.visits, self.peer.ready().port, self.plan.congestion.as_deref());
        self.visits += 1;
        Crowd::call(self.system, self.manners, visit, self.plan.peers, port, congestion)
            .map_err(|failure| self.peer.blame(failure))
    }

    fn part(&mut self, crowd: Crowd<M>) -> Result<(), BenchError> {
        crowd.part().map_err(|failure| self.peer.blame(failure))
    }
}

impl<M: Manners> System for Storm<M> {
    fn name(&self) -> &'static str {
        self.system
    }

    fn variant(&self) -> String {
        format!("parking, {} peers", self.plan.peers)
    }

    fn congestion(&self) -> Option<&str> {
        Some(&self.congestion)
    }

    fn resume(&mut self) -> Result<(), BenchError> {
        self.peer.resume()
    }

    fn round(&mut self, _length: Duration) -> Result<Sample, BenchError> {
        let (crowd, took) = self.call()?;
        self.part(crowd)?;
        Ok(Sample::figure(Metric::ConnectAll, took.as_secs_f64() * 1_000.0))
    }

    fn rest(&mut self) -> Result<(), BenchError> {
        self.peer.rest()
    }
}
