//! An open-addressing table from hashes to slots: linear probing, removal by backward shift, at most a quarter full.
//!
//! Limits: as many entries as there are slots; the caller bounds these.

/// One place: the upper half of a hash, and a slot plus 1; 0 if it is free.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
struct Place(u64);

impl Place {
    #[inline]
    fn new(hash: u64, slot: u32) -> Place {
        Place(hash & !u64::from(u32::MAX) | (u64::from(slot) + 1))
    }

    #[inline]
    fn is_free(self) -> bool {
        self.0 == 0
    }

    #[inline]
    fn slot(self) -> u32 {
        (self.0 as u32).wrapping_sub(1)
    }

    #[inline]
    fn has(self, hash: u64) -> bool {
        self.0 >> 32 == hash >> 32
    }
}

/// Smallest number of places.
const PLACES_MIN: usize = 32;

pub(super) struct Table {
    places: Box<[Place]>,
    len: usize,
}

impl Default for Table {
    fn default() -> Self {
        Table { places: vec![Place::default(); PLACES_MIN].into(), len: 0 }
    }
}

impl Table {
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The home of an entry: by the bits of the hash that a place keeps, so that growing needs no hashes.
    #[inline]
    fn home(&self, hash: u64) -> usize {
        (hash >> 32) as usize & (self.places.len() - 1)
    }

    #[inline]
    fn next(&self, place: usize) -> usize {
        (place + 1) & (self.places.len() - 1)
    }

    /// The place and the slot of the entry with this hash for which `is` holds.
    #[inline]
    pub(super) fn find(&self, hash: u64, is: impl Fn(u32) -> bool) -> Option<(usize, u32)> {
        let mut at = self.home(hash);
        loop {
            let place = self.places[at];
            if place.is_free() {
                return None;
            }
            if place.has(hash) && is(place.slot()) {
                return Some((at, place.slot()));
            }
            at = self.next(at);
        }
    }

    #[inline]
    pub(super) fn insert(&mut self, hash: u64, slot: u32) {
        if (self.len + 1) * 4 > self.places.len() {
            self.grow();
        }
        self.len += 1;
        self.put(Place::new(hash, slot));
    }

    #[inline]
    fn put(&mut self, place: Place) {
        let mut at = self.home(place.0);
        while !self.places[at].is_free() {
            at = self.next(at);
        }
        self.places[at] = place;
    }

    /// Gives the entry at a place another slot.
    pub(super) fn replace(&mut self, at: usize, slot: u32) {
        self.places[at] = Place::new(self.places[at].0, slot);
    }

    #[inline]
    pub(super) fn remove(&mut self, at: usize) {
        self.len -= 1;
        self.places[at] = Place::default();
        if !self.places[self.next(at)].is_free() {
            self.shift(at);
        }
    }

    /// Closes the gap in a run of entries.
    fn shift(&mut self, mut gap: usize) {
        let mask = self.places.len() - 1;
        let mut at = gap;
        loop {
            at = self.next(at);
            let place = self.places[at];
            if place.is_free() {
                return;
            }
            let distance = |from: usize| at.wrapping_sub(from) & mask;
            if distance(self.home(place.0)) >= distance(gap) {
                (self.places[gap], self.places[at]) = (place, Place::default());
                gap = at;
            }
        }
    }

    #[cold]
    fn grow(&mut self) {
        let places = vec![Place::default(); self.places.len() * 2].into();
        let old = std::mem::replace(&mut self.places, places);
        old.iter().filter(|place| !place.is_free()).for_each(|place| self.put(*place));
    }

    /// The slots of all entries.
    pub(super) fn slots(&self) -> impl Iterator<Item = u32> {
        self.places.iter().filter(|place| !place.is_free()).map(|place| place.slot())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;

    #[test]
    fn entries_are_found_until_they_are_removed() {
        let (mut table, mut model) = (Table::default(), HashMap::new());
        let mut random = 1_u64;
        for slot in 0..10_000 {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            // Few hashes, so that entries collide.
            let hash = random >> 58 << 32;
            table.insert(hash, slot);
            model.insert(slot, hash);
            if slot % 3 > 0 {
                let gone = *model.keys().next().unwrap();
                let (place, found) = table.find(model[&gone], |slot| slot == gone).unwrap();
                assert_eq!(found, gone);
                table.remove(place);
                model.remove(&gone);
            }
            assert!(table.find(hash, |_| false).is_none());
        }
        assert!(model.iter().all(|(slot, hash)| table.find(*hash, |found| found == *slot).is_some()));
        let mut slots: Vec<u32> = table.slots().collect();
        let mut known: Vec<u32> = model.into_keys().collect();
        slots.sort_unstable();
        known.sort_unstable();
        assert_eq!(slots, known);
    }
}
