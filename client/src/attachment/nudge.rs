//! Wakes the listener for events that do not come from the daemon: an eventfd next to the daemon's bell; any thread.

use std::{os::fd::AsFd, sync::Arc, task::Wake, time::Duration};

use nix::{
    errno::Errno,
    poll::{PollFd, PollFlags, ppoll},
    sys::{
        eventfd::{EfdFlags, EventFd},
        time::TimeSpec,
    },
};
use sealane_transport::shm::{ClientEar, Doorbell, Woken};

/// Wakes the listener.
pub(super) struct Nudge(EventFd);

impl Nudge {
    pub(super) fn new() -> nix::Result<Self> {
        EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK).map(Self)
    }

    /// Sleeps until the daemon rings or hangs up, another client rings `bell`, somebody nudges, a signal comes, or the time is over.
    pub(super) fn listen(&self, ear: &ClientEar, bell: Option<&Doorbell>, timeout: Option<Duration>) -> Woken {
        // A duration that the kernel's clock cannot hold is as good as none.
        let timeout = timeout.filter(|timeout| timeout.as_secs() < u64::from(u32::MAX)).map(TimeSpec::from_duration);
        // Without a bell, the nudge twice.
        let third = bell.map_or(self.0.as_fd(), Doorbell::as_fd);
        let mut polled = [ear.as_fd(), self.0.as_fd(), third].map(|fd| PollFd::new(fd, PollFlags::POLLIN));
        match ppoll(&mut polled, timeout, None) {
            Ok(0) => Woken::TimedOut,
            Ok(_) => {
                let [heard, nudged, rung] = polled.map(|fd| fd.any().unwrap_or(true));
                if let (true, Some(bell)) = (rung, bell) {
                    bell.hush();
                }
                if nudged {
                    // It says that there was a nudge, or that another thread has taken it.
                    let _ = self.0.read();
                }
                if heard { now(ear) } else { Woken::Rung }
            }
            Err(Errno::EINTR) => Woken::Rung,
            // These descriptors are ours and open: without them nothing is heard again.
            Err(_) => Woken::HungUp,
        }
    }
}

/// What the daemon has to say, without waiting.
pub(super) fn now(ear: &ClientEar) -> Woken {
    ear.wait(Some(Duration::ZERO)).unwrap_or(Woken::HungUp)
}

impl Wake for Nudge {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        // A counter that is full has nudged before.
        let _ = self.0.write(1);
    }
}
