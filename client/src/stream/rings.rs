//! The rings of bytes that one stream has, where both tasks are of one host: one for each direction, from when its writer takes one up.
//! Read and written without the hub's lock, which is held for all else; each under a lock of its own.

use std::{
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    task::Waker,
};

use sealane_transport::Error;

use crate::{
    attachment::{RingReader, RingWriter},
    limits::RING_SPINS,
};

/// See the module.
#[derive(Default)]
pub(super) struct Rings {
    writer: Mutex<Option<RingWriter>>,
    reader: Mutex<Option<RingReader>>,
    /// Where that is, as the other end has said.
    place: Mutex<Box<[u8]>>,
    /// All that came before it was read.
    is_read: AtomicBool,
    /// Bytes that had come when somebody stopped reading.
    came: AtomicU64,
    /// Its owner writes no more, or it has ended.
    is_stopped: AtomicBool,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Rings {
    /// What is written goes by this ring from now on.
    pub(super) fn write_by(&self, ring: RingWriter) {
        *lock(&self.writer) = Some(ring);
    }

    /// True if what is written goes by a ring.
    pub(super) fn are_written(&self) -> bool {
        lock(&self.writer).is_some()
    }

    /// Bytes that were written into one.
    pub(super) fn written(&self) -> u64 {
        lock(&self.writer).as_ref().map_or(0, RingWriter::written)
    }

    /// Nothing more is written.
    pub(super) fn stop(&self) {
        self.is_stopped.store(true, Ordering::SeqCst);
    }

    /// Takes as many bytes as there is room for; none where they do not go by a ring.
    ///
    /// # Errors
    /// Unavailable if the other end breaks the rules.
    pub(super) fn write(&self, bytes: &[u8]) -> Result<usize, Error> {
        match &mut *lock(&self.writer) {
            Some(ring) if !self.is_stopped.load(Ordering::SeqCst) => ring.write(bytes),
            _ => Ok(0),
        }
    }

    /// [`write`](Self::write); where there is no room, has somebody woken when there is.
    ///
    /// # Errors
    /// The same, and if the lane has ended.
    pub(super) fn write_or_wait(&self, bytes: &[u8], waker: &Waker) -> Result<usize, Error> {
        let Some(ring) = &mut *lock(&self.writer) else { return Ok(0) };
        loop {
            let count = ring.write(bytes)?;
            if count > 0 || bytes.is_empty() || ring.wait(waker)? {
                return Ok(count);
            }
        }
    }

    /// What comes is read out of this ring, once all that came before it was; false if there is one already.
    pub(super) fn read_from(&self, ring: RingReader, place: &[u8]) -> bool {
        let mut reader = lock(&self.reader);
        let is_first = reader.is_none();
        if is_first {
            (*reader, *lock(&self.place)) = (Some(ring), place.into());
        }
        is_first
    }

    /// True if what comes is read there.
    pub(super) fn is_read_at(&self, place: &[u8]) -> bool {
        !place.is_empty() && **lock(&self.place) == *place
    }

    /// Moves what there is into `into`, if all that came before was read; how many bytes.
    ///
    /// # Errors
    /// Unavailable if the other end breaks the rules.
    pub(super) fn read(&self, into: &mut [u8]) -> Result<usize, Error> {
        if !self.is_read.load(Ordering::Acquire) {
            return Ok(0);
        }
        lock(&self.reader).as_mut().map_or(Ok(0), |ring| ring.read(into))
    }

    /// [`read`](Self::read), for who waits for something that may come in a moment.
    ///
    /// # Errors
    /// The same.
    pub(super) fn read_soon(&self, into: &mut [u8]) -> Result<usize, Error> {
        if into.is_empty() || !self.is_read.load(Ordering::Acquire) {
            return Ok(0);
        }
        let Some(ring) = &mut *lock(&self.reader) else { return Ok(0) };
        for _ in 0..RING_SPINS {
            let count = ring.read(into)?;
            if count > 0 {
                return Ok(count);
            }
            std::hint::spin_loop();
        }
        Ok(0)
    }

    /// All that came before was read: moves what there is into `into`, or has somebody woken when there is something; how many bytes.
    ///
    /// # Errors
    /// As [`read`](Self::read), and if the lane has ended.
    pub(super) fn read_or_wait(&self, into: &mut [u8], waker: &Waker) -> Result<usize, Error> {
        let Some(ring) = &mut *lock(&self.reader) else { return Ok(0) };
        self.is_read.store(true, Ordering::Release);
        loop {
            let count = ring.read(into)?;
            if count > 0 || into.is_empty() || ring.wait(waker)? {
                return Ok(count);
            }
        }
    }

    /// Bytes that came by the ring.
    pub(super) fn came(&self) -> u64 {
        lock(&self.reader).as_mut().map_or_else(|| self.came.load(Ordering::Relaxed), RingReader::written)
    }

    /// Nobody reads any more.
    pub(super) fn stop_reading(&self) {
        self.came.store(self.came(), Ordering::Relaxed);
        *lock(&self.reader) = None;
    }
}
