//! What a shard answers a client, and how that lies in a record. Pure; bounded by the record.

use zerocopy::IntoBytes;

use super::{
    failure::Failure,
    fields::{Malformed, Sections, Span, TooLong, at_most, part},
    limits::{INLINE_BYTES_MAX, NUMBERS_PER_RECORD},
    record::Record,
};
use crate::{
    error::Error,
    limits::{KEY_BYTES_MAX, META_BYTES_MAX, NAME_BYTES_MAX, REASON_BYTES_MAX},
};

/// Where the bytes of a tensor that arrived are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReceivedAt<'a> {
    /// In the record itself; only where no destination was given. At most [`INLINE_BYTES_MAX`].
    Inline(&'a [u8]),
    /// In the destination that was given, from its beginning.
    Destination {
        /// How many bytes of it were written.
        len: u64,
    },
    /// In the receive area, until the token is given back.
    Area {
        /// Where in the area.
        span: Span,
        /// What to give back.
        token: u64,
    },
}

/// One answer of a shard. Each call ends by `Sent`, `Received`, `Published`, `Pulled` or `Failed`; after `Published`, and
/// after `Failed` with `memory_back` false, its memory comes back by `Returned`. A push of bytes in the arena ends like a
/// publication.
///
/// Before the end of a pull it is told what is new of the plan: where its board is and where tensors lie, if that is not
/// as it was, and which did not come. Versions lie on the board. In between, plan and board are the client's to read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Completion<'a> {
    /// Sends whose consumers have their tensors; at most [`NUMBERS_PER_RECORD`].
    Sent {
        /// The calls.
        calls: &'a [u32],
    },
    /// A tensor arrived.
    Received {
        /// The call.
        call: u32,
        /// The tensor's metadata.
        meta: &'a [u8],
        /// Its bytes.
        payload: ReceivedAt<'a>,
    },
    /// A call ended without its tensor.
    Failed {
        /// The call.
        call: u32,
        /// False if the shard may still read the payload or write the destination.
        memory_back: bool,
        /// Why, as an embedded engine would tell it; its reason is cut to [`REASON_BYTES_MAX`].
        error: Error,
    },
    /// The memory of failed calls and of publications is the client's again; at most [`NUMBERS_PER_RECORD`].
    Returned {
        /// The calls.
        calls: &'a [u32],
    },
    /// Tensors in the arena lie on the shard's shelf, where peers read them, or were pushed; at most [`NUMBERS_PER_RECORD`].
    Published {
        /// The calls.
        calls: &'a [u32],
    },
    /// Where the versions of a plan's tensors are: in the receive area, [`BOARD_BYTES_PER_KEY`] each.
    Board {
        /// The plan.
        plan: u32,
        /// Where in the area.
        span: Span,
        /// What to give back.
        token: u64,
    },
    /// A tensor of a plan lies where none of it did: in the receive area, until the token is given back.
    Placed {
        /// The plan.
        plan: u32,
        /// The tensor's number in it.
        index: u32,
        /// Its metadata.
        meta: &'a [u8],
        /// Where in the area.
        span: Span,
        /// What to give back.
        token: u64,
    },
    /// A tensor of a plan lies where the one before did, and has other metadata.
    Reshaped {
        /// The plan.
        plan: u32,
        /// The tensor's number in it.
        index: u32,
        /// Its metadata.
        meta: &'a [u8],
    },
    /// A tensor of a plan did not come with the pull that ends next.
    Missed {
        /// The plan.
        plan: u32,
        /// The tensor's number in it.
        index: u32,
        /// Why.
        error: Error,
    },
    /// A tensor was pushed into a queue of the client's, which has credit for it.
    Accepted {
        /// The queue.
        queue: u32,
        /// The task that pushed it.
        from: &'a str,
        /// The tensor's metadata.
        meta: &'a [u8],
        /// Its bytes; never in a destination.
        payload: ReceivedAt<'a>,
    },
    /// A queue could not be opened; its number is taken until it is closed.
    Unopened {
        /// The queue.
        queue: u32,
        /// Why.
        error: Error,
    },
    /// A queue is closed, as the client asked: no tensor of it follows. What the client was not handed is handed to its next
    /// queue of that name.
    QueueClosed {
        /// The queue.
        queue: u32,
    },
    /// Every tensor of a pull has come, or was missed.
    Pulled {
        /// The call.
        call: u32,
    },
    /// No call's: the daemon is about to stop. It finishes what is under way; new calls are for the daemon after it.
    Draining,
}

/// Bytes of a plan's board for each key: the version of its tensor, 64 bits, little-endian.
pub const BOARD_BYTES_PER_KEY: usize = size_of::<i64>();

/// Kinds of records in a completion ring.
mod kind {
    pub(super) const SENT: u8 = 1;
    pub(super) const RECEIVED: u8 = 2;
    pub(super) const FAILED: u8 = 3;
    pub(super) const RETURNED: u8 = 4;
    pub(super) const PUBLISHED: u8 = 5;
    pub(super) const BOARD: u8 = 6;
    pub(super) const PLACED: u8 = 7;
    pub(super) const RESHAPED: u8 = 8;
    pub(super) const MISSED: u8 = 9;
    pub(super) const PULLED: u8 = 10;
    pub(super) const ACCEPTED: u8 = 11;
    pub(super) const UNOPENED: u8 = 12;
    pub(super) const DRAINING: u8 = 13;
    pub(super) const QUEUE_CLOSED: u8 = 14;
}

/// Of a received tensor: where its bytes are.
mod place {
    pub(super) const INLINE: u8 = 0;
    pub(super) const DESTINATION: u8 = 1;
    pub(super) const AREA: u8 = 2;
}

const FLAG_MEMORY_BACK: u8 = 1;

impl<'a> Completion<'a> {
    /// Writes the completion into a record.
    ///
    /// A tensor of 64 bytes with metadata of 16 needs one slot.
    ///
    /// # Errors
    /// [`TooLong`] for a field over its limit.
    #[inline]
    pub fn encode(&self, into: &mut Record) -> Result<(), TooLong> {
        match self {
            Completion::Received { call, meta, payload } => {
                at_most("metadata", meta.len(), META_BYTES_MAX)?;
                let call = u64::from(*call) | (meta.len() as u64) << 32;
                match *payload {
                    ReceivedAt::Inline(payload) => {
                        at_most("inline payload", payload.len(), INLINE_BYTES_MAX)?;
                        let call = call | (payload.len() as u64) << 48;
                        into.fill(kind::RECEIVED, place::INLINE, [call], &[payload, meta]);
                    }
                    ReceivedAt::Destination { len } => {
                        into.fill(kind::RECEIVED, place::DESTINATION, [call, len], &[meta]);
                    }
                    ReceivedAt::Area { span: Span { offset, len }, token } => {
                        into.fill(kind::RECEIVED, place::AREA, [call, offset, len, token], &[meta]);
                    }
                }
            }
            Completion::Sent { calls } => encode_calls(kind::SENT, calls, into)?,
            Completion::Returned { calls } => encode_calls(kind::RETURNED, calls, into)?,
            Completion::Published { calls } => encode_calls(kind::PUBLISHED, calls, into)?,
            Completion::Failed { call, memory_back, error } => {
                let flags = if *memory_back { FLAG_MEMORY_BACK } else { 0 };
                let failure = Failure::of(error);
                let (fixed, texts) = failed(u64::from(*call), &failure)?;
                into.fill(kind::FAILED, flags, fixed, &texts);
            }
            Completion::Missed { plan, index, error } => {
                let failure = Failure::of(error);
                let ([first, step, secs, lengths], texts) = failed(u64::from(*plan), &failure)?;
                into.fill(kind::MISSED, 0, [first, step, secs, lengths, u64::from(*index)], &texts);
            }
            Completion::Board { plan, span: Span { offset, len }, token } => {
                into.fill(kind::BOARD, 0, [u64::from(*plan), *offset, *len, *token], &[]);
            }
            Completion::Placed { plan, index, meta, span: Span { offset, len }, token } => {
                at_most("metadata", meta.len(), META_BYTES_MAX)?;
                let fixed = [item(*plan, *index), meta.len() as u64, *offset, *len, *token];
                into.fill(kind::PLACED, 0, fixed, &[meta]);
            }
            Completion::Reshaped { plan, index, meta } => {
                at_most("metadata", meta.len(), META_BYTES_MAX)?;
                into.fill(kind::RESHAPED, 0, [item(*plan, *index), meta.len() as u64], &[meta]);
            }
            Completion::Pulled { call } => into.fill(kind::PULLED, 0, [u64::from(*call)], &[]),
            Completion::QueueClosed { queue } => into.fill(kind::QUEUE_CLOSED, 0, [u64::from(*queue)], &[]),
            Completion::Draining => into.fill(kind::DRAINING, 0, [], &[]),
            Completion::Accepted { queue, from, meta, payload } => {
                at_most("metadata", meta.len(), META_BYTES_MAX)?;
                at_most("name", from.len(), NAME_BYTES_MAX)?;
                let (queue, from) = (u64::from(*queue) | (meta.len() as u64) << 32, from.as_bytes());
                match *payload {
                    ReceivedAt::Inline(payload) => {
                        at_most("inline payload", payload.len(), INLINE_BYTES_MAX)?;
                        let fixed = [queue | (payload.len() as u64) << 48, from.len() as u64];
                        into.fill(kind::ACCEPTED, place::INLINE, fixed, &[payload, meta, from]);
                    }
                    // Nobody gave it one: not decoded again.
                    ReceivedAt::Destination { len } => {
                        into.fill(kind::ACCEPTED, place::DESTINATION, [queue, from.len() as u64, len], &[meta, from]);
                    }
                    ReceivedAt::Area { span: Span { offset, len }, token } => {
                        let fixed = [queue, from.len() as u64, offset, len, token];
                        into.fill(kind::ACCEPTED, place::AREA, fixed, &[meta, from]);
                    }
                }
            }
            Completion::Unopened { queue, error } => {
                let failure = Failure::of(error);
                let (fixed, texts) = failed(u64::from(*queue), &failure)?;
                into.fill(kind::UNOPENED, 0, fixed, &texts);
            }
        }
        Ok(())
    }

    /// Reads a completion out of a record, which may hold anything.
    ///
    /// # Errors
    /// [`Malformed`] if it is not one. Calls and spans are for the caller to look up.
    #[inline]
    pub fn decode(record: &'a Record) -> Result<Self, Malformed> {
        let unknown_flag = Err(Malformed { what: "an unknown flag" });
        let (completion, sections) = match (record.kind, record.flags) {
            (kind::RECEIVED, place) => {
                let ([call], mut inline) = record.parts()?;
                let meta_len = usize::from(part!(call, 32, u16));
                let inline_len = usize::from(part!(call, 48, u16));
                let (payload, mut sections) = match place {
                    place::INLINE => {
                        let payload = inline.bytes("inline payload", inline_len, INLINE_BYTES_MAX)?;
                        (ReceivedAt::Inline(payload), inline)
                    }
                    place::DESTINATION => {
                        let ([_, len], sections) = record.parts()?;
                        (ReceivedAt::Destination { len }, sections)
                    }
                    place::AREA => {
                        let ([_, offset, len, token], sections) = record.parts()?;
                        (ReceivedAt::Area { span: Span { offset, len }, token }, sections)
                    }
                    _ => return unknown_flag,
                };
                let meta = sections.bytes("metadata", meta_len, META_BYTES_MAX)?;
                (Completion::Received { call: part!(call, 0, u32), meta, payload }, sections)
            }
            (kind::SENT, 0) => {
                let ([count], mut sections) = record.parts()?;
                (Completion::Sent { calls: sections.numbers("calls", count, NUMBERS_PER_RECORD)? }, sections)
            }
            (kind::RETURNED, 0) => {
                let ([count], mut sections) = record.parts()?;
                (Completion::Returned { calls: sections.numbers("calls", count, NUMBERS_PER_RECORD)? }, sections)
            }
            (kind::PUBLISHED, 0) => {
                let ([count], mut sections) = record.parts()?;
                (Completion::Published { calls: sections.numbers("calls", count, NUMBERS_PER_RECORD)? }, sections)
            }
            (kind::FAILED, flags @ (0 | FLAG_MEMORY_BACK)) => {
                let (fixed, mut sections) = record.parts()?;
                let (call, error) = error(fixed, &mut sections)?;
                (Completion::Failed { call, memory_back: flags == FLAG_MEMORY_BACK, error }, sections)
            }
            (kind::MISSED, 0) => {
                let ([first, step, secs, lengths, index], mut sections) = record.parts()?;
                let (plan, error) = error([first, step, secs, lengths], &mut sections)?;
                (Completion::Missed { plan, index: part!(index, 0, u32), error }, sections)
            }
            (kind::BOARD, 0) => {
                let ([plan, offset, len, token], sections) = record.parts()?;
                (Completion::Board { plan: part!(plan, 0, u32), span: Span { offset, len }, token }, sections)
            }
            (kind::PLACED, 0) => {
                let ([item, meta_len, offset, len, token], mut sections) = record.parts()?;
                let meta = sections.bytes("metadata", usize::from(part!(meta_len, 0, u16)), META_BYTES_MAX)?;
                let (plan, index) = (part!(item, 0, u32), part!(item, 32, u32));
                (Completion::Placed { plan, index, meta, span: Span { offset, len }, token }, sections)
            }
            (kind::RESHAPED, 0) => {
                let ([item, meta_len], mut sections) = record.parts()?;
                let meta = sections.bytes("metadata", usize::from(part!(meta_len, 0, u16)), META_BYTES_MAX)?;
                (Completion::Reshaped { plan: part!(item, 0, u32), index: part!(item, 32, u32), meta }, sections)
            }
            (kind::PULLED, 0) => {
                let ([call], sections) = record.parts()?;
                (Completion::Pulled { call: part!(call, 0, u32) }, sections)
            }
            (kind::ACCEPTED, place @ (place::INLINE | place::AREA)) => {
                let ([queue, from_len], mut inline) = record.parts()?;
                let (payload, mut sections) = if place == place::INLINE {
                    let len = usize::from(part!(queue, 48, u16));
                    (ReceivedAt::Inline(inline.bytes("inline payload", len, INLINE_BYTES_MAX)?), inline)
                } else {
                    let ([_, _, offset, len, token], sections) = record.parts()?;
                    (ReceivedAt::Area { span: Span { offset, len }, token }, sections)
                };
                let meta = sections.bytes("metadata", usize::from(part!(queue, 32, u16)), META_BYTES_MAX)?;
                let from = sections.text("name", usize::from(part!(from_len, 0, u16)), NAME_BYTES_MAX)?;
                (Completion::Accepted { queue: part!(queue, 0, u32), from, meta, payload }, sections)
            }
            (kind::UNOPENED, 0) => {
                let (fixed, mut sections) = record.parts()?;
                let (queue, error) = error(fixed, &mut sections)?;
                (Completion::Unopened { queue, error }, sections)
            }
            (kind::DRAINING, 0) => {
                let ([], sections) = record.parts()?;
                (Completion::Draining, sections)
            }
            (kind::QUEUE_CLOSED, 0) => {
                let ([queue], sections) = record.parts()?;
                (Completion::QueueClosed { queue: part!(queue, 0, u32) }, sections)
            }
            (kind::SENT..=kind::QUEUE_CLOSED, _) => return unknown_flag,
            _ => return Err(Malformed { what: "an unknown kind of completion" }),
        };
        sections.end()?;
        Ok(completion)
    }
}

/// A plan's number, and a tensor's within it.
#[inline]
fn item(plan: u32, index: u32) -> u64 {
    u64::from(plan) | u64::from(index) << 32
}

/// An error as fixed words and texts; the first word carries a number of 32 bits besides.
fn failed<'e>(number: u64, failure: &Failure<'e>) -> Result<([u64; 4], [&'e [u8]; 2]), TooLong> {
    let (subject, reason) = (failure.subject.as_bytes(), failure.reason.as_bytes());
    at_most("subject", subject.len(), KEY_BYTES_MAX)?;
    let unknown = u64::from(failure.delivery_unknown);
    let first = number | u64::from(failure.code) << 32 | u64::from(failure.operation) << 40 | unknown << 48;
    let lengths = u64::from(failure.waited.subsec_nanos()) | (subject.len() as u64) << 32 | (reason.len() as u64) << 48;
    Ok(([first, failure.step as u64, failure.waited.as_secs(), lengths], [subject, reason]))
}

/// What [`failed`] has made words of: the number and the error.
fn error([first, step, secs, lengths]: [u64; 4], sections: &mut Sections<'_>) -> Result<(u32, Error), Malformed> {
    let subject = sections.text("subject", usize::from(part!(lengths, 32, u16)), KEY_BYTES_MAX)?;
    let reason = sections.text("reason", usize::from(part!(lengths, 48, u16)), REASON_BYTES_MAX)?;
    let failure = Failure {
        code: part!(first, 32, u8),
        operation: part!(first, 40, u8),
        delivery_unknown: part!(first, 48, u8) != 0,
        step: step as i64,
        waited: Failure::waited(secs, part!(lengths, 0, u32))?,
        subject,
        reason,
    };
    Ok((part!(first, 0, u32), failure.into_error()?))
}

#[inline]
fn encode_calls(kind: u8, calls: &[u32], into: &mut Record) -> Result<(), TooLong> {
    at_most("calls", calls.len(), NUMBERS_PER_RECORD)?;
    into.fill(kind, 0, [calls.len() as u64], &[calls.as_bytes()]);
    Ok(())
}

#[cfg(test)]
mod tests;
