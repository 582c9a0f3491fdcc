//! The memory shared by a client process and the daemon, and how a client attaches to it.
//!
//! A client attaches as one task. It gets one *arena*, from which it allocates and which the daemon reads and writes, and
//! one *segment* per shard: a *trunk*, which is a ring of [`Submission`]s and one of [`Completion`]s, and a receive *area*, from which the
//! daemon allocates. A ring has one writer and one reader, each on one thread; while both are awake there are no system calls.
//! Bounded by [`limits`] and the sizes agreed on when attaching. All of it is sealed `memfd` memory passed over a Unix
//! socket: nothing has a name, so a killed process leaves nothing behind.
//!
//! Up to 512 B travel in the ring. A larger tensor is sent in place from the arena; a received one goes to the client's
//! destination, or to the receive area. Between two clients of one daemon the shard copies it once, from arena to arena, at
//! most 1 MiB per turn and in pieces of 64 KiB (38 GB/s; 31 GB/s with one `memcpy` of 4 MiB, which bypasses the caches).
//!
//! Doorbells are rung only if the other side sleeps. A shard watches one eventfd per segment, edge-triggered, and never
//! reads it. In the other direction a byte goes over the Unix socket with MSG_DONTWAIT: an eventfd's O_NONBLOCK belongs to
//! both ends, so a client could make it blocking, fill it, and stop the shard that rings.
//!
//! Everything that the other side writes is untrusted. Records are copied into private memory before they are parsed,
//! ranges are checked before they become addresses, and all memory is sealed against changes of its size. Tensors cannot be
//! copied first: their bytes may change while they are read, so no decision may depend on them.

#[cfg(not(loom))]
pub mod attach;
#[cfg(not(loom))]
pub mod group;
pub mod limits;

#[cfg(not(loom))]
mod bell;
#[cfg(not(loom))]
mod call_list;
#[cfg(not(loom))]
mod codec;
#[cfg(not(loom))]
mod completion;
#[cfg(not(loom))]
mod descriptors;
mod direct;
#[cfg(not(loom))]
mod error;
#[cfg(not(loom))]
mod failure;
#[cfg(not(loom))]
mod fields;
#[cfg(not(loom))]
mod futex;
#[cfg(not(loom))]
mod key_list;
#[cfg(not(loom))]
mod mapping;
mod record;
mod ring;
#[cfg(not(loom))]
mod segment;
#[cfg(not(loom))]
mod submission;
#[cfg(not(loom))]
pub mod table_places;
mod text;

#[cfg(not(loom))]
pub use self::direct::{
    BytesMemory, BytesReader, BytesWriter, DirectLane, LaneBytes, LaneKeeper, LaneNews, Side, Standing, Way,
};
#[cfg(not(loom))]
pub use self::{
    bell::{ClientBell, ClientEar, Doorbell, Woken},
    call_list::{CallList, CallListBuf, SmallCall},
    codec::{AcceptedAt, PayloadAt, ReceivedAt},
    completion::{BOARD_BYTES_PER_KEY, Completion},
    error::ShmError,
    fields::{Malformed, Span, TooLong},
    key_list::KeyList,
    mapping::{OutOfRange, ReadOnlyMemory, Ring, SharedMemory},
    segment::{ClientEnd, DaemonEnd, segment_bytes},
    submission::{Moved, NO_TIMEOUT, Submission},
};
pub use self::{
    record::Record,
    ring::{Broken, PushError, Reader, RingMemory, Writer},
};
