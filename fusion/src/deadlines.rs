//! Deadlines, the earliest first: an indexed binary heap.
//!
//! Each deadline is found by its handle, and so is removed with what it belongs to: no stale entries are left to be searched later, whoever
//! chooses the deadlines. Entering and removing cost a few swaps each, and allocate only while the arena of the handles grows. Bounded by
//! that arena: 24 bytes for each deadline, and 4 for each slot.

use std::time::Instant;

use sealane_transport::Handle;

/// The place of a slot without a deadline.
const NOWHERE: u32 = u32::MAX;

#[derive(Debug, Default)]
pub(crate) struct Deadlines {
    /// No entry is earlier than its parent, which is at half its place.
    heap: Vec<(Instant, Handle)>,
    /// The place in `heap` of each slot's deadline.
    places: Vec<u32>,
}

impl Deadlines {
    #[inline]
    pub(crate) fn next(&self) -> Option<Instant> {
        self.heap.first().map(|(deadline, _)| *deadline)
    }

    /// The handle with the earliest deadline, if that has passed; it stays until it is removed.
    pub(crate) fn due(&self, now: Instant) -> Option<Handle> {
        self.heap.first().filter(|(deadline, _)| *deadline <= now).map(|(_, handle)| *handle)
    }

    /// Enters the deadline of a handle that has none.
    #[inline]
    pub(crate) fn enter(&mut self, handle: Handle, deadline: Instant) {
        debug_assert_eq!(self.of(handle), None, "the former one would never be found again");
        if handle.index() >= self.places.len() {
            self.places.resize(handle.index() + 1, NOWHERE);
        }
        self.heap.push((deadline, handle));
        self.rise(self.heap.len() - 1);
    }

    #[inline]
    pub(crate) fn remove(&mut self, handle: Handle) {
        let Some(place) = self.place(handle) else { return };
        self.places[handle.index()] = NOWHERE;
        self.heap.swap_remove(place);
        if place < self.heap.len() {
            // The last entry, moved here, may not have been below this place.
            let place = self.rise(place);
            self.sink(place);
        }
    }

    fn place(&self, handle: Handle) -> Option<usize> {
        let place = *self.places.get(handle.index())? as usize;
        self.heap.get(place).is_some_and(|(_, of)| *of == handle).then_some(place)
    }

    pub(crate) fn of(&self, handle: Handle) -> Option<Instant> {
        self.place(handle).map(|place| self.heap[place].0)
    }

    #[cfg(any(test, feature = "fuzzing"))]
    pub(crate) fn len(&self) -> usize {
        self.heap.len()
    }

    /// Moves an entry up to where it belongs; returns its place.
    #[inline]
    fn rise(&mut self, mut place: usize) -> usize {
        let entry = self.heap[place];
        while place > 0 && entry < self.heap[(place - 1) / 2] {
            self.put(place, self.heap[(place - 1) / 2]);
            place = (place - 1) / 2;
        }
        self.put(place, entry);
        place
    }

    /// Moves an entry down to where it belongs.
    fn sink(&mut self, mut place: usize) {
        let entry = self.heap[place];
        loop {
            let below = 2 * place + 1..self.heap.len().min(2 * place + 3);
            let Some(least) = below.min_by_key(|&below| self.heap[below]).filter(|&least| self.heap[least] < entry)
            else {
                return self.put(place, entry);
            };
            self.put(place, self.heap[least]);
            place = least;
        }
    }

    #[inline]
    fn put(&mut self, place: usize, entry: (Instant, Handle)) {
        self.heap[place] = entry;
        self.places[entry.1.index()] = place as u32;
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::time::Duration;

    use proptest::prelude::*;
    use sealane_transport::Arena;

    use super::*;

    proptest! {
        #[test]
        fn the_earliest_comes_first_whatever_was_removed(deeds in proptest::collection::vec((0u8..4, 0u64..20), 1..300)) {
            let (begun, mut arena, mut deadlines) = (Instant::now(), Arena::new(usize::MAX), Deadlines::default());
            let mut model: BTreeSet<(Instant, Handle)> = BTreeSet::new();
            for (deed, number) in deeds {
                match deed {
                    0 | 1 => {
                        let (handle, deadline) = (arena.insert(()).unwrap(), begun + Duration::from_millis(number));
                        deadlines.enter(handle, deadline);
                        model.insert((deadline, handle));
                    }
                    2 => {
                        if let Some(&(deadline, handle)) = model.iter().nth(number as usize) {
                            arena.remove(handle);
                            deadlines.remove(handle);
                            model.remove(&(deadline, handle));
                            prop_assert_eq!(deadlines.of(handle), None);
                        }
                    }
                    _ => {
                        let now = begun + Duration::from_millis(number);
                        let due = model.first().filter(|(deadline, _)| *deadline <= now).map(|(_, handle)| *handle);
                        prop_assert_eq!(deadlines.due(now), due);
                    }
                }
                prop_assert_eq!(deadlines.next(), model.first().map(|(deadline, _)| *deadline));
                prop_assert_eq!(deadlines.len(), model.len());
                for (deadline, handle) in &model {
                    prop_assert_eq!(deadlines.of(*handle), Some(*deadline));
                }
            }
        }
    }
}
