//! Attending: a thread that waits for a future polls the rings itself, in place of the driver, whose every answer would cost
//! one more wake-up. Runs on the callers' threads; bounded by the time that they give.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll, Wake, Waker},
    thread::{self, Thread},
    time::{Duration, Instant},
};

use super::{Attachment, Held, Line, nudge::Nudge, wait::Waiter};
use crate::limits::SWEEP_INTERVAL;

/// Who sleeps until the bell rings, so that the daemon and other clients must ring it.
#[derive(Default)]
pub(super) struct Listening {
    /// A thread does; the others park.
    pub(super) thread: bool,
    /// That thread waits for nothing itself, and answers other clients.
    pub(super) is_host: bool,
    /// Other clients know that, and ring only for urgent work.
    pub(super) is_idle: bool,
    /// How often a caller has slept so far.
    pub(super) naps: u64,
    /// What [`naps`](Self::naps) was when the host looked.
    naps_known: u64,
    /// A task of a runtime does.
    pub(super) runtime: bool,
    /// Makes that task check whether it still does.
    pub(super) waker: Option<Waker>,
    /// There is such a task.
    pub(super) has_runtime: bool,
    /// Such a task has panicked, since its runtime lacks what it needs: there must be no other.
    #[cfg(feature = "tokio")]
    pub(super) has_failed: bool,
}

impl Listening {
    pub(super) fn is_there(&self) -> bool {
        self.thread || self.runtime
    }

    /// True if callers have slept since the last look. Then they listen themselves: a host that listens for them has to wake them.
    pub(super) fn is_for_callers(&mut self) -> bool {
        std::mem::replace(&mut self.naps_known, self.naps) != self.naps
    }

    /// Nobody listens any more; returns whom to tell.
    pub(super) fn end(&mut self) -> Option<Waker> {
        (self.thread, self.runtime, self.is_host, self.is_idle) = (false, false, false, false);
        self.waker.take()
    }
}

/// A thread that waits for a future, and how it is woken.
pub(super) struct Attendant {
    woken: AtomicBool,
    /// It sleeps on the bell, where only a nudge reaches it.
    listening: AtomicBool,
    thread: Thread,
    nudge: Arc<Nudge>,
    /// When it stops waiting; `None` for never.
    until: Option<Instant>,
}

impl Attendant {
    fn new(nudge: Arc<Nudge>, until: Option<Instant>) -> Self {
        let (woken, listening) = (AtomicBool::new(false), AtomicBool::new(false));
        Self { woken, listening, thread: thread::current(), nudge, until }
    }

    pub(super) fn is_woken(&self) -> bool {
        self.woken.load(Ordering::SeqCst)
    }

    pub(super) fn is_late(&self) -> bool {
        self.until.is_some_and(|until| Instant::now() >= until)
    }

    /// How long it may sleep; meanwhile it looks after others' futures.
    pub(super) fn time_left(&self) -> Duration {
        let left = self.until.map(|until| until.saturating_duration_since(Instant::now()));
        left.unwrap_or(SWEEP_INTERVAL).min(SWEEP_INTERVAL)
    }

    /// It is about to listen; false if it was woken.
    pub(super) fn may_listen(&self) -> bool {
        // WOKEN: either this sees that it was woken, or its waker sees that it listens.
        self.listening.store(true, Ordering::SeqCst);
        let may = !self.is_woken();
        self.listening.store(may, Ordering::SeqCst);
        may
    }

    pub(super) fn has_listened(&self) {
        self.listening.store(false, Ordering::SeqCst);
    }
}

impl Wake for Attendant {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        // WOKEN: see `may_listen`.
        self.woken.store(true, Ordering::SeqCst);
        if self.listening.load(Ordering::SeqCst) {
            self.nudge.wake_by_ref();
        } else {
            self.thread.unpark();
        }
    }
}

/// Leaves others' calls to the driver again, however the wait ends.
struct Attending<'a>(&'a Attachment);

impl Drop for Attending<'_> {
    fn drop(&mut self) {
        self.0.lock().attends_no_more();
    }
}

impl Held<'_> {
    /// A thread attends no more.
    pub(super) fn attends_no_more(&mut self) {
        self.attending -= 1;
        if self.attending == 0 && self.watched() > 0 {
            self.wake_driver();
        }
        self.hand_over();
    }
}

impl Attachment {
    /// Waits until `poll` is ready, at most until then; polls at least once.
    pub(crate) fn attend<T>(
        &self,
        until: Option<Instant>,
        mut poll: impl FnMut(&mut Context<'_>) -> Poll<T>,
    ) -> Option<T> {
        let attendant = Arc::new(Attendant::new(self.nudge.clone(), until));
        let waker = Waker::from(attendant.clone());
        let mut context = Context::from_waker(&waker);
        if self.check_fork().is_err() {
            // The lock may be held by a thread that does not exist in this process. Calls fail here.
            return match poll(&mut context) {
                Poll::Ready(value) => Some(value),
                Poll::Pending => None,
            };
        }
        self.lock().attending += 1;
        let _attending = Attending(self);
        loop {
            attendant.woken.store(false, Ordering::SeqCst);
            if let Poll::Ready(value) = poll(&mut context) {
                return Some(value);
            }
            while !attendant.is_woken() {
                if attendant.is_late() {
                    return None;
                }
                self.wait_as(&attendant);
            }
        }
    }

    /// Waits until something has happened that may concern the attendant.
    fn wait_as(&self, attendant: &Attendant) {
        let waiter = Waiter::Attendant(attendant);
        let held = self.spin(waiter);
        if attendant.is_woken() {
            return;
        }
        match held.line {
            Line::Up(_) => drop(self.sleep(held, waiter)),
            // Whoever attaches again, or ends the calls, wakes it.
            Line::Lost(_) | Line::Ended(_) => {
                drop(held);
                thread::park_timeout(attendant.time_left());
            }
        }
    }
}
