//! The figures of one shard.

use std::ops::Deref;
use std::time::{SystemTime, UNIX_EPOCH};

use sealane_fusion::Counters;
use sealane_fusion::metrics::{
    ClientCounters, ClientFigures, KindFigures, LatencyFigures, PeerCounters, PeerFigures, ShardFigures, TableCounters,
    TableFigures, TrafficCounters, TrafficFigures,
};
use sealane_runtime::{HistogramSnapshot, LoadSnapshot};
use sealane_transport::LinkKind;
use sealane_transport::provider::Figure;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::histogram;
use crate::links::KINDS;

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Shard {
    pub(crate) shard: usize,
    /// The CPU that it is pinned to, if any.
    pub(crate) cpu: Option<usize>,
    pub(crate) load: Load,
    /// Its counters and what it currently holds.
    pub(crate) counters: ShardCounters,
    /// Durations of calls that ended well.
    pub(crate) calls: Vec<Calls>,
    pub(crate) slabs: Vec<Slab>,
    pub(crate) peers: Vec<Peer>,
    pub(crate) clients: Vec<Client>,
    /// Published tables whose rows were pulled.
    #[serde(default)]
    pub(crate) tables: Vec<Table>,
}

impl From<ShardFigures> for Shard {
    fn from(shown: ShardFigures) -> Shard {
        let ShardFigures { shard, cpu, load, counters, kinds, latencies, peers, clients, tables, .. } = shown;
        let slabs = vec![
            Slab { pool: "send".into(), used_bytes: counters.slab_send_bytes, size_bytes: shown.slab_send_bytes_max },
            Slab {
                pool: "receive".into(),
                used_bytes: counters.slab_receive_bytes,
                size_bytes: shown.slab_receive_bytes_max,
            },
        ];
        Shard {
            shard,
            cpu,
            load: load.into(),
            counters: ShardCounters::new(counters, kinds),
            calls: latencies.into_iter().map(Calls::from).collect(),
            slabs,
            peers: peers.into_iter().map(Peer::from).collect(),
            clients: clients.into_iter().map(Client::from).collect(),
            tables: tables.into_iter().map(Table::from).collect(),
        }
    }
}

/// What a shard has done and currently holds. For each kind of link besides TCP, `links_KIND` is the number of its links, and an
/// object with its name holds the figures specific to it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct ShardCounters {
    #[serde(flatten)]
    node: Counters,
    #[serde(flatten)]
    kinds: Map<String, Value>,
}

impl ShardCounters {
    pub(crate) fn new(node: Counters, shown: Vec<KindFigures>) -> ShardCounters {
        let unused = KINDS.iter().filter(|(kind, _)| shown.iter().all(|shown| shown.kind != *kind));
        let unused = unused.map(|(kind, figures)| KindFigures {
            kind: *kind,
            links: 0,
            figures: figures.iter().map(|figure| (*figure, 0)).collect(),
        });
        let mut kinds = Map::new();
        for KindFigures { kind, links, figures } in unused.chain(shown.iter().cloned()) {
            kinds.insert(format!("links_{}", kind.name()), links.into());
            let figures = figures.into_iter().map(|(figure, value)| (figure.name.to_owned(), value.into()));
            kinds.insert(kind.name().to_owned(), figures.collect::<Map<_, _>>().into());
        }
        ShardCounters { node, kinds }
    }

    /// Number of links of a kind other than TCP.
    pub(crate) fn links_of(&self, kind: LinkKind) -> u64 {
        self.kinds.get(&format!("links_{}", kind.name())).and_then(Value::as_u64).unwrap_or(0)
    }

    /// A figure specific to a kind of link.
    pub(crate) fn figure(&self, kind: LinkKind, figure: &Figure) -> u64 {
        self.kinds.get(kind.name()).and_then(|figures| figures.get(figure.name)?.as_u64()).unwrap_or(0)
    }
}

impl Deref for ShardCounters {
    type Target = Counters;

    fn deref(&self) -> &Counters {
        &self.node
    }
}

/// How a shard's thread spends its time.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Load {
    pub(crate) turns: u64,
    /// Durations of turns that had work to do.
    #[serde(with = "histogram")]
    pub(crate) busy_turns: HistogramSnapshot,
    pub(crate) longest_turn_ns: u64,
    pub(crate) busy_ns: u64,
    pub(crate) idle_ns: u64,
    pub(crate) asleep_ns: u64,
    pub(crate) sleeps: u64,
    pub(crate) stalls: u64,
    pub(crate) is_asleep: bool,
}

impl From<LoadSnapshot> for Load {
    fn from(load: LoadSnapshot) -> Load {
        Load {
            turns: load.turns,
            busy_ns: load.busy.sum(),
            busy_turns: load.busy,
            longest_turn_ns: load.longest_ns,
            idle_ns: load.idle_ns,
            asleep_ns: load.asleep_ns,
            sleeps: load.sleeps,
            stalls: load.stalls,
            is_asleep: load.asleep,
        }
    }
}

/// Calls of one kind in one direction over one kind of link.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Calls {
    /// recv, send, pull or push.
    pub(crate) operation: String,
    /// memory, tcp, or another kind of link.
    pub(crate) link: String,
    #[serde(with = "histogram")]
    pub(crate) took: HistogramSnapshot,
}

impl From<LatencyFigures> for Calls {
    fn from(shown: LatencyFigures) -> Calls {
        let (operation, link) = (shown.operation.name().into(), shown.way.into());
        Calls { operation, link, took: shown.nanoseconds }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Slab {
    /// send or receive.
    pub(crate) pool: String,
    pub(crate) used_bytes: u64,
    pub(crate) size_bytes: u64,
}

/// One shard of a peer, and the path to it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Peer {
    pub(crate) peer: String,
    pub(crate) peer_shard: Option<u16>,
    /// idle, connecting or up.
    pub(crate) state: String,
    /// The kind of the current link, or of the last one.
    pub(crate) link: Option<String>,
    /// Why it is of that kind.
    pub(crate) reason: String,
    /// How the last link ended, or why the last call failed.
    pub(crate) last_error: String,
    /// When the state began, in milliseconds of Unix time.
    pub(crate) since_unix_ms: u64,
    pub(crate) counters: PeerCounters,
}

impl From<PeerFigures> for Peer {
    fn from(shown: PeerFigures) -> Peer {
        let PeerFigures { address, shard, path, counters } = shown;
        Peer {
            peer: address,
            peer_shard: shard,
            state: path.state.name().into(),
            link: path.link.map(|link| link.name().into()),
            reason: path.reason,
            last_error: path.last_error,
            since_unix_ms: unix_ms(path.since),
            counters,
        }
    }
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Client {
    pub(crate) task: String,
    pub(crate) pid: i32,
    pub(crate) counters: ClientCounters,
    /// Its traffic, by the other task.
    #[serde(default)]
    pub(crate) peers: Vec<Traffic>,
}

impl From<ClientFigures> for Client {
    fn from(shown: ClientFigures) -> Client {
        let ClientFigures { task, pid, counters, traffic } = shown;
        Client { task, pid, counters, peers: traffic.into_iter().map(Traffic::from).collect() }
    }
}

/// What has moved between a client and one other task, by Sealane and by other transports.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Traffic {
    /// The other task, or "others".
    pub(crate) peer: String,
    pub(crate) counters: TrafficCounters,
    /// Share of tensors moved by Sealane, from 0 to 1; null if there are none.
    pub(crate) tensors_share: Option<f64>,
    /// Share of bytes moved by Sealane.
    pub(crate) bytes_share: Option<f64>,
}

impl From<TrafficFigures> for Traffic {
    fn from(shown: TrafficFigures) -> Traffic {
        let TrafficFigures { peer, counters } = shown;
        let (tensors_share, bytes_share) = (counters.share_of_tensors(), counters.share_of_bytes());
        Traffic { peer, counters, tensors_share, bytes_share }
    }
}

/// A table whose rows were pulled.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Table {
    /// The task that has published it.
    pub(crate) task: String,
    pub(crate) table: String,
    pub(crate) counters: TableCounters,
    /// Share of named rows that occurred before in the same batch, from 0 to 1; null if there are none.
    pub(crate) duplicates_share: Option<f64>,
}

impl From<TableFigures> for Table {
    fn from(shown: TableFigures) -> Table {
        let TableFigures { task, table, counters } = shown;
        Table { task, table, counters, duplicates_share: counters.share_of_duplicates() }
    }
}

/// Milliseconds of Unix time; 0 if before 1970.
pub(crate) fn unix_ms(time: SystemTime) -> u64 {
    time.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64)
}

#[cfg(test)]
mod tests {
    use sealane_transport::limits::FIGURES_MAX;
    use sealane_transport::verbs::{self, PortCounters};

    use super::*;

    #[test]
    fn a_kind_of_link_shows_its_figures_under_its_name_whether_or_not_it_is_used() {
        let figures = PortCounters::FIGURES.iter().zip(1..).map(|(figure, value)| (*figure, value)).collect();
        let used = vec![KindFigures { kind: verbs::KIND, links: 3, figures }];
        let values: [u64; FIGURES_MAX] = std::array::from_fn(|place| place as u64 + 1);
        for (shown, links, figures) in [(used, 3, values), (Vec::new(), 0, [0; FIGURES_MAX])] {
            let counters = ShardCounters::new(Counters { links: 4, ..Counters::default() }, shown);
            let json = serde_json::to_value(&counters).unwrap();
            assert_eq!((&json["links"], &json["links_verbs"]), (&4.into(), &links.into()));
            assert_eq!(json["verbs"], serde_json::to_value(PortCounters::of_figures(&figures)).unwrap());
            assert_eq!(counters.figure(verbs::KIND, &PortCounters::FIGURES[1]), figures[1]);
            assert_eq!(serde_json::from_value::<ShardCounters>(json).unwrap(), counters);
        }
    }
}
