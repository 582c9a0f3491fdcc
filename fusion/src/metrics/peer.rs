//! A shard's metrics of one session with a peer's shard: the path and its reason, and counters.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

use sealane_transport::LinkKind;
use serde::{Deserialize, Serialize};
use zerocopy::{FromBytes, Immutable, IntoBytes};

use super::SeqLock;

/// Traffic between a shard and one shard of a peer, and calls in flight.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, Serialize, Deserialize)]
#[repr(C)]
pub struct PeerCounters {
    /// Bytes written to its links, frames and payloads.
    pub bytes_sent: u64,
    pub bytes_received: u64,
    pub writes: u64,
    /// Frames sent, control frames included.
    pub messages_sent: u64,
    pub messages_received: u64,
    /// Tensors sent; one that is sent again on a new link counts again.
    pub tensors_sent: u64,
    /// Tensors received, likewise.
    pub tensors_received: u64,
    pub links_made: u64,
    pub links_lost: u64,
    /// Failed connection attempts.
    pub calls_failed: u64,
    /// Links that fell back to TCP.
    pub fallbacks: u64,
    /// Requests, pulls and pushes of this side that have not ended, now.
    pub in_flight: u64,
    /// Tensors that the peer has not released, now.
    pub unreleased: u64,
}

/// The state of the connection with a peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PathState {
    /// No link is needed.
    Idle,
    Connecting,
    Up,
}

impl PathState {
    /// The name used in metrics.
    pub fn name(self) -> &'static str {
        match self {
            PathState::Idle => "idle",
            PathState::Connecting => "connecting",
            PathState::Up => "up",
        }
    }
}

#[derive(Debug, Clone)]
pub struct PeerPath {
    pub state: PathState,
    /// The link's kind, or that of the last.
    pub link: Option<LinkKind>,
    /// Why this kind was chosen.
    pub reason: String,
    /// How the last link ended, or why the last connection attempt failed; empty if neither happened.
    pub last_error: String,
    /// When it entered this state.
    pub since: SystemTime,
}

impl Default for PeerPath {
    fn default() -> Self {
        let (reason, last_error) = (String::new(), String::new());
        PeerPath { state: PathState::Idle, link: None, reason, last_error, since: SystemTime::now() }
    }
}

/// A session's metrics. Written by the shard, read by any thread.
#[derive(Debug)]
pub(crate) struct PeerMetrics {
    address: String,
    pub(crate) counters: SeqLock<PeerCounters>,
    /// The peer's shard, and the path. The shard locks it only when the connection changes.
    path: Mutex<(Option<u16>, PeerPath)>,
}

impl PeerMetrics {
    pub(crate) fn new(address: String, shard: Option<u16>) -> PeerMetrics {
        PeerMetrics { address, counters: SeqLock::default(), path: Mutex::new((shard, PeerPath::default())) }
    }

    fn path(&self) -> MutexGuard<'_, (Option<u16>, PeerPath)> {
        self.path.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn change(&self, state: PathState, change: impl FnOnce(&mut PeerPath)) {
        let (_, path) = &mut *self.path();
        if path.state != state {
            (path.state, path.since) = (state, SystemTime::now());
        }
        change(path);
    }

    pub(crate) fn set_shard(&self, shard: u16) {
        self.path().0 = Some(shard);
    }

    pub(crate) fn figures(&self) -> PeerFigures {
        let (shard, path) = self.path().clone();
        PeerFigures { address: self.address.clone(), shard, path, counters: self.counters.read() }
    }
}

/// A shard's metrics of one session with a peer's shard.
#[derive(Debug, Clone)]
pub struct PeerFigures {
    pub address: String,
    /// The peer's shard, once it is known.
    pub shard: Option<u16>,
    pub path: PeerPath,
    pub counters: PeerCounters,
}
