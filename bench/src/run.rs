//! One run from plan to outcome, on the calling thread, which is pinned meanwhile.
//!
//! Systems are measured in turn, each once in every round, so that changes on the machine during a run affect all of them, and
//! ratios can be taken round by round.

use sealane_cli::machine::Machine;
use sealane_cli::progress::Bar;
use sealane_runtime::allowed_cpus;

use crate::allocator::keep_freed_memory;
use crate::distance::Distance;
use crate::disturbance::Quiet;
use crate::error::BenchError;
use crate::figures::Measured;
use crate::machine::{Pinned, choose_cpus};
use crate::peer::{OtherHost, PeerProgram, take_job};
use crate::plan::Plan;
use crate::report::{Carrier, Machines, Report};
use crate::system::System;
use crate::systems;

/// Whether a run says on standard error how far it is: only between rounds, so that it costs the measured systems nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    Silent,
    /// By a bar if that is a terminal, else by a line for each measurement.
    Shown,
}

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
pub fn run(plan: &Plan, program: &PeerProgram, progress: Progress) -> Result<Outcome, BenchError> {
    plan.check()?;
    keep_freed_memory();
    let allowed = allowed_cpus().map_err(BenchError::failed("the kernel", "tell the CPUs that may be used"))?;
    let cpus = choose_cpus(plan.cpus, &allowed)?;
    let other_host = program.other_host();
    // The other host chooses the producer's CPU.
    let cpus: Vec<usize> = cpus.into_iter().flatten().take(if other_host.is_some() { 1 } else { 2 }).collect();
    let quiet = Quiet::watch();
    let pinned = cpus.first().map(|&consumer| Pinned::to(consumer)).transpose()?;
    let systems = systems::set_up(plan, cpus.get(1).copied(), program)?;
    let machines = machines(&allowed, &cpus, other_host)?;
    let mut outcome = take_turns(systems, plan, progress, machines)?;
    drop(pinned);
    let warnings = &mut outcome.report.warnings;
    warnings.extend(quiet.warnings(&outcome.measured));
    if cfg!(debug_assertions) {
        warnings.push("this program was built for tests: build it with --release".into());
    }
    Ok(outcome)
}

/// Measures systems that the caller has set up, in turn, according to `plan`. Nothing is pinned.
///
/// # Errors
/// As [`run`].
pub(crate) fn run_own(
    plan: &Plan,
    systems: Vec<System>,
    other_host: Option<&OtherHost>,
    progress: Progress,
) -> Result<Outcome, BenchError> {
    let allowed = allowed_cpus().map_err(BenchError::failed("the kernel", "tell the CPUs that may be used"))?;
    take_turns(systems, plan, progress, machines(&allowed, &[], other_host)?)
}

/// This machine and, if producers run there, the other one.
fn machines(allowed: &[usize], cpus: &[usize], other: Option<&OtherHost>) -> Result<Machines, BenchError> {
    let here = Machine::look(allowed, cpus).map_err(BenchError::io("ask for the kernel's release"))?;
    Ok(Machines { here, producers: other.map(|host| host.machine().clone()) })
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

/// Runs the plan's rounds. A different system starts each round, so that none always follows the same one. The first failure of any
/// system ends the run.
fn take_turns(
    mut systems: Vec<System>,
    plan: &Plan,
    progress: Progress,
    machines: Machines,
) -> Result<Outcome, BenchError> {
    let device = systems.iter().find_map(|system| system.device.clone());
    let carrier = Carrier { congestion: one_congestion(&systems)?, device };
    let of = |system: &System| Measured { system: system.name, variant: system.variant.clone(), samples: Vec::new() };
    let mut measured: Vec<Measured> = systems.iter().map(of).collect();
    let count = systems.len() as u64;
    let bar = (progress == Progress::Shown)
        .then(|| Bar::on_stderr(u64::from(plan.rounds) * count, "{bar:32} {pos}/{len} {msg}"));
    let mut distance = Distance::between(&machines.here.pinned);
    for round in 0..plan.rounds {
        distance.look();
        for turn in 0..systems.len() {
            let index = (turn + round as usize) % systems.len();
            let system = &mut systems[index];
            system.resume()?;
            let sample = system.round(plan.round_length())?;
            system.rest()?;
            let headline = format!("{}: {}", system.name, sample.headline());
            if let Some(bar) = &bar
                && !bar.at(u64::from(round) * count + turn as u64 + 1, &headline)
            {
                bar.say(&format!("round {}/{} {headline}", round + 1, plan.rounds));
            }
            measured[index].samples.push(sample);
        }
    }
    distance.look();
    Ok(Outcome { report: Report::new(plan, machines, &carrier, &measured).at(&distance), measured })
}

/// The congestion control of all systems that have one: figures are comparable only if all are equal.
fn one_congestion(systems: &[System]) -> Result<Option<String>, BenchError> {
    let mut found = systems.iter().filter_map(|system| Some((system.name, system.congestion.as_deref()?)));
    let Some((_, one)) = found.next() else { return Ok(None) };
    match found.find(|(_, other)| *other != one) {
        Some((system, other)) => {
            let reason = format!("it has {other}, the others have {one}; set one with --congestion");
            Err(BenchError::failed(system, "run with the congestion control of the others")(reason))
        }
        None => Ok(Some(one.to_owned())),
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::rc::Rc;
    use std::time::Duration;

    use super::*;
    use crate::figures::{Metric, Sample};
    use crate::plan::Bench;
    use crate::system::Client;

    type Log = Rc<RefCell<Vec<String>>>;

    struct Logged {
        name: &'static str,
        log: Log,
        rounds: u32,
    }

    impl Client for Logged {
        fn resume(&mut self) {
            self.log.borrow_mut().push(format!("{} resumes", self.name));
        }
        fn round(&mut self, _plan: &Plan, length: Duration) -> Result<Sample, BenchError> {
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

    fn turns(rounds: u32, congestions: [Option<&str>; 2]) -> (Result<Outcome, BenchError>, Vec<String>) {
        let (log, plan) = (Log::default(), Plan { rounds, ..Plan::new(Bench::Rate) });
        let scripted = |(name, congestion): (_, Option<&str>)| {
            let system = System::new(name, "scripted", &plan, Logged { name, log: Rc::clone(&log), rounds: 0 });
            system.with_congestion(congestion.map(str::to_owned))
        };
        let systems = ["one", "two"].into_iter().zip(congestions).map(scripted).collect();
        let outcome = take_turns(systems, &plan, Progress::Silent, machines(&[0, 1], &[], None).expect("linux tells"));
        (outcome, Rc::into_inner(log).expect("no system is left").into_inner())
    }

    #[test]
    fn systems_take_turns_and_each_round_starts_with_another() {
        let (outcome, log) = turns(2, [None, Some("bbr")]);
        let order = ["one", "two", "two", "one"];
        let expected: Vec<String> =
            order.iter().flat_map(|name| [format!("{name} resumes"), format!("{name} rests")]).collect();
        assert_eq!(log, expected);
        let Outcome { report, measured } = outcome.expect("nothing fails");
        assert_eq!(report.parameters["congestion"], "bbr");
        for measured in measured {
            assert_eq!(measured.values(), [(Metric::TensorsPerSecond, vec![1.0, 2.0])]);
        }
    }

    #[test]
    fn a_failed_round_and_different_congestion_controls_end_the_run() {
        assert!(matches!(turns(4, [None; 2]).0, Err(BenchError::Stalled { .. })));
        let error = turns(1, [Some("bbr"), Some("reno")]).0.expect_err("two");
        assert!(error.to_string().contains("reno") && error.to_string().contains("bbr"));
    }
}
