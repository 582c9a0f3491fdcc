//! A ring of bytes from one client to the other: what a stream carries, past the daemon. The writer copies in, the reader out. Each end on
//! one thread at a time, without locks, system calls or allocation.
//!
//! Two positions count the bytes since the ring was taken into use: of those that were written, by the writer, and of those that were read,
//! by the reader. Whose turn it is to do something is said in two more words: an end that finds nothing to do says that it *waits*, and
//! looks once more; an end that has done something looks whether the other waits. So at least one of them sees the other (Dekker's idea, as
//! in
//! `sealane_runtime::SleepFlag`). A writer that waits is told when half of the ring is free, or all that there is was read.
//!
//! Each end believes a position of the other only if it can be: not before the last, nor further ahead than the ring has bytes.

#[cfg(loom)]
use loom::sync::atomic::{AtomicU64, Ordering, fence};
#[cfg(not(loom))]
use std::sync::atomic::{AtomicU64, Ordering, fence};

use crate::shm::ring::Broken;

/// Where a ring of bytes lies.
pub trait BytesMemory {
    /// How many bytes it holds, a power of two.
    const BYTES: u64;

    /// Bytes that were written.
    fn written(&self) -> &AtomicU64;

    /// Bytes that were read.
    fn read(&self) -> &AtomicU64;

    /// Not 0 if the writer waits for room.
    fn writer_waits(&self) -> &AtomicU64;

    /// Not 0 if the reader waits for bytes.
    fn reader_waits(&self) -> &AtomicU64;

    /// Which use of the ring it is, from 1 on; by the writer.
    fn used(&self) -> &AtomicU64;

    /// The last use that its reader has no use for any more; by the reader.
    fn left(&self) -> &AtomicU64;

    /// Copies bytes in, from a position on, which is taken modulo how many there are.
    fn copy_in(&self, position: u64, bytes: &[u8]);

    /// Copies bytes out, likewise.
    fn copy_out(&self, position: u64, into: &mut [u8]);
}

/// The end that writes.
pub struct BytesWriter<M> {
    memory: M,
    written: u64,
    /// Bytes that were read, when it last looked.
    read: u64,
}

impl<M: BytesMemory> BytesWriter<M> {
    /// The writing end of a ring that is used for the `used`th time, from 1 on; `None` if it may still be read of the time before.
    pub fn begin(memory: M, used: u64) -> Option<Self> {
        // LEFT: Acquire here, Release in the reader's drop: nothing of the last use comes after this.
        if memory.left().load(Ordering::Acquire) != used - 1 {
            return None;
        }
        let words = [memory.written(), memory.read(), memory.writer_waits(), memory.reader_waits()];
        words.into_iter().for_each(|word| word.store(0, Ordering::Relaxed));
        // USED: Release here, Acquire in `BytesReader::begin`.
        memory.used().store(used, Ordering::Release);
        Some(Self { memory, written: 0, read: 0 })
    }

    /// Copies in as many of the bytes as there is room for; how many.
    ///
    /// # Errors
    /// [`Broken`] if the reader has read what cannot be.
    pub fn write(&mut self, bytes: &[u8]) -> Result<usize, Broken> {
        if self.room() < bytes.len() as u64 {
            self.look()?;
        }
        let count = bytes.len().min(self.room() as usize);
        if count > 0 {
            self.memory.copy_in(self.written, &bytes[..count]);
            self.written += count as u64;
            // WRITTEN: Release here, Acquire in `BytesReader::look`: who sees the position sees the bytes.
            self.memory.written().store(self.written, Ordering::Release);
        }
        Ok(count)
    }

    /// Where it lies.
    pub fn memory(&self) -> &M {
        &self.memory
    }

    /// Bytes that were written since the ring was taken into use.
    pub fn written(&self) -> u64 {
        self.written
    }

    /// After a write: true if the reader waits, and is to be told.
    pub fn must_tell(&self) -> bool {
        let must_tell = is_waited_for(self.memory.reader_waits());
        if must_tell {
            self.memory.reader_waits().store(0, Ordering::Relaxed);
        }
        must_tell
    }

    /// Says that this end waits for room; false if there is some, and it does not.
    ///
    /// # Errors
    /// As [`write`](Self::write).
    pub fn wait(&mut self) -> Result<bool, Broken> {
        say_waits(self.memory.writer_waits());
        self.look()?;
        Ok(self.room() == 0)
    }

    fn room(&self) -> u64 {
        M::BYTES - (self.written - self.read)
    }

    fn look(&mut self) -> Result<(), Broken> {
        // READ: Acquire here, Release in `BytesReader::read`: what was read is not overwritten before it was.
        let read = self.memory.read().load(Ordering::Acquire);
        if read < self.read || read > self.written {
            return Err(Broken { what: "a ring was read beyond what was written, or backwards", found: read });
        }
        self.read = read;
        Ok(())
    }
}

/// The end that reads. Dropped, it leaves the ring to be used again.
pub struct BytesReader<M: BytesMemory> {
    memory: M,
    used: u64,
    read: u64,
    /// Bytes that were written, when it last looked.
    written: u64,
}

impl<M: BytesMemory> BytesReader<M> {
    /// The reading end of a ring that is used for the `used`th time; `None` if it is not. One for each use.
    pub fn begin(memory: M, used: u64) -> Option<Self> {
        // USED: see `BytesWriter::begin`.
        let is_used = memory.used().load(Ordering::Acquire) == used;
        is_used.then(|| Self { memory, used, read: 0, written: 0 })
    }

    /// Copies out as many bytes as there are and have room; how many.
    ///
    /// # Errors
    /// [`Broken`] if the writer has written what cannot be.
    pub fn read(&mut self, into: &mut [u8]) -> Result<usize, Broken> {
        if self.written - self.read < into.len() as u64 {
            self.look()?;
        }
        let count = into.len().min((self.written - self.read) as usize);
        if count > 0 {
            self.memory.copy_out(self.read, &mut into[..count]);
            self.read += count as u64;
            // READ: see `BytesWriter::look`.
            self.memory.read().store(self.read, Ordering::Release);
        }
        Ok(count)
    }

    /// Where it lies.
    pub fn memory(&self) -> &M {
        &self.memory
    }

    /// Bytes that were written since the ring was taken into use.
    ///
    /// # Errors
    /// As [`read`](Self::read).
    pub fn written(&mut self) -> Result<u64, Broken> {
        self.look()?;
        Ok(self.written)
    }

    /// As many of them as were found when it last looked.
    pub fn found(&self) -> u64 {
        self.written
    }

    /// After a read: true if the writer waits, and is to be told.
    ///
    /// # Errors
    /// As [`read`](Self::read).
    pub fn must_tell(&mut self) -> Result<bool, Broken> {
        if !is_waited_for(self.memory.writer_waits()) {
            return Ok(false);
        }
        self.look()?;
        let has_half = self.written - self.read <= M::BYTES / 2;
        if has_half {
            self.memory.writer_waits().store(0, Ordering::Relaxed);
        }
        Ok(has_half)
    }

    /// Says that this end waits for bytes; false if there are some, and it does not.
    ///
    /// # Errors
    /// As [`read`](Self::read).
    pub fn wait(&mut self) -> Result<bool, Broken> {
        say_waits(self.memory.reader_waits());
        self.look()?;
        Ok(self.written == self.read)
    }

    fn look(&mut self) -> Result<(), Broken> {
        // WRITTEN: see `BytesWriter::write`.
        let written = self.memory.written().load(Ordering::Acquire);
        if written < self.written || written - self.read > M::BYTES {
            return Err(Broken { what: "a ring was written beyond its end, or backwards", found: written });
        }
        self.written = written;
        Ok(())
    }
}

impl<M: BytesMemory> Drop for BytesReader<M> {
    fn drop(&mut self) {
        // LEFT: see `BytesWriter::begin`.
        self.memory.left().store(self.used, Ordering::Release);
    }
}

/// Before it looks once more.
fn say_waits(waits: &AtomicU64) {
    waits.store(1, Ordering::Relaxed);
    // Pairs with the fence in `is_waited_for`.
    fence(Ordering::SeqCst);
}

/// After what the other may wait for was done.
fn is_waited_for(waits: &AtomicU64) -> bool {
    // Pairs with the fence in `say_waits`.
    fence(Ordering::SeqCst);
    waits.load(Ordering::Relaxed) != 0
}

#[cfg(test)]
mod tests;
