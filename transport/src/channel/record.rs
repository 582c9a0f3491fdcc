//! Records of a channel's ring: their kinds, the layout of a header, and the conversion between bytes and words.
//!
//! A record is a header, the acknowledgement, and what its kind needs. A tensor has its step, its key, its metadata in wire form and its
//! payload; each part is padded with zeros to whole words of 64 bits, little-endian.

#[cfg(loom)]
use loom::sync::atomic::{AtomicU64, Ordering::Relaxed};
#[cfg(not(loom))]
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::ring::{Header, PAD, lines};

/// Words of a record in front of its key.
pub(super) const FIXED_WORDS: usize = 3;

/// Most words of a tensor's record: 1 KiB. A larger tensor is announced, and fetched another way.
pub const TENSOR_WORDS_MAX: usize = 128;

/// What a record says. The writer numbers its tensors from 0 in the order of their records; the number itself is never written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Kind {
    /// A tensor: step, key, metadata, payload.
    Tensor = 1,
    /// A tensor of that step and key went another way, because it is large.
    Announce = 2,
    /// The rest of the lap is unused.
    Pad = PAD,
    /// The tensors of the other direction in this range of numbers were taken, out of order.
    Took = 4,
    /// The tensor of the other direction with this number was not taken, and why.
    Returned = 5,
    /// The tensor with this number is to be returned unless it was taken.
    Revoke = 6,
    /// The writer holds tensors from now on, for lack of credit; the reader asks for those that it waits for.
    Held = 7,
    /// The writer holds none any more.
    Resumed = 8,
    /// A recv waits for a tensor of that step and key, which the reader may hold.
    Ask = 9,
    /// The writer has ended that step; the key is the reason.
    Ended = 10,
    /// Tensors went another way without an announcement: ask there for every recv.
    Blind = 11,
    /// None of them is left.
    Clear = 12,
    /// The writer uses the number of that step, which it had ended, again.
    Reopened = 13,
}

impl Kind {
    fn of(number: u8) -> Option<Kind> {
        Some(match number {
            1 => Kind::Tensor,
            2 => Kind::Announce,
            PAD => Kind::Pad,
            4 => Kind::Took,
            5 => Kind::Returned,
            6 => Kind::Revoke,
            7 => Kind::Held,
            8 => Kind::Resumed,
            9 => Kind::Ask,
            10 => Kind::Ended,
            11 => Kind::Blind,
            12 => Kind::Clear,
            13 => Kind::Reopened,
            _ => return None,
        })
    }
}

/// The rest of a header: bytes of the key 16, bytes of the payload 16, rank 8.
impl Header {
    #[inline]
    pub(super) fn tensor(words: u64, shape: Shape) -> Header {
        let Shape { rank, key, payload } = shape;
        Header::new(Kind::Tensor as u8, words, key as u64 | (payload as u64) << 16 | (rank as u64) << 32)
    }

    /// The header of a record that has at most a key.
    pub(super) fn note(kind: Kind, words: u64, key: usize) -> Header {
        Header::new(kind as u8, words, key as u64)
    }

    #[inline]
    pub(super) fn is_tensor(self) -> bool {
        self.number() == Kind::Tensor as u8
    }

    pub(super) fn kind(self) -> Option<Kind> {
        Kind::of(self.number())
    }

    #[inline]
    pub(super) fn shape(self) -> Shape {
        let rest = self.rest();
        Shape { rank: (rest >> 32) as usize, key: rest as usize & 0xffff, payload: (rest >> 16) as usize & 0xffff }
    }
}

/// The lengths of a tensor's parts: dimensions, bytes of the key, bytes of the payload.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Shape {
    pub(super) rank: usize,
    pub(super) key: usize,
    pub(super) payload: usize,
}

impl Shape {
    /// Index of the first word of the metadata, behind the key.
    #[inline]
    pub(super) fn meta_at(self) -> usize {
        FIXED_WORDS + self.key.div_ceil(8)
    }

    /// Index of the payload's first word, behind the metadata.
    #[inline]
    pub(super) fn payload_at(self) -> usize {
        self.meta_at() + 1 + self.rank
    }

    /// Words that are used.
    #[inline]
    pub(super) fn used(self) -> usize {
        self.payload_at() + self.payload.div_ceil(8)
    }

    /// Words of the whole record.
    #[inline]
    pub(super) fn words(self) -> u64 {
        lines(self.used())
    }
}

/// The last, partial word of some bytes, padded with zeros; `bytes` must not be a multiple of 8 long.
#[inline]
fn last_word(bytes: &[u8]) -> u64 {
    let rest = bytes.len() % 8;
    if let Some(last) = bytes.last_chunk::<8>() {
        return u64::from_le_bytes(*last) >> (8 * (8 - rest));
    }
    if let (Some(low), Some(high)) = (bytes.first_chunk::<4>(), bytes.last_chunk::<4>()) {
        let (low, high) = (u32::from_le_bytes(*low), u32::from_le_bytes(*high));
        return u64::from(low) | u64::from(high) << (8 * (rest - 4));
    }
    bytes.iter().rev().fold(0, |word, byte| word << 8 | u64::from(*byte))
}

/// The words of some bytes, the last padded with zeros.
#[inline]
pub(super) fn words_of(bytes: &[u8]) -> impl Iterator<Item = u64> {
    let (whole, rest) = bytes.as_chunks::<8>();
    let last = (!rest.is_empty()).then(|| last_word(bytes));
    whole.iter().map(|word| u64::from_le_bytes(*word)).chain(last)
}

/// Stores bytes into the first words of `to`, padded with zeros; four words at a time, as [`store`](crate::ring::store).
#[inline]
pub(super) fn store_bytes(to: &[AtomicU64], bytes: &[u8]) {
    let (whole, rest) = bytes.as_chunks::<8>();
    let ((fours, ones), (from_fours, from_ones)) = (to[..whole.len()].as_chunks(), whole.as_chunks::<4>());
    for (to, words) in fours.iter().zip(from_fours) {
        let to: &[AtomicU64; 4] = to;
        (0..4).for_each(|at| to[at].store(u64::from_le_bytes(words[at]), Relaxed));
    }
    ones.iter().zip(from_ones).for_each(|(to, word)| to.store(u64::from_le_bytes(*word), Relaxed));
    if !rest.is_empty() {
        to[whole.len()].store(last_word(bytes), Relaxed);
    }
}

/// The first `len` bytes of some words.
pub(super) fn bytes_of(words: &[AtomicU64], len: usize) -> Vec<u8> {
    let words = &words[..len.div_ceil(8)];
    let mut bytes: Vec<u8> = words.iter().flat_map(|word| word.load(Relaxed).to_le_bytes()).collect();
    bytes.truncate(len);
    bytes
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn bytes_survive_the_way_through_words() {
        let all: Vec<u8> = (1..=64).collect();
        for len in 0..=all.len() {
            let to: Vec<AtomicU64> = (0..8).map(|_| AtomicU64::new(u64::MAX)).collect();
            store_bytes(&to, &all[..len]);
            assert_eq!(bytes_of(&to, len), all[..len]);
            assert!(words_of(&all[..len]).eq(to[..len.div_ceil(8)].iter().map(|word| word.load(Relaxed))));
            let padded = bytes_of(&to, len.next_multiple_of(8));
            assert!(padded[len..].iter().all(|byte| *byte == 0), "{len}");
        }
    }

    #[test]
    fn headers_keep_their_fields() {
        let shape = Shape { rank: 254, key: 4096, payload: 512 };
        let header = Header::tensor(777, shape);
        assert_eq!((header.kind(), header.words(), header.shape()), (Some(Kind::Tensor), 777, shape));
        for number in 0..=u8::MAX {
            assert!(Kind::of(number).is_none_or(|kind| kind as u8 == number));
        }
    }
}
