//! A ring of bytes from one client to the other, for a stream that bypasses the daemon. The writer copies in, the reader
//! copies out. Each end on one thread at a time, without locks, system calls or allocation.
//!
//! Two positions count the bytes since the ring was taken into use: the writer's counts bytes written, the reader's bytes
//! read. Two more words coordinate the ends: an end that finds nothing to do announces that it *waits*, and looks once
//! more; an end that has done something checks whether the other waits. So at least one of them sees the other (Dekker's
//! idea, as in `sealane_runtime::SleepFlag`). A waiting writer is told when half of the ring is free, or everything was
//! read.
//!
//! Each end accepts a position of the other only if it is possible: not before the last one, and not further ahead than the
//! ring is long.

#[cfg(loom)]
use loom::sync::atomic::{AtomicU64, Ordering, fence};
#[cfg(not(loom))]
use std::sync::atomic::{AtomicU64, Ordering, fence};

use crate::shm::ring::Broken;

/// Where a ring of bytes is.
pub trait BytesMemory {
    /// Its size in bytes, a power of two.
    const BYTES: u64;

    fn written(&self) -> &AtomicU64;

    fn read(&self) -> &AtomicU64;

    /// Not 0 if the writer waits for room.
    fn writer_waits(&self) -> &AtomicU64;

    /// Not 0 if the reader waits for bytes.
    fn reader_waits(&self) -> &AtomicU64;

    /// The number of the ring's current use, from 1 on; set by the writer.
    fn used(&self) -> &AtomicU64;

    /// The last use that its reader has finished; set by the reader.
    fn left(&self) -> &AtomicU64;

    /// Copies bytes in at a position, modulo the ring's size.
    fn copy_in(&self, position: u64, bytes: &[u8]);

    /// Copies bytes out from a position, modulo the ring's size.
    fn copy_out(&self, position: u64, into: &mut [u8]);
}

/// The end that writes.
pub struct BytesWriter<M> {
    memory: M,
    written: u64,
    /// Bytes read, when this end last looked.
    read: u64,
}

impl<M: BytesMemory> BytesWriter<M> {
    /// The writing end for the ring's `used`th use, counted from 1; `None` if the reader may not have finished the previous
    /// use.
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

    /// Copies in as many of the bytes as there is room for; returns how many.
    ///
    /// # Errors
    /// [`Broken`] if the reader's position is impossible.
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

    pub fn memory(&self) -> &M {
        &self.memory
    }

    /// Bytes written since the ring was taken into use.
    pub fn written(&self) -> u64 {
        self.written
    }

    /// After a write: true if the reader waits and must be told.
    pub fn must_tell(&self) -> bool {
        let must_tell = is_waited_for(self.memory.reader_waits());
        if must_tell {
            self.memory.reader_waits().store(0, Ordering::Relaxed);
        }
        must_tell
    }

    /// Announces that this end waits for room; false if there is some, and it does not wait.
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

/// The end that reads. Dropping it lets the ring be reused.
pub struct BytesReader<M: BytesMemory> {
    memory: M,
    used: u64,
    read: u64,
    /// Bytes written, when this end last looked.
    written: u64,
}

impl<M: BytesMemory> BytesReader<M> {
    /// The reading end for the ring's `used`th use; `None` if that is not the current one. Only one for each use.
    pub fn begin(memory: M, used: u64) -> Option<Self> {
        // USED: see `BytesWriter::begin`.
        let is_used = memory.used().load(Ordering::Acquire) == used;
        is_used.then(|| Self { memory, used, read: 0, written: 0 })
    }

    /// Copies out as many bytes as there are and fit; returns how many.
    ///
    /// # Errors
    /// [`Broken`] if the writer's position is impossible.
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

    pub fn memory(&self) -> &M {
        &self.memory
    }

    /// Bytes written since the ring was taken into use.
    ///
    /// # Errors
    /// As [`read`](Self::read).
    pub fn written(&mut self) -> Result<u64, Broken> {
        self.look()?;
        Ok(self.written)
    }

    /// Bytes written, as found when this end last looked.
    pub fn found(&self) -> u64 {
        self.written
    }

    /// After a read: true if the writer waits and must be told.
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

    /// Announces that this end waits for bytes; false if there are some, and it does not wait.
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

/// Call this before looking once more.
fn say_waits(waits: &AtomicU64) {
    waits.store(1, Ordering::Relaxed);
    // Pairs with the fence in `is_waited_for`.
    fence(Ordering::SeqCst);
}

/// Call this after doing what the other end may wait for.
fn is_waited_for(waits: &AtomicU64) -> bool {
    // Pairs with the fence in `say_waits`.
    fence(Ordering::SeqCst);
    waits.load(Ordering::Relaxed) != 0
}

#[cfg(test)]
mod tests;
