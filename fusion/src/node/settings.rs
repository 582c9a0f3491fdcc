//! What a node needs to know at its start.

use std::time::Duration;

use sealane_transport::endpoint_map::{TaskName, TransportAddress};
use sealane_transport::{JobName, LinkKind, SessionLimits};

/// How messages of one turn leave.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Fuse {
    /// Each message in a write of its own.
    Off,
    /// All that a turn has queued for a peer in one write.
    #[default]
    Turn,
}

/// The settings of a node; the same for all shards of an engine except `shard`.
#[derive(Debug, Clone)]
pub struct NodeSettings {
    /// This side's transport addresses, as in the peers' maps.
    pub addresses: Vec<TransportAddress>,
    /// The tasks served here, at most 4,096, each with the index of its address in `addresses`.
    pub tasks: Vec<(TaskName, u16)>,
    /// This shard's number.
    pub shard: u16,
    /// Number of shards of this engine.
    pub shards: u16,
    /// Random, chosen when the process starts; another value means a restart.
    pub incarnation: u64,
    /// The job; peers of another one are rejected.
    pub job: Option<JobName>,
    /// Limits of each session.
    pub session: SessionLimits,
    /// Maximum tensors that wait or are not released. Default 1,048,576.
    pub pending_sends_max: usize,
    /// Maximum published keys; plans may name as many more that are unpublished. Default 1,048,576.
    pub published_tensors_max: usize,
    /// Maximum links; further callers are rejected. Default 4,096.
    pub links_max: usize,
    /// How long requests wait for a connection. Default 120 s.
    pub connect_timeout: Duration,
    /// How long an unreleased tensor is kept for a peer that has no link. Default 120 s.
    pub lease: Duration,
    /// How messages leave. Default `Turn`.
    pub fuse: Fuse,
    /// The reason why links are of their kind, for the log.
    pub path_reason: String,
    /// Feature bits of the handshake.
    pub features: u64,
    /// Kinds of links besides TCP, in the order of [`Counters::kinds`](super::Counters::kinds).
    pub kinds: Vec<LinkKind>,
}
