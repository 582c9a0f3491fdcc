//! Measures systems in turn: in every round each of them once, so that what changes on the machine
//! during a run changes for all of them, and ratios can be taken round by round.

use std::time::Instant;

use hdrhistogram::Histogram;

use crate::error::BenchError;
use crate::plan::Plan;
use crate::progress::Progress;
use crate::sample::{Metric, Sample, round_trip_histogram};
use crate::system::System;

/// All rounds of one system.
#[derive(Clone, Debug)]
pub struct Measured {
    /// The system's name.
    pub system: &'static str,
    /// How it was run.
    pub variant: String,
    /// One sample a round, in the order of the rounds.
    pub samples: Vec<Sample>,
}

impl Measured {
    /// The round trips of all rounds together, if the system measures them.
    pub fn all_round_trips(&self) -> Option<Histogram<u64>> {
        let mut rounds = self.samples.iter().filter_map(|sample| sample.round_trips.as_ref());
        let mut all = round_trip_histogram();
        all.add(rounds.next()?).expect("all have the same bounds");
        for round in rounds {
            all.add(round).expect("all have the same bounds");
        }
        Some(all)
    }

    /// One metric's value in each round; empty if the system does not measure it.
    pub fn values(&self, metric: Metric) -> Vec<f64> {
        self.samples
            .iter()
            .flat_map(|sample| &sample.figures)
            .filter_map(|(name, value)| (*name == metric).then_some(*value))
            .collect()
    }

    /// The metrics of which this has values, in the order of their first appearance.
    pub fn metrics(&self) -> Vec<Metric> {
        let first = self.samples.first();
        first.map(|sample| sample.figures.iter().map(|(name, _)| *name).collect()).unwrap_or_default()
    }
}

/// Runs the plan's rounds. The first system of a round is another one each time, so that none
/// always follows the same one.
///
/// # Errors
/// The first failure of any system ends the run.
pub fn take_turns(systems: &mut [System], plan: &Plan, progress: &mut Progress) -> Result<Vec<Measured>, BenchError> {
    let mut measured: Vec<Measured> = systems
        .iter()
        .map(|system| Measured { system: system.name, variant: system.variant.clone(), samples: Vec::new() })
        .collect();
    progress.begin(plan.rounds, systems.len());
    let start = Instant::now();
    for round in 0..plan.rounds {
        for turn in 0..systems.len() {
            let index = (turn + round as usize) % systems.len();
            let system = &mut systems[index];
            system.resume()?;
            let began = start.elapsed();
            let sample = Sample { began, ..system.round(plan.round_length())? };
            system.rest()?;
            progress.measured(round, system.name, &sample);
            measured[index].samples.push(sample);
        }
    }
    progress.end();
    Ok(measured)
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::rc::Rc;
    use std::time::Duration;

    use super::*;
    use crate::plan::Bench;
    use crate::system::Rounds;

    type Log = Rc<RefCell<Vec<String>>>;

    struct Scripted {
        name: &'static str,
        log: Log,
        rounds: u32,
    }

    impl Rounds for Scripted {
        fn resume(&mut self) {
            self.log.borrow_mut().push(format!("{} resumes", self.name));
        }
        fn round(&mut self, length: Duration) -> Result<Sample, BenchError> {
            assert_eq!(length, Duration::from_secs(1));
            if self.rounds == 3 {
                return Err(BenchError::LinkNotBuilt("shm"));
            }
            self.rounds += 1;
            Ok(Sample::figure(Metric::TensorsPerSecond, f64::from(self.rounds)))
        }
        fn rest(&mut self) {
            self.log.borrow_mut().push(format!("{} rests", self.name));
        }
    }

    fn run(rounds: u32) -> (Result<Vec<Measured>, BenchError>, Vec<String>) {
        let log = Log::default();
        let scripted = |name| System::new(name, "scripted", Scripted { name, log: Rc::clone(&log), rounds: 0 });
        let mut systems = ["one", "two"].map(scripted);
        let plan = Plan { rounds, ..Plan::new(Bench::Rate) };
        let outcome = take_turns(&mut systems, &plan, &mut Progress::silent());
        drop(systems);
        (outcome, Rc::into_inner(log).expect("no system is left").into_inner())
    }

    #[test]
    fn systems_take_turns_and_each_round_starts_with_another() {
        let (outcome, log) = run(2);
        let order = ["one", "two", "two", "one"];
        let expected: Vec<String> =
            order.iter().flat_map(|name| [format!("{name} resumes"), format!("{name} rests")]).collect();
        assert_eq!(log, expected);
        for measured in outcome.expect("nothing fails") {
            assert_eq!(measured.values(Metric::TensorsPerSecond), [1.0, 2.0]);
            assert_eq!(measured.metrics(), [Metric::TensorsPerSecond]);
            assert!(measured.all_round_trips().is_none());
            assert!(measured.values(Metric::GigabytesPerSecond).is_empty());
            assert!(measured.samples.is_sorted_by_key(|sample| sample.began));
        }
    }

    #[test]
    fn a_failed_round_ends_the_run() {
        let (outcome, _) = run(4);
        assert!(matches!(outcome, Err(BenchError::LinkNotBuilt(_))));
    }

    #[test]
    fn round_trips_of_all_rounds_are_put_together() {
        let samples = [100, 200, 300].map(|nanoseconds| {
            let mut histogram = round_trip_histogram();
            histogram.saturating_record(nanoseconds);
            Sample::round_trips(histogram)
        });
        let measured = Measured { system: "raw", variant: String::new(), samples: samples.to_vec() };
        let all = measured.all_round_trips().expect("there are some");
        assert_eq!((all.len(), all.min(), all.max()), (3, 100, 300));
    }
}
