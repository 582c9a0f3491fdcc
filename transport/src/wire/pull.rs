//! Frames of published tensors: key sets sent once, pulls by number, and their answers.
//!
//! A key set is the consumer's: it numbers the keys 0, 1, 2, ... and names the set by a handle. Metadata of a set's tensors is
//! sent when it changes, so a part of an answer is only bytes.

use sealane_runtime::VolatileSlice;
use zerocopy::little_endian::{I64, U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::frame::{
    FAILS_IF_GONE, KIND_FORGET_SET, KIND_KEY_SET, KIND_METAS, KIND_PART, KIND_PARTS, KIND_PULL, KIND_PULL_FAILURE,
    bounded, cut, reason,
};
use super::group::{split, walk};
use super::{FrameWriter, WireError, fixed, text};
use crate::arena::Handle;
use crate::limits::{FRAME_BODY_BYTES_MAX, KEY_BYTES_MAX, META_BYTES_MAX, PART_BYTES, SET_KEYS_MAX};

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct KeySetFixed {
    consumer: U16,
    producer: U16,
    count: U32,
    first: U32,
}

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct PullFixed {
    set: U64,
    min_version: I64,
    timeout_ms: U32,
}

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct MetaEntry {
    index: U32,
    meta_bytes: U16,
    payload_bytes: U64,
}

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct PartsFixed {
    version: I64,
    first: U32,
    count: U32,
}

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct PartFixed {
    version: I64,
    payload_bytes: U64,
    index: U32,
}

const _: () = {
    assert!(size_of::<KeySetFixed>() == 12);
    assert!(size_of::<PullFixed>() == 20);
    assert!(size_of::<MetaEntry>() == 14);
    assert!(size_of::<PartsFixed>() == 16);
    assert!(size_of::<PartFixed>() == 20);
};

/// The consumer names keys, to pull them by number from now on: one of the frames of a set, in order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KeySet<'a> {
    /// The consumer's handle for the set.
    pub id: Handle,
    /// The requesting task: its index in its side's greeting.
    pub consumer: u16,
    /// The requested task: its index in its side's greeting.
    pub producer: u16,
    /// Number of keys in the whole set.
    pub count: u32,
    /// Number of the first key in this frame.
    pub first: u32,
    keys: &'a [u8],
}

impl<'a> KeySet<'a> {
    fn read(id: Handle, body: &'a [u8]) -> Result<Self, WireError> {
        let (fields, keys) = fixed::<KeySetFixed>("key set", body)?;
        let (consumer, producer) = (fields.consumer.get(), fields.producer.get());
        let (count, first) = (fields.count.get(), fields.first.get());
        bounded("key set", count as usize, SET_KEYS_MAX)?;
        Ok(KeySet { id, consumer, producer, count, first, keys })
    }

    /// The keys in this frame.
    pub fn keys(self) -> impl Iterator<Item = Result<&'a str, WireError>> {
        let mut rest = self.keys;
        walk(move || {
            if rest.is_empty() {
                return Ok(None);
            }
            let (length, tail) = fixed::<U16>("key of a set", rest)?;
            let (key, tail) = split("key", tail, usize::from(length.get()), KEY_BYTES_MAX)?;
            rest = tail;
            Ok(Some(text("key", key)?))
        })
    }
}

/// The consumer requests a set's tensors.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pull {
    /// The consumer's handle for the pull.
    pub id: Handle,
    pub set: Handle,
    /// The oldest version that will do.
    pub min_version: i64,
    /// How many more milliseconds the consumer waits.
    pub timeout_ms: u32,
    /// It fails for tensors that are not published if their task has left.
    pub fail_if_gone: bool,
}

/// The metadata of a set's tensors from here on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Metas<'a> {
    pub set: Handle,
    entries: &'a [u8],
}

impl<'a> Metas<'a> {
    /// Each tensor: its number, its metadata, the length of its payload in bytes.
    pub fn iter(self) -> impl Iterator<Item = Result<(u32, &'a [u8], u64), WireError>> {
        let mut rest = self.entries;
        walk(move || {
            if rest.is_empty() {
                return Ok(None);
            }
            let (entry, tail) = fixed::<MetaEntry>("metadata of a set", rest)?;
            let (meta, tail) = split("metadata", tail, usize::from(entry.meta_bytes.get()), META_BYTES_MAX)?;
            rest = tail;
            Ok(Some((entry.index.get(), meta, entry.payload_bytes.get())))
        })
    }
}

/// Small tensors of a set with consecutive numbers and one version: their bytes, concatenated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Parts<'a> {
    /// The pull.
    pub id: Handle,
    pub version: i64,
    /// Number of the first.
    pub first: u32,
    pub count: u32,
    pub payload: &'a [u8],
}

/// One tensor of a set; `payload_bytes` raw bytes follow the frame, or come in chunks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Part {
    /// The pull.
    pub id: Handle,
    pub version: i64,
    pub payload_bytes: u64,
    /// The transfer in whose chunks the payload comes; 0 if it follows the frame.
    pub transfer: u16,
    /// Its number.
    pub index: u32,
}

/// What will not come for a pull.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PullFailure<'a> {
    /// The pull.
    pub id: Handle,
    /// One of gRPC's canonical codes.
    pub code: u8,
    /// The tensor's number, or [`PullFailure::ALL`] for all still to come.
    pub index: u32,
    pub reason: &'a str,
}

impl PullFailure<'_> {
    /// All tensors of a pull that have not come.
    pub const ALL: u32 = u32::MAX;
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PullFrame<'a> {
    KeySet(KeySet<'a>),
    /// The consumer will no longer pull this set.
    Forget {
        set: Handle,
    },
    Pull(Pull),
    Metas(Metas<'a>),
    Parts(Parts<'a>),
    Part(Part),
    Failure(PullFailure<'a>),
    /// The consumer no longer waits for a pull.
    Cancel {
        id: Handle,
    },
}

impl<'a> PullFrame<'a> {
    #[inline]
    pub(super) fn read(kind: u8, (code, transfer): (u8, u16), id: Handle, body: &'a [u8]) -> Result<Self, WireError> {
        Ok(match kind {
            KIND_PARTS => {
                let (fields, payload) = fixed::<PartsFixed>("parts", body)?;
                let (first, count) = (fields.first.get(), fields.count.get());
                PullFrame::Parts(Parts { id, version: fields.version.get(), first, count, payload })
            }
            KIND_PART => {
                let (fields, _) = fixed::<PartFixed>("part", body)?;
                let (payload_bytes, index) = (fields.payload_bytes.get(), fields.index.get());
                PullFrame::Part(Part { id, version: fields.version.get(), payload_bytes, transfer, index })
            }
            KIND_PULL => {
                let (fields, _) = fixed::<PullFixed>("pull", body)?;
                let (set, min_version) = (Handle::from_bits(fields.set.get()), fields.min_version.get());
                let (timeout_ms, fail_if_gone) = (fields.timeout_ms.get(), code & FAILS_IF_GONE != 0);
                PullFrame::Pull(Pull { id, set, min_version, timeout_ms, fail_if_gone })
            }
            KIND_METAS => PullFrame::Metas(Metas { set: id, entries: body }),
            KIND_KEY_SET => PullFrame::KeySet(KeySet::read(id, body)?),
            KIND_FORGET_SET => PullFrame::Forget { set: id },
            KIND_PULL_FAILURE => {
                let (index, why) = fixed::<U32>("pull failure", body)?;
                PullFrame::Failure(PullFailure { id, code, index: index.get(), reason: reason(why)? })
            }
            _ => PullFrame::Cancel { id },
        })
    }
}

/// A frame of metadata that is being written.
pub struct MetaGroup<'a, 'w> {
    writer: &'a mut FrameWriter<'w>,
    start: usize,
}

/// A frame of small tensors that is being written.
pub struct PartGroup<'a, 'w> {
    writer: &'a mut FrameWriter<'w>,
    start: usize,
    count: u32,
}

impl<'w> FrameWriter<'w> {
    /// Writes as many of a set's `keys`, from number `first` on, as fit into one frame; returns how many.
    pub fn key_set<'k>(
        &mut self,
        id: Handle,
        (consumer, producer): (u16, u16),
        (count, first): (u32, u32),
        keys: impl Iterator<Item = &'k str>,
    ) -> u32 {
        let start = self.begin(KIND_KEY_SET, id.to_bits());
        let fields = KeySetFixed {
            consumer: U16::new(consumer),
            producer: U16::new(producer),
            count: U32::new(count),
            first: U32::new(first),
        };
        self.0.extend_from_slice(fields.as_bytes());
        let mut written = 0;
        for key in keys {
            if self.0.len() - start + 2 + key.len() > FRAME_BODY_BYTES_MAX {
                break;
            }
            self.0.extend_from_slice(&(key.len() as u16).to_le_bytes());
            self.0.extend_from_slice(key.as_bytes());
            written += 1;
        }
        self.end(start);
        written
    }

    /// Writes that a set is no longer pulled.
    pub fn forget_set(&mut self, set: Handle) {
        self.frame(KIND_FORGET_SET, 0, set.to_bits(), &[], &[]);
    }

    pub fn pull(&mut self, pull: &Pull) {
        let fields = PullFixed {
            set: U64::new(pull.set.to_bits()),
            min_version: I64::new(pull.min_version),
            timeout_ms: U32::new(pull.timeout_ms),
        };
        let code = if pull.fail_if_gone { FAILS_IF_GONE } else { 0 };
        self.frame(KIND_PULL, code, pull.id.to_bits(), fields.as_bytes(), &[]);
    }

    /// Begins a frame of metadata.
    pub fn metas(&mut self, set: Handle) -> MetaGroup<'_, 'w> {
        let start = self.begin(KIND_METAS, set.to_bits());
        MetaGroup { writer: self, start }
    }

    /// Begins a frame of small tensors of one version.
    #[inline]
    pub fn parts(&mut self, id: Handle, version: i64, first: u32) -> PartGroup<'_, 'w> {
        let start = self.begin(KIND_PARTS, id.to_bits());
        // The count is known at the end.
        let fields = PartsFixed { version: I64::new(version), first: U32::new(first), count: U32::ZERO };
        self.0.extend_from_slice(fields.as_bytes());
        PartGroup { writer: self, start, count: 0 }
    }

    /// Writes the frame of one tensor; the caller must send its payload next.
    pub fn part(&mut self, part: &Part) {
        let fields = PartFixed {
            version: I64::new(part.version),
            payload_bytes: U64::new(part.payload_bytes),
            index: U32::new(part.index),
        };
        let start = self.0.len();
        self.frame(KIND_PART, 0, part.id.to_bits(), fields.as_bytes(), &[]);
        self.name_transfer(start, part.transfer);
    }

    /// Writes what will not come for a pull.
    pub fn pull_failure(&mut self, failure: &PullFailure<'_>) {
        let (index, why) = (U32::new(failure.index), cut(failure.reason));
        self.frame(KIND_PULL_FAILURE, failure.code, failure.id.to_bits(), index.as_bytes(), why.as_bytes());
    }

    /// Writes that a pull was given up.
    pub fn pull_cancel(&mut self, id: Handle) {
        self.frame(super::frame::KIND_PULL_CANCEL, 0, id.to_bits(), &[], &[]);
    }
}

impl MetaGroup<'_, '_> {
    /// True if there is no room for another tensor with this many bytes of metadata.
    pub fn is_full(&self, meta_bytes: usize) -> bool {
        self.writer.0.len() - self.start + size_of::<MetaEntry>() + meta_bytes > FRAME_BODY_BYTES_MAX
    }

    pub fn push(&mut self, index: u32, meta: &[u8], payload_bytes: u64) {
        let entry = MetaEntry {
            index: U32::new(index),
            meta_bytes: U16::new(meta.len() as u16),
            payload_bytes: U64::new(payload_bytes),
        };
        self.writer.0.extend_from_slice(entry.as_bytes());
        self.writer.0.extend_from_slice(meta);
    }

    pub fn end(self) {
        self.writer.end(self.start);
    }
}

impl PartGroup<'_, '_> {
    /// Number of bytes that still fit.
    #[inline]
    pub fn room(&self) -> usize {
        PART_BYTES.saturating_sub(self.writer.0.len() - self.start)
    }

    /// Number of tensors in the frame.
    #[inline]
    pub fn count(&self) -> u32 {
        self.count
    }

    /// Adds the bytes of the next `count` tensors.
    #[inline]
    pub fn push(&mut self, count: u32, bytes: VolatileSlice<'_>) {
        bytes.append_to(self.writer.0);
        self.count += count;
    }

    pub fn end(self) {
        let at = self.start + super::FRAME_HEADER_BYTES + size_of::<PartsFixed>() - 4;
        self.writer.0[at..at + 4].copy_from_slice(&self.count.to_le_bytes());
        self.writer.end(self.start);
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Frame, parse, written};
    use super::*;

    fn read(bytes: &[u8]) -> PullFrame<'_> {
        match parse(bytes) {
            Ok(Some((Frame::Pull(frame), length))) if length == bytes.len() => frame,
            other => panic!("not a frame of pulls: {other:?}"),
        }
    }

    #[test]
    fn every_frame_reads_back_as_written() {
        let id = Handle::from_bits(3 << 32 | 9);
        let pull = Pull { id, set: Handle::from_bits(7 << 32), min_version: -1, timeout_ms: 8, fail_if_gone: true };
        assert_eq!(read(&written(|w| w.pull(&pull))), PullFrame::Pull(pull));
        let part = Part { id, version: i64::MIN, payload_bytes: 1 << 40, transfer: 2, index: 3 };
        assert_eq!(read(&written(|w| w.part(&part))), PullFrame::Part(part));
        let failure = PullFailure { id, code: 14, index: PullFailure::ALL, reason: "gone" };
        assert_eq!(read(&written(|w| w.pull_failure(&failure))), PullFrame::Failure(failure));
        assert_eq!(read(&written(|w| w.forget_set(id))), PullFrame::Forget { set: id });
        assert_eq!(read(&written(|w| w.pull_cancel(id))), PullFrame::Cancel { id });
        let bytes = written(|w| {
            let mut parts = w.parts(id, 5, 2);
            parts.push(1, b"a".into());
            parts.push(2, b"bcde".into());
            parts.end();
        });
        let parts = Parts { id, version: 5, first: 2, count: 3, payload: b"abcde" };
        assert_eq!(read(&bytes), PullFrame::Parts(parts));
        let bytes = written(|w| {
            let mut metas = w.metas(id);
            metas.push(4, b"meta", 64);
            metas.push(5, b"", 0);
            metas.end();
        });
        let PullFrame::Metas(metas) = read(&bytes) else { panic!("not metadata") };
        let entries: Result<Vec<_>, _> = metas.iter().collect();
        assert_eq!((metas.set, entries), (id, Ok(vec![(4, &b"meta"[..], 64), (5, &b""[..], 0)])));
    }

    #[test]
    fn a_large_set_takes_several_frames() {
        let keys: Vec<_> = (0..1000).map(|number| format!("layer/{number}/{}", "x".repeat(40))).collect();
        let id = Handle::from_bits(1 << 32);
        let mut seen = Vec::new();
        let mut first = 0;
        while (first as usize) < keys.len() {
            let rest = keys[first as usize..].iter().map(String::as_str);
            let mut count = 0;
            let bytes = written(|w| count = w.key_set(id, (1, 2), (1000, first), rest));
            let PullFrame::KeySet(set) = read(&bytes) else { panic!("not a set") };
            assert_eq!((set.id, set.consumer, set.producer, set.count, set.first), (id, 1, 2, 1000, first));
            seen.extend(set.keys().map(|key| key.unwrap().to_owned()));
            first += count;
        }
        assert_eq!(seen, keys);
    }
}
