//! Shared memory: sealed, of a fixed size, mapped once per process and unmapped with its last user; any thread. The only
//! place where its addresses become references, and these are only to atomics, for which every value is legal.
#![allow(unsafe_code)]

use std::{
    os::fd::{AsRawFd, OwnedFd},
    ptr::NonNull,
    sync::{
        Arc,
        atomic::{AtomicU32, AtomicU64},
    },
};

use nix::{
    errno::Errno,
    fcntl::{FcntlArg, SealFlag, fcntl},
    sys::{
        memfd::{MFdFlags, memfd_create},
        resource::{Resource, getrlimit},
        stat::fstat,
    },
    unistd::ftruncate,
};
use sealane_runtime::{SleepFlag, VolatileSlice, VolatileSliceMut};

use super::{
    error::ShmError,
    fields::Span,
    limits::{MEMORY_BYTES_MAX, POPULATED_BYTES_MAX},
};
use crate::channel::{ChannelMemory, RingMemory};

/// Sizes and offsets of shared memory are multiples of this.
pub(super) const PAGE: u64 = 4096;

/// Nobody may shrink the memory (touching what is gone kills the process) or grow it.
const SEALS: SealFlag = SealFlag::F_SEAL_SHRINK.union(SealFlag::F_SEAL_GROW);

/// Nor may anyone change the seals.
const FINAL_SEALS: SealFlag = SEALS.union(SealFlag::F_SEAL_SEAL);

/// `F_SEAL_FUTURE_WRITE` of Linux 5.1, which the libraries do not name: new mappings of the memory are read-only, and
/// nobody can write to the file; existing mappings stay writable.
const SEAL_FUTURE_WRITE: SealFlag = SealFlag::from_bits_retain(0x10);

/// `MFD_NOEXEC_SEAL` of Linux 6.3, which the libraries do not name yet: the file can never be executed.
const NOEXEC_SEAL: MFdFlags = MFdFlags::from_bits_retain(8);

/// A span is outside the memory that it should be in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{} bytes at {} are not within {bytes} bytes of shared memory", span.len, span.offset)]
pub struct OutOfRange {
    pub span: Span,
    /// The size of the memory.
    pub bytes: u64,
}

/// What memory is used for: its seals, and how it is mapped.
#[derive(Debug, Clone, Copy)]
pub(super) struct Purpose {
    seals: SealFlag,
    protection: libc::c_int,
}

pub(super) const SEGMENT: Purpose = Purpose { seals: FINAL_SEALS, protection: libc::PROT_READ | libc::PROT_WRITE };

/// An arena, which others may be allowed to read later.
pub(super) const ARENA: Purpose = Purpose { seals: SEALS, ..SEGMENT };

/// The arena of another client.
pub(super) const OTHERS_ARENA: Purpose = Purpose { seals: SEALS.union(SEAL_FUTURE_WRITE), protection: libc::PROT_READ };

/// A sealed file of memory, mapped; unmapped when dropped.
#[derive(Debug)]
pub(super) struct Mapping {
    base: NonNull<u8>,
    bytes: u64,
}

// SAFETY: a mapping is an address range of the whole process, which any thread may use and unmap.
unsafe impl Send for Mapping {}
// SAFETY: through a shared reference it gives out only atomics and raw pointers.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// New zeroed memory of at least `bytes`, with its descriptor for the other side. The kernel allocates each page on first
    /// use, and charges it to the process that uses it first.
    pub(super) fn create(name: &str, bytes: u64, purpose: Purpose) -> Result<(Arc<Self>, OwnedFd), ShmError> {
        if bytes > MEMORY_BYTES_MAX {
            return Err(ShmError::TooLarge { bytes, limit: MEMORY_BYTES_MAX });
        }
        let bytes = bytes.max(1).next_multiple_of(PAGE);
        // Before the kernel sends SIGXFSZ, which ends a process that does not block or ignore it.
        let limit = file_size_limit();
        if bytes > limit {
            return Err(ShmError::FileSizeLimit { bytes, limit });
        }
        let flags = MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING;
        let fd = match memfd_create(name, flags | NOEXEC_SEAL) {
            // The kernel does not know the flag.
            Err(Errno::EINVAL) => memfd_create(name, flags),
            answer => answer,
        }
        .map_err(ShmError::system("making shared memory"))?;
        ftruncate(&fd, bytes as libc::off_t).map_err(ShmError::system("sizing shared memory"))?;
        fcntl(&fd, FcntlArg::F_ADD_SEALS(purpose.seals)).map_err(ShmError::system("sealing shared memory"))?;
        Ok((Self::map(&fd, bytes, purpose)?, fd))
    }

    /// Opens memory from the other side, which should have `bytes` bytes.
    pub(super) fn open(fd: &OwnedFd, bytes: u64, purpose: Purpose) -> Result<Arc<Self>, ShmError> {
        // A file that cannot have seals (a pipe, an ordinary file) gives EINVAL.
        let seals = fcntl(fd, FcntlArg::F_GET_SEALS).unwrap_or(0);
        if !SealFlag::from_bits_retain(seals).contains(purpose.seals) {
            return Err(ShmError::Unsealed { seals });
        }
        let found = fstat(fd).map_err(ShmError::system("asking for the size of shared memory"))?.st_size as u64;
        if found != bytes {
            return Err(ShmError::WrongSize { announced: bytes, found });
        }
        Self::map(fd, bytes, purpose)
    }

    /// Maps all of a sealed file of exactly `bytes` bytes.
    fn map(fd: &OwnedFd, bytes: u64, purpose: Purpose) -> Result<Arc<Self>, ShmError> {
        // SAFETY: a new mapping at an address that the kernel chooses aliases no memory of this process.
        let base = unsafe {
            libc::mmap(std::ptr::null_mut(), bytes as usize, purpose.protection, libc::MAP_SHARED, fd.as_raw_fd(), 0)
        };
        if base == libc::MAP_FAILED {
            return Err(ShmError::system("mapping shared memory")(Errno::last()));
        }
        Ok(Arc::new(Self { base: NonNull::new(base.cast()).expect("a mapping has an address"), bytes }))
    }

    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The address of `len` bytes at `offset`.
    ///
    /// # Panics
    /// If they are not within the mapping: offsets from outside must be checked first.
    fn at(&self, offset: u64, len: u64) -> NonNull<u8> {
        assert!(offset.checked_add(len).is_some_and(|end| end <= self.bytes), "{len} at {offset} of {}", self.bytes);
        // SAFETY: the offset is within the mapping, or just behind it where `len` is 0.
        unsafe { self.base.add(offset as usize) }
    }

    /// The word at `offset`, a multiple of 8.
    pub(super) fn word(&self, offset: u64) -> &AtomicU64 {
        assert!(offset.is_multiple_of(8));
        // SAFETY: eight aligned bytes within the mapping, which lives as long as `self`; every value is legal, and
        // this process accesses them by atomics alone.
        unsafe { self.at(offset, 8).cast().as_ref() }
    }

    /// The half word at `offset`, a multiple of 4.
    pub(super) fn word32(&self, offset: u64) -> &AtomicU32 {
        assert!(offset.is_multiple_of(4));
        // SAFETY: as `word`, with four bytes.
        unsafe { self.at(offset, 4).cast().as_ref() }
    }

    /// The flag at `offset`, a multiple of 4.
    pub(super) fn sleep_flag(&self, offset: u64) -> &SleepFlag {
        assert!(offset.is_multiple_of(4));
        const { assert!(size_of::<SleepFlag>() == size_of::<AtomicU32>()) };
        // SAFETY: four aligned bytes within the mapping, which lives as long as `self`; the flag is a transparent
        // AtomicU32 of which every value is legal, and this process accesses them by it alone.
        unsafe { self.at(offset, 4).cast().as_ref() }
    }
}

/// The limit on the size of files that this process writes, in bytes.
fn file_size_limit() -> u64 {
    getrlimit(Resource::RLIMIT_FSIZE).map_or(u64::MAX, |(soft, _)| soft)
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours, and everything that refers into it shares ownership of it.
        unsafe { libc::munmap(self.base.as_ptr().cast(), self.bytes as usize) };
    }
}

/// Consecutive runs of `N` words in shared memory; keeps the memory mapped.
pub(super) struct Words<const N: usize> {
    /// Keeps the memory that `first` points into.
    _mapping: Arc<Mapping>,
    first: NonNull<[AtomicU64; N]>,
    /// Number of runs, a power of two.
    count: usize,
}

// SAFETY: it gives out references to atomics only, and owns a share of the mapping that they lie in.
unsafe impl<const N: usize> Send for Words<N> {}
// SAFETY: as above.
unsafe impl<const N: usize> Sync for Words<N> {}

impl<const N: usize> Words<N> {
    /// `count` runs, a power of two, from `offset` on.
    pub(super) fn new(mapping: &Arc<Mapping>, offset: u64, count: usize) -> Self {
        assert!(offset.is_multiple_of(8) && count.is_power_of_two());
        let first = mapping.at(offset, (count * N * 8) as u64).cast();
        Self { _mapping: Arc::clone(mapping), first, count }
    }

    /// The run with this number, modulo their number.
    #[inline]
    pub(super) fn get(&self, number: u64) -> &[AtomicU64; N] {
        let index = number as usize & (self.count - 1);
        // SAFETY: `new` checked that `count` runs from here are aligned and within the mapping, which `self` keeps, and the
        // index is below `count`; they are accessed by atomics alone.
        unsafe { self.first.add(index).as_ref() }
    }

    /// `count` runs from this number on, modulo their number.
    ///
    /// # Panics
    /// If they cross the last.
    #[inline]
    pub(super) fn get_many(&self, number: u64, count: u64) -> &[[AtomicU64; N]] {
        let (index, count) = (number as usize & (self.count - 1), count as usize);
        assert!(count <= self.count - index);
        // SAFETY: as in `get`, for all runs up to the last of these.
        unsafe { std::slice::from_raw_parts(self.first.add(index).as_ptr(), count) }
    }
}

/// Bytes in shared memory that are copied in and out, and wrap around; keeps the memory mapped.
pub(super) struct Bytes {
    /// Keeps the memory that `first` points into.
    _mapping: Arc<Mapping>,
    first: NonNull<u8>,
    /// Number of bytes, a power of two.
    count: usize,
}

// SAFETY: it gives out copies alone, and owns a share of the mapping that they are made of.
unsafe impl Send for Bytes {}

impl Bytes {
    /// `count` bytes, a power of two, from `offset` on.
    pub(super) fn new(mapping: &Arc<Mapping>, offset: u64, count: usize) -> Self {
        assert!(count.is_power_of_two());
        Self { _mapping: Arc::clone(mapping), first: mapping.at(offset, count as u64), count }
    }

    /// Copies `bytes` in at a position, modulo the number of bytes.
    ///
    /// # Panics
    /// If `bytes` is longer than that.
    pub(super) fn copy_in(&self, position: u64, bytes: &[u8]) {
        let at = self.index(position, bytes.len());
        let (one, other) = bytes.split_at(bytes.len().min(self.count - at));
        for (at, part) in [(at, one), (0, other)] {
            // SAFETY: `new` checked that `count` bytes from here are within the mapping, which `self` keeps, and the part ends
            // within them, as `index` checked; this process uses them by volatile slices alone.
            unsafe { VolatileSliceMut::new(self.first.as_ptr().add(at), part.len()) }.copy_from(part);
        }
    }

    /// Copies bytes out from a position, modulo the number of bytes.
    ///
    /// # Panics
    /// As [`copy_in`](Self::copy_in).
    pub(super) fn copy_out(&self, position: u64, into: &mut [u8]) {
        let at = self.index(position, into.len());
        let (one, other) = into.split_at_mut(into.len().min(self.count - at));
        for (at, part) in [(at, one), (0, other)] {
            let len = part.len();
            // SAFETY: as in `copy_in`.
            VolatileSliceMut::from(part).copy_from(unsafe { VolatileSlice::new(self.first.as_ptr().add(at), len) });
        }
    }

    fn index(&self, position: u64, len: usize) -> usize {
        assert!(len <= self.count, "{len} bytes of {}", self.count);
        position as usize & (self.count - 1)
    }
}

/// A ring of `WORDS` words in shared memory, a power of two; keeps the memory mapped.
pub struct Ring<const WORDS: u64> {
    words: Words<1>,
    /// The words that the reader writes.
    reader: Words<4>,
}

impl<const WORDS: u64> Ring<WORDS> {
    /// The ring whose words, and those of its reader, are at these offsets.
    pub(super) fn new(mapping: &Arc<Mapping>, words: u64, reader: u64) -> Self {
        Self { words: Words::new(mapping, words, WORDS as usize), reader: Words::new(mapping, reader, 1) }
    }
}

impl<const N: u64> RingMemory for Ring<N> {
    const WORDS: u64 = N;

    #[inline]
    fn word(&self, position: u64) -> &AtomicU64 {
        &self.words.get(position)[0]
    }

    #[inline]
    fn words(&self, position: u64, count: u64) -> &[AtomicU64] {
        self.words.get_many(position, count).as_flattened()
    }

    #[inline]
    fn read(&self) -> &AtomicU64 {
        &self.reader.get(0)[0]
    }
}

impl<const N: u64> ChannelMemory for Ring<N> {
    #[inline]
    fn took(&self) -> &AtomicU64 {
        &self.reader.get(0)[1]
    }

    #[inline]
    fn returned(&self) -> &AtomicU64 {
        &self.reader.get(0)[2]
    }
}

/// Memory for tensors that both sides read and write: the arena, or the receive area of a segment. Cheap to clone; stays
/// mapped until the last clone is dropped.
#[derive(Debug, Clone)]
pub struct SharedMemory {
    mapping: Arc<Mapping>,
    start: u64,
    bytes: u64,
}

impl SharedMemory {
    /// New zeroed memory, and its descriptor for the other side. `bytes` is rounded up to whole pages, at least one. The kernel
    /// allocates each page on first use, and charges it to the process that uses it first.
    ///
    /// # Errors
    /// [`ShmError::TooLarge`]; [`ShmError::System`] if there is not enough address space.
    pub fn create(name: &str, bytes: u64) -> Result<(Self, OwnedFd), ShmError> {
        let (mapping, fd) = Mapping::create(name, bytes, ARENA)?;
        Ok((Self::part(&mapping, 0), fd))
    }

    /// Opens memory that the other side created and announced as `bytes` long.
    ///
    /// # Errors
    /// [`ShmError::Unsealed`], [`ShmError::WrongSize`], or [`ShmError::System`] if it cannot be mapped.
    pub fn open(fd: &OwnedFd, bytes: u64) -> Result<Self, ShmError> {
        Ok(Self::part(&Mapping::open(fd, bytes, ARENA)?, 0))
    }

    /// Allocates and maps its first [`POPULATED_BYTES_MAX`] bytes, so that their first users have no page faults.
    ///
    /// # Errors
    /// [`ShmError::System`] if there is not enough memory.
    pub fn populate(&self) -> Result<(), ShmError> {
        let bytes = self.bytes.min(POPULATED_BYTES_MAX) as usize;
        // SAFETY: the range lies in a mapping that `self` keeps; populating it changes no byte.
        let populated = unsafe { libc::madvise(self.base().as_ptr().cast(), bytes, libc::MADV_POPULATE_WRITE) };
        match Errno::result(populated) {
            // Some sandboxes do not implement this advice.
            Ok(_) | Err(Errno::EINVAL) => Ok(()),
            Err(errno) => Err(ShmError::system("allocating shared memory")(errno)),
        }
    }

    /// All of a mapping from `start` on.
    pub(super) fn part(mapping: &Arc<Mapping>, start: u64) -> Self {
        Self { bytes: mapping.bytes() - start, mapping: Arc::clone(mapping), start }
    }

    pub fn len(&self) -> u64 {
        self.bytes
    }

    /// True if there are no bytes, as in a segment created without an area.
    pub fn is_empty(&self) -> bool {
        self.bytes == 0
    }

    /// Its first byte; page-aligned, valid while a clone of this lives.
    pub fn base(&self) -> NonNull<u8> {
        self.mapping.at(self.start, self.bytes)
    }

    /// The bytes of a span, which may come from the other side. Valid while a clone of this lives; the other side may change
    /// them at any time.
    ///
    /// # Errors
    /// [`OutOfRange`].
    #[inline]
    pub fn bytes(&self, span: Span) -> Result<NonNull<[u8]>, OutOfRange> {
        match span.offset.checked_add(span.len) {
            Some(end) if end <= self.bytes => {
                let start = self.mapping.at(self.start + span.offset, span.len);
                Ok(NonNull::slice_from_raw_parts(start, span.len as usize))
            }
            _ => Err(OutOfRange { span, bytes: self.bytes }),
        }
    }
}

/// Makes memory that its owner has mapped read-only for everyone who maps it from now on.
///
/// # Errors
/// [`ShmError::System`] if the kernel cannot do so (before Linux 5.1), or the seals are final.
pub(super) fn seal_for_readers(fd: &OwnedFd) -> Result<(), ShmError> {
    // Adding a seal again is allowed, unless the seals are final.
    let sealed = fcntl(fd, FcntlArg::F_ADD_SEALS(SEAL_FUTURE_WRITE));
    sealed.map(drop).map_err(ShmError::system("sealing an arena against writing"))
}

/// The arena of another client, mapped read-only. Cheap to clone; stays mapped until the last clone is dropped, whatever
/// happens to its owner.
#[derive(Debug, Clone)]
pub struct ReadOnlyMemory(Arc<Mapping>);

impl ReadOnlyMemory {
    /// Opens memory that was announced as `bytes` long.
    ///
    /// # Errors
    /// [`ShmError::Unsealed`] also if it could be written to; otherwise as [`SharedMemory::open`].
    pub(super) fn open(fd: &OwnedFd, bytes: u64) -> Result<Self, ShmError> {
        Ok(Self(Mapping::open(fd, bytes, OTHERS_ARENA)?))
    }

    /// The bytes of a span, which may come from the other side. Valid while a clone of this lives, and must never be written
    /// to.
    ///
    /// # Errors
    /// [`OutOfRange`].
    pub fn bytes(&self, span: Span) -> Result<NonNull<[u8]>, OutOfRange> {
        SharedMemory::part(&self.0, 0).bytes(span)
    }

    /// The bytes of a span that its owner may be writing.
    ///
    /// # Errors
    /// [`OutOfRange`].
    pub fn volatile(&self, span: Span) -> Result<VolatileSlice<'_>, OutOfRange> {
        let bytes = self.bytes(span)?;
        // SAFETY: they are mapped as long as this is, and this process cannot write them by it.
        Ok(unsafe { VolatileSlice::new(bytes.as_ptr().cast(), bytes.len()) })
    }
}

#[cfg(test)]
mod tests;
