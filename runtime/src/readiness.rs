//! The shard's one epoll set: every kernel object that it may have to wait for. The shard's thread alone uses it;
//! bounded by the process's number of descriptors.

use std::{
    cell::{Cell, RefCell},
    io,
    os::fd::{AsFd, AsRawFd, BorrowedFd},
};

use nix::{
    errno::Errno,
    sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout},
};

use crate::{error::RuntimeError, limits::EVENTS_PER_TURN, source::SourceId};

/// What a source wants to hear about a descriptor.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Interest {
    /// Readable, or the peer has closed its sending side.
    pub read: bool,
    pub write: bool,
    /// Report each change once (edge-triggered) instead of as long as it lasts.
    pub edge: bool,
}

impl Interest {
    /// Readable, reported as long as it lasts.
    pub const READ: Self = Self { read: true, write: false, edge: false };
    /// Writable, reported as long as it lasts.
    pub const WRITE: Self = Self { read: false, write: true, edge: false };
    /// Readable or writable, reported as long as it lasts.
    pub const READ_WRITE: Self = Self { read: true, write: true, edge: false };

    /// This interest, but each change is reported once.
    #[must_use]
    pub const fn edge(self) -> Self {
        Self { edge: true, ..self }
    }

    fn flags(self) -> EpollFlags {
        let mut flags = EpollFlags::empty();
        flags.set(EpollFlags::EPOLLIN | EpollFlags::EPOLLRDHUP, self.read);
        flags.set(EpollFlags::EPOLLOUT, self.write);
        flags.set(EpollFlags::EPOLLET, self.edge);
        flags
    }
}

/// What the kernel reported about a descriptor.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Readiness {
    /// There is something to read, an end of file or an error included.
    pub readable: bool,
    pub writable: bool,
    /// The peer has closed its sending side, or both sides are closed.
    pub closed: bool,
    /// An error is pending; the next read or write tells which.
    pub error: bool,
}

impl From<EpollFlags> for Readiness {
    fn from(flags: EpollFlags) -> Self {
        Self {
            readable: flags.intersects(EpollFlags::EPOLLIN | EpollFlags::EPOLLPRI),
            writable: flags.contains(EpollFlags::EPOLLOUT),
            closed: flags.intersects(EpollFlags::EPOLLHUP | EpollFlags::EPOLLRDHUP),
            error: flags.contains(EpollFlags::EPOLLERR),
        }
    }
}

/// One report: the source, its token, and what happened.
pub(crate) type Report = (SourceId, u64, Readiness);

pub(crate) struct EpollSet {
    epoll: Epoll,
    /// Indexed by descriptor, a small number, so that a report finds its watch without hashing.
    watches: RefCell<Vec<Watch>>,
    /// What the kernel reported last, and how many of the events a sleep has left for the next look.
    events: RefCell<[EpollEvent; EVENTS_PER_TURN]>,
    left: Cell<usize>,
}

#[derive(Clone, Copy, Default)]
struct Watch {
    target: Option<(SourceId, u64)>,
    /// Tells reports of an earlier use of the same descriptor number apart; zero stands for the shard's own descriptors.
    generation: u32,
}

impl EpollSet {
    pub(crate) fn new() -> Result<Self, RuntimeError> {
        let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)
            .map_err(RuntimeError::system("making the shard's epoll set"))?;
        let events = RefCell::new([EpollEvent::empty(); EVENTS_PER_TURN]);
        Ok(Self { epoll, watches: RefCell::default(), events, left: Cell::new(0) })
    }

    /// Watches a descriptor of the shard itself that only serves to wake it. Edge-triggered, so that nobody has to read it.
    pub(crate) fn watch_own(&self, fd: impl AsFd) -> Result<(), RuntimeError> {
        let event = EpollEvent::new(EpollFlags::EPOLLIN | EpollFlags::EPOLLET, 0);
        self.epoll.add(fd, event).map_err(RuntimeError::system("watching the shard's own descriptor"))
    }

    pub(crate) fn watch(
        &self,
        source: SourceId,
        fd: BorrowedFd<'_>,
        token: u64,
        interest: Interest,
    ) -> Result<(), RuntimeError> {
        let mut watches = self.watches.borrow_mut();
        let index = fd.as_raw_fd() as usize;
        if watches.len() <= index {
            watches.resize(index + 1, Watch::default());
        }
        let generation = watches[index].generation.wrapping_add(1).max(1);
        self.epoll
            .add(fd, EpollEvent::new(interest.flags(), event_data(fd, generation)))
            .map_err(RuntimeError::system("watching a descriptor"))?;
        watches[index] = Watch { target: Some((source, token)), generation };
        Ok(())
    }

    pub(crate) fn rewatch(
        &self,
        source: SourceId,
        fd: BorrowedFd<'_>,
        token: u64,
        interest: Interest,
    ) -> Result<(), RuntimeError> {
        let failed = RuntimeError::system("changing the watch of a descriptor");
        let mut watches = self.watches.borrow_mut();
        let Some(watch) = watches.get_mut(fd.as_raw_fd() as usize) else {
            return Err(failed(nix::errno::Errno::ENOENT));
        };
        let mut event = EpollEvent::new(interest.flags(), event_data(fd, watch.generation));
        self.epoll.modify(fd, &mut event).map_err(failed)?;
        watch.target = Some((source, token));
        Ok(())
    }

    pub(crate) fn unwatch(&self, fd: BorrowedFd<'_>) -> Result<(), RuntimeError> {
        if let Some(watch) = self.watches.borrow_mut().get_mut(fd.as_raw_fd() as usize) {
            watch.target = None;
        }
        self.epoll.delete(fd).map_err(RuntimeError::system("ending the watch of a descriptor"))
    }

    /// Blocks the thread until there is something to report, which the next look then reads. A signal also ends it.
    ///
    /// # Errors
    /// Where the kernel refuses the wait.
    pub(crate) fn sleep(&self) -> io::Result<()> {
        if self.left.get() > 0 {
            return Ok(());
        }
        match self.epoll.wait(&mut *self.events.borrow_mut(), EpollTimeout::NONE) {
            Ok(count) => self.left.set(count),
            Err(Errno::EINTR) => {}
            Err(error) => return Err(error.into()),
        }
        Ok(())
    }

    /// Looks without waiting, and adds what is reported for sources to `reports`. A look that fails reports nothing
    /// and is repeated in the next turn.
    pub(crate) fn look(&self, reports: &mut Vec<Report>) {
        let mut events = self.events.borrow_mut();
        let count = match self.left.take() {
            0 => self.epoll.wait(&mut *events, EpollTimeout::ZERO).unwrap_or(0),
            left => left,
        };
        if count == 0 {
            return;
        }
        let watches = self.watches.borrow();
        for event in &events[..count] {
            let (index, generation) = (event.data() as u32 as usize, (event.data() >> 32) as u32);
            let Some(watch) = watches.get(index) else {
                continue;
            };
            if let Some((source, token)) = watch.target
                && generation == watch.generation
            {
                reports.push((source, token, event.events().into()));
            }
        }
    }
}

impl AsFd for EpollSet {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.epoll.0.as_fd()
    }
}

fn event_data(fd: BorrowedFd<'_>, generation: u32) -> u64 {
    u64::from(generation) << 32 | fd.as_raw_fd() as u64
}

#[cfg(test)]
mod tests {
    use std::{io::Write, os::unix::net::UnixStream};

    use super::*;
    use crate::source::{Nothing, SourceChanges};

    fn source_id() -> SourceId {
        SourceChanges::default().add(Box::new(Nothing))
    }

    fn reports(set: &EpollSet) -> Vec<Report> {
        let mut reports = Vec::new();
        set.look(&mut reports);
        reports
    }

    #[test]
    fn a_report_carries_source_token_and_what_happened() {
        let (set, source) = (EpollSet::new().unwrap(), source_id());
        let (near, mut far) = UnixStream::pair().unwrap();
        set.watch(source, near.as_fd(), 77, Interest::READ).unwrap();
        assert_eq!(reports(&set), []);

        far.write_all(b"x").unwrap();
        let readable = Readiness { readable: true, ..Readiness::default() };
        assert_eq!(reports(&set), [(source, 77, readable)]);
        assert_eq!(reports(&set), [(source, 77, readable)], "level-triggered");

        set.rewatch(source, near.as_fd(), 78, Interest::READ_WRITE.edge()).unwrap();
        let both = Readiness { writable: true, ..readable };
        assert_eq!(reports(&set), [(source, 78, both)]);
        assert_eq!(reports(&set), [], "edge-triggered");

        drop(far);
        let [(_, 78, closed)] = reports(&set)[..] else { panic!("one report") };
        assert!(closed.closed && closed.readable);
        set.unwatch(near.as_fd()).unwrap();
        assert_eq!(reports(&set), []);
    }

    #[test]
    fn what_ends_a_sleep_is_reported_by_the_next_look_edge_triggered_or_not() {
        let (set, source) = (EpollSet::new().unwrap(), source_id());
        let (near, far) = UnixStream::pair().unwrap();
        for (token, interest) in [(1, Interest::READ.edge()), (2, Interest::READ)] {
            let own = near.try_clone().unwrap();
            set.watch(source, own.as_fd(), token, interest).unwrap();
            let mut remote = far.try_clone().unwrap();
            let writer = std::thread::spawn(move || remote.write_all(b"x").unwrap());
            set.sleep().unwrap();
            writer.join().unwrap();
            // A second sleep before the readiness is read must return at once.
            set.sleep().unwrap();
            let readable = Readiness { readable: true, ..Readiness::default() };
            assert_eq!(reports(&set), [(source, token, readable)]);
            assert_eq!(reports(&set).len(), usize::from(!interest.edge), "the look after that asks the kernel");
            set.unwatch(own.as_fd()).unwrap();
        }
    }

    #[test]
    fn watching_twice_and_changing_what_is_not_watched_are_errors() {
        let (set, source) = (EpollSet::new().unwrap(), source_id());
        let (near, far) = UnixStream::pair().unwrap();
        set.watch(source, near.as_fd(), 1, Interest::READ).unwrap();
        for error in [
            set.watch(source, near.as_fd(), 1, Interest::READ).unwrap_err(),
            set.rewatch(source, far.as_fd(), 1, Interest::WRITE).unwrap_err(),
            set.unwatch(far.as_fd()).unwrap_err(),
        ] {
            assert!(matches!(error, RuntimeError::System { .. }), "{error}");
        }
    }

    #[test]
    fn a_descriptor_number_used_again_is_another_watch() {
        let (set, source) = (EpollSet::new().unwrap(), source_id());
        let (near, far) = UnixStream::pair().unwrap();
        set.watch(source, near.as_fd(), 1, Interest::WRITE).unwrap();
        // The descriptor stays open elsewhere, so the kernel goes on reporting the old watch.
        let kept = near.try_clone().unwrap();
        let number = near.as_raw_fd();
        drop(near);
        let again =
            std::iter::repeat_with(|| far.try_clone().unwrap()).take(1000).find(|stream| stream.as_raw_fd() == number);
        if let Some(again) = again {
            set.watch(source, again.as_fd(), 2, Interest::WRITE).unwrap();
            assert!(reports(&set).iter().all(|(_, token, _)| *token == 2));
        }
        drop(kept);
    }
}
