//! One run from plan to outcome. Runs on the calling thread, which is pinned meanwhile.

use crate::allocator::keep_freed_memory;
use crate::error::BenchError;
use crate::machine::{Machine, Pinned, allowed_cpus, choose_cpus};
use crate::peer::{PeerProgram, take_job};
use crate::plan::Plan;
use crate::progress::Progress;
use crate::report::{Carrier, Report};
use crate::system::System;
use crate::systems;
use crate::turns::{Measured, take_turns};

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
    let machine = Machine::look(&allowed, cpus)?;
    let _pinned = cpus.map(|[consumer, _]| Pinned::to(consumer)).transpose()?;
    let mut systems = systems::set_up(plan, cpus, program)?;
    let congestion = one_congestion(&systems)?;
    let device = systems.iter().find_map(|system| system.device.clone());
    let measured = take_turns(&mut systems, plan, progress)?;
    let report = Report::new(plan, machine, Carrier { congestion, device }, &measured);
    Ok(Outcome { report, measured })
}

/// Measures a system that the caller has set up, as `plan` says. Nothing is pinned.
///
/// # Errors
/// As [`run`].
pub fn run_own(plan: &Plan, system: System, progress: &mut Progress) -> Result<Outcome, BenchError> {
    plan.check()?;
    let machine = Machine::look(&allowed_cpus()?, None)?;
    let carrier = Carrier { congestion: system.congestion.clone(), device: system.device.clone() };
    let measured = take_turns(&mut [system], plan, progress)?;
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

#[cfg(test)]
mod tests {
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
}
