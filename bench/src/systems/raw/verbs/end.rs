//! One end of the raw verbs baseline: a device, a queue pair, and the memory that both move. An island of unsafe code, since
//! the device reads and writes that memory by itself.
//!
//! Used by the thread that made it; bounded by the device's queues, which [`End::room`] and the number of receive buffers
//! keep from overrunning.

#![allow(unsafe_code)]

use std::alloc::{self, Layout};
use std::io;
use std::ops::Range;
use std::ptr::{self, NonNull};
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use sealane_transport::verbs::device::{
    Access, Completion, Device, Endpoint, MemoryKind, Piece, Post, QueuePair, RECEIVED, Region, Remote, VerbsError,
    Work,
};

use super::areas::Areas;
use crate::limits::FILL;
use crate::systems::raw::channel::Patience;

/// One request in so many asks for a completion at least: places in the send queue come back with completions.
const SIGNAL_EVERY: u64 = 16;

/// Completions taken at once.
const COMPLETIONS_AT_ONCE: usize = 64;

/// The memory begins at a page, as that of other measuring programs does.
const PAGE_BYTES: usize = 4096;

/// How an end waits for completions.
#[derive(Clone, Copy, Debug)]
pub(super) struct Patient {
    /// It spins; else it sleeps until there is one.
    pub(super) spins: bool,
    /// How long nothing may come; `None`: for ever.
    pub(super) limit: Option<Duration>,
}

/// What has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Arrival {
    /// The receive buffer that it took.
    pub(super) slot: usize,
    /// Bytes in it; none with the word of a write.
    pub(super) bytes: usize,
}

/// See the module.
pub(super) struct End {
    // Before the memory: nothing that is posted outlives the device.
    device: Box<dyn Device>,
    memory: Memory,
    areas: Areas,
    region: Region,
    queue_pair: QueuePair,
    patient: Patient,
    /// Requests that were posted, and how many of them are known to be done: their numbers are their ids.
    posted: u64,
    done: u64,
    signaled: u64,
    to_post: Vec<Post>,
    to_receive: Vec<(u64, Piece)>,
    arrivals: Vec<Arrival>,
    completions: Vec<Completion>,
}

impl End {
    /// A queue pair that is not connected, all receive buffers posted; what is sent is full of `FILL`, the rest of zeros.
    pub(super) fn open(mut device: Box<dyn Device>, areas: Areas, patient: Patient) -> io::Result<Self> {
        let attributes = device.attributes();
        if areas.slots > attributes.receive_depth as usize {
            let reason = format!("{} are needed, the device has {}", areas.slots, attributes.receive_depth);
            return Err(io::Error::other(VerbsError::new("receive buffers", reason)));
        }
        let memory = Memory::allocate(areas.bytes())?;
        // SAFETY: the memory stays until the device is gone.
        let region = unsafe { device.register(MemoryKind::Host, memory.address(), memory.bytes, Access::Peers) };
        let region = region.map_err(io::Error::other)?;
        let queue_pair = device.create().map_err(io::Error::other)?;
        let mut end = Self {
            device,
            memory,
            areas,
            region,
            queue_pair,
            patient,
            posted: 0,
            done: 0,
            signaled: 0,
            to_post: Vec::new(),
            to_receive: Vec::new(),
            arrivals: Vec::new(),
            completions: Vec::with_capacity(COMPLETIONS_AT_ONCE),
        };
        end.fill(0..areas.out_bytes, FILL);
        (0..areas.slots).for_each(|slot| end.receive(slot));
        end.flush_receives()?;
        Ok(end)
    }

    /// What the peer must know of the queue pair.
    pub(super) fn endpoint(&self) -> Endpoint {
        let attributes = self.device.attributes();
        Endpoint {
            number: self.queue_pair.number,
            // Any number does for a connection that is made once.
            first_packet: self.queue_pair.number,
            gid: attributes.gid,
            lid: attributes.lid,
            mtu: attributes.mtu,
            reads: attributes.reads,
        }
    }

    /// Where the peer may write.
    pub(super) fn place(&self) -> Remote {
        Remote { address: self.memory.address() + self.areas.place() as u64, rkey: self.region.rkey }
    }

    pub(super) fn areas(&self) -> Areas {
        self.areas
    }

    /// Bytes of one write at most.
    pub(super) fn write_bytes_max(&self) -> usize {
        self.device.attributes().work_bytes_max as usize
    }

    pub(super) fn connect(&mut self, peer: &Endpoint) -> io::Result<()> {
        self.device.connect(self.queue_pair.id, self.queue_pair.number, peer).map_err(io::Error::other)
    }

    /// Requests that may still be posted.
    pub(super) fn room(&self) -> usize {
        (u64::from(self.device.attributes().send_depth) + self.done - self.posted) as usize
    }

    /// The number of the last request, and of the last that is known to be done; they count from 1.
    pub(super) fn progress(&self) -> (u64, u64) {
        (self.posted, self.done)
    }

    /// Sends the first bytes of what is to be sent, with the next [`flush`](Self::flush).
    pub(super) fn send(&mut self, bytes: usize) {
        let piece = self.piece(0..bytes);
        let work = if piece.bytes <= self.queue_pair.inline_bytes {
            Work::SendInline { address: piece.address, bytes: piece.bytes }
        } else {
            Work::Send(piece)
        };
        self.push(work, false);
    }

    /// Writes part of what is to be sent into the peer's memory, with the next [`flush`](Self::flush); `signaled`: its
    /// completion is waited for.
    pub(super) fn write(&mut self, from: Range<usize>, to: Remote, word: Option<u32>, signaled: bool) {
        let from = self.piece(from);
        self.push(Work::Write { from, to, word }, signaled);
    }

    /// Reads the peer's memory into where it could write itself, with the next [`flush`](Self::flush).
    pub(super) fn read(&mut self, from: Remote, bytes: usize) {
        let place = self.areas.place();
        let into = self.piece(place..place + bytes);
        self.push(Work::Read { into, from }, true);
    }

    /// Gives a receive buffer back, with the next [`flush_receives`](Self::flush_receives).
    pub(super) fn receive(&mut self, slot: usize) {
        let start = self.areas.slot(slot);
        let piece = self.piece(start..start + self.areas.slot_bytes);
        self.to_receive.push((RECEIVED | slot as u64, piece));
    }

    pub(super) fn flush(&mut self) -> io::Result<()> {
        if self.to_post.is_empty() {
            return Ok(());
        }
        // SAFETY: all local memory is this end's, and stays until the device is gone. What is sent is filled only while
        // nothing is under way; where others write, this end reads only when it was told that they have.
        let posted = unsafe { self.device.post(self.queue_pair.id, &self.to_post) };
        self.to_post.clear();
        posted.map_err(|(_, error)| io::Error::other(error))
    }

    pub(super) fn flush_receives(&mut self) -> io::Result<()> {
        if self.to_receive.is_empty() {
            return Ok(());
        }
        // SAFETY: the buffers are this end's, stay until the device is gone, and nobody reads them.
        let posted = unsafe { self.device.post_receives(&self.to_receive) };
        self.to_receive.clear();
        posted.map_err(io::Error::other)
    }

    /// Waits until something has come or is done; what has come.
    pub(super) fn wait(&mut self) -> io::Result<&[Arrival]> {
        self.arrivals.clear();
        let mut patience = Patience::default();
        while self.poll()? == 0 {
            if self.patient.spins {
                if self.patient.limit.is_some() {
                    patience.idle_pass()?;
                }
            } else if self.sleep()? > 0 {
                break;
            }
        }
        Ok(&self.arrivals)
    }

    /// True if all bytes of this part of the memory are `byte`.
    pub(super) fn is_all(&self, range: Range<usize>, byte: u8) -> bool {
        self.memory.copy(range).iter().all(|found| *found == byte)
    }

    /// Fills part of the memory, which no posted request names.
    pub(super) fn fill(&mut self, range: Range<usize>, byte: u8) {
        self.memory.fill(range, byte);
    }

    /// Takes completions; how many.
    #[inline]
    fn poll(&mut self) -> io::Result<usize> {
        let count = self.device.poll(&mut self.completions, COMPLETIONS_AT_ONCE).map_err(io::Error::other)?;
        for completion in self.completions.drain(..) {
            if !completion.status.is_success() {
                return Err(io::Error::other(format!("a request failed: {}", completion.status)));
            }
            if completion.id & RECEIVED == 0 {
                self.done = completion.id;
            } else {
                let bytes = if completion.word.is_some() { 0 } else { completion.bytes as usize };
                self.arrivals.push(Arrival { slot: (completion.id & !RECEIVED) as usize, bytes });
            }
        }
        Ok(count)
    }

    /// Sleeps until there is a completion; how many came before that was possible.
    fn sleep(&mut self) -> io::Result<usize> {
        self.device.arm().map_err(io::Error::other)?;
        let count = self.poll()?;
        if count > 0 {
            return Ok(count);
        }
        let until = self.patient.limit.map(|limit| Instant::now() + limit);
        loop {
            let timeout = match until {
                None => PollTimeout::NONE,
                Some(until) => {
                    let left = until.saturating_duration_since(Instant::now()).as_millis() + 1;
                    PollTimeout::try_from(left).unwrap_or(PollTimeout::MAX)
                }
            };
            let mut descriptors = [PollFd::new(self.device.completion_descriptor(), PollFlags::POLLIN)];
            match poll(&mut descriptors, timeout) {
                Ok(0) => return Err(io::ErrorKind::TimedOut.into()),
                Ok(_) => break,
                Err(nix::errno::Errno::EINTR) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
        self.device.disarm();
        Ok(0)
    }

    fn push(&mut self, work: Work, signaled: bool) {
        assert!(self.room() > 0, "the caller has looked for room");
        self.posted += 1;
        // In a full queue there is always one whose completion makes room.
        let every = SIGNAL_EVERY.min(u64::from(self.device.attributes().send_depth));
        let signaled = signaled || self.posted - self.signaled >= every;
        if signaled {
            self.signaled = self.posted;
        }
        self.to_post.push(Post { id: self.posted, signaled, work });
    }

    fn piece(&self, range: Range<usize>) -> Piece {
        assert!(range.start <= range.end && range.end <= self.memory.bytes, "within the memory");
        let bytes = u32::try_from(range.len()).expect("requests are shorter");
        Piece { address: self.memory.address() + range.start as u64, bytes, lkey: self.region.lkey }
    }
}

/// Memory that a device may touch at any time, and that is therefore never lent as a slice.
struct Memory {
    start: NonNull<u8>,
    bytes: usize,
}

impl Memory {
    fn allocate(bytes: usize) -> io::Result<Self> {
        let layout = Self::layout(bytes)?;
        // SAFETY: areas are never empty.
        let start = unsafe { alloc::alloc_zeroed(layout) };
        NonNull::new(start).map(|start| Self { start, bytes }).ok_or_else(|| io::ErrorKind::OutOfMemory.into())
    }

    fn layout(bytes: usize) -> io::Result<Layout> {
        assert!(bytes > 0, "areas are never empty");
        Layout::from_size_align(bytes, PAGE_BYTES).map_err(io::Error::other)
    }

    fn address(&self) -> u64 {
        self.start.as_ptr() as u64
    }

    fn fill(&self, range: Range<usize>, byte: u8) {
        assert!(range.start <= range.end && range.end <= self.bytes, "within the memory");
        // SAFETY: within the allocation, to which there are no references.
        unsafe { ptr::write_bytes(self.start.as_ptr().add(range.start), byte, range.len()) };
    }

    fn copy(&self, range: Range<usize>) -> Vec<u8> {
        assert!(range.start <= range.end && range.end <= self.bytes, "within the memory");
        let mut copy = vec![0; range.len()];
        // SAFETY: within the allocation, all of which is initialized, and into memory of the same length.
        unsafe { ptr::copy_nonoverlapping(self.start.as_ptr().add(range.start), copy.as_mut_ptr(), copy.len()) };
        copy
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        let layout = Self::layout(self.bytes).expect("it was allocated with this");
        // SAFETY: allocated with this layout, and given back once.
        unsafe { alloc::dealloc(self.start.as_ptr(), layout) };
    }
}
