//! Hints that memory will be used soon, which nothing waits for. They read and write nothing, so any address is allowed.
#![allow(unsafe_code)]

/// Bytes that a processor fetches at once: a cache line.
const LINE: usize = 64;

/// Fetches the bytes from `start` on for reading.
#[inline(always)]
pub fn for_reading(start: *const u8, bytes: usize) {
    #[cfg(target_arch = "x86_64")]
    for line in (0..bytes).step_by(LINE) {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: a prefetch is only a hint, and no address faults.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(start.wrapping_add(line).cast()) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = (start, bytes, LINE);
}

/// Fetches the bytes from `start` on for writing, where other cores hold them.
#[inline(always)]
pub fn for_writing(start: *const u8, bytes: usize) {
    #[cfg(target_arch = "x86_64")]
    for line in (0..bytes).step_by(LINE) {
        let address = start.wrapping_add(line).addr();
        // The intrinsic with that hint compiles to a prefetch for reading unless the target is declared to have this instruction.
        // SAFETY: a prefetch is only a hint, and no address faults; processors that do not know it do nothing.
        unsafe { std::arch::asm!("prefetchw [{}]", in(reg) address, options(nomem, nostack, preserves_flags)) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = (start, bytes, LINE);
}
