//! Loss of the daemon, and reattaching: when a daemon dies, every call ends with Unavailable, and the next call attaches again.
//! A process that another one has replaced, or whose socket is another job's by now, does not attach again.
//! Runs on the callers' threads; at most one attempt every `REATTACH_INTERVAL`.
//!
//! A draining daemon announces it. From then on, new calls wait for the next daemon while calls in flight continue; a call
//! waits until its deadline, and at most for `Attach::restart_timeout`.

use std::{
    cell::Cell,
    sync::{PoisonError, atomic::Ordering},
    thread,
    time::{Duration, Instant},
};

use sealane_transport::{
    Code, Error,
    interrupt::is_interrupted,
    shm::{Woken, attach::AttachError},
};

use super::{Attachment, Held, Line, Link, State, dropped, nudge, submit::down};
use crate::{
    attach,
    clock::{BEHIND_MAX, Tick},
    limits::{LIFE_INTERVAL, REATTACH_INTERVAL},
};

thread_local! {
    /// This thread must not wait.
    static AT_ONCE: Cell<bool> = const { Cell::new(false) };
}

/// True if this thread must not wait, since others wait for its work.
pub(super) fn is_at_once() -> bool {
    AT_ONCE.get()
}

/// Does work that others wait for: calls made in it do not wait in this thread. While a daemon is being restarted they fail; for room
/// in a ring they wait in this process.
pub(crate) fn at_once<T>(work: impl FnOnce() -> T) -> T {
    struct Before(bool);
    impl Drop for Before {
        fn drop(&mut self) {
            AT_ONCE.set(self.0);
        }
    }
    let _before = Before(AT_ONCE.replace(true));
    work()
}

impl Attachment {
    /// The state with a link that is up, as far as known, and takes new calls; attaches again if it was lost.
    /// After a drain it waits for the daemon, at most for `timeout` from `now`, when the call was made.
    ///
    /// # Errors
    /// InvalidArgument in a forked child, Unavailable if there is no daemon.
    #[inline]
    pub(super) fn up(&self, now: Tick, timeout: Option<Duration>) -> Result<Held<'_>, Error> {
        self.check_fork()?;
        let mut held = self.lock();
        held.check_life(now);
        if held.takes_calls() {
            return Ok(held);
        }
        drop(held);
        self.next_daemon(now, timeout)
    }

    /// True if a daemon that drains or has drained is expected back.
    pub(crate) fn awaits_restart(&self) -> bool {
        self.lock().awaits_restart()
    }

    /// How many daemons have drained and gone so far, for [`ended_by_restart`](Self::ended_by_restart).
    pub(crate) fn restarts(&self) -> u64 {
        self.restarts.load(Ordering::Relaxed)
    }

    /// True if a call may have ended by a drain, and may be made again: a drained daemon has gone since `restarts` was read, before
    /// the call, or one drains or is expected back. (Another call may have attached again first, unnoticed.)
    pub(crate) fn ended_by_restart(&self, restarts: u64) -> bool {
        self.restarts() != restarts || self.awaits_restart()
    }

    #[cold]
    fn next_daemon(&self, now: Tick, timeout: Option<Duration>) -> Result<Held<'_>, Error> {
        if self.settings.attaches_in_background() {
            return self.wake_who_attaches();
        }
        let called = Instant::now();
        let patience = self.settings.restart_timeout;
        // A call may have waited for a daemon before; a coarse clock must not end it early.
        let left = |timeout| Some(now.after(timeout).from(Tick::now().before(BEHIND_MAX))?.min(timeout));
        let left = timeout.and_then(left);
        let patience = left.map_or(patience, |left| left.min(patience));
        let patience = if is_at_once() { Duration::ZERO } else { patience };
        loop {
            let error = match self.attach_again() {
                Ok(mut held) => {
                    held.extra().waited = called.elapsed();
                    return Ok(held);
                }
                Err(error) => error,
            };
            // Fail immediately if waiting for a restart cannot help, or none was announced.
            let may_wait = called.elapsed() < patience && self.awaits_restart() && !is_interrupted();
            if error.code() != Code::Unavailable || !may_wait {
                return Err(error);
            }
            self.pause(REATTACH_INTERVAL.min(patience.saturating_sub(called.elapsed())));
        }
    }

    /// Pauses for that time, or until the draining daemon is gone.
    fn pause(&self, time: Duration) {
        let ear = match &self.lock().line {
            Line::Up(link) => Some(link.ear.clone()),
            Line::Lost(_) | Line::Ended(_) => None,
        };
        match ear {
            Some(ear) => drop(ear.wait_for_end(time)),
            None => thread::sleep(time),
        }
    }

    /// Has the driver attach again, unless a link is up after all.
    fn wake_who_attaches(&self) -> Result<Held<'_>, Error> {
        let mut held = self.lock();
        held.listen_to_draining();
        match &held.line {
            Line::Up(link) if link.draining => Err(drains(link)),
            Line::Up(_) => Ok(held),
            Line::Ended(error) => Err(error.clone()),
            Line::Lost(error) => {
                let error = error.clone();
                held.wake_driver();
                Err(error)
            }
        }
    }

    pub(super) fn attach_again(&self) -> Result<Held<'_>, Error> {
        self.attach_by(true)
    }

    /// Attaches again, for a caller or for the republisher, whose failed attempts do not delay a caller's own.
    pub(super) fn attach_by(&self, caller: bool) -> Result<Held<'_>, Error> {
        let attached = self.attach_alone(caller);
        // The outcome is handled once others may attach: it runs others' code, which may need a daemon too.
        match attached {
            Ok(mut held) => {
                held.extra().attaches = false;
                Ok(held)
            }
            Err(error) => {
                drop(self.lock());
                Err(error)
            }
        }
    }

    /// One thread tries; the others wait for its outcome.
    fn attach_alone(&self, caller: bool) -> Result<Held<'_>, Error> {
        let called = Instant::now();
        let mut attempts = self.attaching.lock().unwrap_or_else(PoisonError::into_inner);
        let lock = || {
            let mut held = self.lock();
            held.extra().attaches = true;
            held
        };
        let mut held = lock();
        held.listen_to_draining();
        let lost = match &held.line {
            Line::Up(link) if link.draining => return Err(drains(link)),
            Line::Up(_) => return Ok(held),
            Line::Ended(error) => return Err(error.clone()),
            Line::Lost(error) => error.clone(),
        };
        drop(held);
        // An attempt that ended while this one waited counts as its own.
        if let Some(last) = attempts.last.filter(|last| *last + REATTACH_INTERVAL > called) {
            return Err(also(lost, &format!("reattaching was last tried {:?} ago", last.elapsed())));
        }
        attempts.count += 1;
        // Calls wait for this, so the pages are mapped later, when used.
        let connected = attach::connect(&self.settings, false);
        if caller {
            attempts.last = Some(Instant::now());
        }
        let (attached, daemon) = match connected {
            Ok(connected) => connected,
            Err(refused) => {
                let is_final = matches!(refused, AttachError::OtherJob { .. });
                let error = attach::told(&self.settings, refused);
                if is_final {
                    let mut held = lock();
                    if matches!(held.line, Line::Lost(_)) {
                        held.end(Line::Ended(error.clone()), true);
                        held.end_expecting();
                    }
                }
                return Err(match error.code() {
                    Code::Unavailable => also(lost, &format!("reattaching failed: {error}")),
                    // A daemon was found, so the failure has another cause.
                    _ => error,
                });
            }
        };
        let freed = self.me.clone();
        let marks = (&self.mark, &(freed as _));
        let link = Box::new(Link::new(attempts.count, attached, daemon, marks, self.settings.backlog));
        let mut held = lock();
        if let Line::Ended(error) = &held.line {
            return Err(error.clone());
        }
        held.line = Line::Up(link);
        held.end_expecting();
        let waker = held.listening.waker.take();
        held.aftermath.wakers.extend(waker);
        held.note();
        Ok(held)
    }
}

impl Held<'_> {
    /// Checks now and then whether the daemon lives: for threads that poll the rings without sleeping.
    #[inline]
    pub(super) fn check_life(&mut self, now: Tick) {
        // A listening thread hears it anyway, and must not lose a ring of the bell to this check.
        if now >= self.next_check && !self.listening.thread {
            self.next_check = now.after(LIFE_INTERVAL);
            // A drain is announced in the rings, and must be known before the daemon stops taking calls.
            self.pump();
            self.ask_for_life();
        }
    }

    /// True if new calls may be submitted.
    #[inline]
    pub(super) fn takes_calls(&self) -> bool {
        matches!(&self.line, Line::Up(link) if !link.draining)
    }

    pub(super) fn awaits_restart(&self) -> bool {
        match &self.line {
            Line::Up(link) => link.draining,
            Line::Lost(_) => self.restart_until.is_some_and(|until| Instant::now() < until),
            Line::Ended(_) => false,
        }
    }

    /// Takes in what a draining daemon says, and notices its end.
    fn listen_to_draining(&mut self) {
        if matches!(&self.line, Line::Up(link) if link.draining) {
            self.pump();
            self.chores();
            // A listener hears it anyway, as in `check_life`.
            if !self.listening.thread {
                self.ask_for_life();
            }
        }
    }

    #[cold]
    fn ask_for_life(&mut self) {
        let Line::Up(link) = &self.line else { return };
        if nudge::now(&link.ear) == Woken::HungUp {
            self.hung_up();
        } else if self.listening.runtime {
            // The ring that was consumed may have been for the listener.
            self.have_all_rung_for();
        }
    }

    /// The daemon has closed the socket, or died: what it wrote before counts.
    pub(super) fn hung_up(&mut self) {
        self.pump();
        let Line::Up(link) = &self.line else { return };
        if let Some(pid) = link.ear.successor() {
            let reason = format!(
                "process {pid} has replaced this one as {}, as it asked to, and this process attaches again only if told to",
                self.attachment.task()
            );
            let error = Error::unavailable(&link.daemon, reason);
            // The daemon may still use this process's memory.
            return self.end(Line::Ended(error), false);
        }
        let drained = matches!(&self.line, Line::Up(link) if link.draining);
        self.give_up(true, if drained { "it has drained" } else { "it is gone, or has closed the connection" });
    }

    /// Gives the link up because the daemon has broken the protocol.
    #[cold]
    pub(super) fn lose(&mut self, fault: &str) {
        self.give_up(false, fault);
    }

    /// Gives the link up: every call in flight ends with Unavailable, and the next one attaches again.
    fn give_up(&mut self, gone: bool, reason: &str) {
        let Line::Up(link) = &self.line else { return };
        if self.closing {
            return self.end(Line::Ended(dropped()), gone);
        }
        let (error, drained) = (Error::unavailable(&link.daemon, reason), link.draining);
        if drained {
            self.attachment.restarts.fetch_add(1, Ordering::Relaxed);
        }
        self.restart_until = drained.then(|| Instant::now() + self.attachment.settings.restart_timeout);
        self.end(Line::Lost(error), gone);
    }

    /// Replaces the link by `line`, whose error ends every call, and wakes every sleeper. A daemon that is not `gone` keeps what it
    /// was lent.
    pub(super) fn end(&mut self, line: Line, gone: bool) {
        self.settle_published();
        let error = down(&line);
        let (nudge, is_closing) = (self.attachment.nudge_waker.clone(), self.closing);
        let State { line: current, calls, aftermath, parked, driver, published, listening, .. } = &mut **self;
        if let Line::Up(mut link) = std::mem::replace(current, line) {
            // A forked child may hold the socket open, and a listener may for a while.
            link.ear.hang_up();
            link.direct.leave(is_closing, &error, &mut aftermath.wakers);
            link.waiting.spend(aftermath);
            aftermath.link = Some(link);
        }
        calls.end_all(gone, || error.clone(), aftermath);
        published.lose(&mut aftermath.spent);
        aftermath.wakers.extend(parked.iter().map(|(_, waker)| waker.clone()));
        aftermath.wakers.extend(driver.waker());
        aftermath.wakers.extend(published.waker());
        if listening.is_there() {
            aftermath.wakers.push(nudge);
        }
        aftermath.wakers.extend(listening.waker.take());
        self.attachment.channels.changes(false);
        self.note();
    }
}

fn drains(link: &Link) -> Error {
    Error::unavailable(&link.daemon, "it drains")
}

/// An Unavailable error with a further reason.
fn also(error: Error, more: &str) -> Error {
    match error {
        Error::Unavailable { peer, reason } => Error::Unavailable { peer, reason: format!("{reason}; {more}").into() },
        other => other,
    }
}
