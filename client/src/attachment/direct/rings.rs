//! Rings of bytes in a lane: they carry the streams to the lane's peer. Taken and given back under the attachment's
//! lock; read and written without it, by the thread that has the stream. Bounded by [`LANE_RINGS`] for each direction.
//!
//! A thread that waits for the other end leaves a waker. The other end announces itself in the lane's news, which whoever polls the lane
//! passes on, and rings if this process sleeps.

use std::{
    sync::{
        Arc, Mutex, PoisonError, Weak,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    task::Waker,
};

use sealane_transport::{
    Error,
    shm::{Broken, BytesReader, BytesWriter, DirectLane, LaneBytes, LaneNews, limits::LANE_RINGS},
};

use super::{
    super::{Attachment, Held, Line, State, aftermath::Aftermath},
    Lane,
    channel::Bell,
};
use crate::{
    clock::Tick,
    limits::{RING_BYTES_AT_ONCE, RING_PIECE_BYTES},
};

/// Identifies a ring among those that its writer has in lanes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct RingPlace {
    /// Number of the lane: the two may have had others.
    pub(crate) lane: u64,
    pub(crate) ring: u8,
    /// Which use of that ring, counted from 1.
    pub(crate) used: u64,
}

/// The waiter at one end of a ring, as the lane knows it.
#[derive(Default)]
struct Waiting {
    waker: Mutex<Option<Waker>>,
    /// Nobody passes on the other end's news any more.
    is_over: AtomicBool,
}

impl Waiting {
    fn leave_waker(&self, waker: &Waker) {
        let mut kept = self.waker.lock().unwrap_or_else(PoisonError::into_inner);
        if !kept.as_ref().is_some_and(|kept| kept.will_wake(waker)) {
            *kept = Some(waker.clone());
        }
    }

    fn take_waker(&self) -> Option<Waker> {
        self.waker.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

/// The rings of one lane.
#[derive(Default)]
pub(super) struct Rings {
    /// By ring: how often it was used, and its end here.
    writers: [(u64, Weak<Waiting>); LANE_RINGS],
    readers: [Weak<Waiting>; LANE_RINGS],
    moved: Arc<MovedBytes>,
}

/// Bytes that the daemon was not told of yet.
#[derive(Default)]
struct MovedBytes {
    sent: AtomicU64,
    received: AtomicU64,
}

impl Rings {
    /// Wakes those for whom the other side has news.
    #[cold]
    pub(super) fn wake(&self, news: LaneNews, after: &mut Aftermath) {
        let readers = news.written().filter_map(|ring| self.readers[ring].upgrade());
        let writers = news.read().filter_map(|ring| self.writers[ring].1.upgrade());
        after.wakers.extend(readers.chain(writers).filter_map(|waiting| waiting.take_waker()));
    }

    /// Nobody polls the lane any more: streams on a ring end, once everything in it was read.
    pub(super) fn end(&self, wakers: &mut Vec<Waker>) {
        for waiting in self.ends().filter_map(Weak::upgrade) {
            waiting.is_over.store(true, Ordering::SeqCst);
            wakers.extend(waiting.take_waker());
        }
    }

    /// True if a stream uses a ring.
    pub(super) fn are_used(&self) -> bool {
        self.ends().any(|end| end.strong_count() > 0)
    }

    fn ends(&self) -> impl Iterator<Item = &Weak<Waiting>> {
        self.readers.iter().chain(self.writers.iter().map(|(_, end)| end))
    }

    /// Bytes sent and received of which the daemon was not told yet.
    pub(super) fn moved(&self) -> [u64; 2] {
        [&self.moved.sent, &self.moved.received].map(|bytes| bytes.load(Ordering::Relaxed))
    }

    /// The daemon knows of so many of these bytes. Streams may have moved more meanwhile.
    pub(super) fn has_told(&self, bytes: [u64; 2]) {
        let moved = [&self.moved.sent, &self.moved.received];
        moved.into_iter().zip(bytes).for_each(|(moved, told)| _ = moved.fetch_sub(told, Ordering::Relaxed));
    }

    fn take_up(&mut self, ends: &DirectLane, ring: usize) -> Option<BytesWriter<LaneBytes>> {
        let (used, last) = &mut self.writers[ring];
        if last.strong_count() > 0 {
            return None;
        }
        let writer = BytesWriter::begin(ends.bytes_to(ring), *used + 1)?;
        *used += 1;
        Some(writer)
    }
}

/// What a ring's reading and writing ends both have.
struct Shared {
    peer: Box<str>,
    waiting: Arc<Waiting>,
    bell: Bell,
    moved: Arc<MovedBytes>,
}

impl Shared {
    /// # Errors
    /// Unavailable if a waiter would not be woken.
    fn check(&self) -> Result<(), Error> {
        if self.waiting.is_over.load(Ordering::SeqCst) {
            return Err(Error::unavailable(&self.peer, "the direct lane by which the stream went has ended"));
        }
        Ok(())
    }

    fn broken(&self, broken: Broken) -> Error {
        Error::unavailable(&self.peer, broken.to_string())
    }
}

/// The writing end of a ring. When it is dropped, another stream may use the ring once its reader has left it, too.
pub(crate) struct RingWriter {
    bytes: BytesWriter<LaneBytes>,
    place: RingPlace,
    shared: Shared,
}

impl RingWriter {
    pub(crate) fn place(&self) -> RingPlace {
        self.place
    }

    /// Bytes that were written.
    pub(crate) fn written(&self) -> u64 {
        self.bytes.written()
    }

    /// Writes as many of the bytes as there is room for; returns how many.
    ///
    /// # Errors
    /// Unavailable if the other end breaks the rules.
    pub(crate) fn write(&mut self, bytes: &[u8]) -> Result<usize, Error> {
        let mut taken = 0;
        // The other end reads the first pieces while the next are written.
        let bytes = &bytes[..bytes.len().min(RING_BYTES_AT_ONCE)];
        for piece in bytes.chunks(RING_PIECE_BYTES) {
            let count = self.bytes.write(piece).map_err(|broken| self.shared.broken(broken))?;
            if count > 0 && self.bytes.must_tell() && self.bytes.memory().tell_reader() {
                self.shared.bell.ring();
            }
            taken += count;
            if count < piece.len() {
                break;
            }
        }
        if taken > 0 {
            self.shared.moved.sent.fetch_add(taken as u64, Ordering::Relaxed);
        }
        Ok(taken)
    }

    /// Has the waker woken when there is room; false if there is room now.
    ///
    /// # Errors
    /// As [`write`](Self::write), and if the lane has ended.
    pub(crate) fn wait(&mut self, waker: &Waker) -> Result<bool, Error> {
        self.shared.waiting.leave_waker(waker);
        self.shared.check()?;
        self.bytes.wait().map_err(|broken| self.shared.broken(broken))
    }
}

/// The reading end of a ring.
pub(crate) struct RingReader {
    bytes: BytesReader<LaneBytes>,
    shared: Shared,
}

impl RingReader {
    /// Bytes written since the stream has the ring; violations of the rules are found when it is read.
    pub(crate) fn written(&mut self) -> u64 {
        self.bytes.written().unwrap_or(self.bytes.found())
    }

    /// Moves available bytes into `into`; returns how many.
    ///
    /// # Errors
    /// Unavailable if the other end breaks the rules.
    pub(crate) fn read(&mut self, into: &mut [u8]) -> Result<usize, Error> {
        let mut read = 0;
        // The other end writes more while the next pieces are read.
        let most = into.len().min(RING_BYTES_AT_ONCE);
        for piece in into[..most].chunks_mut(RING_PIECE_BYTES) {
            let count = self.bytes.read(piece).map_err(|broken| self.shared.broken(broken))?;
            let must_tell = count > 0 && self.bytes.must_tell().map_err(|broken| self.shared.broken(broken))?;
            if must_tell && self.bytes.memory().tell_writer() {
                self.shared.bell.ring();
            }
            read += count;
            if count < piece.len() {
                break;
            }
        }
        // Not for every poll of a waiting reader.
        if read > 0 {
            self.shared.moved.received.fetch_add(read as u64, Ordering::Relaxed);
        }
        Ok(read)
    }

    /// Has the waker woken when there are bytes; false if there are some now.
    ///
    /// # Errors
    /// As [`read`](Self::read), and if the lane has ended.
    pub(crate) fn wait(&mut self, waker: &Waker) -> Result<bool, Error> {
        self.shared.waiting.leave_waker(waker);
        let waits = self.bytes.wait().map_err(|broken| self.shared.broken(broken))?;
        // What was written before the lane ended is still read.
        if waits { self.shared.check().map(|()| true) } else { Ok(false) }
    }
}

impl Held<'_> {
    /// The lane to a peer with which so many bytes of streams are exchanged. Enough of them cause a lane to be asked for.
    fn lane_for_bytes(&mut self, peer: &str, bytes: usize) -> Option<&mut Lane> {
        /// Bytes that count as one tensor, as if pushed.
        const BYTES_PER_TENSOR: usize = 4096;
        let State { line: Line::Up(link), .. } = &mut **self else { return None };
        let lane = link.direct.find(peer, Tick::now(), 1 + (bytes / BYTES_PER_TENSOR) as u32);
        if link.direct.has_wanted() {
            self.wake_driver();
        }
        let State { line: Line::Up(link), .. } = &mut **self else { return None };
        link.direct.get_mut(lane?)
    }
}

impl Attachment {
    /// Notes that so many bytes of a stream came through the daemon: each end asks for its own end of a lane.
    pub(crate) fn came_by_daemon(&self, peer: &str, bytes: usize) {
        self.lock().lane_for_bytes(peer, bytes);
    }

    /// True if this task and the peer may have a lane.
    pub(crate) fn is_neighbour(&self, peer: &str) -> bool {
        matches!(&self.lock().line, Line::Up(link) if link.direct.neighbours.contains_key(peer))
    }

    /// A ring for bytes to a peer, of which so many are to be sent now; `None` if the two have no lane, or it has no ring left.
    pub(crate) fn ring_to(&self, peer: &str, bytes: usize) -> Option<RingWriter> {
        let mut held = self.lock();
        let lane = held.lane_for_bytes(peer, bytes)?;
        // A shard passes on records alone.
        if !lane.channel.is_open() || lane.channel.is_switched() {
            return None;
        }
        let (ring, bytes) =
            (0..LANE_RINGS).find_map(|ring| Some((ring, lane.rings.take_up(&lane.channel.lane, ring)?)))?;
        let shared = lane.shared();
        lane.rings.writers[ring].1 = Arc::downgrade(&shared.waiting);
        let place = RingPlace { lane: lane.channel.lane.number(), ring: ring as u8, used: lane.rings.writers[ring].0 };
        Some(RingWriter { bytes, place, shared })
    }

    /// The reading end of a ring that a peer uses; `None` if the two have no such lane, or the ring is already read.
    pub(crate) fn ring_from(&self, peer: &str, place: RingPlace) -> Option<RingReader> {
        let mut held = self.lock();
        let State { line: Line::Up(link), .. } = &mut *held else { return None };
        let lane = link.direct.lane_numbered(peer, place.lane)?;
        let ring = usize::from(place.ring);
        if lane.rings.readers.get(ring)?.strong_count() > 0 {
            return None;
        }
        let (shared, bytes) = (lane.shared(), BytesReader::begin(lane.channel.lane.bytes_from(ring), place.used)?);
        lane.rings.readers[ring] = Arc::downgrade(&shared.waiting);
        Some(RingReader { bytes, shared })
    }
}

impl Lane {
    fn shared(&self) -> Shared {
        let (waiting, moved) = (Arc::default(), self.rings.moved.clone());
        Shared { peer: self.channel.peer.clone(), waiting, bell: self.channel.bell.clone(), moved }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_that_move_while_the_daemon_is_told_of_others_are_told_later() {
        let rings = Rings::default();
        rings.moved.sent.fetch_add(5, Ordering::Relaxed);
        let told = rings.moved();
        rings.moved.sent.fetch_add(3, Ordering::Relaxed);
        rings.has_told(told);
        assert_eq!(rings.moved(), [3, 0]);
    }
}
