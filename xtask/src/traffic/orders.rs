//! Orders of the chore to a task through its standard input. The main thread reads them, the other threads check them.

use std::io::stdin;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::now_us;

/// How long versions are still published while all others rest: pending pulls of them still succeed.
const LAST_WORDS_US: u64 = 1_000_000;

/// A line of standard input.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Order {
    /// Send `count` tensors of `bytes` bytes that nobody requests.
    Burst { bytes: usize, count: usize },
    /// Accept nothing for this long.
    Deaf { millis: u64 },
    /// Begin nothing for this long.
    Rest { millis: u64 },
    /// Begin nothing from this time on, and end when all calls have ended.
    Finish { at_us: u64 },
}

/// The orders so far, in microseconds of the clock; zero if there was none.
#[derive(Debug, Default)]
pub(super) struct Orders {
    finish_at: AtomicU64,
    deaf_until: AtomicU64,
    rest_from: AtomicU64,
    rest_until: AtomicU64,
}

impl Orders {
    /// Reads orders until the one to finish. Without the chore there is no reason to go on.
    pub(super) fn obey(&self, mut burst: impl FnMut(usize, usize)) {
        for line in stdin().lines().map_while(Result::ok) {
            match serde_json::from_str(&line) {
                Ok(Order::Burst { bytes, count }) => burst(bytes, count),
                Ok(Order::Deaf { millis }) => self.deaf_until.store(now_us() + millis * 1000, Relaxed),
                Ok(Order::Rest { millis }) => {
                    self.rest_from.store(now_us(), Relaxed);
                    self.rest_until.store(now_us() + millis * 1000, Relaxed);
                }
                Ok(Order::Finish { at_us }) => return self.finish_at.store(at_us.max(1), Relaxed),
                Err(error) => eprintln!("no order: {line} ({error})"),
            }
        }
        self.finish_at.store(1, Relaxed);
    }

    /// True if nothing may begin any more at that time.
    pub(super) fn is_over(&self, at_us: u64) -> bool {
        let finish_at = self.finish_at.load(Relaxed);
        finish_at != 0 && at_us >= finish_at
    }

    /// How long nothing may begin.
    pub(super) fn rest_for(&self) -> Duration {
        left(&self.rest_until)
    }

    /// How long nothing may be published.
    pub(super) fn silence_for(&self) -> Duration {
        let has_begun = now_us() >= self.rest_from.load(Relaxed) + LAST_WORDS_US;
        if has_begun { self.rest_for() } else { Duration::ZERO }
    }

    /// How long nothing may be accepted.
    pub(super) fn deaf_for(&self) -> Duration {
        left(&self.deaf_until)
    }
}

fn left(until: &AtomicU64) -> Duration {
    Duration::from_micros(until.load(Relaxed).saturating_sub(now_us()))
}
