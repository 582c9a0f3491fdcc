//! Traffic between a client and one other task: over this engine, and over other transports as reported by the client.

use serde::{Deserialize, Serialize};
use zerocopy::{FromBytes, Immutable, IntoBytes};

use super::SeqLock;

/// Tensors and bytes between a client and one other task.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, Serialize, Deserialize)]
#[repr(C)]
pub struct TrafficCounters {
    /// Tensors that the client sent and pushed.
    pub tensors_sent: u64,
    pub bytes_sent: u64,
    /// Tensors that it received, accepted and pulled.
    pub tensors_received: u64,
    pub bytes_received: u64,
    /// Tensors sent there over another transport, as reported by the client.
    pub elsewhere_tensors_sent: u64,
    pub elsewhere_bytes_sent: u64,
    /// Tensors received from there over another transport.
    pub elsewhere_tensors_received: u64,
    pub elsewhere_bytes_received: u64,
}

impl TrafficCounters {
    /// The share of tensors, both ways, that this engine carried; `None` if there were none.
    pub fn share_of_tensors(&self) -> Option<f64> {
        share(
            self.tensors_sent.saturating_add(self.tensors_received),
            self.elsewhere_tensors_sent.saturating_add(self.elsewhere_tensors_received),
        )
    }

    /// Like [`share_of_tensors`](Self::share_of_tensors), in bytes.
    pub fn share_of_bytes(&self) -> Option<f64> {
        share(
            self.bytes_sent.saturating_add(self.bytes_received),
            self.elsewhere_bytes_sent.saturating_add(self.elsewhere_bytes_received),
        )
    }
}

fn share(here: u64, elsewhere: u64) -> Option<f64> {
    let all = here as f64 + elsewhere as f64;
    (all > 0.0).then(|| here as f64 / all)
}

/// A client's traffic with one task. Written by the shard, read by any thread.
#[derive(Debug)]
pub(crate) struct TrafficMetrics {
    pub(crate) peer: String,
    pub(crate) counters: SeqLock<TrafficCounters>,
}

/// A shard's metrics of a client and one other task.
#[derive(Debug, Clone)]
pub struct TrafficFigures {
    /// The other task; [`OTHERS`](Self::OTHERS) for all that are not listed separately.
    pub peer: String,
    pub counters: TrafficCounters,
}

impl TrafficFigures {
    /// Stands in place of a task's name; no task has this name, since names have a colon.
    pub const OTHERS: &str = "others";
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_is_of_both_ways_and_of_nothing_there_is_none() {
        let counters = TrafficCounters {
            tensors_sent: 1,
            tensors_received: 2,
            bytes_sent: 10,
            elsewhere_tensors_received: 1,
            elsewhere_bytes_sent: u64::MAX,
            ..TrafficCounters::default()
        };
        assert_eq!(counters.share_of_tensors(), Some(0.75));
        assert!(counters.share_of_bytes().is_some_and(|share| share < 1e-9));
        assert_eq!(TrafficCounters::default().share_of_bytes(), None);
    }
}
