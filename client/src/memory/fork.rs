//! Detects whether this process was forked from the one that attached: one page, which the kernel zeroes in a child; any
//! thread.
//!
//! A child has the same descriptors and the same mappings as its parent. If it used them, two processes would write one ring
//! and allocate the same memory. Reading the page costs a load; asking for the process id would cost a system call of about 100
//! ns.
#![allow(unsafe_code)]

use std::{
    io,
    num::NonZeroUsize,
    ptr::NonNull,
    sync::atomic::{AtomicU32, Ordering},
};

use nix::sys::mman::{MapFlags, MmapAdvise, ProtFlags, madvise, mmap_anonymous, munmap};

const PAGE: usize = 4096;
const PARENT: u32 = 1;

/// A mark that only the process which made it carries.
#[derive(Debug)]
pub(crate) struct ForkMark(NonNull<AtomicU32>);

// SAFETY: the page is this mark's own and stays mapped as long as it lives; its word is atomic.
unsafe impl Send for ForkMark {}
// SAFETY: as above.
unsafe impl Sync for ForkMark {}

impl ForkMark {
    pub(crate) fn new() -> io::Result<ForkMark> {
        let bytes = NonZeroUsize::new(PAGE).expect("a page has bytes");
        let protection = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
        // SAFETY: a new private mapping, at an address that the kernel chooses.
        let page = unsafe { mmap_anonymous(None, bytes, protection, MapFlags::MAP_PRIVATE)? };
        let mark = ForkMark(page.cast());
        // SAFETY: the page was just mapped and holds nothing.
        unsafe { madvise(page, PAGE, MmapAdvise::MADV_WIPEONFORK)? };
        mark.word().store(PARENT, Ordering::Relaxed);
        Ok(mark)
    }

    /// True in a child of the process that made the mark.
    #[inline]
    pub(crate) fn forked(&self) -> bool {
        self.word().load(Ordering::Relaxed) != PARENT
    }

    #[inline]
    fn word(&self) -> &AtomicU32 {
        // SAFETY: the page is mapped and readable as long as `self` lives; any value is a legal word.
        unsafe { self.0.as_ref() }
    }
}

impl Drop for ForkMark {
    fn drop(&mut self) {
        // SAFETY: the mapping is this mark's own, and nobody can use it any more. That it fails means that it is gone.
        let _ = unsafe { munmap(self.0.cast(), PAGE) };
    }
}

#[cfg(test)]
mod tests {
    use nix::{
        sys::wait::{WaitStatus, waitpid},
        unistd::{ForkResult, fork},
    };

    use super::*;

    #[test]
    fn the_process_that_made_the_mark_is_not_its_child() {
        let mark = ForkMark::new().unwrap();
        assert!(!mark.forked());
    }

    #[test]
    fn mark_is_wiped_in_a_child() {
        let mark = ForkMark::new().unwrap();
        // SAFETY: the child only loads a word and exits, without running anything of the parent's.
        match unsafe { fork() }.unwrap() {
            // SAFETY: as above.
            ForkResult::Child => unsafe { nix::libc::_exit(i32::from(!mark.forked())) },
            ForkResult::Parent { child } => {
                assert_eq!(waitpid(child, None).unwrap(), WaitStatus::Exited(child, 0));
            }
        }
        assert!(!mark.forked());
    }
}
