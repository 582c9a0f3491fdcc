//! The one thread of a process that waits for the sockets of all streams, on behalf of executors: threads that block wait themselves.
//! Bounded by the sockets that there are; started by the first that is waited for.

use std::{
    collections::HashMap,
    io,
    os::fd::OwnedFd,
    sync::{
        Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak,
        atomic::{AtomicBool, Ordering},
    },
    task::Waker,
};

use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};

/// Events that are taken from the kernel at once.
const EVENTS_AT_ONCE: usize = 64;

struct Poller {
    epoll: Epoll,
    waiting: Mutex<Waiting>,
}

#[derive(Default)]
struct Waiting {
    by_number: HashMap<u64, Weak<Watched>>,
    last: u64,
}

/// Who waits for a socket.
#[derive(Default)]
struct Wakers {
    reader: Option<Waker>,
    writer: Option<Waker>,
    /// For the end of what comes.
    at_end: Option<Waker>,
    /// For the end of the connection, always.
    at_break: Option<Waker>,
}

/// What somebody waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum For {
    Bytes,
    Room,
    End,
}

impl Wakers {
    fn is_waited_for(&self) -> bool {
        self.reader.is_some() || self.writer.is_some() || self.at_end.is_some() || self.at_break.is_some()
    }

    fn flags(&self) -> EpollFlags {
        let mut flags = EpollFlags::EPOLLONESHOT;
        flags.set(EpollFlags::EPOLLIN | EpollFlags::EPOLLRDHUP, self.reader.is_some());
        flags.set(EpollFlags::EPOLLOUT, self.writer.is_some());
        if self.at_end.is_some() {
            flags |= EpollFlags::EPOLLRDHUP;
        }
        flags
    }

    /// Whom an event concerns.
    fn of(&mut self, event: EpollFlags) -> Vec<Waker> {
        let is_over = event.intersects(EpollFlags::EPOLLERR | EpollFlags::EPOLLHUP);
        let has_end = is_over || event.contains(EpollFlags::EPOLLRDHUP);
        let mut woken = Vec::new();
        let mut wake = |waker: &mut Option<Waker>, is_concerned: bool| {
            woken.extend(waker.take_if(|_| is_concerned));
        };
        wake(&mut self.reader, has_end || event.contains(EpollFlags::EPOLLIN));
        wake(&mut self.writer, is_over || event.contains(EpollFlags::EPOLLOUT));
        wake(&mut self.at_end, has_end);
        wake(&mut self.at_break, is_over);
        woken
    }
}

/// A socket that may be waited for. By a descriptor of its own, which keeps the connection open.
pub(super) struct Watched {
    number: u64,
    socket: OwnedFd,
    wakers: Mutex<Wakers>,
    /// The kernel has said that no more comes, and that nothing more can be sent either.
    has_end: AtomicBool,
    is_over: AtomicBool,
    poller: &'static Poller,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Watched {
    /// Adds a socket; `at_break` is woken once when the connection has ended both ways.
    ///
    /// # Errors
    /// The system has no descriptor, memory or thread left.
    pub(super) fn add(socket: OwnedFd, at_break: Waker) -> io::Result<Arc<Watched>> {
        let poller = Poller::of_process()?;
        let mut waiting = lock(&poller.waiting);
        waiting.last += 1;
        let number = waiting.last;
        poller.epoll.add(&socket, EpollEvent::new(EpollFlags::EPOLLONESHOT, number))?;
        let wakers = Wakers { at_break: Some(at_break), ..Wakers::default() };
        let watched = Arc::new(Watched {
            number,
            socket,
            wakers: Mutex::new(wakers),
            has_end: AtomicBool::new(false),
            is_over: AtomicBool::new(false),
            poller,
        });
        waiting.by_number.insert(number, Arc::downgrade(&watched));
        Ok(watched)
    }

    /// Has somebody woken for that, in place of who waited before; at once if it is so already.
    pub(super) fn wait(&self, what: For, waker: &Waker) {
        let mut wakers = lock(&self.wakers);
        let place = match what {
            For::Bytes => &mut wakers.reader,
            For::Room => &mut wakers.writer,
            For::End => &mut wakers.at_end,
        };
        *place = Some(waker.clone());
        let woken = self.arm(&mut wakers);
        drop(wakers);
        woken.into_iter().for_each(Waker::wake);
    }

    /// Has the kernel tell of what is waited for, once. If it does not, whoever waits looks again.
    fn arm(&self, wakers: &mut Wakers) -> Vec<Waker> {
        match self.poller.epoll.modify(&self.socket, &mut EpollEvent::new(wakers.flags(), self.number)) {
            Ok(()) => Vec::new(),
            Err(_) => wakers.of(EpollFlags::EPOLLERR),
        }
    }

    /// No more comes than has.
    pub(super) fn has_end(&self) -> bool {
        self.has_end.load(Ordering::Acquire)
    }

    /// And nothing more can be sent.
    pub(super) fn is_over(&self) -> bool {
        self.is_over.load(Ordering::Acquire)
    }

    fn happened(&self, event: EpollFlags) {
        let is_over = event.intersects(EpollFlags::EPOLLERR | EpollFlags::EPOLLHUP);
        if is_over || event.contains(EpollFlags::EPOLLRDHUP) {
            self.has_end.store(true, Ordering::Release);
        }
        if is_over {
            self.is_over.store(true, Ordering::Release);
        }
        let mut wakers = lock(&self.wakers);
        let mut woken = wakers.of(event);
        if wakers.is_waited_for() {
            woken.extend(self.arm(&mut wakers));
        }
        drop(wakers);
        woken.into_iter().for_each(Waker::wake);
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        lock(&self.poller.waiting).by_number.remove(&self.number);
        // Others may have the connection still.
        let _ = self.poller.epoll.delete(&self.socket);
    }
}

impl Poller {
    /// That of this process.
    fn of_process() -> io::Result<&'static Poller> {
        static POLLER: OnceLock<Poller> = OnceLock::new();
        static STARTING: Mutex<()> = Mutex::new(());
        let _starting = lock(&STARTING);
        if let Some(poller) = POLLER.get() {
            return Ok(poller);
        }
        let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?;
        std::thread::Builder::new().name("sealane-streams".into()).spawn(|| POLLER.wait().run())?;
        Ok(POLLER.get_or_init(|| Poller { epoll, waiting: Mutex::default() }))
    }

    fn run(&self) {
        let mut events = [EpollEvent::empty(); EVENTS_AT_ONCE];
        loop {
            // Interrupted, nothing has happened.
            let count = self.epoll.wait(&mut events, EpollTimeout::NONE).unwrap_or(0);
            for event in &events[..count] {
                let watched = lock(&self.waiting).by_number.get(&event.data()).and_then(Weak::upgrade);
                if let Some(watched) = watched {
                    watched.happened(event.events());
                }
            }
        }
    }
}
