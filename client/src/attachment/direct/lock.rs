//! The lock on a channel: held for tens of nanoseconds. Unlocking is a plain store, so that an uncontended use costs one atomic
//! read-modify-write instead of two. A thread that finds the lock taken spins, yields, and then sleeps for moments.
#![allow(unsafe_code)]

use std::{
    cell::UnsafeCell,
    ops::{Deref, DerefMut},
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::Duration,
};

/// Attempts between which a waiting thread only spins.
const SPINS: u32 = 100;

/// Further attempts between which it yields its CPU.
const YIELDS: u32 = 20;

/// Sleep between later attempts: the thread that has the lock was probably descheduled.
const PAUSE: Duration = Duration::from_micros(50);

pub(in crate::attachment) struct Lock<T> {
    is_taken: AtomicBool,
    value: UnsafeCell<T>,
}

// SAFETY: the value is reached only through a guard, and one thread at a time has one.
unsafe impl<T: Send> Sync for Lock<T> {}

pub(in crate::attachment) struct Guard<'a, T>(&'a Lock<T>);

impl<T> Lock<T> {
    pub(super) fn new(value: T) -> Lock<T> {
        Lock { is_taken: AtomicBool::new(false), value: UnsafeCell::new(value) }
    }

    #[inline]
    fn take(&self) -> bool {
        // LOCKED: Acquire here, Release in the guard's drop.
        self.is_taken.compare_exchange(false, true, Ordering::Acquire, Ordering::Relaxed).is_ok()
    }

    #[inline]
    pub(super) fn lock(&self) -> Guard<'_, T> {
        if !self.take() {
            self.wait();
        }
        Guard(self)
    }

    #[cold]
    fn wait(&self) {
        for attempt in 0_u32.. {
            if !self.is_taken.load(Ordering::Relaxed) && self.take() {
                return;
            }
            match attempt {
                0..SPINS => std::hint::spin_loop(),
                SPINS.. if attempt < SPINS + YIELDS => thread::yield_now(),
                _ => thread::sleep(PAUSE),
            }
        }
    }
}

impl<T> Drop for Guard<'_, T> {
    #[inline]
    fn drop(&mut self) {
        // LOCKED: see `take`.
        self.0.is_taken.store(false, Ordering::Release);
    }
}

impl<T> Deref for Guard<'_, T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: this guard has the lock until it is dropped.
        unsafe { &*self.0.value.get() }
    }
}

impl<T> DerefMut for Guard<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: as above, and the guard is borrowed exclusively.
        unsafe { &mut *self.0.value.get() }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, mpsc};

    use super::*;

    #[test]
    fn increments_of_many_threads_are_all_counted() {
        let lock = Lock::new(0_u64);
        thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..10_000 {
                        *lock.lock() += 1;
                    }
                });
            }
        });
        assert_eq!(*lock.lock(), 40_000);
    }

    /// The thread that has the lock may be descheduled for longer than a waiter spins and yields.
    #[test]
    fn waiter_gets_a_lock_that_was_held_for_long() {
        let (lock, other) = (Arc::new(Lock::new(0_u64)), Lock::new(0_u64));
        let (taken, waits) = mpsc::channel();
        let guard = lock.lock();
        let waiter = lock.clone();
        thread::spawn(move || {
            *waiter.lock() += 1;
            taken.send(()).unwrap();
        });
        assert!(waits.recv_timeout(Duration::from_millis(20)).is_err());
        *other.lock() += 1;
        drop(guard);
        waits.recv_timeout(Duration::from_secs(10)).unwrap();
    }
}
