//! Wakes the listener for events that do not come from the daemon: an eventfd next to the daemon's bell; any thread.

use std::{
    os::fd::{AsFd, BorrowedFd},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    task::Wake,
    time::Duration,
};

use nix::{
    errno::Errno,
    poll::{PollFd, PollFlags, ppoll},
    sys::{
        eventfd::{EfdFlags, EventFd},
        time::TimeSpec,
    },
};
use sealane_transport::shm::{ClientEar, Woken};

pub(super) struct Nudge {
    event: EventFd,
}

/// Where other clients ring, as one daemon has provided it: the next provides another.
pub(super) struct Others {
    pub(super) ear: ClientEar,
    /// It is not listened to any more: one of the clients has broken the bell of all.
    deaf: AtomicBool,
}

impl Others {
    pub(super) fn new(ear: ClientEar) -> Self {
        Self { ear, deaf: AtomicBool::new(false) }
    }

    pub(super) fn is_deaf(&self) -> bool {
        self.deaf.load(Ordering::Relaxed)
    }

    pub(super) fn deafen(&self) {
        self.deaf.store(true, Ordering::Relaxed);
    }
}

impl Nudge {
    pub(super) fn new() -> nix::Result<Self> {
        let event = EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK)?;
        Ok(Self { event })
    }

    /// Sleeps until the daemon rings or hangs up, another client of `others` rings, somebody nudges, a signal comes, or the
    /// time is over.
    pub(super) fn listen(&self, ear: &ClientEar, others: Option<&Others>, timeout: Option<Duration>) -> Woken {
        // A duration that the kernel's clock cannot hold counts as none.
        let timeout = timeout.filter(|timeout| timeout.as_secs() < u64::from(u32::MAX)).map(TimeSpec::from_duration);
        let others = others.filter(|others| !others.is_deaf());
        // Without others, the nudge takes two places.
        let third = others.map_or(self.event.as_fd(), |others| others.ear.as_fd());
        let mut polled = [ear.as_fd(), self.event.as_fd(), third].map(|fd| PollFd::new(fd, PollFlags::POLLIN));
        match ppoll(&mut polled, timeout, None) {
            Ok(0) => Woken::TimedOut,
            Ok(_) => {
                let [heard, nudged, rung] = polled.map(|fd| fd.any().unwrap_or(true));
                if let (true, Some(others)) = (rung, others)
                    && now(&others.ear) == Woken::HungUp
                {
                    others.deafen();
                }
                if nudged {
                    // There was a nudge, or another thread has consumed it.
                    let _ = self.event.read();
                }
                if heard { now(ear) } else { Woken::Rung }
            }
            Err(Errno::EINTR) => Woken::Rung,
            // These descriptors are ours and open; if that fails, nothing will be heard again.
            Err(_) => Woken::HungUp,
        }
    }
}

impl AsFd for Nudge {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.event.as_fd()
    }
}

/// What the daemon signals, without waiting.
pub(super) fn now(ear: &ClientEar) -> Woken {
    ear.wait(Some(Duration::ZERO)).unwrap_or(Woken::HungUp)
}

impl Wake for Nudge {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        // If the counter is full, it was nudged before.
        let _ = self.event.write(1);
    }
}
