//! What is measured, and its names: one table each for shards, peers and clients. The names must stay, as dashboards and alarms
//! rely on them.

use crate::figures::{Client, Peer, Shard, Table, Traffic};

/// How a family's values change and what they are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// Only grows. `_total` is added to its name.
    Counter,
    /// Only grows. Measured in nanoseconds, exported in seconds.
    CounterOfTime,
    /// Goes up and down.
    Gauge,
    /// Goes up and down. Measured in nanoseconds, exported in seconds.
    GaugeOfTime,
}

/// One metric, for each of the things that have it.
pub(super) struct Family<T: 'static> {
    /// Without the prefix `sealane_`.
    pub(super) name: &'static str,
    pub(super) help: &'static str,
    pub(super) kind: Kind,
    /// An optional label with its value, and how to read the sample.
    pub(super) samples: &'static [Sample<T>],
}

/// A label with its value, if the family has one, and what to read.
pub(super) type Sample<T> = (Option<(&'static str, &'static str)>, fn(&T) -> u64);

const fn family<T>(kind: Kind, name: &'static str, help: &'static str, samples: &'static [Sample<T>]) -> Family<T> {
    Family { name, help, kind, samples }
}

const SENT: Option<(&str, &str)> = Some(("direction", "sent"));
const RECEIVED: Option<(&str, &str)> = Some(("direction", "received"));
const SEND_POOL: Option<(&str, &str)> = Some(("pool", "send"));
const RECEIVE_POOL: Option<(&str, &str)> = Some(("pool", "receive"));

use Kind::{Counter, CounterOfTime, Gauge, GaugeOfTime};

#[rustfmt::skip]
pub(super) const OF_SHARDS: &[Family<Shard>] = &[
    family(Counter, "shard_turns", "Turns of the shard's reactor.", &[(None, |shard| shard.load.turns)]),
    family(GaugeOfTime, "shard_turn_longest_seconds", "Longest turn since startup.", &[(None, |shard| shard.load.longest_turn_ns)]),
    family(CounterOfTime, "shard_time_seconds", "How the shard's thread spent its time; the current period is counted when it ends.", &[
        (Some(("state", "busy")), |shard| shard.load.busy_ns),
        (Some(("state", "idle")), |shard| shard.load.idle_ns),
        (Some(("state", "asleep")), |shard| shard.load.asleep_ns),
    ]),
    family(Counter, "shard_sleeps", "Times that the shard went to sleep.", &[(None, |shard| shard.load.sleeps)]),
    family(Counter, "shard_stalls", "Turns that took longer than runtime.stall_report_ms.", &[(None, |shard| shard.load.stalls)]),
    family(Counter, "tensors", "Tensors of local tasks that were received, and that were sent and released by their consumers.", &[
        (SENT, |shard| shard.counters.tensors_sent),
        (RECEIVED, |shard| shard.counters.tensors_received),
    ]),
    family(Counter, "tensor_bytes", "Bytes of these tensors.", &[
        (SENT, |shard| shard.counters.bytes_sent),
        (RECEIVED, |shard| shard.counters.bytes_received),
    ]),
    family(Counter, "messages_sent", "Frames sent to peers, control frames included.", &[(None, |shard| shard.counters.messages_sent)]),
    family(Counter, "writes", "Writes to links.", &[(None, |shard| shard.counters.writes)]),
    family(Counter, "links_lost", "Links that were lost.", &[(None, |shard| shard.counters.links_lost)]),
    family(Counter, "sessions_reset", "Sessions that were dropped, or whose peer restarted.", &[(None, |shard| shard.counters.sessions_reset)]),
    family(Gauge, "slab_used_bytes", "Slab memory in use.", &[
        (SEND_POOL, |shard| shard.counters.slab_send_bytes),
        (RECEIVE_POOL, |shard| shard.counters.slab_receive_bytes),
    ]),
    family(Gauge, "slab_size_bytes", "Size of the slabs.", &[
        (SEND_POOL, |shard| size_of_pool(shard, "send")),
        (RECEIVE_POOL, |shard| size_of_pool(shard, "receive")),
    ]),
    family(Gauge, "pending_sends", "Tensors that wait for their recv, or were sent and are not released yet.", &[(None, |shard| shard.counters.pending_sends)]),
    family(Gauge, "deposits", "The former name of pending_sends, which the next release does not export.", &[(None, |shard| shard.counters.pending_sends)]),
    family(Gauge, "parked_requests", "Requests of peers that wait for their send.", &[(None, |shard| shard.counters.parked)]),
    family(Gauge, "published_tensors", "Published tensors.", &[(None, |shard| shard.counters.published)]),
    family(Counter, "rows_served", "Rows of published tables that were gathered for those who pulled them, or read by clients of this host where they lie.", &[(None, |shard| shard.counters.rows_served)]),
    family(Counter, "row_bytes_served", "Bytes of these rows.", &[(None, |shard| shard.counters.row_bytes_served)]),
    family(Counter, "callers_refused", "Incoming connections that did not become links.", &[
        (Some(("reason", "unauthenticated")), |shard| shard.counters.callers.unauthenticated),
        (Some(("reason", "turned_away")), |shard| shard.counters.callers.turned_away),
    ]),
    family(Counter, "clients_failed", "Clients disconnected because serving them panicked.", &[(None, |shard| shard.counters.clients_failed)]),
];

fn size_of_pool(shard: &Shard, pool: &str) -> u64 {
    shard.slabs.iter().find(|slab| slab.pool == pool).map_or(0, |slab| slab.size_bytes)
}

#[rustfmt::skip]
pub(super) const OF_PEERS: &[Family<Peer>] = &[
    family(Counter, "peer_bytes", "Bytes over the links to a peer's shard, frames and payloads.", &[
        (SENT, |peer| peer.counters.bytes_sent),
        (RECEIVED, |peer| peer.counters.bytes_received),
    ]),
    family(Counter, "peer_tensors", "Tensors over these links; one that is sent again on a new link counts again.", &[
        (SENT, |peer| peer.counters.tensors_sent),
        (RECEIVED, |peer| peer.counters.tensors_received),
    ]),
    family(Counter, "peer_messages", "Frames over these links.", &[
        (SENT, |peer| peer.counters.messages_sent),
        (RECEIVED, |peer| peer.counters.messages_received),
    ]),
    family(Counter, "peer_writes", "Writes to links.", &[(None, |peer| peer.counters.writes)]),
    family(Counter, "peer_links_made", "Links established; all but the first are reconnects.", &[(None, |peer| peer.counters.links_made)]),
    family(Counter, "peer_links_lost", "Links that were lost.", &[(None, |peer| peer.counters.links_lost)]),
    family(Counter, "peer_calls_failed", "Connection attempts that failed.", &[(None, |peer| peer.counters.calls_failed)]),
    family(Counter, "peer_fallbacks", "Links that fell back from RDMA to TCP; peer_path_info has the reason.", &[(None, |peer| peer.counters.fallbacks)]),
    family(Gauge, "peer_in_flight", "Requests, pulls and pushes of this side that have not ended.", &[(None, |peer| peer.counters.in_flight)]),
    family(Gauge, "peer_unreleased", "Tensors that the peer has not released.", &[(None, |peer| peer.counters.unreleased)]),
];

#[rustfmt::skip]
pub(super) const OF_CLIENTS: &[Family<Client>] = &[
    family(Counter, "client_tensors", "Tensors that a client of this host sent or published, and received or pulled.", &[
        (SENT, |client| client.counters.tensors_sent),
        (RECEIVED, |client| client.counters.tensors_received),
    ]),
    family(Counter, "client_bytes", "Bytes of these tensors.", &[
        (SENT, |client| client.counters.bytes_sent),
        (RECEIVED, |client| client.counters.bytes_received),
    ]),
    family(Counter, "client_viewed_tensors", "Of the received tensors, those that the client views in their publisher's memory, without a copy.", &[(None, |client| client.counters.tensors_viewed)]),
    family(Counter, "client_viewed_bytes", "Bytes of these tensors.", &[(None, |client| client.counters.bytes_viewed)]),
    family(Counter, "client_views_refused", "Large tensors that the client asked to view and that were copied: of another user or no client's memory, too many views, or `daemon.views` is off.", &[(None, |client| client.counters.views_refused)]),
    family(Gauge, "client_views", "Tensors that the client views now; each keeps memory of its publisher.", &[(None, |client| client.counters.views)]),
    family(Counter, "client_published_again_tensors", "Tensors that the client had published with the daemon before this one and published again by itself.", &[(None, |client| client.counters.tensors_published_again)]),
    family(Counter, "client_published_again_bytes", "Bytes of these tensors.", &[(None, |client| client.counters.bytes_published_again)]),
    family(Counter, "client_not_published_again_tensors", "Of such tensors, those that found no room in the client's arena or were refused; tried again while there is no room.", &[(None, |client| client.counters.tensors_not_published_again)]),
    family(Gauge, "client_pinned_bytes", "Bytes of the client's memory registered with RDMA devices; a page counts once per shard.", &[(None, |client| client.counters.pinned_bytes)]),
    family(Gauge, "client_calls_under_way", "Calls of the client that have not ended.", &[(None, |client| client.counters.under_way)]),
];

#[rustfmt::skip]
pub(super) const OF_TRAFFIC: &[Family<Traffic>] = &[
    family(Counter, "client_peer_tensors", "Tensors between a client of this host and one other task that were carried by Sealane.", &[
        (SENT, |traffic| traffic.counters.tensors_sent),
        (RECEIVED, |traffic| traffic.counters.tensors_received),
    ]),
    family(Counter, "client_peer_bytes", "Bytes of these tensors.", &[
        (SENT, |traffic| traffic.counters.bytes_sent),
        (RECEIVED, |traffic| traffic.counters.bytes_received),
    ]),
    family(Counter, "client_peer_elsewhere_tensors", "Tensors between them that were carried by another transport, as reported by the client.", &[
        (SENT, |traffic| traffic.counters.elsewhere_tensors_sent),
        (RECEIVED, |traffic| traffic.counters.elsewhere_tensors_received),
    ]),
    family(Counter, "client_peer_elsewhere_bytes", "Bytes of these tensors.", &[
        (SENT, |traffic| traffic.counters.elsewhere_bytes_sent),
        (RECEIVED, |traffic| traffic.counters.elsewhere_bytes_received),
    ]),
];

#[rustfmt::skip]
pub(super) const OF_TABLES: &[Family<Table>] = &[
    family(Counter, "table_requests", "Requests for rows of a table that were answered.", &[(None, |table| table.counters.requests)]),
    family(Counter, "table_rows", "Rows in these answers.", &[(None, |table| table.counters.rows)]),
    family(Counter, "table_row_bytes", "Their bytes.", &[(None, |table| table.counters.bytes)]),
    family(Counter, "table_rows_named", "How often those who asked had named them; a row that a batch names twice is gathered once.", &[(None, |table| table.counters.rows_named)]),
    family(CounterOfTime, "table_gather_seconds", "Time that gathering them took; what clients of this host read themselves takes none.", &[(None, |table| table.counters.gather_ns)]),
];
