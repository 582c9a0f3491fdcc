//! A shard's answers to a client, and their encoding in a record. No I/O; bounded by the record.

use zerocopy::IntoBytes;

use super::{
    call_list::{CallList, ListFixed},
    failure::Failure,
    fields::{Malformed, Number, Sections, Span, TooLong, Unused, at_most, fixed_parts},
    limits::{INLINE_BYTES_MAX, NUMBERS_PER_RECORD},
    record::Record,
};
use crate::{
    error::Error,
    limits::{KEY_BYTES_MAX, META_BYTES_MAX, NAME_BYTES_MAX, REASON_BYTES_MAX},
};

/// Where the payload of an arrived tensor is, if it is not in a list of small ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReceivedAt {
    /// At the beginning of the destination that the client gave.
    Destination {
        /// How many bytes of it were written.
        len: u64,
    },
    /// In the receive area, until the client returns the token.
    Area { span: Span, token: u64 },
    /// As `Area`; in addition the tables stay in place until the token is returned, and others wait for that.
    Lending {
        span: Span,
        /// The token to return, as soon as possible.
        token: u64,
    },
}

/// Where the payload of a pushed tensor is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AcceptedAt<'a> {
    /// In the record itself; at most [`INLINE_BYTES_MAX`].
    Inline(&'a [u8]),
    /// In the receive area, until the client returns the token.
    Area { span: Span, token: u64 },
}

/// One answer of a shard. Each call ends with `Sent`, `Arrived`, `Received`, `Published`, `Pulled` or `Failed`. After
/// `Published`, and after `Failed` with `memory_back` false, its memory comes back by `Returned`. A push of bytes in the
/// arena ends like a publication.
///
/// Before `Pulled`, records report what changed: `Board`, `Placed` and `Viewed` (locations), `Reshaped`, `Missed`. Versions
/// are on the board. The client may read the plan's tensors and versions between pulls.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Completion<'a> {
    /// Sends whose consumers have their tensors; at most [`NUMBERS_PER_RECORD`].
    Sent {
        calls: &'a [u32],
    },
    /// A small tensor without a destination arrived, with few others in its turn: cheaper than a list of one.
    ArrivedAlone {
        call: u32,
        meta: &'a [u8],
        /// At most [`INLINE_BYTES_MAX`].
        bytes: &'a [u8],
    },
    /// Small tensors without a destination arrived.
    Arrived {
        calls: CallList<'a>,
    },
    Received {
        call: u32,
        meta: &'a [u8],
        payload: ReceivedAt,
    },
    /// A call ended without its tensor.
    Failed {
        call: u32,
        /// False if the shard may still read the payload or write the destination.
        memory_back: bool,
        /// The error, as an embedded engine would report it; its reason is cut to [`REASON_BYTES_MAX`].
        error: Error,
    },
    /// The client gets back the memory of failed calls and of publications; at most [`NUMBERS_PER_RECORD`].
    Returned {
        calls: &'a [u32],
    },
    /// Tensors in the arena are in the shard's store, where peers can read them, or were pushed; at most
    /// [`NUMBERS_PER_RECORD`].
    Published {
        calls: &'a [u32],
    },
    /// Where the versions of a plan's tensors are: in the receive area, [`BOARD_BYTES_PER_KEY`] each.
    Board {
        plan: u32,
        span: Span,
        token: u64,
    },
    /// A tensor of a plan has a new location: in the receive area, until the client returns the token.
    Placed {
        plan: u32,
        index: u32,
        meta: &'a [u8],
        span: Span,
        token: u64,
    },
    /// A tensor of a plan is in the arena of its publisher, which does not touch it until the token is returned: only for a
    /// pull that asks for views. The client asks the daemon for the arena by its number.
    Viewed {
        plan: u32,
        index: u32,
        meta: &'a [u8],
        /// The publisher's arena.
        arena: u64,
        /// Where in that arena.
        span: Span,
        token: u64,
    },
    /// Belongs to no call: the client that owned an arena is gone, and nothing in the arena will be viewed any more.
    ArenaGone {
        arena: u64,
    },
    /// A tensor of a plan kept its location and has new metadata.
    Reshaped {
        plan: u32,
        index: u32,
        meta: &'a [u8],
    },
    /// A tensor of a plan did not come with the pull that ends next.
    Missed {
        plan: u32,
        index: u32,
        error: Error,
    },
    /// A tensor was pushed into one of the client's queues, which has credit for it.
    Accepted {
        queue: u32,
        from: &'a str,
        meta: &'a [u8],
        payload: AcceptedAt<'a>,
    },
    /// A queue could not be opened; its number stays in use until it is closed.
    Unopened {
        queue: u32,
        error: Error,
    },
    /// A queue is closed, as the client asked: no more tensors of it follow. Those not handed over go to the client's next
    /// queue with that name.
    QueueClosed {
        queue: u32,
    },
    /// Every tensor of a pull has come or was missed.
    Pulled {
        call: u32,
    },
    /// Belongs to no call: the daemon is about to stop. It finishes what is in flight; new calls must go to the next daemon.
    Draining,
}

/// Bytes of a plan's board per key: the version of its tensor, 64 bits, little-endian.
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
    pub(super) const VIEWED: u8 = 15;
    pub(super) const ARENA_GONE: u8 = 16;
    pub(super) const ARRIVED: u8 = 17;
}

/// Where the payload of a received or accepted tensor is.
mod place {
    pub(super) const INLINE: u8 = 0;
    pub(super) const DESTINATION: u8 = 1;
    pub(super) const AREA: u8 = 2;
    pub(super) const LENDING: u8 = 3;
}

const FLAG_MEMORY_BACK: u8 = 1;

fixed_parts! {
    /// Beginning of a received or accepted tensor: the call or queue, and the lengths of what is in the record.
    struct TensorFixed { number: u32, meta_bytes: u16, inline_bytes: u16 }
    struct InDestination { fixed: TensorFixed, len: u64 }
    /// A block of the receive area.
    struct Block { span: Span, token: u64 }
    struct InArea { fixed: TensorFixed, block: Block }
    struct AcceptedFixed { arrived: TensorFixed, from_bytes: u16, unused: Unused<6> }
    struct AcceptedInArea { fixed: AcceptedFixed, block: Block }
    struct BoardFixed { plan: Number, block: Block }
    struct ReshapedFixed { plan: u32, index: u32, meta_bytes: u16, unused: Unused<6> }
    struct PlacedFixed { tensor: ReshapedFixed, block: Block }
    struct ViewedFixed { tensor: ReshapedFixed, arena: u64, block: Block }
    /// An error, and the number of the call, plan or queue that failed.
    struct FailedFixed {
        number: u32, code: u8, operation: u8, delivery_unknown: u8, unused: Unused<1>,
        step: i64, waited_s: u64, waited_ns: u32, subject_bytes: u16, reason_bytes: u16,
    }
    struct MissedFixed { failed: FailedFixed, index: Number }
}

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
            Completion::ArrivedAlone { call, meta, bytes } => {
                let fixed = TensorFixed::new(*call, meta)?.with(bytes)?;
                into.fill(kind::RECEIVED, place::INLINE, fixed, &[bytes, meta]);
            }
            Completion::Arrived { calls } => into.fill(kind::ARRIVED, 0, calls.fixed(), &calls.sections()),
            Completion::Received { call, meta, payload } => {
                let fixed = TensorFixed::new(*call, meta)?;
                match *payload {
                    ReceivedAt::Destination { len } => {
                        into.fill(kind::RECEIVED, place::DESTINATION, InDestination { fixed, len }, &[meta]);
                    }
                    ReceivedAt::Area { span, token } => {
                        let block = Block { span, token };
                        into.fill(kind::RECEIVED, place::AREA, InArea { fixed, block }, &[meta]);
                    }
                    ReceivedAt::Lending { span, token } => {
                        let block = Block { span, token };
                        into.fill(kind::RECEIVED, place::LENDING, InArea { fixed, block }, &[meta]);
                    }
                }
            }
            Completion::Sent { calls } => encode_calls(kind::SENT, calls, into)?,
            Completion::Returned { calls } => encode_calls(kind::RETURNED, calls, into)?,
            Completion::Published { calls } => encode_calls(kind::PUBLISHED, calls, into)?,
            Completion::Failed { call, memory_back, error } => {
                let failure = Failure::of(error);
                let (fixed, texts) = failed(*call, &failure)?;
                into.fill(kind::FAILED, if *memory_back { FLAG_MEMORY_BACK } else { 0 }, fixed, &texts);
            }
            Completion::Missed { plan, index, error } => {
                let failure = Failure::of(error);
                let (failed, texts) = failed(*plan, &failure)?;
                into.fill(kind::MISSED, 0, MissedFixed { failed, index: Number::new(*index) }, &texts);
            }
            Completion::Board { plan, span, token } => {
                let block = Block { span: *span, token: *token };
                into.fill(kind::BOARD, 0, BoardFixed { plan: Number::new(*plan), block }, &[]);
            }
            Completion::Placed { plan, index, meta, span, token } => {
                let tensor = ReshapedFixed::new(*plan, *index, meta)?;
                into.fill(
                    kind::PLACED,
                    0,
                    PlacedFixed { tensor, block: Block { span: *span, token: *token } },
                    &[meta],
                );
            }
            Completion::Viewed { plan, index, meta, arena, span, token } => {
                let (tensor, block) = (ReshapedFixed::new(*plan, *index, meta)?, Block { span: *span, token: *token });
                into.fill(kind::VIEWED, 0, ViewedFixed { tensor, arena: *arena, block }, &[meta]);
            }
            Completion::ArenaGone { arena } => into.fill(kind::ARENA_GONE, 0, *arena, &[]),
            Completion::Reshaped { plan, index, meta } => {
                into.fill(kind::RESHAPED, 0, ReshapedFixed::new(*plan, *index, meta)?, &[meta]);
            }
            Completion::Pulled { call } => into.fill(kind::PULLED, 0, Number::new(*call), &[]),
            Completion::QueueClosed { queue } => into.fill(kind::QUEUE_CLOSED, 0, Number::new(*queue), &[]),
            Completion::Draining => into.fill(kind::DRAINING, 0, (), &[]),
            Completion::Accepted { queue, from, meta, payload } => {
                let arrived = TensorFixed::new(*queue, meta)?;
                let from_bytes = at_most("name", from.len(), NAME_BYTES_MAX)?;
                let (fixed, from) = (AcceptedFixed { arrived, from_bytes, unused: [0; _] }, from.as_bytes());
                match *payload {
                    AcceptedAt::Inline(payload) => {
                        let fixed = AcceptedFixed { arrived: arrived.with(payload)?, ..fixed };
                        into.fill(kind::ACCEPTED, place::INLINE, fixed, &[payload, meta, from]);
                    }
                    AcceptedAt::Area { span, token } => {
                        let block = Block { span, token };
                        into.fill(kind::ACCEPTED, place::AREA, AcceptedInArea { fixed, block }, &[meta, from]);
                    }
                }
            }
            Completion::Unopened { queue, error } => {
                let failure = Failure::of(error);
                let (fixed, texts) = failed(*queue, &failure)?;
                into.fill(kind::UNOPENED, 0, fixed, &texts);
            }
        }
        Ok(())
    }

    /// Reads a completion from a record, which may hold anything.
    ///
    /// # Errors
    /// [`Malformed`] if it is not one. The caller must check calls and spans itself.
    #[inline]
    pub fn decode(record: &'a Record) -> Result<Self, Malformed> {
        let (completion, sections) = match (record.kind, record.flags) {
            // Built directly in the return place: these are the most frequent.
            (kind::RECEIVED, place::INLINE) => {
                let (TensorFixed { number: call, meta_bytes, inline_bytes }, mut sections) = record.parts()?;
                let bytes = sections.bytes("inline payload", inline_bytes, INLINE_BYTES_MAX)?;
                let meta = sections.bytes("metadata", meta_bytes, META_BYTES_MAX)?;
                sections.end()?;
                return Ok(Completion::ArrivedAlone { call, meta, bytes });
            }
            (kind::ARRIVED, 0) => {
                let (list, mut sections) = record.parts::<ListFixed>()?;
                let calls = CallList::read(list, &mut sections)?;
                calls.has_no_keys()?;
                sections.end()?;
                return Ok(Completion::Arrived { calls });
            }
            (kind::RECEIVED, place @ (place::DESTINATION | place::AREA | place::LENDING)) => {
                let (TensorFixed { number: call, meta_bytes, .. }, mut sections) = record.parts()?;
                let payload = match place {
                    place::DESTINATION => ReceivedAt::Destination { len: sections.fixed()? },
                    place => {
                        let Block { span, token } = sections.fixed()?;
                        match place {
                            place::AREA => ReceivedAt::Area { span, token },
                            _ => ReceivedAt::Lending { span, token },
                        }
                    }
                };
                let meta = sections.bytes("metadata", meta_bytes, META_BYTES_MAX)?;
                (Completion::Received { call, meta, payload }, sections)
            }
            (kind @ (kind::SENT | kind::RETURNED | kind::PUBLISHED), 0) => {
                let (count, mut sections) = record.parts()?;
                let calls = sections.numbers("calls", count, NUMBERS_PER_RECORD)?;
                let completion = match kind {
                    kind::SENT => Completion::Sent { calls },
                    kind::RETURNED => Completion::Returned { calls },
                    _ => Completion::Published { calls },
                };
                (completion, sections)
            }
            (kind::FAILED, flags @ (0 | FLAG_MEMORY_BACK)) => {
                let (fixed, mut sections) = record.parts()?;
                let (call, error) = error(fixed, &mut sections)?;
                (Completion::Failed { call, memory_back: flags == FLAG_MEMORY_BACK, error }, sections)
            }
            (kind::MISSED, 0) => {
                let (MissedFixed { failed, index: Number { number: index, .. } }, mut sections) = record.parts()?;
                let (plan, error) = error(failed, &mut sections)?;
                (Completion::Missed { plan, index, error }, sections)
            }
            (kind::BOARD, 0) => {
                let (BoardFixed { plan, block: Block { span, token } }, sections) = record.parts()?;
                (Completion::Board { plan: plan.number, span, token }, sections)
            }
            (kind::PLACED, 0) => {
                let (PlacedFixed { tensor, block: Block { span, token } }, mut sections) = record.parts()?;
                let ReshapedFixed { plan, index, meta_bytes, .. } = tensor;
                let meta = sections.bytes("metadata", meta_bytes, META_BYTES_MAX)?;
                (Completion::Placed { plan, index, meta, span, token }, sections)
            }
            (kind::VIEWED, 0) => {
                let (ViewedFixed { tensor, arena, block: Block { span, token } }, mut sections) = record.parts()?;
                let ReshapedFixed { plan, index, meta_bytes, .. } = tensor;
                let meta = sections.bytes("metadata", meta_bytes, META_BYTES_MAX)?;
                (Completion::Viewed { plan, index, meta, arena, span, token }, sections)
            }
            (kind::ARENA_GONE, 0) => {
                let (arena, sections) = record.parts()?;
                (Completion::ArenaGone { arena }, sections)
            }
            (kind::RESHAPED, 0) => {
                let (ReshapedFixed { plan, index, meta_bytes, .. }, mut sections) = record.parts()?;
                let meta = sections.bytes("metadata", meta_bytes, META_BYTES_MAX)?;
                (Completion::Reshaped { plan, index, meta }, sections)
            }
            (kind::PULLED, 0) => {
                let (Number { number: call, .. }, sections) = record.parts()?;
                (Completion::Pulled { call }, sections)
            }
            (kind::ACCEPTED, place @ (place::INLINE | place::AREA)) => {
                let (AcceptedFixed { arrived, from_bytes, .. }, mut sections) = record.parts()?;
                let payload = match place {
                    place::INLINE => {
                        AcceptedAt::Inline(sections.bytes("inline payload", arrived.inline_bytes, INLINE_BYTES_MAX)?)
                    }
                    _ => {
                        let Block { span, token } = sections.fixed()?;
                        AcceptedAt::Area { span, token }
                    }
                };
                let meta = sections.bytes("metadata", arrived.meta_bytes, META_BYTES_MAX)?;
                let from = sections.text("name", from_bytes, NAME_BYTES_MAX)?;
                (Completion::Accepted { queue: arrived.number, from, meta, payload }, sections)
            }
            (kind::UNOPENED, 0) => {
                let (fixed, mut sections) = record.parts()?;
                let (queue, error) = error(fixed, &mut sections)?;
                (Completion::Unopened { queue, error }, sections)
            }
            (kind::DRAINING, 0) => {
                let ((), sections) = record.parts()?;
                (Completion::Draining, sections)
            }
            (kind::QUEUE_CLOSED, 0) => {
                let (Number { number: queue, .. }, sections) = record.parts()?;
                (Completion::QueueClosed { queue }, sections)
            }
            (kind::SENT..=kind::ARRIVED, _) => return Err(Malformed { what: "an unknown flag" }),
            _ => return Err(Malformed { what: "an unknown kind of completion" }),
        };
        sections.end()?;
        Ok(completion)
    }
}

impl TensorFixed {
    #[inline]
    fn new(number: u32, meta: &[u8]) -> Result<Self, TooLong> {
        let meta_bytes = at_most("metadata", meta.len(), META_BYTES_MAX)?;
        Ok(Self { number, meta_bytes, inline_bytes: 0 })
    }

    /// For a tensor whose payload is in the record.
    #[inline]
    fn with(self, payload: &[u8]) -> Result<Self, TooLong> {
        Ok(Self { inline_bytes: at_most("inline payload", payload.len(), INLINE_BYTES_MAX)?, ..self })
    }
}

impl ReshapedFixed {
    #[inline]
    fn new(plan: u32, index: u32, meta: &[u8]) -> Result<Self, TooLong> {
        let meta_bytes = at_most("metadata", meta.len(), META_BYTES_MAX)?;
        Ok(Self { plan, index, meta_bytes, unused: [0; _] })
    }
}

/// An error as a fixed part and strings.
fn failed<'e>(number: u32, failure: &Failure<'e>) -> Result<(FailedFixed, [&'e [u8]; 2]), TooLong> {
    let &Failure { code, operation, delivery_unknown, step, waited, subject, reason } = failure;
    let fixed = FailedFixed {
        number,
        code,
        operation,
        delivery_unknown: delivery_unknown.into(),
        unused: [0; _],
        step,
        waited_s: waited.as_secs(),
        waited_ns: waited.subsec_nanos(),
        subject_bytes: at_most("subject", subject.len(), KEY_BYTES_MAX)?,
        reason_bytes: at_most("reason", reason.len(), REASON_BYTES_MAX)?,
    };
    Ok((fixed, [subject.as_bytes(), reason.as_bytes()]))
}

/// Reads what [`failed`] wrote: the number and the error.
fn error(fixed: FailedFixed, sections: &mut Sections<'_>) -> Result<(u32, Error), Malformed> {
    let FailedFixed { number, code, operation, delivery_unknown, step, waited_s, waited_ns, .. } = fixed;
    let subject = sections.text("subject", fixed.subject_bytes, KEY_BYTES_MAX)?;
    let reason = sections.text("reason", fixed.reason_bytes, REASON_BYTES_MAX)?;
    let (delivery_unknown, waited) = (delivery_unknown != 0, Failure::waited(waited_s, waited_ns)?);
    let failure = Failure { code, operation, delivery_unknown, step, waited, subject, reason };
    Ok((number, failure.into_error()?))
}

#[inline]
fn encode_calls(kind: u8, calls: &[u32], into: &mut Record) -> Result<(), TooLong> {
    at_most("calls", calls.len(), NUMBERS_PER_RECORD)?;
    into.fill(kind, 0, calls.len() as u64, &[calls.as_bytes()]);
    Ok(())
}

#[cfg(test)]
mod tests;
