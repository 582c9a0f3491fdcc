//! The limits of a node and its engine. Those that users can set are in [`EngineSettings`](crate::EngineSettings), those of the
//! wire and the session in `sealane_transport::limits`.

use std::time::Duration;

use sealane_transport::limits::QUEUE_TENSORS_MAX;
use sealane_transport::shm::limits::{CALLS_PER_SHARD_MAX, INLINE_BYTES_MAX};

// Turns of a node.

/// Bytes read from one link in one turn at most, so that a busy link does not starve its neighbours.
pub(crate) const RECEIVE_BUDGET_BYTES: usize = 1 << 20;

/// Reads of a link that is found broken, at most: more than its socket holds.
pub(crate) const READS_AT_THE_END_MAX: usize = 256;

/// Bytes written to one link at once at most; what is left waits for the next turn.
pub(crate) const TRANSMIT_BUDGET_BYTES: usize = 4 << 20;

/// A link that is idle for this many turns is no longer polled each turn; epoll reports when it is readable. With a thousand
/// busy links a smaller value was no faster and starved some.
pub(crate) const HOT_IDLE_TURNS: u32 = 4096;

/// Retries, one per turn, of a link whose write was short; then the shard waits for EPOLLOUT, so that a peer that does not read costs no
/// system call per turn.
pub(crate) const BLOCKED_TURNS: u32 = 64;

// Recvs of one call that wait together.

/// Calls whose recvs wait together: a tensor that comes in another order may search each of them.
pub(crate) const POSTED_CALLS_MAX: usize = 64;

/// Future recv calls whose early tensors a shard keeps together; tensors for further calls are kept one by one. Each such call has room for
/// all of its tensors from the first on.
pub(crate) const UNEXPECTED_CALLS_MAX: usize = 128;

/// Recvs of one call that wait together at most; those of a larger call wait individually.
pub(crate) const POSTED_KEYS_MAX: usize = 4096;

/// Lists of keys that are remembered, since the next step usually has the same ones.
pub(crate) const KEY_LISTS_MAX: usize = 16;

/// Bytes of the keys of one remembered list at most.
pub(crate) const KEY_LIST_BYTES_MAX: usize = 256 << 10;

// Copies within a node.

/// What a tensor that is shared instead of copied costs of the copy budgets below: about the bytes written for it.
pub(crate) const VIEW_COST_BYTES: usize = 256;

/// The least that looking at a tensor costs of the copy budgets: a plan may have tens of thousands that are missing or empty.
pub(crate) const LOOK_COST_BYTES: usize = 64;

/// Smallest tensor that a client views in another's arena. A view costs a record each way, a lease, and page faults where the mapping is
/// new: about as much as copying so many bytes, which would also be done at once.
pub(crate) const VIEW_BYTES_MIN: usize = COPY_AT_ONCE_BYTES;

/// A further view is granted only while a client has fewer than this on one shard; beyond it tensors are copied. Each view keeps a block of
/// its publisher's arena.
pub(crate) const VIEWS_MAX: usize = 4096;

/// Bytes copied at once; a larger tensor is copied in several turns.
pub(crate) const COPY_AT_ONCE_BYTES: usize = 64 << 10;

/// Bytes given to one `memcpy`: for more, the C library switches to stores that bypass the caches, which was slower (4 MiB at once 31 GB/s,
/// in pieces of 64 KiB 38 GB/s).
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

/// A process resets its sessions fewer times than this, so incarnations that differ by less are of the same process.
pub(crate) const LIVES_MAX: u64 = 1 << 20;

/// How long dials to a peer must fail before the log says that it is unreachable. If it was connected before and refuses connections,
/// calls to it fail from then on. Jobs start in no order, and a supervisor needs some time to restart a process.
pub(crate) const OUTAGE_TIME_MIN: Duration = Duration::from_millis(600);

/// Peers for which an engine remembers whether the log has reported them; further ones are not logged.
pub(crate) const OUTAGES_MAX: usize = 65_536;

// Sends and recvs.

/// Aborted steps remembered, all owners together.
pub(crate) const ENDED_STEPS_MAX: usize = 16_384;

/// Bytes of a reason that are kept: latecomers need a hint, not the whole story.
pub(crate) const ENDED_REASON_BYTES: usize = 256;

/// Forgotten steps are purged from the order when it holds this many entries more than twice the remembered ones.
pub(crate) const ENDED_ORDER_SLACK: usize = 16;

/// The gathered rows of one peer may fill one part in this many of the send slab until it has released them: a quarter. One answer may be
/// as large.
pub(crate) const GATHERED_SHARE: usize = 4;

/// Requests for rows that wake in one turn because a table they wait for was published: some 30 µs. The others wake in later turns.
pub(crate) const ROW_WAKES_PER_TURN: usize = 64;

/// Requests of peers that end in one turn because their deadlines have passed, and as many for rows: some 60 µs. The others end in later
/// turns, since peers choose the deadlines.
pub(crate) const LATE_PER_TURN: usize = 64;

/// Requests for rows of one peer that may wait for one table, so that it does not get ahead of all others when the table comes; more end
/// with ResourceExhausted. Far more than a host's tasks ask ahead.
pub(crate) const ROW_WAITS_MAX: usize = 4096;

/// Turns in a row in which those who gather a row find it being written before they give up: some ten milliseconds on a busy shard, a
/// second on an idle one.
pub(crate) const ROW_TURNS_MAX: u32 = 1000;

/// Requests for rows that lack memory, or whose next row is being written, retried in a turn that runs anyway.
pub(crate) const ROW_RETRIES_PER_TURN: usize = 4;

/// What looking up a table and reading which rows are named costs, in bytes that could be copied meanwhile.
pub(crate) const ROW_TABLE_COST_BYTES: usize = 2048;

/// Most tables for which a shard keeps counts of what it gathered.
pub(crate) const TABLES_COUNTED_MAX: usize = 1024;

/// As [`ROW_RETRIES_PER_TURN`], in a turn that comes because of [`ROW_RETRY_EVERY`].
pub(crate) const ROW_RETRIES_AT_ONCE: usize = 16;

/// When requests for rows are tried again at the latest.
pub(crate) const ROW_RETRY_EVERY: Duration = Duration::from_millis(1);

/// Bytes of keys and row numbers in one peer's waiting requests for rows, at most; more end with ResourceExhausted. Room for two thousand
/// of the longest, or for all that may be parked with 30 rows each.
pub(crate) const ROW_REQUESTS_BYTES_MAX: usize = 16 << 20;

/// Ended entries are purged from the queue of requests for rows to retry when it holds this many more than twice the requests that have not
/// ended.
pub(crate) const ROW_RETRIES_SLACK: usize = 16;

/// How long a recv waits before it requests its tensor, where tensors usually come ahead and requests are still useful: longer than a round
/// trip. An error that only a request would bring comes later by as much.
pub(crate) const REQUEST_DELAY: Duration = Duration::from_millis(1);

/// How often that time doubles at most where asking was in vain: to 64 ms, after which a request for each recv is negligible.
pub(crate) const REQUEST_DELAY_DOUBLINGS_MAX: u8 = 6;

/// How long before its deadline a tensor that was sent ahead is recalled, but at most half its time: longer than an answer takes anywhere.
/// So its sender hears at the deadline that nobody has asked for it, and not that its delivery is unknown.
pub(crate) const REVOKE_TIME: Duration = Duration::from_millis(100);

/// Most bytes on a shard of tensors, with their keys, that peers have sent ahead and no recv has taken: the credit of 64 peers. Further
/// ones go back, and wait for their requests.
pub(crate) const KEPT_AHEAD_BYTES_MAX: usize = 64 << 20;

/// A parked request is dropped this long after its deadline, in case the peer never cancels it.
pub(crate) const PARKED_GRACE: Duration = Duration::from_secs(1);

// Publications.

/// One in this many unpublished key slots is reserved for this node's own plans; peers' plans cannot take it.
pub(crate) const PLANS_KEPT_SHARE: usize = 4;

/// The last part of the room for published tensors, one in this many: of it a task gets at most half of what is free. So one task may
/// publish 1,015,808 by default, and leaves room for 16,384 of the next, 8192 of a third and so on.
pub(crate) const PUBLISHED_SHARED_PART: usize = 32;

/// Bytes of keys and metadata that one task may publish, for each tensor that all may publish together: as many as plans have for a key,
/// and as many again.
pub(crate) const PUBLISHED_NAME_BYTES: usize = 128;

/// Bytes of keys and metadata that one task may publish at least, however few tensors all may: room for 170 of the longest.
pub(crate) const PUBLISHED_NAME_BYTES_MIN: usize = 1 << 20;

/// A slot's watcher list is purged of stale entries once it has this many.
pub(crate) const WATCHERS_SLACK: usize = 16;

/// Bytes of small published tensors packed in one chunk: as many as are copied in some 10 µs, when it is emptied.
pub(crate) const PACKED_CHUNK_BYTES: usize = 64 << 10;

/// Tensors packed in one chunk; limited because some have no bytes.
pub(crate) const PACKED_CHUNK_TENSORS: usize = 4096;

/// Tensors of pulls that wake in one turn because what they wait for was published: some 30 µs. The others wake in later turns.
pub(crate) const WAKES_PER_TURN: usize = 1024;

// Queues.

/// A stream's credit in tensors at most: with less, a pusher of small ones would wait for credit.
pub(crate) const CREDIT_MESSAGES_MAX: usize = 1024;

/// A stream's credit in bytes at most: some milliseconds of a fast link.
pub(crate) const CREDIT_BYTES_MAX: usize = 16 << 20;

/// A shard's streams together have credit for one part in this many of its memory for received tensors: the rest is for streams that say
/// what they need, and for recvs.
pub(crate) const CREDIT_MEMORY_SHARE: usize = 4;

/// How often the shard checks whether there is memory for pushes of large tensors that wait for it.
pub(crate) const PROMISE_LOOK: Duration = Duration::from_millis(1);

/// If no stream with a promise has brought anything for so long, these promises no longer hold up others.
pub(crate) const PROMISE_TIME: Duration = Duration::from_secs(2);

// The engine.

/// How long [`Engine::stop`](crate::Engine::stop) gives goodbyes to leave.
pub(crate) const FAREWELL_TIME: Duration = Duration::from_millis(500);

/// A longer timeout means no limit: a hundred years, which any clock can count from now.
pub(crate) const TIMEOUT_MAX: Duration = Duration::from_secs(100 * 365 * 86_400);

/// A shard replaces at most one fallback link per this interval, with 50 % jitter so that hosts do not synchronize: ten a second,
/// each of which costs a connect and one resumption of its session.
pub(crate) const REPLACE_EVERY: Duration = Duration::from_millis(100);

/// How often links that fell back are checked while no better kind is available.
pub(crate) const REPLACE_LOOK: Duration = Duration::from_secs(1);

// Callers.

/// How long connections stay in the kernel's backlog after an accept failed, most often for want of descriptors: the listener stays ready
/// all that time. Also the shortest interval between log lines about it.
pub(crate) const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Callers accepted in one turn at most.
pub(crate) const ACCEPTS_PER_TURN: usize = 64;

/// A connect attempt is restarted after this time: the kernel retransmits SYNs only after 1, 2 and 4 s, which would delay the
/// reconnect. Far longer than a round trip takes anywhere.
pub(crate) const CONNECT_PATIENCE: Duration = Duration::from_millis(500);

/// Burst of authentication failures allowed per host; then one per [`CALLER_FAILURE_EVERY`].
pub(crate) const CALLER_FAILURES_FREE: u32 = 16;

/// Checking a signature costs a few hundred microseconds at most, so a host costs no more than a thousandth of a core.
pub(crate) const CALLER_FAILURE_EVERY: Duration = Duration::from_secs(1);

/// Burst of aborted handshakes allowed per host; then one per [`CALLER_BREAK_EVERY`]. Honest callers abort too, where their
/// calls cross with those from here: one for each pair of shards at most, whenever both hosts start.
pub(crate) const CALLER_BREAKS_FREE: u32 = 1024;

/// An aborted handshake costs about half of one: at this rate a host takes a few hundredths of a core.
pub(crate) const CALLER_BREAK_EVERY: Duration = Duration::from_millis(10);

/// Per host and kind of event: at most one log line per this interval, with the count since the last.
pub(crate) const CALLER_LOG_EVERY: Duration = Duration::from_secs(60);

/// Hosts that the limiter remembers.
pub(crate) const CALLER_HOSTS_MAX: usize = 4096;

/// Names resolved at once for one shard; calls to further ones fail and are retried later.
pub(crate) const LOOKUPS_MAX: usize = 1024;

// Clients.

/// Clients that have gone and whose memory links still use, at most. Each keeps its descriptors open, and a peer that never
/// releases holds them until its lease expires.
pub(crate) const CLIENTS_LEAVING_MAX: usize = 256;

/// Lanes of one client, one for each other task of a host. Each is 2 MiB when fully used, and is polled with the rings.
pub(crate) const LANES_MAX: usize = 64;

/// After this many turns without a client record the shard stops peeking at client rings between turns, some milliseconds;
/// peeking delays sockets.
pub(crate) const PEEK_IDLE_TURNS: u32 = 16_384;

/// Records of one client taken in one turn at most, counting each call of a record that has many (the last record may exceed this): a busy
/// client does not starve its neighbours.
pub(crate) const CLIENT_RECORDS_PER_TURN: usize = 256;

/// Outcomes of clients' calls in one turn up to which each small tensor is reported at once: two sends and their recvs. Of more, those of a
/// client share records.
pub(crate) const FEW_OUTCOMES: usize = 4;

/// Bytes that one client's tensors may move in one turn before the others are served.
pub(crate) const CLIENT_BYTES_PER_TURN: u64 = 1 << 20;

/// Calls of one client in flight on one shard at most; more end with ResourceExhausted. A quarter of what a session holds
/// that all tasks of a host share (`fusion.queued_requests_max`).
pub(crate) const CLIENT_CALLS_MAX: usize = CALLS_PER_SHARD_MAX;

/// How often a full completion ring is retried: clients do not signal when they free space.
pub(crate) const CLIENT_BACKLOG_LOOK: Duration = Duration::from_millis(2);

/// How long a client may take to make room for what a client that has gone had written to it, or to close a lane that was replaced.
pub(crate) const LANE_END_MAX: Duration = Duration::from_secs(1);

/// Most lanes of a pair of clients that were replaced and are not closed yet. Beyond that, the oldest end at once.
pub(crate) const FORMER_LANES_MAX: usize = 4;

/// Kinds of links of one engine besides TCP at most: each has its own counters and latencies on every shard.
pub const LINK_KINDS_MAX: usize = 2;

/// Tasks shown separately for one client on one shard: each costs half a KiB, and a line of output.
pub(crate) const PEERS_SHOWN_MAX: usize = 1024;

/// Tensors taken out of a queue under one lock, and handed over before the client's next queue is looked at.
pub(crate) const HANDED_AT_ONCE: usize = 64;

/// Tensors that are handed over to one client in one turn, and looks at its queues, both together; the last queue may exceed it.
pub(crate) const HANDED_PER_TURN: usize = 256;

/// Stream connections made by other engines that no task has claimed yet: tasks claim them within a round trip.
pub(crate) const STREAM_CONNECTIONS_MAX: usize = 256;

/// The kernel's send buffer of a stream with its own connection, unless set: the task keeps as much, in case the connection breaks. At 100
/// Gbit/s it is sent in 20 us.
pub(crate) const STREAM_SEND_BUFFER_BYTES: usize = 256 << 10;

/// How long an unclaimed stream connection waits.
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
    assert!(
        OUTAGE_TIME_MIN.as_millis() + REDIAL_WAIT_MAX.as_millis() <= 1000,
        "calls to a dead peer would wait for too long"
    );
    assert!(ROW_RETRIES_PER_TURN <= ROW_RETRIES_AT_ONCE, "a turn that comes anyway would try more than one for that");
    assert!(HANDED_AT_ONCE <= HANDED_PER_TURN, "a turn would hand over more than it may");
};
