//! Memory of a ring for tests: atomics on the heap, as the test's build knows them.

#[cfg(loom)]
use loom::sync::{Arc, atomic::AtomicU64};
#[cfg(not(loom))]
use std::sync::{Arc, atomic::AtomicU64};

use crate::shm::RingMemory;

/// A ring of `N` words; the clones share it.
#[derive(Clone)]
pub(super) struct Heap<const N: u64> {
    pub(super) read: Arc<AtomicU64>,
    pub(super) words: Arc<Vec<AtomicU64>>,
}

impl<const N: u64> Heap<N> {
    pub(super) fn new() -> Self {
        let words = (0..N).map(|_| AtomicU64::new(0)).collect();
        Self { read: Arc::new(AtomicU64::new(0)), words: Arc::new(words) }
    }
}

impl<const N: u64> RingMemory for Heap<N> {
    const WORDS: u64 = N;

    fn word(&self, position: u64) -> &AtomicU64 {
        &self.words[(position % N) as usize]
    }

    fn words(&self, position: u64, count: u64) -> &[AtomicU64] {
        let at = (position % N) as usize;
        &self.words[at..at + count as usize]
    }

    fn read(&self) -> &AtomicU64 {
        &self.read
    }
}
