//! Limits of a shard's verbs links.

use std::time::Duration;

/// Bytes of one message, and of one buffer of the shared receive queue: a full frame nearly fits, and 1,024 buffers take 16
/// MiB.
pub const MESSAGE_BYTES: usize = 16 * 1024;

/// Least number of messages that a peer may send before buffers are returned: one for data, one reserved for credit, and
/// one in transit.
pub const WINDOW_MIN: u32 = 3;

/// Largest such number, for a busy peer: 1 MiB of messages in transit.
pub const WINDOW_MAX: u32 = 64;

/// Work requests that a queue pair holds: messages, pieces of transfers, windows opened and closed.
pub const SEND_DEPTH: u32 = 128;

/// Uncompleted work requests of all links of a shard; together with the receive queue's depth, this is what the completion
/// queue must hold.
pub const WORKS_MAX: u32 = 4096;

/// Send buffers for messages of all links of a shard.
pub const SEND_BUFFERS: usize = 256;

/// One message in this many asks for a completion, which also covers those before it.
pub const SIGNAL_EVERY: u32 = 8;

/// Payloads in transit outside the messages, in each direction of a link.
pub const TRANSFERS_MAX: usize = 64;

/// Bytes of one write or read.
pub const PIECE_BYTES: usize = 1 << 20;

/// Bytes of one link's posted and uncompleted writes: what a message may have to wait for.
pub const PIECES_AHEAD_BYTES: usize = 4 << 20;

/// Windows of one link, bound or free: places that are announced and not filled.
pub const WINDOWS_MAX: usize = 256;

/// Places that a peer may announce and leave unfilled; this side asks for further ones when it needs them.
pub const PLACES_MAX: usize = 4096;

/// Short parts that wait to be sent. An honest peer causes one for each of its transfers and revoked places, and this
/// side's windows bound those for its own places; a peer that causes more only asks and never reads.
pub const TO_SAY_MAX: usize = 4 * WINDOWS_MAX;

/// Completions taken in one turn: in most turns as many as the previous turn can have caused.
pub const COMPLETIONS_PER_TURN: usize = 256;

/// Queue pairs of closed links that wait until the device says that they hold no receive buffer; beyond this the oldest is
/// destroyed. As many as there are links with the default depth.
pub const DRAINING_MAX: usize = 256;

/// How long a device may take to say so. Then the queue pair is destroyed, and the buffers that it returns with that are
/// taken.
pub const DRAIN_WITHIN: Duration = Duration::from_millis(500);

/// How often a sleeping shard checks whether a registration that it has begun is done.
pub const REGISTERED_LOOK: Duration = Duration::from_millis(10);

/// Regions of device memory that a shard registers: allocations, not tensors.
pub const DIRECT_REGIONS_MAX: usize = 1024;

/// How often a sleeping shard checks whether the last handle to such memory was dropped.
pub const DIRECT_LOOK: Duration = Duration::from_secs(1);

/// How long a shard waits for the flushed work requests of a queue pair that it has stopped. If they take longer, the queue
/// pair is destroyed at once: the memory that they name may be returned then.
pub const FLUSH_WITHIN: Duration = Duration::from_millis(5);

/// Verbs links to one peer that may fail in a row before it is reached by TCP for a while.
pub const FAILURES_MAX: u32 = 3;

/// How often the pause doubles after which a link that fell back to TCP is replaced by verbs again: from 30 s to 32 min.
pub const DOUBLINGS_MAX: u32 = 6;

/// Number of peers whose failures are remembered.
pub const FAILING_PEERS_MAX: usize = 4096;

const _: () = {
    assert!(WINDOW_MIN >= 3 && WINDOW_MAX >= WINDOW_MIN);
    assert!(TO_SAY_MAX >= 3 * TRANSFERS_MAX + 3 * WINDOWS_MAX);
    assert!(TRANSFERS_MAX <= u16::MAX as usize);
    assert!(SIGNAL_EVERY < SEND_DEPTH / 2);
    assert!(PIECES_AHEAD_BYTES / PIECE_BYTES < SEND_DEPTH as usize / 2);
};
