//! Memory of one direction for tests: atomics on the heap, as the test's build knows them.

#[cfg(loom)]
use loom::sync::{Arc, atomic::AtomicU64};
#[cfg(not(loom))]
use std::sync::{Arc, atomic::AtomicU64};

use super::LaneMemory;
use crate::shm::limits::{LANE_ENTRY_WORDS, LANE_NOTES_PER_ENTRY};

/// A direction of `N` entries; clones share it.
#[derive(Clone)]
pub(super) struct Heap<const N: usize> {
    pub(super) notes: Arc<Vec<AtomicU64>>,
    pub(super) returns: Arc<Vec<AtomicU64>>,
    pub(super) entries: Arc<Vec<[AtomicU64; LANE_ENTRY_WORDS]>>,
}

impl<const N: usize> Heap<N> {
    pub(super) fn new() -> Self {
        let words = |count| Arc::new((0..count).map(|_| AtomicU64::new(0)).collect());
        let entry = |_| std::array::from_fn(|_| AtomicU64::new(0));
        Self {
            notes: words(N * LANE_NOTES_PER_ENTRY),
            returns: words(N),
            entries: Arc::new((0..N).map(entry).collect()),
        }
    }
}

impl<const N: usize> LaneMemory for Heap<N> {
    const ENTRIES: usize = N;

    fn note(&self, position: u64) -> &AtomicU64 {
        &self.notes[position as usize % (N * LANE_NOTES_PER_ENTRY)]
    }

    fn returned(&self, position: u64) -> &AtomicU64 {
        &self.returns[position as usize % N]
    }

    fn entry(&self, entry: u16) -> &[AtomicU64; LANE_ENTRY_WORDS] {
        &self.entries[usize::from(entry)]
    }
}
