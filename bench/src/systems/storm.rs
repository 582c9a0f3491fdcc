//! What `connect` measures: all peers call and greet one listener at once, and go again. One storm a round.

use std::time::Duration;

use super::crowd::{Crowd, Manners};
use crate::error::BenchError;
use crate::open_files;
use crate::peer::{Peer, PeerJob, PeerProgram};
use crate::plan::Plan;
use crate::sample::{Metric, Sample};
use crate::system::{Rounds, System};

/// Those who call a listener, which has a process of its own.
struct Storm<M> {
    manners: M,
    plan: Plan,
    system: &'static str,
    port: u16,
    visits: u64,
}

/// Starts the listener, which then has had one storm already that does not count.
pub(super) fn start(
    job: &PeerJob,
    program: &PeerProgram,
    manners: impl Manners + 'static,
) -> Result<System, BenchError> {
    let (plan, system) = (job.plan.clone(), job.system.as_str());
    open_files::allow_for("--peers", plan.peers, 1)?;
    let mut peer = Peer::start(program, job)?;
    let variant = format!("parking, {} peers", plan.peers);
    let mut storm = Storm { manners, plan, system, port: peer.ready().port, visits: 0 };
    let called = storm.call().and_then(|(crowd, _)| crowd.congestion().and_then(|name| crowd.part().map(|()| name)));
    let congestion = called.map_err(|failure| peer.blame(failure))?;
    peer.rest()?;
    Ok(System::new(system, variant, storm).with_congestion(congestion).with_peer(peer))
}

impl<M: Manners> Storm<M> {
    fn call(&mut self) -> Result<(Crowd<M>, Duration), BenchError> {
        let (visit, congestion) = (self.visits, self.plan.congestion.as_deref());
        self.visits += 1;
        Crowd::call(self.system, self.manners, visit, self.plan.peers, self.port, congestion)
    }
}

impl<M: Manners> Rounds for Storm<M> {
    fn round(&mut self, _length: Duration) -> Result<Sample, BenchError> {
        let (crowd, took) = self.call()?;
        crowd.part()?;
        Ok(Sample::figure(Metric::ConnectAll, took.as_secs_f64() * 1_000.0))
    }
}
