//! Many sockets in one thread, of which those are worked on that can go on: an epoll set. Bounded by the sockets that are
//! watched.

use std::os::fd::AsFd;
use std::time::Duration;

use nix::errno::Errno;
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};

use crate::error::BenchError;

/// Sockets that one look reports.
const EVENTS: usize = 512;

/// A wait of at most so long, in the whole milliseconds of an epoll set: rounded up, since a wait of 0 ms would be a spin.
pub(super) fn at_most(limit: Duration) -> EpollTimeout {
    EpollTimeout::from(u16::try_from(limit.as_millis() + 1).unwrap_or(u16::MAX))
}

/// See the module.
pub(super) struct Poller {
    epoll: Epoll,
    /// What the last look has reported.
    events: Box<[EpollEvent]>,
}

impl Poller {
    /// One that watches nothing.
    pub(super) fn new() -> Result<Self, BenchError> {
        let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC).map_err(BenchError::io("make an epoll set"))?;
        Ok(Self { epoll, events: vec![EpollEvent::empty(); EVENTS].into() })
    }

    /// Watches a socket, which is reported by its place. Closing it ends that.
    pub(super) fn watch(&self, socket: impl AsFd, place: usize, interest: EpollFlags) -> Result<(), BenchError> {
        let event = EpollEvent::new(interest, place as u64);
        self.epoll.add(socket, event).map_err(BenchError::io("watch a socket"))
    }

    /// Watches a socket of which something else is of interest now.
    pub(super) fn watch_for(&self, socket: impl AsFd, place: usize, interest: EpollFlags) -> Result<(), BenchError> {
        let mut event = EpollEvent::new(interest, place as u64);
        self.epoll.modify(socket, &mut event).map_err(BenchError::io("watch a socket"))
    }

    /// Looks at all sockets; how many can go on, which is 0 when the wait is over.
    pub(super) fn look(&mut self, wait: EpollTimeout) -> Result<usize, BenchError> {
        match self.epoll.wait(&mut self.events, wait) {
            Err(Errno::EINTR) => Ok(0),
            looked => looked.map_err(BenchError::io("wait for sockets")),
        }
    }

    /// The place of the `number`th socket that the last look has reported, and what it is ready for.
    pub(super) fn reported(&self, number: usize) -> (usize, EpollFlags) {
        (self.events[number].data() as usize, self.events[number].events())
    }
}
