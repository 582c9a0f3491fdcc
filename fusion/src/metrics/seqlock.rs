//! A value that one thread replaces and any thread reads whole: a sequence lock (Lameter, "Effective synchronization on Linux/NUMA
//! systems", 2005), with atomic words, so that a torn read is detected and is not a data race. Bounded: it is as large as one value.

use std::marker::PhantomData;
use std::sync::atomic::{AtomicU64, Ordering, fence};

use zerocopy::{FromBytes, Immutable, IntoBytes};

const WORD: usize = size_of::<u64>();

/// See the module. `T` is made of 64-bit words.
///
/// Aligned, so that no two shards' values share a cache line, or the pair of lines that the processor fetches together.
#[derive(Debug)]
#[repr(align(128))]
pub(crate) struct SeqLock<T> {
    /// Odd while the words are written.
    sequence: AtomicU64,
    words: Box<[AtomicU64]>,
    value: PhantomData<fn() -> T>,
}

impl<T: Default + FromBytes + IntoBytes + Immutable> Default for SeqLock<T> {
    fn default() -> Self {
        const { assert!(size_of::<T>().is_multiple_of(WORD)) };
        let words = (0..size_of::<T>() / WORD).map(|_| AtomicU64::new(0)).collect();
        let lock = Self { sequence: AtomicU64::new(0), words, value: PhantomData };
        lock.write(&T::default());
        lock
    }
}

impl<T: FromBytes + IntoBytes + Immutable> SeqLock<T> {
    /// Replaces the value. Must be called by one thread only: two at once would mix their values.
    pub(crate) fn write(&self, value: &T) {
        let sequence = self.sequence.load(Ordering::Relaxed);
        self.sequence.store(sequence.wrapping_add(1), Ordering::Relaxed);
        // A reader that sees one of the words sees the odd number too.
        fence(Ordering::Release);
        for (word, bytes) in self.words.iter().zip(value.as_bytes().as_chunks::<WORD>().0) {
            word.store(u64::from_ne_bytes(*bytes), Ordering::Relaxed);
        }
        self.sequence.store(sequence.wrapping_add(2), Ordering::Release);
    }

    /// The value as last written. Retries while it is being replaced, which takes the writer some nanoseconds; yields, in case the writer
    /// has lost its CPU in the middle.
    pub(crate) fn read(&self) -> T {
        loop {
            let before = self.sequence.load(Ordering::Acquire);
            let mut value = T::new_zeroed();
            let bytes: Vec<u8> =
                self.words.iter().flat_map(|word| word.load(Ordering::Relaxed).to_ne_bytes()).collect();
            fence(Ordering::Acquire);
            if before.is_multiple_of(2) && self.sequence.load(Ordering::Relaxed) == before {
                value = T::read_from_bytes(&bytes).unwrap_or(value);
                return value;
            }
            std::thread::yield_now();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    #[derive(Clone, Copy, Debug, Default, PartialEq, FromBytes, IntoBytes, Immutable)]
    #[repr(C)]
    struct Pair {
        count: u64,
        negated: u64,
    }

    #[test]
    fn a_reader_never_sees_half_of_a_value() {
        const COUNT: u64 = 100_000;
        let lock = SeqLock::<Pair>::default();
        assert_eq!(lock.read(), Pair::default());
        thread::scope(|scope| {
            scope.spawn(|| (1..=COUNT).for_each(|count| lock.write(&Pair { count, negated: !count })));
            let mut last = 0;
            while last < COUNT {
                let Pair { count, negated } = lock.read();
                assert!(count == 0 || negated == !count);
                assert!(count >= last, "values do not go back");
                last = count;
            }
        });
    }
}
