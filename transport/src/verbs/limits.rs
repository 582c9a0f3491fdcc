//! Limits of a shard's verbs links.

use std::time::Duration;

/// Bytes of one message, and of one buffer of the shared receive queue: a full frame nearly fits, and 1,024 buffers are
/// 16 MiB.
pub const MESSAGE_BYTES: usize = 16 * 1024;

/// Messages that a peer may send before it hears of a buffer again, at least: one for what it has to say, one that only
/// credit may use, and one on its way.
pub const WINDOW_MIN: u32 = 3;

/// The same for a busy peer at most: 1 MiB of messages on their way.
pub const WINDOW_MAX: u32 = 64;

/// Work requests that a queue pair holds: messages, pieces of transfers, windows opened and closed.
pub const SEND_DEPTH: u32 = 128;

/// Work requests of all links of a shard that have not completed; with the receive queue's depth, what the completion queue
/// must hold.
pub const WORKS_MAX: u32 = 4096;

/// Message buffers for sending, of all links of a shard.
pub const SEND_BUFFERS: usize = 256;

/// A message in so many asks for a completion; those between are known to be done with it.
pub const SIGNAL_EVERY: u32 = 8;

/// Payloads on their way beside the frames, in each direction of a link.
pub const TRANSFERS_MAX: usize = 64;

/// Bytes of one write or read.
pub const PIECE_BYTES: usize = 1 << 20;

/// Bytes of writes that are posted and not complete, of one link: what a message may have to wait behind.
pub const PIECES_AHEAD_BYTES: usize = 4 << 20;

/// Windows of one link, bound or free: places that are announced and not filled.
pub const WINDOWS_MAX: usize = 256;

/// Places that a peer may announce and leave unfilled; further ones are asked for when they are needed.
pub const PLACES_MAX: usize = 4096;

/// Short parts that wait to be said. An honest peer makes a link say one for each of its transfers and of its revoked places,
/// and what a link says of its own places is bounded by its windows; past this the peer only asks and never reads.
pub const TO_SAY_MAX: usize = 4 * WINDOWS_MAX;

/// Completions taken in one turn: as much as the turn before can have caused, in most turns.
pub const COMPLETIONS_PER_TURN: usize = 256;

/// Queue pairs of links that have ended, until the device says that they hold no receive buffer; past this the oldest is
/// destroyed: as many as there are links with the default depth.
pub const DRAINING_MAX: usize = 256;

/// How long a device may take to say so. The queue pair is destroyed then, and what it gives back with that is taken.
pub const DRAIN_WITHIN: Duration = Duration::from_millis(500);

/// How often a shard that sleeps looks whether a registration that it has begun is done.
pub const REGISTERED_LOOK: Duration = Duration::from_millis(10);

/// Regions of devices' memory that a shard registers: allocations, not tensors.
pub const DIRECT_REGIONS_MAX: usize = 1024;

/// How often a shard that sleeps looks whether the last handle to such memory was dropped.
pub const DIRECT_LOOK: Duration = Duration::from_secs(1);

/// How long a shard waits for the flushed work requests of a queue pair that it has stopped. The queue pair is destroyed at
/// once if they take longer: memory that they name may be given back then.
pub const FLUSH_WITHIN: Duration = Duration::from_millis(5);

/// Verbs links to one peer that may fail in a row before it is reached by TCP for a while.
pub const FAILURES_MAX: u32 = 3;

/// How often the pause is doubled after which a link that fell back to TCP is given up for verbs again: 30 s become 32 min.
pub const DOUBLINGS_MAX: u32 = 6;

/// Peers whose failures are remembered.
pub const FAILING_PEERS_MAX: usize = 4096;

const _: () = {
    assert!(WINDOW_MIN >= 3 && WINDOW_MAX >= WINDOW_MIN);
    assert!(TO_SAY_MAX >= 3 * TRANSFERS_MAX + 3 * WINDOWS_MAX);
    assert!(TRANSFERS_MAX <= u16::MAX as usize);
    assert!(SIGNAL_EVERY < SEND_DEPTH / 2);
    assert!(PIECES_AHEAD_BYTES / PIECE_BYTES < SEND_DEPTH as usize / 2);
};
