//! The figures of a daemon as they go to people and programs: `sealane stat` and its JSON, and the source of the metrics.
//! Plain data, made from what the engine shows; as many entries as the engine has shards, peers and clients.

#[cfg(test)]
mod example;
mod histogram;
mod rates;
mod shard;

use std::time::SystemTime;

use serde::{Deserialize, Serialize};

#[cfg(test)]
pub(crate) use example::example;
pub(crate) use histogram::Histogram;
pub(crate) use rates::Rates;
pub(crate) use shard::unix_ms;
pub(crate) use shard::{Client, Peer, Shard, ShardCounters, Traffic};

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
    /// By what peers know the daemon.
    pub(crate) credentials: Credentials,
    pub(crate) shards: Vec<Shard>,
}

/// What a daemon shows its peers, and they show it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Credentials {
    /// `none`, `shared secret` or `TLS 1.3`.
    pub(crate) shown: String,
    /// Days until the certificate ends, or sooner its authority's; below 0 afterwards, null where there is none.
    pub(crate) days_left: Option<f64>,
    /// Times that new ones were taken since the start.
    pub(crate) taken: u64,
    /// Times that new ones could not be used, and the old ones stayed.
    pub(crate) refused: u64,
}

/// Days from now until then, below 0 if it is over.
pub(crate) fn days_left(end: SystemTime) -> f64 {
    const DAY: f64 = 86_400.0;
    match end.duration_since(SystemTime::now()) {
        Ok(left) => left.as_secs_f64() / DAY,
        Err(over) => -over.duration().as_secs_f64() / DAY,
    }
}

/// What a daemon does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum State {
    /// It takes what comes.
    Serving,
    /// It finishes what is in progress.
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
