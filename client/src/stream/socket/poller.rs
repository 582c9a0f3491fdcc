//! A task's thread that waits for the sockets of its streams, on behalf of executors: threads that block wait themselves.
//! Bounded by the number of sockets; started with the first.

use std::{
    collections::HashMap,
    io,
    os::fd::OwnedFd,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError, Weak,
        atomic::{AtomicBool, Ordering},
    },
    task::Waker,
    time::Duration,
};

use nix::sys::{
    epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout},
    eventfd::{EfdFlags, EventFd},
};
use sealane_transport::byte_socket::ByteSocket;

/// Most events taken from the kernel at once.
const EVENTS_AT_ONCE: usize = 64;

/// How often to check connections that have ended both ways and may break before everything has arrived: the kernel does not report that.
const LOOK: Duration = Duration::from_millis(100);

/// The event that ends the thread.
const END: u64 = 0;

/// The module's poller. Its thread ends when it is dropped.
pub(in crate::stream) struct Poller(Arc<Set>);

struct Set {
    epoll: Epoll,
    end: EventFd,
    waiting: Mutex<Waiting>,
}

#[derive(Default)]
struct Waiting {
    by_number: HashMap<u64, Weak<Watched>>,
    last: u64,
}

/// Wakers of those who wait for a socket.
#[derive(Default)]
struct Wakers {
    reader: Option<Waker>,
    writer: Option<Waker>,
    /// For the end of received bytes.
    at_end: Option<Waker>,
    /// For the end of the connection, always.
    at_break: Option<Waker>,
}

/// What a waker waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum For {
    Bytes,
    Room,
    End,
}

impl Wakers {
    fn is_waited_for(&self) -> bool {
        self.reader.is_some() || self.writer.is_some() || self.at_end.is_some()
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

    /// Takes the wakers that an event concerns.
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
        woken
    }
}

/// A socket that can be waited for.
pub(super) struct Watched {
    number: u64,
    socket: ByteSocket,
    wakers: Mutex<Wakers>,
    /// The kernel has reported that nothing more arrives.
    has_end: AtomicBool,
    set: Arc<Set>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Watched {
    /// Adds a socket; `at_break` is woken once when the connection is gone.
    ///
    /// # Errors
    /// It is not a connected socket, or the system has no memory left.
    pub(super) fn add(socket: OwnedFd, at_break: Waker, to: &Poller) -> io::Result<Arc<Watched>> {
        let (set, socket) = (to.0.clone(), ByteSocket::new(socket)?);
        let mut waiting = lock(&set.waiting);
        waiting.last += 1;
        let number = waiting.last;
        set.epoll.add(&socket, EpollEvent::new(EpollFlags::EPOLLONESHOT, number))?;
        let wakers = Mutex::new(Wakers { at_break: Some(at_break), ..Wakers::default() });
        let watched = Arc::new(Watched { number, socket, wakers, has_end: AtomicBool::new(false), set: set.clone() });
        waiting.by_number.insert(number, Arc::downgrade(&watched));
        Ok(watched)
    }

    pub(super) fn socket(&self) -> &ByteSocket {
        &self.socket
    }

    /// Has the waker woken for that, replacing an earlier one; at once if it is so already.
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

    /// Nothing more arrives than has.
    pub(super) fn has_end(&self) -> bool {
        self.has_end.load(Ordering::Acquire)
    }

    /// Has the kernel report once what is waited for. If it cannot, whoever waits looks again.
    fn arm(&self, wakers: &mut Wakers) -> Vec<Waker> {
        match self.set.epoll.modify(&self.socket, &mut EpollEvent::new(wakers.flags(), self.number)) {
            Ok(()) => Vec::new(),
            Err(_) => wakers.of(EpollFlags::EPOLLERR),
        }
    }

    /// True if it must be checked again: it has ended both ways, and what was sent may not have arrived.
    fn happened(&self, event: EpollFlags) -> bool {
        let is_over = event.intersects(EpollFlags::EPOLLERR | EpollFlags::EPOLLHUP);
        if is_over || event.contains(EpollFlags::EPOLLRDHUP) {
            self.has_end.store(true, Ordering::Release);
        }
        let mut wakers = lock(&self.wakers);
        let mut woken = wakers.of(event);
        // Waiters are told at once then; otherwise only the end of the connection is reported.
        if wakers.is_waited_for() || !is_over {
            woken.extend(self.arm(&mut wakers));
        }
        drop(wakers);
        woken.into_iter().for_each(Waker::wake);
        is_over && self.is_doubtful()
    }

    /// True until the connection is gone, or everything sent has arrived.
    fn is_doubtful(&self) -> bool {
        if !self.socket.is_closed() && self.socket.unacknowledged().is_ok_and(|count| count > 0) {
            return true;
        }
        let at_break = lock(&self.wakers).at_break.take();
        at_break.into_iter().for_each(Waker::wake);
        false
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        lock(&self.set.waiting).by_number.remove(&self.number);
    }
}

impl Poller {
    /// Starts a poller with its thread.
    ///
    /// # Errors
    /// The system has no descriptor or thread left.
    pub(in crate::stream) fn start() -> io::Result<Poller> {
        let end = EventFd::from_value_and_flags(0, EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK)?;
        let set = Set { epoll: Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?, end, waiting: Mutex::default() };
        set.epoll.add(&set.end, EpollEvent::new(EpollFlags::EPOLLIN, END))?;
        let set = Arc::new(set);
        let polled = set.clone();
        std::thread::Builder::new().name("sealane-streams".into()).spawn(move || polled.run())?;
        Ok(Poller(set))
    }
}

impl Drop for Poller {
    fn drop(&mut self) {
        // If this fails, it was rung before.
        let _ = self.0.end.write(1);
    }
}

impl Set {
    fn run(&self) {
        let mut events = [EpollEvent::empty(); EVENTS_AT_ONCE];
        let mut doubtful: Vec<Weak<Watched>> = Vec::new();
        loop {
            let timeout =
                if doubtful.is_empty() { EpollTimeout::NONE } else { EpollTimeout::from(LOOK.as_millis() as u8) };
            // If interrupted, nothing has happened.
            let count = self.epoll.wait(&mut events, timeout).unwrap_or(0);
            for event in &events[..count] {
                if event.data() == END {
                    return;
                }
                let watched = lock(&self.waiting).by_number.get(&event.data()).and_then(Weak::upgrade);
                if let Some(watched) = watched
                    && watched.happened(event.events())
                    && !doubtful.iter().any(|other| other.as_ptr() == Arc::as_ptr(&watched))
                {
                    doubtful.push(Arc::downgrade(&watched));
                }
            }
            doubtful.retain(|watched| watched.upgrade().is_some_and(|watched| watched.is_doubtful()));
        }
    }
}
