//! Stall reports: what kept the shard from taking its turn. On the shard's thread; one log line a second at most.

use std::time::{Duration, Instant};

use crate::limits::STALL_REPORT_EVERY;

/// Measures the time between checkpoints of a turn and notices when it is too long.
pub(crate) struct StallWatch {
    limit: Option<Duration>,
    last: Instant,
    reported: Option<Instant>,
    unreported: u64,
}

/// A stall that is to be logged now.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Stall {
    pub(crate) lasted: Duration,
    /// Stalls since the last report that were not logged.
    pub(crate) unreported: u64,
}

/// The result of a checkpoint.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Lap {
    Fine,
    /// Too long, but the last report is too recent.
    Counted,
    Report(Stall),
}

impl StallWatch {
    pub(crate) fn new(limit: Duration, now: Instant) -> Self {
        let limit = (limit > Duration::ZERO).then_some(limit);
        Self { limit, last: now, reported: None, unreported: 0 }
    }

    /// Whether the shard must read the clock between the turns' own readings.
    pub(crate) fn is_on(&self) -> bool {
        self.limit.is_some()
    }

    /// Ends the lap since the last checkpoint at `now`; time before `set_up_until` was spent setting up and is no stall.
    #[inline]
    pub(crate) fn lap(&mut self, now: Instant, set_up_until: Instant) -> Lap {
        let since = std::mem::replace(&mut self.last, now);
        match self.limit {
            Some(limit) if now.saturating_duration_since(since) > limit => {
                self.long_lap(now.saturating_duration_since(since.max(set_up_until)), limit, now)
            }
            _ => Lap::Fine,
        }
    }

    /// The shard slept until `now`; that is no stall.
    pub(crate) fn slept(&mut self, now: Instant) {
        self.last = now;
    }

    #[cold]
    fn long_lap(&mut self, lasted: Duration, limit: Duration, now: Instant) -> Lap {
        if lasted <= limit {
            return Lap::Fine;
        }
        let soon = |reported| now.saturating_duration_since(reported) < STALL_REPORT_EVERY;
        if self.reported.is_some_and(soon) {
            self.unreported += 1;
            return Lap::Counted;
        }
        self.reported = Some(now);
        Lap::Report(Stall { lasted, unreported: std::mem::take(&mut self.unreported) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn a_long_lap_is_reported_and_the_next_ones_are_counted() {
        let start = Instant::now();
        let mut watch = StallWatch::new(100 * MS, start);
        assert_eq!(watch.lap(start + 100 * MS, start), Lap::Fine);
        let first = Stall { lasted: 150 * MS, unreported: 0 };
        assert_eq!(watch.lap(start + 250 * MS, start), Lap::Report(first));
        assert_eq!(watch.lap(start + 500 * MS, start), Lap::Counted);
        assert_eq!(watch.lap(start + 700 * MS, start), Lap::Counted);
        let later = Stall { lasted: 600 * MS, unreported: 2 };
        assert_eq!(watch.lap(start + 1300 * MS, start), Lap::Report(later));
    }

    #[test]
    fn sleep_is_no_stall_and_zero_turns_reports_off() {
        let start = Instant::now();
        let mut watch = StallWatch::new(100 * MS, start);
        watch.slept(start + 5000 * MS);
        assert_eq!(watch.lap(start + 5001 * MS, start), Lap::Fine);
        let mut off = StallWatch::new(Duration::ZERO, start);
        assert!(!off.is_on() && watch.is_on());
        assert_eq!(off.lap(start + 5000 * MS, start), Lap::Fine);
    }

    #[test]
    fn setting_up_is_no_stall_and_excuses_nothing_that_comes_after_it() {
        let start = Instant::now();
        let mut watch = StallWatch::new(100 * MS, start);
        let set_up_until = start + 900 * MS;
        assert_eq!(watch.lap(start + 1000 * MS, set_up_until), Lap::Fine);
        let stall = Stall { lasted: 101 * MS, unreported: 0 };
        assert_eq!(watch.lap(start + 1101 * MS, set_up_until), Lap::Report(stall));

        let mut watch = StallWatch::new(100 * MS, start);
        let stall = Stall { lasted: 101 * MS, unreported: 0 };
        assert_eq!(watch.lap(start + 1001 * MS, set_up_until), Lap::Report(stall));
    }
}
