//! Values of an [`Arena`](crate::Arena), chained by owner and step, so that all values of one kind are found without
//! visiting the others.
//!
//! Kept next to the arena, by slot: chaining and unchaining cost a few nanoseconds, and allocate only while the arena grows.
//! Bounded by the arena: 24 bytes per slot and 8 for its share of the buckets. Two kinds may share a bucket; an attacker cannot
//! choose which, since the hash is seeded.

use std::hash::BuildHasher;

use hashbrown::DefaultHashBuilder;

use crate::arena::Handle;

/// The end of a chain.
const NOTHING: u32 = u32::MAX;

#[derive(Clone, Copy)]
struct Link {
    /// `Handle::NONE` while the slot's value is in no chain.
    handle: Handle,
    hash: u32,
    before: u32,
    behind: u32,
}

/// The key of a chain: the owner's number and the step.
pub type Kind = (u32, i64);

/// Chains of an arena's values.
pub struct Chains {
    seeds: [u64; 2],
    /// The first slot of each bucket. Their number is a power of two, and at least the number of slots.
    firsts: Vec<u32>,
    links: Vec<Link>,
}

impl Default for Chains {
    fn default() -> Self {
        let hasher = DefaultHashBuilder::default();
        Self::seeded([hasher.hash_one(0), hasher.hash_one(1)])
    }
}

impl Chains {
    fn seeded(seeds: [u64; 2]) -> Self {
        // Multiplying by an odd number keeps the low bits distinct, whatever the seed; they choose the bucket.
        Chains { seeds: [seeds[0] | 1, seeds[1]], firsts: Vec::new(), links: Vec::new() }
    }

    /// Adds a value to the chain of its kind.
    ///
    /// # Panics
    /// If the value is in a chain already (only with debug assertions).
    #[inline(always)]
    pub fn add(&mut self, handle: Handle, kind: Kind) {
        let hash = self.hash(kind);
        if handle.index() >= self.links.len() {
            self.grow(handle.index() + 1);
        }
        debug_assert!(self.links[handle.index()].handle == Handle::NONE, "a value is chained once");
        self.put_first(handle, hash);
    }

    /// Removes a value from its chain; does nothing if it is in none.
    #[inline]
    pub fn remove(&mut self, handle: Handle) {
        let Some(link) = self.links.get_mut(handle.index()) else { return };
        if link.handle != handle || handle == Handle::NONE {
            return;
        }
        link.handle = Handle::NONE;
        let (hash, before, behind) = (link.hash, link.before, link.behind);
        if behind != NOTHING {
            self.links[behind as usize].before = before;
        }
        if before == NOTHING {
            let bucket = self.bucket(hash);
            self.firsts[bucket] = behind;
        } else {
            self.links[before as usize].behind = behind;
        }
    }

    /// The handles of one kind in slot order; with a probability of one in four billion, also handles of another.
    pub fn of(&self, kind: Kind) -> Vec<Handle> {
        let hash = self.hash(kind);
        let mut found = Vec::new();
        let mut next = self.firsts.get(self.bucket(hash)).copied().unwrap_or(NOTHING);
        while next != NOTHING {
            let link = self.links[next as usize];
            if link.hash == hash {
                found.push(link.handle);
            }
            next = link.behind;
        }
        // Growing the chains reverses the order of insertion.
        found.sort_unstable_by_key(|handle| handle.index());
        found
    }

    /// False if there is none of this kind, which is the usual case.
    #[inline]
    pub fn may_have(&self, kind: Kind) -> bool {
        self.firsts.get(self.bucket(self.hash(kind))).is_some_and(|first| *first != NOTHING)
    }

    #[inline]
    fn hash(&self, kind: Kind) -> u32 {
        // A folded multiplication, as in wyhash: a third of the cost of the table's hash.
        let (whose, step) = ((u64::from(kind.0) << 1) ^ self.seeds[0], kind.1 as u64 ^ self.seeds[1]);
        let product = u128::from(whose) * u128::from(step);
        (product >> 64) as u32 ^ product as u32
    }

    #[inline]
    fn bucket(&self, hash: u32) -> usize {
        hash as usize & self.firsts.len().wrapping_sub(1)
    }

    #[inline]
    fn put_first(&mut self, handle: Handle, hash: u32) {
        let bucket = self.bucket(hash);
        let behind = std::mem::replace(&mut self.firsts[bucket], handle.index() as u32);
        if behind != NOTHING {
            self.links[behind as usize].before = handle.index() as u32;
        }
        self.links[handle.index()] = Link { handle, hash, before: NOTHING, behind };
    }

    #[cold]
    fn grow(&mut self, slots: usize) {
        self.links.resize(slots, Link { handle: Handle::NONE, hash: 0, before: NOTHING, behind: NOTHING });
        if self.firsts.len() >= slots {
            return;
        }
        self.firsts.clear();
        self.firsts.resize(slots.next_power_of_two(), NOTHING);
        for index in 0..slots {
            let Link { handle, hash, .. } = self.links[index];
            if handle != Handle::NONE {
                self.put_first(handle, hash);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::Chains;
    use crate::arena::{Arena, Handle};

    #[test]
    fn a_kind_is_found_without_the_others_and_a_dead_handle_unchains_nobody() {
        let (mut arena, mut chains) = (Arena::new(8), Chains::default());
        assert!(chains.of((0, 1)).is_empty());
        let first = arena.insert(1).unwrap();
        chains.add(first, (0, 1));
        arena.remove(first);
        chains.remove(first);
        let second = arena.insert(1).unwrap();
        assert_eq!(first.index(), second.index());
        chains.add(second, (0, 1));
        chains.remove(first);
        chains.remove(Handle::NONE);
        assert_eq!((chains.of((0, 1)), chains.of((0, 2))), (vec![second], vec![]));
    }

    #[test]
    fn whatever_the_number_of_kinds_only_few_links_are_walked() {
        // Unlucky seeds, too; one in some thousand is like these.
        for mut chains in [Chains::default(), Chains::seeded([7 ^ (1 << 20), 0]), Chains::seeded([14 ^ (1 << 20), 0])] {
            let mut arena = Arena::new(4096);
            for step in 0..4096i64 {
                chains.add(arena.insert(step).unwrap(), (7, step));
            }
            let longest = (0..4096).map(|bucket| {
                let next =
                    |index: &u32| Some(chains.links[*index as usize].behind).filter(|next| *next != super::NOTHING);
                let first = Some(chains.firsts[bucket]).filter(|first| *first != super::NOTHING);
                std::iter::successors(first, next).count()
            });
            // 4,096 entries in 4,096 buckets: by chance, about ten share one at most.
            assert!(longest.max() < Some(30));
        }
    }

    proptest! {
        #[test]
        fn chains_hold_what_a_look_at_everything_finds(deeds in proptest::collection::vec((0u8..4, 0usize..40), 1..300)) {
            let (mut arena, mut chains) = (Arena::new(usize::MAX), Chains::default());
            let mut live: Vec<Handle> = Vec::new();
            for (kind, choice) in deeds {
                if kind < 3 {
                    let handle = arena.insert(kind).unwrap();
                    chains.add(handle, (u32::from(kind), 0));
                    live.push(handle);
                } else if !live.is_empty() {
                    let handle = live.swap_remove(choice % live.len());
                    arena.remove(handle);
                    chains.remove(handle);
                }
                for kind in 0..3 {
                    prop_assert_eq!(chains.of((u32::from(kind), 0)), arena.select(|other| *other == kind));
                }
            }
        }
    }
}
