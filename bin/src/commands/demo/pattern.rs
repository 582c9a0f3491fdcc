//! What a tensor's bytes are in a step: a function of step, tensor and sender that both sides compute. Pure code that
//! runs at the speed of memory, outside of the time that is measured.
//!
//! Every eight bytes are a counter that begins at a number drawn from all three, stirred by one round of xorshift
//! (Marsaglia, 2003), so that each bit of them depends on step, tensor, sender and place.

/// Bytes made at once: what fills a few vector registers.
const BLOCK_BYTES: usize = 64;
/// Bytes of one counter.
const WORD_BYTES: usize = 8;
const WORDS: usize = BLOCK_BYTES / WORD_BYTES;
/// From one counter to the next: 2^64 divided by the golden ratio, which spreads neighbours over all bits.
const STRIDE: u64 = 0x9e37_79b9_7f4a_7c15;

/// Who makes a tensor's bytes; two senders never send the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Author {
    /// The parameter server that owns the tensor.
    Ps,
    /// The worker of that number.
    Worker(usize),
}

/// The bytes of one tensor in one step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Pattern(u64);

/// The first byte that is not what it should be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Difference {
    pub(super) offset: usize,
    pub(super) expected: u8,
    pub(super) found: u8,
}

impl Pattern {
    pub(super) fn new(author: Author, tensor: usize, step: i64) -> Pattern {
        let author = match author {
            Author::Ps => 0,
            Author::Worker(number) => number as u64 + 1,
        };
        Pattern([author, tensor as u64, step as u64].into_iter().fold(0, |state, part| scatter(state ^ part)))
    }

    /// Fills `bytes` with the pattern.
    pub(super) fn fill(self, bytes: &mut [u8]) {
        let mut counter = self.0;
        let (blocks, rest) = bytes.as_chunks_mut::<BLOCK_BYTES>();
        for block in blocks {
            *block = make_block(counter);
            counter = counter.wrapping_add(STRIDE.wrapping_mul(WORDS as u64));
        }
        rest.copy_from_slice(&make_block(counter)[..rest.len()]);
    }

    /// Compares every byte with the pattern.
    pub(super) fn verify(self, bytes: &[u8]) -> Result<(), Difference> {
        let mut counter = self.0;
        let (blocks, rest) = bytes.as_chunks::<BLOCK_BYTES>();
        for (number, block) in blocks.iter().enumerate() {
            let expected = make_block(counter);
            if expected != *block {
                return Err(first_difference(number * BLOCK_BYTES, &expected, block));
            }
            counter = counter.wrapping_add(STRIDE.wrapping_mul(WORDS as u64));
        }
        let expected = &make_block(counter)[..rest.len()];
        if expected != rest {
            return Err(first_difference(blocks.len() * BLOCK_BYTES, expected, rest));
        }
        Ok(())
    }
}

#[inline(always)]
fn make_block(counter: u64) -> [u8; BLOCK_BYTES] {
    let mut block = [0; BLOCK_BYTES];
    let (words, _) = block.as_chunks_mut::<WORD_BYTES>();
    for (number, word) in words.iter_mut().enumerate() {
        *word = stir(counter.wrapping_add(STRIDE.wrapping_mul(number as u64))).to_le_bytes();
    }
    block
}

#[cold]
fn first_difference(start: usize, expected: &[u8], found: &[u8]) -> Difference {
    let at = expected.iter().zip(found).position(|(expected, found)| expected != found);
    let at = at.expect("called for blocks that differ");
    Difference { offset: start + at, expected: expected[at], found: found[at] }
}

/// One round of xorshift64: shifts and exclusive ors, which every vector unit has for 64-bit words.
#[inline(always)]
fn stir(mut word: u64) -> u64 {
    word ^= word << 13;
    word ^= word >> 7;
    word ^ (word << 17)
}

/// The finaliser of splitmix64 (Steele, Lea, Flood, 2014): for the few words that must differ in all bits.
fn scatter(state: u64) -> u64 {
    let mut word = state.wrapping_add(STRIDE);
    word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^ (word >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn filled(pattern: Pattern, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        pattern.fill(&mut bytes);
        bytes
    }

    #[test]
    fn step_tensor_and_sender_change_nearly_every_byte() {
        let reference = filled(Pattern::new(Author::Ps, 3, 5), 4096);
        for other in [
            Pattern::new(Author::Ps, 3, 6),
            Pattern::new(Author::Ps, 4, 5),
            Pattern::new(Author::Worker(0), 3, 5),
            Pattern::new(Author::Worker(1), 3, 5),
        ] {
            let other = filled(other, 4096);
            let same = reference.iter().zip(&other).filter(|(one, other)| one == other).count();
            // By chance one byte of 256 is the same; a lane that never changes would be 512 or more.
            assert!(same < 64, "{same} of 4096 bytes are the same");
        }
        for lane in 0..WORD_BYTES {
            let values: std::collections::HashSet<_> = reference.iter().skip(lane).step_by(WORD_BYTES).collect();
            assert!(values.len() > 128, "byte {lane} of a word has {} values", values.len());
        }
    }

    #[test]
    fn a_longer_tensor_begins_as_a_shorter_one() {
        let pattern = Pattern::new(Author::Worker(7), 0, -1);
        assert_eq!(filled(pattern, 1000)[..77], filled(pattern, 77));
    }

    proptest! {
        #[test]
        fn a_flipped_bit_is_found_wherever_it_is(len in 1..300_usize, at in any::<prop::sample::Index>(), bit in 0..8_u32) {
            let pattern = Pattern::new(Author::Ps, len, 1);
            let mut bytes = filled(pattern, len);
            prop_assert_eq!(pattern.verify(&bytes), Ok(()));
            let offset = at.index(len);
            let expected = bytes[offset];
            bytes[offset] ^= 1_u8 << bit;
            prop_assert_eq!(pattern.verify(&bytes), Err(Difference { offset, expected, found: bytes[offset] }));
        }
    }
}
