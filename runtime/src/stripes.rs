//! Sequence locks of the rows of a table, one for each stripe of rows (Lameter, "Effective synchronization on Linux/NUMA systems",
//! 2005). One process writes the rows, any process reads them, and a reader notices that a row changed while it copied it.
//!
//! They lie in shared memory beside the rows. Every value is legal: a wrong one makes a reader copy again, a bounded number of
//! times, or gives it a row that is half old and half new.

#[cfg(loom)]
use loom::sync::atomic::{AtomicU32, Ordering, fence};
#[cfg(not(loom))]
use std::sync::atomic::{AtomicU32, Ordering, fence};

/// The lock of one stripe: odd while one of its rows is written.
#[derive(Debug)]
#[repr(transparent)]
pub struct Stripe(AtomicU32);

impl Stripe {
    #[cfg(loom)]
    pub(crate) fn new() -> Self {
        Self(AtomicU32::new(0))
    }

    /// Reader, before it copies: the value to pass to [`is_unchanged`](Self::is_unchanged); `None` while a row is written.
    #[inline]
    pub fn begin_read(&self) -> Option<u32> {
        // Pairs with the store in `end_write`: a reader that sees its number sees the rows written before it, or newer ones. It is
        // a fence because the lock may lie in memory that this process can only read.
        let number = self.0.load(Ordering::Relaxed);
        fence(Ordering::Acquire);
        number.is_multiple_of(2).then_some(number)
    }

    /// Reader, after it has copied: true if nobody has written meanwhile.
    #[inline]
    pub fn is_unchanged(&self, number: u32) -> bool {
        // Pairs with the fence in `begin_write`: a reader that has read a byte of a new row sees the odd number, or a later one.
        fence(Ordering::Acquire);
        self.0.load(Ordering::Relaxed) == number
    }

    /// Writer, before it writes rows of the stripe. The caller ensures that there is one writer at a time.
    #[inline]
    pub fn begin_write(&self) {
        // Goes to the next odd number, also from an odd one left by a writer that was killed in the middle.
        let number = self.0.load(Ordering::Relaxed).wrapping_add(1) | 1;
        self.0.store(number, Ordering::Relaxed);
        // Pairs with the fence in `is_unchanged`.
        fence(Ordering::Release);
    }

    /// Writer, after it has written them.
    #[inline]
    pub fn end_write(&self) {
        let number = self.0.load(Ordering::Relaxed);
        // Pairs with the load in `begin_read`.
        self.0.store(number.wrapping_add(1), Ordering::Release);
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use loom::sync::Arc;
    use loom::thread;

    use super::*;

    #[test]
    fn no_reader_takes_a_row_that_is_half_written_for_whole() {
        loom::model(|| {
            let shared = Arc::new((Stripe::new(), [AtomicU32::new(0), AtomicU32::new(0)]));
            let writer = {
                let shared = shared.clone();
                thread::spawn(move || {
                    for value in 1..=2 {
                        shared.0.begin_write();
                        shared.1.iter().for_each(|word| word.store(value, Ordering::Relaxed));
                        shared.0.end_write();
                    }
                })
            };
            if let Some(number) = shared.0.begin_read() {
                let row = [0, 1].map(|word: usize| shared.1[word].load(Ordering::Relaxed));
                if shared.0.is_unchanged(number) {
                    assert_eq!(row[0], row[1], "a torn row");
                    assert!(row[0] >= number / 2, "a row older than its number");
                }
            }
            writer.join().unwrap();
        });
    }
}
