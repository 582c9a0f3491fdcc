//! A client's requests to a shard, and their encoding in a record. No I/O; bounded by the record.

use zerocopy::{FromBytes, Immutable, IntoBytes};

use super::{
    call_list::{CallList, ListFixed},
    fields::{Malformed, Number, Sections, Span, TooLong, Unused, at_most, cut, fixed_parts},
    key_list::KeyList,
    limits::{INLINE_BYTES_MAX, KEY_LIST_BYTES_MAX, NUMBERS_PER_RECORD},
    record::Record,
};
use crate::limits::{KEY_BYTES_MAX, META_BYTES_MAX, NAME_BYTES_MAX, NAMED_ROWS_BYTES_MAX, REASON_BYTES_MAX};
use crate::named_rows::NamedRows;

/// The `timeout_ms` of a call without a time limit.
pub const NO_TIMEOUT: u32 = u32::MAX;

/// Where the payload of a tensor to send is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PayloadAt<'a> {
    /// In the record itself; at most [`INLINE_BYTES_MAX`].
    Inline(&'a [u8]),
    /// In the arena; the client must not touch it until the call ends.
    Arena(Span),
}

/// One request of a client. Each call has a number that the client chooses and may reuse once the call has ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Submission<'a> {
    /// Names a peer before its first use. Numbers count up from 0 in each segment.
    Peer {
        /// Its number from now on.
        number: u16,
        name: &'a str,
    },
    Send {
        call: u32,
        /// The consumer's number.
        peer: u16,
        step: i64,
        /// How long it may take until the consumer has the tensor; [`NO_TIMEOUT`] for no limit.
        timeout_ms: u32,
        key: &'a str,
        meta: &'a [u8],
        payload: PayloadAt<'a>,
    },
    Recv {
        call: u32,
        /// The producer's number.
        peer: u16,
        step: i64,
        /// How long it may take; [`NO_TIMEOUT`] for no limit.
        timeout_ms: u32,
        key: &'a str,
        /// Where in the arena to put the payload, instead of the receive area, and the metadata of the only tensors that it takes: empty
        /// for any that fit.
        destination: Option<(Span, &'a [u8])>,
        /// One of many requested together: it does not count against the window.
        fused: bool,
        /// It fails if the producer has left.
        fail_if_gone: bool,
    },
    /// Sends many small tensors of a step to one peer, each as a [`Send`](Self::Send).
    SendMany {
        /// The consumer's number.
        peer: u16,
        step: i64,
        /// How long each may take; [`NO_TIMEOUT`] for no limit.
        timeout_ms: u32,
        calls: CallList<'a>,
    },
    /// Asks one peer for many tensors of a step, each as a fused [`Recv`](Self::Recv) without a destination.
    RecvMany {
        /// The producer's number.
        peer: u16,
        step: i64,
        /// How long each may take; [`NO_TIMEOUT`] for no limit.
        timeout_ms: u32,
        /// The calls, by key.
        calls: CallList<'a>,
        /// They fail if the producer has left.
        fail_if_gone: bool,
    },
    /// Puts a tensor into the store from which the shard serves its peers.
    Publish {
        call: u32,
        version: i64,
        key: &'a str,
        meta: &'a [u8],
        payload: PayloadAt<'a>,
        /// More tensors follow that must become visible together with this one.
        more: bool,
    },
    /// Ends a set of tensors that become visible together, if its last tensor was not submitted after all. Does nothing if no
    /// set is open.
    Commit,
    /// Removes a tensor from the store.
    Withdraw { key: &'a str },
    /// Opens a plan; its keys follow. A plan has a number that the client chooses and may reuse once the plan is closed.
    OpenPlan {
        plan: u32,
        /// The producer's number.
        peer: u16,
        /// How many keys it has.
        keys: u32,
    },
    /// The next keys of a plan.
    PlanKeys { plan: u32, keys: KeyList<'a> },
    /// Lends a place in the arena to a plan not pulled yet, for one of its tensors, instead of the receive area. The call ends
    /// like a publication: its memory comes back when the plan no longer writes to it.
    PlanPlace {
        call: u32,
        plan: u32,
        index: u32,
        /// The place. A tensor too large for it arrives in the receive area.
        span: Span,
    },
    /// Pulls the tensors of a plan whose keys were all submitted. Only one pull of a plan at a time.
    Pull {
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
    Rows {
        call: u32,
        /// The producer's number.
        peer: u16,
        /// The oldest version of each table that will do.
        min_version: i64,
        /// How long it may take; [`NO_TIMEOUT`] for no limit.
        timeout_ms: u32,
        rows: NamedRows<'a>,
        /// Asks where the tables lie instead of for rows; no row is named then: see [`table_places`](super::table_places). Only
        /// for tables of a client of the same daemon, else it fails with Unimplemented.
        views: bool,
        /// It fails for tables of a task that has left.
        fail_if_gone: bool,
    },
    /// Closes a plan. The client keeps the memory of the plan that it was told of until it frees it.
    ClosePlan { plan: u32 },
    /// Pushes a tensor into a queue of a peer; it ends when the queue has taken it.
    Push {
        call: u32,
        /// The accepting task's number.
        peer: u16,
        /// How long it may take; [`NO_TIMEOUT`] for no limit.
        timeout_ms: u32,
        queue: &'a str,
        meta: &'a [u8],
        payload: PayloadAt<'a>,
    },
    /// Opens a queue from which the client's task accepts pushes. A queue has a number that the client chooses and may reuse
    /// once the queue is closed.
    OpenQueue {
        queue: u32,
        /// How many tensors may wait in the shard.
        tensors_max: u32,
        /// How many bytes of tensors may wait in the shard.
        bytes_max: u64,
        /// The name that pushers use for it.
        name: &'a str,
    },
    /// Grants the shard credit to hand over more from a queue. The last tensor may exceed the remaining bytes; the next ones
    /// wait until the excess is covered.
    Grant { queue: u32, tensors: u32, bytes: u64 },
    /// Closes a queue. Tensors waiting in it are freed, and pushers wait.
    CloseQueue { queue: u32 },
    /// Cancels a call; it ends with a failure, unless it was already ending.
    Cancel { call: u32 },
    /// Ends every call of a step, here and at the peers.
    Abort {
        step: i64,
        /// Why; cut to [`REASON_BYTES_MAX`].
        reason: &'a str,
    },
    /// Frees what is left of a step.
    Cleanup { step: i64 },
    /// Returns blocks of the receive area; at most [`NUMBERS_PER_RECORD`].
    Free {
        /// The tokens that came with the tensors.
        tokens: &'a [u64],
    },
    /// Reports tensors sent to or received from a peer by another transport since the last report. They are shown beside those
    /// that went by this one.
    Elsewhere {
        /// The peer; `None` for all peers that are not told apart.
        peer: Option<u16>,
        sent: Moved,
        received: Moved,
    },
    /// Reports tensors sent to or received from a peer by their direct lane since the last report. They are counted as if the
    /// shard had carried them.
    Direct { peer: u16, sent: Moved, received: Moved },
    /// Reports that what the client had published with the previous daemon is published here again; each tensor had a
    /// publication of its own. For display only.
    PublishedAgain {
        published: Moved,
        /// How many of their bytes had to be copied into the arena.
        copied_bytes: u64,
        /// Tensors not published again, because the arena had no room or they were refused.
        left: Moved,
    },
    /// The client detaches; nothing follows.
    Detach,
}

/// A number of tensors, and their bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable)]
#[repr(C)]
pub struct Moved {
    pub tensors: u64,
    pub bytes: u64,
}

/// Kinds of records in a submission ring.
mod kind {
    pub(super) const PEER: u8 = 1;
    pub(super) const SEND: u8 = 2;
    pub(super) const RECV: u8 = 3;
    pub(super) const CANCEL: u8 = 4;
    pub(super) const ABORT: u8 = 5;
    pub(super) const CLEANUP: u8 = 6;
    pub(super) const FREE: u8 = 7;
    pub(super) const DETACH: u8 = 8;
    pub(super) const PUBLISH: u8 = 9;
    pub(super) const WITHDRAW: u8 = 10;
    pub(super) const OPEN_PLAN: u8 = 11;
    pub(super) const PLAN_KEYS: u8 = 12;
    pub(super) const PULL: u8 = 13;
    pub(super) const CLOSE_PLAN: u8 = 14;
    pub(super) const PUSH: u8 = 15;
    pub(super) const OPEN_QUEUE: u8 = 16;
    pub(super) const GRANT: u8 = 17;
    pub(super) const CLOSE_QUEUE: u8 = 18;
    pub(super) const ELSEWHERE: u8 = 19;
    pub(super) const PLAN_PLACE: u8 = 20;
    pub(super) const PUBLISHED_AGAIN: u8 = 21;
    pub(super) const ROWS: u8 = 22;
    pub(super) const COMMIT: u8 = 23;
    pub(super) const DIRECT: u8 = 24;
    pub(super) const SEND_MANY: u8 = 25;
    pub(super) const RECV_MANY: u8 = 26;

    /// The flags allowed in records of a kind.
    #[inline]
    pub(super) fn flags(kind: u8) -> u8 {
        match kind {
            SEND | PUSH => super::FLAG_ARENA,
            RECV => super::FLAG_ARENA | super::FLAG_FUSED | super::FLAG_FAILS_IF_GONE,
            RECV_MANY => super::FLAG_FAILS_IF_GONE,
            PUBLISH => super::FLAG_ARENA | super::FLAG_MORE,
            ELSEWHERE => super::FLAG_OTHERS,
            PULL => super::FLAG_VIEWS | super::FLAG_FAILS_IF_GONE,
            ROWS => super::FLAG_VIEWS | super::FLAG_FAILS_IF_GONE,
            _ => 0,
        }
    }
}

/// In a send, push or publication: the payload is in the arena. In a recv: it has a destination.
const FLAG_ARENA: u8 = 1;
/// In a recv: it is one of many.
const FLAG_FUSED: u8 = 2;
/// In a publication: more follow.
const FLAG_MORE: u8 = 2;
/// In a pull or a request for rows: tensors may be viewed in the arenas of other clients.
const FLAG_VIEWS: u8 = 1;
/// In recvs, a pull or a request for rows: it fails if the task has left.
const FLAG_FAILS_IF_GONE: u8 = 4;
/// In `Elsewhere`: for peers that are not told apart.
const FLAG_OTHERS: u8 = 1;

fixed_parts! {
    /// In a send, push, publication or recv; `number` is the step or version, and 0 in a push.
    struct CallFixed {
        number: i64, call: u32, timeout_ms: u32, peer: u16, key_bytes: u16, meta_bytes: u16, inline_bytes: u16,
    }
    /// `CallFixed` with a place in the arena.
    struct ArenaCallFixed { fixed: CallFixed, span: Span }
    struct ManyFixed { step: i64, timeout_ms: u32, peer: u16, unused: Unused<2>, list: ListFixed }
    struct PeerFixed { number: u16, name_bytes: u16, unused: Unused<4> }
    struct AbortFixed { step: i64, reason_bytes: u16, unused: Unused<6> }
    struct WithdrawFixed { key_bytes: u16, unused: Unused<6> }
    struct OpenPlanFixed { plan: u32, keys: u32, peer: u16, unused: Unused<6> }
    struct PlanKeysFixed { plan: u32, bytes: u32 }
    struct PlanPlaceFixed { call: u32, plan: u32, index: Number, span: Span }
    struct PullFixed { min_version: i64, call: u32, timeout_ms: u32, plan: Number }
    struct RowsFixed {
        min_version: i64, call: u32, timeout_ms: u32, peer: u16, rows_bytes: u16, unused: Unused<4>,
    }
    struct OpenQueueFixed { queue: u32, tensors_max: u32, bytes_max: u64, name_bytes: u16, unused: Unused<6> }
    struct GrantFixed { queue: u32, tensors: u32, bytes: u64 }
    struct ElsewhereFixed { peer: u16, unused: Unused<6>, sent: Moved, received: Moved }
    struct PublishedAgainFixed { published: Moved, copied_bytes: u64, left: Moved }
}

impl<'a> Submission<'a> {
    /// Writes the submission into a record.
    ///
    /// A tensor of 64 bytes with metadata of 16 and a key of up to 16 bytes needs one slot, and so does a recv with a key
    /// of up to 96 bytes (80 with a destination).
    ///
    /// # Errors
    /// [`TooLong`] for a field over its limit.
    #[inline]
    pub fn encode(&self, into: &mut Record) -> Result<(), TooLong> {
        match *self {
            Submission::Send { call, peer, step, timeout_ms, key, meta, payload } => {
                let fixed = CallFixed { timeout_ms, peer, ..CallFixed::new(step, call) };
                fill_tensor(into, kind::SEND, 0, fixed, key, meta, payload)?;
            }
            Submission::Publish { call, version, key, meta, payload, more } => {
                let flags = if more { FLAG_MORE } else { 0 };
                fill_tensor(into, kind::PUBLISH, flags, CallFixed::new(version, call), key, meta, payload)?;
            }
            Submission::Recv { call, peer, step, timeout_ms, key, destination, fused, fail_if_gone } => {
                let key_bytes = at_most("key", key.len(), KEY_BYTES_MAX)?;
                let fixed = CallFixed { timeout_ms, peer, key_bytes, ..CallFixed::new(step, call) };
                let flags = flag(FLAG_FUSED, fused) | flag(FLAG_FAILS_IF_GONE, fail_if_gone);
                match destination {
                    None => into.fill(kind::RECV, flags, fixed, &[key.as_bytes()]),
                    Some((span, meta)) => {
                        let meta_bytes = at_most("metadata", meta.len(), META_BYTES_MAX)?;
                        let fixed = ArenaCallFixed { fixed: CallFixed { meta_bytes, ..fixed }, span };
                        into.fill(kind::RECV, flags | FLAG_ARENA, fixed, &[meta, key.as_bytes()]);
                    }
                }
            }
            Submission::SendMany { peer, step, timeout_ms, calls } => {
                into.fill(kind::SEND_MANY, 0, ManyFixed::new(peer, step, timeout_ms, calls), &calls.sections());
            }
            Submission::RecvMany { peer, step, timeout_ms, calls, fail_if_gone } => {
                let fixed = ManyFixed::new(peer, step, timeout_ms, calls);
                into.fill(kind::RECV_MANY, flag(FLAG_FAILS_IF_GONE, fail_if_gone), fixed, &calls.sections());
            }
            Submission::Free { tokens } => {
                at_most("tokens", tokens.len(), NUMBERS_PER_RECORD)?;
                into.fill(kind::FREE, 0, tokens.len() as u64, &[tokens.as_bytes()]);
            }
            Submission::Peer { number, name } => {
                let name_bytes = at_most("name", name.len(), NAME_BYTES_MAX)?;
                into.fill(kind::PEER, 0, PeerFixed { number, name_bytes, unused: [0; _] }, &[name.as_bytes()]);
            }
            Submission::Cancel { call } => into.fill(kind::CANCEL, 0, Number::new(call), &[]),
            Submission::Abort { step, reason } => {
                let reason = cut(reason, REASON_BYTES_MAX);
                let reason_bytes = at_most("reason", reason.len(), REASON_BYTES_MAX)?;
                let fixed = AbortFixed { step, reason_bytes, unused: [0; _] };
                into.fill(kind::ABORT, 0, fixed, &[reason.as_bytes()]);
            }
            Submission::Cleanup { step } => into.fill(kind::CLEANUP, 0, step, &[]),
            Submission::Detach => into.fill(kind::DETACH, 0, (), &[]),
            Submission::Commit => into.fill(kind::COMMIT, 0, (), &[]),
            Submission::Withdraw { key } => {
                let key_bytes = at_most("key", key.len(), KEY_BYTES_MAX)?;
                into.fill(kind::WITHDRAW, 0, WithdrawFixed { key_bytes, unused: [0; _] }, &[key.as_bytes()]);
            }
            Submission::OpenPlan { plan, peer, keys } => {
                into.fill(kind::OPEN_PLAN, 0, OpenPlanFixed { plan, keys, peer, unused: [0; _] }, &[]);
            }
            Submission::PlanKeys { plan, keys } => {
                let keys = keys.as_bytes();
                let bytes = at_most("keys", keys.len(), KEY_LIST_BYTES_MAX)?.into();
                into.fill(kind::PLAN_KEYS, 0, PlanKeysFixed { plan, bytes }, &[keys]);
            }
            Submission::PlanPlace { call, plan, index, span } => {
                let fixed = PlanPlaceFixed { call, plan, index: Number::new(index), span };
                into.fill(kind::PLAN_PLACE, 0, fixed, &[]);
            }
            Submission::Pull { call, plan, min_version, timeout_ms, views, fail_if_gone } => {
                let fixed = PullFixed { min_version, call, timeout_ms, plan: Number::new(plan) };
                let flags = flag(FLAG_VIEWS, views) | flag(FLAG_FAILS_IF_GONE, fail_if_gone);
                into.fill(kind::PULL, flags, fixed, &[]);
            }
            Submission::Rows { call, peer, min_version, timeout_ms, rows, views, fail_if_gone } => {
                let rows_bytes = at_most("names of rows", rows.as_bytes().len(), NAMED_ROWS_BYTES_MAX)?;
                let fixed = RowsFixed { min_version, call, timeout_ms, peer, rows_bytes, unused: [0; _] };
                let flags = flag(FLAG_VIEWS, views) | flag(FLAG_FAILS_IF_GONE, fail_if_gone);
                into.fill(kind::ROWS, flags, fixed, &[rows.as_bytes()]);
            }
            Submission::ClosePlan { plan } => into.fill(kind::CLOSE_PLAN, 0, Number::new(plan), &[]),
            Submission::Push { call, peer, timeout_ms, queue, meta, payload } => {
                let fixed = CallFixed { timeout_ms, peer, ..CallFixed::new(0, call) };
                fill_tensor(into, kind::PUSH, 0, fixed, queue, meta, payload)?;
            }
            Submission::OpenQueue { queue, tensors_max, bytes_max, name } => {
                let name_bytes = at_most("name", name.len(), KEY_BYTES_MAX)?;
                let fixed = OpenQueueFixed { queue, tensors_max, bytes_max, name_bytes, unused: [0; _] };
                into.fill(kind::OPEN_QUEUE, 0, fixed, &[name.as_bytes()]);
            }
            Submission::Grant { queue, tensors, bytes } => {
                into.fill(kind::GRANT, 0, GrantFixed { queue, tensors, bytes }, &[]);
            }
            Submission::CloseQueue { queue } => into.fill(kind::CLOSE_QUEUE, 0, Number::new(queue), &[]),
            Submission::Direct { peer, sent, received } => {
                into.fill(kind::DIRECT, 0, ElsewhereFixed { peer, unused: [0; _], sent, received }, &[]);
            }
            Submission::Elsewhere { peer, sent, received } => {
                let flags = if peer.is_none() { FLAG_OTHERS } else { 0 };
                let fixed = ElsewhereFixed { peer: peer.unwrap_or_default(), unused: [0; _], sent, received };
                into.fill(kind::ELSEWHERE, flags, fixed, &[]);
            }
            Submission::PublishedAgain { published, copied_bytes, left } => {
                let fixed = PublishedAgainFixed { published, copied_bytes, left };
                into.fill(kind::PUBLISHED_AGAIN, 0, fixed, &[]);
            }
        }
        Ok(())
    }

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

    /// Reads a submission out of a record, which may hold anything.
    ///
    /// # Errors
    /// [`Malformed`] if it is not a submission: an unknown kind or flag, a field over its limit, lengths that do not add up,
    /// text that is not UTF-8. The caller must check calls, peers, spans and tokens itself.
    #[inline]
    pub fn decode(record: &'a Record) -> Result<Self, Malformed> {
        let flags = record.flags;
        if flags & !kind::flags(record.kind) != 0 {
            return Err(Malformed { what: "an unknown flag" });
        }
        let (submission, sections) = match record.kind {
            // The most frequent kinds are built directly in the return place.
            kind::SEND => {
                let (fixed, key, meta, payload, sections) = tensor(record)?;
                let CallFixed { number: step, call, timeout_ms, peer, .. } = fixed;
                sections.end()?;
                return Ok(Submission::Send { call, peer, step, timeout_ms, key, meta, payload });
            }
            kind::PUBLISH => {
                let (fixed, key, meta, payload, sections) = tensor(record)?;
                let (CallFixed { number: version, call, .. }, more) = (fixed, flags & FLAG_MORE != 0);
                (Submission::Publish { call, version, key, meta, payload, more }, sections)
            }
            kind::RECV => {
                let (fixed, mut sections) = record.parts()?;
                let CallFixed { number: step, call, timeout_ms, peer, key_bytes, meta_bytes, .. } = fixed;
                let destination = match flags & FLAG_ARENA {
                    0 => None,
                    _ => Some((sections.fixed()?, sections.bytes("metadata", meta_bytes, META_BYTES_MAX)?)),
                };
                let (key, fused) = (sections.text("key", key_bytes, KEY_BYTES_MAX)?, flags & FLAG_FUSED != 0);
                sections.end()?;
                let fail_if_gone = flags & FLAG_FAILS_IF_GONE != 0;
                return Ok(Submission::Recv { call, peer, step, timeout_ms, key, destination, fused, fail_if_gone });
            }
            kind::SEND_MANY => {
                let (ManyFixed { peer, step, timeout_ms, list, .. }, mut sections) = record.parts()?;
                let calls = CallList::read(list, &mut sections)?;
                (Submission::SendMany { peer, step, timeout_ms, calls }, sections)
            }
            kind::RECV_MANY => {
                let (ManyFixed { peer, step, timeout_ms, list, .. }, mut sections) = record.parts()?;
                let (calls, fail_if_gone) = (CallList::read(list, &mut sections)?, flags & FLAG_FAILS_IF_GONE != 0);
                calls.has_no_data()?;
                (Submission::RecvMany { peer, step, timeout_ms, calls, fail_if_gone }, sections)
            }
            kind::FREE => {
                let (count, mut sections) = record.parts()?;
                (Submission::Free { tokens: sections.numbers("tokens", count, NUMBERS_PER_RECORD)? }, sections)
            }
            kind::PEER => {
                let (PeerFixed { number, name_bytes, .. }, mut sections) = record.parts()?;
                (Submission::Peer { number, name: sections.text("name", name_bytes, NAME_BYTES_MAX)? }, sections)
            }
            kind::CANCEL => {
                let (Number { number: call, .. }, sections) = record.parts()?;
                (Submission::Cancel { call }, sections)
            }
            kind::ABORT => {
                let (AbortFixed { step, reason_bytes, .. }, mut sections) = record.parts()?;
                (Submission::Abort { step, reason: sections.text("reason", reason_bytes, REASON_BYTES_MAX)? }, sections)
            }
            kind::CLEANUP => {
                let (step, sections) = record.parts()?;
                (Submission::Cleanup { step }, sections)
            }
            kind::DETACH => {
                let ((), sections) = record.parts()?;
                (Submission::Detach, sections)
            }
            kind::COMMIT => {
                let ((), sections) = record.parts()?;
                (Submission::Commit, sections)
            }
            kind::WITHDRAW => {
                let (WithdrawFixed { key_bytes, .. }, mut sections) = record.parts()?;
                (Submission::Withdraw { key: sections.text("key", key_bytes, KEY_BYTES_MAX)? }, sections)
            }
            kind::OPEN_PLAN => {
                let (OpenPlanFixed { plan, keys, peer, .. }, sections) = record.parts()?;
                (Submission::OpenPlan { plan, peer, keys }, sections)
            }
            kind::PLAN_KEYS => {
                let (PlanKeysFixed { plan, bytes }, mut sections) = record.parts()?;
                let keys = KeyList::of(sections.bytes("keys", bytes as usize, KEY_LIST_BYTES_MAX)?)?;
                (Submission::PlanKeys { plan, keys }, sections)
            }
            kind::PULL => {
                let (PullFixed { min_version, call, timeout_ms, plan: Number { number: plan, .. } }, sections) =
                    record.parts()?;
                let (views, fail_if_gone) = (flags & FLAG_VIEWS != 0, flags & FLAG_FAILS_IF_GONE != 0);
                (Submission::Pull { call, plan, min_version, timeout_ms, views, fail_if_gone }, sections)
            }
            kind::PLAN_PLACE => {
                let (fixed, sections) = record.parts()?;
                let PlanPlaceFixed { call, plan, index: Number { number: index, .. }, span } = fixed;
                (Submission::PlanPlace { call, plan, index, span }, sections)
            }
            kind::ROWS => {
                let (fixed, mut sections) = record.parts()?;
                let RowsFixed { min_version, call, timeout_ms, peer, rows_bytes, .. } = fixed;
                let rows = sections.bytes("names of rows", rows_bytes, NAMED_ROWS_BYTES_MAX)?;
                let rows = NamedRows::parse(rows).map_err(|_| Malformed { what: "names of rows" })?;
                let (views, fail_if_gone) = (flags & FLAG_VIEWS != 0, flags & FLAG_FAILS_IF_GONE != 0);
                (Submission::Rows { call, peer, min_version, timeout_ms, rows, views, fail_if_gone }, sections)
            }
            kind::CLOSE_PLAN => {
                let (Number { number: plan, .. }, sections) = record.parts()?;
                (Submission::ClosePlan { plan }, sections)
            }
            kind::PUSH => {
                let (fixed, queue, meta, payload, sections) = tensor(record)?;
                let CallFixed { call, timeout_ms, peer, .. } = fixed;
                (Submission::Push { call, peer, timeout_ms, queue, meta, payload }, sections)
            }
            kind::OPEN_QUEUE => {
                let (fixed, mut sections) = record.parts()?;
                let OpenQueueFixed { queue, tensors_max, bytes_max, name_bytes, .. } = fixed;
                let name = sections.text("name", name_bytes, KEY_BYTES_MAX)?;
                (Submission::OpenQueue { queue, tensors_max, bytes_max, name }, sections)
            }
            kind::GRANT => {
                let (GrantFixed { queue, tensors, bytes }, sections) = record.parts()?;
                (Submission::Grant { queue, tensors, bytes }, sections)
            }
            kind::CLOSE_QUEUE => {
                let (Number { number: queue, .. }, sections) = record.parts()?;
                (Submission::CloseQueue { queue }, sections)
            }
            kind::ELSEWHERE => {
                let (ElsewhereFixed { peer, sent, received, .. }, sections) = record.parts()?;
                let peer = (flags & FLAG_OTHERS == 0).then_some(peer);
                (Submission::Elsewhere { peer, sent, received }, sections)
            }
            kind::DIRECT => {
                let (ElsewhereFixed { peer, sent, received, .. }, sections) = record.parts()?;
                (Submission::Direct { peer, sent, received }, sections)
            }
            kind::PUBLISHED_AGAIN => {
                let (PublishedAgainFixed { published, copied_bytes, left }, sections) = record.parts()?;
                (Submission::PublishedAgain { published, copied_bytes, left }, sections)
            }
            _ => return Err(Malformed { what: "an unknown kind of submission" }),
        };
        sections.end()?;
        Ok(submission)
    }
}

impl CallFixed {
    #[inline]
    fn new(number: i64, call: u32) -> Self {
        Self { number, call, timeout_ms: 0, peer: 0, key_bytes: 0, meta_bytes: 0, inline_bytes: 0 }
    }
}

impl ManyFixed {
    fn new(peer: u16, step: i64, timeout_ms: u32, calls: CallList<'_>) -> Self {
        Self { step, timeout_ms, peer, unused: [0; _], list: calls.fixed() }
    }
}

#[inline]
fn flag(flag: u8, is_set: bool) -> u8 {
    if is_set { flag } else { 0 }
}

/// Writes a tensor to send: the fixed part, where its payload is, its metadata and its key.
#[inline]
fn fill_tensor(
    into: &mut Record,
    kind: u8,
    flags: u8,
    mut fixed: CallFixed,
    key: &str,
    meta: &[u8],
    payload: PayloadAt<'_>,
) -> Result<(), TooLong> {
    fixed.key_bytes = at_most("key", key.len(), KEY_BYTES_MAX)?;
    fixed.meta_bytes = at_most("metadata", meta.len(), META_BYTES_MAX)?;
    match payload {
        PayloadAt::Inline(payload) => {
            fixed.inline_bytes = at_most("inline payload", payload.len(), INLINE_BYTES_MAX)?;
            // The payload first: it is then aligned, and usually so is the metadata behind it.
            into.fill(kind, flags, fixed, &[payload, meta, key.as_bytes()]);
        }
        PayloadAt::Arena(span) => {
            into.fill(kind, flags | FLAG_ARENA, ArenaCallFixed { fixed, span }, &[meta, key.as_bytes()]);
        }
    }
    Ok(())
}

/// What [`fill_tensor`] has written: fixed part, key, metadata and payload.
type Tensor<'a> = (CallFixed, &'a str, &'a [u8], PayloadAt<'a>, Sections<'a>);

#[inline]
fn tensor(record: &Record) -> Result<Tensor<'_>, Malformed> {
    let (fixed, mut sections) = record.parts::<CallFixed>()?;
    let payload = if record.flags & FLAG_ARENA == 0 {
        PayloadAt::Inline(sections.bytes("inline payload", fixed.inline_bytes, INLINE_BYTES_MAX)?)
    } else {
        PayloadAt::Arena(sections.fixed()?)
    };
    let meta = sections.bytes("metadata", fixed.meta_bytes, META_BYTES_MAX)?;
    let key = sections.text("key", fixed.key_bytes, KEY_BYTES_MAX)?;
    Ok((fixed, key, meta, payload, sections))
}

#[cfg(test)]
mod tests;
