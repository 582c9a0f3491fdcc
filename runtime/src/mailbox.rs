//! Mailboxes: how any thread hands a job to a shard. Bounded by `RuntimeSettings::mailbox_slots`; a post to a shard
//! that is awake makes no system call.
//!
//! Jobs that must not be refused (closing what is open, waking a waiter) go to an overflow list when no slot is free. Its
//! callers bound it: one job for each resource whose opening went through the mailbox. While the list is not empty, the mailbox
//! is full for all other jobs, so jobs always run in the order of submission.

use std::{
    collections::VecDeque,
    fmt,
    os::fd::{AsFd, BorrowedFd},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering, fence},
    },
};

use crossbeam_queue::ArrayQueue;
use nix::sys::eventfd::{EfdFlags, EventFd};

use crate::{error::RuntimeError, handshake::SleepFlag, load::ShardLoad, shard::Shard, task::TaskKey};

/// A closure to run once on a shard's thread.
pub type Job = Box<dyn FnOnce(&Shard) + Send>;

/// The job was not accepted: the mailbox has no free slot, or the shard has stopped.
#[derive(thiserror::Error)]
#[error("shard {shard} {}", if *.stopped { "has stopped" } else { "has no free mailbox slot" })]
pub struct MailboxFull {
    pub shard: usize,
    /// The shard has stopped and will never accept the job.
    pub stopped: bool,
    /// The job, unchanged, for a retry.
    pub job: Job,
}

impl fmt::Debug for MailboxFull {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MailboxFull")
            .field("shard", &self.shard)
            .field("stopped", &self.stopped)
            .finish_non_exhaustive()
    }
}

/// The part of a shard that other threads touch.
pub(crate) struct Mailbox {
    shard: usize,
    jobs: ArrayQueue<Job>,
    /// Jobs that had to be accepted although no slot was free. They run after those in `jobs`, which takes none while this list is
    /// not empty: so jobs run in the order in which they were submitted.
    overflow: Mutex<VecDeque<Job>>,
    /// True while `overflow` is not empty; changed under its lock.
    overflows: AtomicBool,
    sleep: SleepFlag,
    doorbell: EventFd,
    stop: AtomicBool,
    closed: AtomicBool,
    /// Tasks of this shard that other threads have woken; each is in the list at most once.
    woken: Mutex<Vec<TaskKey>>,
    any_woken: AtomicBool,
    load: Arc<ShardLoad>,
}

/// A handle to a shard for any thread.
#[derive(Clone)]
pub struct ShardRef(pub(crate) Arc<Mailbox>);

impl ShardRef {
    pub(crate) fn new(shard: usize, slots: usize) -> Result<Self, RuntimeError> {
        let doorbell = EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK)
            .map_err(RuntimeError::system("making a shard's doorbell"))?;
        Ok(Self(Arc::new(Mailbox {
            shard,
            jobs: ArrayQueue::new(slots),
            overflow: Mutex::default(),
            overflows: AtomicBool::new(false),
            sleep: SleepFlag::new(),
            doorbell,
            stop: AtomicBool::new(false),
            closed: AtomicBool::new(false),
            woken: Mutex::default(),
            any_woken: AtomicBool::new(false),
            load: Arc::default(),
        })))
    }

    /// The shard's number, from 0.
    pub fn index(&self) -> usize {
        self.0.shard
    }

    /// Hands a job to the shard, which runs it in one of its next turns, in the order of submission.
    ///
    /// Jobs that are still waiting when the shard stops are dropped unrun.
    ///
    /// # Errors
    /// [`MailboxFull`], with the job in it, if no slot is free or the shard has stopped.
    pub fn submit(&self, job: Job) -> Result<(), MailboxFull> {
        let mailbox = &*self.0;
        if mailbox.closed.load(Ordering::Acquire) {
            return Err(MailboxFull { shard: mailbox.shard, stopped: true, job });
        }
        let pushed = if mailbox.overflows.load(Ordering::Acquire) { Err(job) } else { mailbox.jobs.push(job) };
        pushed.map_err(|job| MailboxFull { shard: mailbox.shard, stopped: false, job })?;
        mailbox.ring_if_asleep();
        // Either the closing shard saw the push, or this thread sees that it is closed; the fence is in `must_ring`.
        if mailbox.closed.load(Ordering::Relaxed) {
            mailbox.drop_jobs();
        }
        Ok(())
    }

    /// Like [`submit`](Self::submit), for a job that must not be refused: one that closes what an earlier job opened, or wakes
    /// it. It runs in the order of submission like all others.
    ///
    /// If no slot is free it waits outside the slots, so the caller must bound the number of such jobs: one at a time for each
    /// resource that an accepted job opened.
    pub fn submit_always(&self, job: Job) {
        let mailbox = &*self.0;
        let Err(MailboxFull { stopped: false, job, .. }) = self.submit(job) else { return };
        let mut overflow = mailbox.overflow();
        overflow.push_back(job);
        mailbox.overflows.store(true, Ordering::Release);
        drop(overflow);
        mailbox.ring_if_asleep();
        // As in `submit`.
        if mailbox.closed.load(Ordering::Relaxed) {
            mailbox.drop_jobs();
        }
    }

    pub(crate) fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// Jobs that may wait at the same time.
    pub fn slots(&self) -> usize {
        self.0.jobs.capacity()
    }

    /// True if the shard takes no more jobs, or was asked to stop.
    pub fn has_stopped(&self) -> bool {
        self.0.stop_asked() || self.0.closed.load(Ordering::Acquire)
    }

    pub fn load(&self) -> Arc<ShardLoad> {
        Arc::clone(&self.0.load)
    }
}

impl fmt::Debug for ShardRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ShardRef({})", self.0.shard)
    }
}

impl Mailbox {
    // What any thread may do.

    fn overflow(&self) -> MutexGuard<'_, VecDeque<Job>> {
        self.overflow.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn ring_if_asleep(&self) {
        if self.sleep.must_ring() {
            // It fails only if its counter is at its limit, and then it rings as well.
            let _ = self.doorbell.write(1);
        }
    }

    pub(crate) fn stop(&self) {
        self.stop.store(true, Ordering::Release);
        self.ring_if_asleep();
    }

    pub(crate) fn wake(&self, task: TaskKey) {
        self.woken.lock().unwrap_or_else(PoisonError::into_inner).push(task);
        self.any_woken.store(true, Ordering::Release);
        self.ring_if_asleep();
    }

    // What only the shard does.

    pub(crate) fn load(&self) -> &ShardLoad {
        &self.load
    }

    pub(crate) fn doorbell(&self) -> BorrowedFd<'_> {
        self.doorbell.as_fd()
    }

    pub(crate) fn pop(&self) -> Option<Job> {
        // Read before the slots: so once the slots are found empty, all jobs before the first of the overflow have run.
        let overflows = self.overflows.load(Ordering::Acquire);
        if let Some(job) = self.jobs.pop() {
            return Some(job);
        }
        if !overflows {
            return None;
        }
        let mut overflow = self.overflow();
        let job = overflow.pop_front();
        self.overflows.store(!overflow.is_empty(), Ordering::Release);
        job
    }

    pub(crate) fn stop_asked(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    pub(crate) fn take_woken(&self) -> Vec<TaskKey> {
        if !self.any_woken.load(Ordering::Relaxed) {
            return Vec::new();
        }
        self.any_woken.store(false, Ordering::Relaxed);
        std::mem::take(&mut *self.woken.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Announces sleep. False if work has arrived meanwhile; the shard then stays awake.
    pub(crate) fn try_sleep(&self) -> bool {
        self.sleep.announce();
        let idle = self.jobs.is_empty()
            && !self.overflows.load(Ordering::Acquire)
            && !self.any_woken.load(Ordering::Acquire)
            && !self.stop.load(Ordering::Acquire);
        if !idle {
            self.sleep.awake();
        }
        idle
    }

    pub(crate) fn awake(&self) {
        self.sleep.awake();
    }

    /// Takes no more jobs and drops those that wait, so that their submitters are told.
    pub(crate) fn close(&self) {
        self.closed.store(true, Ordering::Release);
        fence(Ordering::SeqCst);
        self.drop_jobs();
    }

    fn drop_jobs(&self) {
        while let Some(job) = self.jobs.pop() {
            drop(job);
        }
        let overflow = std::mem::take(&mut *self.overflow());
        // Not under the lock: what a job holds may submit another when it is dropped.
        drop(overflow);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_mailbox_gives_the_job_back() {
        let shard = ShardRef::new(3, 1).unwrap();
        shard.submit(Box::new(|_| {})).unwrap();
        let full = shard.submit(Box::new(|_| {})).unwrap_err();
        assert_eq!((full.shard, full.stopped), (3, false));
        assert_eq!(full.to_string(), "shard 3 has no free mailbox slot");
        drop(shard.0.pop().unwrap());
        shard.submit(full.job).unwrap();
    }

    #[test]
    fn a_job_that_may_not_be_refused_waits_outside_the_slots_and_keeps_its_place() {
        let shard = ShardRef::new(0, 1).unwrap();
        /// Reports which job was dropped.
        struct Named(&'static str, Arc<Mutex<Vec<&'static str>>>);
        impl Drop for Named {
            fn drop(&mut self) {
                self.1.lock().unwrap().push(self.0);
            }
        }
        let popped = Arc::new(Mutex::new(Vec::new()));
        let job = |name| -> Job {
            let named = Named(name, Arc::clone(&popped));
            Box::new(move |_| drop(named))
        };
        let pop = || shard.0.pop().map(drop);
        shard.submit(job("opens")).unwrap();
        shard.submit_always(job("closes"));
        pop().unwrap();
        // A slot is free, but new jobs must not overtake those in the overflow.
        drop(shard.submit(job("refused")).unwrap_err());
        shard.submit_always(job("closes again"));
        assert!(!shard.0.try_sleep());
        pop().and_then(|()| pop()).unwrap();
        assert_eq!(pop(), None);
        shard.submit(job("opens again")).unwrap();
        pop().unwrap();
        assert_eq!(*popped.lock().unwrap(), ["opens", "refused", "closes", "closes again", "opens again"]);
    }

    #[test]
    fn a_closed_mailbox_drops_what_waits_and_takes_no_more() {
        let shard = ShardRef::new(0, 1).unwrap();
        let waiting = Arc::new(());
        for _ in 0..3 {
            let held = Arc::clone(&waiting);
            shard.submit_always(Box::new(move |_| drop(held)));
        }
        shard.0.close();
        assert_eq!(Arc::strong_count(&waiting), 1);
        let held = Arc::clone(&waiting);
        shard.submit_always(Box::new(move |_| drop(held)));
        assert_eq!(Arc::strong_count(&waiting), 1);
        let full = shard.submit(Box::new(|_| {})).unwrap_err();
        assert!(full.stopped);
        assert!(format!("{full:?} {full}").contains("has stopped"));
    }

    #[test]
    fn sleep_is_refused_while_anything_waits() {
        let shard = ShardRef::new(0, 4).unwrap();
        assert!(shard.0.try_sleep());
        shard.0.awake();
        shard.submit(Box::new(|_| {})).unwrap();
        assert!(!shard.0.try_sleep());
        drop(shard.0.pop());
        let task = TaskKey::default();
        shard.0.wake(task);
        assert!(!shard.0.try_sleep());
        assert_eq!(shard.0.take_woken(), [task]);
        assert_eq!(shard.0.take_woken(), []);
        assert!(shard.0.try_sleep());
        shard.0.stop();
        assert!(!shard.0.try_sleep());
    }

    #[test]
    fn the_doorbell_rings_once_and_only_for_a_sleeper() {
        let shard = ShardRef::new(0, 4).unwrap();
        shard.submit(Box::new(|_| {})).unwrap();
        assert!(shard.0.doorbell.read().is_err(), "awake: no ring");
        drop(shard.0.pop());
        assert!(shard.0.try_sleep());
        shard.submit(Box::new(|_| {})).unwrap();
        shard.submit(Box::new(|_| {})).unwrap();
        assert_eq!(shard.0.doorbell.read().unwrap(), 1);
    }
}
