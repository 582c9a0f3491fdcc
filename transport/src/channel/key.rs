//! Names of tensors: a step and a key. A key of up to 24 bytes is three words, a longer one lies on the heap.

use std::hash::{BuildHasher, RandomState};

use super::record::words_of;

/// Bytes of a key that is kept in words.
pub(super) const SHORT_BYTES: usize = 24;

/// A secret of this process: peers cannot choose keys that collide in its tables.
#[derive(Clone, Copy)]
pub struct Seed([u64; 3]);

impl Seed {
    /// A seed that no peer can know.
    pub fn random() -> Seed {
        let state = RandomState::new();
        Seed([0, 1, 2].map(|word: u64| state.hash_one(word)))
    }
}

/// The name of one tensor.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Name {
    pub(super) step: i64,
    key_bytes: usize,
    /// The key, padded with zeros; zeros if it is long.
    short: [u64; 3],
    long: Option<Box<[u8]>>,
}

impl Name {
    #[inline]
    pub(super) fn new(step: i64, key: &[u8]) -> Name {
        if key.len() > SHORT_BYTES {
            return Name { step, key_bytes: key.len(), short: [0; 3], long: Some(key.into()) };
        }
        let mut short = [0; 3];
        for (short, word) in short.iter_mut().zip(words_of(key)) {
            *short = word;
        }
        Name::of_words(step, key.len(), short)
    }

    /// A name whose key is short.
    #[inline]
    pub(super) fn of_words(step: i64, key_bytes: usize, short: [u64; 3]) -> Name {
        Name { step, key_bytes, short, long: None }
    }

    /// [`PartialEq`], for two names of which one is short.
    #[inline]
    pub(super) fn is_short(&self, step: i64, key_bytes: usize, short: [u64; 3]) -> bool {
        let differing = self.short.iter().zip(short).fold(0, |differing, (own, other)| differing | (own ^ other));
        self.step == step && self.key_bytes == key_bytes && differing == 0
    }

    pub(super) fn key(&self) -> Vec<u8> {
        match &self.long {
            Some(long) => long.to_vec(),
            None => {
                let mut key: Vec<u8> = self.short.iter().flat_map(|word| word.to_le_bytes()).collect();
                key.truncate(self.key_bytes);
                key
            }
        }
    }

    #[inline]
    pub(super) fn hash(&self, seed: &Seed) -> u64 {
        match &self.long {
            None => hash_of_words(seed, self.step, self.key_bytes, self.short),
            Some(long) => hash_of_bytes(seed, self.step, long),
        }
    }
}

/// Multiplication to 128 bits, folded: the mixing step of wyhash.
#[inline]
fn mix(one: u64, other: u64) -> u64 {
    let product = u128::from(one) * u128::from(other);
    product as u64 ^ (product >> 64) as u64
}

#[inline]
fn hash_of_words(seed: &Seed, step: i64, key_bytes: usize, short: [u64; 3]) -> u64 {
    let Seed([a, b, c]) = *seed;
    let [first, second, third] = short;
    let name = (step as u64).wrapping_add((key_bytes as u64) << 48);
    mix(mix(first ^ a, second ^ b) ^ third ^ c, name ^ b)
}

#[cold]
fn hash_of_bytes(seed: &Seed, step: i64, key: &[u8]) -> u64 {
    let Seed([a, b, c]) = *seed;
    let mixed = words_of(key).fold(a, |mixed, word| mix(mixed ^ word, b));
    mix(mixed ^ c, (step as u64).wrapping_add((key.len() as u64) << 48) ^ b)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_differ_if_a_step_a_length_or_a_byte_does() {
        let seed = Seed::random();
        let keys: Vec<Vec<u8>> = (0..60).flat_map(|len| [vec![0; len], vec![7; len]]).collect();
        let names: Vec<Name> = [0, -1].iter().flat_map(|step| keys.iter().map(|key| Name::new(*step, key))).collect();
        for (at, name) in names.iter().enumerate() {
            assert_eq!(name.key(), keys[at % keys.len()]);
            for other in &names {
                let is_same = (name.step, name.key()) == (other.step, other.key());
                assert_eq!((name == other, name.hash(&seed) == other.hash(&seed)), (is_same, is_same));
            }
        }
    }

    #[test]
    fn hash_differs_under_another_seed() {
        let seeds = [Seed::random(), Seed::random()];
        for key in [&b""[..], b"w", &[7; SHORT_BYTES], &[7; SHORT_BYTES + 1]] {
            let [one, other] = seeds.map(|seed| Name::new(1, key).hash(&seed));
            assert!(one != other && one >> 32 != other >> 32, "{key:?}");
        }
    }
}
