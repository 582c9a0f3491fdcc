//! The figures of a daemon as people and programs get them: `sealane stat` and its JSON, and the source of the metrics. Plain data,
//! made from what the engine shows; as many entries as the engine has shards, peers and clients.

mod histogram;
mod shard;

use std::fmt;
use std::time::SystemTime;

use serde::{Deserialize, Serialize};

pub(crate) use shard::unix_ms;
pub(crate) use shard::{Client, Peer, Shard, Table, Traffic};

/// The schema that this program writes and reads.
pub(crate) const SCHEMA: &str = "sealane-stat/1";

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Figures {
    /// [`SCHEMA`].
    pub(crate) schema: String,
    pub(crate) version: String,
    pub(crate) pid: u32,
    /// When these figures were taken, in milliseconds of Unix time.
    pub(crate) taken_unix_ms: u64,
    /// How long the daemon has served, in milliseconds.
    pub(crate) uptime_ms: u64,
    pub(crate) state: State,
    /// The name of the daemon's job; null if it has none.
    #[serde(default)]
    pub(crate) job: Option<String>,
    /// The executor of the shards: io_uring or epoll.
    pub(crate) executor: String,
    /// Addresses at which the daemon listens for peers.
    pub(crate) addresses: Vec<String>,
    pub(crate) tasks: Vec<String>,
    pub(crate) credentials: Credentials,
    /// The pairs of tasks whose clients have a direct lane.
    #[serde(default)]
    pub(crate) direct_lanes: Vec<[String; 2]>,
    pub(crate) shards: Vec<Shard>,
}

impl Figures {
    /// `before`, if it is an earlier snapshot of the same process.
    pub(crate) fn earlier<'a>(&self, before: Option<&'a Figures>) -> Option<&'a Figures> {
        before.filter(|before| before.pid == self.pid && before.uptime_ms < self.uptime_ms)
    }

    /// The shard with that number in an earlier snapshot of the same process.
    pub(crate) fn earlier_shard<'a>(&self, before: Option<&'a Figures>, number: usize) -> Option<&'a Shard> {
        self.earlier(before)?.shards.iter().find(|shard| shard.shard == number)
    }
}

/// What a daemon and its peers present to each other.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Credentials {
    /// `none`, `shared secret` or `TLS 1.3`.
    pub(crate) shown: String,
    /// Days until the certificate, or its authority's if sooner, expires; below 0 afterwards, null if there is none.
    pub(crate) days_left: Option<f64>,
    /// How often new credentials were taken since the start.
    pub(crate) taken: u64,
    /// How often new credentials could not be used, so that the old ones stayed.
    pub(crate) refused: u64,
}

/// Days from now until `end`; below 0 if it has passed.
pub(crate) fn days_left(end: SystemTime) -> f64 {
    const DAY: f64 = 86_400.0;
    match end.duration_since(SystemTime::now()) {
        Ok(left) => left.as_secs_f64() / DAY,
        Err(over) => -over.duration().as_secs_f64() / DAY,
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum State {
    /// Accepts everything.
    Serving,
    /// It finishes what is in progress.
    Draining,
    /// A part of the engine has failed, and with it the whole engine.
    Failed,
}

/// As written in JSON.
impl fmt::Display for State {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.serialize(out)
    }
}

#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) struct Rates {
    /// Tensors a second sent by tasks of the daemon.
    pub(crate) tensors_sent: f64,
    /// Tensors a second received by them.
    pub(crate) tensors_received: f64,
    /// Bytes a second sent by them.
    pub(crate) bytes_sent: f64,
    /// Bytes a second received by them.
    pub(crate) bytes_received: f64,
    /// Share of the time that the shard was busy, from 0 to 1.
    pub(crate) busy: f64,
}

impl Rates {
    /// Since the daemon's start, or since `before` if that is of the same process.
    pub(crate) fn of_shard(now: &Figures, shard: &Shard, before: Option<&Figures>) -> Rates {
        let then = now.earlier_shard(before, shard.shard);
        let passed_ms = now.uptime_ms - now.earlier(before).map_or(0, |before| before.uptime_ms);
        let seconds = passed_ms.max(1) as f64 / 1000.0;
        let grown = |of: &dyn Fn(&Shard) -> u64| of(shard).saturating_sub(then.map_or(0, of)) as f64;
        let (busy, idle) = (grown(&|shard| shard.load.busy_ns), grown(&|shard| shard.load.idle_ns));
        let all = busy + idle + grown(&|shard| shard.load.asleep_ns);
        Rates {
            tensors_sent: grown(&|shard| shard.counters.tensors_sent) / seconds,
            tensors_received: grown(&|shard| shard.counters.tensors_received) / seconds,
            bytes_sent: grown(&|shard| shard.counters.bytes_sent) / seconds,
            bytes_received: grown(&|shard| shard.counters.bytes_received) / seconds,
            busy: if all > 0.0 { busy / all } else { 0.0 },
        }
    }
}

/// A daemon with one of each thing that it can show, for tests.
#[cfg(test)]
pub(crate) fn example() -> Figures {
    use sealane_fusion::Counters;
    use sealane_fusion::metrics::{
        ClientCounters, ClientFigures, LatencyFigures, Operation, PeerCounters, PeerFigures, PeerPath, ShardFigures,
        TableCounters, TableFigures, TrafficCounters, TrafficFigures,
    };
    use sealane_runtime::{HistogramSnapshot, LoadSnapshot};

    let calls = LatencyFigures { operation: Operation::Recv, way: "tcp", nanoseconds: HistogramSnapshot::default() };
    let address = "127.0.0.1:7000".to_owned();
    let peer = PeerFigures { address, shard: Some(0), path: PeerPath::default(), counters: PeerCounters::default() };
    let traffic = TrafficFigures { peer: "ps0:2222".to_owned(), counters: TrafficCounters::default() };
    let (task, counters) = ("worker0:2222".to_owned(), ClientCounters::default());
    let client = ClientFigures { task, pid: 1, counters, traffic: vec![traffic] };
    let (task, table) = ("ps0:2222".to_owned(), "user".to_owned());
    let table = TableFigures { task, table, counters: TableCounters::default() };
    let shard = ShardFigures {
        shard: 0,
        cpu: None,
        load: LoadSnapshot::default(),
        counters: Counters::default(),
        kinds: Vec::new(),
        latencies: vec![calls],
        peers: vec![peer],
        clients: vec![client],
        tables: vec![table],
        slab_send_bytes_max: 0,
        slab_receive_bytes_max: 0,
    };
    Figures {
        schema: SCHEMA.to_owned(),
        version: "1".to_owned(),
        pid: 1,
        taken_unix_ms: 0,
        uptime_ms: 0,
        state: State::Serving,
        job: None,
        executor: "io_uring".to_owned(),
        addresses: Vec::new(),
        tasks: Vec::new(),
        credentials: Credentials { shown: "TLS 1.3".to_owned(), days_left: Some(1.0), taken: 0, refused: 0 },
        direct_lanes: vec![["ps0:2222", "worker0:2222"].map(str::to_owned)],
        shards: vec![Shard::from(shard)],
    }
}
