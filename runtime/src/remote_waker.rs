//! Wake-ups of a shard's tasks from other threads, through the shard's mailbox; one slot for each pending wait.
//!
//! The executor's own wakers may only be touched on their thread as far as speed goes: from another one they wait
//! for the executor's next look at its rings. A remote waker holds a slot number instead, and the reactor, which
//! looks at its mailbox every turn, wakes the task that waits in the slot.

use std::{
    cell::RefCell,
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    task::{Wake, Waker},
};

use crate::mailbox::ShardRef;

/// The shard's side: which task waits in which slot.
#[derive(Default)]
pub(crate) struct RemoteWaits(RefCell<Waits>);

#[derive(Default)]
struct Waits {
    tasks: HashMap<u64, Waker>,
    last: u64,
}

/// The other side: wakes the slot once, and at the latest when it is dropped, so that no slot is forgotten.
pub(crate) struct RemoteWaker {
    shard: ShardRef,
    slot: u64,
    woken: AtomicBool,
}

impl RemoteWaits {
    /// A waker for any thread that wakes `task` of this shard once, and its slot.
    pub(crate) fn waker(&self, shard: ShardRef, task: &Waker) -> (u64, Waker) {
        let mut waits = self.0.borrow_mut();
        waits.last += 1;
        let slot = waits.last;
        waits.tasks.insert(slot, task.clone());
        let remote = RemoteWaker { shard, slot, woken: AtomicBool::new(false) };
        (slot, Waker::from(Arc::new(remote)))
    }

    /// Lets the waker of `slot` wake `task` from now on; false if it has woken already.
    pub(crate) fn retarget(&self, slot: u64, task: &Waker) -> bool {
        match self.0.borrow_mut().tasks.get_mut(&slot) {
            Some(waiting) => {
                waiting.clone_from(task);
                true
            }
            None => false,
        }
    }

    /// Wakes the task in the slot and frees the slot.
    pub(crate) fn wake(&self, slot: u64) {
        let task = self.0.borrow_mut().tasks.remove(&slot);
        if let Some(task) = task {
            task.wake();
        }
    }

    /// Forgets every wait: the shard stops.
    pub(crate) fn clear(&self) {
        let tasks = std::mem::take(&mut self.0.borrow_mut().tasks);
        drop(tasks);
    }

    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.0.borrow().tasks.len()
    }
}

impl Wake for RemoteWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.fire();
    }
}

impl RemoteWaker {
    fn fire(&self) {
        if !self.woken.swap(true, Ordering::AcqRel) {
            self.shard.0.wake(self.slot);
        }
    }
}

impl Drop for RemoteWaker {
    fn drop(&mut self) {
        self.fire();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Flag(AtomicBool);

    impl Wake for Flag {
        fn wake(self: Arc<Self>) {
            self.0.store(true, Ordering::Relaxed);
        }
    }

    #[test]
    fn a_wake_from_another_thread_arrives_once() {
        let (shard, waits) = (ShardRef::new(0, 1).unwrap(), RemoteWaits::default());
        let flag = Arc::new(Flag(AtomicBool::new(false)));
        let (slot, remote) = waits.waker(shard.clone(), Waker::noop());
        assert!(waits.retarget(slot, &Waker::from(Arc::clone(&flag))));
        std::thread::spawn(move || {
            remote.wake_by_ref();
            remote.wake();
        })
        .join()
        .unwrap();
        let woken = shard.0.take_woken();
        assert_eq!(woken.len(), 1);
        assert!(!flag.0.load(Ordering::Relaxed));
        waits.wake(woken[0]);
        assert!(flag.0.load(Ordering::Relaxed));
        assert!(!waits.retarget(slot, Waker::noop()));
        assert_eq!(waits.len(), 0);
    }

    #[test]
    fn a_remote_waker_that_is_dropped_frees_its_slot() {
        let (shard, waits) = (ShardRef::new(0, 1).unwrap(), RemoteWaits::default());
        drop(waits.waker(shard.clone(), Waker::noop()));
        shard.0.take_woken().into_iter().for_each(|slot| waits.wake(slot));
        assert_eq!(waits.len(), 0);
    }
}
