//! A node's counters: plain integers of its shard.

use sealane_transport::limits::FIGURES_MAX;
use serde::{Deserialize, Serialize};
use zerocopy::{FromBytes, Immutable, IntoBytes};

use crate::limits::LINK_KINDS_MAX;

/// A node's counters since its start, and gauges.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, Serialize, Deserialize)]
#[repr(C)]
pub struct Counters {
    /// Tensors received by tasks of this shard.
    pub tensors_received: u64,
    /// Their bytes.
    pub bytes_received: u64,
    /// Tensors of this shard that were released by their consumers.
    pub tensors_sent: u64,
    /// Their bytes.
    pub bytes_sent: u64,
    /// Writes to links.
    pub writes: u64,
    /// Messages to peers: frames of the wire, releases and notes included.
    pub messages_sent: u64,
    /// Links that were lost.
    pub links_lost: u64,
    /// Sessions that were dropped, or whose peer had restarted: the state of requests in flight is unknown.
    pub sessions_reset: u64,
    /// Open links, now.
    pub links: u64,
    /// Bytes of the send slab in use now.
    pub slab_send_bytes: u64,
    /// Bytes of the receive slab in use now.
    pub slab_receive_bytes: u64,
    /// Tensors that wait or are not released now.
    pub pending_sends: u64,
    /// Requests of peers that wait now.
    pub parked: u64,
    /// Tensors that are published now.
    pub published: u64,
    /// Rows of published tables that were delivered.
    pub rows_served: u64,
    /// Their bytes.
    pub row_bytes_served: u64,
    /// Clients of this host that were disconnected because serving them panicked.
    pub clients_failed: u64,
    /// Callers that did not become links; counted by the first shard, which listens for all.
    pub callers: CallerCounters,
    /// By kind of link besides TCP, in the order of the engine's settings. [`ShardFigures`](crate::metrics::ShardFigures) has their names.
    #[serde(skip)]
    pub kinds: [KindCounters; LINK_KINDS_MAX],
}

/// Metrics of one kind of link.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable)]
#[repr(C)]
pub struct KindCounters {
    /// Open links, now.
    pub links: u64,
    /// The kind's own figures.
    pub figures: [u64; FIGURES_MAX],
}

/// Callers that did not become links.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, Serialize, Deserialize)]
#[repr(C)]
pub struct CallerCounters {
    /// They failed to authenticate.
    pub unauthenticated: u64,
    /// Their host had too many handshakes in progress, or had aborted or failed too many.
    pub turned_away: u64,
}
