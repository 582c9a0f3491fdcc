//! The limits of a node and its engine, by name. Those that users set are in [`EngineSettings`](crate::EngineSettings), and those
//! of the wire and the session in `sealane_transport::limits`.

use std::time::Duration;

use sealane_transport::limits::QUEUE_TENSORS_MAX;

// Turns of a node.

/// Bytes read from one link in one turn at most, so that a busy link does not starve its neighbours.
pub(crate) const RECEIVE_BUDGET_BYTES: usize = 1 << 20;

/// Bytes written to one link at once at most; what is left waits for the next turn.
pub(crate) const TRANSMIT_BUDGET_BYTES: usize = 4 << 20;

/// Turns without a byte after which a link is no longer read every turn, and its shard's epoll set tells when to. With a
/// thousand busy links fewer were no faster, and left some waiting for the epoll set's turn.
pub(crate) const HOT_IDLE_TURNS: u32 = 4096;

/// Turns in which a link that took less than there was is tried again, before the shard's epoll set tells when to: a peer
/// that does not read is not to cost its neighbours a system call a turn.
pub(crate) const BLOCKED_TURNS: u32 = 64;

// Copies within a node.

/// Bytes copied at once; a larger tensor is copied in several turns.
pub(crate) const COPY_AT_ONCE_BYTES: usize = 64 << 10;

/// Bytes that one `memcpy` is given: for more, the C library changes to stores that pass the caches by, which was slower
/// (4 MiB at once 31 GB/s, in pieces of 64 KiB 38 GB/s).
pub(crate) const COPY_PIECE_BYTES: usize = 64 << 10;

/// Bytes copied in one turn at most, all copies together: about 30 µs, so that small messages do not wait long.
pub(crate) const COPY_BUDGET_BYTES: usize = 1 << 20;

/// Bytes copied for one producer, or for one pull, before the next one's turn comes.
pub(crate) const COPY_HELPING_BYTES: usize = 256 << 10;

// Connections.

/// First wait before a peer is called again; doubled up to [`REDIAL_WAIT_MAX`].
pub(crate) const REDIAL_WAIT_MIN: Duration = Duration::from_millis(10);

/// Longest wait before a peer is called again: with the time that a call may take to connect, less than a second, within which a
/// cable that is back is to be found.
pub(crate) const REDIAL_WAIT_MAX: Duration = Duration::from_millis(400);

/// Sessions of one process begin anew less often than this: incarnations that differ by less are of one process.
pub(crate) const LIVES_MAX: u64 = 1 << 20;

// Sends and recvs.

/// Keys kept for reuse, so that a send allocates nothing: at most this many.
pub(crate) const SPARE_KEYS: usize = 4096;

/// Aborted steps remembered, all owners together.
pub(crate) const ENDED_STEPS_MAX: usize = 16_384;

/// Bytes of a reason that are kept: those who come late need a hint, not the whole story.
pub(crate) const ENDED_REASON_BYTES: usize = 256;

/// The order is cleared of forgotten steps when it holds this many entries more than twice those that are remembered.
pub(crate) const ENDED_ORDER_SLACK: usize = 16;

/// How much longer than its deadline a peer's request is kept: the peer ends it at its deadline and takes it back, and one that
/// does not is to cost nothing after this.
pub(crate) const PARKED_GRACE: Duration = Duration::from_secs(1);

// What is published.

/// Part of the keys named and not published that plans of peers leave to those of this node.
pub(crate) const PLANS_KEPT_SHARE: usize = 4;

/// Watchers of one slot before those are looked for that no longer wait.
pub(crate) const WATCHERS_SLACK: usize = 16;

// Queues.

/// A stream's credit in tensors at most: with fewer, a pusher of small ones would wait for its credit.
pub(crate) const CREDIT_MESSAGES_MAX: usize = 1024;

/// A stream's credit in bytes at most: some milliseconds of a fast link.
pub(crate) const CREDIT_BYTES_MAX: usize = 16 << 20;

// The engine.

/// How long [`Engine::stop`](crate::Engine::stop) gives goodbyes to leave.
pub(crate) const FAREWELL_TIME: Duration = Duration::from_millis(500);

/// A longer timeout means no limit: a hundred years, which any clock can count from now.
pub(crate) const TIMEOUT_MAX: Duration = Duration::from_secs(100 * 365 * 86_400);

/// A shard gives up one link that fell back to TCP in so long at most, give or take a half so that hosts do not do it in step:
/// ten a second, each of which costs a call and one resumption of its session.
pub(crate) const REPLACE_EVERY: Duration = Duration::from_millis(100);

/// How often links that fell back are looked at while verbs are no better.
pub(crate) const REPLACE_LOOK: Duration = Duration::from_secs(1);

// Callers.

/// How long callers are left in the kernel's backlog after accepting one failed, for want of descriptors most often:
/// the listener stays ready all that time. Also how often that is logged at most.
pub(crate) const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Callers accepted in one turn at most.
pub(crate) const ACCEPTS_PER_TURN: usize = 64;

/// A call that has no connection by then is begun anew: the kernel asks again after 1, 2 and 4 s, and a cable that is back, or a
/// peer that is up, is to be found sooner. Far longer than a round trip takes anywhere.
pub(crate) const CONNECT_PATIENCE: Duration = Duration::from_millis(500);

/// Failures to authenticate that a host has free; then one every [`CALLER_FAILURE_EVERY`].
pub(crate) const CALLER_FAILURES_FREE: u32 = 16;

/// What a checked signature costs is a few hundred microseconds at most: a host costs no more than a thousandth of a core.
pub(crate) const CALLER_FAILURE_EVERY: Duration = Duration::from_secs(1);

/// Greetings that were broken off which a host has free; then one every [`CALLER_BREAK_EVERY`]. Honest callers break off too,
/// where their calls cross with those from here: one for each pair of shards at most, whenever both hosts start.
pub(crate) const CALLER_BREAKS_FREE: u32 = 1024;

/// Who goes in the middle of a handshake has cost what the half of it does: a host costs a few hundredths of a core.
pub(crate) const CALLER_BREAK_EVERY: Duration = Duration::from_millis(10);

/// What a host does of a kind is logged once in so long, with its number.
pub(crate) const CALLER_LOG_EVERY: Duration = Duration::from_secs(60);

/// Hosts that are remembered.
pub(crate) const CALLER_HOSTS_MAX: usize = 4096;

/// Names looked up at once for one shard; calls of further ones fail and are made again later.
pub(crate) const LOOKUPS_MAX: usize = 1024;

// Clients.

/// Clients that have gone and whose memory links still use, at most. Each keeps its descriptors open, and a peer that releases
/// nothing has until the lease is over.
pub(crate) const CLIENTS_LEAVING_MAX: usize = 256;

/// Turns without a client's word after which the shard no longer peeks at their rings between turns, which would be in
/// the way of sockets: some milliseconds.
pub(crate) const PEEK_IDLE_TURNS: u32 = 16_384;

/// Records of one client taken in one turn at most, so that a busy client does not starve its neighbours.
pub(crate) const CLIENT_RECORDS_PER_TURN: usize = 256;

/// Bytes that tensors of one client may have moved in one turn before the others' turn comes.
pub(crate) const CLIENT_BYTES_PER_TURN: u64 = 1 << 20;

/// Calls of one client under way on one shard at most; more end with ResourceExhausted. A quarter of what a session holds
/// that all tasks of a host share (`fusion.queued_requests_max`).
pub(crate) const CLIENT_CALLS_MAX: usize = 1 << 14;

/// How often a client is looked after that does not read its answers: nobody rings when it has made room.
pub(crate) const CLIENT_BACKLOG_LOOK: Duration = Duration::from_millis(2);

/// Tasks that are told apart for one client on one shard: each costs half a KiB, and a line of what is shown.
pub(crate) const PEERS_SHOWN_MAX: usize = 1024;

/// Tensors taken out of a queue at once, under one lock of it.
pub(crate) const HANDED_AT_ONCE: usize = 64;

/// Tensors of one queue that are handed over in one turn at most.
pub(crate) const HANDED_PER_TURN: usize = 256;

/// Tensors that are published at once at most; of more, those that came first are seen first.
pub(crate) const PUBLISHED_TOGETHER_MAX: usize = 4096;

const _: () = {
    assert!(
        COPY_PIECE_BYTES <= COPY_AT_ONCE_BYTES && COPY_AT_ONCE_BYTES <= COPY_HELPING_BYTES,
        "a helping would be less than a piece"
    );
    assert!(COPY_HELPING_BYTES <= COPY_BUDGET_BYTES, "a turn would be less than a helping of copies");
    assert!(BLOCKED_TURNS < HOT_IDLE_TURNS, "a link would no longer be read while it is tried again");
    assert!(CREDIT_MESSAGES_MAX <= QUEUE_TENSORS_MAX, "one stream could fill a queue by its credit");
    assert!(REDIAL_WAIT_MIN.as_millis() < REDIAL_WAIT_MAX.as_millis(), "waits would not grow");
    assert!(HANDED_AT_ONCE <= HANDED_PER_TURN, "a turn would hand over more than it may");
};
