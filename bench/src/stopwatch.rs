//! When a round warms up, counts and is over, and how many steps or tensors it has. Pure: the time is an argument, so that every
//! system counts by the same rule.

use std::time::{Duration, Instant};

use hdrhistogram::Histogram;

use crate::figures::{Metric, Sample, record_round_trip, round_trip_histogram};
use crate::limits::{WARM_UP_MAX, WARM_UP_SHARE};
use crate::plan::{Bench, Plan};

/// The times of one round: start of counting and end.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RoundClock {
    counts_from: Instant,
    ends: Instant,
}

impl RoundClock {
    /// A round that starts now with its warm-up, and then counts for `length`.
    pub(crate) fn start(now: Instant, length: Duration) -> Self {
        let counts_from = now + length.mul_f64(WARM_UP_SHARE).min(WARM_UP_MAX);
        Self { counts_from, ends: counts_from + length }
    }

    /// Whether the warm-up is over.
    pub(crate) fn counts(&self, now: Instant) -> bool {
        now >= self.counts_from
    }

    /// Whether the round is over, so that no further request should be made.
    pub(crate) fn is_over(&self, now: Instant) -> bool {
        now >= self.ends
    }
}

/// The durations of a round's requests or steps, made one at a time.
#[derive(Clone, Debug)]
pub(crate) struct Times {
    clock: RoundClock,
    /// Of those that count.
    times: Histogram<u64>,
    taken: Duration,
    /// Number of all, including those of the warm-up.
    all: u64,
}

impl Times {
    /// For a round that starts now and counts for `length`.
    pub(crate) fn start(now: Instant, length: Duration) -> Self {
        let clock = RoundClock::start(now, length);
        Self { clock, times: round_trip_histogram(), taken: Duration::ZERO, all: 0 }
    }

    /// Records one; returns whether the round is over. One that began in the warm-up does not count.
    pub(crate) fn completed(&mut self, began: Instant, ended: Instant) -> bool {
        self.all += 1;
        if !self.clock.counts(began) {
            return false;
        }
        let took = ended - began;
        record_round_trip(&mut self.times, took);
        self.taken += took;
        self.clock.is_over(ended)
    }

    /// The round as round trips, if these are requests.
    pub(crate) fn round_trips(self) -> Sample {
        Sample::round_trips(self.times)
    }

    /// The round as a rate of tensors, of which each step has this many.
    pub(crate) fn tensors_per_second(&self, tensors: usize) -> Sample {
        Sample::figure(Metric::TensorsPerSecond, self.per_second() * tensors as f64)
    }

    /// The figures of the plan's steps; `messages` counts those of all steps, if known.
    pub(crate) fn steps(&self, plan: &Plan, messages: Option<u64>) -> Sample {
        let per_second = self.per_second();
        let bytes = plan.step.iter().sum::<usize>() as f64;
        let mut figures = vec![
            (Metric::StepTime, self.times.value_at_quantile(0.5) as f64 / 1e6),
            (Metric::StepsPerSecond, per_second),
            (Metric::TensorsPerSecond, per_second * plan.step.len() as f64),
            (Metric::GigabytesPerSecond, per_second * bytes / 1e9),
        ];
        figures.extend(messages.map(|messages| (Metric::MessagesPerStep, messages as f64 / self.all as f64)));
        figures.into()
    }

    fn per_second(&self) -> f64 {
        self.times.len() as f64 / self.taken.as_secs_f64()
    }
}

/// Counts completions of a round and turns them into a rate.
///
/// Counting starts at the first completion after the warm-up, which is not counted itself, and ends at the first one after the end,
/// which is counted: so both ends of the interval are completions.
#[derive(Clone, Debug)]
pub(crate) struct Tally {
    clock: RoundClock,
    started: Option<Instant>,
    last: Instant,
    counted: u64,
}

impl Tally {
    /// A tally of a round that starts now and counts for `length`.
    pub(crate) fn start(now: Instant, length: Duration) -> Self {
        Self { clock: RoundClock::start(now, length), started: None, last: now, counted: 0 }
    }

    /// Records that `count` tensors are complete at `now`; returns whether the round is over.
    pub(crate) fn completed(&mut self, count: u64, now: Instant) -> bool {
        if count == 0 || !self.clock.counts(now) {
            return false;
        }
        match self.started {
            None => self.started = Some(now),
            Some(_) => (self.counted, self.last) = (self.counted + count, now),
        }
        self.counted > 0 && self.clock.is_over(now)
    }

    /// Completions a second; 0 if there were fewer than two completions at different times.
    fn per_second(&self) -> f64 {
        match self.started {
            Some(started) if self.last > started => self.counted as f64 / (self.last - started).as_secs_f64(),
            _ => 0.0,
        }
    }

    /// The round's figure: 10^9 bytes a second if bandwidth is measured, else tensors a second.
    pub(crate) fn sample(&self, plan: &Plan) -> Sample {
        let (metric, of_each) = match plan.bench {
            Bench::Bandwidth => (Metric::GigabytesPerSecond, plan.size_bytes as f64 / 1e9),
            _ => (Metric::TensorsPerSecond, 1.0),
        };
        Sample::figure(metric, self.per_second() * of_each)
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
        assert!(!clock.counts(now) && clock.counts(now + WARM_UP));
        assert!(!clock.is_over(now + LENGTH) && clock.is_over(now + WARM_UP + LENGTH));
        assert!(RoundClock::start(now, Duration::from_secs(100)).counts(now + WARM_UP_MAX));
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
        assert_eq!(tally.sample(&plan).figures[0].0, Metric::GigabytesPerSecond);
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

    #[test]
    fn steps_after_the_warm_up_count_until_one_ends_after_the_round() {
        let start = Instant::now();
        let at = |ms| start + Duration::from_millis(ms);
        let mut times = Times::start(start, Duration::from_millis(100));
        assert!(!times.completed(at(0), at(50)), "it began in the warm-up");
        assert!(!times.completed(at(50), at(52)) && !times.completed(at(52), at(62)));
        assert!(times.completed(at(62), at(150)));
        let sample = times.steps(&Plan { step: vec![1_000; 100], ..Plan::new(Bench::Fuse) }, Some(8));
        let of = |metric| sample.figures.iter().find(|(name, _)| *name == metric).expect("it is one of them").1;
        assert!((of(Metric::StepTime) - 10.0).abs() < 0.02, "the median");
        assert!((of(Metric::StepsPerSecond) - 30.0).abs() < 0.01, "three in a tenth of a second");
        assert!((of(Metric::TensorsPerSecond) - 3_000.0).abs() < 1.0);
        assert!((of(Metric::GigabytesPerSecond) - 0.003).abs() < 1e-6);
        assert_eq!(of(Metric::MessagesPerStep), 2.0, "of all four");
        assert_eq!(times.round_trips().round_trips.expect("they were measured").len(), 3);
    }
}
