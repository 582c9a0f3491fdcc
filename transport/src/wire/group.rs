//! Grouped frames: requests and small responses sent in one turn share a header.
//!
//! A reader walks the entries and checks each one when it reaches it, so nothing is parsed twice.

use sealane_runtime::VolatileSlice;
use zerocopy::little_endian::{I64, U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::frame::{FAILS_IF_GONE, bounded};
use super::{FrameWriter, WireError, fixed};
use crate::arena::Handle;
use crate::limits::{FRAME_BODY_BYTES_MAX, GROUP_BYTES, INLINE_PAYLOAD_BYTES, KEY_BYTES_MAX, META_BYTES_MAX};

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub(super) struct RequestsFixed {
    timeout_ms: U32,
    consumer: U16,
    producer: U16,
}

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct RequestEntry {
    id: U64,
    step: I64,
    key_bytes: U16,
}

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct ResponseEntry {
    id: U64,
    token: U64,
    payload_bytes: U32,
    meta_bytes: U16,
}

/// Bytes of a request in a group, without its key.
pub const REQUEST_ENTRY_BYTES: usize = size_of::<RequestEntry>();

/// Bytes of a response in a group, without metadata and payload.
pub const RESPONSE_ENTRY_BYTES: usize = size_of::<ResponseEntry>();

const _: () = {
    assert!(size_of::<RequestsFixed>() == 8);
    assert!(REQUEST_ENTRY_BYTES == 18);
    assert!(RESPONSE_ENTRY_BYTES == 22);
    // The last entry of a group may exceed its bound.
    assert!(GROUP_BYTES + REQUEST_ENTRY_BYTES + KEY_BYTES_MAX <= FRAME_BODY_BYTES_MAX);
    assert!(GROUP_BYTES + RESPONSE_ENTRY_BYTES + META_BYTES_MAX + INLINE_PAYLOAD_BYTES <= FRAME_BODY_BYTES_MAX);
};

/// Several requests of one task to another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Requests<'a> {
    /// How many more milliseconds the consumer waits for each.
    pub timeout_ms: u32,
    /// The requesting task: its index in the task list of the requester's greeting.
    pub consumer: u16,
    /// The requested task: its index in the task list of the other side's greeting.
    pub producer: u16,
    /// They fail if the task has left.
    pub fail_if_gone: bool,
    entries: &'a [u8],
}

impl<'a> Requests<'a> {
    pub(super) fn read(code: u8, body: &'a [u8]) -> Result<Self, WireError> {
        let (fields, entries) = fixed::<RequestsFixed>("requests", body)?;
        let (consumer, producer) = (fields.consumer.get(), fields.producer.get());
        let fail_if_gone = code & FAILS_IF_GONE != 0;
        Ok(Requests { timeout_ms: fields.timeout_ms.get(), consumer, producer, fail_if_gone, entries })
    }

    /// Each request: its id, its step, and the bytes of its key; a caller that keeps them must check them to be
    /// [text](super::text).
    #[inline]
    pub fn iter(self) -> impl Iterator<Item = Result<(Handle, i64, &'a [u8]), WireError>> {
        let mut rest = self.entries;
        walk(move || {
            if rest.is_empty() {
                return Ok(None);
            }
            let (entry, tail) = fixed::<RequestEntry>("request of several", rest)?;
            let (key, tail) = split("key", tail, usize::from(entry.key_bytes.get()), KEY_BYTES_MAX)?;
            rest = tail;
            Ok(Some((Handle::from_bits(entry.id.get()), entry.step.get(), key)))
        })
    }
}

/// One tensor of a group, including its payload.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SmallResponse<'a> {
    /// The request's id.
    pub id: Handle,
    /// The producer's handle for the tensor; returned with the release.
    pub token: Handle,
    pub meta: &'a [u8],
    pub payload: &'a [u8],
}

/// Several small tensors, including their payloads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Responses<'a> {
    entries: &'a [u8],
}

impl<'a> Responses<'a> {
    pub(super) fn read(body: &'a [u8]) -> Self {
        Responses { entries: body }
    }

    #[inline]
    pub fn iter(self) -> impl Iterator<Item = Result<SmallResponse<'a>, WireError>> {
        let mut rest = self.entries;
        walk(move || {
            if rest.is_empty() {
                return Ok(None);
            }
            let (entry, tail) = fixed::<ResponseEntry>("response of several", rest)?;
            let (meta, tail) = split("metadata", tail, usize::from(entry.meta_bytes.get()), META_BYTES_MAX)?;
            let (payload, tail) = split("payload", tail, entry.payload_bytes.get() as usize, FRAME_BODY_BYTES_MAX)?;
            rest = tail;
            let (id, token) = (Handle::from_bits(entry.id.get()), Handle::from_bits(entry.token.get()));
            Ok(Some(SmallResponse { id, token, meta, payload }))
        })
    }
}

/// The items of a fallible reader, up to and including the first error.
pub(super) fn walk<T>(
    mut read: impl FnMut() -> Result<Option<T>, WireError>,
) -> impl Iterator<Item = Result<T, WireError>> {
    let mut failed = false;
    std::iter::from_fn(move || {
        if failed {
            return None;
        }
        let item = read().transpose();
        failed = matches!(item, Some(Err(_)));
        item
    })
}

/// The first `length` bytes, and the rest.
#[inline]
pub(super) fn split<'a>(
    what: &'static str,
    bytes: &'a [u8],
    length: usize,
    limit: usize,
) -> Result<(&'a [u8], &'a [u8]), WireError> {
    bounded(what, length, limit)?;
    bytes.split_at_checked(length).ok_or(WireError::Truncated { what, found: bytes.len() })
}

/// A frame of several requests that is being written.
pub struct RequestGroup<'a, 'w> {
    writer: &'a mut FrameWriter<'w>,
    start: usize,
}

/// A frame of several responses that is being written.
pub struct ResponseGroup<'a, 'w> {
    writer: &'a mut FrameWriter<'w>,
    start: usize,
}

impl<'w> FrameWriter<'w> {
    /// Begins a frame of requests of `consumer` to `producer`.
    pub fn requests(
        &mut self,
        timeout_ms: u32,
        (consumer, producer): (u16, u16),
        fail_if_gone: bool,
    ) -> RequestGroup<'_, 'w> {
        let code = if fail_if_gone { FAILS_IF_GONE } else { 0 };
        let start = self.begin_as(super::frame::KIND_REQUESTS, code, 0);
        let (consumer, producer) = (U16::new(consumer), U16::new(producer));
        let fields = RequestsFixed { timeout_ms: U32::new(timeout_ms), consumer, producer };
        self.0.extend_from_slice(fields.as_bytes());
        RequestGroup { writer: self, start }
    }

    /// Begins a frame of small responses.
    pub fn responses(&mut self) -> ResponseGroup<'_, 'w> {
        let start = self.begin(super::frame::KIND_RESPONSES, 0);
        ResponseGroup { writer: self, start }
    }
}

impl RequestGroup<'_, '_> {
    #[inline]
    pub fn push(&mut self, id: Handle, step: i64, key: &str) {
        let (id, step) = (U64::new(id.to_bits()), I64::new(step));
        let entry = RequestEntry { id, step, key_bytes: U16::new(key.len() as u16) };
        self.writer.0.extend_from_slice(entry.as_bytes());
        self.writer.0.extend_from_slice(key.as_bytes());
    }

    pub fn end(self) {
        self.writer.end(self.start);
    }
}

impl ResponseGroup<'_, '_> {
    /// Adds a tensor: the request that it answers, the producer's handle for it, its metadata and its payload.
    #[inline]
    pub fn push(&mut self, id: Handle, token: Handle, meta: &[u8], payload: VolatileSlice<'_>) {
        let entry = ResponseEntry {
            id: U64::new(id.to_bits()),
            token: U64::new(token.to_bits()),
            payload_bytes: U32::new(payload.len() as u32),
            meta_bytes: U16::new(meta.len() as u16),
        };
        let bytes = &mut *self.writer.0;
        bytes.reserve(size_of::<ResponseEntry>() + meta.len() + payload.len());
        bytes.extend_from_slice(entry.as_bytes());
        bytes.extend_from_slice(meta);
        payload.append_to(bytes);
    }

    pub fn end(self) {
        self.writer.end(self.start);
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Frame, parse};
    use super::*;

    fn handle(number: u64) -> Handle {
        Handle::from_bits(1 << 32 | number)
    }

    #[test]
    fn groups_read_back_as_written() {
        let mut bytes = Vec::new();
        let mut writer = FrameWriter(&mut bytes);
        let mut group = writer.requests(9, (1, 2), true);
        group.push(handle(3), -4, "w/0");
        group.push(handle(4), 5, "");
        group.end();
        let Ok(Some((Frame::Requests(requests), length))) = parse(&bytes) else { panic!("not requests") };
        assert_eq!((requests.timeout_ms, requests.consumer, requests.producer, length), (9, 1, 2, bytes.len()));
        assert!(requests.fail_if_gone);
        let read: Result<Vec<_>, _> = requests.iter().collect();
        assert_eq!(read, Ok(vec![(handle(3), -4, &b"w/0"[..]), (handle(4), 5, b"")]));

        let mut bytes = Vec::new();
        let mut writer = FrameWriter(&mut bytes);
        let mut group = writer.responses();
        let small = SmallResponse { id: handle(1), token: handle(2), meta: b"meta", payload: b"bytes" };
        group.push(small.id, small.token, small.meta, small.payload.into());
        group.push(small.id, small.token, small.meta, VolatileSlice::empty());
        group.end();
        let Ok(Some((Frame::Responses(responses), _))) = parse(&bytes) else { panic!("not responses") };
        let read: Result<Vec<_>, _> = responses.iter().collect();
        assert_eq!(read, Ok(vec![small, SmallResponse { payload: b"", ..small }]));
    }

    #[test]
    fn an_entry_that_is_cut_short_is_told_once() {
        let mut bytes = Vec::new();
        let mut writer = FrameWriter(&mut bytes);
        let mut group = writer.responses();
        group.push(handle(1), handle(2), b"m", b"bytes".into());
        group.end();
        bytes[4] -= 1;
        let Ok(Some((Frame::Responses(responses), _))) = parse(&bytes) else { panic!("not responses") };
        let read: Vec<_> = responses.iter().collect();
        assert_eq!(read, [Err(WireError::Truncated { what: "payload", found: 4 })]);
    }
}
