//! The bare ring: descriptors of one cache line, each with a word that says when it is written, and nothing else. One
//! writer, one reader, each with its position to itself; they trust each other.

use std::ops::Deref;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

/// A word that shares no pair of cache lines with another: the processor fetches lines in pairs.
#[derive(Debug, Default)]
#[repr(C, align(128))]
pub(super) struct Apart<T>(T);

impl<T> Deref for Apart<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0
    }
}

/// Descriptors that a ring holds: as many slots as a ring of the shm link has.
const SLOTS: usize = 1024;

/// The reader says how far it is once in so many descriptors.
const READS_A_HEAD: u64 = SLOTS as u64 / 4;

/// Words of a descriptor beside the one that says when it is written: 64 bytes together.
const WORDS: usize = 7;

/// What one message says.
pub(super) type Descriptor = [u64; WORDS];

#[derive(Debug)]
#[repr(C, align(64))]
struct Slot {
    /// One more than the position of the descriptor that is in the slot.
    written: AtomicU64,
    words: [AtomicU64; WORDS],
}

const _: () = assert!(size_of::<Slot>() == 64);

/// A ring where it lies; zero at first.
#[derive(Debug)]
#[repr(C)]
pub(super) struct RingMemory {
    /// How far the reader is, at least.
    head: Apart<AtomicU64>,
    slots: [Slot; SLOTS],
}

impl RingMemory {
    fn slot(&self, position: u64) -> &Slot {
        &self.slots[position as usize % SLOTS]
    }
}

/// The writing end's memory of where it is.
#[derive(Debug, Default)]
pub(super) struct Writer {
    position: u64,
    /// The head as last read.
    head: u64,
}

impl Writer {
    /// Writes one descriptor; false while the ring is full.
    #[inline]
    pub(super) fn push(&mut self, ring: &RingMemory, descriptor: &Descriptor) -> bool {
        if self.position - self.head == SLOTS as u64 {
            // HEAD: Acquire here, Release in `pop`: what was read there is not overwritten before.
            self.head = ring.head.load(Acquire);
            if self.position - self.head == SLOTS as u64 {
                return false;
            }
        }
        let slot = ring.slot(self.position);
        for (word, value) in slot.words.iter().zip(descriptor) {
            word.store(*value, Relaxed);
        }
        self.position += 1;
        // WRITTEN: Release here, Acquire in `pop`: whoever sees it sees the words.
        slot.written.store(self.position, Release);
        true
    }
}

/// The reading end's memory of where it is.
#[derive(Debug, Default)]
pub(super) struct Reader {
    position: u64,
}

impl Reader {
    /// Reads the next descriptor, if there is one.
    #[inline]
    pub(super) fn pop(&mut self, ring: &RingMemory) -> Option<Descriptor> {
        let slot = ring.slot(self.position);
        // WRITTEN: see `push`.
        if slot.written.load(Acquire) != self.position + 1 {
            return None;
        }
        let descriptor = std::array::from_fn(|index| slot.words[index].load(Relaxed));
        self.position += 1;
        if self.position.is_multiple_of(READS_A_HEAD) {
            // HEAD: see `push`.
            ring.head.store(self.position, Release);
        }
        Some(descriptor)
    }
}

#[cfg(test)]
mod tests {
    use super::super::board::SharedBoard;
    use super::*;

    #[test]
    fn descriptors_come_out_in_order_round_the_ring() {
        let (board, _) = SharedBoard::create().expect("memory");
        let ring = &board.to_producer;
        let (mut writer, mut reader) = (Writer::default(), Reader::default());
        assert_eq!(reader.pop(ring), None);
        for number in 0..3 * SLOTS as u64 {
            let descriptor = std::array::from_fn(|index| number * 10 + index as u64);
            assert!(writer.push(ring, &descriptor));
            assert_eq!(reader.pop(ring), Some(descriptor));
            assert_eq!(reader.pop(ring), None);
        }
    }

    #[test]
    fn a_full_ring_takes_nothing_until_some_are_read() {
        let (board, _) = SharedBoard::create().expect("memory");
        let ring = &board.from_producer;
        let (mut writer, mut reader) = (Writer::default(), Reader::default());
        for number in 0..SLOTS as u64 {
            assert!(writer.push(ring, &[number; WORDS]));
        }
        assert!(!writer.push(ring, &[0; WORDS]));
        for number in 0..READS_A_HEAD {
            assert_eq!(reader.pop(ring), Some([number; WORDS]));
        }
        for _ in 0..READS_A_HEAD {
            assert!(writer.push(ring, &[0; WORDS]));
        }
        assert!(!writer.push(ring, &[0; WORDS]));
    }

    #[test]
    fn two_threads_lose_nothing() {
        const COUNT: u64 = 20_000;
        let (board, _) = SharedBoard::create().expect("memory");
        let ring = &board.to_producer;
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut writer = Writer::default();
                for number in 0..COUNT {
                    while !writer.push(ring, &[number; WORDS]) {
                        std::thread::yield_now();
                    }
                }
            });
            let mut reader = Reader::default();
            for number in 0..COUNT {
                let descriptor = loop {
                    match reader.pop(ring) {
                        Some(descriptor) => break descriptor,
                        None => std::thread::yield_now(),
                    }
                };
                assert_eq!(descriptor, [number; WORDS]);
            }
        });
    }
}
