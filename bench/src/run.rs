//! One run from plan to outcome. Runs on the calling thread, which is pinned meanwhile.
//!
//! Systems are measured in turn: in every round each of them once, so that what changes on the machine
//! during a run changes for all of them, and ratios can be taken round by round.

use hdrhistogram::Histogram;

use crate::allocator::keep_freed_memory;
use crate::disturbance::Quiet;
use crate::error::BenchError;
use crate::machine::{Pinned, allowed_cpus, choose_cpus};
use crate::peer::{PeerProgram, take_job};
use crate::plan::Plan;
use crate::progress::Progress;
use crate::report::{Carrier, Report};
use crate::sample::{Metric, Sample, round_trip_histogram};
use crate::system::System;
use crate::systems;
use sealane_cli::machine::Machine;

/// What a run yields: the report, and what it was made from.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// What goes into the JSON.
    pub report: Report,
    /// Every sample of every system, as a plot needs them.
    pub measured: Vec<Measured>,
}

/// Measures what `plan` says; `program` starts the producers.
///
/// # Errors
/// A plan that cannot be run ([`BenchError::is_usage`]) or the first failure of any system.
pub fn run(plan: &Plan, program: &PeerProgram, progress: &mut Progress) -> Result<Outcome, BenchError> {
    plan.check()?;
    keep_freed_memory();
    let allowed = allowed_cpus()?;
    let cpus = choose_cpus(plan.cpus, &allowed)?;
    let machine = look(&allowed, cpus)?;
    let quiet = Quiet::watch();
    let _pinned = cpus.map(|[consumer, _]| Pinned::to(consumer)).transpose()?;
    let mut systems = systems::set_up(plan, cpus, program)?;
    let congestion = one_congestion(&systems)?;
    let device = systems.iter().find_map(|system| system.device.clone());
    let measured = take_turns(&mut systems, plan, progress)?;
    let mut report = Report::new(plan, machine, Carrier { congestion, device }, &measured);
    report.warnings = quiet.warnings(&measured);
    if cfg!(debug_assertions) {
        report.warnings.push("this program was built for tests: build it with --release".into());
    }
    Ok(Outcome { report, measured })
}

/// Measures systems that the caller has set up, in turn, as `plan` says. Nothing is pinned.
///
/// # Errors
/// As [`run`].
pub fn run_own(plan: &Plan, mut systems: Vec<System>, progress: &mut Progress) -> Result<Outcome, BenchError> {
    plan.check()?;
    let machine = look(&allowed_cpus()?, None)?;
    let carrier = Carrier {
        congestion: systems.iter().find_map(|system| system.congestion.clone()),
        device: systems.iter().find_map(|system| system.device.clone()),
    };
    let measured = take_turns(&mut systems, plan, progress)?;
    let report = Report::new(plan, machine, carrier, &measured);
    Ok(Outcome { report, measured })
}

/// Runs the producer of the job that a parent passed as an argument. Returns when the consumer
/// closed its connection; the process also ends when its standard input closes or its parent dies.
///
/// # Errors
/// A job that cannot be read, a CPU that cannot be pinned, a socket that fails.
pub fn serve_peer(job: &str) -> Result<(), BenchError> {
    // Pinned until the process ends, and before any thread starts that should inherit it.
    let (job, _pinned) = take_job(job)?;
    systems::serve(&job)
}

/// The congestion control of all systems that have one: figures are comparable only if it is one.
fn one_congestion(systems: &[System]) -> Result<Option<String>, BenchError> {
    let mut one: Option<&str> = None;
    for system in systems {
        match (one, system.congestion.as_deref()) {
            (Some(expected), Some(found)) if expected != found => {
                return Err(BenchError::CongestionDiffers {
                    system: system.name,
                    found: found.to_owned(),
                    expected: expected.to_owned(),
                });
            }
            (_, found) => one = one.or(found),
        }
    }
    Ok(one.map(str::to_owned))
}

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
    for round in 0..plan.rounds {
        for turn in 0..systems.len() {
            let index = (turn + round as usize) % systems.len();
            let system = &mut systems[index];
            system.resume()?;
            let sample = system.round(plan.round_length())?;
            system.rest()?;
            progress.measured(round, system.name, &sample);
            measured[index].samples.push(sample);
        }
    }
    progress.end();
    Ok(measured)
}

fn look(allowed: &[usize], cpus: Option<[usize; 2]>) -> Result<Machine, BenchError> {
    Machine::look(allowed, cpus).map_err(BenchError::io("ask for the kernel's release"))
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::rc::Rc;
    use std::time::Duration;

    use super::*;
    use crate::plan::Bench;
    use crate::sample::Sample;
    use crate::system::Rounds;

    struct Scripted;

    impl Rounds for Scripted {
        fn round(&mut self, _length: Duration) -> Result<Sample, BenchError> {
            Ok(Sample::default())
        }
    }

    fn congestion_of(names: &[Option<&'static str>]) -> Result<Option<String>, BenchError> {
        let with = |name: &Option<&str>| System::new("scripted", "", Scripted).with_congestion(name.map(str::to_owned));
        one_congestion(&names.iter().map(with).collect::<Vec<_>>())
    }

    #[test]
    fn all_systems_must_share_their_congestion_control() {
        assert_eq!(congestion_of(&[]).expect("none"), None);
        assert_eq!(congestion_of(&[None, Some("bbr"), None]).expect("one"), Some("bbr".into()));
        let error = congestion_of(&[Some("bbr"), Some("reno")]).expect_err("two");
        assert!(error.to_string().contains("reno") && error.to_string().contains("bbr"));
    }

    #[test]
    fn a_plan_that_cannot_be_run_is_refused() {
        let program = PeerProgram::this(&[]);
        let mut plan = Plan { rounds: 0, ..Plan::new(Bench::Latency) };
        let error = run(&plan, &program, &mut Progress::silent()).expect_err("no rounds");
        assert!(error.is_usage() && error.to_string().contains("--rounds"), "{error}");
        plan = Plan { cpus: Some([0, 1_000_000]), ..Plan::new(Bench::Latency) };
        let error = run(&plan, &program, &mut Progress::silent()).expect_err("no such CPU");
        assert!(error.is_usage() && error.to_string().contains("--cpus"), "{error}");
    }

    type Log = Rc<RefCell<Vec<String>>>;

    struct Logged {
        name: &'static str,
        log: Log,
        rounds: u32,
    }

    impl Rounds for Logged {
        fn resume(&mut self) {
            self.log.borrow_mut().push(format!("{} resumes", self.name));
        }
        fn round(&mut self, length: Duration) -> Result<Sample, BenchError> {
            assert_eq!(length, Duration::from_secs(1));
            if self.rounds == 3 {
                return Err(BenchError::Stalled { system: "a", waited: Duration::ZERO });
            }
            self.rounds += 1;
            Ok(Sample::figure(Metric::TensorsPerSecond, f64::from(self.rounds)))
        }
        fn rest(&mut self) {
            self.log.borrow_mut().push(format!("{} rests", self.name));
        }
    }

    fn turns(rounds: u32) -> (Result<Vec<Measured>, BenchError>, Vec<String>) {
        let log = Log::default();
        let scripted = |name| System::new(name, "scripted", Logged { name, log: Rc::clone(&log), rounds: 0 });
        let mut systems = ["one", "two"].map(scripted);
        let plan = Plan { rounds, ..Plan::new(Bench::Rate) };
        let outcome = take_turns(&mut systems, &plan, &mut Progress::silent());
        drop(systems);
        (outcome, Rc::into_inner(log).expect("no system is left").into_inner())
    }

    #[test]
    fn systems_take_turns_and_each_round_starts_with_another() {
        let (outcome, log) = turns(2);
        let order = ["one", "two", "two", "one"];
        let expected: Vec<String> =
            order.iter().flat_map(|name| [format!("{name} resumes"), format!("{name} rests")]).collect();
        assert_eq!(log, expected);
        for measured in outcome.expect("nothing fails") {
            assert_eq!(measured.values(Metric::TensorsPerSecond), [1.0, 2.0]);
            assert_eq!(measured.metrics(), [Metric::TensorsPerSecond]);
            assert!(measured.all_round_trips().is_none());
            assert!(measured.values(Metric::GigabytesPerSecond).is_empty());
        }
    }

    #[test]
    fn a_failed_round_ends_the_run() {
        let (outcome, _) = turns(4);
        assert!(matches!(outcome, Err(BenchError::Stalled { .. })));
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
