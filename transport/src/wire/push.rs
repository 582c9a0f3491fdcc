//! Frames of pushes: numbered streams of tensors into the queues of the other side, with credit in messages and bytes.

use sealane_runtime::VolatileSlice;
use zerocopy::little_endian::{U16, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::frame::{
    FRAME_HEADER_BYTES, KIND_PUSH, KIND_PUSH_CLOSE, KIND_PUSH_FAILURE, KIND_PUSH_GRANT, KIND_PUSH_OPEN, KIND_PUSH_WANT,
    KIND_PUSHES, bounded, cut, reason,
};
use super::group::{split, walk};
use super::{FrameWriter, WireError, fixed, text};
use crate::arena::Handle;
use crate::limits::{FRAME_BODY_BYTES_MAX, KEY_BYTES_MAX, META_BYTES_MAX, PART_BYTES};

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct OpenFixed {
    first: U64,
    from: U16,
    to: U16,
}

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct PushFixed {
    number: U64,
    payload_bytes: U64,
}

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct PushEntry {
    payload_bytes: U16,
    meta_bytes: U16,
}

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct GrantFixed {
    taken: U64,
    messages: U64,
    bytes: U64,
}

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct WantFixed {
    least: U64,
    all: U64,
}

const _: () = {
    assert!(size_of::<OpenFixed>() == 12);
    assert!(size_of::<PushFixed>() == 16);
    assert!(size_of::<PushEntry>() == 4);
    assert!(size_of::<GrantFixed>() == 24);
    assert!(size_of::<WantFixed>() == 16);
};

/// Instead of the length of metadata: the same metadata as the entry before.
const SAME_META: u16 = u16::MAX;

/// A stream of pushes begins or continues on this link.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PushOpen<'a> {
    /// The pusher's handle for the stream.
    pub stream: Handle,
    /// Number of the first push that may follow.
    pub first: u64,
    /// The pushing task: its index in its side's greeting.
    pub from: u16,
    /// The accepting task: its index in its side's greeting.
    pub to: u16,
    pub queue: &'a str,
}

/// One tensor of a stream; `payload_bytes` raw bytes follow the frame, or come in chunks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Push<'a> {
    pub stream: Handle,
    /// Its number in the stream.
    pub number: u64,
    pub payload_bytes: u64,
    /// The transfer in whose chunks the payload comes; 0 if it follows the frame.
    pub transfer: u16,
    pub meta: &'a [u8],
}

/// Several small tensors of a stream, including their payloads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pushes<'a> {
    pub stream: Handle,
    /// Number of the first.
    pub first: u64,
    pub records: PushRecords<'a>,
}

/// Concatenated small tensors, each with its metadata or with that of the one before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PushRecords<'a>(&'a [u8]);

impl<'a> PushRecords<'a> {
    /// The tensors in bytes that [`PushRecordsBuf`] wrote or [`as_bytes`](Self::as_bytes) returned.
    pub fn of(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }

    /// The bytes as on the wire.
    pub fn as_bytes(self) -> &'a [u8] {
        self.0
    }

    #[inline]
    pub fn iter(self) -> impl Iterator<Item = Result<PushRecord<'a>, WireError>> {
        let (mut rest, mut is_first) = (self, true);
        walk(move || {
            let record = rest.next(is_first)?;
            is_first = false;
            Ok(record)
        })
    }

    /// Removes and returns the next tensor; the first must have metadata of its own.
    #[inline]
    pub(crate) fn next(&mut self, is_first: bool) -> Result<Option<PushRecord<'a>>, WireError> {
        if self.0.is_empty() {
            return Ok(None);
        }
        let (entry, tail) = fixed::<PushEntry>("push of several", self.0)?;
        let meta_bytes = entry.meta_bytes.get();
        let (meta, tail) = if meta_bytes == SAME_META && !is_first {
            (None, tail)
        } else {
            let (meta, tail) = split("metadata", tail, usize::from(meta_bytes), META_BYTES_MAX)?;
            (Some(meta), tail)
        };
        let (payload, tail) = split("payload", tail, usize::from(entry.payload_bytes.get()), FRAME_BODY_BYTES_MAX)?;
        self.0 = tail;
        Ok(Some((meta, payload)))
    }
}

/// A tensor's metadata, or `None` if it is the same as the one before, and its payload.
pub type PushRecord<'a> = (Option<&'a [u8]>, &'a [u8]);

/// What the accepting side has taken from a stream, and how much the pusher may send.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PushGrant {
    pub stream: Handle,
    /// Every push before this number was taken.
    pub taken: u64,
    /// Pushes before this number may be sent.
    pub messages: u64,
    /// A push may be sent while the payloads before it, since the stream began, have fewer bytes than this; a large push only
    /// if its own bytes are within this as well.
    pub bytes: u64,
}

/// The credit in bytes that a pusher waits for if its next tensor is large, counted from the stream's beginning.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PushWant {
    pub stream: Handle,
    /// With this many the next push may be sent.
    pub least: u64,
    /// With this many all pushes known to follow may be sent; at least `least`.
    pub all: u64,
}

/// A push that was refused; its number counts as taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PushFailure<'a> {
    pub stream: Handle,
    /// One of gRPC's canonical codes.
    pub code: u8,
    /// The push.
    pub number: u64,
    pub reason: &'a str,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PushFrame<'a> {
    Open(PushOpen<'a>),
    Push(Push<'a>),
    Pushes(Pushes<'a>),
    Grant(PushGrant),
    Want(PushWant),
    Failure(PushFailure<'a>),
    /// The pusher will push nothing more into a stream.
    Close {
        stream: Handle,
    },
}

impl<'a> PushFrame<'a> {
    #[inline]
    pub(super) fn read(
        kind: u8,
        (code, transfer): (u8, u16),
        stream: Handle,
        body: &'a [u8],
    ) -> Result<Self, WireError> {
        Ok(match kind {
            KIND_PUSHES => {
                let (first, entries) = fixed::<U64>("pushes", body)?;
                PushFrame::Pushes(Pushes { stream, first: first.get(), records: PushRecords(entries) })
            }
            KIND_PUSH => {
                let (fields, meta) = fixed::<PushFixed>("push", body)?;
                bounded("metadata", meta.len(), META_BYTES_MAX)?;
                let (number, payload_bytes) = (fields.number.get(), fields.payload_bytes.get());
                PushFrame::Push(Push { stream, number, payload_bytes, transfer, meta })
            }
            KIND_PUSH_GRANT => {
                let (fields, _) = fixed::<GrantFixed>("grant of pushes", body)?;
                let (taken, messages, bytes) = (fields.taken.get(), fields.messages.get(), fields.bytes.get());
                PushFrame::Grant(PushGrant { stream, taken, messages, bytes })
            }
            KIND_PUSH_WANT => {
                let (fields, _) = fixed::<WantFixed>("want of a push", body)?;
                PushFrame::Want(PushWant { stream, least: fields.least.get(), all: fields.all.get() })
            }
            KIND_PUSH_OPEN => {
                let (fields, queue) = fixed::<OpenFixed>("stream of pushes", body)?;
                bounded("queue", queue.len(), KEY_BYTES_MAX)?;
                let (first, from, to) = (fields.first.get(), fields.from.get(), fields.to.get());
                PushFrame::Open(PushOpen { stream, first, from, to, queue: text("queue", queue)? })
            }
            KIND_PUSH_FAILURE => {
                let (number, why) = fixed::<U64>("push failure", body)?;
                PushFrame::Failure(PushFailure { stream, code, number: number.get(), reason: reason(why)? })
            }
            _ => PushFrame::Close { stream },
        })
    }
}

/// Small tensors being concatenated for [`PushRecords`] to read.
#[derive(Debug, Default)]
pub struct PushRecordsBuf {
    bytes: Vec<u8>,
    last_meta: LastMeta,
}

/// Where the metadata written last is, if any was.
type LastMeta = Option<(usize, usize)>;

impl PushRecordsBuf {
    /// An empty buffer that reuses memory.
    pub fn within(mut bytes: Vec<u8>) -> Self {
        bytes.clear();
        Self { bytes, last_meta: None }
    }

    #[inline]
    pub fn push(&mut self, meta: &[u8], payload: VolatileSlice<'_>) {
        write_record(&mut self.bytes, &mut self.last_meta, meta, payload);
    }

    /// True if a frame has no room for another tensor with this many bytes of metadata and payload.
    #[inline]
    pub fn is_full(&self, bytes: usize) -> bool {
        FRAME_HEADER_BYTES + size_of::<U64>() + self.bytes.len() + size_of::<PushEntry>() + bytes > PART_BYTES
    }

    pub fn records(&self) -> PushRecords<'_> {
        PushRecords(&self.bytes)
    }

    /// The memory, for reuse.
    pub fn into_memory(self) -> Vec<u8> {
        self.bytes
    }
}

/// A frame of small pushes that is being written.
pub struct PushGroup<'a, 'w> {
    writer: &'a mut FrameWriter<'w>,
    start: usize,
    last_meta: LastMeta,
}

#[inline]
fn write_record(bytes: &mut Vec<u8>, last_meta: &mut LastMeta, meta: &[u8], payload: VolatileSlice<'_>) {
    let same = last_meta.is_some_and(|(at, length)| bytes[at..at + length] == *meta);
    let meta_bytes = if same { SAME_META } else { meta.len() as u16 };
    let entry = PushEntry { payload_bytes: U16::new(payload.len() as u16), meta_bytes: U16::new(meta_bytes) };
    bytes.reserve(size_of::<PushEntry>() + meta.len() + payload.len());
    bytes.extend_from_slice(entry.as_bytes());
    if !same {
        *last_meta = Some((bytes.len(), meta.len()));
        bytes.extend_from_slice(meta);
    }
    payload.append_to(bytes);
}

impl<'w> FrameWriter<'w> {
    /// Writes that a stream begins or continues.
    pub fn push_open(&mut self, open: &PushOpen<'_>) {
        let fields = OpenFixed { first: U64::new(open.first), from: U16::new(open.from), to: U16::new(open.to) };
        self.frame(KIND_PUSH_OPEN, 0, open.stream.to_bits(), fields.as_bytes(), open.queue.as_bytes());
    }

    /// Writes the frame of one push; the caller must send its payload next.
    pub fn push(&mut self, push: &Push<'_>) {
        let fields = PushFixed { number: U64::new(push.number), payload_bytes: U64::new(push.payload_bytes) };
        let start = self.0.len();
        self.frame(KIND_PUSH, 0, push.stream.to_bits(), fields.as_bytes(), push.meta);
        self.name_transfer(start, push.transfer);
    }

    /// Begins a frame of small pushes.
    #[inline]
    pub fn pushes(&mut self, stream: Handle, first: u64) -> PushGroup<'_, 'w> {
        let start = self.begin(KIND_PUSHES, stream.to_bits());
        self.0.extend_from_slice(&first.to_le_bytes());
        PushGroup { writer: self, start, last_meta: None }
    }

    /// Writes what was taken, and how much the pusher may send.
    pub fn push_grant(&mut self, grant: &PushGrant) {
        let (taken, messages, bytes) = (U64::new(grant.taken), U64::new(grant.messages), U64::new(grant.bytes));
        let fields = GrantFixed { taken, messages, bytes };
        self.frame(KIND_PUSH_GRANT, 0, grant.stream.to_bits(), fields.as_bytes(), &[]);
    }

    /// Writes how much credit a stream waits for.
    pub fn push_want(&mut self, want: &PushWant) {
        let fields = WantFixed { least: U64::new(want.least), all: U64::new(want.all) };
        self.frame(KIND_PUSH_WANT, 0, want.stream.to_bits(), fields.as_bytes(), &[]);
    }

    /// Writes that a push was refused.
    pub fn push_failure(&mut self, failure: &PushFailure<'_>) {
        let (number, why) = (U64::new(failure.number), cut(failure.reason));
        let stream = failure.stream.to_bits();
        self.frame(KIND_PUSH_FAILURE, failure.code, stream, number.as_bytes(), why.as_bytes());
    }

    /// Writes that a stream has ended.
    pub fn push_close(&mut self, stream: Handle) {
        self.frame(KIND_PUSH_CLOSE, 0, stream.to_bits(), &[], &[]);
    }
}

impl PushGroup<'_, '_> {
    /// True if there is no room for another tensor with this many bytes of metadata and payload.
    #[inline]
    pub fn is_full(&self, bytes: usize) -> bool {
        self.writer.0.len() - self.start + size_of::<PushEntry>() + bytes > PART_BYTES
    }

    #[inline]
    pub fn push(&mut self, meta: &[u8], payload: VolatileSlice<'_>) {
        write_record(self.writer.0, &mut self.last_meta, meta, payload);
    }

    /// Adds tensors that were written before.
    #[inline]
    pub fn extend(&mut self, records: PushRecords<'_>) {
        self.last_meta = None;
        self.writer.0.extend_from_slice(records.0);
    }

    pub fn end(self) {
        self.writer.end(self.start);
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Frame, parse, written};
    use super::*;

    fn read(bytes: &[u8]) -> PushFrame<'_> {
        match parse(bytes) {
            Ok(Some((Frame::Push(frame), length))) if length == bytes.len() => frame,
            other => panic!("not a frame of pushes: {other:?}"),
        }
    }

    #[test]
    fn every_frame_reads_back_as_written() {
        let stream = Handle::from_bits(3 << 32 | 9);
        let open = PushOpen { stream, first: 7, from: 1, to: 2, queue: "gradients" };
        assert_eq!(read(&written(|w| w.push_open(&open))), PushFrame::Open(open));
        let push = Push { stream, number: 1 << 50, payload_bytes: 1 << 40, transfer: 1, meta: b"meta" };
        assert_eq!(read(&written(|w| w.push(&push))), PushFrame::Push(push));
        let grant = PushGrant { stream, taken: 1, messages: 2, bytes: u64::MAX };
        assert_eq!(read(&written(|w| w.push_grant(&grant))), PushFrame::Grant(grant));
        let want = PushWant { stream, least: 3, all: 1 << 40 };
        assert_eq!(read(&written(|w| w.push_want(&want))), PushFrame::Want(want));
        let failure = PushFailure { stream, code: 8, number: 5, reason: "full" };
        assert_eq!(read(&written(|w| w.push_failure(&failure))), PushFrame::Failure(failure));
        assert_eq!(read(&written(|w| w.push_close(stream))), PushFrame::Close { stream });
    }

    #[test]
    fn metadata_that_repeats_is_written_once() {
        let stream = Handle::from_bits(1 << 32);
        let tensors: [(&[u8], &[u8]); 4] = [(b"meta", b"one"), (b"meta", b"two"), (b"other", b""), (b"meta", b"four")];
        let bytes = written(|w| {
            let mut group = w.pushes(stream, 11);
            tensors.iter().for_each(|(meta, payload)| group.push(meta, (*payload).into()));
            group.end();
        });
        let PushFrame::Pushes(pushes) = read(&bytes) else { panic!("not pushes") };
        let mut last: &[u8] = b"";
        let entries: Vec<(&[u8], &[u8])> = pushes
            .records
            .iter()
            .map(|entry| {
                let (meta, payload) = entry.unwrap();
                last = meta.unwrap_or(last);
                (last, payload)
            })
            .collect();
        assert_eq!((pushes.first, entries), (11, tensors.to_vec()));
        assert_eq!(bytes.windows(4).filter(|window| window == b"meta").count(), 2);
    }

    #[test]
    fn the_first_entry_has_metadata_of_its_own() {
        let mut bytes = written(|w| {
            let mut group = w.pushes(Handle::from_bits(1 << 32), 0);
            group.push(b"m", b"bytes".into());
            group.end();
        });
        let at = super::super::FRAME_HEADER_BYTES + 8 + 2;
        bytes[at..at + 2].copy_from_slice(&SAME_META.to_le_bytes());
        let PushFrame::Pushes(pushes) = read(&bytes) else { panic!("not pushes") };
        assert!(matches!(pushes.records.iter().next(), Some(Err(WireError::TooLong { what: "metadata", .. }))));
    }
}
