//! How a stream bypasses the daemon, in each direction: by a ring of bytes between tasks of one host, or a socket between two hosts.
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

#[derive(Default)]
pub(super) struct Direct {
    writer: Mutex<Option<Writer>>,
    reader: Mutex<Option<Reader>>,
    /// Everything that came before it was read.
    is_read: AtomicBool,
    /// Bytes that had come when reading stopped.
    came: AtomicU64,
    /// The owner writes no more, or the stream has ended.
    is_stopped: AtomicBool,
}

enum Writer {
    Ring(RingWriter),
    Socket(SocketWriter),
}

enum Reader {
    /// With its place, as the other end has announced it.
    Ring(RingReader, Box<[u8]>),
    Socket(SocketReader),
}

/// The outcome of a write.
pub(super) enum Written {
    Bytes(usize),
    /// The waker is woken when there is room.
    Nothing,
    /// The socket of that number takes nothing any more: the other end is to be asked what it has.
    Broken(u64),
}

/// What is left of a direction that has ended: the stream goes on another way.
pub(super) struct Left {
    /// Bytes that were read.
    pub(super) read: u64,
    /// Bytes that have come and are still to be read from the socket.
    pub(super) rest: Option<(SocketReader, u64)>,
}

/// Whether a waker is to be woken, or the caller waits for the socket itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Waits {
    Waker,
    Itself,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Direct {
    /// Writes go to this ring from now on.
    pub(super) fn write_by_ring(&self, ring: RingWriter) {
        *lock(&self.writer) = Some(Writer::Ring(ring));
    }

    /// Writes go to this socket from now on.
    pub(super) fn write_by_socket(&self, connected: Arc<Connected>) {
        *lock(&self.writer) = Some(Writer::Socket(SocketWriter::new(connected)));
    }

    /// True if writes bypass the daemon.
    pub(super) fn are_written(&self) -> bool {
        lock(&self.writer).is_some()
    }

    /// True if neither direction bypasses the daemon.
    pub(super) fn is_unused(&self) -> bool {
        lock(&self.writer).is_none() && lock(&self.reader).is_none()
    }

    /// Bytes written past the daemon.
    pub(super) fn written(&self) -> u64 {
        match &*lock(&self.writer) {
            Some(Writer::Ring(ring)) => ring.written(),
            Some(Writer::Socket(socket)) => socket.written(),
            None => 0,
        }
    }

    /// Stops writing.
    pub(super) fn stop(&self) {
        self.is_stopped.store(true, Ordering::SeqCst);
        if let Some(Writer::Socket(socket)) = &*lock(&self.writer) {
            socket.finish();
        }
    }

    /// Writes as many bytes as there is room for; none if writes do not bypass the daemon.
    ///
    /// # Errors
    /// Unavailable if the other end breaks the rules.
    #[inline]
    pub(super) fn write(&self, bytes: &[u8]) -> Result<usize, Error> {
        match &mut *lock(&self.writer) {
            Some(Writer::Ring(ring)) if !self.is_stopped.load(Ordering::SeqCst) => ring.write(bytes),
            // A broken one is handled under the hub's lock.
            Some(Writer::Socket(socket)) if !self.is_stopped.load(Ordering::SeqCst) && !socket.is_broken() => {
                Ok(socket.write(bytes))
            }
            _ => Ok(0),
        }
    }

    /// [`write`](Self::write), for a caller that waits if there is no room.
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

    /// Checks whether the connection is over: its number, if the other end is to be asked what it has.
    pub(super) fn writer_broke(&self) -> Option<u64> {
        match &mut *lock(&self.writer) {
            Some(Writer::Socket(socket)) => {
                socket.give_up_if_cut(self.is_stopped.load(Ordering::SeqCst));
                socket.take_break()
            }
            _ => None,
        }
    }

    /// The connection of the socket that is written, if the other host may not have received everything.
    pub(super) fn unacknowledged(&self) -> Option<Arc<Connected>> {
        match &*lock(&self.writer) {
            Some(Writer::Socket(socket)) => Some(socket.connected().clone()).filter(|connected| connected.has_unsent()),
            _ => None,
        }
    }

    /// The other end has read the first `has` bytes that were written to the socket, and reads no more from it: takes those behind them,
    /// which are to be sent another way. `None` if no socket is written.
    ///
    /// # Errors
    /// They are not kept any more, or `has` is more than were written.
    pub(super) fn take_writer(&self, has: u64) -> Option<Result<Vec<u8>, &'static str>> {
        let mut writer = lock(&self.writer);
        let Some(Writer::Socket(socket)) = &*writer else { return None };
        let behind = socket.behind(has).ok_or("bytes were lost with the connection that they went by");
        *writer = None;
        Some(behind)
    }

    /// Reads from this ring, once everything before it was read; false if there is another reader already.
    pub(super) fn read_from_ring(&self, ring: RingReader, place: &[u8]) -> bool {
        self.begin_reading(Reader::Ring(ring, place.into()))
    }

    /// The same for a socket.
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

    /// True if the ring at that place is read.
    pub(super) fn is_read_at(&self, place: &[u8]) -> bool {
        matches!(&*lock(&self.reader), Some(Reader::Ring(_, known)) if **known == *place)
    }

    /// The socket that is read, for a caller that waits for it itself.
    pub(super) fn to_read(&self) -> Option<Arc<Connected>> {
        match &*lock(&self.reader) {
            Some(Reader::Socket(socket)) if !socket.is_at_end() => Some(socket.connected().clone()),
            _ => None,
        }
    }

    /// The socket that is written, likewise.
    pub(super) fn to_write(&self) -> Option<Arc<Connected>> {
        match &*lock(&self.writer) {
            Some(Writer::Socket(socket)) if !socket.is_broken() => Some(socket.connected().clone()),
            _ => None,
        }
    }

    /// Moves available bytes into `into`, if everything before them was read; returns how many.
    ///
    /// # Errors
    /// Unavailable if the other end breaks the rules.
    #[inline]
    pub(super) fn read(&self, into: &mut [u8]) -> Result<usize, Error> {
        if !self.is_read.load(Ordering::Acquire) {
            return Ok(0);
        }
        match &mut *lock(&self.reader) {
            // Another reader may have taken its place.
            _ if !self.is_read.load(Ordering::Relaxed) => Ok(0),
            Some(Reader::Ring(ring, _)) => ring.read(into),
            // Its other outcomes are handled under the hub's lock.
            Some(Reader::Socket(socket)) => Ok(socket.read(into).bytes()),
            None => Ok(0),
        }
    }

    /// True if a ring is read.
    pub(super) fn reads_ring(&self) -> bool {
        matches!(&*lock(&self.reader), Some(Reader::Ring(..)))
    }

    /// [`read`](Self::read), for a caller that waits for what a ring may bring in a moment.
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

    /// Spins on the socket until `is_over`; `None` if no socket is read.
    pub(super) fn read_socket_soon(&self, into: &mut [u8], mut is_over: impl FnMut() -> bool) -> Option<usize> {
        /// Looks at the socket for each look at the clock.
        const LOOKS_PER_CLOCK: usize = 4;
        if into.is_empty() || !self.is_read.load(Ordering::Acquire) {
            return None;
        }
        loop {
            // Released in each round: others want the lock for a moment.
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

    /// Everything before was read: moves available bytes into `into`, or has the waker woken when there are some.
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

    /// Has the waker woken when everything has come that the other end has given its socket, or no more will.
    pub(super) fn wait_for_end(&self, waker: &Waker) {
        if let Some(Reader::Socket(socket)) = &*lock(&self.reader) {
            socket.wait_for_end(waker);
        }
    }

    /// True if the socket that is read brings nothing more.
    pub(super) fn reader_is_over(&self) -> bool {
        matches!(&*lock(&self.reader), Some(Reader::Socket(socket)) if socket.is_over())
    }

    /// Bytes received past the daemon.
    pub(super) fn came(&self) -> u64 {
        match &mut *lock(&self.reader) {
            Some(Reader::Ring(ring, _)) => ring.written(),
            Some(Reader::Socket(socket)) => socket.read_bytes() + socket.unread(),
            None => self.came.load(Ordering::Relaxed),
        }
    }

    /// Stops reading. A socket stays, so that its other end is not told that it broke.
    pub(super) fn stop_reading(&self) {
        let came = self.came();
        let mut reader = lock(&self.reader);
        if let Some(Reader::Ring(..)) | None = &*reader {
            self.came.store(came, Ordering::Relaxed);
            *reader = None;
        }
    }

    /// Takes what is left of the socket that is read, which is not used any more. Later pushes come behind it.
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

    /// Breaks its connections, to test the recovery.
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
