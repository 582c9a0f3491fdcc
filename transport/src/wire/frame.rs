//! Frames: a checked view for reading, and a writer that cannot produce an invalid one.

use zerocopy::little_endian::{I64, U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::ahead::AheadFrame;
use super::group::{Requests, Responses};
use super::pull::PullFrame;
use super::push::PushFrame;
use super::{WireError, fixed, text};
use crate::arena::Handle;
use crate::if_gone::IfGone;
use crate::limits::{FRAME_BODY_BYTES_MAX, KEY_BYTES_MAX, META_BYTES_MAX, REASON_BYTES_MAX, RELEASES_PER_FRAME};
use crate::named_rows::NamedRows;

pub const FRAME_HEADER_BYTES: usize = size_of::<Header>();

const KIND_REQUEST: u8 = 1;
const KIND_RESPONSE: u8 = 2;
const KIND_FAILURE: u8 = 3;
const KIND_PARKED: u8 = 4;
const KIND_CANCEL: u8 = 5;
const KIND_RELEASE: u8 = 6;
const KIND_RELEASED: u8 = 7;
const KIND_RESUMED: u8 = 8;
const KIND_ABORT: u8 = 9;
const KIND_PING: u8 = 10;
const KIND_PONG: u8 = 11;
const KIND_GO_AWAY: u8 = 12;
pub(super) const KIND_REQUESTS: u8 = 13;
pub(super) const KIND_RESPONSES: u8 = 14;
pub(super) const KIND_KEY_SET: u8 = 15;
pub(super) const KIND_FORGET_SET: u8 = 16;
pub(super) const KIND_PULL: u8 = 17;
pub(super) const KIND_METAS: u8 = 18;
pub(super) const KIND_PARTS: u8 = 19;
pub(super) const KIND_PART: u8 = 20;
pub(super) const KIND_PULL_FAILURE: u8 = 21;
pub(super) const KIND_PULL_CANCEL: u8 = 22;
pub(super) const KIND_PUSH_OPEN: u8 = 23;
pub(super) const KIND_PUSH: u8 = 24;
pub(super) const KIND_PUSHES: u8 = 25;
pub(super) const KIND_PUSH_GRANT: u8 = 26;
pub(super) const KIND_PUSH_FAILURE: u8 = 27;
pub(super) const KIND_PUSH_CLOSE: u8 = 28;
const KIND_CHUNK: u8 = 29;
pub(super) const KIND_PUSH_WANT: u8 = 30;
const KIND_ROWS: u8 = 31;
pub(super) const KIND_AHEAD: u8 = 32;
pub(super) const KIND_AHEAD_RELEASE: u8 = 33;
pub(super) const KIND_AHEAD_REVOKE: u8 = 34;
pub(super) const KIND_AHEAD_HELD: u8 = 35;

/// In the code of a request, a group of requests, a request for rows and a pull: it fails if its task is gone.
pub(super) const FAILS_IF_GONE: u8 = 1;

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct Header {
    kind: u8,
    code: u8,
    transfer: U16,
    body_bytes: U32,
    id: U64,
}

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct RequestFixed {
    step: I64,
    timeout_ms: U32,
    consumer: U16,
    producer: U16,
}

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct RowsFixed {
    min_version: I64,
    timeout_ms: U32,
    consumer: U16,
    producer: U16,
}

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct ResponseFixed {
    token: U64,
    payload_bytes: U64,
}

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct AbortFixed {
    step: I64,
    task: U16,
    reserved: U16,
}

const _: () = {
    assert!(size_of::<Header>() == 16);
    assert!(size_of::<RequestFixed>() == 16);
    assert!(size_of::<RowsFixed>() == 16);
    assert!(size_of::<ResponseFixed>() == 16);
    assert!(size_of::<AbortFixed>() == 12);
};

/// A consumer requests a tensor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Request<'a> {
    /// The consumer's handle; returned with the answer.
    pub id: Handle,
    pub step: i64,
    /// How many more milliseconds the consumer waits; 0 means that it has given up.
    pub timeout_ms: u32,
    /// The requesting task: its index in the task list of the requester's greeting.
    pub consumer: u16,
    /// The requested task: its index in the task list of the other side's greeting.
    pub producer: u16,
    pub if_gone: IfGone,
    /// The tensor's name within the step.
    pub key: &'a str,
}

/// A consumer requests rows of published tables; answered like a [`Request`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RowRequest<'a> {
    /// The consumer's handle; returned with the answer.
    pub id: Handle,
    /// The oldest version of each table that will do.
    pub min_version: i64,
    /// How many more milliseconds the consumer waits.
    pub timeout_ms: u32,
    /// The requesting task: its index in the task list of the requester's greeting.
    pub consumer: u16,
    /// The requested task: its index in the task list of the other side's greeting.
    pub producer: u16,
    /// It fails if the task has left.
    pub fail_if_gone: bool,
    pub rows: NamedRows<'a>,
}

/// A producer answers with a tensor; `payload_bytes` raw bytes follow the frame, or come in chunks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Response<'a> {
    /// The request's id.
    pub id: Handle,
    /// The producer's handle for the tensor; returned with the release.
    pub token: Handle,
    pub payload_bytes: u64,
    /// The transfer in whose [chunks](Chunk) the payload comes; 0 if it follows the frame.
    pub transfer: u16,
    /// The tensor's metadata, which the transport does not read.
    pub meta: &'a [u8],
}

/// The next bytes of a payload that comes in chunks; they follow the frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Chunk {
    /// The transfer, as named by the payload's own frame.
    pub transfer: u16,
    /// Bytes that follow.
    pub bytes: u64,
}

/// A request that ended without a tensor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Failure<'a> {
    /// The request's id.
    pub id: Handle,
    /// One of gRPC's canonical codes.
    pub code: u8,
    pub reason: &'a str,
}

/// Tensors that the consumer has, or does not take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Release<'a> {
    /// Number of the first entry since the session began.
    pub sequence: u64,
    /// The entries, consecutive from there.
    pub entries: ReleaseEntries<'a>,
}

/// The entries of a [`Release`]: token, and whether the tensor was taken (true) or goes back (false).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReleaseEntries<'a>(&'a [u8]);

impl ReleaseEntries<'_> {
    /// Entries, first to last.
    pub fn iter(self) -> impl Iterator<Item = (Handle, bool)> {
        self.0.chunks_exact(8).map(|chunk| {
            let entry = u64::from_le_bytes(chunk.try_into().expect("chunks_exact gives 8"));
            (Handle::from_bits(entry >> 1), entry & 1 == 0)
        })
    }
}

/// A step that ends for a task and its peers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Abort<'a> {
    pub step: i64,
    /// The aborting task: its place in its side's greeting.
    pub task: u16,
    pub reason: &'a str,
}

/// The sender will answer no more requests on this link.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GoAway<'a> {
    pub reason: &'a str,
}

/// One frame, checked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Frame<'a> {
    Request(Request<'a>),
    Requests(Requests<'a>),
    Rows(RowRequest<'a>),
    Response(Response<'a>),
    Responses(Responses<'a>),
    Failure(Failure<'a>),
    /// The request's tensor is not there yet; the request no longer counts against the window.
    Parked {
        id: Handle,
        /// The producer's attachment that the request waits for, if it fails when that attachment ends; else 0.
        attachment: u32,
    },
    /// The consumer no longer waits for the request.
    Cancel {
        id: Handle,
    },
    Release(Release<'a>),
    /// All releases before this number were seen.
    Released {
        sequence: u64,
    },
    /// All requests of the former link that are still open were sent again.
    Resumed,
    Abort(Abort<'a>),
    Ping {
        nonce: u64,
    },
    Pong {
        nonce: u64,
    },
    GoAway(GoAway<'a>),
    Pull(PullFrame<'a>),
    Push(PushFrame<'a>),
    Ahead(AheadFrame<'a>),
    Chunk(Chunk),
}

/// Reads the first frame of `bytes`, and returns its length too; `None` if it is not complete yet.
///
/// # Errors
/// Any [`WireError`]; nothing more can be read from the link after one.
#[inline]
pub fn parse(bytes: &[u8]) -> Result<Option<(Frame<'_>, usize)>, WireError> {
    let Ok((header, rest)) = Header::ref_from_prefix(bytes) else { return Ok(None) };
    let body_bytes = header.body_bytes.get() as usize;
    if body_bytes > FRAME_BODY_BYTES_MAX {
        let limit = FRAME_BODY_BYTES_MAX as u64;
        return Err(WireError::TooLong { what: "frame body", found: body_bytes as u64, limit });
    }
    let Some(body) = rest.get(..body_bytes) else { return Ok(None) };
    let (id, transfer) = (Handle::from_bits(header.id.get()), header.transfer.get());
    let frame = match header.kind {
        KIND_REQUEST => {
            let (fields, rest) = fixed::<RequestFixed>("request", body)?;
            let (if_gone, key) = if_gone(header.code, rest)?;
            bounded("key", key.len(), KEY_BYTES_MAX)?;
            Frame::Request(Request {
                id,
                step: fields.step.get(),
                timeout_ms: fields.timeout_ms.get(),
                consumer: fields.consumer.get(),
                producer: fields.producer.get(),
                if_gone,
                key: text("key", key)?,
            })
        }
        KIND_ROWS => {
            let (fields, rest) = fixed::<RowsFixed>("request for rows", body)?;
            Frame::Rows(RowRequest {
                id,
                min_version: fields.min_version.get(),
                timeout_ms: fields.timeout_ms.get(),
                consumer: fields.consumer.get(),
                producer: fields.producer.get(),
                fail_if_gone: header.code & FAILS_IF_GONE != 0,
                rows: NamedRows::parse(rest)?,
            })
        }
        KIND_RESPONSE => {
            let (fields, meta) = fixed::<ResponseFixed>("response", body)?;
            bounded("metadata", meta.len(), META_BYTES_MAX)?;
            Frame::Response(Response {
                id,
                token: Handle::from_bits(fields.token.get()),
                payload_bytes: fields.payload_bytes.get(),
                transfer,
                meta,
            })
        }
        KIND_FAILURE => Frame::Failure(Failure { id, code: header.code, reason: reason(body)? }),
        KIND_PARKED if body.is_empty() => Frame::Parked { id, attachment: 0 },
        KIND_PARKED => Frame::Parked { id, attachment: fixed::<U32>("parked", body)?.0.get() },
        KIND_CANCEL => Frame::Cancel { id },
        KIND_RELEASE => {
            if !body.len().is_multiple_of(8) {
                return Err(WireError::Truncated { what: "release", found: body.len() });
            }
            bounded("release", body.len() / 8, RELEASES_PER_FRAME)?;
            Frame::Release(Release { sequence: header.id.get(), entries: ReleaseEntries(body) })
        }
        KIND_RELEASED => Frame::Released { sequence: header.id.get() },
        KIND_RESUMED => Frame::Resumed,
        KIND_ABORT => {
            let (fields, why) = fixed::<AbortFixed>("abort", body)?;
            Frame::Abort(Abort { step: fields.step.get(), task: fields.task.get(), reason: reason(why)? })
        }
        KIND_PING => Frame::Ping { nonce: header.id.get() },
        KIND_PONG => Frame::Pong { nonce: header.id.get() },
        KIND_GO_AWAY => Frame::GoAway(GoAway { reason: reason(body)? }),
        KIND_REQUESTS => Frame::Requests(Requests::read(header.code, body)?),
        KIND_RESPONSES => Frame::Responses(Responses::read(body)),
        KIND_KEY_SET..=KIND_PULL_CANCEL => {
            Frame::Pull(PullFrame::read(header.kind, (header.code, transfer), id, body)?)
        }
        KIND_PUSH_OPEN..=KIND_PUSH_CLOSE | KIND_PUSH_WANT => {
            Frame::Push(PushFrame::read(header.kind, (header.code, transfer), id, body)?)
        }
        KIND_AHEAD..=KIND_AHEAD_HELD => Frame::Ahead(AheadFrame::read(header.kind, header.id.get(), body)?),
        KIND_CHUNK => Frame::Chunk(Chunk { transfer, bytes: header.id.get() }),
        unknown => return Err(WireError::UnknownKind(unknown)),
    };
    Ok(Some((frame, FRAME_HEADER_BYTES + body_bytes)))
}

/// What a request with this code does if its task is gone, and the rest of its body.
#[inline]
fn if_gone(code: u8, body: &[u8]) -> Result<(IfGone, &[u8]), WireError> {
    if code & FAILS_IF_GONE == 0 {
        return Ok((IfGone::Waits, body));
    }
    let (attachment, rest) = fixed::<U32>("request", body)?;
    Ok((IfGone::Fails { attachment: attachment.get() }, rest))
}

pub(super) fn bounded(what: &'static str, found: usize, limit: usize) -> Result<(), WireError> {
    if found > limit { Err(WireError::TooLong { what, found: found as u64, limit: limit as u64 }) } else { Ok(()) }
}

pub(super) fn reason(bytes: &[u8]) -> Result<&str, WireError> {
    bounded("reason", bytes.len(), REASON_BYTES_MAX)?;
    text("reason", bytes)
}

/// Appends frames to a byte vector. Lengths over the limits are refused where the values are made ([`crate::session`]), so
/// nothing here can fail; reasons are cut to their limit.
pub struct FrameWriter<'a>(pub &'a mut Vec<u8>);

impl FrameWriter<'_> {
    #[inline]
    pub fn request(&mut self, request: &Request<'_>) {
        let fields = RequestFixed {
            step: I64::new(request.step),
            timeout_ms: U32::new(request.timeout_ms),
            consumer: U16::new(request.consumer),
            producer: U16::new(request.producer),
        };
        let IfGone::Fails { attachment } = request.if_gone else {
            return self.frame(KIND_REQUEST, 0, request.id.to_bits(), fields.as_bytes(), request.key.as_bytes());
        };
        let (attachment, key) = (U32::new(attachment), request.key.as_bytes());
        let body_bytes = size_of::<RequestFixed>() + size_of::<U32>() + key.len();
        self.header(KIND_REQUEST, FAILS_IF_GONE, request.id.to_bits(), body_bytes);
        for part in [fields.as_bytes(), attachment.as_bytes(), key] {
            self.0.extend_from_slice(part);
        }
    }

    pub fn rows(&mut self, rows: &RowRequest<'_>) {
        let fields = RowsFixed {
            min_version: I64::new(rows.min_version),
            timeout_ms: U32::new(rows.timeout_ms),
            consumer: U16::new(rows.consumer),
            producer: U16::new(rows.producer),
        };
        let code = if rows.fail_if_gone { FAILS_IF_GONE } else { 0 };
        self.frame(KIND_ROWS, code, rows.id.to_bits(), fields.as_bytes(), rows.rows.as_bytes());
    }

    /// Writes a response's frame; the caller must send its payload next.
    #[inline]
    pub fn response(&mut self, response: &Response<'_>) {
        let fields = ResponseFixed {
            token: U64::new(response.token.to_bits()),
            payload_bytes: U64::new(response.payload_bytes),
        };
        let start = self.0.len();
        self.frame(KIND_RESPONSE, 0, response.id.to_bits(), fields.as_bytes(), response.meta);
        self.name_transfer(start, response.transfer);
    }

    /// Writes the frame of a chunk; the caller must send its bytes next.
    pub fn chunk(&mut self, chunk: Chunk) {
        let start = self.0.len();
        self.frame(KIND_CHUNK, 0, chunk.bytes, &[], &[]);
        self.name_transfer(start, chunk.transfer);
    }

    pub fn failure(&mut self, failure: &Failure<'_>) {
        self.frame(KIND_FAILURE, failure.code, failure.id.to_bits(), &[], cut(failure.reason).as_bytes());
    }

    pub fn parked(&mut self, id: Handle, attachment: u32) {
        let attachment = U32::new(attachment);
        let body = if attachment.get() == 0 { &[] } else { attachment.as_bytes() };
        self.frame(KIND_PARKED, 0, id.to_bits(), body, &[]);
    }

    pub fn cancel(&mut self, id: Handle) {
        self.frame(KIND_CANCEL, 0, id.to_bits(), &[], &[]);
    }

    /// Writes the releases that `entries` yields, at most [`RELEASES_PER_FRAME`].
    #[inline]
    pub fn release(&mut self, sequence: u64, entries: impl Iterator<Item = (Handle, bool)>) {
        let start = self.begin(KIND_RELEASE, sequence);
        for (token, taken) in entries {
            let entry = token.to_bits() << 1 | u64::from(!taken);
            self.0.extend_from_slice(&entry.to_le_bytes());
        }
        self.end(start);
    }

    /// Writes the acknowledgement of releases.
    pub fn released(&mut self, sequence: u64) {
        self.frame(KIND_RELEASED, 0, sequence, &[], &[]);
    }

    /// Writes that all requests were sent again.
    pub fn resumed(&mut self) {
        self.frame(KIND_RESUMED, 0, 0, &[], &[]);
    }

    pub fn abort(&mut self, abort: &Abort<'_>) {
        let fields = AbortFixed { step: I64::new(abort.step), task: U16::new(abort.task), reserved: U16::ZERO };
        self.frame(KIND_ABORT, 0, 0, fields.as_bytes(), cut(abort.reason).as_bytes());
    }

    pub fn ping(&mut self, nonce: u64) {
        self.frame(KIND_PING, 0, nonce, &[], &[]);
    }

    pub fn pong(&mut self, nonce: u64) {
        self.frame(KIND_PONG, 0, nonce, &[], &[]);
    }

    pub fn go_away(&mut self, reason: &str) {
        self.frame(KIND_GO_AWAY, 0, 0, &[], cut(reason).as_bytes());
    }

    #[inline]
    pub(super) fn frame(&mut self, kind: u8, code: u8, id: u64, fields: &[u8], rest: &[u8]) {
        self.header(kind, code, id, fields.len() + rest.len());
        self.0.extend_from_slice(fields);
        self.0.extend_from_slice(rest);
    }

    /// Sets the payload's transfer in the frame that begins at `start`.
    #[inline]
    pub(super) fn name_transfer(&mut self, start: usize, transfer: u16) {
        self.0[start + 2..start + 4].copy_from_slice(&transfer.to_le_bytes());
    }

    /// Begins a frame whose length is set by [`end`](Self::end); returns where it begins.
    #[inline]
    pub(super) fn begin(&mut self, kind: u8, id: u64) -> usize {
        self.begin_as(kind, 0, id)
    }

    /// As [`begin`](Self::begin), with a code.
    #[inline]
    pub(super) fn begin_as(&mut self, kind: u8, code: u8, id: u64) -> usize {
        let start = self.0.len();
        self.header(kind, code, id, 0);
        start
    }

    /// Ends the frame that begins at `start`.
    #[inline]
    pub(super) fn end(&mut self, start: usize) {
        let body_bytes = self.0.len() - start - FRAME_HEADER_BYTES;
        debug_assert!(body_bytes <= FRAME_BODY_BYTES_MAX);
        self.0[start + 4..start + 8].copy_from_slice(&(body_bytes as u32).to_le_bytes());
    }

    #[inline]
    fn header(&mut self, kind: u8, code: u8, id: u64, body_bytes: usize) {
        debug_assert!(body_bytes <= FRAME_BODY_BYTES_MAX);
        let header =
            Header { kind, code, transfer: U16::ZERO, body_bytes: U32::new(body_bytes as u32), id: U64::new(id) };
        self.0.extend_from_slice(header.as_bytes());
    }
}

pub(super) fn cut(reason: &str) -> &str {
    &reason[..reason.floor_char_boundary(REASON_BYTES_MAX)]
}

#[cfg(test)]
mod tests {
    use super::super::written;
    use super::*;

    #[test]
    fn every_frame_reads_back_as_written() {
        let id = Handle::from_bits(3 << 32 | 9);
        let if_gone = IfGone::Waits;
        let request = Request { id, step: -4, timeout_ms: 7, consumer: 1, producer: 2, if_gone, key: "w/0" };
        let of_one = Request { if_gone: IfGone::Fails { attachment: 1 << 31 }, ..request };
        let of_any = Request { if_gone: IfGone::new(true), key: "", ..request };
        let response =
            Response { id, token: Handle::from_bits(5 << 32), payload_bytes: 1 << 40, transfer: 8, meta: b"meta" };
        let failure = Failure { id, code: 14, reason: "gone" };
        let mut named = crate::named_rows::NamedRowsBuf::default();
        named.name("user", &[3, 9, 1 << 33], |_| 4);
        named.name("item", &[2, 1], |_| 2);
        let (rows, fail_if_gone) = (named.as_rows(), false);
        let rows = RowRequest { id, min_version: -2, timeout_ms: 7, consumer: 1, producer: 2, fail_if_gone, rows };
        let of_one_rows = RowRequest { fail_if_gone: true, ..rows };
        let abort = Abort { step: i64::MIN, task: 3, reason: "loss is NaN" };
        for (bytes, frame) in [
            (written(|w| w.request(&request)), Frame::Request(request)),
            (written(|w| w.request(&of_one)), Frame::Request(of_one)),
            (written(|w| w.request(&of_any)), Frame::Request(of_any)),
            (written(|w| w.rows(&rows)), Frame::Rows(rows)),
            (written(|w| w.rows(&of_one_rows)), Frame::Rows(of_one_rows)),
            (written(|w| w.response(&response)), Frame::Response(response)),
            (written(|w| w.failure(&failure)), Frame::Failure(failure)),
            (written(|w| w.parked(id, 0)), Frame::Parked { id, attachment: 0 }),
            (written(|w| w.parked(id, 9)), Frame::Parked { id, attachment: 9 }),
            (written(|w| w.cancel(id)), Frame::Cancel { id }),
            (written(|w| w.released(8)), Frame::Released { sequence: 8 }),
            (written(|w| w.resumed()), Frame::Resumed),
            (written(|w| w.abort(&abort)), Frame::Abort(abort)),
            (written(|w| w.ping(1)), Frame::Ping { nonce: 1 }),
            (written(|w| w.pong(2)), Frame::Pong { nonce: 2 }),
            (
                written(|w| w.chunk(Chunk { transfer: 3, bytes: 1 << 40 })),
                Frame::Chunk(Chunk { transfer: 3, bytes: 1 << 40 }),
            ),
            (written(|w| w.go_away("bye")), Frame::GoAway(GoAway { reason: "bye" })),
        ] {
            assert_eq!(parse(&bytes), Ok(Some((frame, bytes.len()))));
            for shorter in 0..bytes.len() {
                assert_eq!(parse(&bytes[..shorter]), Ok(None), "{frame:?} cut to {shorter}");
            }
        }
        let entries = [(id, true), (Handle::from_bits(1 << 32), false)];
        let bytes = written(|w| w.release(40, entries.into_iter()));
        let Ok(Some((Frame::Release(release), _))) = parse(&bytes) else { panic!("not a release") };
        assert_eq!((release.sequence, release.entries.iter().collect::<Vec<_>>()), (40, entries.to_vec()));
    }

    #[test]
    fn bad_frames_are_named() {
        let mut unknown = written(|w| w.ping(1));
        unknown[0] = 77;
        assert_eq!(parse(&unknown), Err(WireError::UnknownKind(77)));
        let mut long = written(|w| w.ping(1));
        long[4..8].copy_from_slice(&u32::MAX.to_le_bytes());
        assert!(matches!(parse(&long), Err(WireError::TooLong { what: "frame body", .. })));
        let mut odd = written(|w| w.release(0, [(Handle::from_bits(1), true)].into_iter()));
        odd[4] = 7;
        assert!(matches!(parse(&odd), Err(WireError::Truncated { what: "release", .. })));
        let mut truncated = written(|w| {
            let (id, if_gone) = (Handle::from_bits(1), IfGone::new(true));
            w.request(&Request { id, step: 0, timeout_ms: 0, consumer: 0, producer: 0, if_gone, key: "" })
        });
        for body_bytes in [15, 19] {
            truncated[4] = body_bytes;
            assert!(matches!(parse(&truncated), Err(WireError::Truncated { what: "request", .. })));
        }
        let mut parked = written(|w| w.parked(Handle::from_bits(1), 1));
        parked[4] = 3;
        assert!(matches!(parse(&parked), Err(WireError::Truncated { what: "parked", .. })));
        let mut not_text = written(|w| w.go_away("x"));
        *not_text.last_mut().unwrap() = 0xff;
        assert_eq!(parse(&not_text), Err(WireError::NotUtf8("reason")));
    }

    #[test]
    fn a_long_reason_is_cut_at_a_character() {
        let reason = "é".repeat(REASON_BYTES_MAX);
        let bytes = written(|w| w.go_away(&reason));
        let Ok(Some((Frame::GoAway(away), _))) = parse(&bytes) else { panic!("not a farewell") };
        assert_eq!(away.reason.len(), REASON_BYTES_MAX);
    }
}
