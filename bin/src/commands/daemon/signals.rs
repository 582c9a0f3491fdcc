//! The signals that the daemon handles, as a descriptor of the control thread. They are blocked before any other thread starts, so
//! that no thread is interrupted by them.

use std::os::fd::{AsFd, BorrowedFd};

use nix::errno::Errno;
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use sealane_runtime::WithRemedy;

use crate::Failure;

/// What the sender of a signal wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Wish {
    Stop,
    /// Reread the endpoint map and the credentials.
    Reload,
    /// Start the next daemon, which takes over.
    Replace,
}

const MEANINGS: [(Signal, Wish); 4] = [
    (Signal::SIGTERM, Wish::Stop),
    (Signal::SIGINT, Wish::Stop),
    (Signal::SIGHUP, Wish::Reload),
    (Signal::SIGUSR2, Wish::Replace),
];

/// Signals that have arrived and were not taken yet.
#[derive(Debug)]
pub(super) struct Signals(SignalFd);

impl Signals {
    /// From now on, signals wait here, also for threads that are started later. SIGXFSZ is blocked and never read: a file that exceeds
    /// RLIMIT_FSIZE, such as the memory of a client, is an error of the call that makes it.
    ///
    /// # Errors
    /// The kernel refuses.
    pub(super) fn take() -> Result<Signals, Failure> {
        let set: SigSet = MEANINGS.iter().map(|(signal, _)| *signal).collect();
        let refused = |error: Errno| Failure::work(format!("signals cannot be set up ({})", WithRemedy(&error.into())));
        let mut blocked = set;
        blocked.add(Signal::SIGXFSZ);
        blocked.thread_block().map_err(refused)?;
        SignalFd::with_flags(&set, SfdFlags::SFD_NONBLOCK | SfdFlags::SFD_CLOEXEC).map(Signals).map_err(refused)
    }

    /// The next wish, if one waits. Equal signals that arrive before they are taken count as one.
    pub(super) fn next(&self) -> Option<Wish> {
        let signal = self.0.read_signal().ok().flatten()?;
        let is = |known: Signal| known as u32 == signal.ssi_signo;
        MEANINGS.iter().find(|(known, _)| is(*known)).map(|(_, wish)| *wish)
    }
}

impl AsFd for Signals {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::sys::signal::raise;

    #[test]
    fn signals_wait_for_the_thread_that_took_them() {
        std::thread::spawn(|| {
            let signals = Signals::take().unwrap();
            assert_eq!(signals.next(), None);
            for (signal, wish) in MEANINGS {
                raise(signal).unwrap();
                assert_eq!(signals.next(), Some(wish), "{signal}");
            }
            assert_eq!(signals.next(), None);
        })
        .join()
        .unwrap();
    }
}
