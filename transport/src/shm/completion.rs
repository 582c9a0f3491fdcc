//! What a shard answers a client, and how that lies in a record. Pure; bounded by the record.

use zerocopy::IntoBytes;

use super::{
    failure::Failure,
    fields::{Malformed, Span, TooLong, at_most, part},
    limits::{INLINE_BYTES_MAX, NUMBERS_PER_RECORD},
    record::Record,
};
use crate::{
    error::Error,
    limits::{KEY_BYTES_MAX, META_BYTES_MAX, REASON_BYTES_MAX},
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

/// One answer of a shard. Each call ends by `Sent`, `Received` or `Failed`; after `Failed` with `memory_back` false its
/// memory comes back by `Returned`.
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
    /// The memory of failed calls is the client's again; at most [`NUMBERS_PER_RECORD`].
    Returned {
        /// The calls.
        calls: &'a [u32],
    },
}

/// Kinds of records in a completion ring.
mod kind {
    pub(super) const SENT: u8 = 1;
    pub(super) const RECEIVED: u8 = 2;
    pub(super) const FAILED: u8 = 3;
    pub(super) const RETURNED: u8 = 4;
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
            Completion::Failed { call, memory_back, error } => {
                let failure = Failure::of(error);
                let (subject, reason) = (failure.subject.as_bytes(), failure.reason.as_bytes());
                at_most("subject", subject.len(), KEY_BYTES_MAX)?;
                let first = u64::from(*call) | u64::from(failure.code) << 32 | u64::from(failure.operation) << 40;
                let lengths = u64::from(failure.waited.subsec_nanos())
                    | (subject.len() as u64) << 32
                    | (reason.len() as u64) << 48;
                let fixed = [first, failure.step as u64, failure.waited.as_secs(), lengths];
                let flags = if *memory_back { FLAG_MEMORY_BACK } else { 0 };
                into.fill(kind::FAILED, flags, fixed, &[subject, reason]);
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
            (kind::FAILED, flags @ (0 | FLAG_MEMORY_BACK)) => {
                let ([first, step, secs, lengths], mut sections) = record.parts()?;
                let subject = sections.text("subject", usize::from(part!(lengths, 32, u16)), KEY_BYTES_MAX)?;
                let reason = sections.text("reason", usize::from(part!(lengths, 48, u16)), REASON_BYTES_MAX)?;
                let failure = Failure {
                    code: part!(first, 32, u8),
                    operation: part!(first, 40, u8),
                    step: step as i64,
                    waited: Failure::waited(secs, part!(lengths, 0, u32))?,
                    subject,
                    reason,
                };
                let error = failure.into_error()?;
                let call = part!(first, 0, u32);
                (Completion::Failed { call, memory_back: flags == FLAG_MEMORY_BACK, error }, sections)
            }
            (kind::SENT | kind::RETURNED | kind::FAILED, _) => return unknown_flag,
            _ => return Err(Malformed { what: "an unknown kind of completion" }),
        };
        sections.end()?;
        Ok(completion)
    }
}

#[inline]
fn encode_calls(kind: u8, calls: &[u32], into: &mut Record) -> Result<(), TooLong> {
    at_most("calls", calls.len(), NUMBERS_PER_RECORD)?;
    into.fill(kind, 0, [calls.len() as u64], &[calls.as_bytes()]);
    Ok(())
}

#[cfg(test)]
mod tests;
