//! What a lane's entry holds, and how: a head, a step, and three sections that begin at words of their own, so that a sender writes them
//! straight into the entry, and a receiver checks them in a copy.

#[cfg(loom)]
use loom::sync::atomic::{AtomicU64, Ordering};
#[cfg(not(loom))]
use std::sync::atomic::{AtomicU64, Ordering};

use zerocopy::IntoBytes;

use crate::shm::{
    limits::{INLINE_BYTES_MAX, LANE_ENTRY_WORDS, LANE_SECTION_WORDS, LANE_SECTIONS_AT},
    ring::{Broken, load},
    text::padded_text,
};

/// One record of a lane.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LaneRecord<'a> {
    /// A small tensor; at most [`INLINE_BYTES_MAX`] bytes.
    Tensor { step: i64, key: &'a str, meta: &'a [u8], bytes: &'a [u8] },
    /// A tensor of this name goes through the daemon.
    ByDaemon { step: i64, key: &'a str },
    /// The sender has ended this step.
    Ended { step: i64, reason: &'a str },
}

const WORD: usize = size_of::<u64>();

const TENSOR: u64 = 1;
const BY_DAEMON: u64 = 2;
const ENDED: u64 = 3;

/// In the head, above the kind: the lengths of text, metadata and bytes.
const LENGTHS_AT: [u32; 3] = [16, 32, 48];

impl LaneRecord<'_> {
    /// Writes it behind the state of an entry; false if it does not fit there, and nothing was written.
    #[inline]
    pub fn write(&self, words: &[AtomicU64; LANE_ENTRY_WORDS]) -> bool {
        let (kind, step, text, meta, bytes) = match *self {
            LaneRecord::Tensor { step, key, meta, bytes } => (TENSOR, step, key, meta, bytes),
            LaneRecord::ByDaemon { step, key } => (BY_DAEMON, step, key, &[][..], &[][..]),
            LaneRecord::Ended { step, reason } => (ENDED, step, reason, &[][..], &[][..]),
        };
        let lengths = [text.len(), meta.len(), bytes.len()];
        if !fits(lengths) {
            return false;
        }
        let [text_at, meta_at, bytes_at] = LENGTHS_AT;
        let head =
            kind | (lengths[0] as u64) << text_at | (lengths[1] as u64) << meta_at | (lengths[2] as u64) << bytes_at;
        words[1].store(head, Ordering::Relaxed);
        words[2].store(step as u64, Ordering::Relaxed);
        let mut words = words[LANE_SECTIONS_AT..].iter();
        for section in [bytes, meta, text.as_bytes()] {
            write_section(&mut words, section);
        }
        true
    }
}

#[inline]
fn fits(lengths: [usize; 3]) -> bool {
    lengths[2] <= INLINE_BYTES_MAX && lengths.map(words_of).iter().sum::<usize>() <= LANE_SECTION_WORDS
}

#[inline]
fn words_of(bytes: usize) -> usize {
    // Not `div_ceil`, whose care for overflow costs a branch: no slice is that long.
    (bytes + WORD - 1) >> WORD.trailing_zeros()
}

/// Writes bytes, padded with zeros, into the next words.
#[inline]
fn write_section<'w>(words: &mut impl Iterator<Item = &'w AtomicU64>, bytes: &[u8]) {
    let (whole, end) = bytes.as_chunks::<WORD>();
    for (bytes, word) in whole.iter().zip(&mut *words) {
        word.store(u64::from_ne_bytes(*bytes), Ordering::Relaxed);
    }
    if !end.is_empty()
        && let Some(word) = words.next()
    {
        let last = match bytes.last_chunk::<WORD>() {
            Some(last) => u64::from_le_bytes(*last) >> (8 * (WORD - end.len())),
            None => end.iter().rev().fold(0, |last, byte| last << 8 | u64::from(*byte)),
        };
        word.store(last.to_le(), Ordering::Relaxed);
    }
}

/// The record of one entry in private memory, which the other side cannot change; 1 KiB, allocated once and reused.
pub struct LaneCopy {
    head: u64,
    step: i64,
    /// The sections, and a word of zeros behind them.
    words: Box<[u64; LANE_SECTION_WORDS + 1]>,
}

impl LaneCopy {
    pub fn new() -> Self {
        Self { head: 0, step: 0, words: Box::new([0; LANE_SECTION_WORDS + 1]) }
    }

    /// Copies the record out of an entry; false if it claims to be longer than possible.
    #[inline]
    pub(super) fn load(&mut self, words: &[AtomicU64; LANE_ENTRY_WORDS]) -> bool {
        let head = words[1].load(Ordering::Relaxed);
        let lengths = lengths(head);
        if !fits(lengths) {
            self.head = 0;
            return false;
        }
        let len = lengths.into_iter().map(words_of).sum();
        load(&words[LANE_SECTIONS_AT..], &mut self.words[..len]);
        self.words[len] = 0;
        (self.head, self.step) = (head, words[2].load(Ordering::Relaxed) as i64);
        true
    }

    /// The record.
    ///
    /// # Errors
    /// [`Broken`] if it is none that a sender writes.
    #[inline(always)]
    pub fn record(&self) -> Result<LaneRecord<'_>, Broken> {
        let broken = |what| Broken { what, found: self.head };
        let (step, [text_len, meta_len, bytes_len]) = (self.step, lengths(self.head));
        let all = self.words.as_bytes();
        let (bytes, rest) = all.split_at(WORD * words_of(bytes_len));
        let (meta, text) = rest.split_at(WORD * words_of(meta_len));
        let (bytes, meta) = (&bytes[..bytes_len], &meta[..meta_len]);
        let text = padded_text(text, text_len).ok_or(broken("a record whose text is none"))?;
        Ok(match self.head & 0xffff {
            TENSOR => LaneRecord::Tensor { step, key: text, meta, bytes },
            BY_DAEMON => LaneRecord::ByDaemon { step, key: text },
            ENDED => LaneRecord::Ended { step, reason: text },
            _ => return Err(broken("a record of no known kind")),
        })
    }
}

impl Default for LaneCopy {
    fn default() -> Self {
        Self::new()
    }
}

#[inline]
fn lengths(head: u64) -> [usize; 3] {
    LENGTHS_AT.map(|at| usize::from((head >> at) as u16))
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn entry() -> [AtomicU64; LANE_ENTRY_WORDS] {
        // What was there before must not be read.
        std::array::from_fn(|_| AtomicU64::new(u64::MAX))
    }

    #[test]
    fn what_is_written_is_read_whatever_its_lengths() {
        let (words, mut copy) = (entry(), LaneCopy::new());
        let (bytes, text): (Vec<u8>, String) = ((1..=200).collect(), "ключ".repeat(20));
        for len in 0..130 {
            let key = &text[..text.floor_char_boundary(len)];
            for meta in [0, 1, 8, 19, 40] {
                let (meta, step) = (&bytes[..meta], len as i64 - 7);
                let tensor = LaneRecord::Tensor { step, key, meta, bytes: &bytes[..len] };
                for record in [tensor, LaneRecord::ByDaemon { step, key }, LaneRecord::Ended { step, reason: key }] {
                    assert!(record.write(&words) && copy.load(&words));
                    assert_eq!(copy.record(), Ok(record));
                }
            }
        }
    }

    #[test]
    fn what_does_not_fit_is_not_written() {
        let words = entry();
        let (key, data) = ("k".repeat(LANE_SECTION_WORDS * WORD), [1; INLINE_BYTES_MAX + 1]);
        let tensor = |text: usize, meta: usize, bytes: usize| {
            let (key, meta, bytes) = (&key[..text], &data[..meta], &data[..bytes]);
            LaneRecord::Tensor { step: 1, key, meta, bytes }
        };
        let most = LANE_SECTION_WORDS * WORD - INLINE_BYTES_MAX;
        assert!(tensor(most, 0, INLINE_BYTES_MAX).write(&words));
        for long in [
            tensor(most + 1, 0, INLINE_BYTES_MAX),
            tensor(most, 1, INLINE_BYTES_MAX),
            tensor(1, 0, INLINE_BYTES_MAX + 1),
        ] {
            assert!(!long.write(&words));
        }
    }

    #[test]
    fn what_no_sender_writes_is_found_out() {
        let (words, mut copy) = (entry(), LaneCopy::new());
        let mut says = |head: u64, text: u64| {
            words[1].store(head, Ordering::Relaxed);
            words[LANE_SECTIONS_AT].store(text, Ordering::Relaxed);
            copy.load(&words).then(|| copy.record().map(|_| ()).map_err(|broken| broken.what))
        };
        let text = |text: &[u8; WORD]| u64::from_ne_bytes(*text);
        assert_eq!(says(BY_DAEMON | 3 << 16, text(b"key\xff\xff\xff\xff\xff")), Some(Ok(())), "padding is not read");
        assert_eq!(
            says(BY_DAEMON | 4 << 16, text(b"key\xff\xff\xff\xff\xff")),
            Some(Err("a record whose text is none"))
        );
        for kind in [0, 4, 0x101] {
            assert_eq!(says(kind | 3 << 16, text(b"key\0\0\0\0\0")), Some(Err("a record of no known kind")));
        }
        for long in [u64::MAX, 0xffff << 16, 0xffff << 32, 513 << 48, 512 << 48 | 505 << 16] {
            assert_eq!(says(TENSOR | long, 0), None);
        }
    }
}
