//! The lock on an attachment's state, and the work to do when it is released.

use std::{
    ops::{Deref, DerefMut},
    sync::{MutexGuard, PoisonError, TryLockError},
    time::Duration,
};

use super::{Attachment, Line, Link, State, Take};

/// The state, locked. When it is released, what must not happen under the lock happens.
pub(super) struct Held<'a> {
    pub(super) attachment: &'a Attachment,
    /// How long the caller has waited for a daemon.
    pub(super) waited: Duration,
    guard: Option<MutexGuard<'a, State>>,
}

impl Attachment {
    #[inline]
    pub(super) fn lock(&self) -> Held<'_> {
        self.holding(self.guard())
    }

    #[inline]
    fn holding<'a>(&'a self, guard: MutexGuard<'a, State>) -> Held<'a> {
        Held { attachment: self, waited: Duration::ZERO, guard: Some(guard) }
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
            Line::Lost(_) | Line::Closed => unreachable!("looked at by those who found the line up"),
        }
    }

    /// Takes the answers that are there; a fault ends the attachment.
    #[inline]
    pub(super) fn pump(&mut self) {
        let State { line: Line::Up(link), calls, acceptors, aftermath, unlooked, .. } = &mut **self else { return };
        *unlooked = 0;
        if let Err(fault) = link.drain(calls, acceptors, aftermath) {
            self.lose(&fault);
        } else if link.draining {
            self.note();
        }
        if self.calls.has_refused() {
            self.forget_refused();
        }
        if self.has_backlog() {
            self.forward();
        }
        self.cancel_those_set_aside();
    }

    /// Gives up at the daemon the recvs for which a tensor is set aside.
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

    /// How a call ended, by the table's `take`. A caller that leaves with an outcome makes sure that parked callers are not
    /// left without a listener.
    #[inline(always)]
    pub(super) fn take<T>(&mut self, call: u32, take: Take<T>) -> Option<T> {
        let taken = take(&mut self.calls, call);
        if taken.is_some() {
            self.hand_over();
        }
        taken
    }

    /// If nobody listens, wakes one of those who sleep for want of their own bell.
    #[inline]
    pub(super) fn hand_over(&mut self) {
        if !self.listening
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
        self.release();
    }
}

impl Held<'_> {
    /// Lets others have the lock while `meanwhile` runs.
    pub(super) fn pause(&mut self, meanwhile: impl FnOnce()) {
        self.release();
        meanwhile();
        self.guard = Some(self.attachment.guard());
    }

    #[inline]
    fn release(&mut self) {
        let Some(mut guard) = self.guard.take() else { return };
        if guard.aftermath.is_empty() {
            return;
        }
        let mut aftermath = std::mem::take(&mut guard.aftermath);
        drop(guard);
        aftermath.carry_out();
        // The vectors are used again, if nobody was faster.
        if let Ok(mut guard) = self.attachment.state.try_lock()
            && guard.aftermath.is_empty()
        {
            guard.aftermath = aftermath;
        }
    }
}
