//! A driver in a tokio runtime: one of its tasks polls the rings when somebody rings, so that futures awaited in that runtime do not
//! cost a wake-up of the [driver](super::driver)'s thread. One per attachment. It ends with the attachment or the runtime, and then leaves
//! the futures to that thread, which meanwhile polls once a second, in case the runtime is kept busy.

use std::{
    future::poll_fn,
    io,
    pin::pin,
    sync::{Arc, atomic::Ordering},
    task::{Context, Poll},
    time::Duration,
};

use sealane_transport::shm::{ClientEar, Woken};
use tokio::{runtime::Handle, task::yield_now, time::sleep};

use super::{
    Attachment, Held, Line,
    link::Link,
    nudge::{Nudge, Others},
    readable::Readable,
    wait::Waiter,
};
use crate::{clock::Tick, limits::SWEEP_INTERVAL};

impl Attachment {
    pub(crate) fn drive_on(&self, runtime: &Handle) {
        if self.check_fork().is_err() {
            return;
        }
        let mut held = self.lock();
        if matches!(held.line, Line::Ended(_)) || held.listening.has_failed || held.listening.has_runtime {
            return;
        }
        held.listening.has_runtime = true;
        held.attending += 1;
        // The thread polls from time to time, in case the runtime does not.
        held.wake_driver();
        drop(held);
        let driver = RuntimeDriver(self.me.upgrade().expect("it is borrowed from its owner"));
        runtime.spawn(async move { driver.run().await });
    }

    /// True while a runtime waits to be rung for; for tests.
    #[cfg(feature = "fuzzing")]
    pub(crate) fn is_heard_in_runtime(&self) -> bool {
        self.lock().listening.runtime
    }
}

/// Leaves futures to the driver when dropped, for example with its runtime.
struct RuntimeDriver(Arc<Attachment>);

impl Drop for RuntimeDriver {
    fn drop(&mut self) {
        if self.0.check_fork().is_err() {
            return;
        }
        let mut held = self.0.lock();
        held.listening.has_runtime = false;
        held.listening.has_failed |= std::thread::panicking();
        held.listening.waker = None;
        self.0.hears_no_more(&mut held, None);
        held.attends_no_more();
    }
}

impl RuntimeDriver {
    async fn run(&self) {
        let mut heard: Option<Heard> = None;
        while let Some(is_up) = self.look(&mut heard) {
            match &heard {
                Some(heard) => self.hear(heard).await,
                // The system has no descriptor for it.
                None if is_up => return,
                None => poll_fn(|context| self.poll_next(context)).await,
            }
        }
    }

    /// Ready unless the daemon is lost and there is no other yet.
    fn poll_next(&self, context: &Context<'_>) -> Poll<()> {
        let mut held = self.0.lock();
        if !matches!(held.line, Line::Lost(_)) {
            return Poll::Ready(());
        }
        held.listening.waker = Some(context.waker().clone());
        Poll::Pending
    }

    /// Takes in what has come; returns whether there is a daemon, `None` once there will be none.
    fn look(&self, heard: &mut Option<Heard>) -> Option<bool> {
        let mut held = self.0.lock();
        held.pump();
        held.chores();
        held.look_after_lanes(Tick::now());
        held.sweep();
        match &held.line {
            Line::Up(link) => {
                if !heard.as_ref().is_some_and(|heard| heard.is_of(link)) {
                    *heard = Heard::of(link, &self.0.nudge).ok();
                }
                Some(true)
            }
            Line::Lost(_) => {
                *heard = None;
                Some(false)
            }
            Line::Ended(_) => None,
        }
    }

    /// Waits until somebody rings, or there is something to do anyway.
    async fn hear(&self, heard: &Heard) {
        let Some(timeout) = self.begin(heard) else { return yield_now().await };
        let mut late = pin!(sleep(timeout));
        let woken = poll_fn(|context| {
            if let Poll::Ready(woken) = heard.poll(context) {
                return Poll::Ready(woken);
            }
            if late.as_mut().poll(context).is_ready() {
                return Poll::Ready(Woken::TimedOut);
            }
            let mut held = self.0.lock();
            if !held.listening.is_there() {
                // A thread that listened meanwhile has also announced that nobody listens.
                return Poll::Ready(Woken::TimedOut);
            }
            held.listening.waker = Some(context.waker().clone());
            Poll::Pending
        });
        let woken = woken.await;
        let mut held = self.0.lock();
        held.listening.waker = None;
        self.0.hears_no_more(&mut held, Some(heard.serial));
        if woken == Woken::Rung && held.listening.thread {
            // The consumed ring was for that thread, too, and comes only once.
            let nudge = self.0.nudge_waker.clone();
            held.aftermath.wakers.push(nudge);
        }
        if woken == Woken::HungUp && matches!(&held.line, Line::Up(link) if link.serial == heard.serial) {
            held.hung_up();
        }
    }

    /// Has itself rung for, and returns after what time at the latest; `None` if something has come meanwhile.
    fn begin(&self, heard: &Heard) -> Option<Duration> {
        let mut held = self.0.lock();
        match &held.line {
            Line::Up(link) if link.serial == heard.serial => {}
            _ => return None,
        }
        // If a thread listens, it is rung for already.
        if !held.listening.thread {
            held.listening.runtime = self.0.may_be_rung_for(&mut held, Waiter::Driver);
            if !held.listening.runtime {
                self.0.is_awake(&held);
                return None;
            }
        }
        let due = [held.look_again(), held.lanes_due(Waiter::Driver), Some(SWEEP_INTERVAL)];
        due.into_iter().flatten().min()
    }
}

impl Attachment {
    /// The runtime does not wait for the bell any more; the next link has its own bell.
    fn hears_no_more(&self, held: &mut Held<'_>, serial: Option<u64>) {
        if std::mem::take(&mut held.listening.runtime) && !held.listening.thread {
            self.asleep.store(false, Ordering::SeqCst);
            if let Line::Up(link) = &held.line
                && serial.is_none_or(|serial| serial == link.serial)
            {
                link.awake();
            }
        }
    }
}

/// Where one daemon rings, and the clients that it has given lanes to.
struct Heard {
    serial: u64,
    ear: Arc<ClientEar>,
    others: Option<Arc<Others>>,
    daemon: Readable,
    clients: Option<Readable>,
    nudged: Readable,
}

impl Heard {
    fn of(link: &Link, nudge: &Nudge) -> io::Result<Heard> {
        let (ear, others) = (link.ear.clone(), link.direct.ear().filter(|others| !others.is_deaf()));
        let clients = others.as_ref().map(|others| Readable::of(&others.ear)).transpose()?;
        Ok(Heard {
            serial: link.serial,
            daemon: Readable::of(&*ear)?,
            nudged: Readable::of(nudge)?,
            ear,
            others,
            clients,
        })
    }

    fn is_of(&self, link: &Link) -> bool {
        let others = link.direct.ear().filter(|others| !others.is_deaf());
        let is_same = match (&self.others, &others) {
            (Some(own), Some(others)) => Arc::ptr_eq(own, others),
            (own, others) => own.is_none() && others.is_none(),
        };
        self.serial == link.serial && is_same
    }

    /// Ready once somebody has rung since the last time, or nudged, which is no ring.
    fn poll(&self, context: &mut Context<'_>) -> Poll<Woken> {
        if self.daemon.has_news(context) {
            return Poll::Ready(self.ear.take_rings());
        }
        if let (Some(clients), Some(others)) = (&self.clients, &self.others)
            && clients.has_news(context)
        {
            if others.ear.take_rings() == Woken::HungUp {
                others.deafen();
            }
            return Poll::Ready(Woken::Rung);
        }
        // A listening thread reads it, and is not kept from that.
        if self.nudged.has_news(context) { Poll::Ready(Woken::TimedOut) } else { Poll::Pending }
    }
}
