//! Sleeping until a word in shared memory changes, whoever writes it: Linux's futexes. A process with read-only access to
//! the word can wait for it too. Any thread.

use std::{sync::atomic::AtomicU32, thread, time::Duration};

use rustix::{
    io::Errno,
    thread::futex::{self, Flags, Wait, WaitFlags, WaitvFlags},
    time::{ClockId, Timespec, clock_gettime},
};

/// Most words that [`wait_any`] waits for: the kernel's limit.
const WORDS_MAX: usize = 128;

/// How long [`wait_any`] sleeps if the kernel cannot wait for several words (before Linux 5.16).
const BLIND_SLEEP: Duration = Duration::from_micros(200);

/// Sleeps while the word has the value `seen`, for at most `limit`. It may return early.
pub(super) fn wait(word: &AtomicU32, seen: u32, limit: Duration) {
    // Whatever the kernel answers, the caller looks again.
    let _ = futex::wait(word, Flags::empty(), seen, Some(&timespec(limit)));
}

/// Sleeps while each word has the value that was seen, for at most `limit`. It may return early. Words beyond the first 128
/// wake nobody: if there are more, it returns soon.
pub(super) fn wait_any<'w>(words: impl Iterator<Item = (&'w AtomicU32, u32)>, limit: Duration) {
    let mut words = words;
    let waits: Vec<Wait> = words
        .by_ref()
        .take(WORDS_MAX)
        .map(|(word, seen)| {
            let mut wait = Wait::new();
            (wait.val, wait.uaddr, wait.flags) =
                (seen.into(), word.as_ptr().cast::<libc::c_void>().into(), WaitFlags::SIZE_U32);
            wait
        })
        .collect();
    let limit = if words.next().is_some() { limit.min(BLIND_SLEEP) } else { limit };
    let now = clock_gettime(ClockId::Monotonic);
    let until = Duration::new(now.tv_sec as u64, now.tv_nsec as u32).saturating_add(limit);
    let woken = futex::waitv(&waits, WaitvFlags::empty(), Some(&timespec(until)), futex::ClockId::Monotonic);
    // Some sandboxes refuse it with another error than kernels that lack it.
    if woken.is_err_and(|error| ![Errno::AGAIN, Errno::INTR, Errno::TIMEDOUT].contains(&error)) {
        thread::sleep(limit.min(BLIND_SLEEP));
    }
}

/// Wakes everyone who waits for the word.
pub(super) fn wake(word: &AtomicU32) {
    let _ = futex::wake(word, Flags::empty(), i32::MAX as u32);
}

fn timespec(time: Duration) -> Timespec {
    Timespec { tv_sec: i64::try_from(time.as_secs()).unwrap_or(i64::MAX), tv_nsec: time.subsec_nanos().into() }
}
