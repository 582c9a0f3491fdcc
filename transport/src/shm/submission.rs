//! What a client asks of a shard, and how that lies in a record. Pure; bounded by the record.

use zerocopy::IntoBytes;

use super::{
    fields::{Malformed, Span, TooLong, at_most, cut, part},
    limits::{INLINE_BYTES_MAX, NUMBERS_PER_RECORD},
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
    /// Goodbye; nothing follows.
    Detach,
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
}

/// Of a send: its bytes are in the arena. Of a recv: it has a destination.
const FLAG_ARENA: u8 = 1;

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
                at_most("key", key.len(), KEY_BYTES_MAX)?;
                at_most("metadata", meta.len(), META_BYTES_MAX)?;
                let fixed = [step as u64, call_and_timeout(call, timeout_ms), lengths(peer, key.len(), meta.len())];
                match payload {
                    PayloadAt::Inline(payload) => {
                        at_most("inline payload", payload.len(), INLINE_BYTES_MAX)?;
                        let [step, call, lengths] = fixed;
                        let lengths = lengths | (payload.len() as u64) << 48;
                        // The payload first: it is then aligned, and so is the metadata behind it most often.
                        into.fill(kind::SEND, 0, [step, call, lengths], &[payload, meta, key.as_bytes()]);
                    }
                    PayloadAt::Arena(Span { offset, len }) => {
                        let [step, call, lengths] = fixed;
                        let fixed = [step, call, lengths, offset, len];
                        into.fill(kind::SEND, FLAG_ARENA, fixed, &[meta, key.as_bytes()]);
                    }
                }
            }
            Submission::Recv { call, peer, step, timeout_ms, key, destination } => {
                at_most("key", key.len(), KEY_BYTES_MAX)?;
                let [step, call, lengths] =
                    [step as u64, call_and_timeout(call, timeout_ms), lengths(peer, key.len(), 0)];
                match destination {
                    None => into.fill(kind::RECV, 0, [step, call, lengths], &[key.as_bytes()]),
                    Some(Span { offset, len }) => {
                        into.fill(kind::RECV, FLAG_ARENA, [step, call, lengths, offset, len], &[key.as_bytes()]);
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
        }
        Ok(())
    }

    /// Reads a submission out of a record, which may hold anything.
    ///
    /// # Errors
    /// [`Malformed`] if it is not one: an unknown kind or flag, a field over its limit, lengths that do not add up, text
    /// that is not UTF-8. Calls, peers, spans and tokens are for the caller to look up.
    #[inline]
    pub fn decode(record: &'a Record) -> Result<Self, Malformed> {
        let flags = record.flags;
        let known = if matches!(record.kind, kind::SEND | kind::RECV) { FLAG_ARENA } else { 0 };
        if flags & !known != 0 {
            return Err(Malformed { what: "an unknown flag" });
        }
        let (submission, sections) = match record.kind {
            kind::SEND if flags == 0 => {
                let ([step, call, lengths], mut sections) = record.parts()?;
                let len = usize::from(part!(lengths, 48, u16));
                let payload = PayloadAt::Inline(sections.bytes("inline payload", len, INLINE_BYTES_MAX)?);
                let meta = sections.bytes("metadata", usize::from(part!(lengths, 32, u16)), META_BYTES_MAX)?;
                let key = sections.text("key", usize::from(part!(lengths, 16, u16)), KEY_BYTES_MAX)?;
                (send(step, call, lengths, key, meta, payload), sections)
            }
            kind::SEND => {
                let ([step, call, lengths, offset, len], mut sections) = record.parts()?;
                let meta = sections.bytes("metadata", usize::from(part!(lengths, 32, u16)), META_BYTES_MAX)?;
                let key = sections.text("key", usize::from(part!(lengths, 16, u16)), KEY_BYTES_MAX)?;
                (send(step, call, lengths, key, meta, PayloadAt::Arena(Span { offset, len })), sections)
            }
            kind::RECV if flags == 0 => {
                let ([step, call, lengths], mut sections) = record.parts()?;
                let key = sections.text("key", usize::from(part!(lengths, 16, u16)), KEY_BYTES_MAX)?;
                (recv(step, call, lengths, key, None), sections)
            }
            kind::RECV => {
                let ([step, call, lengths, offset, len], mut sections) = record.parts()?;
                let key = sections.text("key", usize::from(part!(lengths, 16, u16)), KEY_BYTES_MAX)?;
                (recv(step, call, lengths, key, Some(Span { offset, len })), sections)
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

#[inline]
fn send<'a>(
    step: u64,
    call: u64,
    lengths: u64,
    key: &'a str,
    meta: &'a [u8],
    payload: PayloadAt<'a>,
) -> Submission<'a> {
    let (call, timeout_ms) = (part!(call, 0, u32), part!(call, 32, u32));
    Submission::Send { call, peer: part!(lengths, 0, u16), step: step as i64, timeout_ms, key, meta, payload }
}

#[inline]
fn recv(step: u64, call: u64, lengths: u64, key: &str, destination: Option<Span>) -> Submission<'_> {
    let (call, timeout_ms) = (part!(call, 0, u32), part!(call, 32, u32));
    Submission::Recv { call, peer: part!(lengths, 0, u16), step: step as i64, timeout_ms, key, destination }
}

#[cfg(test)]
mod tests;
