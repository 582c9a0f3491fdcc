//! Tells the C library's allocator to keep freed memory: an island of unsafe code, as the setting is a C function.
//!
//! By default large blocks go back to the kernel when they are freed and come back page by page. That costs a system that allocates
//! each message most of its bandwidth: gRPC moves 1.0 GB/s of 4 MiB tensors without this and 6 GB/s with it (`bench bandwidth`,
//! congestion control reno). Users who move large messages through gRPC have an allocator that keeps memory, so the baseline has
//! one too; as it belongs to the process, all systems have it.

#![allow(unsafe_code)]

/// Blocks up to this size come from the heap that is kept; it is larger than any tensor in flight.
#[cfg(target_env = "gnu")]
const KEPT_BYTES: i32 = 1 << 30;

/// Makes freed memory stay with this process. Does nothing where the C library is not glibc.
pub(crate) fn keep_freed_memory() {
    #[cfg(target_env = "gnu")]
    for (setting, value) in [(nix::libc::M_MMAP_THRESHOLD, KEPT_BYTES), (nix::libc::M_TRIM_THRESHOLD, i32::MAX)] {
        // SAFETY: mallopt takes its arguments by value and locks the allocator itself; an unknown
        // setting or a value that is too large leaves everything as it was.
        unsafe { nix::libc::mallopt(setting, value) };
    }
}
