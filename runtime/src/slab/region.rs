//! The slab's memory: one anonymous mapping, filled at start; bounded by its size, any thread may unmap it.
#![allow(unsafe_code)]

use std::{io, ptr::NonNull};

use super::extents::PAGE;
use crate::error::RuntimeError;

/// Below this the kernel cannot use a huge page anyway.
const HUGE_PAGE: usize = 2 * 1024 * 1024;

#[derive(Debug)]
pub(super) struct Region {
    base: NonNull<u8>,
    bytes: usize,
}

// SAFETY: a region is an address range that belongs to the process; it may be unmapped from any thread.
unsafe impl Send for Region {}

impl Region {
    /// Maps `bytes`, a multiple of the page, zeroed; with `populate` every page is present when this returns.
    pub(super) fn map(bytes: usize, populate: bool) -> Result<Self, RuntimeError> {
        let failed = |operation| RuntimeError::System { operation, source: io::Error::last_os_error() };
        // SAFETY: a new anonymous private mapping at an address that the kernel chooses aliases nothing.
        let base = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                bytes,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
                -1,
                0,
            )
        };
        if base == libc::MAP_FAILED {
            return Err(failed("mapping the slab"));
        }
        let region = Self { base: NonNull::new(base.cast()).expect("a mapping has an address"), bytes };
        if bytes >= HUGE_PAGE {
            // Only advice: fewer TLB misses in large copies where the kernel follows it.
            // SAFETY: the range is the mapping made above; the advice does not change its contents.
            unsafe { libc::madvise(base, bytes, libc::MADV_HUGEPAGE) };
        }
        if populate {
            region.populate()?;
        }
        Ok(region)
    }

    /// The first touch costs a page fault and a zeroed page, 10 to 15 times as much as a copy: pay for it once, here.
    fn populate(&self) -> Result<(), RuntimeError> {
        // SAFETY: the range is this mapping; populating it changes no byte.
        let answer = unsafe { libc::madvise(self.base.as_ptr().cast(), self.bytes, libc::MADV_POPULATE_WRITE) };
        if answer == 0 {
            return Ok(());
        }
        let error = io::Error::last_os_error();
        if error.raw_os_error() != Some(libc::EINVAL) {
            return Err(RuntimeError::System { operation: "populating the slab", source: error });
        }
        // The kernel is older than 5.14 and does not know the advice.
        for at in (0..self.bytes).step_by(PAGE) {
            // SAFETY: `at` is inside the mapping, which is zeroed and not yet handed out.
            unsafe { self.base.add(at).write_volatile(0) };
        }
        Ok(())
    }

    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    pub(super) fn base(&self) -> NonNull<u8> {
        self.base
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours, and the region is dropped after its last buffer.
        unsafe { libc::munmap(self.base.as_ptr().cast(), self.bytes) };
    }
}
