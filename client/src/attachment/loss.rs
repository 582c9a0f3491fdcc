//! The end of a link, and the next one: a daemon that is gone ends every call with Unavailable, and the next call attaches
//! again. On the threads of callers; bounded by one attempt every `REATTACH_INTERVAL`.

use std::{sync::PoisonError, time::Instant};

use sealane_transport::{Error, shm::Woken};

use super::{Attachment, Held, Line, Link, State, nudge};
use crate::{
    attach,
    clock::Tick,
    limits::{LIFE_INTERVAL, REATTACH_INTERVAL},
};

impl Attachment {
    /// The state with a link that stands, as far as this side knows; attaches again where it was lost.
    ///
    /// # Errors
    /// InvalidArgument in a forked child, Unavailable if there is no daemon.
    #[inline]
    pub(super) fn up(&self, now: Tick) -> Result<Held<'_>, Error> {
        self.check_fork()?;
        let mut held = self.lock();
        held.check_life(now);
        if matches!(held.line, Line::Up(_)) {
            return Ok(held);
        }
        drop(held);
        self.attach_again()
    }

    #[cold]
    fn attach_again(&self) -> Result<Held<'_>, Error> {
        // One tries, the others wait for what comes of it.
        let called = Instant::now();
        let mut attempts = self.attaching.lock().unwrap_or_else(PoisonError::into_inner);
        let held = self.lock();
        let lost = match &held.line {
            Line::Up(_) => return Ok(held),
            Line::Closed => return Err(Error::unavailable("this attachment", "its task was dropped")),
            Line::Lost(error) => error.clone(),
        };
        drop(held);
        // An attempt that ended while this one waited for it is its own as well.
        if let Some(last) = attempts.last.filter(|last| *last + REATTACH_INTERVAL > called) {
            return Err(also(lost, &format!("attaching again was tried {:?} ago", last.elapsed())));
        }
        attempts.count += 1;
        let connected = attach::connect(&self.settings);
        attempts.last = Some(Instant::now());
        let (attached, daemon) = connected.map_err(|error| also(lost, &format!("attaching again failed: {error}")))?;
        let freed = self.me.clone();
        let link = Box::new(Link::new(attempts.count, attached, daemon, &self.mark, &(freed as _)));
        let mut held = self.lock();
        if matches!(held.line, Line::Closed) {
            return Err(Error::unavailable("this attachment", "its task was dropped"));
        }
        held.line = Line::Up(link);
        Ok(held)
    }
}

impl Held<'_> {
    /// Asks the socket now and then whether the daemon lives: for threads that look at the rings and do not sleep.
    #[inline]
    pub(super) fn check_life(&mut self, now: Tick) {
        // The listener hears it anyway, and a ring that is taken from it would not wake it.
        if now >= self.next_check && !self.listening {
            self.next_check = now.after(LIFE_INTERVAL);
            self.ask_for_life();
        }
    }

    #[cold]
    fn ask_for_life(&mut self) {
        let Line::Up(link) = &self.line else { return };
        if nudge::now(&link.ear) == Woken::HungUp {
            self.hung_up();
        }
    }

    /// The daemon has closed the socket, or died: what it wrote before counts.
    pub(super) fn hung_up(&mut self) {
        self.pump();
        self.give_up(true, "it is gone, or has closed the connection");
    }

    /// The daemon says what no correct one says: gives the link up.
    #[cold]
    pub(super) fn lose(&mut self, fault: &str) {
        self.give_up(false, fault);
    }

    /// Gives the link up: every call under way ends with Unavailable, and the next one attaches again.
    fn give_up(&mut self, gone: bool, reason: &str) {
        let Line::Up(link) = &self.line else { return };
        let error = Error::unavailable(&link.daemon, reason);
        self.end(Line::Lost(error.clone()), gone, || error.clone());
    }

    /// Replaces the link and ends every call. Nobody sleeps through it. A daemon that is not `gone` keeps what it was lent.
    pub(super) fn end(&mut self, line: Line, gone: bool, error: impl Fn() -> Error) {
        let nudge = self.attachment.nudge_waker.clone();
        let State { line: current, calls, aftermath, parked, driver, listening, .. } = &mut **self;
        if let Line::Up(link) = std::mem::replace(current, line) {
            // A forked child may hold the socket open, and so may a listener for a while.
            link.ear.hang_up();
            aftermath.link = Some(link);
        }
        calls.end_all(gone, error, aftermath);
        aftermath.wakers.extend(parked.iter().map(|(_, waker)| waker.clone()));
        aftermath.wakers.extend(driver.waker());
        if *listening {
            aftermath.wakers.push(nudge);
        }
    }
}

/// An Unavailable with one more reason.
fn also(error: Error, more: &str) -> Error {
    match error {
        Error::Unavailable { peer, reason } => Error::Unavailable { peer, reason: format!("{reason}; {more}").into() },
        other => other,
    }
}
