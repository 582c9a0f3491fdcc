//! The figures of a daemon as they go to people and programs: `sealane stat` and its JSON, and the source of the metrics.
//! Plain data, made from what the engine shows; as many entries as the engine has shards, peers and clients.

mod histogram;
mod rates;
mod shard;

use serde::{Deserialize, Serialize};

pub(crate) use histogram::Histogram;
pub(crate) use rates::Rates;
pub(crate) use shard::unix_ms;
pub(crate) use shard::{Client, Peer, Shard};

/// The form that this program writes and reads.
pub(crate) const SCHEMA: &str = "sealane-stat/1";

/// What one daemon shows of itself.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Figures {
    /// [`SCHEMA`].
    pub(crate) schema: String,
    /// The daemon's version.
    pub(crate) version: String,
    pub(crate) pid: u32,
    /// When these figures were taken, in milliseconds of Unix time.
    pub(crate) taken_unix_ms: u64,
    /// How long the daemon has served, in milliseconds.
    pub(crate) uptime_ms: u64,
    pub(crate) state: State,
    /// What the shards run on: io_uring or epoll.
    pub(crate) executor: String,
    /// Where the daemon listens for peers.
    pub(crate) addresses: Vec<String>,
    /// The tasks that it serves.
    pub(crate) tasks: Vec<String>,
    pub(crate) shards: Vec<Shard>,
}

/// What a daemon does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum State {
    /// It takes what comes.
    Serving,
    /// It finishes what is under way.
    Draining,
    /// A part of the engine has failed, and with it the engine.
    Failed,
}

impl State {
    /// For people.
    pub(crate) fn name(self) -> &'static str {
        match self {
            State::Serving => "serving",
            State::Draining => "draining",
            State::Failed => "failed",
        }
    }
}
