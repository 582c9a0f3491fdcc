//! What the chore tells a task through its standard input. Read by the main thread, looked at by the others.

use std::io::{BufRead, stdin};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::now_us;

/// How long versions go on being published when all others rest.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// A line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Order {
    /// Send so many tensors of so many bytes that nobody asks for.
    Burst { bytes: usize, count: usize },
    /// Accept nothing for so long.
    Deaf { millis: u64 },
    /// Begin nothing for so long.
    Rest { millis: u64 },
    /// Begin nothing from then on, and end when all has ended.
    Finish { at_us: u64 },
}

/// What was told so far, in microseconds of the clock.
#[derive(Debug)]
pub(super) struct Orders {
    finish_at: AtomicU64,
    deaf_until: AtomicU64,
    rest_from: AtomicU64,
    rest_until: AtomicU64,
}

impl Default for Orders {
    fn default() -> Self {
        let never = || AtomicU64::new(0);
        Orders { finish_at: AtomicU64::new(u64::MAX), deaf_until: never(), rest_from: never(), rest_until: never() }
    }
}

impl Orders {
    /// Reads orders until the one to finish. Without the chore there is no reason to go on.
    pub(super) fn obey(&self, mut burst: impl FnMut(usize, usize)) {
        for line in stdin().lock().lines().map_while(Result::ok) {
            match serde_json::from_str(&line) {
                Ok(Order::Burst { bytes, count }) => burst(bytes, count),
                Ok(Order::Deaf { millis }) => self.deaf_until.store(now_us() + millis * 1000, Ordering::Relaxed),
                Ok(Order::Rest { millis }) => {
                    self.rest_from.store(now_us() + LAST_WORDS.as_micros() as u64, Ordering::Relaxed);
                    self.rest_until.store(now_us() + millis * 1000, Ordering::Relaxed);
                }
                Ok(Order::Finish { at_us }) => return self.finish_at.store(at_us, Ordering::Relaxed),
                Err(error) => eprintln!("no order: {line} ({error})"),
            }
        }
        self.finish_at.store(0, Ordering::Relaxed);
    }

    /// True if nothing is to begin any more at that time.
    pub(super) fn is_over(&self, at_us: u64) -> bool {
        at_us >= self.finish_at.load(Ordering::Relaxed)
    }

    /// How long nothing is to begin.
    pub(super) fn rest_for(&self) -> Duration {
        Duration::from_micros(self.rest_until.load(Ordering::Relaxed).saturating_sub(now_us()))
    }

    /// How long nothing is to be published: what others have begun to wait for still comes.
    pub(super) fn silence_for(&self) -> Duration {
        let has_begun = now_us() >= self.rest_from.load(Ordering::Relaxed);
        if has_begun { self.rest_for() } else { Duration::ZERO }
    }

    /// How long nothing is to be accepted.
    pub(super) fn deaf_for(&self) -> Duration {
        Duration::from_micros(self.deaf_until.load(Ordering::Relaxed).saturating_sub(now_us()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_finish_counts_from_its_time_on() {
        let orders = Orders::default();
        assert!(!orders.is_over(u64::MAX - 1));
        orders.finish_at.store(10, Ordering::Relaxed);
        assert!(!orders.is_over(9) && orders.is_over(10));
    }
}
