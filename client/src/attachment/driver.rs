//! The driver: a thread that polls the rings for calls awaited as futures, since an executor's threads must not sleep
//! here, unless a thread [attends](super::attend) to them. One per attachment, started by the first future that has to wait; it ends with
//! the attachment.

use std::{
    sync::Arc,
    task::{Poll, Wake, Waker},
    thread::{self, Thread},
};

use sealane_transport::Error;

use super::{Attachment, Held, Line, Take, wait::Waiter};
use crate::{
    clock::Tick,
    limits::{GRACE, HOST_PAUSE, REATTACH_INTERVAL, REATTACH_PAUSE_MAX, SWEEP_INTERVAL},
};

/// The driver as callers see it.
#[derive(Default)]
pub(super) struct Driver {
    thread: Option<Thread>,
    /// It has nothing to do and must be woken.
    idle: bool,
    /// When it next looks for calls past their deadlines.
    sweep: Option<Tick>,
    /// Wakers of those who wait for a daemon that is being restarted.
    expecting: Vec<Waker>,
}

impl Driver {
    /// What wakes the driver, if it is idle.
    pub(super) fn waker(&mut self) -> Option<Waker> {
        let idle = std::mem::take(&mut self.idle);
        self.thread.clone().filter(|_| idle).map(|thread| Waker::from(Arc::new(Resume(thread))))
    }

    /// True if it sleeps where it can be woken.
    pub(super) fn is_idle(&self) -> bool {
        self.idle
    }

    /// True if it exists.
    pub(super) fn is_there(&self) -> bool {
        self.thread.is_some()
    }

    /// There is no driver and never will be: the caller polls itself.
    #[cfg(any(test, feature = "fuzzing"))]
    pub(super) fn is_the_caller(&mut self) {
        (self.thread, self.idle) = (Some(thread::current()), false);
    }

    /// It sleeps, and is to be woken when there is work.
    pub(super) fn rests(&mut self) {
        self.idle = true;
    }

    /// True if somebody waits for a daemon that is being restarted.
    pub(super) fn is_expecting(&self) -> bool {
        !self.expecting.is_empty()
    }
}

pub(super) struct Resume(pub(super) Thread);

impl Wake for Resume {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

impl Attachment {
    /// A call's outcome; else has `waker` woken when it has ended.
    ///
    /// # Errors
    /// InvalidArgument in a forked child, ResourceExhausted if no thread can be started to wait for it.
    pub(crate) fn poll<T>(&self, call: u32, take: Take<T>, waker: &Waker) -> Poll<Result<T, Error>> {
        self.poll_as(call, take, waker, true)
    }

    /// [`poll`](Self::poll) for a send whose end nobody waits for: a failure wakes at once, a release only when
    /// somebody polls the rings for another reason.
    pub(crate) fn poll_aside<T>(&self, call: u32, take: Take<T>, waker: &Waker) -> Poll<Result<T, Error>> {
        self.poll_as(call, take, waker, false)
    }

    fn poll_as<T>(&self, call: u32, take: Take<T>, waker: &Waker, is_awaited: bool) -> Poll<Result<T, Error>> {
        if let Err(error) = self.check_fork() {
            return Poll::Ready(Err(error));
        }
        let mut held = self.lock();
        held.pump();
        if let Some(taken) = held.take(call, take) {
            return Poll::Ready(Ok(taken));
        }
        held.chores();
        let state = &mut *held;
        state.calls.wake_at_end(call, waker, is_awaited, &mut state.aftermath);
        // A fault in the chores may just have ended it.
        if let Some(taken) = held.take(call, take) {
            return Poll::Ready(Ok(taken));
        }
        if held.calls.watched_releases() > 0 {
            held.have_all_rung_for();
        }
        if held.attending > 0 || !is_awaited {
            return Poll::Pending;
        }
        if held.driver.thread.is_none() {
            match self.start_driver() {
                Ok(thread) => held.driver.thread = Some(thread),
                Err(error) => {
                    let is_answered = held.calls.is_answered(call);
                    drop(held);
                    // Nobody asks for it any more.
                    self.forsake(call, is_answered);
                    let reason = format!("a thread that waits for futures cannot be started: {error}");
                    return Poll::Ready(Err(Error::full("the system's threads", reason)));
                }
            }
        }
        let state = &mut *held;
        state.aftermath.wakers.extend(state.driver.waker());
        Poll::Pending
    }

    /// Ready unless a daemon is being restarted: `waker` is woken when the next one is there, or is not waited for any more.
    pub(crate) fn poll_daemon(&self, waker: &Waker) -> Poll<()> {
        if self.check_fork().is_err() { Poll::Ready(()) } else { self.lock().poll_daemon(waker) }
    }

    pub(super) fn start_driver(&self) -> std::io::Result<Thread> {
        let attachment = self.me.upgrade().expect("it is borrowed from its owner");
        let driver = thread::Builder::new().name("sealane-client".into()).spawn(move || attachment.drive())?;
        Ok(driver.thread().clone())
    }

    fn drive(&self) {
        let mut pause = REATTACH_INTERVAL;
        loop {
            let mut held = self.spin(Waiter::Driver);
            held.driver.idle = false;
            if !held.awaits_restart() {
                held.end_expecting();
            }
            match &held.line {
                Line::Ended(_) => return,
                Line::Lost(_) if self.settings.attaches_in_background() || held.driver.is_expecting() => {
                    held.driver.idle = true;
                    drop(held);
                    match self.attach_again() {
                        Ok(_) => pause = REATTACH_INTERVAL,
                        Err(_) => {
                            thread::park_timeout(pause);
                            pause = (2 * pause).min(REATTACH_PAUSE_MAX);
                        }
                    }
                    continue;
                }
                Line::Lost(_) | Line::Up(_) => {}
            }
            if held.has_unplaced() {
                drop(held);
                self.place_waiting();
                held = self.lock();
            }
            held.look_after_lanes(Tick::now());
            if held.wants_lanes() {
                drop(held);
                self.ask_for_lane();
                continue;
            }
            if held.listening.has_runtime {
                // The runtime polls, unless it is kept busy.
                let was_up = matches!(held.line, Line::Up(_));
                held.chores();
                held.check_life(Tick::now());
                held.sweep();
                if was_up && !matches!(held.line, Line::Up(_)) {
                    continue;
                }
                held.driver.rests();
                let placing = if held.has_unplaced() { held.look_again() } else { None };
                let due = [held.lanes_due(Waiter::Driver), placing, Some(SWEEP_INTERVAL)];
                let due = due.into_iter().flatten().min().unwrap_or(SWEEP_INTERVAL);
                drop(held);
                thread::park_timeout(due);
                continue;
            }
            if held.has_nothing_to_drive() {
                let mut due = held.lanes_due(Waiter::Driver);
                if held.has_channels() {
                    if !held.listening.is_for_callers() {
                        drop(self.sleep(held, Waiter::Host));
                        continue;
                    }
                    due = Some(HOST_PAUSE);
                }
                held.driver.rests();
                held.hand_over();
                drop(held);
                match due {
                    Some(due) => thread::park_timeout(due),
                    None => thread::park(),
                }
                continue;
            }
            drop(self.sleep(held, Waiter::Driver));
        }
    }
}

impl Attachment {
    /// Has the driver poll for a call over a channel, unless other threads do; it must look after the channels when the call's deadline passes.
    ///
    /// # Errors
    /// ResourceExhausted if no thread can be started to wait for it.
    pub(crate) fn watch_channel(&self, deadline: Tick, is_awaited: bool) -> Result<(), Error> {
        let mut held = self.lock();
        // A listener may wait for less than this call.
        held.have_all_rung_for();
        if held.attending > 0 || !is_awaited {
            return Ok(());
        }
        if held.driver.thread.is_none() {
            held.driver.thread = Some(self.start_driver().map_err(|error| {
                let reason = format!("a thread that waits for futures cannot be started: {error}");
                Error::full("the system's threads", reason)
            })?);
        }
        let state = &mut *held;
        state.aftermath.wakers.extend(state.driver.waker());
        held.attend_lanes(deadline);
        Ok(())
    }
}

impl Held<'_> {
    /// True if the driver has no call to poll for.
    pub(super) fn has_nothing_to_drive(&self) -> bool {
        self.watched() == 0 && !self.has_backlog() && !self.driver.is_expecting()
    }

    pub(super) fn poll_daemon(&mut self, waker: &Waker) -> Poll<()> {
        if self.takes_calls() || !self.awaits_restart() {
            return Poll::Ready(());
        }
        if !self.driver.expecting.iter().any(|known| known.will_wake(waker)) {
            self.driver.expecting.push(waker.clone());
        }
        self.wake_driver();
        Poll::Pending
    }

    /// Wakes those who wait for a daemon: they need not wait any more.
    pub(super) fn end_expecting(&mut self) {
        let state = &mut **self;
        state.aftermath.wakers.append(&mut state.driver.expecting);
    }

    /// Makes sure that the driver runs. If no thread can be started, waiting calls go on when somebody polls the rings.
    pub(super) fn wake_driver(&mut self) {
        if self.driver.thread.is_none() {
            self.driver.thread = self.attachment.start_driver().ok();
        }
        let state = &mut **self;
        state.aftermath.wakers.extend(state.driver.waker());
    }

    /// Ends queued calls at their deadlines and, once a second, awaited calls that the daemon should have ended long ago.
    pub(super) fn sweep(&mut self) {
        let now = Tick::now();
        self.expire_backlog(now);
        if self.driver.sweep.is_some_and(|sweep| now < sweep) {
            return;
        }
        self.driver.sweep = Some(now.after(SWEEP_INTERVAL));
        self.tell_elsewhere(false);
        let error = self.silent();
        let state = &mut **self;
        state.calls.sweep(now.before(GRACE), || error.clone(), &mut state.aftermath);
    }
}
