//! What `fanin` measures: all peers of one listener ask it for small tensors at once, each with a window of requests in
//! flight. The listener has a process to itself; the peers are in one thread of this one, which are one [`Client`] together.

use std::time::Duration;

use super::client::{Client, now, throughput};
use crate::error::BenchError;
use crate::plan::Plan;
use crate::sample::{Metric, Sample};
use crate::system::{Rounds, System};

/// Peers that are connected.
pub(super) trait Peers: Client {
    /// How many tensors arrived at each peer and were asked for again since this was asked last: what comes once a round is
    /// over does not count, as it is a window of each.
    fn take_arrived(&mut self) -> Vec<u64>;
}

/// Those who ask a listener, which has a process of its own.
struct FanIn<P> {
    plan: Plan,
    peers: P,
    /// What the resident memory of the listener's process grew by for each peer that had greeted and asked for nothing.
    resident_bytes_each: Option<f64>,
}

/// Peers that ask a listener.
pub(super) fn system(
    name: &'static str,
    plan: &Plan,
    congestion: String,
    resident_bytes_each: Option<f64>,
    peers: impl Peers + 'static,
) -> System {
    let rounds = FanIn { plan: plan.clone(), peers, resident_bytes_each };
    System::new(name, format!("{} peers", plan.peers), rounds).with_congestion(congestion)
}

impl<P: Peers> Rounds for FanIn<P> {
    fn round(&mut self, length: Duration) -> Result<Sample, BenchError> {
        let Self { plan, peers, resident_bytes_each } = self;
        let Sample { mut figures, .. } = now(throughput(peers, plan, plan.window * plan.peers, length))?;
        let arrived = peers.take_arrived();
        let (fewest, total) = (arrived.iter().min().copied().unwrap_or_default(), arrived.iter().sum::<u64>());
        figures.push((Metric::SlowestShare, fewest as f64 * arrived.len() as f64 / total.max(1) as f64));
        figures.extend(resident_bytes_each.map(|bytes| (Metric::ResidentBytesPerPeer, bytes)));
        Ok(Sample { figures, ..Sample::default() })
    }
}
