//! Frames of small tensors sent ahead of their requests, numbered and with their keys, and of what became of them.

use sealane_runtime::VolatileSlice;
use zerocopy::little_endian::{I64, U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::frame::{FRAME_HEADER_BYTES, KIND_AHEAD, KIND_AHEAD_HELD, KIND_AHEAD_RELEASE, KIND_AHEAD_REVOKE, bounded};
use super::group::{split, walk};
use super::{FrameWriter, WireError, fixed, text};
use crate::limits::{
    AHEAD_RELEASES_PER_FRAME, AHEAD_TENSOR_BYTES, FRAME_BODY_BYTES_MAX, KEY_BYTES_MAX, META_BYTES_MAX, PART_BYTES,
};

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct EndsFixed {
    step: I64,
    producer: U16,
    consumer: U16,
}

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct Entry {
    key_bytes: U16,
    meta_bytes: U16,
    payload_bytes: U16,
}

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct ReleaseEntry {
    first: U64,
    count: U32,
    fate: U32,
}

const _: () = {
    assert!(size_of::<EndsFixed>() == 12);
    assert!(size_of::<Entry>() == 6);
    assert!(size_of::<ReleaseEntry>() == 16);
    assert!(AHEAD_RELEASES_PER_FRAME * size_of::<ReleaseEntry>() <= FRAME_BODY_BYTES_MAX);
    // One tensor of any allowed size fits into a frame of its own.
    assert!(size_of::<EndsFixed>() + 6 + KEY_BYTES_MAX + META_BYTES_MAX + AHEAD_TENSOR_BYTES <= FRAME_BODY_BYTES_MAX);
};

/// Instead of the length of metadata: the same metadata as the entry before.
const SAME_META: u16 = u16::MAX;

/// Where tensors go: from which task to which, and in which step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ends {
    pub step: i64,
    /// The sending task: its index in the task list of the sender's greeting.
    pub producer: u16,
    /// The receiving task: its index in the task list of the other side's greeting.
    pub consumer: u16,
}

impl Ends {
    fn fields(self) -> EndsFixed {
        let (step, producer, consumer) = (I64::new(self.step), U16::new(self.producer), U16::new(self.consumer));
        EndsFixed { step, producer, consumer }
    }

    fn read(body: &[u8]) -> Result<(Ends, &[u8]), WireError> {
        let (fields, rest) = fixed::<EndsFixed>("tensors sent ahead", body)?;
        let (step, producer, consumer) = (fields.step.get(), fields.producer.get(), fields.consumer.get());
        Ok((Ends { step, producer, consumer }, rest))
    }
}

/// Small tensors that were not requested yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ahead<'a> {
    /// Number of the first, counted over the life of the session.
    pub first: u64,
    pub ends: Ends,
    pub records: AheadRecords<'a>,
}

/// One tensor of several.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AheadRecord<'a> {
    /// The bytes of its key; a caller that keeps them must check them to be [text](super::text).
    pub key: &'a [u8],
    /// Its metadata; `None` if it is the same as the one before.
    pub meta: Option<&'a [u8]>,
    pub payload: &'a [u8],
}

/// Small tensors with their keys, concatenated.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct AheadRecords<'a> {
    bytes: &'a [u8],
    /// The metadata of the tensor before the first one here, if that is not the first of all.
    before: Option<&'a [u8]>,
}

impl<'a> AheadRecords<'a> {
    /// The tensors in such [bytes](Self::as_bytes), which are not checked here; `before` is the metadata of the tensor before
    /// them, if any.
    pub fn of(bytes: &'a [u8], before: Option<&'a [u8]>) -> Self {
        AheadRecords { bytes, before }
    }

    /// The tensors behind the first `count`.
    ///
    /// # Errors
    /// As for the items of [`iter`](Self::iter).
    pub fn after(self, count: usize) -> Result<Self, WireError> {
        let Self { mut bytes, mut before } = self;
        for _ in 0..count {
            let (record, tail) = read_record(bytes, before.is_none())?;
            (bytes, before) = (tail, record.meta.or(before));
        }
        Ok(AheadRecords { bytes, before })
    }

    #[inline]
    pub fn is_empty(self) -> bool {
        self.bytes.is_empty()
    }

    /// Each tensor. The first has metadata.
    #[inline]
    pub fn iter(self) -> impl Iterator<Item = Result<AheadRecord<'a>, WireError>> {
        let (mut rest, mut before, mut is_first) = (self.bytes, self.before, self.before.is_none());
        walk(move || {
            if rest.is_empty() {
                return Ok(None);
            }
            let (record, tail) = read_record(rest, is_first)?;
            (rest, is_first) = (tail, false);
            let meta = record.meta.or(before.take());
            Ok(Some(AheadRecord { meta, ..record }))
        })
    }

    /// The tensor at a place that [`AheadRecordsBuf::push`] returned, with its metadata.
    ///
    /// # Errors
    /// The place is of other records.
    pub fn at(self, RecordPlace { record, meta }: RecordPlace) -> Result<AheadRecord<'a>, WireError> {
        let from = |at: u32| self.bytes.get(at as usize..).unwrap_or_default();
        let (found, _) = read_record(from(record), false)?;
        let (AheadRecord { meta, .. }, _) = read_record(from(meta), true)?;
        Ok(AheadRecord { meta, ..found })
    }

    /// The bytes as on the wire.
    pub fn as_bytes(self) -> &'a [u8] {
        self.bytes
    }

    /// The offset of bytes that were read from here.
    #[inline]
    pub fn place_of(self, bytes: &[u8]) -> usize {
        bytes.as_ptr().addr().wrapping_sub(self.bytes.as_ptr().addr())
    }
}

/// Reads the tensor at the front, and returns what follows it; the first of all must have metadata of its own.
#[inline]
fn read_record(bytes: &[u8], is_first: bool) -> Result<(AheadRecord<'_>, &[u8]), WireError> {
    let (entry, tail) = fixed::<Entry>("tensor sent ahead", bytes)?;
    let (key, tail) = split("key", tail, usize::from(entry.key_bytes.get()), KEY_BYTES_MAX)?;
    let meta_bytes = entry.meta_bytes.get();
    let (meta, tail) = if meta_bytes == SAME_META && !is_first {
        (None, tail)
    } else {
        let (meta, tail) = split("metadata", tail, usize::from(meta_bytes), META_BYTES_MAX)?;
        (Some(meta), tail)
    };
    let (payload, tail) = split("payload", tail, usize::from(entry.payload_bytes.get()), AHEAD_TENSOR_BYTES)?;
    Ok((AheadRecord { key, meta, payload }, tail))
}

/// Where a tensor begins among the records of a frame, and where the tensor begins whose metadata it shares.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RecordPlace {
    record: u32,
    meta: u32,
}

/// Small tensors being concatenated for [`AheadRecords`] to read.
#[derive(Debug, Default)]
pub struct AheadRecordsBuf {
    bytes: Vec<u8>,
    /// Where the metadata written last is, if any was, and where its tensor begins.
    last_meta: Option<(usize, usize, u32)>,
}

impl AheadRecordsBuf {
    /// An empty buffer that reuses memory.
    pub fn within(mut bytes: Vec<u8>) -> Self {
        bytes.clear();
        Self { bytes, last_meta: None }
    }

    /// True if a frame has no room for another tensor with this many bytes of key, metadata and payload.
    #[inline]
    pub fn is_full(&self, bytes: usize) -> bool {
        FRAME_HEADER_BYTES + size_of::<EndsFixed>() + self.bytes.len() + size_of::<Entry>() + bytes > PART_BYTES
    }

    /// Adds a tensor; returns its place.
    #[inline]
    pub fn push(&mut self, key: &str, meta: &[u8], payload: VolatileSlice<'_>) -> RecordPlace {
        let Self { bytes, last_meta } = self;
        let record = bytes.len() as u32;
        let same = last_meta.is_some_and(|(at, length, _)| bytes[at..at + length] == *meta);
        let meta_bytes = if same { SAME_META } else { meta.len() as u16 };
        let (key_bytes, payload_bytes) = (U16::new(key.len() as u16), U16::new(payload.len() as u16));
        let entry = Entry { key_bytes, meta_bytes: U16::new(meta_bytes), payload_bytes };
        bytes.reserve(size_of::<Entry>() + key.len() + meta.len() + payload.len());
        bytes.extend_from_slice(entry.as_bytes());
        bytes.extend_from_slice(key.as_bytes());
        if !same {
            *last_meta = Some((bytes.len(), meta.len(), record));
            bytes.extend_from_slice(meta);
        }
        payload.append_to(bytes);
        RecordPlace { record, meta: last_meta.map_or(record, |(.., of)| of) }
    }

    pub fn records(&self) -> AheadRecords<'_> {
        AheadRecords::of(&self.bytes, None)
    }

    /// The memory, for reuse.
    pub fn into_memory(self) -> Vec<u8> {
        self.bytes
    }
}

/// What became of a tensor that was sent ahead.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fate {
    /// A recv has it.
    Taken,
    /// Its sender has it again.
    Returned,
    /// Its sender has it again: another tensor with its key was there, and waits.
    Duplicate,
}

/// A run of consecutive tensors sent ahead, and what became of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AheadEnd {
    /// Number of the first.
    pub first: u64,
    pub count: u32,
    pub fate: Fate,
}

/// What became of tensors sent ahead: entries of the log of [releases](super::Release), and numbered with them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AheadRelease<'a> {
    /// Number of the first entry since the session began.
    pub sequence: u64,
    entries: &'a [u8],
}

impl AheadRelease<'_> {
    /// Entries, first to last.
    pub fn iter(self) -> impl Iterator<Item = Result<AheadEnd, WireError>> {
        let mut rest = self.entries;
        walk(move || {
            if rest.is_empty() {
                return Ok(None);
            }
            let (entry, tail) = fixed::<ReleaseEntry>("release of tensors sent ahead", rest)?;
            rest = tail;
            let fate = match entry.fate.get() {
                0 => Fate::Taken,
                1 => Fate::Returned,
                2 => Fate::Duplicate,
                found => {
                    return Err(WireError::BadValue { what: "fate of a tensor sent ahead", found: u64::from(found) });
                }
            };
            Ok(Some(AheadEnd { first: entry.first.get(), count: entry.count.get(), fate }))
        })
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AheadFrame<'a> {
    Tensors(Ahead<'a>),
    Release(AheadRelease<'a>),
    /// The tensor with this number should come back, unless a recv has it.
    Revoke {
        number: u64,
        ends: Ends,
        key: &'a str,
    },
    /// A tensor with this key waits to be requested: it is not sent ahead.
    Held {
        ends: Ends,
        key: &'a str,
    },
}

impl<'a> AheadFrame<'a> {
    #[inline]
    pub(super) fn read(kind: u8, number: u64, body: &'a [u8]) -> Result<Self, WireError> {
        if kind == KIND_AHEAD_RELEASE {
            if !body.len().is_multiple_of(size_of::<ReleaseEntry>()) {
                let found = body.len();
                return Err(WireError::Truncated { what: "release of tensors sent ahead", found });
            }
            bounded("release", body.len() / size_of::<ReleaseEntry>(), AHEAD_RELEASES_PER_FRAME)?;
            return Ok(AheadFrame::Release(AheadRelease { sequence: number, entries: body }));
        }
        let (ends, rest) = Ends::read(body)?;
        if kind == KIND_AHEAD {
            return Ok(AheadFrame::Tensors(Ahead { first: number, ends, records: AheadRecords::of(rest, None) }));
        }
        bounded("key", rest.len(), KEY_BYTES_MAX)?;
        let key = text("key", rest)?;
        Ok(match kind {
            KIND_AHEAD_REVOKE => AheadFrame::Revoke { number, ends, key },
            _ => AheadFrame::Held { ends, key },
        })
    }
}

impl FrameWriter<'_> {
    /// Writes tensors ahead of their requests.
    #[inline]
    pub fn ahead(&mut self, ahead: &Ahead<'_>) {
        self.frame(KIND_AHEAD, 0, ahead.first, ahead.ends.fields().as_bytes(), ahead.records.bytes);
    }

    /// Writes what became of tensors sent ahead, at most [`AHEAD_RELEASES_PER_FRAME`].
    #[inline]
    pub fn ahead_release(&mut self, sequence: u64, ends: impl Iterator<Item = AheadEnd>) {
        let start = self.begin(KIND_AHEAD_RELEASE, sequence);
        for AheadEnd { first, count, fate } in ends {
            let entry = ReleaseEntry { first: U64::new(first), count: U32::new(count), fate: U32::new(fate as u32) };
            self.0.extend_from_slice(entry.as_bytes());
        }
        self.end(start);
    }

    /// Writes that a tensor sent ahead should come back.
    pub fn ahead_revoke(&mut self, number: u64, ends: Ends, key: &str) {
        self.frame(KIND_AHEAD_REVOKE, 0, number, ends.fields().as_bytes(), key.as_bytes());
    }

    /// Writes that a tensor waits to be requested.
    pub fn ahead_held(&mut self, ends: Ends, key: &str) {
        self.frame(KIND_AHEAD_HELD, 0, 0, ends.fields().as_bytes(), key.as_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Frame, parse, written};
    use super::*;

    const ENDS: Ends = Ends { step: -4, producer: 1, consumer: 2 };

    fn read(bytes: &[u8]) -> AheadFrame<'_> {
        match parse(bytes) {
            Ok(Some((Frame::Ahead(frame), length))) if length == bytes.len() => frame,
            other => panic!("not a frame of tensors sent ahead: {other:?}"),
        }
    }

    #[test]
    fn every_frame_reads_back_as_written() {
        let mut records = AheadRecordsBuf::default();
        let record = |key: &'static str, meta, payload| AheadRecord { key: key.as_bytes(), meta, payload };
        for (key, meta) in [("a", &b"meta"[..]), ("b", b"meta"), ("", b"other")] {
            let place = records.push(key, meta, b"bytes".into());
            assert_eq!(records.records().at(place), Ok(record(key, Some(meta), &b"bytes"[..])));
        }
        let ahead = Ahead { first: 7, ends: ENDS, records: records.records() };
        let bytes = written(|w| w.ahead(&ahead));
        assert_eq!(read(&bytes), AheadFrame::Tensors(ahead));
        let AheadFrame::Tensors(ahead) = read(&bytes) else { unreachable!("just read") };
        let all: Result<Vec<_>, _> = ahead.records.iter().collect();
        let expected = [
            record("a", Some(&b"meta"[..]), &b"bytes"[..]),
            record("b", None, b"bytes"),
            record("", Some(b"other"), b"bytes"),
        ];
        assert_eq!(all.unwrap(), expected);
        // Records after the one that has the metadata they share.
        let behind = ahead.records.after(1).unwrap();
        let all: Vec<_> = behind.iter().map(Result::unwrap).collect();
        assert_eq!(all, [record("b", Some(b"meta"), b"bytes"), expected[2]]);
        assert_eq!(AheadRecords::of(behind.as_bytes(), Some(b"meta")), behind);
        assert!(AheadRecords::of(behind.as_bytes(), None).iter().next().is_some_and(|first| first.is_err()));
        assert_eq!(
            (ahead.records.after(3).map(|none| none.iter().count()), ahead.records.after(4).is_err()),
            (Ok(0), true)
        );
        let ends =
            [Fate::Taken, Fate::Returned, Fate::Duplicate].map(|fate| AheadEnd { first: 1 << 40, count: 3, fate });
        let bytes = written(|w| w.ahead_release(9, ends.into_iter()));
        let AheadFrame::Release(release) = read(&bytes) else { panic!("not a release") };
        assert_eq!((release.sequence, release.iter().collect::<Result<Vec<_>, _>>()), (9, Ok(ends.to_vec())));
        let bytes = written(|w| w.ahead_revoke(11, ENDS, "key"));
        assert_eq!(read(&bytes), AheadFrame::Revoke { number: 11, ends: ENDS, key: "key" });
        let bytes = written(|w| w.ahead_held(ENDS, "key"));
        assert_eq!(read(&bytes), AheadFrame::Held { ends: ENDS, key: "key" });
    }

    #[test]
    fn what_cannot_be_is_refused() {
        let mut bytes =
            written(|w| w.ahead_release(0, [AheadEnd { first: 0, count: 1, fate: Fate::Taken }].into_iter()));
        let fate = bytes.len() - 4;
        bytes[fate] = 3;
        let AheadFrame::Release(release) = read(&bytes) else { panic!("not a release") };
        assert!(release.iter().next().is_some_and(|entry| entry.is_err()));
        // The first record must have metadata of its own.
        let mut records = AheadRecordsBuf::default();
        records.push("k", b"m", b"".into());
        let mut bytes = written(|w| w.ahead(&Ahead { first: 0, ends: ENDS, records: records.records() }));
        let at = FRAME_HEADER_BYTES + 12 + 2;
        bytes[at..at + 2].copy_from_slice(&SAME_META.to_le_bytes());
        let AheadFrame::Tensors(ahead) = read(&bytes) else { panic!("not tensors") };
        assert!(ahead.records.iter().next().is_some_and(|record| record.is_err()));
    }
}
