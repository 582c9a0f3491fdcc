//! Work deferred until the lock is released: wakers run executors' code, and dropped memory may run its owner's code, which may
//! call back here or take another lock. Bounded by the calls that end under one lock.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    task::Waker,
};

use sealane_transport::{Tensor, Unreceived, shm::ReadOnlyMemory};

use super::{link::Link, memory::Memory};

/// Wakers to wake and things to drop.
#[derive(Default)]
pub(super) struct Aftermath {
    pub(super) wakers: Vec<Waker>,
    pub(super) spent: Vec<Memory>,
    pub(super) unwanted: Vec<Tensor>,
    pub(super) failures: Vec<Unreceived>,
    pub(super) link: Option<Box<Link>>,
    pub(super) arenas: Vec<ReadOnlyMemory>,
}

impl Aftermath {
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.wakers.is_empty()
            && self.spent.is_empty()
            && self.unwanted.is_empty()
            && self.failures.is_empty()
            && self.link.is_none()
            && self.arenas.is_empty()
    }

    /// Does all of it, and leaves this empty for reuse. Code that panics is of somebody else than the thread which happens to run it:
    /// that goes on, and the others are woken.
    pub(super) fn carry_out(&mut self) {
        self.wakers.drain(..).for_each(|waker| survive(|| waker.wake()));
        self.spent.drain(..).for_each(|memory| survive(|| drop(memory)));
        self.unwanted.drain(..).for_each(|tensor| survive(|| drop(tensor)));
        self.failures.drain(..).for_each(|failure| survive(|| drop(failure)));
        self.link = None;
        self.arenas.clear();
    }
}

/// Runs code that may panic, of which the panic's hook has told by then.
pub(super) fn survive(foreign: impl FnOnce()) {
    if let Err(panic) = catch_unwind(AssertUnwindSafe(foreign)) {
        // Its drop may panic, too.
        std::mem::forget(panic);
    }
}

#[cfg(test)]
mod tests {
    use std::{
        sync::{
            Arc,
            atomic::{AtomicUsize, Ordering},
        },
        task::Wake,
    };

    use bytes::Bytes;
    use sealane_transport::Payload;

    use super::*;

    /// Counts how often it is woken, and panics.
    #[derive(Default)]
    struct Foreign(AtomicUsize);

    impl Foreign {
        fn run(&self) {
            self.0.fetch_add(1, Ordering::Relaxed);
            panic!("this is meant to be seen");
        }
    }

    impl Wake for Foreign {
        fn wake(self: Arc<Self>) {
            self.run();
        }
    }

    /// Memory of somebody else.
    struct Owner(Arc<Foreign>);

    impl AsRef<[u8]> for Owner {
        fn as_ref(&self) -> &[u8] {
            &[7; 1000]
        }
    }

    impl Drop for Owner {
        fn drop(&mut self) {
            self.0.run();
        }
    }

    #[test]
    fn all_are_woken_and_dropped_whoever_panics() {
        let (foreign, mut after) = (Arc::new(Foreign::default()), Aftermath::default());
        after.wakers.extend((0..3).map(|_| Waker::from(foreign.clone())));
        after.spent.extend((0..3).map(|_| Memory::Source(Payload::from(Bytes::from_owner(Owner(foreign.clone()))))));
        after.carry_out();
        assert_eq!((foreign.0.load(Ordering::Relaxed), after.is_empty()), (6, true));
    }
}
