//! One direction of a channel: a ring of words with one writer and one reader that do not trust each other.
//!
//! **A header that is not 0 says that a record is there.** Before the writer stores a header, it stores 0 where the next one will be. So the
//! reader needs no position of the writer's, and a small tensor costs the cache lines of its record and no others (the scheme of FastForward:
//! Giacomoni et al., PPoPP 2008). Positions count words and only grow. A record does not wrap: a `PAD` fills the rest of a lap.
//!
//! The reader has three words on a line of its own: how far it has read, the number before which all tensors are settled, and how many it
//! has returned.
//!
//! Threads: one writes and one reads at a time. Limits: the writer stays below `limit`, which the half computes.

#[cfg(loom)]
use loom::sync::atomic::{AtomicU64, Ordering};
#[cfg(not(loom))]
use std::sync::atomic::{AtomicU64, Ordering};

use super::record::Header;

/// Where one direction of a channel is. The memory must be zero before its first use; the other side may write anything to it at any time.
pub trait ChannelMemory {
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

    /// The number before which the reader has settled all tensors.
    fn took(&self) -> &AtomicU64;

    /// How many tensors the reader has returned.
    fn returned(&self) -> &AtomicU64;
}

/// A peer broke the rules of its ring, and how.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the peer broke the channel: {0}")]
pub struct BrokenChannel(pub(super) &'static str);

/// The position within the ring.
#[inline]
pub(super) fn index<M: ChannelMemory>(position: u64) -> u64 {
    position & (M::WORDS - 1)
}

pub(super) struct Writer<M> {
    pub(super) memory: M,
    /// Where the next record begins.
    pub(super) tail: u64,
    /// Position that a record, with the 0 behind it, stays below.
    pub(super) limit: u64,
    /// Records of a batch become visible together, when the header of the first is stored.
    batch: Batch,
}

enum Batch {
    None,
    Begun,
    First(u64, Header),
}

impl<M: ChannelMemory> Writer<M> {
    pub(super) fn new(memory: M) -> Self {
        Writer { memory, tail: 0, limit: 0, batch: Batch::None }
    }

    /// True if a record of `words` words fits below the limit, in one piece.
    #[inline]
    pub(super) fn fits(&self, words: u64) -> bool {
        self.tail + words < self.limit && index::<M>(self.tail) + words <= M::WORDS
    }

    /// The words of the record that is being written.
    #[inline]
    pub(super) fn record(&self, words: u64) -> &[AtomicU64] {
        self.memory.words(self.tail, words)
    }

    /// Makes the record visible, unless it belongs to a batch.
    #[inline]
    pub(super) fn commit(&mut self, words: u64, header: Header) {
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

    /// SEQ_CST: a sleeper announces its sleep and then looks for a header; a writer stores a header and then looks for a sleeper. One of
    /// them sees the other.
    #[inline]
    fn publish(&self, at: u64, header: Header) {
        self.memory.word(at).swap(header.0, Ordering::SeqCst);
    }

    pub(super) fn begin_batch(&mut self) {
        self.batch = Batch::Begun;
    }

    pub(super) fn end_batch(&mut self) {
        if let Batch::First(at, header) = std::mem::replace(&mut self.batch, Batch::None) {
            self.publish(at, header);
        }
    }
}

pub(super) struct Reader<M> {
    pub(super) memory: M,
    /// Where the next record begins.
    pub(super) head: u64,
}

impl<M: ChannelMemory> Reader<M> {
    pub(super) fn new(memory: M) -> Self {
        Reader { memory, head: 0 }
    }

    /// The header of the next record, if there is one.
    #[inline]
    pub(super) fn peek(&self) -> Option<Header> {
        let header = self.memory.word(self.head).load(Ordering::Acquire);
        (header != 0).then_some(Header(header))
    }

    /// True if there is no record; for a caller that has announced its sleep (`SEQ_CST`).
    pub(super) fn is_empty_for_sleep(&self) -> bool {
        self.memory.word(self.head).load(Ordering::SeqCst) == 0
    }

    /// The words of the next record.
    ///
    /// # Errors
    /// Its length is impossible.
    #[inline]
    pub(super) fn record(&self, words: u64) -> Result<&[AtomicU64], BrokenChannel> {
        if words == 0 || index::<M>(self.head) + words > M::WORDS {
            return Err(BrokenChannel("a record has an impossible length"));
        }
        Ok(self.memory.words(self.head, words))
    }

    /// Tells the writer what was read, and, if it is new, the number before which all tensors are settled.
    #[inline]
    pub(super) fn tell(&self, took: Option<u64>) {
        // RELEASE: the record was read before its place is free.
        self.memory.read().store(self.head, Ordering::Release);
        if let Some(took) = took {
            // SEQ_CST: as for headers.
            self.memory.took().swap(took, Ordering::SeqCst);
        }
    }
}
