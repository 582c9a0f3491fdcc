//! Single-writer counters that any thread can read: eight bytes each, wait-free.

use std::sync::atomic::{AtomicU64, Ordering};

/// Counts up. One thread adds, any thread reads.
///
/// An addition is a relaxed load and a relaxed store, no locked instruction: about as long as adding to a plain number.
/// Concurrent writers only lose counts. A reader may see one counter an event ahead of another. Wraps around at `u64::MAX`.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    pub const fn new() -> Self {
        Self(AtomicU64::new(0))
    }

    /// Writer: adds `count`.
    #[inline]
    pub fn add(&self, count: u64) {
        self.0.store(self.get().wrapping_add(count), Ordering::Relaxed);
    }

    #[inline]
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// A number that goes up and down. One thread sets it, any thread reads; both are a plain move.
#[derive(Debug, Default)]
pub struct Gauge(AtomicU64);

impl Gauge {
    pub const fn new() -> Self {
        Self(AtomicU64::new(0))
    }

    /// Writer: replaces the value.
    #[inline]
    pub fn set(&self, value: u64) {
        self.0.store(value, Ordering::Relaxed);
    }

    #[inline]
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    #[test]
    fn a_reader_sees_a_counter_only_grow_and_in_the_end_all_of_it() {
        let counter = Counter::new();
        thread::scope(|scope| {
            scope.spawn(|| (0..100_000).for_each(|_| counter.add(2)));
            let mut last = 0;
            while last < 200_000 {
                let seen = counter.get();
                assert!(seen >= last && seen.is_multiple_of(2));
                last = seen;
            }
        });
        assert_eq!(counter.get(), 200_000);
    }

    #[test]
    fn a_counter_goes_on_from_zero_and_a_gauge_holds_what_was_set_last() {
        let counter = Counter::default();
        counter.add(u64::MAX);
        counter.add(3);
        assert_eq!(counter.get(), 2);
        let gauge = Gauge::default();
        gauge.set(7);
        gauge.set(5);
        assert_eq!(gauge.get(), 5);
    }
}
