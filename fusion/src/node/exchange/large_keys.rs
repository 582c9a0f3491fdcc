//! Keys whose last tensor was too large to be sent ahead. If two keys share a place, the later one takes it: what is forgotten costs a
//! consumer a moment. Which keys share a place is the same in every process, so that the same history has the same outcome.

use std::hash::{BuildHasher, Hash};

use foldhash::fast::FixedState;

/// As many as a large model has large variables.
const PLACES: usize = 1024;

/// The set of large keys; see the module.
pub(super) struct LargeKeys {
    hasher: FixedState,
    /// Part of the hash of the key that has the place, or 0.
    places: Box<[u32; PLACES]>,
    /// Number of occupied places.
    taken: usize,
}

impl LargeKeys {
    pub(super) fn new() -> Self {
        Self { hasher: FixedState::default(), places: Box::new([0; PLACES]), taken: 0 }
    }

    #[inline]
    fn place_of(&self, of: impl Hash, key: &str) -> (usize, u32) {
        let hash = self.hasher.hash_one((of, key));
        (hash as usize % PLACES, (hash >> 32) as u32 | 1)
    }

    #[inline]
    pub(super) fn contains(&self, of: impl Hash, key: &str) -> bool {
        if self.taken == 0 {
            return false;
        }
        let (place, tag) = self.place_of(of, key);
        self.places[place] == tag
    }

    /// Adds a key; false if it was there.
    pub(super) fn insert(&mut self, of: impl Hash, key: &str) -> bool {
        let (place, tag) = self.place_of(of, key);
        let before = std::mem::replace(&mut self.places[place], tag);
        self.taken += usize::from(before == 0);
        before != tag
    }

    /// Removes a key, if it is there.
    #[inline]
    pub(super) fn remove(&mut self, of: impl Hash + Copy, key: &str) {
        if self.contains(of, key) {
            let (place, _) = self.place_of(of, key);
            (self.places[place], self.taken) = (0, self.taken - 1);
        }
    }
}
