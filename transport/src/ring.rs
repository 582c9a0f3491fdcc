//! A ring of words with one writer and one reader that do not trust each other: one direction of a channel, or of a client's trunk.
//!
//! **A header that is not 0 says that a record is there.** Before the writer stores a header, it stores 0 where the next one will be. So the
//! reader needs no position of the writer's, and a small tensor costs the cache lines of its record and no others (the scheme of FastForward:
//! Giacomoni et al., PPoPP 2008). Positions count words and only grow. Records are whole cache lines, and do not wrap: a *pad* fills the rest
//! of a lap. The reader tells how far it has read in a word on a line of its own.
//!
//! Threads: one writes and one reads at a time. Limits: the writer stays below `limit`, which its user computes.

#[cfg(loom)]
use loom::sync::atomic::{AtomicU64, Ordering};
#[cfg(not(loom))]
use std::sync::atomic::{AtomicU64, Ordering};

/// Words of a cache line. Records are whole lines, so that a small tensor touches no line of its neighbours.
const LINE_WORDS: usize = 8;

/// Rounds up to whole cache lines.
#[inline]
pub(crate) const fn lines(words: usize) -> u64 {
    words.next_multiple_of(LINE_WORDS) as u64
}

/// The kind of a record that is the unused rest of a lap.
pub(crate) const PAD: u8 = 3;

/// The first word of a record: its kind 8 bits, its words 16, and 40 bits whose meaning depends on the kind. 0 is no header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Header(pub(crate) u64);

impl Header {
    #[inline]
    pub(crate) fn new(kind: u8, words: u64, rest: u64) -> Header {
        Header(u64::from(kind) | words << 8 | rest << 24)
    }

    #[inline]
    pub(crate) fn number(self) -> u8 {
        self.0 as u8
    }

    /// Words of the record, as the writer claims.
    #[inline]
    pub(crate) fn words(self) -> u64 {
        self.0 >> 8 & 0xffff
    }

    #[inline]
    pub(crate) fn rest(self) -> u64 {
        self.0 >> 24
    }
}

/// Where a ring is. The memory must be zero before its first use; the other side may write anything to it at any time.
pub trait RingMemory {
    /// Words of the ring: a power of two, at least 32.
    const WORDS: u64;

    /// The word at a position, which is taken modulo the ring.
    fn word(&self, position: u64) -> &AtomicU64;

    /// `count` words from a position on, which is taken modulo the ring.
    ///
    /// # Panics
    /// If they cross the end of the ring.
    fn words(&self, position: u64, count: u64) -> &[AtomicU64];

    /// How many words the reader has read.
    fn read(&self) -> &AtomicU64;
}

/// Writes words, four at a time: the compiler unrolls no loop of unknown length over atomics.
#[inline]
pub(crate) fn store(words: &[AtomicU64], content: &[u64]) {
    let ((fours, rest), (from_fours, from_rest)) = (words[..content.len()].as_chunks(), content.as_chunks::<4>());
    for (words, values) in fours.iter().zip(from_fours) {
        let words: &[AtomicU64; 4] = words;
        (0..4).for_each(|at| words[at].store(values[at], Ordering::Relaxed));
    }
    rest.iter().zip(from_rest).for_each(|(word, value)| word.store(*value, Ordering::Relaxed));
}

/// Reads words, four at a time as in `store`.
#[inline]
pub(crate) fn load(words: &[AtomicU64], into: &mut [u64]) {
    let ((fours, rest), (into_fours, into_rest)) = (words[..into.len()].as_chunks(), into.as_chunks_mut::<4>());
    for (words, values) in fours.iter().zip(into_fours) {
        let words: &[AtomicU64; 4] = words;
        (0..4).for_each(|at| values[at] = words[at].load(Ordering::Relaxed));
    }
    rest.iter().zip(into_rest).for_each(|(word, value)| *value = word.load(Ordering::Relaxed));
}

/// The position within the ring.
#[inline]
pub(crate) fn index<M: RingMemory>(position: u64) -> u64 {
    position & (M::WORDS - 1)
}

pub(crate) struct Writer<M> {
    pub(crate) memory: M,
    /// Where the next record begins.
    pub(crate) tail: u64,
    /// Position that a record, with the 0 behind it, stays below.
    pub(crate) limit: u64,
    /// Records of a batch become visible together, when the header of the first is stored.
    batch: Batch,
}

enum Batch {
    None,
    Begun,
    First(u64, Header),
}

impl<M: RingMemory> Writer<M> {
    pub(crate) fn new(memory: M) -> Self {
        Writer { memory, tail: 0, limit: 0, batch: Batch::None }
    }

    /// True if a record of `words` words fits below the limit, in one piece.
    #[inline]
    pub(crate) fn fits(&self, words: u64) -> bool {
        self.tail + words < self.limit && index::<M>(self.tail) + words <= M::WORDS
    }

    /// The words of the record that is being written.
    #[inline]
    pub(crate) fn record(&self, words: u64) -> &[AtomicU64] {
        self.memory.words(self.tail, words)
    }

    /// Leaves the rest of the lap unused.
    pub(crate) fn pad(&mut self) {
        let words = M::WORDS - index::<M>(self.tail);
        self.commit(words, Header::new(PAD, words, 0));
    }

    /// Makes the record visible, unless it belongs to a batch.
    #[inline]
    pub(crate) fn commit(&mut self, words: u64, header: Header) {
        let at = self.tail;
        self.tail += words;
        self.memory.word(self.tail).store(0, Ordering::Relaxed);
        match self.batch {
            Batch::None => self.publish(at, header),
            Batch::Begun => self.batch = Batch::First(at, header),
            // The reader stops at the first header of the batch, which is 0 until all records are written.
            Batch::First(..) => self.memory.word(at).store(header.0, Ordering::Relaxed),
        }
    }

    /// [`commit`](Self::commit) of a record that belongs to no batch, for a writer that has a fence of its own before it looks for a sleeper.
    #[inline]
    pub(crate) fn commit_softly(&mut self, words: u64, header: Header) {
        let at = self.tail;
        self.tail += words;
        self.memory.word(self.tail).store(0, Ordering::Relaxed);
        self.memory.word(at).store(header.0, Ordering::Release);
    }

    /// SEQ_CST: a sleeper announces its sleep and then looks for a header; a writer stores a header and then looks for a sleeper. One of
    /// them sees the other.
    #[inline]
    fn publish(&self, at: u64, header: Header) {
        self.memory.word(at).swap(header.0, Ordering::SeqCst);
    }

    pub(crate) fn begin_batch(&mut self) {
        self.batch = Batch::Begun;
    }

    pub(crate) fn end_batch(&mut self) {
        if let Batch::First(at, header) = std::mem::replace(&mut self.batch, Batch::None) {
            self.publish(at, header);
        }
    }
}

pub(crate) struct Reader<M> {
    pub(crate) memory: M,
    /// Where the next record begins.
    pub(crate) head: u64,
}

impl<M: RingMemory> Reader<M> {
    pub(crate) fn new(memory: M) -> Self {
        Reader { memory, head: 0 }
    }

    /// The header of the next record, if there is one.
    #[inline]
    pub(crate) fn peek(&self) -> Option<Header> {
        let header = self.memory.word(self.head).load(Ordering::Acquire);
        (header != 0).then_some(Header(header))
    }

    /// True if there is no record; for a caller that has announced its sleep (`SEQ_CST`).
    pub(crate) fn is_empty_for_sleep(&self) -> bool {
        self.memory.word(self.head).load(Ordering::SeqCst) == 0
    }

    /// The words of the next record; `None` if its length is impossible.
    #[inline]
    pub(crate) fn record(&self, words: u64) -> Option<&[AtomicU64]> {
        (words > 0 && index::<M>(self.head) + words <= M::WORDS).then(|| self.memory.words(self.head, words))
    }

    /// Tells the writer what was read.
    #[inline]
    pub(crate) fn tell(&self) {
        // RELEASE: the record was read before its place is free.
        self.memory.read().store(self.head, Ordering::Release);
    }
}
