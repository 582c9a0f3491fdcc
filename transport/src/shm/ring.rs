//! A client's trunk: the records of one direction, in a ring of words. Each end is on one thread, bounded by the ring, without locks,
//! system calls or allocation.
//!
//! The reader copies a record before it looks at it, and tells the writer how far it has read. Each side keeps its own position: an
//! impossible one of the other side, or an impossible length, is noticed and not followed.

#[cfg(loom)]
use loom::sync::atomic::Ordering;
#[cfg(not(loom))]
use std::sync::atomic::Ordering;

use super::{limits::RECORD_WORDS_MAX, record::Record};
pub use crate::ring::RingMemory;
use crate::ring::{self, Header, PAD, index, lines, load, store};

/// Kinds below this are those of a channel's records; a trunk's are counted from here.
const KINDS: u8 = 32;

/// The other side wrote invalid data; the ring cannot be used any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the other side broke the ring: {what} ({found})")]
pub struct Broken {
    pub what: &'static str,
    pub found: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum PushError {
    /// The reader has not read enough yet; nothing was written.
    #[error("the ring is full")]
    Full,
    /// The reader cannot be trusted.
    #[error(transparent)]
    Broken(#[from] Broken),
}

/// The length of a record, in words, from that of its content.
#[inline]
fn words_of(content: usize) -> u64 {
    lines(1 + content)
}

/// The end that writes records.
pub struct Writer<M> {
    ring: ring::Writer<M>,
}

impl<M: RingMemory> Writer<M> {
    /// The writing end of a ring that nobody has written to yet.
    pub fn new(memory: M) -> Self {
        Self { ring: ring::Writer::new(memory) }
    }

    /// Writes a record; the reader sees all of it or nothing. Whoever wakes the reader has to look for its sleep after this.
    ///
    /// # Errors
    /// [`PushError::Full`] while the reader has to read first, [`PushError::Broken`] if the reader's position is impossible.
    #[inline]
    pub fn push(&mut self, record: &Record) -> Result<(), PushError> {
        let words = words_of(record.len);
        if !self.ring.fits(words) {
            self.make_room(words)?;
        }
        store(&self.ring.record(words)[1..], record.content());
        self.ring.commit_softly(words, Header::new(KINDS.wrapping_add(record.kind), words, record.len as u64));
        Ok(())
    }

    /// Makes room for a record, in one piece.
    #[cold]
    fn make_room(&mut self, words: u64) -> Result<(), PushError> {
        let read = self.read()?;
        let pads = index::<M>(self.ring.tail) + words > M::WORDS;
        let padding = if pads { M::WORDS - index::<M>(self.ring.tail) } else { 0 };
        // The 0 behind a record has room, too.
        if self.ring.tail + padding + words >= read + M::WORDS {
            return Err(PushError::Full);
        }
        if pads {
            self.ring.pad();
        }
        self.ring.limit = read + M::WORDS;
        Ok(())
    }

    /// The reader's position.
    ///
    /// # Errors
    /// [`Broken`] if the reader claims to have read what was not written, or to be further behind than the ring is long.
    fn read(&self) -> Result<u64, Broken> {
        // ACQUIRE: pairs with `tell`. The reader has loaded a record before its words are overwritten.
        let read = self.ring.memory.read().load(Ordering::Acquire);
        match self.ring.tail.checked_sub(read) {
            Some(unread) if unread <= M::WORDS => Ok(read),
            _ => Err(Broken { what: "the reader's position is not among the records", found: read }),
        }
    }

    /// The reader's position as it claims, if it has not read everything.
    pub fn behind(&self) -> Option<u64> {
        let read = self.ring.memory.read().load(Ordering::Relaxed);
        (read != self.ring.tail).then_some(read)
    }

    /// True if the reader has not read everything; false also if its position is impossible.
    pub fn has_unread(&self) -> bool {
        self.read().is_ok_and(|read| read != self.ring.tail)
    }

    /// True if at least half of the ring is free.
    pub fn is_half_free(&self) -> bool {
        self.read().is_ok_and(|read| self.ring.tail - read <= M::WORDS / 2)
    }
}

/// The end that reads records.
pub struct Reader<M> {
    ring: ring::Reader<M>,
    /// The last position published to the writer.
    told: u64,
}

impl<M: RingMemory> Reader<M> {
    /// The reading end of a ring that nobody has read from yet.
    pub fn new(memory: M) -> Self {
        Self { ring: ring::Reader::new(memory), told: 0 }
    }

    /// Copies the next record; false if there is none. Tells the writer how far it has read every quarter of the ring.
    ///
    /// # Errors
    /// [`Broken`] if the record is none that a writer makes; `into` is then unchanged.
    #[inline]
    pub fn pop(&mut self, into: &mut Record) -> Result<bool, Broken> {
        let Some(mut header) = self.ring.peek() else { return Ok(false) };
        if header.number() == PAD {
            match self.behind_pad(header)? {
                Some(next) => header = next,
                None => return Ok(false),
            }
        }
        let (words, len) = (header.words(), header.rest() as usize);
        if len > RECORD_WORDS_MAX || words_of(len) != words || header.number() < KINDS {
            return Err(Broken { what: "a record is none that a writer makes", found: header.0 });
        }
        let Some(record) = self.ring.record(words) else { return Err(BEYOND_THE_END) };
        load(&record[1..], &mut into.words[..len]);
        into.become_record(header.number() - KINDS, len);
        self.ring.head += words;
        if self.ring.head - self.told >= M::WORDS / 4 {
            self.publish();
        }
        Ok(true)
    }

    /// The header of the record behind a pad, which is skipped.
    #[cold]
    fn behind_pad(&mut self, pad: Header) -> Result<Option<Header>, Broken> {
        if index::<M>(self.ring.head) + pad.words() != M::WORDS {
            return Err(BEYOND_THE_END);
        }
        self.ring.head += pad.words();
        Ok(self.ring.peek())
    }

    /// True if there is no record now; costs one load.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.ring.peek().is_none()
    }

    /// Tells the writer how far this side has read; call it once per drained batch.
    #[inline]
    pub fn publish(&mut self) {
        if self.told != self.ring.head {
            self.ring.tell();
            self.told = self.ring.head;
        }
    }
}

const BEYOND_THE_END: Broken = Broken { what: "a record does not end where it has to", found: 0 };

impl<M> std::fmt::Debug for Writer<M> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Writer").field("tail", &self.ring.tail).finish_non_exhaustive()
    }
}

impl<M> std::fmt::Debug for Reader<M> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Reader").field("head", &self.ring.head).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod memory;

#[cfg(all(test, loom))]
mod loom_tests;

#[cfg(all(test, not(loom)))]
mod tests;
