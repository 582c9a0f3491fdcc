//! The memory that the two processes of the raw baseline share: its layout, and the one place that turns its address into
//! a reference. An island of unsafe code. Either process may write any word at any time, so all are atomics, of which
//! every value is legal.

#![allow(unsafe_code)]

use std::fs::OpenOptions;
use std::ops::Deref;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, AtomicU64};

use sealane_transport::shm::{SharedMemory, ShmError};

use super::ring::{Apart, RingMemory};
use crate::error::BenchError;

/// What lies in the shared memory, which is zero at first.
#[derive(Debug)]
#[repr(C)]
pub(super) struct Board {
    /// Counts the consumer's orders: at an odd one the producer streams, at an even one it rests.
    pub(super) ordered: Apart<AtomicU64>,
    /// The last order to rest that the producer has followed.
    pub(super) rested: Apart<AtomicU64>,
    /// Copies that the producer has made.
    pub(super) copies: Apart<AtomicU64>,
    /// Counts questions; the producer sleeps on it.
    pub(super) asked: Apart<AtomicU32>,
    /// Counts answers; the consumer sleeps on it.
    pub(super) answered: Apart<AtomicU32>,
    /// Descriptors to the producer.
    pub(super) to_producer: RingMemory,
    /// Descriptors from the producer.
    pub(super) from_producer: RingMemory,
}

/// A board that is mapped into this process.
#[derive(Debug)]
pub(super) struct SharedBoard {
    memory: SharedMemory,
}

impl SharedBoard {
    /// A new board, and the descriptor by which the other process gets at it.
    pub(super) fn create() -> Result<(Self, OwnedFd), BenchError> {
        let created = SharedMemory::create("sealane-bench-raw", size_of::<Board>() as u64, true);
        let (memory, descriptor) = created.map_err(failed("make shared memory"))?;
        Ok((Self { memory }, descriptor))
    }

    /// The board of the consumer, by the path that [`path_of`] gave.
    pub(super) fn open(path: &Path) -> Result<Self, BenchError> {
        let file = OpenOptions::new().read(true).write(true).open(path);
        let descriptor = OwnedFd::from(file.map_err(BenchError::io("open the consumer's shared memory"))?);
        let bytes = (size_of::<Board>() as u64).next_multiple_of(PAGE_BYTES);
        let memory = SharedMemory::open(&descriptor, bytes, true).map_err(failed("map shared memory"))?;
        Ok(Self { memory })
    }
}

/// Shared memory has whole pages.
const PAGE_BYTES: u64 = 4096;

const _: () = assert!(align_of::<Board>() as u64 <= PAGE_BYTES);

impl Deref for SharedBoard {
    type Target = Board;

    fn deref(&self) -> &Board {
        // SAFETY: the memory has at least the board's bytes, since both `create` and `open` ask for them; it begins at a
        // page, which is more alignment than the board needs; it consists of atomics, of which every value is legal and
        // which either process may change; and it stays mapped as long as `self` lives.
        unsafe { self.memory.base().cast::<Board>().as_ref() }
    }
}

/// Where another process of this user finds the file behind a descriptor of this one.
pub(super) fn path_of(descriptor: &OwnedFd) -> PathBuf {
    PathBuf::from(format!("/proc/{}/fd/{}", std::process::id(), descriptor.as_raw_fd()))
}

fn failed(operation: &'static str) -> impl FnOnce(ShmError) -> BenchError {
    move |error| BenchError::io(operation)(std::io::Error::other(error))
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering::Relaxed;

    use super::*;

    #[test]
    fn both_processes_see_one_board() {
        let (near, descriptor) = SharedBoard::create().expect("memory");
        let far = SharedBoard::open(&path_of(&descriptor)).expect("the same memory");
        drop(descriptor);
        near.ordered.store(7, Relaxed);
        assert_eq!(far.ordered.load(Relaxed), 7);
        far.answered.store(3, Relaxed);
        assert_eq!(near.answered.load(Relaxed), 3);
    }

    #[test]
    fn what_is_no_board_is_refused() {
        let absent = SharedBoard::open(Path::new("/proc/self/fd/none")).expect_err("no descriptor");
        assert!(absent.to_string().contains("open the consumer's shared memory"), "{absent}");
        let file = tempfile::NamedTempFile::new().expect("a temporary directory");
        let unsealed = SharedBoard::open(file.path()).expect_err("an ordinary file");
        assert!(unsealed.to_string().contains("map shared memory"), "{unsealed}");
    }
}
