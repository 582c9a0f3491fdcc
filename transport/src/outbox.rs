//! A session's outgoing data: staged frame bytes with tensor payloads between them, in order.
//!
//! Lives on one shard; bounded by the bytes of frames and by the payloads between them: at the limit [`Outbox::is_full`] is
//! true and the session waits for the link. Payloads larger than a chunk are interleaved, a chunk at a time.

use std::collections::VecDeque;
use std::sync::{Arc, Weak};

use sealane_runtime::{Buffer, DeviceError, DmaBuf, HostCopy, Reach, Reacher, Slab, VolatileSlice};

use crate::arena::Handle;
use crate::error::Error;
use crate::limits::{CHUNK_BYTES, INLINE_PAYLOAD_BYTES, OUTBOX_PAYLOADS, OUTBOX_STAGED_BYTES};
use crate::link::{Landing, Spot, Traits};
use crate::payload::Payload;
use crate::spares;
use crate::transfers::Transfers;
use crate::wire::{Chunk, FrameWriter};

/// The owner of a payload, to which it returns when the link is done with it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Owner {
    /// The answer to a request, by the producer's handle.
    Response(Handle),
    /// A push, by its stream and its number in that stream.
    Push { stream: Handle, number: u64 },
    /// Nobody: shared bytes of a published tensor.
    Nobody,
}

/// Frames and payloads in the order in which they must reach the peer.
pub struct Outbox {
    /// Has no allocation while nothing is staged.
    staged: Vec<u8>,
    /// Bytes of `staged` already written.
    head: usize,
    segments: VecDeque<Segment>,
    payloads: usize,
    /// Bytes of payloads that wait to be sent.
    payload_bytes: usize,
    transfers: Transfers,
    /// Large payloads are sent outside the stream of frames: none leaves in chunks, and places for answers are announced.
    aside: bool,
    /// Who reads and writes device memory for the link, if it has registered that memory.
    reacher: Option<Reacher>,
    /// Device memory that the link should register.
    unregistered: Vec<Weak<DmaBuf>>,
    copies: HostCopies,
    announced: Vec<Announcement>,
    revoked: Vec<Revocation>,
    returned: Vec<(Owner, Payload)>,
    frames: u64,
    tensors: u64,
    staged_max: usize,
    payloads_max: usize,
}

/// Host copies of payloads in device memory, bounded by the slab.
#[derive(Default)]
struct HostCopies {
    /// Where copies are allocated; without it, only small ones are made.
    slab: Option<Slab>,
    /// Each copy holds a clone, so that copies can be counted.
    counted: Arc<()>,
    /// The number of copies when there was no room for another; retried when there are fewer.
    awaited: Option<usize>,
}

impl HostCopies {
    fn count(&self) -> usize {
        Arc::strong_count(&self.counted) - 1
    }
}

/// Why a link cannot read a payload.
#[derive(Debug)]
pub(crate) enum Unreadable {
    /// There is no room for a host copy now, but there may be once an existing one is dropped.
    Waits,
    /// The copy cannot be made.
    Fails(Error),
}

/// The place where the answer to a request should be written, announced before the request. Only sessions make these; they
/// keep the memory.
#[derive(Debug, Clone)]
pub(crate) struct Announcement {
    pub(crate) request: Handle,
    /// The consumer's memory. It stays in place until the answer has come or the place was revoked.
    pub(crate) spot: Spot,
}

/// An announced place that no answer may be written to any more.
#[derive(Debug)]
pub(crate) struct Revocation {
    /// The request that it was announced for.
    pub(crate) request: Handle,
    /// What the link keeps until then.
    pub(crate) kept: Kept,
}

/// What a link keeps until the peer has lost access to it.
#[derive(Debug)]
pub(crate) enum Kept {
    /// The memory of a request that has ended, to be dropped then. The peer may be writing there right now.
    Memory(Buffer),
    /// An answer in that memory that did not come as announced, to be handed to the receiver then. An honest peer sends nothing
    /// more to it.
    Response(Landing),
}

/// A payload that is sent outside the stream of frames.
#[derive(Debug)]
pub struct Aside {
    pub owner: Owner,
    /// The request that it answers, if any.
    pub request: Handle,
    pub payload: Payload,
}

/// What to send next.
#[derive(Debug)]
pub enum Front<'a> {
    /// Frames.
    Staged(&'a [u8]),
    /// A payload, to be taken with [`Outbox::take_aside`].
    Payload,
}

impl Default for Outbox {
    fn default() -> Self {
        Self::new(OUTBOX_STAGED_BYTES, OUTBOX_PAYLOADS, CHUNK_BYTES)
    }
}

enum Segment {
    Staged(usize),
    Payload {
        owner: Owner,
        request: Handle,
        payload: Payload,
        written: usize,
    },
    /// Bytes `written..end` of a transfer's payload.
    Chunk {
        transfer: u16,
        written: usize,
        end: usize,
    },
}

impl Outbox {
    /// An empty outbox. It is full at `staged_max` bytes of frames, at `payloads_max` payloads between them, or at as many
    /// payload bytes as [`CHUNKS_AHEAD`](crate::limits::CHUNKS_AHEAD) chunks have.
    pub fn new(staged_max: usize, payloads_max: usize, chunk_bytes: usize) -> Self {
        Self {
            staged: Vec::new(),
            head: 0,
            segments: VecDeque::new(),
            payloads: 0,
            payload_bytes: 0,
            transfers: Transfers::new(chunk_bytes),
            aside: false,
            reacher: None,
            unregistered: Vec::new(),
            copies: HostCopies::default(),
            announced: Vec::new(),
            revoked: Vec::new(),
            returned: Vec::new(),
            frames: 0,
            tensors: 0,
            staged_max: staged_max.max(1),
            payloads_max: payloads_max.max(1),
        }
    }

    pub fn is_empty(&self) -> bool {
        self.segments.is_empty()
    }

    /// True if the session should add no more for now.
    pub fn is_full(&self) -> bool {
        let payloads_full =
            self.payloads >= self.payloads_max || self.payload_bytes >= self.transfers.ahead_bytes_max();
        self.staged.len() - self.head >= self.staged_max || payloads_full
    }

    /// Number of bytes that wait to be sent.
    pub fn pending_bytes(&self) -> usize {
        let bytes = |segment: &Segment| match segment {
            Segment::Staged(length) => *length,
            Segment::Payload { payload, written, .. } => payload.len() - written,
            Segment::Chunk { written, end, .. } => end - written,
        };
        self.segments.iter().map(bytes).sum()
    }

    /// Appends the frame that `write` writes.
    #[inline]
    pub fn stage(&mut self, write: impl FnOnce(&mut FrameWriter<'_>)) {
        self.frames += 1;
        if self.staged.capacity() == 0 {
            self.staged = spares::take();
        }
        let before = self.staged.len();
        write(&mut FrameWriter(&mut self.staged));
        self.lengthen(self.staged.len() - before);
    }

    /// Number of frames staged so far.
    pub fn frames(&self) -> u64 {
        self.frames
    }

    /// Number of tensors staged or posted so far.
    pub fn tensors(&self) -> u64 {
        self.tensors
    }

    /// Counts small tensors within a frame that was [staged](Self::stage).
    #[inline]
    pub fn count_small(&mut self, tensors: u64) {
        self.tensors += tensors;
    }

    /// Sets what the link does with what is put in from now on.
    pub fn set_traits(&mut self, traits: Traits) {
        self.aside = traits.aside;
        self.reacher = traits.reacher;
    }

    /// Sets the slab to which payloads in device memory are copied for links that cannot read it. Without it, large ones are
    /// refused.
    pub fn set_copy_slab(&mut self, slab: Slab) {
        self.copies.slab = Some(slab);
    }

    /// True if the link moves a payload of `bytes` bytes directly from or to this device memory. False for what fits in a
    /// frame, and for memory that the link has not registered: it is now asked to.
    #[cold]
    pub(crate) fn reaches(&mut self, direct: Option<(&Arc<DmaBuf>, u64)>, bytes: usize) -> bool {
        let (Some((region, _)), Some(reacher)) = (direct, self.reacher) else { return false };
        if !self.aside || bytes <= INLINE_PAYLOAD_BYTES {
            return false;
        }
        let reach = region.reach(reacher);
        if reach == Reach::New {
            self.unregistered.push(Arc::downgrade(region));
        }
        reach == Reach::Yes
    }

    /// Device memory that the link should register, collected since it last looked.
    pub(crate) fn unregistered(&mut self) -> &mut Vec<Weak<DmaBuf>> {
        &mut self.unregistered
    }

    /// True while no device payload can be sent until other payloads of this outbox drop their copies.
    #[inline]
    pub fn awaits_copies(&self) -> bool {
        self.copies.awaited.is_some_and(|awaited| self.copies.count() >= awaited)
    }

    /// Makes sure that the link can read a payload before it is put in: one in device memory that the link cannot read gets a
    /// host copy, until the session drops it.
    #[inline]
    pub(crate) fn make_readable(&mut self, payload: &mut Payload) -> Result<(), Unreadable> {
        if payload.host_bytes().is_some() || self.reaches(payload.direct(), payload.len()) {
            return Ok(());
        }
        self.copy_to_host(payload)
    }

    /// Copies a payload from device memory. An asynchronous copy would begin here, and [wait](Unreadable::Waits) until it has
    /// completed.
    #[cold]
    pub(crate) fn copy_to_host(&mut self, payload: &mut Payload) -> Result<(), Unreadable> {
        let len = payload.len();
        let copies = &mut self.copies;
        let mut buffer = match &copies.slab {
            // It goes into a frame, and is dropped with it.
            _ if len <= INLINE_PAYLOAD_BYTES => Buffer::of_len(len),
            Some(slab) => match slab.allocate(len) {
                Ok(buffer) => buffer,
                Err(_) if copies.count() > 0 && len <= slab.capacity_bytes() => {
                    copies.awaited = Some(copies.count());
                    return Err(Unreadable::Waits);
                }
                Err(full) => return Err(Unreadable::Fails(Error::full("runtime.slab_send_bytes", full.to_string()))),
            },
            None => {
                let reason = format!("there is none to copy {len} bytes of a device's memory through");
                return Err(Unreadable::Fails(Error::full("runtime.slab_send_bytes", reason)));
            }
        };
        copies.awaited = None;
        payload.read(0, buffer.volatile_mut()).map_err(|error: DeviceError| Unreadable::Fails(error.into()))?;
        payload.set_host_copy(HostCopy { buffer, counted: copies.counted.clone() });
        Ok(())
    }

    /// True if places for answers should be announced.
    #[inline]
    pub fn announces(&self) -> bool {
        self.aside
    }

    /// Announces where an answer should be written, before its request is staged.
    pub(crate) fn announce(&mut self, announcement: Announcement) {
        self.announced.push(announcement);
    }

    /// Places announced since the link last looked, to be sent before any frame.
    pub(crate) fn announced(&mut self) -> &mut Vec<Announcement> {
        &mut self.announced
    }

    /// Places revoked since the link last looked: no answer may be written there any more.
    pub(crate) fn revoked(&mut self) -> &mut Vec<Revocation> {
        &mut self.revoked
    }

    /// What to send next, for a link that sends payloads outside the stream.
    pub fn front(&self) -> Option<Front<'_>> {
        match self.segments.front()? {
            Segment::Staged(length) => Some(Front::Staged(&self.staged[self.head..self.head + length])),
            Segment::Payload { .. } => Some(Front::Payload),
            Segment::Chunk { .. } => unreachable!("nothing leaves in chunks beside the frames"),
        }
    }

    /// Takes the next payload to send; the link returns it with [`give_back`](Self::give_back).
    pub fn take_aside(&mut self) -> Option<Aside> {
        let Some(Segment::Payload { .. }) = self.segments.front() else { return None };
        let Some(Segment::Payload { owner, request, payload, written }) = self.segments.pop_front() else {
            unreachable!("just looked at")
        };
        self.payloads -= 1;
        self.payload_bytes -= payload.len() - written;
        Some(Aside { owner, request, payload })
    }

    /// The link is done with a payload that it took.
    pub fn give_back(&mut self, owner: Owner, payload: Payload) {
        self.returned.push((owner, payload));
    }

    /// Appends a payload. A small one is copied and returned at once; a large one stays until the link has sent it, and then
    /// appears in [`returned`](Self::returned) under its owner.
    #[inline]
    pub fn push(&mut self, owner: Owner, payload: Payload) -> Option<Payload> {
        self.append(owner, Handle::NONE, payload)
    }

    #[inline]
    fn append(&mut self, owner: Owner, request: Handle, mut payload: Payload) -> Option<Payload> {
        if payload.len() <= INLINE_PAYLOAD_BYTES {
            payload.volatile().append_to(&mut self.staged);
            self.lengthen(payload.len());
            payload.drop_host_copy();
            return Some(payload);
        }
        self.payloads += 1;
        self.payload_bytes += payload.len();
        self.segments.push_back(Segment::Payload { owner, request, payload, written: 0 });
        None
    }

    /// True if later data may arrive before a payload of `bytes` bytes: it leaves in chunks, or outside the stream of frames.
    #[inline]
    pub fn is_overtaken(&self, bytes: usize) -> bool {
        if self.aside { bytes > INLINE_PAYLOAD_BYTES } else { self.transfers.takes(bytes) }
    }

    /// True if one more answer may start to leave in chunks.
    pub fn has_room_for_answer(&self) -> bool {
        self.aside || self.transfers.has_room_for_answer()
    }

    /// True if one more push may start to leave in chunks.
    pub fn has_room_for_push(&self) -> bool {
        self.aside || self.transfers.has_room_for_push()
    }

    /// Appends the frame that `write` writes and its payload, as [`push`](Self::push) does; or starts a transfer of the
    /// payload, whose number is passed to `write` instead of 0. `request` is the request that it answers, if any.
    ///
    /// # Panics
    /// If the payload leaves in chunks and there is no room for one more of its kind.
    #[inline]
    pub fn post(
        &mut self,
        (owner, request): (Owner, Handle),
        payload: Payload,
        write: impl FnOnce(&mut FrameWriter<'_>, u16),
    ) -> Option<Payload> {
        self.tensors += 1;
        if !self.aside && self.transfers.takes(payload.len()) {
            let transfer = self.transfers.begin(owner, payload);
            self.stage(|writer| write(writer, transfer));
            return None;
        }
        self.stage(|writer| write(writer, 0));
        self.append(owner, request, payload)
    }

    /// Appends the next chunk of a payload; false if there is none, or enough of them wait to be sent.
    #[inline]
    pub fn stage_chunk(&mut self) -> bool {
        let Some((transfer, range)) = self.transfers.next_chunk() else { return false };
        self.stage(|writer| writer.chunk(Chunk { transfer, bytes: range.len() as u64 }));
        self.segments.push_back(Segment::Chunk { transfer, written: range.start, end: range.end });
        true
    }

    /// True while there are chunks not appended yet.
    #[inline]
    pub fn has_chunks(&self) -> bool {
        self.transfers.has_more()
    }

    #[inline]
    fn lengthen(&mut self, length: usize) {
        match self.segments.back_mut() {
            Some(Segment::Staged(last)) => *last += length,
            _ if length > 0 => self.segments.push_back(Segment::Staged(length)),
            _ => {}
        }
    }

    /// Fills `slices` with what to send first; returns the number filled.
    pub fn gather<'a>(&'a self, slices: &mut [VolatileSlice<'a>]) -> usize {
        self.gather_within(slices, usize::MAX)
    }

    /// Fills `slices` with at most `budget` bytes of what to send first; returns the number filled.
    pub fn gather_within<'a>(&'a self, slices: &mut [VolatileSlice<'a>], mut budget: usize) -> usize {
        let mut at = self.head;
        let mut count = 0;
        for (slot, segment) in slices.iter_mut().zip(&self.segments) {
            let bytes: VolatileSlice<'a> = match segment {
                Segment::Staged(length) => {
                    at += length;
                    self.staged[at - length..at].into()
                }
                Segment::Payload { payload, written, .. } => payload.volatile().range(*written..payload.len()),
                Segment::Chunk { transfer, written, end } => self.transfers.bytes(*transfer, *written..*end),
            };
            *slot = bytes.first(budget);
            count += 1;
            budget -= slot.len();
            if budget == 0 {
                break;
            }
        }
        count
    }

    /// For a link in memory: swaps the staged frames with `empty` if nothing but frames waits to be sent, at most `budget`
    /// bytes. Returns the number of bytes sent this way.
    pub(crate) fn swap_frames(&mut self, empty: &mut Vec<u8>, budget: usize) -> usize {
        debug_assert!(empty.is_empty(), "what is there would be sent after what follows it");
        let Some(&Segment::Staged(length)) = self.segments.front() else { return 0 };
        if self.segments.len() > 1 || self.head > 0 || length > budget {
            return 0;
        }
        self.segments.clear();
        std::mem::swap(&mut self.staged, empty);
        self.compact();
        length
    }

    /// Notes that the link has sent the first `count` bytes.
    pub fn advance(&mut self, mut count: usize) {
        while count > 0 {
            match self.segments.front_mut().expect("a link writes no more than there is") {
                Segment::Staged(length) => {
                    let step = count.min(*length);
                    *length -= step;
                    self.head += step;
                    count -= step;
                    if *length > 0 {
                        break;
                    }
                    self.segments.pop_front();
                }
                Segment::Payload { payload, written, .. } => {
                    let step = count.min(payload.len() - *written);
                    *written += step;
                    count -= step;
                    self.payload_bytes -= step;
                    if *written < payload.len() {
                        break;
                    }
                    let Some(Segment::Payload { owner, payload, .. }) = self.segments.pop_front() else {
                        unreachable!()
                    };
                    self.payloads -= 1;
                    self.returned.push((owner, payload));
                }
                Segment::Chunk { transfer, written, end } => {
                    let step = count.min(*end - *written);
                    *written += step;
                    count -= step;
                    self.returned.extend(self.transfers.written(*transfer, step, *written));
                    if *written < *end {
                        break;
                    }
                    self.segments.pop_front();
                }
            }
        }
        self.compact();
    }

    /// Frees memory that holds nothing, and bounds the already written prefix while the outbox never runs empty.
    fn compact(&mut self) {
        if self.head == self.staged.len() {
            spares::give_back(&mut self.staged);
            self.head = 0;
        } else if self.head >= OUTBOX_STAGED_BYTES {
            self.staged.drain(..self.head);
            self.head = 0;
        }
    }

    /// Payloads that the link is done with; the session takes them.
    pub fn returned(&mut self) -> &mut Vec<(Owner, Payload)> {
        &mut self.returned
    }

    /// The link is gone: drops staged bytes and returns every payload. Announced memory stays with the session and in the
    /// revoked places.
    pub fn clear(&mut self) {
        for segment in self.segments.drain(..) {
            if let Segment::Payload { owner, payload, .. } = segment {
                self.returned.push((owner, payload));
            }
        }
        self.returned.extend(self.transfers.clear());
        spares::give_back(&mut self.staged);
        self.head = 0;
        (self.payloads, self.payload_bytes) = (0, 0);
        (self.aside, self.reacher, self.copies.awaited) = (false, None, None);
        self.announced.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn large(fill: u8) -> Payload {
        vec![fill; INLINE_PAYLOAD_BYTES + 1].into()
    }

    #[test]
    fn clearing_gives_payloads_back_and_leaves_nothing() {
        let mut outbox = Outbox::default();
        outbox.stage(|w| w.ping(1));
        outbox.push(Owner::Response(Handle::from_bits(4)), large(1));
        assert!(
            outbox.push(Owner::Response(Handle::from_bits(5)), vec![1, 2].into()).is_some(),
            "small ones are copied"
        );
        outbox.advance(20);
        outbox.clear();
        assert!(outbox.is_empty() && outbox.pending_bytes() == 0);
        assert_eq!(outbox.returned()[0].0, Owner::Response(Handle::from_bits(4)));
    }
}
