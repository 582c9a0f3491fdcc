//! What a node must know when it begins.

use std::time::Duration;

use sealane_transport::endpoint_map::{TaskName, TransportAddress};
use sealane_transport::{LinkKind, SessionLimits};

/// How messages of one turn leave.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Fuse {
    /// Each in a write of its own.
    Off,
    /// All that a turn has queued for a peer in one write.
    #[default]
    Turn,
}

/// What a node must know; the same for all shards of an engine but `shard`.
#[derive(Debug, Clone)]
pub struct NodeSettings {
    /// This side's transport addresses, as peers find them in their map.
    pub addresses: Vec<TransportAddress>,
    /// The tasks served here, at most 4,096, each with the place of its address in `addresses`.
    pub tasks: Vec<(TaskName, u16)>,
    /// This shard.
    pub shard: u16,
    /// All shards of this engine.
    pub shards: u16,
    /// Drawn when the process starts; another one means a restart.
    pub incarnation: u64,
    /// Limits of each session.
    pub session: SessionLimits,
    /// Tensors that wait or are lent at most. Default 1,048,576.
    pub pending_sends_max: usize,
    /// Keys that are published at most; plans name as many that are not. Default 1,048,576.
    pub published_tensors_max: usize,
    /// Links at most; further callers are rejected. Default 4,096.
    pub links_max: usize,
    /// How long requests wait for a connection. Default 120 s.
    pub connect_timeout: Duration,
    /// How long a tensor stays lent to a peer that has no link. Default 120 s.
    pub lease: Duration,
    /// How messages leave. Default `Turn`.
    pub fuse: Fuse,
    /// Why a link is of the kind that it is, for the log.
    pub path_reason: String,
    /// Feature bits of the handshake.
    pub features: u64,
    /// Kinds that links may be of besides TCP, in the order of [`Counters::kinds`](super::Counters::kinds).
    pub kinds: Vec<LinkKind>,
}
