//! Hints that memory will be used soon, for which nobody waits. They read and write nothing, so that any address will do.
#![allow(unsafe_code)]

/// Bytes that a processor fetches at once.
const LINE: usize = 64;

/// The bytes from `start` on will be read.
#[inline(always)]
pub fn for_reading(start: *const u8, bytes: usize) {
    #[cfg(target_arch = "x86_64")]
    for line in (0..bytes).step_by(LINE) {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: a hint, of which no address is a fault.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(start.wrapping_add(line).cast()) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = (start, bytes, LINE);
}

/// The bytes from `start` on will be written, and other cores have them.
#[inline(always)]
pub fn for_writing(start: *const u8, bytes: usize) {
    #[cfg(target_arch = "x86_64")]
    for line in (0..bytes).step_by(LINE) {
        let address = start.wrapping_add(line).addr();
        // The intrinsic with that hint compiles to a prefetch for reading unless the target is said to have this instruction.
        // SAFETY: a hint, of which no address is a fault; processors that do not know it do nothing.
        unsafe { std::arch::asm!("prefetchw [{}]", in(reg) address, options(nomem, nostack, preserves_flags)) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = (start, bytes, LINE);
}
