//! Memory of a ring for tests: atomics on the heap, as the test's build knows them.

#[cfg(loom)]
use loom::sync::{Arc, atomic::AtomicU64};
#[cfg(not(loom))]
use std::sync::{Arc, atomic::AtomicU64};

use crate::shm::{RingMemory, limits::SLOT_WORDS};

/// A ring of `N` slots; the clones share it.
#[derive(Clone)]
pub(super) struct Heap<const N: usize> {
    pub(super) head: Arc<AtomicU64>,
    pub(super) slots: Arc<[[AtomicU64; SLOT_WORDS]; N]>,
}

impl<const N: usize> Heap<N> {
    pub(super) fn new() -> Self {
        let slot = |_| std::array::from_fn(|_| AtomicU64::new(0));
        Self { head: Arc::new(AtomicU64::new(0)), slots: Arc::new(std::array::from_fn(slot)) }
    }
}

impl<const N: usize> RingMemory for Heap<N> {
    const SLOTS: usize = N;

    fn head(&self) -> &AtomicU64 {
        &self.head
    }

    fn slot(&self, position: u64) -> &[AtomicU64; SLOT_WORDS] {
        &self.slots[position as usize % N]
    }
}
