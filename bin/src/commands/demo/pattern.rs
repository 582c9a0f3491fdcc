//! The bytes of a tensor in a step: a function of step, tensor and sender that both sides compute. Every eight bytes are a counter
//! that starts at a number derived from all three, mixed by one round of xorshift (Marsaglia, 2003).

/// From one counter to the next: 2^64 divided by the golden ratio, which spreads neighbours over all bits.
const STRIDE: u64 = 0x9e37_79b9_7f4a_7c15;
const WORD_BYTES: usize = 8;
/// Bytes compared at once: they fit into the first-level cache.
const CHUNK_BYTES: usize = 4096;

/// The bytes of one tensor in one step.
#[derive(Clone, Copy)]
pub(super) struct Pattern(u64);

impl Pattern {
    /// Two senders never send the same pattern.
    pub(super) fn new(author: usize, tensor: usize, step: i64) -> Pattern {
        Pattern([author as u64, tensor as u64, step as u64].into_iter().fold(0, |state, part| scatter(state ^ part)))
    }

    pub(super) fn fill(self, bytes: &mut [u8]) {
        let mut counter = self.0;
        let (words, rest) = bytes.as_chunks_mut::<WORD_BYTES>();
        for word in words {
            *word = stir(counter).to_le_bytes();
            counter = counter.wrapping_add(STRIDE);
        }
        rest.copy_from_slice(&stir(counter).to_le_bytes()[..rest.len()]);
    }

    /// Compares every byte with the pattern.
    ///
    /// # Errors
    /// The offset of the first byte that differs, what it is, and what it should be.
    pub(super) fn verify(self, bytes: &[u8]) -> Result<(), (usize, u8, u8)> {
        let (mut memory, mut pattern) = ([0; CHUNK_BYTES], self);
        for (number, chunk) in bytes.chunks(CHUNK_BYTES).enumerate() {
            let expected = &mut memory[..chunk.len()];
            pattern.fill(expected);
            pattern.0 = pattern.0.wrapping_add(STRIDE.wrapping_mul((CHUNK_BYTES / WORD_BYTES) as u64));
            // The search for the first difference is slower than a comparison of two slices.
            if chunk != expected {
                let at = chunk.iter().zip(&*expected).position(|(found, expected)| found != expected);
                let at = at.expect("the two have one length and differ");
                return Err((number * CHUNK_BYTES + at, chunk[at], expected[at]));
            }
        }
        Ok(())
    }
}

/// One round of xorshift64: shifts and exclusive ors, which every vector unit has for 64-bit words.
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
        let reference = filled(Pattern::new(0, 3, 5), 4096);
        for other in [Pattern::new(0, 3, 6), Pattern::new(0, 4, 5), Pattern::new(1, 3, 5), Pattern::new(2, 3, 5)] {
            let other = filled(other, 4096);
            let same = reference.iter().zip(&other).filter(|(one, other)| one == other).count();
            // By chance one byte in 256 is the same; a lane that never changes would make it 512 or more.
            assert!(same < 64, "{same} of 4096 bytes are the same");
        }
    }

    proptest! {
        #[test]
        fn a_flipped_bit_is_found_wherever_it_is(len in 1..9000_usize, at in any::<prop::sample::Index>(), bit in 0..8_u32) {
            let pattern = Pattern::new(0, len, 1);
            let mut bytes = filled(pattern, len);
            prop_assert_eq!(pattern.verify(&bytes), Ok(()));
            let offset = at.index(len);
            let expected = bytes[offset];
            bytes[offset] ^= 1_u8 << bit;
            prop_assert_eq!(pattern.verify(&bytes), Err((offset, bytes[offset], expected)));
        }
    }
}
