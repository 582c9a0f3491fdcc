//! A shard's metrics: counted in its own memory, published between its turns, read from any thread without stopping it. Bounded by the
//! sessions of the shard.
//!
//! Counters are plain integers of the shard; no atomic is written per message. Every few milliseconds while the shard is awake, and before
//! each sleep, it copies them into a sequence lock, with those of each session and client that changed. Readers copy from there, and retry
//! if a write interfered. So values may be a few milliseconds old, and tests wait for the value they expect. Histograms are written
//! directly. Calls that begin in one turn and end in one turn are recorded together, so a tensor costs one comparison: calls over a link
//! are recorded when it was read, calls between tasks of a shard at its next turn or before it sleeps. Latencies are kept by kind of call
//! and path, not by peer: with three thousand peers, a scrape would be megabytes of empty buckets.

mod client;
mod latency;
mod peer;
mod seqlock;
mod table;
mod traffic;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use sealane_runtime::LoadSnapshot;
use sealane_transport::LinkKind;
use sealane_transport::provider::{Figure, LinkProvider};

use crate::node::{Counters, KindCounters};
pub(crate) use client::ClientMetrics;
pub use client::{ClientCounters, ClientFigures};
pub(crate) use latency::{Latencies, Run, Way};
pub use latency::{LatencyFigures, Operation};
pub(crate) use peer::PeerMetrics;
pub use peer::{PathState, PeerCounters, PeerFigures, PeerPath};
pub(crate) use seqlock::SeqLock;
pub(crate) use table::TableMetrics;
pub use table::{TableCounters, TableFigures};
pub(crate) use traffic::TrafficMetrics;
pub use traffic::{TrafficCounters, TrafficFigures};

/// Maximum age of an awake shard's metrics; a shard publishes them before it sleeps.
pub const SHOW_INTERVAL: Duration = Duration::from_millis(5);

/// One shard's metrics, written by the shard and read by any thread.
#[derive(Debug)]
pub(crate) struct NodeMetrics {
    pub(crate) counters: SeqLock<Counters>,
    pub(crate) latencies: Latencies,
    pub(crate) peers: Roll<PeerMetrics>,
    pub(crate) clients: Roll<ClientMetrics>,
    pub(crate) tables: Roll<TableMetrics>,
}

impl NodeMetrics {
    /// Metrics of a node whose links may be of these kinds besides TCP.
    pub(crate) fn new(kinds: &[LinkKind]) -> NodeMetrics {
        NodeMetrics {
            counters: SeqLock::default(),
            latencies: Latencies::new(kinds),
            peers: Roll::default(),
            clients: Roll::default(),
            tables: Roll::default(),
        }
    }

    pub(crate) fn peer_figures(&self) -> Vec<PeerFigures> {
        let mut figures: Vec<PeerFigures> = self.peers.all().iter().map(|peer| peer.figures()).collect();
        figures.sort_by(|one, other| (&one.address, one.shard).cmp(&(&other.address, other.shard)));
        figures
    }

    pub(crate) fn client_figures(&self) -> Vec<ClientFigures> {
        let mut figures: Vec<ClientFigures> = self.clients.all().iter().map(|client| client.figures()).collect();
        figures.sort_by(|one, other| one.task.cmp(&other.task));
        figures
    }

    pub(crate) fn table_figures(&self) -> Vec<TableFigures> {
        let mut figures: Vec<TableFigures> = self.tables.all().iter().map(|table| table.figures()).collect();
        figures.sort_by(|one, other| (&one.task, &one.table).cmp(&(&other.task, &other.table)));
        figures
    }
}

/// A list of metrics; an entry lasts as long as the shard holds its own reference.
#[derive(Debug)]
pub(crate) struct Roll<T>(Mutex<Vec<Weak<T>>>);

impl<T> Default for Roll<T> {
    fn default() -> Self {
        Roll(Mutex::default())
    }
}

impl<T> Roll<T> {
    pub(crate) fn add(&self, one: &Arc<T>) {
        let mut all = self.lock();
        if all.len() == all.capacity() {
            all.retain(|known| known.strong_count() > 0);
        }
        all.push(Arc::downgrade(one));
    }

    /// The entries still in use.
    pub(crate) fn all(&self) -> Vec<Arc<T>> {
        self.lock().iter().filter_map(Weak::upgrade).collect()
    }

    /// Locked by the shard only to add an entry, and by readers while they copy a list of pointers.
    fn lock(&self) -> MutexGuard<'_, Vec<Weak<T>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A shard's metrics of one kind of link.
#[derive(Debug, Clone)]
pub struct KindFigures {
    pub kind: LinkKind,
    /// Links of this kind now.
    pub links: u64,
    /// The kind's own counters.
    pub figures: Vec<(Figure, u64)>,
}

impl KindFigures {
    pub(crate) fn new(links: &dyn LinkProvider, counters: &KindCounters) -> KindFigures {
        let figures = links.figures().iter().copied().zip(counters.figures).collect();
        KindFigures { kind: links.kind(), links: counters.links, figures }
    }
}

/// A shard's metrics. See [`Engine::figures`](crate::Engine::figures).
#[derive(Debug, Clone)]
pub struct ShardFigures {
    pub shard: usize,
    /// The CPU that it is pinned to.
    pub cpu: Option<usize>,
    /// How its thread spends its time.
    pub load: LoadSnapshot,
    pub counters: Counters,
    /// The kinds of links besides TCP, in the order of the engine's settings.
    pub kinds: Vec<KindFigures>,
    /// Latencies of successful calls.
    pub latencies: Vec<LatencyFigures>,
    /// Its peers: each shard of another host that it has a session with, sorted by address.
    pub peers: Vec<PeerFigures>,
    /// Attached clients of this host, sorted by task.
    pub clients: Vec<ClientFigures>,
    /// Tables of which it has gathered rows, sorted by task and table; at most 1,024.
    pub tables: Vec<TableFigures>,
    pub slab_send_bytes_max: u64,
    pub slab_receive_bytes_max: u64,
}
