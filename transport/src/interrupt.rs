//! Interrupts of calls that block, for threads that must react to signals while they wait, such as the main thread of Python.
//!
//! Threads: the state belongs to the calling thread. Limits: one check per [`INTERRUPT_INTERVAL`].

use std::{
    cell::Cell,
    time::{Duration, Instant},
};

use crate::limits::INTERRUPT_INTERVAL;

#[derive(Clone, Copy)]
struct Interrupt {
    check: fn() -> bool,
    /// `None` until the call first waits.
    next_check: Option<Instant>,
    is_raised: bool,
}

thread_local! {
    static INTERRUPT: Cell<Option<Interrupt>> = const { Cell::new(None) };
}

/// Restores the state of the call that made this one.
struct Outer(Option<Interrupt>);

impl Drop for Outer {
    fn drop(&mut self) {
        INTERRUPT.set(self.0);
    }
}

/// Runs `call`, which may block, on this thread. While it waits, it calls `check` about every 50 ms. Once `check` returns true, the
/// call ends as if its time were over; a collective also ends its group.
pub fn interruptible<T>(check: fn() -> bool, call: impl FnOnce() -> T) -> T {
    let interrupt = Interrupt { check, next_check: None, is_raised: false };
    let _outer = Outer(INTERRUPT.replace(Some(interrupt)));
    call()
}

/// Returns true if the call of this thread is to end. For loops that wait: cheap enough for each pass.
pub fn is_interrupted() -> bool {
    let Some(mut interrupt) = INTERRUPT.get() else { return false };
    if !interrupt.is_raised && interrupt.next_check.is_none_or(|next_check| next_check <= Instant::now()) {
        // The first check is not made at once: most waits are short.
        interrupt.is_raised = interrupt.next_check.is_some() && (interrupt.check)();
        interrupt.next_check = Some(Instant::now() + INTERRUPT_INTERVAL);
        INTERRUPT.set(Some(interrupt));
    }
    interrupt.is_raised
}

/// Returns how long this thread may sleep before the next check, at most `limit`.
pub fn sleep_limit(limit: Duration) -> Duration {
    if INTERRUPT.get().is_some() { limit.min(INTERRUPT_INTERVAL) } else { limit }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn interrupt_lasts_until_its_call_ends() {
        thread_local!(static CHECKS: Cell<u32> = const { Cell::new(0) });
        let check = || CHECKS.replace(CHECKS.get() + 1) == 1;
        assert!(!is_interrupted());
        interruptible(check, || {
            while !is_interrupted() {
                std::thread::sleep(sleep_limit(Duration::from_secs(60)).min(Duration::from_millis(1)));
            }
            assert!(is_interrupted());
            interruptible(|| false, || assert!(!is_interrupted()));
            assert!(is_interrupted());
        });
        assert_eq!(CHECKS.get(), 2);
        assert!(!is_interrupted());
        assert_eq!(sleep_limit(Duration::from_secs(60)), Duration::from_secs(60));
    }
}
