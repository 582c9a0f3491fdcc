//! When a round warms up, counts and is over. Pure: the time is an argument, so that every system
//! counts by the same rule.

use std::time::{Duration, Instant};

use hdrhistogram::Histogram;

use crate::limits::{WARM_UP_MAX, WARM_UP_SHARE};
use crate::pace::Pace;
use crate::plan::{Bench, Plan};
use crate::sample::{Course, Metric, Sample, record_round_trip, round_trip_histogram};

/// The moments of one round.
#[derive(Clone, Copy, Debug)]
pub struct RoundClock {
    counts_from: Instant,
    ends: Instant,
}

impl RoundClock {
    /// A round that starts now with its warm-up and then counts for `length`.
    pub fn start(now: Instant, length: Duration) -> Self {
        let counts_from = now + length.mul_f64(WARM_UP_SHARE).min(WARM_UP_MAX);
        Self { counts_from, ends: counts_from + length }
    }

    /// Whether the warm-up is behind us.
    pub fn counts(&self, now: Instant) -> bool {
        now >= self.counts_from
    }

    /// Whether no further request should be made.
    pub fn is_over(&self, now: Instant) -> bool {
        now >= self.ends
    }
}

/// The times of a round's requests, of which there is one at a time.
#[derive(Clone, Debug)]
pub(crate) struct RoundTrips {
    clock: RoundClock,
    times: Histogram<u64>,
}

impl RoundTrips {
    /// Those of a round that starts now and counts for `length`.
    pub(crate) fn start(now: Instant, length: Duration) -> Self {
        Self { clock: RoundClock::start(now, length), times: round_trip_histogram() }
    }

    /// Notes one; says whether the round is over. One that began in the warm-up does not count.
    pub(crate) fn completed(&mut self, asked: Instant, answered: Instant) -> bool {
        if !self.clock.counts(asked) {
            return false;
        }
        record_round_trip(&mut self.times, answered - asked);
        self.clock.is_over(answered)
    }

    /// The round.
    pub(crate) fn sample(self) -> Sample {
        Sample::round_trips(self.times)
    }
}

/// Counts completions of a round and turns them into a rate.
///
/// Counting starts at the first completion after the warm-up, which is itself not counted, and
/// ends at the first one after the end, which is: both ends of the interval are completions.
#[derive(Clone, Debug)]
pub struct Tally {
    clock: RoundClock,
    pace: Pace,
    started: Option<Instant>,
    last: Instant,
    counted: u64,
}

impl Tally {
    /// A tally of a round that starts now and counts for `length`.
    pub fn start(now: Instant, length: Duration) -> Self {
        Self {
            clock: RoundClock::start(now, length),
            pace: Pace::start(now, length),
            started: None,
            last: now,
            counted: 0,
        }
    }

    /// Notes that `count` tensors are complete at `now`; says whether the round is over.
    pub fn completed(&mut self, count: u64, now: Instant) -> bool {
        if count == 0 || !self.clock.counts(now) {
            return false;
        }
        match self.started {
            None => {
                self.started = Some(now);
                self.pace.begin(now);
            }
            Some(_) => {
                self.counted += count;
                self.last = now;
                self.pace.completed(count, now);
            }
        }
        self.counted > 0 && self.clock.is_over(now)
    }

    /// Completions a second; 0 when fewer than two moments were seen.
    pub fn per_second(&self) -> f64 {
        match self.started {
            Some(started) if self.last > started => self.counted as f64 / (self.last - started).as_secs_f64(),
            _ => 0.0,
        }
    }

    /// The round's figure: 10^9 bytes a second where the bandwidth is measured, else tensors a second.
    pub fn sample(&self, plan: &Plan) -> Sample {
        let (metric, of_each) = match plan.bench {
            Bench::Bandwidth => (Metric::GigabytesPerSecond, plan.size_bytes as f64 / 1e9),
            _ => (Metric::TensorsPerSecond, 1.0),
        };
        let course = Course::of(metric, of_each, self.pace.stretches());
        Sample { course: Some(course), ..Sample::figure(metric, self.per_second() * of_each) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LENGTH: Duration = Duration::from_millis(500);
    const WARM_UP: Duration = Duration::from_millis(50);

    #[test]
    fn the_warm_up_is_a_share_with_a_maximum() {
        let now = Instant::now();
        let clock = RoundClock::start(now, LENGTH);
        assert!(!clock.counts(now));
        assert!(clock.counts(now + WARM_UP));
        assert!(!clock.is_over(now + LENGTH));
        assert!(clock.is_over(now + WARM_UP + LENGTH));
        let long = RoundClock::start(now, Duration::from_secs(100));
        assert!(long.counts(now + WARM_UP_MAX));
    }

    #[test]
    fn round_trips_after_the_warm_up_count_until_one_ends_after_the_round() {
        let now = Instant::now();
        let mut trips = RoundTrips::start(now, LENGTH);
        assert!(!trips.completed(now, now + WARM_UP), "it began in the warm-up");
        assert!(!trips.completed(now + WARM_UP, now + WARM_UP * 2));
        assert!(trips.completed(now + WARM_UP * 2, now + WARM_UP + LENGTH));
        assert_eq!(trips.sample().round_trips.expect("they were measured").len(), 2);
    }

    #[test]
    fn completions_between_two_completions_are_counted() {
        let now = Instant::now();
        let mut tally = Tally::start(now, LENGTH);
        assert!(!tally.completed(1_000, now), "warm-up");
        assert!(!tally.completed(7, now + WARM_UP), "starts the count");
        assert!(!tally.completed(100, now + WARM_UP + LENGTH / 2));
        assert!(!tally.completed(0, now + WARM_UP + LENGTH), "nothing completed");
        assert!(tally.completed(100, now + WARM_UP + LENGTH));
        assert!((tally.per_second() - 400.0).abs() < 1e-6);
        let plan = Plan { size_bytes: 1_000_000, ..Plan::new(Bench::Bandwidth) };
        let sample = tally.sample(&plan);
        assert_eq!(sample.figures[0].0, Metric::GigabytesPerSecond);
        let course = sample.course.expect("its pace was kept");
        assert_eq!((course.metric, course.points.len()), (Metric::GigabytesPerSecond, 2));
        assert!((course.points[0].value - 0.4).abs() < 1e-6, "{course:?}");
    }

    #[test]
    fn a_round_in_which_everything_is_late_still_counts_something() {
        let now = Instant::now();
        let mut tally = Tally::start(now, LENGTH);
        assert!(!tally.completed(1, now + LENGTH * 3), "only starts the count");
        assert!(tally.completed(1, now + LENGTH * 5));
        assert!((tally.per_second() - 1.0).abs() < 1e-6);
        assert_eq!(Tally::start(now, LENGTH).per_second(), 0.0);
    }
}
