//! The descriptors that the control thread waits for, in one epoll set.

use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use sealane_runtime::WithRemedy;

use crate::Failure;

/// Most events from one wait; the rest comes with the next.
const EVENTS_PER_WAIT: usize = 64;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ready {
    /// A client wants to connect.
    Listener,
    Signals,
    /// The directory of the endpoint map or of credentials changed.
    Files,
    /// The thread that rereads files has finished.
    Reread,
    /// A connection, by its number, can proceed or is broken.
    Connection(u64),
    /// The process of a connection is gone.
    Process(u64),
}

/// The fixed descriptors, in contrast to connections and processes.
const FIXED: [Ready; 4] = [Ready::Listener, Ready::Signals, Ready::Files, Ready::Reread];

impl Ready {
    fn token(self) -> u64 {
        match self {
            Ready::Listener => 0,
            Ready::Signals => 1,
            Ready::Files => 2,
            Ready::Reread => 3,
            Ready::Connection(number) => FIXED.len() as u64 + 2 * number,
            Ready::Process(number) => FIXED.len() as u64 + 2 * number + 1,
        }
    }

    fn of(token: u64) -> Ready {
        match token.checked_sub(FIXED.len() as u64) {
            None => FIXED[token as usize],
            Some(rest) if rest.is_multiple_of(2) => Ready::Connection(rest / 2),
            Some(rest) => Ready::Process(rest / 2),
        }
    }
}

/// What to wait for; a broken connection is always reported.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum For {
    Reading,
    Writing,
    HangUp,
}

impl For {
    fn flags(self) -> EpollFlags {
        match self {
            For::Reading => EpollFlags::EPOLLIN | EpollFlags::EPOLLRDHUP,
            For::Writing => EpollFlags::EPOLLOUT | EpollFlags::EPOLLRDHUP,
            For::HangUp => EpollFlags::EPOLLRDHUP,
        }
    }
}

#[derive(Debug)]
pub(super) struct Readiness(Epoll);

impl Readiness {
    ///
    /// # Errors
    /// The system has no descriptors left.
    pub(super) fn new() -> Result<Readiness, Failure> {
        Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC).map(Readiness).map_err(failed)
    }

    /// Watches a descriptor from now on.
    ///
    /// # Errors
    /// The system has no memory or watches left.
    pub(super) fn add(&self, descriptor: impl AsFd, wanted: For, ready: Ready) -> Result<(), Errno> {
        self.0.add(descriptor, EpollEvent::new(wanted.flags(), ready.token()))
    }

    /// Changes what is watched on a descriptor that was added.
    pub(super) fn change(&self, descriptor: impl AsFd, wanted: For, ready: Ready) {
        let mut event = EpollEvent::new(wanted.flags(), ready.token());
        self.0.modify(descriptor, &mut event).expect("a descriptor that was added can be changed");
    }

    /// Stops watching a descriptor, if it was added.
    pub(super) fn remove(&self, descriptor: impl AsFd) {
        let _ = self.0.delete(descriptor);
    }

    /// Waits until something is ready, or until the given time.
    ///
    /// # Errors
    /// The system cannot wait: a bug.
    pub(super) fn wait(&self, until: Option<Instant>) -> Result<Vec<Ready>, Failure> {
        let mut events = [EpollEvent::empty(); EVENTS_PER_WAIT];
        let timeout =
            until.map_or(EpollTimeout::NONE, |until| timeout(until.saturating_duration_since(Instant::now())));
        match self.0.wait(&mut events, timeout) {
            Ok(count) => Ok(events[..count].iter().map(|event| Ready::of(event.data())).collect()),
            Err(Errno::EINTR) => Ok(Vec::new()),
            Err(error) => Err(failed(error)),
        }
    }
}

/// In whole milliseconds, rounded up: otherwise the last fraction of one would be spent spinning.
fn timeout(duration: Duration) -> EpollTimeout {
    let milliseconds = duration.as_nanos().div_ceil(1_000_000);
    EpollTimeout::try_from(milliseconds).unwrap_or(EpollTimeout::MAX)
}

fn failed(error: Errno) -> Failure {
    Failure::work(format!("the daemon cannot wait for its clients ({})", WithRemedy(&error.into())))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::os::unix::net::UnixStream;

    #[test]
    fn tokens_name_their_descriptors() {
        let all = [Ready::Connection(0), Ready::Process(0)];
        for ready in FIXED.into_iter().chain(all).chain([Ready::Connection(9), Ready::Process(1 << 60)]) {
            assert_eq!(Ready::of(ready.token()), ready);
        }
    }

    #[test]
    fn times_are_rounded_up() {
        assert_eq!(timeout(Duration::ZERO), EpollTimeout::ZERO);
        assert_eq!(timeout(Duration::from_nanos(1)), EpollTimeout::from(1_u8));
        assert_eq!(timeout(Duration::from_millis(7)), EpollTimeout::from(7_u8));
        assert_eq!(timeout(Duration::MAX), EpollTimeout::MAX);
    }

    #[test]
    fn what_is_waited_for_is_heard_of() {
        let readiness = Readiness::new().unwrap();
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        let ready = Ready::Connection(5);
        readiness.add(&ours, For::HangUp, ready).unwrap();
        theirs.write_all(b"x").unwrap();
        assert_eq!(readiness.wait(Some(Instant::now())).unwrap(), []);
        readiness.change(&ours, For::Reading, ready);
        assert_eq!(readiness.wait(None).unwrap(), [ready]);
        readiness.change(&ours, For::HangUp, ready);
        drop(theirs);
        assert_eq!(readiness.wait(None).unwrap(), [ready]);
        readiness.remove(&ours);
        assert_eq!(readiness.wait(Some(Instant::now())).unwrap(), []);
    }
}
