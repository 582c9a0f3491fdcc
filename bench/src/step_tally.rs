//! Counts the steps of a round and turns them into figures. Pure: the time is an argument, so that every system counts
//! by the same rule.

use std::time::{Duration, Instant};

use hdrhistogram::Histogram;

use crate::pace::Pace;
use crate::plan::Plan;
use crate::sample::{Course, Metric, Sample, record_round_trip, round_trip_histogram};
use crate::stopwatch::RoundClock;

/// Steps one after another, without a pause.
#[derive(Clone, Debug)]
pub(crate) struct StepTally {
    clock: RoundClock,
    pace: Pace,
    /// The times of those that count.
    times: Histogram<u64>,
    taken: Duration,
    /// Those of the warm-up as well.
    steps: u64,
}

impl StepTally {
    /// A tally of a round that starts now and counts for `length`.
    pub(crate) fn start(now: Instant, length: Duration) -> Self {
        let clock = RoundClock::start(now, length);
        let pace = Pace::start(now, length);
        Self { clock, pace, times: round_trip_histogram(), taken: Duration::ZERO, steps: 0 }
    }

    /// Notes a step; says whether the round is over. One that began in the warm-up does not count.
    pub(crate) fn completed(&mut self, began: Instant, ended: Instant) -> bool {
        self.steps += 1;
        if !self.clock.counts(began) {
            return false;
        }
        if self.taken.is_zero() {
            self.pace.begin(began);
        }
        let took = ended - began;
        record_round_trip(&mut self.times, took);
        self.taken += took;
        self.pace.completed(1, ended);
        self.clock.is_over(ended)
    }

    /// Steps so far, with those of the warm-up.
    pub(crate) fn steps(&self) -> u64 {
        self.steps
    }

    /// Steps in a second.
    fn per_second(&self) -> f64 {
        self.times.len() as f64 / self.taken.as_secs_f64()
    }

    /// The round as a rate of tensors, of which each step has so many.
    pub(crate) fn tensors_per_second(&self, tensors: usize) -> Sample {
        let (metric, of_each) = (Metric::TensorsPerSecond, tensors as f64);
        let course = Course::of(metric, of_each, self.pace.stretches());
        Sample { course: Some(course), ..Sample::figure(metric, self.per_second() * of_each) }
    }

    /// The round's figures; `messages` are those of one step, where there are any.
    pub(crate) fn sample(&self, plan: &Plan, messages: Option<f64>) -> Sample {
        let per_second = self.per_second();
        let bytes = plan.step.iter().sum::<usize>() as f64;
        let mut figures = vec![
            (Metric::StepTime, self.times.value_at_quantile(0.5) as f64 / 1e6),
            (Metric::StepsPerSecond, per_second),
            (Metric::TensorsPerSecond, per_second * plan.step.len() as f64),
            (Metric::GigabytesPerSecond, per_second * bytes / 1e9),
        ];
        figures.extend(messages.map(|messages| (Metric::MessagesPerStep, messages)));
        let course = Course::of(Metric::StepsPerSecond, 1.0, self.pace.stretches());
        Sample { figures, course: Some(course), ..Sample::default() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::Bench;

    #[test]
    fn steps_after_the_warm_up_count() {
        let start = Instant::now();
        let at = |ms| start + Duration::from_millis(ms);
        let mut tally = StepTally::start(start, Duration::from_millis(100));
        assert!(!tally.completed(at(0), at(50)), "it began in the warm-up");
        assert!(!tally.completed(at(50), at(52)) && !tally.completed(at(52), at(62)));
        assert!(tally.completed(at(62), at(150)));
        assert_eq!(tally.steps(), 4);
        let sample = tally.sample(&Plan { step: vec![1_000; 100], ..Plan::new(Bench::Fuse) }, Some(2.0));
        let of = |metric| sample.figures.iter().find(|(name, _)| *name == metric).expect("it is one of them").1;
        assert!((of(Metric::StepTime) - 10.0).abs() < 0.02, "the median");
        assert!((of(Metric::StepsPerSecond) - 30.0).abs() < 0.01, "three in a tenth of a second");
        assert!((of(Metric::TensorsPerSecond) - 3_000.0).abs() < 1.0);
        assert!((of(Metric::GigabytesPerSecond) - 0.003).abs() < 1e-6);
        assert_eq!(of(Metric::MessagesPerStep), 2.0);
        let course = sample.course.expect("its pace was kept");
        assert_eq!((course.metric, course.points.len()), (Metric::StepsPerSecond, 2));
        assert!((course.points[0].value - 2.0 / 0.012).abs() < 0.1, "two steps in 12 ms: {course:?}");
    }
}
