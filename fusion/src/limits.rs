//! The limits of a node and its engine. Those that users can set are in [`EngineSettings`](crate::EngineSettings), those of the
//! wire and the session in `sealane_transport::limits`.

use std::time::Duration;

use sealane_transport::limits::QUEUE_TENSORS_MAX;
use sealane_transport::shm::limits::INLINE_BYTES_MAX;

// Turns of a node.

/// Bytes read from one link in one turn at most, so that a busy link does not starve its neighbours.
pub(crate) const RECEIVE_BUDGET_BYTES: usize = 1 << 20;

/// Reads of a link that is found broken: more than its socket holds.
pub(crate) const READS_AT_THE_END_MAX: usize = 256;

/// Bytes written to one link at once at most; what is left waits for the next turn.
pub(crate) const TRANSMIT_BUDGET_BYTES: usize = 4 << 20;

/// A link that is idle for this many turns is no longer polled each turn; epoll reports when it is readable. With a thousand
/// busy links a smaller value was no faster and starved some.
pub(crate) const HOT_IDLE_TURNS: u32 = 4096;

/// Retries, one per turn, of a link whose write was short; after that the shard waits for EPOLLOUT, so a peer that does not
/// read costs no system call per turn.
pub(crate) const BLOCKED_TURNS: u32 = 64;

// Recvs of one call that wait together.

/// Calls whose recvs wait together: a tensor that comes in another order may look at each.
pub(crate) const POSTED_CALLS_MAX: usize = 64;

/// Calls to come of which a shard keeps tensors together that came before them; those of further ones are kept one by one. Each has room
/// for all of its tensors from the first on.
pub(crate) const UNEXPECTED_CALLS_MAX: usize = 128;

/// Recvs of one call that wait together at most; those of a larger one wait each by itself.
pub(crate) const POSTED_KEYS_MAX: usize = 4096;

/// Lists of keys that are remembered, since the next step has most often the same.
pub(crate) const KEY_LISTS_MAX: usize = 16;

/// Bytes of the keys of one of them at most.
pub(crate) const KEY_LIST_BYTES_MAX: usize = 256 << 10;

// Copies within a node.

/// What a tensor that is shared in place of being copied costs of the budgets below: what is written of it.
pub(crate) const VIEW_COST_BYTES: usize = 256;

/// What a look at a tensor costs of them at least: a plan may have tens of thousands that are not there, or are of no bytes.
pub(crate) const LOOK_COST_BYTES: usize = 64;

/// Smallest tensor that a client views in the arena of another. A view costs a record each way, a lease, and page faults where the
/// mapping is new: about as much as copying so many bytes, which are copied at once besides.
pub(crate) const VIEW_BYTES_MIN: usize = COPY_AT_ONCE_BYTES;

/// Most views that one client has of one shard when another is granted; beyond it tensors are copied. Each keeps a block of its
/// publisher's arena.
pub(crate) const VIEWS_MAX: usize = 4096;

/// Bytes copied at once; a larger tensor is copied in several turns.
pub(crate) const COPY_AT_ONCE_BYTES: usize = 64 << 10;

/// Bytes that one `memcpy` is given: for more, the C library changes to stores that pass the caches by, which was slower
/// (4 MiB at once 31 GB/s, in pieces of 64 KiB 38 GB/s).
pub(crate) const COPY_PIECE_BYTES: usize = 64 << 10;

/// Bytes copied in one turn at most, all copies together: about 30 µs, so that small messages do not wait long.
pub(crate) const COPY_BUDGET_BYTES: usize = 1 << 20;

/// Bytes copied for one producer, or for one pull, before the next one's turn comes.
pub(crate) const COPY_BATCH_BYTES: usize = 256 << 10;

// Connections.

/// First wait before a peer is called again; doubled up to [`REDIAL_WAIT_MAX`].
pub(crate) const REDIAL_WAIT_MIN: Duration = Duration::from_millis(10);

/// Longest backoff. Together with the connect timeout it is under a second, so a restored cable is noticed within a second.
pub(crate) const REDIAL_WAIT_MAX: Duration = Duration::from_millis(400);

/// A process resets its sessions fewer times than this, so incarnations that differ by less belong to one process.
pub(crate) const LIVES_MAX: u64 = 1 << 20;

/// Calls to a peer fail for at least so long before the log says that it cannot be reached: jobs start in no order.
pub(crate) const OUTAGE_TIME_MIN: Duration = Duration::from_secs(1);

/// Peers of which an engine remembers whether the log said so; no word of further ones.
pub(crate) const OUTAGES_MAX: usize = 65_536;

// Sends and recvs.

/// Aborted steps remembered, all owners together.
pub(crate) const ENDED_STEPS_MAX: usize = 16_384;

/// Bytes of a reason that are kept: those who come late need a hint, not the whole story.
pub(crate) const ENDED_REASON_BYTES: usize = 256;

/// The order is cleared of forgotten steps when it holds this many entries more than twice those that are remembered.
pub(crate) const ENDED_ORDER_SLACK: usize = 16;

/// Part of the send slab that the rows for one peer may fill from when they are gathered until it has released them, a quarter; one
/// answer may be as large.
pub(crate) const GATHERED_SHARE: usize = 4;

/// Requests for rows that are woken in one turn, because a table that they wait for was published: some 30 µs. The others' turn
/// comes next.
pub(crate) const ROW_WAKES_PER_TURN: usize = 64;

/// Requests of peers that end in one turn because their deadlines have passed, and as many for rows: some 60 µs. The others' turn comes
/// next, for it is the peers that choose the deadlines.
pub(crate) const LATE_PER_TURN: usize = 64;

/// Requests for rows of one peer that wait for one table at most, so that it does not stand before all others when that comes; more
/// end with ResourceExhausted. Far more than a host's tasks ask ahead.
pub(crate) const ROW_WAITS_MAX: usize = 4096;

/// Turns in which a row may be written at each look of those who gather it, before they give it up: some ten milliseconds on a
/// busy shard, a second on an idle one.
pub(crate) const ROW_TURNS_MAX: u32 = 1000;

/// Requests for rows without memory, or whose next row is being written, that are tried again in a turn that comes anyway.
pub(crate) const ROW_RETRIES_PER_TURN: usize = 4;

/// What it costs to look a table up and to read which of its rows are named, in bytes that could be copied meanwhile.
pub(crate) const ROW_TABLE_COST_BYTES: usize = 2048;

/// Most tables of which a shard counts what it has gathered.
pub(crate) const TABLES_COUNTED_MAX: usize = 1024;

/// As [`ROW_RETRIES_PER_TURN`], in a turn that comes because of [`ROW_RETRY_EVERY`].
pub(crate) const ROW_RETRIES_AT_ONCE: usize = 16;

/// When requests for rows are tried again at the latest.
pub(crate) const ROW_RETRY_EVERY: Duration = Duration::from_millis(1);

/// Bytes of the keys and row numbers of one peer's requests for rows that wait, at most; more end with ResourceExhausted. Room
/// for two thousand of the longest, or all that may be parked with 30 rows each.
pub(crate) const ROW_REQUESTS_BYTES_MAX: usize = 16 << 20;

/// The line of requests for rows that are tried again is cleared of ended ones when it holds this many more than twice those that
/// have not ended.
pub(crate) const ROW_RETRIES_SLACK: usize = 16;

/// How long a recv waits for its tensor before it asks for it, where the tensor most often comes ahead, as long as asking is of use: what an
/// error costs in time that a request would have brought, and longer than a round trip takes.
pub(crate) const QUIET_TIME: Duration = Duration::from_millis(1);

/// How often that doubles at most where asking was in vain: to 64 ms, after which a request for each recv costs nothing that counts.
pub(crate) const QUIET_DOUBLINGS_MAX: u8 = 6;

/// How long before its deadline a tensor that was sent ahead is to come back, and half of its time at most: longer than the answer takes
/// anywhere. Then its sender hears at the deadline that nobody has asked for it, and not that its delivery is unknown.
pub(crate) const REVOKE_TIME: Duration = Duration::from_millis(100);

/// Most bytes of tensors on a shard that peers have sent ahead and no recv has taken, with their keys: those of the credit of 64 peers.
/// Further ones go back, and wait for their requests.
pub(crate) const KEPT_AHEAD_BYTES_MAX: usize = 64 << 20;

/// A parked request is dropped this long after its deadline, in case the peer never cancels it.
pub(crate) const PARKED_GRACE: Duration = Duration::from_secs(1);

// What is published.

/// One in this many unpublished key slots is reserved for this node's own plans; peers' plans cannot take it.
pub(crate) const PLANS_KEPT_SHARE: usize = 4;

/// A slot's watcher list is purged of stale entries once it has this many.
pub(crate) const WATCHERS_SLACK: usize = 16;

/// Bytes of small published tensors that are packed in one chunk: as many as are copied in some 10 µs, when it is emptied.
pub(crate) const PACKED_CHUNK_BYTES: usize = 64 << 10;

/// Tensors that are packed in one chunk; some have no bytes.
pub(crate) const PACKED_CHUNK_TENSORS: usize = 4096;

/// Tensors of pulls that are woken in one turn, because what they wait for was published: some 30 µs. The others' turn comes next.
pub(crate) const WAKES_PER_TURN: usize = 1024;

// Queues.

/// A stream's credit in tensors at most: with fewer, a pusher of small ones would wait for its credit.
pub(crate) const CREDIT_MESSAGES_MAX: usize = 1024;

/// A stream's credit in bytes at most: some milliseconds of a fast link.
pub(crate) const CREDIT_BYTES_MAX: usize = 16 << 20;

/// Streams of a shard have credit in bytes for one in this many of its received tensors' memory, together: the rest is for those that
/// say what they need, and for recvs.
pub(crate) const CREDIT_MEMORY_SHARE: usize = 4;

/// How often it is looked whether there is memory for pushes of large tensors that wait for it.
pub(crate) const PROMISE_LOOK: Duration = Duration::from_millis(1);

/// What was promised to streams of which none has brought anything for so long does not hold up others any more.
pub(crate) const PROMISE_TIME: Duration = Duration::from_secs(2);

// The engine.

/// How long [`Engine::stop`](crate::Engine::stop) gives goodbyes to leave.
pub(crate) const FAREWELL_TIME: Duration = Duration::from_millis(500);

/// A longer timeout means no limit: a hundred years, which any clock can count from now.
pub(crate) const TIMEOUT_MAX: Duration = Duration::from_secs(100 * 365 * 86_400);

/// A shard replaces at most one fallback link per this interval, with 50 % jitter so that hosts do not synchronize: ten a second,
/// each of which costs a connect and one resumption of its session.
pub(crate) const REPLACE_EVERY: Duration = Duration::from_millis(100);

/// How often links that fell back are looked at while nothing is better.
pub(crate) const REPLACE_LOOK: Duration = Duration::from_secs(1);

// Callers.

/// How long callers are left in the kernel's backlog after accepting one failed, for want of descriptors most often:
/// the listener stays ready all that time. Also how often that is logged at most.
pub(crate) const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Callers accepted in one turn at most.
pub(crate) const ACCEPTS_PER_TURN: usize = 64;

/// A connect attempt is restarted after this time: the kernel retransmits SYNs only after 1, 2 and 4 s, which would delay the
/// reconnect. Far longer than a round trip takes anywhere.
pub(crate) const CONNECT_PATIENCE: Duration = Duration::from_millis(500);

/// Burst of authentication failures allowed per host; then one per [`CALLER_FAILURE_EVERY`].
pub(crate) const CALLER_FAILURES_FREE: u32 = 16;

/// What a checked signature costs is a few hundred microseconds at most: a host costs no more than a thousandth of a core.
pub(crate) const CALLER_FAILURE_EVERY: Duration = Duration::from_secs(1);

/// Burst of aborted handshakes allowed per host; then one per [`CALLER_BREAK_EVERY`]. Honest callers abort too, where their
/// calls cross with those from here: one for each pair of shards at most, whenever both hosts start.
pub(crate) const CALLER_BREAKS_FREE: u32 = 1024;

/// An aborted handshake costs about half of one: at this rate a host takes a few hundredths of a core.
pub(crate) const CALLER_BREAK_EVERY: Duration = Duration::from_millis(10);

/// Per host and kind of event: at most one log line per this interval, with the count since the last.
pub(crate) const CALLER_LOG_EVERY: Duration = Duration::from_secs(60);

/// Hosts that are remembered.
pub(crate) const CALLER_HOSTS_MAX: usize = 4096;

/// Names looked up at once for one shard; calls of further ones fail and are made again later.
pub(crate) const LOOKUPS_MAX: usize = 1024;

// Clients.

/// Clients that have gone and whose memory links still use, at most. Each keeps its descriptors open, and a peer that never
/// releases holds them until its lease expires.
pub(crate) const CLIENTS_LEAVING_MAX: usize = 256;

/// Direct lanes of one client: the other tasks of a host. Each is 2 MiB when all of it was used, and is looked at with every look at the
/// rings.
pub(crate) const DIRECT_LANES_MAX: usize = 64;

/// After this many turns without a client record the shard stops peeking at client rings between turns, some milliseconds;
/// peeking delays sockets.
pub(crate) const PEEK_IDLE_TURNS: u32 = 16_384;

/// Records of one client taken in one turn at most, and calls of those that have many, of which the last may have more: a busy client
/// does not starve its neighbours.
pub(crate) const CLIENT_RECORDS_PER_TURN: usize = 256;

/// Bytes that tensors of one client may have moved in one turn before the others' turn comes.
pub(crate) const CLIENT_BYTES_PER_TURN: u64 = 1 << 20;

/// Calls of one client in flight on one shard at most; more end with ResourceExhausted. A quarter of what a session holds
/// that all tasks of a host share (`fusion.queued_requests_max`).
pub(crate) const CLIENT_CALLS_MAX: usize = 1 << 14;

/// How often a full completion ring is retried: clients do not signal when they free space.
pub(crate) const CLIENT_BACKLOG_LOOK: Duration = Duration::from_millis(2);

/// Kinds of links of one engine besides TCP at most: each has its figures and latencies on every shard.
pub const LINK_KINDS_MAX: usize = 2;

/// Tasks that are told apart for one client on one shard: each costs half a KiB, and a line of what is shown.
pub(crate) const PEERS_SHOWN_MAX: usize = 1024;

/// Tensors taken out of a queue at once, under one lock of it.
pub(crate) const HANDED_AT_ONCE: usize = 64;

/// Tensors of one queue that are handed over in one turn at most.
pub(crate) const HANDED_PER_TURN: usize = 256;

/// Connections for streams that other engines have made and whose tasks have not asked for them: they do within a round trip.
pub(crate) const STREAM_CONNECTIONS_MAX: usize = 256;

/// The kernel's buffer for what a stream sends by a connection of its own, unless the settings say: the task keeps as much, in case the
/// connection breaks. On a network of 100 Gbit/s it is sent in 20 us.
pub(crate) const STREAM_SEND_BUFFER_BYTES: usize = 256 << 10;

/// How long each of them waits.
pub(crate) const STREAM_CONNECTION_WAITS: Duration = Duration::from_secs(10);

const _: () = {
    assert!(
        COPY_PIECE_BYTES <= COPY_AT_ONCE_BYTES && COPY_AT_ONCE_BYTES <= COPY_BATCH_BYTES,
        "a batch would be less than a piece"
    );
    assert!(INLINE_BYTES_MAX <= PACKED_CHUNK_BYTES, "a small tensor would have no room in a chunk");
    assert!(COPY_BATCH_BYTES <= COPY_BUDGET_BYTES, "a turn would be less than a batch of copies");
    assert!(BLOCKED_TURNS < HOT_IDLE_TURNS, "a link would no longer be read while it is tried again");
    assert!(CREDIT_MESSAGES_MAX <= QUEUE_TENSORS_MAX, "one stream could fill a queue by its credit");
    assert!(REDIAL_WAIT_MIN.as_millis() < REDIAL_WAIT_MAX.as_millis(), "waits would not grow");
    assert!(ROW_RETRIES_PER_TURN <= ROW_RETRIES_AT_ONCE, "a turn that comes anyway would try more than one for that");
    assert!(HANDED_AT_ONCE <= HANDED_PER_TURN, "a turn would hand over more than it may");
};
