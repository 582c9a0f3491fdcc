//! The memory of a lane: a page of header, a ring of the channel in each direction, and rings of bytes. The daemon keeps it. Each of the
//! two clients opens one end, or one client does and a shard has the other.

use std::{
    hash::{BuildHasher, RandomState},
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use sealane_runtime::SleepFlag;

use super::BytesMemory;
use crate::shm::{
    error::ShmError,
    limits::{CHANNEL_WORDS, LANE_RING_BYTES, LANE_RINGS},
    mapping::{Bytes, Mapping, PAGE, Ring, SEGMENT},
};

/// Offsets within a lane, in bytes. Words that one side writes while the other polls have cache lines of their own.
mod at {
    use super::{CHANNEL_WORDS, LANE_RING_BYTES, LANE_RINGS, Side};

    pub(super) const fn standing(side: Side) -> u64 {
        side as u64 * LINE
    }

    pub(super) const fn sleep(side: Side) -> u64 {
        (2 + side as u64) * LINE
    }

    /// The words that the reader of a ring writes.
    pub(super) const fn reader(writer: Side) -> u64 {
        (4 + writer as u64) * LINE
    }

    /// Rings for which a side has reported news.
    pub(super) const fn news(side: Side) -> u64 {
        (6 + side as u64) * LINE
    }

    /// Whether a side wants the other woken, through a shard that moves the records between two lanes.
    pub(super) const fn poke(side: Side) -> u64 {
        news(side) + 8
    }

    pub(super) const NUMBER: u64 = 8 * LINE;
    pub(super) const ABANDONED: u64 = NUMBER + 8;

    /// The ring that a side writes.
    pub(super) const fn ring(writer: Side) -> u64 {
        super::PAGE + writer as u64 * CHANNEL_WORDS * 8
    }

    /// The words of a ring of bytes, each in a cache line of its own: bytes written, bytes read, and who waits.
    pub(super) const fn ring_words(writer: Side, ring: usize) -> u64 {
        super::PAGE + 2 * CHANNEL_WORDS * 8 + (writer as u64 * LANE_RINGS as u64 + ring as u64) * RING_WORDS_BYTES
    }

    pub(super) const fn ring_bytes(writer: Side, ring: usize) -> u64 {
        let rings = writer as u64 * LANE_RINGS as u64 + ring as u64;
        ring_words(Side::Second, LANE_RINGS).next_multiple_of(super::PAGE) + rings * LANE_RING_BYTES as u64
    }

    pub(super) const END: u64 = ring_bytes(Side::Second, LANE_RINGS);

    pub(super) const LINE: u64 = 128;
    const RING_WORDS_BYTES: u64 = 4 * LINE;
}

/// Which of the lane's two clients an end belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    /// The client that the daemon names first.
    First = 0,
    /// The other client.
    Second = 1,
}

impl Side {
    pub fn other(self) -> Side {
        match self {
            Side::First => Side::Second,
            Side::Second => Side::First,
        }
    }
}

/// The state of a side.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Standing {
    /// It has not opened its end: nothing may be sent to it.
    Absent,
    /// It reads.
    Here,
    /// Its task is gone.
    Gone,
    /// It has closed its end: it takes nothing more, and has told what it took.
    Closed,
}

const HERE: u64 = 1;
const GONE: u64 = 2;
const CLOSED: u64 = 3;

/// A lane as held by the daemon.
#[derive(Debug)]
pub struct LaneKeeper {
    mapping: Arc<Mapping>,
    descriptor: OwnedFd,
}

impl LaneKeeper {
    /// Creates a lane. Its pages are allocated on first use.
    ///
    /// # Errors
    /// [`ShmError::System`] if no descriptor is left.
    pub fn create() -> Result<LaneKeeper, ShmError> {
        let (mapping, descriptor) = Mapping::create("sealane-lane", at::END, SEGMENT)?;
        // Distinguishes two lanes of the same clients after one of them lost the first.
        mapping.word(at::NUMBER).store(RandomState::new().hash_one(()), Ordering::Release);
        Ok(LaneKeeper { mapping, descriptor })
    }

    /// The end of a side that no client has: a shard has it.
    pub fn open(&self, side: Side) -> DirectLane {
        DirectLane::over(self.mapping.clone(), side)
    }

    /// The task of a side is gone. The caller must wake the other side.
    pub fn end(&self, gone: Side) {
        self.mapping.word(at::standing(gone)).store(GONE, Ordering::Release);
    }

    /// Both sides are to close their ends. The caller must wake both.
    pub fn abandon(&self) {
        abandon(&self.mapping);
    }

    /// True if one side no longer uses the lane.
    pub fn has_ended(&self) -> bool {
        let standing = |side| self.mapping.word(at::standing(side)).load(Ordering::Relaxed);
        [Side::First, Side::Second].into_iter().any(|side| standing(side) > HERE)
    }
}

fn abandon(lane: &Mapping) {
    lane.word(at::ABANDONED).store(1, Ordering::Release);
}

/// Access to all of a lane's memory, since either client may write anything to it.
#[cfg(any(test, feature = "fuzzing"))]
impl LaneKeeper {
    /// What a side sends.
    pub fn way(&self, sender: Side) -> Way {
        way(&self.mapping, sender)
    }

    /// A word of the header; its number is taken modulo their number.
    pub fn header(&self, number: u64) -> &AtomicU64 {
        self.mapping.word(number % (PAGE / 8) * 8)
    }
}

impl AsFd for LaneKeeper {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }
}

/// One direction of the channel in shared memory.
pub type Way = Ring<CHANNEL_WORDS>;

fn way(mapping: &Arc<Mapping>, writer: Side) -> Way {
    Ring::new(mapping, at::ring(writer), at::reader(writer))
}

/// One client's end of a lane. Open it only once: a second end would begin where the first did.
pub struct DirectLane {
    mapping: Arc<Mapping>,
    side: Side,
    number: u64,
}

impl DirectLane {
    /// Opens the end of a side.
    ///
    /// # Errors
    /// [`ShmError::Unsealed`], [`ShmError::WrongSize`], or [`ShmError::System`] if it cannot be mapped.
    pub fn open(descriptor: &OwnedFd, side: Side) -> Result<DirectLane, ShmError> {
        Ok(Self::over(Mapping::open(descriptor, at::END, SEGMENT)?, side))
    }

    fn over(mapping: Arc<Mapping>, side: Side) -> DirectLane {
        let number = mapping.word(at::NUMBER).load(Ordering::Acquire);
        DirectLane { mapping, side, number }
    }

    /// The direction of the channel that this side writes.
    pub fn outgoing(&self) -> Way {
        way(&self.mapping, self.side)
    }

    /// The direction of the channel that this side reads.
    pub fn incoming(&self) -> Way {
        way(&self.mapping, self.side.other())
    }

    /// This side reads from now on: the other may send. Has no effect once a side is gone.
    pub fn arrive(&self) {
        let own = self.mapping.word(at::standing(self.side));
        // Release: a sender that sees this sends, and what it sends will be looked for.
        let _gone = own.compare_exchange(0, HERE, Ordering::AcqRel, Ordering::Relaxed);
    }

    /// The task of this side leaves. The caller must wake the other side.
    pub fn leave(&self) {
        self.mapping.word(at::standing(self.side)).store(GONE, Ordering::Release);
    }

    /// This side has closed its half of the channel: it takes nothing more. The caller must wake the other side.
    pub fn close(&self) {
        // Release: the other side sees what was taken before it sees this.
        let own = self.mapping.word(at::standing(self.side));
        let _gone =
            own.fetch_update(Ordering::AcqRel, Ordering::Relaxed, |standing| (standing != GONE).then_some(CLOSED));
    }

    /// Both sides are to close their ends. The caller must wake both.
    pub fn abandon(&self) {
        abandon(&self.mapping);
    }

    #[inline]
    pub fn other(&self) -> Standing {
        match self.mapping.word(at::standing(self.side.other())).load(Ordering::Acquire) {
            0 => Standing::Absent,
            HERE => Standing::Here,
            GONE => Standing::Gone,
            _ => Standing::Closed,
        }
    }

    /// Where this side announces that it sleeps.
    #[inline]
    pub fn own_sleep(&self) -> &SleepFlag {
        self.mapping.sleep_flag(at::sleep(self.side))
    }

    /// Tells whether the other side must be woken.
    #[inline]
    pub fn other_sleep(&self) -> &SleepFlag {
        self.mapping.sleep_flag(at::sleep(self.side.other()))
    }

    /// Asks the shard at the other side to wake the client behind it, however deeply that sleeps. The caller must wake the shard.
    pub fn poke(&self) {
        // SEQ_CST: see `SleepFlag::must_ring_for`.
        self.mapping.word(at::poke(self.side)).swap(1, Ordering::SeqCst);
    }

    /// True if the other side has asked since the last call for the client behind this one to be woken.
    #[inline]
    pub fn take_poke(&self) -> bool {
        let word = self.mapping.word(at::poke(self.side.other()));
        word.load(Ordering::Relaxed) != 0 && word.swap(0, Ordering::Relaxed) != 0
    }

    /// True if [`take_poke`](Self::take_poke) would be; for a shard that has announced its sleep.
    pub fn has_poke(&self) -> bool {
        self.mapping.word(at::poke(self.side.other())).load(Ordering::SeqCst) != 0
    }

    /// Distinguishes this lane from others that the two clients have had.
    pub fn number(&self) -> u64 {
        self.number
    }

    /// The ring with this number that this side writes. Only one end of it at a time.
    pub fn bytes_to(&self, ring: usize) -> LaneBytes {
        LaneBytes::new(&self.mapping, self.side, self.side, ring)
    }

    /// The ring with this number that this side reads. Only one end of it at a time.
    pub fn bytes_from(&self, ring: usize) -> LaneBytes {
        LaneBytes::new(&self.mapping, self.side.other(), self.side, ring)
    }

    /// True if the other side has reported news of a ring.
    #[inline]
    pub fn has_ring_news(&self) -> bool {
        self.mapping.word(at::news(self.side.other())).load(Ordering::Relaxed) != 0
    }

    /// The rings of which the other side has reported news since the last call.
    #[inline]
    pub fn take_ring_news(&self) -> LaneNews {
        // NEWS: Acquire here, Release in `LaneBytes::tell`. Where there are none, nothing is written.
        match self.has_ring_news() {
            true => LaneNews(self.mapping.word(at::news(self.side.other())).swap(0, Ordering::AcqRel)),
            false => LaneNews(0),
        }
    }

    /// True if this side is to close its end: the other is gone or has closed its own, or the daemon wants it.
    #[inline]
    pub fn has_ended(&self) -> bool {
        let is_abandoned = self.mapping.word(at::ABANDONED).load(Ordering::Acquire) != 0;
        is_abandoned || self.is_left()
    }

    /// True if the other side takes nothing more.
    #[inline]
    pub fn is_left(&self) -> bool {
        matches!(self.other(), Standing::Gone | Standing::Closed)
    }
}

/// Rings of which the other side has reported news; it may hold anything.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LaneNews(u64);

/// First bit of the rings that were read, in the news; bits of rings that were written come before.
const READ_AT: usize = 32;

const _: () = assert!(LANE_RINGS <= READ_AT, "each has a bit");

impl LaneNews {
    /// Rings of the other side that have bytes.
    pub fn written(self) -> impl Iterator<Item = usize> {
        (0..LANE_RINGS).filter(move |ring| self.0 >> ring & 1 != 0)
    }

    /// Rings of this side that have room.
    pub fn read(self) -> impl Iterator<Item = usize> {
        (0..LANE_RINGS).filter(move |ring| self.0 >> (READ_AT + ring) & 1 != 0)
    }
}

/// A ring of bytes of a lane, as one side sees it.
pub struct LaneBytes {
    mapping: Arc<Mapping>,
    words: u64,
    bytes: Bytes,
    side: Side,
    ring: usize,
}

impl LaneBytes {
    fn new(mapping: &Arc<Mapping>, writer: Side, side: Side, ring: usize) -> Self {
        assert!(ring < LANE_RINGS);
        let bytes = Bytes::new(mapping, at::ring_bytes(writer, ring), LANE_RING_BYTES);
        LaneBytes { mapping: Arc::clone(mapping), words: at::ring_words(writer, ring), bytes, side, ring }
    }

    /// The writer tells a waiting reader that there are bytes; true if the other client must be woken.
    pub fn tell_reader(&self) -> bool {
        self.tell(self.ring)
    }

    /// The reader tells a waiting writer that there is room; true if the other client must be woken.
    pub fn tell_writer(&self) -> bool {
        self.tell(READ_AT + self.ring)
    }

    fn tell(&self, bit: usize) -> bool {
        // NEWS: see `DirectLane::take_ring_news`.
        self.mapping.word(at::news(self.side)).fetch_or(1 << bit, Ordering::AcqRel);
        self.mapping.sleep_flag(at::sleep(self.side.other())).must_ring()
    }

    fn word(&self, line: u64) -> &AtomicU64 {
        self.mapping.word(self.words + line * at::LINE)
    }
}

impl BytesMemory for LaneBytes {
    const BYTES: u64 = LANE_RING_BYTES as u64;

    fn written(&self) -> &AtomicU64 {
        self.word(0)
    }

    fn read(&self) -> &AtomicU64 {
        self.word(1)
    }

    fn writer_waits(&self) -> &AtomicU64 {
        self.word(2)
    }

    fn reader_waits(&self) -> &AtomicU64 {
        self.word(3)
    }

    fn used(&self) -> &AtomicU64 {
        // In the line that first the writer and then the reader writes most often.
        self.mapping.word(self.words + 8)
    }

    fn left(&self) -> &AtomicU64 {
        self.mapping.word(self.words + at::LINE + 8)
    }

    fn copy_in(&self, position: u64, bytes: &[u8]) {
        self.bytes.copy_in(position, bytes);
    }

    fn copy_out(&self, position: u64, into: &mut [u8]) {
        self.bytes.copy_out(position, into);
    }
}

impl std::fmt::Debug for DirectLane {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("DirectLane").field("side", &self.side).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::{fs::File, os::unix::fs::MetadataExt};

    use super::*;
    use crate::{
        Destination,
        channel::{Half, Outgoing, Posting, Seed, Steps},
        tensor::{DType, TensorMeta},
    };

    #[test]
    fn quiet_lane_has_four_pages_at_most() {
        let keeper = LaneKeeper::create().unwrap();
        let memory = keeper.as_fd().try_clone_to_owned().unwrap();
        let [mut one, mut other] = [Side::First, Side::Second].map(|side| {
            let lane = DirectLane::open(&memory, side).unwrap();
            let mut half: Half<Way, Destination> =
                Half::new(lane.outgoing(), lane.incoming(), Seed::random(), Steps::default());
            half.clear();
            half
        });
        let meta = TensorMeta::new(DType::U8, &[64]).unwrap();
        let tensor = Outgoing { meta: meta.as_wire(), payload: &[7; 64] };
        for step in 0..10_000 {
            for _ in 0..2 {
                std::mem::swap(&mut one, &mut other);
                one.drain().unwrap();
                let data = &mut None;
                let posting = Posting { step, key: b"layer_0/kernel", deadline: u64::MAX, fails_if_gone: false, data };
                let recv = one.post(posting).unwrap();
                other.send((step, b"layer_0/kernel"), tensor, u64::MAX).unwrap();
                one.drain().unwrap();
                one.free(recv);
            }
        }
        let bytes = File::from(memory).metadata().unwrap().blocks() * 512;
        assert!(bytes <= 4 * PAGE, "{bytes} bytes of a lane are resident");
    }
}
