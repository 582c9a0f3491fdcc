//! What a shard tells of one session with a peer's shard: which path its bytes take and why, and how many there were.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

use sealane_transport::LinkKind;
use serde::{Deserialize, Serialize};
use zerocopy::{FromBytes, Immutable, IntoBytes};

use super::SeqLock;

/// What has moved between a shard and one shard of a peer, and what is in progress.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, Serialize, Deserialize)]
#[repr(C)]
pub struct PeerCounters {
    /// Bytes that its links took, frames and payloads.
    pub bytes_sent: u64,
    /// Bytes that its links gave.
    pub bytes_received: u64,
    /// Times that a link took something.
    pub writes: u64,
    /// Frames sent, releases and notes included.
    pub messages_sent: u64,
    /// Frames received.
    pub messages_received: u64,
    /// Tensors sent; one that was sent again on another link counts again.
    pub tensors_sent: u64,
    /// Tensors received, likewise.
    pub tensors_received: u64,
    /// Links that came to stand.
    pub links_made: u64,
    /// Links that were lost.
    pub links_lost: u64,
    /// Calls that came to no link.
    pub calls_failed: u64,
    /// Links that were to be verbs and became TCP.
    pub fallbacks: u64,
    /// Requests, pulls and pushes of this side that have not ended, now.
    pub in_flight: u64,
    /// Tensors that the peer has not released, now.
    pub unreleased: u64,
}

/// Where the connection with a peer stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PathState {
    /// Nothing wants a link.
    Idle,
    /// A link is wanted, and called for.
    Connecting,
    /// A link stands.
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

/// Which path the bytes to a peer take.
#[derive(Debug, Clone)]
pub struct PeerPath {
    /// Where the connection stands.
    pub state: PathState,
    /// The link's kind, or that of the last.
    pub link: Option<LinkKind>,
    /// Why it is of that kind.
    pub reason: String,
    /// How the last link ended, or why the last call came to none; empty if neither was.
    pub last_error: String,
    /// Since when it stands so.
    pub since: SystemTime,
}

impl Default for PeerPath {
    fn default() -> Self {
        let (reason, last_error) = (String::new(), String::new());
        PeerPath { state: PathState::Idle, link: None, reason, last_error, since: SystemTime::now() }
    }
}

/// See the module. The shard writes, any thread reads.
#[derive(Debug)]
pub(crate) struct PeerMetrics {
    address: String,
    pub(crate) counters: SeqLock<PeerCounters>,
    /// With the peer's shard. Locked by the shard only when the connection changes.
    path: Mutex<(Option<u16>, PeerPath)>,
}

impl PeerMetrics {
    pub(crate) fn new(address: String, shard: Option<u16>) -> PeerMetrics {
        PeerMetrics { address, counters: SeqLock::default(), path: Mutex::new((shard, PeerPath::default())) }
    }

    fn path(&self) -> MutexGuard<'_, (Option<u16>, PeerPath)> {
        self.path.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The connection has changed.
    pub(crate) fn change(&self, state: PathState, change: impl FnOnce(&mut PeerPath)) {
        let (_, path) = &mut *self.path();
        if path.state != state {
            (path.state, path.since) = (state, SystemTime::now());
        }
        change(path);
    }

    /// The peer's shard is known now.
    pub(crate) fn set_shard(&self, shard: u16) {
        self.path().0 = Some(shard);
    }

    pub(crate) fn figures(&self) -> PeerFigures {
        let (shard, path) = self.path().clone();
        PeerFigures { address: self.address.clone(), shard, path, counters: self.counters.read() }
    }
}

/// What a shard shows of one session with a peer's shard.
#[derive(Debug, Clone)]
pub struct PeerFigures {
    /// The peer's transport address.
    pub address: String,
    /// The peer's shard, once it is known.
    pub shard: Option<u16>,
    /// Which path its bytes take.
    pub path: PeerPath,
    /// What has moved, and is in progress.
    pub counters: PeerCounters,
}
