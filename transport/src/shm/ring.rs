//! A ring of records between one writer and one reader that do not trust each other; each on one thread, bounded by its
//! slots, without locks, system calls or allocation.
//!
//! A slot has 16 words. Word 0 is the *commit word* and nothing else is ever written there; the others carry content. A record
//! takes as many consecutive slots as its words need, wrapping around the end. The writer stores the content and then, in the
//! first slot, the commit word: the lap (how often the writer has been round, from 1), the number of words and the kind. Stale
//! contents of a slot therefore cannot be mistaken for a new record, and the reader learns of a small record from the same cache
//! line that holds it.
//!
//! The reader publishes its position in one word, the *head*, so that the writer knows which slots are free. Positions only
//! grow, and each side keeps its own copy: an invalid head or length is detected, not followed.

#[cfg(loom)]
use loom::sync::atomic::{AtomicU64, Ordering};
#[cfg(not(loom))]
use std::sync::atomic::{AtomicU64, Ordering};

use super::{
    limits::{CONTENT_WORDS, RECORD_WORDS_MAX, SLOT_WORDS},
    record::Record,
};

/// Where a ring is. The memory must be zero before its first use.
pub trait RingMemory {
    /// Number of slots of the ring, a power of two.
    const SLOTS: usize;

    /// The reader's position; on a cache line of its own.
    fn head(&self) -> &AtomicU64;

    /// The slot of a position, modulo [`SLOTS`](Self::SLOTS).
    fn slot(&self, position: u64) -> &[AtomicU64; SLOT_WORDS];
}

/// The other side wrote invalid data; the ring cannot be used any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the other side broke the ring: {what} ({found})")]
pub struct Broken {
    pub what: &'static str,
    pub found: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum PushError {
    /// The reader has not freed enough slots yet; nothing was written.
    #[error("the ring is full")]
    Full,
    /// The reader cannot be trusted.
    #[error(transparent)]
    Broken(#[from] Broken),
}

/// The commit word: lap in the high half, then words and kind.
#[inline]
fn commit_word<M: RingMemory>(position: u64, record: &Record) -> u64 {
    u64::from(lap::<M>(position)) << 32 | (record.len as u64) << 16 | u64::from(record.kind)
}

/// The lap of a position; never 0, since fresh memory is 0.
#[inline]
fn lap<M: RingMemory>(position: u64) -> u32 {
    let round = position / M::SLOTS as u64;
    // A division costs as much as copying a short record, and is needed only after four billion laps.
    if round < u64::from(u32::MAX) { round as u32 + 1 } else { (round % u64::from(u32::MAX)) as u32 + 1 }
}

#[inline]
fn slots_of(words: usize) -> u64 {
    words.div_ceil(CONTENT_WORDS).max(1) as u64
}

/// Writes words, four at a time: the compiler unrolls no loop of unknown length over atomics.
#[inline]
fn store(words: &[AtomicU64], content: &[u64]) {
    let ((fours, rest), (from_fours, from_rest)) = (words[..content.len()].as_chunks(), content.as_chunks::<4>());
    for (words, values) in fours.iter().zip(from_fours) {
        let words: &[AtomicU64; 4] = words;
        (0..4).for_each(|at| words[at].store(values[at], Ordering::Relaxed));
    }
    rest.iter().zip(from_rest).for_each(|(word, value)| word.store(*value, Ordering::Relaxed));
}

/// Reads words, four at a time as in `store`.
#[inline]
pub(super) fn load(words: &[AtomicU64], into: &mut [u64]) {
    let ((fours, rest), (into_fours, into_rest)) = (words[..into.len()].as_chunks(), into.as_chunks_mut::<4>());
    for (words, values) in fours.iter().zip(into_fours) {
        let words: &[AtomicU64; 4] = words;
        (0..4).for_each(|at| values[at] = words[at].load(Ordering::Relaxed));
    }
    rest.iter().zip(into_rest).for_each(|(word, value)| *value = word.load(Ordering::Relaxed));
}

/// The end that writes records.
#[derive(Debug)]
pub struct Writer<M> {
    memory: M,
    /// Slots written so far.
    tail: u64,
    /// The head as last read.
    head: u64,
}

impl<M: RingMemory> Writer<M> {
    /// The writing end of a ring that nobody has written to yet.
    pub fn new(memory: M) -> Self {
        Self { memory, tail: 0, head: 0 }
    }

    /// Writes a record; the reader sees all of it or nothing.
    ///
    /// # Errors
    /// [`PushError::Full`] while the reader has to free slots first, [`PushError::Broken`] if the reader's position is
    /// impossible.
    #[inline]
    pub fn push(&mut self, record: &Record) -> Result<(), PushError> {
        let slots = slots_of(record.len);
        if self.tail - self.head + slots > M::SLOTS as u64 && self.free_slots()? < slots {
            return Err(PushError::Full);
        }
        for (position, part) in (self.tail..).zip(record.content().chunks(CONTENT_WORDS)) {
            store(&self.memory.slot(position)[1..], part);
        }
        // COMMIT: Release here, Acquire in `pop`, so that a reader that sees the commit word sees the content.
        self.memory.slot(self.tail)[0].store(commit_word::<M>(self.tail, record), Ordering::Release);
        self.tail += slots;
        Ok(())
    }

    /// The reader's position as it claims, if it has not read everything.
    pub fn behind(&self) -> Option<u64> {
        let head = self.memory.head().load(Ordering::Relaxed);
        (head != self.tail).then_some(head)
    }

    /// Number of slots that the reader has freed, read anew.
    ///
    /// # Errors
    /// [`Broken`] if the reader claims to have read what was not written, or to be further behind than the ring is long.
    pub fn free_slots(&mut self) -> Result<u64, Broken> {
        // HEAD: Acquire here, Release in `publish`, so that the reader's loads are over before slots are written anew.
        let head = self.memory.head().load(Ordering::Acquire);
        match self.tail.checked_sub(head) {
            Some(unread) if unread <= M::SLOTS as u64 => {
                self.head = head;
                Ok(M::SLOTS as u64 - unread)
            }
            _ => Err(Broken { what: "the reader's position is not among the records", found: head }),
        }
    }
}

/// The end that reads records.
#[derive(Debug)]
pub struct Reader<M> {
    memory: M,
    /// Slots read so far.
    position: u64,
    /// The position that was published to the writer.
    published: u64,
}

impl<M: RingMemory> Reader<M> {
    /// The reading end of a ring that nobody has read from yet.
    pub fn new(memory: M) -> Self {
        Self { memory, position: 0, published: 0 }
    }

    /// Copies the next record; false if there is none. Publishes the freed slots to the writer every quarter of the ring.
    ///
    /// # Errors
    /// [`Broken`] if the record claims to be longer than possible; `into` is then unchanged.
    #[inline]
    pub fn pop(&mut self, into: &mut Record) -> Result<bool, Broken> {
        // COMMIT: see `push`.
        let commit = self.memory.slot(self.position)[0].load(Ordering::Acquire);
        if (commit >> 32) as u32 != lap::<M>(self.position) {
            return Ok(false);
        }
        let len = usize::from((commit >> 16) as u16);
        let slots = slots_of(len);
        if len > RECORD_WORDS_MAX || slots > M::SLOTS as u64 {
            return Err(Broken { what: "a record is longer than any may be", found: len as u64 });
        }
        for (position, part) in (self.position..).zip(into.words[..len].chunks_mut(CONTENT_WORDS)) {
            load(&self.memory.slot(position)[1..], part);
        }
        into.become_record(commit as u8, len);
        self.position += slots;
        if self.position - self.published >= M::SLOTS as u64 / 4 {
            self.publish();
        }
        Ok(true)
    }

    /// True if there is no record now; costs one load.
    #[inline]
    pub fn is_empty(&self) -> bool {
        // COMMIT: see `push`; a sleeper's last look must see what a poster wrote before it looked for sleepers.
        let commit = self.memory.slot(self.position)[0].load(Ordering::Acquire);
        (commit >> 32) as u32 != lap::<M>(self.position)
    }

    /// Tells the writer which slots are free again; call it once per drained batch.
    #[inline]
    pub fn publish(&mut self) {
        if self.published != self.position {
            // HEAD: see `free_slots`.
            self.memory.head().store(self.position, Ordering::Release);
            self.published = self.position;
        }
    }
}

#[cfg(test)]
mod memory;

#[cfg(all(test, loom))]
mod loom_tests;

#[cfg(all(test, not(loom)))]
mod tests;
