//! How the daemon finishes: it takes nothing new, and waits for what is under way, but not for ever. Pure.

use std::time::{Duration, Instant};

/// How often a draining daemon counts what is under way. Nothing tells it, so that calls need not; a drain is short, and
/// to a person who waits for it this is at once.
pub(super) const LOOK_EVERY: Duration = Duration::from_millis(10);

/// A drain that has begun.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Drain {
    until: Instant,
}

/// How a drain stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Progress {
    /// Calls are under way: look again then.
    Wait(Instant),
    /// Over; so many calls are ended by the stop.
    Over {
        /// Calls that have not ended by themselves.
        left: usize,
    },
}

impl Drain {
    /// Begins a drain that takes `timeout` at most.
    pub(super) fn begin(now: Instant, timeout: Duration) -> Drain {
        Drain { until: now + timeout }
    }

    /// Where the drain stands with that many calls under way.
    pub(super) fn look(&self, now: Instant, under_way: usize) -> Progress {
        if under_way == 0 || now >= self.until {
            Progress::Over { left: under_way }
        } else {
            Progress::Wait(self.until.min(now + LOOK_EVERY))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_drain_ends_with_the_last_call_or_with_its_time() {
        let now = Instant::now();
        let drain = Drain::begin(now, Duration::from_millis(25));
        let after = |ms| now + Duration::from_millis(ms);
        assert_eq!(drain.look(now, 0), Progress::Over { left: 0 });
        assert_eq!(drain.look(now, 3), Progress::Wait(after(10)));
        assert_eq!(drain.look(after(20), 3), Progress::Wait(after(25)));
        assert_eq!(drain.look(after(25), 3), Progress::Over { left: 3 });
        assert_eq!(drain.look(after(25), 0), Progress::Over { left: 0 });
        assert_eq!(Drain::begin(now, Duration::ZERO).look(now, 1), Progress::Over { left: 1 });
    }
}
