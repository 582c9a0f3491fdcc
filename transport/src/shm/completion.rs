//! A shard's answers to a client, as records: see `codec.rs`.

use super::{
    call_list::CallList,
    codec::{self, AcceptedAt, Fixed, ReceivedAt, Section, records},
    fields::{Malformed, Sink, Span, TooLong},
    record::Record,
};
use crate::error::Error;

/// Bytes of a plan's board per key: the version of its tensor, 64 bits, little-endian.
pub const BOARD_BYTES_PER_KEY: usize = size_of::<i64>();

records! {
    /// One answer of a shard. Each call ends with `Sent`, `Arrived`, `Received`, `Published`, `Pulled` or `Failed`. After
    /// `Published`, and after `Failed` with `memory_back` false, its memory comes back by `Returned`. A push of bytes in the
    /// arena ends like a publication.
    ///
    /// Before `Pulled`, records report what changed: `Board`, `Placed` and `Viewed` (locations), `Reshaped`, `Missed`. Versions
    /// are on the board. The client may read the plan's tensors and versions between pulls.
    pub enum Completion<'a> as "completion" {
        /// Sends whose consumers have their tensors; at most [`NUMBERS_PER_RECORD`](super::limits::NUMBERS_PER_RECORD).
        Sent = 1 { ; calls: &'a [u32] = CALLS },
        /// A small tensor without a destination arrived, with few others in its turn: cheaper than a list of one.
        ArrivedAlone = 18 {
            call: u32;
            /// At most [`INLINE_BYTES_MAX`](super::limits::INLINE_BYTES_MAX).
            bytes: &'a [u8] = INLINE,
            meta: &'a [u8] = META,
        },
        /// Small tensors without a destination arrived.
        Arrived = 17 { ; calls: CallList<'a> = KNOWN },
        Received = 2 { call: u32; payload: ReceivedAt = INLINE, meta: &'a [u8] = META },
        /// A call ended without its tensor.
        Failed = 3 {
            call: u32,
            /// False if the shard may still read the payload or write the destination.
            memory_back: bool;
            /// The error, as an embedded engine would report it; its reason is cut to [`REASON_BYTES_MAX`](crate::limits::REASON_BYTES_MAX).
            error: Error = REASON,
        },
        /// The client gets back the memory of failed calls and of publications; at most [`NUMBERS_PER_RECORD`](super::limits::NUMBERS_PER_RECORD).
        Returned = 4 { ; calls: &'a [u32] = CALLS },
        /// Tensors in the arena are in the shard's store, where peers can read them, or were pushed; at most
        /// [`NUMBERS_PER_RECORD`](super::limits::NUMBERS_PER_RECORD).
        Published = 5 { ; calls: &'a [u32] = CALLS },
        /// Where the versions of a plan's tensors are: in the receive area, [`BOARD_BYTES_PER_KEY`] each.
        Board = 6 { plan: u32, span: Span, token: u64 },
        /// A tensor of a plan has a new location: in the receive area, until the client returns the token.
        Placed = 7 { plan: u32, index: u32, span: Span, token: u64; meta: &'a [u8] = META },
        /// A tensor of a plan is in the arena of its publisher, which does not touch it until the token is returned: only for a
        /// pull that asks for views. The client asks the daemon for the arena by its number.
        Viewed = 15 {
            plan: u32,
            index: u32,
            /// The publisher's arena.
            arena: u64,
            /// Where in that arena.
            span: Span,
            token: u64;
            meta: &'a [u8] = META,
        },
        /// Belongs to no call: the client that owned an arena is gone, and nothing in the arena will be viewed any more.
        ArenaGone = 16 { arena: u64 },
        /// A tensor of a plan kept its location and has new metadata.
        Reshaped = 8 { plan: u32, index: u32; meta: &'a [u8] = META },
        /// A tensor of a plan did not come with the pull that ends next.
        Missed = 9 { plan: u32, index: u32; error: Error = REASON },
        /// A tensor was pushed into one of the client's queues, which has credit for it.
        Accepted = 11 {
            queue: u32;
            payload: AcceptedAt<'a> = INLINE,
            meta: &'a [u8] = META,
            from: &'a str = NAME,
        },
        /// A queue could not be opened; its number stays in use until it is closed.
        Unopened = 12 { queue: u32; error: Error = REASON },
        /// A queue is closed, as the client asked: no more tensors of it follow. Those not handed over go to the client's next
        /// queue with that name.
        QueueClosed = 14 { queue: u32 },
        /// Every tensor of a pull has come or was missed.
        Pulled = 10 { call: u32 },
        /// Belongs to no call: the daemon is about to stop. It finishes what is in flight; new calls must go to the next daemon.
        Draining = 13,
    }
}

#[cfg(test)]
mod tests;
