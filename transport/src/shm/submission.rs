//! What a client asks of a shard, and how that lies in a record. Pure; bounded by the record.

use zerocopy::IntoBytes;

use super::{
    fields::{Malformed, Sections, Span, TooLong, at_most, cut, part},
    key_list::KeyList,
    limits::{INLINE_BYTES_MAX, KEY_LIST_BYTES_MAX, NUMBERS_PER_RECORD},
    record::Record,
};
use crate::limits::{KEY_BYTES_MAX, META_BYTES_MAX, NAME_BYTES_MAX, REASON_BYTES_MAX};

/// The `timeout_ms` of a call that waits as long as it takes.
pub const NO_TIMEOUT: u32 = u32::MAX;

/// Where the bytes of a tensor to send are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PayloadAt<'a> {
    /// In the record itself; at most [`INLINE_BYTES_MAX`].
    Inline(&'a [u8]),
    /// In the arena; the client leaves them alone until the call's end.
    Arena(Span),
}

/// One request of a client. A call is named by a number that the client chooses and uses again once the call has ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Submission<'a> {
    /// Names a peer before its first use. Numbers count up from 0 in each segment.
    Peer {
        /// The number that stands for it from now on.
        number: u16,
        /// The task's name.
        name: &'a str,
    },
    /// Sends a tensor.
    Send {
        /// The call.
        call: u32,
        /// The consumer's number.
        peer: u16,
        /// The step.
        step: i64,
        /// How long it may take until the consumer has it; [`NO_TIMEOUT`] for no end.
        timeout_ms: u32,
        /// The tensor's name.
        key: &'a str,
        /// Its metadata.
        meta: &'a [u8],
        /// Its bytes.
        payload: PayloadAt<'a>,
    },
    /// Asks for a tensor.
    Recv {
        /// The call.
        call: u32,
        /// The producer's number.
        peer: u16,
        /// The step.
        step: i64,
        /// How long it may take; [`NO_TIMEOUT`] for no end.
        timeout_ms: u32,
        /// The tensor's name.
        key: &'a str,
        /// Where in the arena its bytes shall go, if not into the receive area.
        destination: Option<Span>,
        /// One of many that are asked for together: it does not count against the window.
        fused: bool,
    },
    /// Puts a tensor on the shelf that the shard serves its peers from.
    Publish {
        /// The call.
        call: u32,
        /// The version.
        version: i64,
        /// The tensor's name.
        key: &'a str,
        /// Its metadata.
        meta: &'a [u8],
        /// Its bytes.
        payload: PayloadAt<'a>,
        /// Others follow that are to be seen together with it.
        more: bool,
    },
    /// Takes a tensor off the shelf.
    Withdraw {
        /// The tensor's name.
        key: &'a str,
    },
    /// Opens a plan; its keys follow. One is named by a number that the client chooses, which is free once it is closed.
    OpenPlan {
        /// The plan.
        plan: u32,
        /// The producer's number.
        peer: u16,
        /// How many keys it has.
        keys: u32,
    },
    /// The next keys of a plan.
    PlanKeys {
        /// The plan.
        plan: u32,
        /// The keys.
        keys: KeyList<'a>,
    },
    /// Pulls the tensors of a plan, all of whose keys are known. One pull of a plan at a time.
    Pull {
        /// The call.
        call: u32,
        /// The plan.
        plan: u32,
        /// The oldest version that will do.
        min_version: i64,
        /// How long it may take; [`NO_TIMEOUT`] for no end.
        timeout_ms: u32,
    },
    /// Closes a plan. Its memory that the client was told of stays the client's until it is given back.
    ClosePlan {
        /// The plan.
        plan: u32,
    },
    /// Pushes a tensor into a queue of a peer; it ends when the queue has taken it.
    Push {
        /// The call.
        call: u32,
        /// The accepting task's number.
        peer: u16,
        /// How long it may take; [`NO_TIMEOUT`] for no end.
        timeout_ms: u32,
        /// The queue's name.
        queue: &'a str,
        /// The tensor's metadata.
        meta: &'a [u8],
        /// Its bytes.
        payload: PayloadAt<'a>,
    },
    /// Opens a queue of the client's task, which it accepts from. One is named by a number that the client chooses, which
    /// is free once it is closed.
    OpenQueue {
        /// The queue.
        queue: u32,
        /// Tensors that may wait with the shard.
        tensors_max: u32,
        /// Their bytes.
        bytes_max: u64,
        /// The name that pushers know it by.
        name: &'a str,
    },
    /// Lets the shard hand over so much more of a queue. The last tensor may be larger than what is left of the bytes; the
    /// next ones wait for as much.
    Grant {
        /// The queue.
        queue: u32,
        /// Tensors.
        tensors: u32,
        /// Their bytes.
        bytes: u64,
    },
    /// Closes a queue. What waits in it is freed, and pushers wait.
    CloseQueue {
        /// The queue.
        queue: u32,
    },
    /// Gives a call up; it ends with a failure, unless it was ending already.
    Cancel {
        /// The call.
        call: u32,
    },
    /// Ends every call of a step, here and at the peers.
    Abort {
        /// The step.
        step: i64,
        /// Why; cut to [`REASON_BYTES_MAX`].
        reason: &'a str,
    },
    /// Frees what is left of a step.
    Cleanup {
        /// The step.
        step: i64,
    },
    /// Gives blocks of the receive area back; at most [`NUMBERS_PER_RECORD`].
    Free {
        /// As they came with the tensors.
        tokens: &'a [u64],
    },
    /// Tells of tensors that went to a peer, or came from it, by another transport since this was last told. They are shown beside
    /// those that went by this one.
    Elsewhere {
        /// The peer; `None` for all that are not told apart.
        peer: Option<u16>,
        /// Those that went.
        sent: Moved,
        /// Those that came.
        received: Moved,
    },
    /// Goodbye; nothing follows.
    Detach,
}

/// So many tensors, and their bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Moved {
    /// Tensors.
    pub tensors: u64,
    /// Their bytes.
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
}

/// Of a send, a push or a publication: its bytes are in the arena. Of a recv: it has a destination.
const FLAG_ARENA: u8 = 1;
/// Of a recv: it is one of many.
const FLAG_FUSED: u8 = 2;
/// Of a publication: more follow.
const FLAG_MORE: u8 = 2;
/// Of tensors that went elsewhere: with peers that are not told apart.
const FLAG_OTHERS: u8 = 1;

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
                let fixed = [step as u64, call_and_timeout(call, timeout_ms), lengths(peer, key.len(), meta.len())];
                fill_tensor(into, kind::SEND, 0, fixed, key, meta, payload)?;
            }
            Submission::Publish { call, version, key, meta, payload, more } => {
                let fixed = [version as u64, u64::from(call), lengths(0, key.len(), meta.len())];
                fill_tensor(into, kind::PUBLISH, if more { FLAG_MORE } else { 0 }, fixed, key, meta, payload)?;
            }
            Submission::Recv { call, peer, step, timeout_ms, key, destination, fused } => {
                at_most("key", key.len(), KEY_BYTES_MAX)?;
                let [step, call, lengths] =
                    [step as u64, call_and_timeout(call, timeout_ms), lengths(peer, key.len(), 0)];
                let flags = if fused { FLAG_FUSED } else { 0 };
                match destination {
                    None => into.fill(kind::RECV, flags, [step, call, lengths], &[key.as_bytes()]),
                    Some(Span { offset, len }) => {
                        let fixed = [step, call, lengths, offset, len];
                        into.fill(kind::RECV, flags | FLAG_ARENA, fixed, &[key.as_bytes()]);
                    }
                }
            }
            Submission::Free { tokens } => {
                at_most("tokens", tokens.len(), NUMBERS_PER_RECORD)?;
                into.fill(kind::FREE, 0, [tokens.len() as u64], &[tokens.as_bytes()]);
            }
            Submission::Peer { number, name } => {
                at_most("name", name.len(), NAME_BYTES_MAX)?;
                into.fill(kind::PEER, 0, [lengths(number, name.len(), 0)], &[name.as_bytes()]);
            }
            Submission::Cancel { call } => into.fill(kind::CANCEL, 0, [u64::from(call)], &[]),
            Submission::Abort { step, reason } => {
                let reason = cut(reason, REASON_BYTES_MAX);
                into.fill(kind::ABORT, 0, [step as u64, reason.len() as u64], &[reason.as_bytes()]);
            }
            Submission::Cleanup { step } => into.fill(kind::CLEANUP, 0, [step as u64], &[]),
            Submission::Detach => into.fill(kind::DETACH, 0, [], &[]),
            Submission::Withdraw { key } => {
                at_most("key", key.len(), KEY_BYTES_MAX)?;
                into.fill(kind::WITHDRAW, 0, [key.len() as u64], &[key.as_bytes()]);
            }
            Submission::OpenPlan { plan, peer, keys } => {
                into.fill(kind::OPEN_PLAN, 0, [u64::from(plan) | u64::from(keys) << 32, u64::from(peer)], &[]);
            }
            Submission::PlanKeys { plan, keys } => {
                let bytes = keys.as_bytes();
                at_most("keys", bytes.len(), KEY_LIST_BYTES_MAX)?;
                into.fill(kind::PLAN_KEYS, 0, [u64::from(plan) | (bytes.len() as u64) << 32], &[bytes]);
            }
            Submission::Pull { call, plan, min_version, timeout_ms } => {
                let fixed = [min_version as u64, call_and_timeout(call, timeout_ms), u64::from(plan)];
                into.fill(kind::PULL, 0, fixed, &[]);
            }
            Submission::ClosePlan { plan } => into.fill(kind::CLOSE_PLAN, 0, [u64::from(plan)], &[]),
            Submission::Push { call, peer, timeout_ms, queue, meta, payload } => {
                let fixed = [0, call_and_timeout(call, timeout_ms), lengths(peer, queue.len(), meta.len())];
                fill_tensor(into, kind::PUSH, 0, fixed, queue, meta, payload)?;
            }
            Submission::OpenQueue { queue, tensors_max, bytes_max, name } => {
                at_most("name", name.len(), KEY_BYTES_MAX)?;
                let fixed = [u64::from(queue) | u64::from(tensors_max) << 32, bytes_max, name.len() as u64];
                into.fill(kind::OPEN_QUEUE, 0, fixed, &[name.as_bytes()]);
            }
            Submission::Grant { queue, tensors, bytes } => {
                into.fill(kind::GRANT, 0, [u64::from(queue) | u64::from(tensors) << 32, bytes], &[]);
            }
            Submission::CloseQueue { queue } => into.fill(kind::CLOSE_QUEUE, 0, [u64::from(queue)], &[]),
            Submission::Elsewhere { peer, sent, received } => {
                let flags = if peer.is_none() { FLAG_OTHERS } else { 0 };
                let peer = u64::from(peer.unwrap_or_default());
                let fixed = [peer, sent.tensors, sent.bytes, received.tensors, received.bytes];
                into.fill(kind::ELSEWHERE, flags, fixed, &[]);
            }
        }
        Ok(())
    }

    /// The call that it starts, if it starts one.
    pub fn starts(&self) -> Option<u32> {
        match *self {
            Submission::Send { call, .. }
            | Submission::Recv { call, .. }
            | Submission::Publish { call, .. }
            | Submission::Pull { call, .. }
            | Submission::Push { call, .. } => Some(call),
            _ => None,
        }
    }

    /// The same with another timeout, if it has one.
    pub fn within(mut self, left_ms: u32) -> Self {
        if let Submission::Send { timeout_ms, .. }
        | Submission::Recv { timeout_ms, .. }
        | Submission::Pull { timeout_ms, .. }
        | Submission::Push { timeout_ms, .. } = &mut self
        {
            *timeout_ms = left_ms;
        }
        self
    }

    /// Reads a submission out of a record, which may hold anything.
    ///
    /// # Errors
    /// [`Malformed`] if it is not one: an unknown kind or flag, a field over its limit, lengths that do not add up, text
    /// that is not UTF-8. Calls, peers, spans and tokens are for the caller to look up.
    #[inline]
    pub fn decode(record: &'a Record) -> Result<Self, Malformed> {
        let flags = record.flags;
        let known = match record.kind {
            kind::SEND | kind::PUSH => FLAG_ARENA,
            kind::RECV => FLAG_ARENA | FLAG_FUSED,
            kind::PUBLISH => FLAG_ARENA | FLAG_MORE,
            kind::ELSEWHERE => FLAG_OTHERS,
            _ => 0,
        };
        if flags & !known != 0 {
            return Err(Malformed { what: "an unknown flag" });
        }
        let (submission, sections) = match record.kind {
            kind::SEND => {
                let (TensorFields { number, call, lengths, key, meta, payload }, sections) = tensor(record)?;
                let (call, timeout_ms) = (part!(call, 0, u32), part!(call, 32, u32));
                let (peer, step) = (part!(lengths, 0, u16), number as i64);
                (Submission::Send { call, peer, step, timeout_ms, key, meta, payload }, sections)
            }
            kind::PUBLISH => {
                let (TensorFields { number, call, key, meta, payload, .. }, sections) = tensor(record)?;
                let (call, version, more) = (part!(call, 0, u32), number as i64, flags & FLAG_MORE != 0);
                (Submission::Publish { call, version, key, meta, payload, more }, sections)
            }
            kind::RECV => {
                let ([step, call, lengths], mut sections) = record.parts()?;
                let destination = if flags & FLAG_ARENA == 0 {
                    None
                } else {
                    let ([_, _, _, offset, len], behind) = record.parts()?;
                    sections = behind;
                    Some(Span { offset, len })
                };
                let key = sections.text("key", usize::from(part!(lengths, 16, u16)), KEY_BYTES_MAX)?;
                let (call, timeout_ms) = (part!(call, 0, u32), part!(call, 32, u32));
                let (peer, step, fused) = (part!(lengths, 0, u16), step as i64, flags & FLAG_FUSED != 0);
                (Submission::Recv { call, peer, step, timeout_ms, key, destination, fused }, sections)
            }
            kind::FREE => {
                let ([count], mut sections) = record.parts()?;
                (Submission::Free { tokens: sections.numbers("tokens", count, NUMBERS_PER_RECORD)? }, sections)
            }
            kind::PEER => {
                let ([lengths], mut sections) = record.parts()?;
                let name = sections.text("name", usize::from(part!(lengths, 16, u16)), NAME_BYTES_MAX)?;
                (Submission::Peer { number: part!(lengths, 0, u16), name }, sections)
            }
            kind::CANCEL => {
                let ([call], sections) = record.parts()?;
                (Submission::Cancel { call: part!(call, 0, u32) }, sections)
            }
            kind::ABORT => {
                let ([step, len], mut sections) = record.parts()?;
                let reason = sections.text("reason", usize::from(part!(len, 0, u16)), REASON_BYTES_MAX)?;
                (Submission::Abort { step: step as i64, reason }, sections)
            }
            kind::CLEANUP => {
                let ([step], sections) = record.parts()?;
                (Submission::Cleanup { step: step as i64 }, sections)
            }
            kind::DETACH => {
                let ([], sections) = record.parts()?;
                (Submission::Detach, sections)
            }
            kind::WITHDRAW => {
                let ([len], mut sections) = record.parts()?;
                let key = sections.text("key", usize::from(part!(len, 0, u16)), KEY_BYTES_MAX)?;
                (Submission::Withdraw { key }, sections)
            }
            kind::OPEN_PLAN => {
                let ([plan, peer], sections) = record.parts()?;
                let (plan, keys) = (part!(plan, 0, u32), part!(plan, 32, u32));
                (Submission::OpenPlan { plan, peer: part!(peer, 0, u16), keys }, sections)
            }
            kind::PLAN_KEYS => {
                let ([plan], mut sections) = record.parts()?;
                let bytes = sections.bytes("keys", part!(plan, 32, u32) as usize, KEY_LIST_BYTES_MAX)?;
                (Submission::PlanKeys { plan: part!(plan, 0, u32), keys: KeyList::of(bytes)? }, sections)
            }
            kind::PULL => {
                let ([min_version, call, plan], sections) = record.parts()?;
                let (call, timeout_ms) = (part!(call, 0, u32), part!(call, 32, u32));
                let (plan, min_version) = (part!(plan, 0, u32), min_version as i64);
                (Submission::Pull { call, plan, min_version, timeout_ms }, sections)
            }
            kind::CLOSE_PLAN => {
                let ([plan], sections) = record.parts()?;
                (Submission::ClosePlan { plan: part!(plan, 0, u32) }, sections)
            }
            kind::PUSH => {
                let (TensorFields { call, lengths, key, meta, payload, .. }, sections) = tensor(record)?;
                let (call, timeout_ms, peer) = (part!(call, 0, u32), part!(call, 32, u32), part!(lengths, 0, u16));
                (Submission::Push { call, peer, timeout_ms, queue: key, meta, payload }, sections)
            }
            kind::OPEN_QUEUE => {
                let ([queue, bytes_max, len], mut sections) = record.parts()?;
                let name = sections.text("name", usize::from(part!(len, 0, u16)), KEY_BYTES_MAX)?;
                let (queue, tensors_max) = (part!(queue, 0, u32), part!(queue, 32, u32));
                (Submission::OpenQueue { queue, tensors_max, bytes_max, name }, sections)
            }
            kind::GRANT => {
                let ([queue, bytes], sections) = record.parts()?;
                let (queue, tensors) = (part!(queue, 0, u32), part!(queue, 32, u32));
                (Submission::Grant { queue, tensors, bytes }, sections)
            }
            kind::CLOSE_QUEUE => {
                let ([queue], sections) = record.parts()?;
                (Submission::CloseQueue { queue: part!(queue, 0, u32) }, sections)
            }
            kind::ELSEWHERE => {
                let ([peer, sent, bytes_sent, received, bytes_received], sections) = record.parts()?;
                let peer = (flags & FLAG_OTHERS == 0).then_some(part!(peer, 0, u16));
                let sent = Moved { tensors: sent, bytes: bytes_sent };
                let received = Moved { tensors: received, bytes: bytes_received };
                (Submission::Elsewhere { peer, sent, received }, sections)
            }
            _ => return Err(Malformed { what: "an unknown kind of submission" }),
        };
        sections.end()?;
        Ok(submission)
    }
}

#[inline]
fn call_and_timeout(call: u32, timeout_ms: u32) -> u64 {
    u64::from(call) | u64::from(timeout_ms) << 32
}

/// A peer's number, then the lengths of key and metadata, which have been held to their limits; 16 bits each.
#[inline]
fn lengths(peer: u16, key: usize, meta: usize) -> u64 {
    u64::from(peer) | (key as u64) << 16 | (meta as u64) << 32
}

/// Writes a tensor that leaves: three fixed words, where its bytes are, its metadata and its key.
#[inline]
fn fill_tensor(
    into: &mut Record,
    kind: u8,
    flags: u8,
    fixed: [u64; 3],
    key: &str,
    meta: &[u8],
    payload: PayloadAt<'_>,
) -> Result<(), TooLong> {
    at_most("key", key.len(), KEY_BYTES_MAX)?;
    at_most("metadata", meta.len(), META_BYTES_MAX)?;
    let [number, call, lengths] = fixed;
    match payload {
        PayloadAt::Inline(payload) => {
            at_most("inline payload", payload.len(), INLINE_BYTES_MAX)?;
            let lengths = lengths | (payload.len() as u64) << 48;
            // The payload first: it is then aligned, and so is the metadata behind it most often.
            into.fill(kind, flags, [number, call, lengths], &[payload, meta, key.as_bytes()]);
        }
        PayloadAt::Arena(Span { offset, len }) => {
            let fixed = [number, call, lengths, offset, len];
            into.fill(kind, flags | FLAG_ARENA, fixed, &[meta, key.as_bytes()]);
        }
    }
    Ok(())
}

/// What [`fill_tensor`] has written.
struct TensorFields<'a> {
    number: u64,
    call: u64,
    lengths: u64,
    key: &'a str,
    meta: &'a [u8],
    payload: PayloadAt<'a>,
}

#[inline]
fn tensor(record: &Record) -> Result<(TensorFields<'_>, Sections<'_>), Malformed> {
    let ([number, call, lengths], mut sections) = record.parts()?;
    let payload = if record.flags & FLAG_ARENA == 0 {
        let len = usize::from(part!(lengths, 48, u16));
        PayloadAt::Inline(sections.bytes("inline payload", len, INLINE_BYTES_MAX)?)
    } else {
        let ([_, _, _, offset, len], behind) = record.parts()?;
        sections = behind;
        PayloadAt::Arena(Span { offset, len })
    };
    let meta = sections.bytes("metadata", usize::from(part!(lengths, 32, u16)), META_BYTES_MAX)?;
    let key = sections.text("key", usize::from(part!(lengths, 16, u16)), KEY_BYTES_MAX)?;
    Ok((TensorFields { number, call, lengths, key, meta, payload }, sections))
}

#[cfg(test)]
mod tests;
