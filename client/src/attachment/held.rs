//! The lock on an attachment's state, and the work to do when it is released.

use std::{
    cell::Cell,
    ops::{Deref, DerefMut},
    sync::{MutexGuard, PoisonError, TryLockError, atomic::Ordering},
    time::{Duration, Instant},
};

use super::{Attachment, Line, Link, State, Take};
use crate::limits::ROOM_WAIT_MAX;

/// The locked state. Releasing it does what must not be done under the lock.
pub(super) struct Held<'a> {
    pub(super) attachment: &'a Attachment,
    guard: Option<MutexGuard<'a, State>>,
    /// Rarely present; boxed, so that calls make and drop little.
    extra: Option<Box<Extra<'a>>>,
}

/// State that only few holders need.
#[derive(Default)]
pub(super) struct Extra<'a> {
    /// How long the caller has waited for a daemon.
    pub(super) waited: Duration,
    /// Held by a publisher until all shards were told.
    pub(super) turn: Option<MutexGuard<'a, ()>>,
    /// This holder is attaching again, which keeps others from it.
    pub(super) attaches: bool,
    /// Its wait for room in the rings, shared by all that it submits together.
    room: RoomWait,
}

/// Since when a caller waits for room in the rings. Calls made together wait together: for a daemon that does not read, they wait
/// once, and not once for each.
#[derive(Clone, Copy, Default)]
pub(super) struct RoomWait {
    /// When there was no room for the first time.
    since: Option<Instant>,
    /// Since when there has been no room.
    stuck_since: Option<Instant>,
}

impl RoomWait {
    /// There is no room at `now`: until when to wait, if the caller's calls may take `timeout` from the first wait on.
    pub(super) fn until(&mut self, now: Instant, timeout: Duration) -> Instant {
        let (since, stuck) = (*self.since.get_or_insert(now), *self.stuck_since.get_or_insert(now));
        let at_most = stuck + ROOM_WAIT_MAX;
        since.checked_add(timeout).map_or(at_most, |deadline| deadline.min(at_most))
    }

    /// There was room: the daemon reads.
    pub(super) fn found(&mut self) {
        self.stuck_since = None;
    }
}

thread_local! {
    /// This thread's wait for room, if it makes calls together that each take the lock.
    static TOGETHER: Cell<Option<RoomWait>> = const { Cell::new(None) };
}

/// Makes calls of one task share one wait for room, to any number of peers.
pub(crate) fn together<T>(work: impl FnOnce() -> T) -> T {
    struct Apart;
    impl Drop for Apart {
        fn drop(&mut self) {
            TOGETHER.set(None);
        }
    }
    if TOGETHER.get().is_some() {
        return work();
    }
    TOGETHER.set(Some(RoomWait::default()));
    let _apart = Apart;
    work()
}

impl<'a> Held<'a> {
    pub(super) fn extra(&mut self) -> &mut Extra<'a> {
        self.extra.get_or_insert_default()
    }

    /// How long the caller has waited for a daemon.
    #[inline]
    pub(super) fn waited(&self) -> Duration {
        self.extra.as_ref().map_or(Duration::ZERO, |extra| extra.waited)
    }

    /// Lets `look` use the current wait for room.
    pub(super) fn waiting_for_room<T>(&mut self, look: impl FnOnce(&mut RoomWait) -> T) -> T {
        let Some(mut together) = TOGETHER.get() else { return look(&mut self.extra().room) };
        let seen = look(&mut together);
        TOGETHER.set(Some(together));
        seen
    }
}

impl Attachment {
    #[inline]
    pub(super) fn lock(&self) -> Held<'_> {
        self.holding(self.guard())
    }

    #[inline]
    fn holding<'a>(&'a self, guard: MutexGuard<'a, State>) -> Held<'a> {
        Held { attachment: self, guard: Some(guard), extra: None }
    }

    #[inline]
    fn guard(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    #[inline]
    pub(super) fn try_lock(&self) -> Option<Held<'_>> {
        match self.state.try_lock() {
            Ok(guard) => Some(self.holding(guard)),
            Err(TryLockError::Poisoned(poisoned)) => Some(self.holding(poisoned.into_inner())),
            Err(TryLockError::WouldBlock) => None,
        }
    }
}

impl Held<'_> {
    pub(super) fn link(&self) -> &Link {
        match &self.line {
            Line::Up(link) => link,
            Line::Lost(_) | Line::Ended(_) => unreachable!("looked at by those who found the line up"),
        }
    }

    /// Takes in available answers; a fault ends the attachment.
    #[inline]
    pub(super) fn pump(&mut self) {
        let State { line: Line::Up(link), calls, acceptors, aftermath, unlooked, .. } = &mut **self else { return };
        *unlooked = 0;
        if let Err(fault) = link.drain(calls, acceptors, aftermath) {
            self.lose(&fault);
        } else if link.draining {
            self.note();
        }
        let State { line: Line::Up(link), calls, aftermath, .. } = &mut **self else { return };
        if link.direct.is_open() {
            link.drain_lanes(calls, aftermath);
            if calls.has_unclaimed() {
                link.offer_unclaimed(calls, aftermath);
            }
        }
        if self.calls.has_published() {
            self.settle_published();
        }
        if self.has_backlog() {
            self.forward();
        }
        self.cancel_those_set_aside();
    }

    /// Cancels recvs at the daemon for which a tensor is set aside.
    #[inline]
    pub(super) fn cancel_those_set_aside(&mut self) {
        while let Some((segment, call)) = self.calls.take_to_cancel()
            && let Line::Up(link) = &mut self.line
        {
            let cancelled = link.cancel(segment, call);
            link.ring();
            if let Err(fault) = cancelled {
                self.lose(&fault);
            }
        }
    }

    /// Submits what no caller waits for.
    pub(super) fn chores(&mut self) {
        if let Line::Up(link) = &mut self.line {
            let flushed = link.flush();
            link.ring();
            if let Err(fault) = flushed {
                return self.lose(&fault);
            }
        }
        if self.has_backlog() {
            self.attend();
        }
    }

    /// Does what is owed to threads that found the lock taken.
    #[cold]
    fn chores_owed(&mut self) {
        self.attachment.owes_chores.store(false, Ordering::SeqCst);
        self.chores();
    }

    /// A call's outcome, by the table's `take`. A caller that leaves with its outcome makes sure that parked callers still
    /// have a listener.
    #[inline(always)]
    pub(super) fn take<T>(&mut self, call: u32, take: Take<T>) -> Option<T> {
        let taken = take(&mut self.calls, call);
        if taken.is_some() {
            self.hand_over();
        }
        taken
    }

    /// If nobody listens, wakes one of the parked threads.
    #[inline]
    pub(super) fn hand_over(&mut self) {
        if !self.listening.thread
            && let Some((_, waker)) = self.parked.last()
        {
            let waker = waker.clone();
            self.aftermath.wakers.push(waker);
        }
    }
}

impl Deref for Held<'_> {
    type Target = State;

    #[inline]
    fn deref(&self) -> &State {
        self.guard.as_ref().expect("there until it is dropped")
    }
}

impl DerefMut for Held<'_> {
    #[inline]
    fn deref_mut(&mut self) -> &mut State {
        self.guard.as_mut().expect("there until it is dropped")
    }
}

impl Drop for Held<'_> {
    #[inline]
    fn drop(&mut self) {
        if let Some(extra) = &mut self.extra {
            extra.turn = None;
        }
        self.release();
    }
}

impl Held<'_> {
    /// Releases the lock while `meanwhile` runs.
    pub(super) fn pause(&mut self, meanwhile: impl FnOnce()) {
        self.release();
        meanwhile();
        self.guard = Some(self.attachment.guard());
    }

    #[inline]
    fn release(&mut self) {
        if self.guard.is_some() && self.attachment.owes_chores.load(Ordering::Relaxed) {
            self.chores_owed();
        }
        let Some(guard) = self.guard.take() else { return };
        let (has_unclaimed, known) = (guard.calls.has_unclaimed(), &self.attachment.has_unclaimed);
        if known.load(Ordering::Relaxed) != has_unclaimed {
            known.store(has_unclaimed, Ordering::Relaxed);
        }
        if !guard.aftermath.is_empty() {
            self.carry_out(guard);
        }
    }

    /// Does the work that must not be done under the lock.
    fn carry_out(&self, mut guard: MutexGuard<'_, State>) {
        if self.extra.as_ref().is_some_and(|extra| extra.turn.is_some() || extra.attaches) {
            // That work may wait for the turn, or attach: a thread that does neither does it, or this one when it no longer does.
            if guard.listening.is_there() {
                self.attachment.nudge_waker.wake_by_ref();
            }
            return;
        }
        let mut aftermath = std::mem::take(&mut guard.aftermath);
        drop(guard);
        aftermath.carry_out();
        // The vectors are reused, unless another thread was faster.
        if let Ok(mut guard) = self.attachment.state.try_lock()
            && guard.aftermath.is_empty()
        {
            guard.aftermath = aftermath;
        }
    }
}

#[cfg(test)]
mod tests {
    use sealane_transport::shm::{Record, Span, Submission};

    use super::{
        super::rig::{AREA_BYTES, Rig},
        *,
    };

    #[test]
    fn calls_that_are_made_together_wait_together_and_no_longer_than_one() {
        let (mut room, begun) = (RoomWait::default(), Instant::now());
        let (long, short) = (10 * ROOM_WAIT_MAX, ROOM_WAIT_MAX / 2);
        assert_eq!(room.until(begun, long), begun + ROOM_WAIT_MAX);
        let later = begun + ROOM_WAIT_MAX;
        assert_eq!(room.until(later, long), later, "the next one waits no more");
        room.found();
        assert_eq!(room.until(later, long), later + ROOM_WAIT_MAX, "a daemon that reads is waited for again");
        room.found();
        assert_eq!(room.until(begun + long, long), begun + long, "but not beyond the calls' deadline");
        assert_eq!(RoomWait::default().until(begun, short), begun + short);
        assert_eq!(room.until(begun + long, Duration::MAX), begun + long + ROOM_WAIT_MAX, "one without a deadline");
    }

    #[test]
    fn what_is_freed_while_somebody_has_the_lock_is_given_back_when_it_is_let_go_of() {
        let mut rig = Rig::new("task");
        let held = rig.attachment.lock();
        let area = held.link().segments[0].area.clone();
        // Too large to be collected with others before it is freed.
        drop(area.lend(Span { offset: 0, len: AREA_BYTES / 4 }, 7).unwrap());
        assert!(rig.daemon.submissions.is_empty());
        drop(held);
        let mut record = Record::new();
        assert!(rig.daemon.submissions.pop(&mut record).unwrap());
        assert!(matches!(Submission::decode(&record), Ok(Submission::Free { tokens: [7] })));
    }
}
