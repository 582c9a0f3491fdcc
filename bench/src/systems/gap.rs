//! The gap without work before each request of a latency round, for consumers that are plain threads.

use std::hint;
use std::thread;
use std::time::{Duration, Instant};

/// Lets the gap pass as the run waits for everything else: spinning, or asleep.
pub(super) fn pass(idle: Duration, polling: bool) {
    if !polling {
        return thread::sleep(idle);
    }
    let end = Instant::now() + idle;
    while Instant::now() < end {
        hint::spin_loop();
    }
}
