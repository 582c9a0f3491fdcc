//! A client's requests to a shard, as records: see `codec.rs`.

use zerocopy::{FromBytes, Immutable, IntoBytes};

use super::{
    call_list::CallList,
    codec::{self, Fixed, PayloadAt, Section, records},
    fields::{Malformed, Sink, Span, TooLong},
    key_list::KeyList,
    record::Record,
};
use crate::named_rows::NamedRows;

/// The `timeout_ms` of a call without a time limit.
pub const NO_TIMEOUT: u32 = u32::MAX;

/// A number of tensors, and their bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable)]
#[repr(C)]
pub struct Moved {
    pub tensors: u64,
    pub bytes: u64,
}

records! {
    /// One request of a client. Each call has a number that the client chooses and may reuse once the call has ended.
    pub enum Submission<'a> as "submission" {
        /// Names a peer before its first use. Numbers count up from 0 in each segment.
        Peer = 1 {
            /// Its number from now on.
            number: u16;
            name: &'a str = NAME,
        },
        Send = 2 {
            call: u32,
            /// The consumer's number.
            peer: u16,
            step: i64,
            /// How long it may take until the consumer has the tensor; [`NO_TIMEOUT`] for no limit.
            timeout_ms: u32;
            payload: PayloadAt<'a> = INLINE,
            meta: &'a [u8] = META,
            key: &'a str = KEY,
        },
        Recv = 3 {
            call: u32,
            /// The producer's number.
            peer: u16,
            step: i64,
            /// How long it may take; [`NO_TIMEOUT`] for no limit.
            timeout_ms: u32,
            /// One of many requested together: it does not count against the window.
            fused: bool,
            /// It fails if the producer has left.
            fail_if_gone: bool;
            /// Where in the arena to put the payload, instead of the receive area, and the metadata of the only tensors that it takes: empty
            /// for any that fit.
            destination: Option<(Span, &'a [u8])> = META,
            key: &'a str = KEY,
        },
        /// Sends many small tensors of a step to one peer, each as a [`Send`](Self::Send).
        SendMany = 25 {
            /// The consumer's number.
            peer: u16,
            step: i64,
            /// How long each may take; [`NO_TIMEOUT`] for no limit.
            timeout_ms: u32;
            calls: CallList<'a> = CALLS,
        },
        /// Asks one peer for many tensors of a step, each as a fused [`Recv`](Self::Recv) without a destination.
        RecvMany = 26 {
            /// The producer's number.
            peer: u16,
            step: i64,
            /// How long each may take; [`NO_TIMEOUT`] for no limit.
            timeout_ms: u32,
            /// They fail if the producer has left.
            fail_if_gone: bool;
            /// The calls, by key.
            calls: CallList<'a> = ASKED,
        },
        /// Puts a tensor into the store from which the shard serves its peers.
        Publish = 9 {
            call: u32,
            version: i64,
            /// More tensors follow that must become visible together with this one.
            more: bool;
            payload: PayloadAt<'a> = INLINE,
            meta: &'a [u8] = META,
            key: &'a str = KEY,
        },
        /// Ends a set of tensors that become visible together, if its last tensor was not submitted after all. Does nothing if no
        /// set is open.
        Commit = 23,
        /// Removes a tensor from the store.
        Withdraw = 10 { ; key: &'a str = KEY },
        /// Opens a plan; its keys follow. A plan has a number that the client chooses and may reuse once the plan is closed.
        OpenPlan = 11 {
            plan: u32,
            /// The producer's number.
            peer: u16,
            /// How many keys it has.
            keys: u32,
        },
        /// The next keys of a plan.
        PlanKeys = 12 { plan: u32; keys: KeyList<'a> = KEYS },
        /// Lends a place in the arena to a plan not pulled yet, for one of its tensors, instead of the receive area. The call ends
        /// like a publication: its memory comes back when the plan no longer writes to it.
        PlanPlace = 20 {
            call: u32,
            plan: u32,
            index: u32,
            /// The place. A tensor too large for it arrives in the receive area.
            span: Span,
        },
        /// Pulls the tensors of a plan whose keys were all submitted. Only one pull of a plan at a time.
        Pull = 13 {
            call: u32,
            plan: u32,
            /// The oldest version that will do.
            min_version: i64,
            /// How long it may take; [`NO_TIMEOUT`] for no limit.
            timeout_ms: u32,
            /// Large tensors in the arenas of other clients may be viewed in place: see
            /// [`Completion::Viewed`](super::Completion::Viewed).
            views: bool,
            /// It fails for tensors that are not published if their task has left.
            fail_if_gone: bool,
        },
        /// Requests rows of tables of one producer; they come as one tensor into the receive area, and do not count against the
        /// window.
        Rows = 22 {
            call: u32,
            /// The producer's number.
            peer: u16,
            /// The oldest version of each table that will do.
            min_version: i64,
            /// How long it may take; [`NO_TIMEOUT`] for no limit.
            timeout_ms: u32,
            /// Asks where the tables lie instead of for rows; no row is named then: see [`table_places`](super::table_places). Only
            /// for tables of a client of the same daemon, else it fails with Unimplemented.
            views: bool,
            /// It fails for tables of a task that has left.
            fail_if_gone: bool;
            rows: NamedRows<'a> = ROWS,
        },
        /// Closes a plan. The client keeps the memory of the plan that it was told of until it frees it.
        ClosePlan = 14 { plan: u32 },
        /// Pushes a tensor into a queue of a peer; it ends when the queue has taken it.
        Push = 15 {
            call: u32,
            /// The accepting task's number.
            peer: u16,
            /// How long it may take; [`NO_TIMEOUT`] for no limit.
            timeout_ms: u32;
            payload: PayloadAt<'a> = INLINE,
            meta: &'a [u8] = META,
            queue: &'a str = KEY,
        },
        /// Opens a queue from which the client's task accepts pushes. A queue has a number that the client chooses and may reuse
        /// once the queue is closed.
        OpenQueue = 16 {
            queue: u32,
            /// How many tensors may wait in the shard.
            tensors_max: u32,
            /// How many bytes of tensors may wait in the shard.
            bytes_max: u64;
            /// The name that pushers use for it.
            name: &'a str = QUEUE,
        },
        /// Grants the shard credit to hand over more from a queue. The last tensor may exceed the remaining bytes; the next ones
        /// wait until the excess is covered.
        Grant = 17 { queue: u32, tensors: u32, bytes: u64 },
        /// Closes a queue. Tensors waiting in it are freed, and pushers wait.
        CloseQueue = 18 { queue: u32 },
        /// Cancels a call; it ends with a failure, unless it was already ending.
        Cancel = 4 { call: u32 },
        /// Ends every call of a step, here and at the peers.
        Abort = 5 {
            step: i64;
            /// Why; cut to [`REASON_BYTES_MAX`](crate::limits::REASON_BYTES_MAX).
            reason: &'a str = REASON,
        },
        /// Frees what is left of a step.
        Cleanup = 6 { step: i64 },
        /// Returns blocks of the receive area; at most [`NUMBERS_PER_RECORD`](super::limits::NUMBERS_PER_RECORD).
        Free = 7 {
            ;
            /// The tokens that came with the tensors.
            tokens: &'a [u64] = TOKENS,
        },
        /// Reports tensors sent to or received from a peer by another transport since the last report. They are shown beside those
        /// that went by this one.
        Elsewhere = 19 {
            /// The peer; `None` for all peers that are not told apart.
            peer: Option<u16>,
            sent: Moved,
            received: Moved,
        },
        /// Reports tensors sent to or received from a peer by their lane since the last report. They are counted as if the
        /// shard had carried them.
        Direct = 24 { peer: u16, sent: Moved, received: Moved },
        /// Reports that what the client had published with the previous daemon is published here again; each tensor had a
        /// publication of its own. For display only.
        PublishedAgain = 21 {
            published: Moved,
            /// How many of their bytes had to be copied into the arena.
            copied_bytes: u64,
            /// Tensors not published again, because the arena had no room or they were refused.
            left: Moved,
        },
        /// The client detaches; nothing follows.
        Detach = 8,
    }
}

impl Submission<'_> {
    /// The call that it starts, if it starts exactly one.
    pub fn starts(&self) -> Option<u32> {
        match *self {
            Submission::Send { call, .. }
            | Submission::Recv { call, .. }
            | Submission::Publish { call, .. }
            | Submission::Pull { call, .. }
            | Submission::PlanPlace { call, .. }
            | Submission::Rows { call, .. }
            | Submission::Push { call, .. } => Some(call),
            _ => None,
        }
    }

    /// How many calls it starts besides the first.
    #[inline]
    pub fn more_calls(&self) -> usize {
        match self {
            Submission::SendMany { calls, .. } | Submission::RecvMany { calls, .. } => calls.len().saturating_sub(1),
            _ => 0,
        }
    }

    /// The submission with another timeout, if it has one.
    pub fn within(mut self, left_ms: u32) -> Self {
        if let Submission::Send { timeout_ms, .. }
        | Submission::Recv { timeout_ms, .. }
        | Submission::Pull { timeout_ms, .. }
        | Submission::Rows { timeout_ms, .. }
        | Submission::Push { timeout_ms, .. } = &mut self
        {
            *timeout_ms = left_ms;
        }
        self
    }
}

#[cfg(test)]
mod tests;
