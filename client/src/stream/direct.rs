//! What a stream goes by past the daemon, each way: a ring of bytes where both tasks are of one host, or a socket where they are of two.
//! Read and written without the hub's lock, which is held for all else; each under a lock of its own.

use std::{
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    task::Waker,
};

use sealane_transport::Error;

use super::socket::{Came, Connected, SocketReader, SocketWriter};
use crate::{
    attachment::{RingReader, RingWriter},
    limits::RING_SPINS,
};

/// See the module.
#[derive(Default)]
pub(super) struct Direct {
    writer: Mutex<Option<Writer>>,
    reader: Mutex<Option<Reader>>,
    /// All that came before it was read.
    is_read: AtomicBool,
    /// Bytes that had come when somebody stopped reading.
    came: AtomicU64,
    /// Its owner writes no more, or it has ended.
    is_stopped: AtomicBool,
}

enum Writer {
    Ring(RingWriter),
    Socket(SocketWriter),
}

enum Reader {
    /// With where it is, as the other end has said.
    Ring(RingReader, Box<[u8]>),
    Socket(SocketReader),
}

/// What a write came to.
pub(super) enum Written {
    Bytes(usize),
    /// Somebody is woken when there is room.
    Nothing,
    /// The socket of that number takes nothing any more: the other end is to say what it has.
    Broken(u64),
}

/// What a direction went by that has ended: the stream goes on another way.
pub(super) struct Left {
    /// Bytes that were read.
    pub(super) read: u64,
    /// Bytes that have come and are still to be read there.
    pub(super) rest: Option<(SocketReader, u64)>,
}

/// Whether somebody is to be woken, or waits for the socket himself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Waits {
    Waker,
    Itself,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Direct {
    /// What is written goes by this ring from now on.
    pub(super) fn write_by_ring(&self, ring: RingWriter) {
        *lock(&self.writer) = Some(Writer::Ring(ring));
    }

    /// The same of a socket.
    pub(super) fn write_by_socket(&self, connected: Arc<Connected>) {
        *lock(&self.writer) = Some(Writer::Socket(SocketWriter::new(connected)));
    }

    /// True if what is written goes past the daemon, or will.
    pub(super) fn are_written(&self) -> bool {
        lock(&self.writer).is_some()
    }

    /// True if neither way has one.
    pub(super) fn is_unused(&self) -> bool {
        lock(&self.writer).is_none() && lock(&self.reader).is_none()
    }

    /// Bytes that were written there.
    pub(super) fn written(&self) -> u64 {
        match &*lock(&self.writer) {
            Some(Writer::Ring(ring)) => ring.written(),
            Some(Writer::Socket(socket)) => socket.written(),
            None => 0,
        }
    }

    /// Nothing more is written.
    pub(super) fn stop(&self) {
        self.is_stopped.store(true, Ordering::SeqCst);
        if let Some(Writer::Socket(socket)) = &*lock(&self.writer) {
            socket.finish();
        }
    }

    /// Takes as many bytes as there is room for; none where they do not go past the daemon.
    ///
    /// # Errors
    /// Unavailable if the other end breaks the rules.
    #[inline]
    pub(super) fn write(&self, bytes: &[u8]) -> Result<usize, Error> {
        match &mut *lock(&self.writer) {
            Some(Writer::Ring(ring)) if !self.is_stopped.load(Ordering::SeqCst) => ring.write(bytes),
            // One that breaks is looked after under the hub's lock.
            Some(Writer::Socket(socket)) if !self.is_stopped.load(Ordering::SeqCst) && !socket.is_broken() => {
                Ok(socket.write(bytes))
            }
            _ => Ok(0),
        }
    }

    /// [`write`](Self::write), for who waits where there is no room.
    ///
    /// # Errors
    /// The same, and if the lane has ended.
    pub(super) fn write_or_wait(&self, bytes: &[u8], waker: &Waker, waits: Waits) -> Result<Written, Error> {
        match &mut *lock(&self.writer) {
            None => Ok(Written::Nothing),
            Some(Writer::Ring(ring)) => loop {
                let count = ring.write(bytes)?;
                if count > 0 || bytes.is_empty() {
                    return Ok(Written::Bytes(count));
                }
                if ring.wait(waker)? {
                    return Ok(Written::Nothing);
                }
            },
            Some(Writer::Socket(socket)) => {
                let count = socket.write(bytes);
                if count > 0 || bytes.is_empty() {
                    return Ok(Written::Bytes(count));
                }
                if let Some(number) = socket.take_break() {
                    return Ok(Written::Broken(number));
                }
                if !socket.is_broken() && waits == Waits::Waker {
                    socket.wait(waker);
                }
                Ok(Written::Nothing)
            }
        }
    }

    /// The connection may be over: its number, if the other end is to say what it has.
    pub(super) fn writer_broke(&self) -> Option<u64> {
        match &mut *lock(&self.writer) {
            Some(Writer::Socket(socket)) => {
                socket.give_up_if_cut(self.is_stopped.load(Ordering::SeqCst));
                socket.take_break()
            }
            _ => None,
        }
    }

    /// The connection of the socket that is written, if the other host may not have all that was.
    pub(super) fn unacknowledged(&self) -> Option<Arc<Connected>> {
        match &*lock(&self.writer) {
            Some(Writer::Socket(socket)) => Some(socket.connected().clone()).filter(|connected| connected.has_unsent()),
            _ => None,
        }
    }

    /// The other end has read the first so many bytes that were written to the socket, and takes no more from it: those behind them, which
    /// are to leave another way. `None` if none is written.
    ///
    /// # Errors
    /// They are not here any more, or more than were written.
    pub(super) fn take_writer(&self, has: u64) -> Option<Result<Vec<u8>, &'static str>> {
        let mut writer = lock(&self.writer);
        let Some(Writer::Socket(socket)) = &*writer else { return None };
        let behind = socket.behind(has).ok_or("bytes were lost with the connection that they went by");
        *writer = None;
        Some(behind)
    }

    /// What comes is read out of this ring, once all that came before it was; false if there is another already.
    pub(super) fn read_from_ring(&self, ring: RingReader, place: &[u8]) -> bool {
        self.begin_reading(Reader::Ring(ring, place.into()))
    }

    /// The same of a socket.
    pub(super) fn read_from_socket(&self, connected: Arc<Connected>) -> bool {
        self.begin_reading(Reader::Socket(SocketReader::new(connected)))
    }

    fn begin_reading(&self, from: Reader) -> bool {
        let mut reader = lock(&self.reader);
        let is_first = reader.is_none();
        if is_first {
            self.is_read.store(false, Ordering::Release);
            *reader = Some(from);
        }
        is_first
    }

    /// True if what comes is read there.
    pub(super) fn is_read_at(&self, place: &[u8]) -> bool {
        matches!(&*lock(&self.reader), Some(Reader::Ring(_, known)) if **known == *place)
    }

    /// The socket that is read, for who waits for it himself.
    pub(super) fn to_read(&self) -> Option<Arc<Connected>> {
        match &*lock(&self.reader) {
            Some(Reader::Socket(socket)) if !socket.is_at_end() => Some(socket.connected().clone()),
            _ => None,
        }
    }

    /// The same of the one that is written.
    pub(super) fn to_write(&self) -> Option<Arc<Connected>> {
        match &*lock(&self.writer) {
            Some(Writer::Socket(socket)) if !socket.is_broken() => Some(socket.connected().clone()),
            _ => None,
        }
    }

    /// Moves what there is into `into`, if all that came before was read; how many bytes.
    ///
    /// # Errors
    /// Unavailable if the other end breaks the rules.
    #[inline]
    pub(super) fn read(&self, into: &mut [u8]) -> Result<usize, Error> {
        if !self.is_read.load(Ordering::Acquire) {
            return Ok(0);
        }
        match &mut *lock(&self.reader) {
            // Another may have taken its place.
            _ if !self.is_read.load(Ordering::Relaxed) => Ok(0),
            Some(Reader::Ring(ring, _)) => ring.read(into),
            // What else it came to is looked at under the hub's lock.
            Some(Reader::Socket(socket)) => Ok(socket.read(into).bytes()),
            None => Ok(0),
        }
    }

    /// True if a ring is read.
    pub(super) fn reads_ring(&self) -> bool {
        matches!(&*lock(&self.reader), Some(Reader::Ring(..)))
    }

    /// [`read`](Self::read), for who waits for something that may come by a ring in a moment.
    ///
    /// # Errors
    /// The same.
    pub(super) fn read_soon(&self, into: &mut [u8]) -> Result<usize, Error> {
        if into.is_empty() || !self.is_read.load(Ordering::Acquire) {
            return Ok(0);
        }
        let Some(Reader::Ring(ring, _)) = &mut *lock(&self.reader) else { return Ok(0) };
        for _ in 0..RING_SPINS {
            let count = ring.read(into)?;
            if count > 0 {
                return Ok(count);
            }
            std::hint::spin_loop();
        }
        Ok(0)
    }

    /// The same of a socket, until it `is_over`; `None` if none is read.
    pub(super) fn read_socket_soon(&self, into: &mut [u8], mut is_over: impl FnMut() -> bool) -> Option<usize> {
        /// Looks at the socket for each at the clock.
        const LOOKS_PER_CLOCK: usize = 4;
        if into.is_empty() || !self.is_read.load(Ordering::Acquire) {
            return None;
        }
        loop {
            // Others want the lock for a moment.
            let mut reader = lock(&self.reader);
            let Some(Reader::Socket(socket)) = &mut *reader else { return None };
            if !self.is_read.load(Ordering::Relaxed) {
                return None;
            }
            for _ in 0..LOOKS_PER_CLOCK {
                match socket.read(into) {
                    Came::Nothing => {}
                    came => return Some(came.bytes()),
                }
            }
            if is_over() {
                return Some(0);
            }
        }
    }

    /// All that came before was read: moves what there is into `into`, or has somebody woken when there is something.
    ///
    /// # Errors
    /// As [`read`](Self::read), and if the lane has ended.
    pub(super) fn read_or_wait(&self, into: &mut [u8], waker: &Waker, waits: Waits) -> Result<Came, Error> {
        let mut reader = lock(&self.reader);
        if reader.is_some() {
            self.is_read.store(true, Ordering::Release);
        }
        match &mut *reader {
            Some(Reader::Ring(ring, _)) => loop {
                let count = ring.read(into)?;
                if count > 0 || into.is_empty() || ring.wait(waker)? {
                    return Ok(if count > 0 { Came::Bytes(count) } else { Came::Nothing });
                }
            },
            Some(Reader::Socket(socket)) => {
                let came = socket.read(into);
                if came == Came::Nothing && waits == Waits::Waker {
                    socket.wait(waker);
                }
                Ok(came)
            }
            None => Ok(Came::Nothing),
        }
    }

    /// Has somebody woken when all has come that the other end has given its socket, or no more will.
    pub(super) fn wait_for_end(&self, waker: &Waker) {
        if let Some(Reader::Socket(socket)) = &*lock(&self.reader) {
            socket.wait_for_end(waker);
        }
    }

    /// True if no more comes by the socket that is read than has.
    pub(super) fn reader_is_over(&self) -> bool {
        matches!(&*lock(&self.reader), Some(Reader::Socket(socket)) if socket.is_over())
    }

    /// Bytes that came there.
    pub(super) fn came(&self) -> u64 {
        match &mut *lock(&self.reader) {
            Some(Reader::Ring(ring, _)) => ring.written(),
            Some(Reader::Socket(socket)) => socket.read_bytes() + socket.unread(),
            None => self.came.load(Ordering::Relaxed),
        }
    }

    /// Nobody reads any more. A socket stays, so that its other end is not told that it broke.
    pub(super) fn stop_reading(&self) {
        let came = self.came();
        let mut reader = lock(&self.reader);
        if let Some(Reader::Ring(..)) | None = &*reader {
            self.came.store(came, Ordering::Relaxed);
            *reader = None;
        }
    }

    /// The socket that is read is of no more use: what is left of it. What comes by pushes is behind that.
    pub(super) fn take_reader(&self) -> Option<Left> {
        let mut reader = lock(&self.reader);
        let left = match reader.take() {
            Some(Reader::Socket(socket)) => {
                let (read, unread) = (socket.read_bytes(), socket.unread());
                Left { read, rest: (unread > 0).then_some((socket, unread)) }
            }
            other => {
                *reader = other;
                return None;
            }
        };
        self.is_read.store(false, Ordering::Release);
        Some(left)
    }

    /// Breaks its connections, for tests of what comes of that.
    #[cfg(feature = "fuzzing")]
    pub(super) fn break_off(&self) {
        if let Some(Writer::Socket(socket)) = &*lock(&self.writer) {
            socket.connected().break_off();
        }
        if let Some(Reader::Socket(socket)) = &*lock(&self.reader) {
            socket.connected().break_off();
        }
    }
}
