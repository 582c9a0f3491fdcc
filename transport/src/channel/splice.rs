//! One direction of a channel between two processes that share no memory: moves records from the ring of one into that of the other, and passes
//! back what the reader has settled. It looks at a record's length and kind, never at its name. The halves check everything else.
//!
//! Pure, like a [`Half`](super::Half). If the reader's ring is full, the records stay where they are: that channel alone waits, and the
//! producer's credit limits how much.

use std::sync::atomic::{AtomicU64, Ordering};

use super::{
    BrokenChannel, ChannelMemory, Ring,
    producer::{self, QUIET_WORDS},
    record::FIXED_WORDS,
};
use crate::{
    limits::KEY_BYTES_MAX,
    ring::{Header, PAD, Reader, Writer, index, lines},
};

/// Most words of a record: those of the longest name.
const RECORD_WORDS_MAX: u64 = lines(FIXED_WORDS + KEY_BYTES_MAX.div_ceil(8));

pub struct Splice<M> {
    pub(super) from: Reader<M>,
    pub(super) to: Writer<M>,
    /// What the writer knows of the tensors that the reader has settled and returned.
    told: Settled,
    /// The most words that were unread at a time recently.
    peak: u64,
    is_blocked: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Settled {
    took: u64,
    returned: u64,
}

/// What a turn has done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Spliced {
    /// Words of the records that were moved.
    pub words: u64,
    /// How urgently the reader is to be woken.
    pub reader: Ring,
    /// How urgently the writer is to be woken.
    pub writer: Ring,
}

impl<M: ChannelMemory> Splice<M> {
    /// From the ring of one end into that of the other; both are new.
    pub fn new(from: M, to: M) -> Self {
        let told = Settled { took: 0, returned: 0 };
        Splice { from: Reader::new(from), to: Writer::new(to), told, peak: 0, is_blocked: false }
    }

    /// Moves the records that are there, as far as there is room, but at most one lap.
    ///
    /// # Errors
    /// One of the two ends broke the channel.
    #[inline]
    pub fn turn(&mut self) -> Result<Spliced, BrokenChannel> {
        let head = self.from.head;
        let mut reader = Ring::No;
        if self.from.peek().is_some() {
            self.to.begin_batch();
            let moved = self.move_records(&mut reader);
            self.to.end_batch();
            // The records were copied, so their places are free.
            self.from.tell();
            moved?;
        }
        let writer = if self.pass_on_settled() { Ring::Settled } else { Ring::No };
        Ok(Spliced { words: self.from.head - head, reader, writer })
    }

    fn move_records(&mut self, reader: &mut Ring) -> Result<(), BrokenChannel> {
        let until = self.from.head + M::WORDS;
        self.is_blocked = false;
        while self.from.head < until
            && let Some(header) = self.from.peek()
        {
            let words = header.words();
            let record = self.from.record(words).ok_or(BrokenChannel("a record has an impossible length"))?;
            if header.number() != PAD {
                if words > RECORD_WORDS_MAX {
                    return Err(BrokenChannel("a record is too long"));
                }
                if !self.to.fits(words) && !make_room(&mut self.to, &mut self.peak, words)? {
                    self.is_blocked = true;
                    break;
                }
                copy(&record[1..], &self.to.record(words)[1..]);
                self.to.commit(words, header);
                *reader = (*reader).max(urgency(header));
            }
            self.from.head += words;
        }
        Ok(())
    }

    /// Tells the writer what the reader has settled; false if that is nothing new.
    #[inline]
    fn pass_on_settled(&mut self) -> bool {
        let reader = &self.to.memory;
        let took = reader.took().load(Ordering::Acquire);
        // After `took`: see `Producer::look_at_reader`.
        let settled = Settled { took, returned: reader.returned().load(Ordering::Acquire) };
        if settled == self.told {
            return false;
        }
        self.told = settled;
        // RELEASE: the returns are counted before the acknowledgement passes the tensors.
        self.from.memory.returned().store(settled.returned, Ordering::Release);
        // SEQ_CST: as for headers.
        self.from.memory.took().swap(settled.took, Ordering::SeqCst);
        true
    }

    /// True if a turn would find something to do; for a caller that has announced its sleep. What is [blocked](Self::is_blocked) does not count.
    pub fn has_work(&self) -> bool {
        let has_settled = self.to.memory.took().load(Ordering::SeqCst) != self.told.took;
        has_settled || !self.is_blocked && !self.from.is_empty_for_sleep()
    }

    /// True if the reader's ring was full. Nobody rings when it has room again.
    pub fn is_blocked(&self) -> bool {
        self.is_blocked
    }
}

/// How urgently the reader of a record is to be woken: as its producer has it.
#[inline]
fn urgency(header: Header) -> Ring {
    header.kind().map_or(Ring::Urgent, producer::urgency)
}

/// Makes room for a record of so many words; false if there is none. A quiet ring stays in its first page: see `Producer::make_room`.
///
/// # Errors
/// The reader says that it has read what cannot be.
#[cold]
fn make_room<M: ChannelMemory>(to: &mut Writer<M>, peak: &mut u64, words: u64) -> Result<bool, BrokenChannel> {
    let (read, tail, at) = (to.memory.read().load(Ordering::Acquire), to.tail, index::<M>(to.tail));
    if read > tail || tail - read > M::WORDS {
        return Err(BrokenChannel("a ring was read beyond what was written, or backwards"));
    }
    *peak = (*peak).max(tail - read + words);
    let is_quiet = read == tail && at >= QUIET_WORDS && at >= 4 * *peak;
    if is_quiet {
        *peak -= *peak / 8;
    }
    let pads = is_quiet || at + words > M::WORDS;
    let padding = if pads { M::WORDS - at } else { 0 };
    if tail + padding + words >= read + M::WORDS {
        return Ok(false);
    }
    if pads {
        to.pad();
    }
    to.limit = read + M::WORDS;
    let (tail, at) = (to.tail, index::<M>(to.tail));
    if at < QUIET_WORDS {
        to.limit = to.limit.min(tail - at + QUIET_WORDS + 64).max(tail + words + 1);
    }
    Ok(true)
}

/// Copies words, four at a time as in `ring::store`.
#[inline]
fn copy(from: &[AtomicU64], to: &[AtomicU64]) {
    let ((fours, rest), (to_fours, to_rest)) = (from.as_chunks::<4>(), to.as_chunks::<4>());
    for (from, to) in fours.iter().zip(to_fours) {
        (0..4).for_each(|at| to[at].store(from[at].load(Ordering::Relaxed), Ordering::Relaxed));
    }
    rest.iter().zip(to_rest).for_each(|(from, to)| to.store(from.load(Ordering::Relaxed), Ordering::Relaxed));
}
