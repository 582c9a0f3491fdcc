//! `cargo xtask fuzz`: the fuzz targets of `tests/` under libFuzzer, which finds inputs by what they reach.

mod build;
mod hunt;
mod merge;
mod places;

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Mutex;
use std::thread;
use std::time::Duration;

use clap::Args;
use sealane_tests::fuzz::{TARGETS, Target, target};

use hunt::{Hunt, Report, Until};
use places::Places;

#[derive(Args)]
#[command(after_help = "Examples:\n  cargo xtask fuzz --list\n  cargo xtask fuzz --runs 10000000\n  \
                        cargo xtask fuzz session frames --seconds 600 --jobs 2\n  cargo xtask fuzz --merge\n  \
                        cargo xtask fuzz session --input target/fuzz/findings/session/crash-0123")]
pub(crate) struct Fuzz {
    /// The targets to run [default: all]
    #[arg(value_name = "TARGET")]
    targets: Vec<String>,
    /// List the targets
    #[arg(long)]
    list: bool,
    /// Inputs to try for each target
    #[arg(long, default_value_t = 100_000)]
    runs: u64,
    /// Seconds for each target, instead of a number of inputs
    #[arg(long, conflicts_with = "runs")]
    seconds: Option<u64>,
    /// Targets to run concurrently
    #[arg(long, default_value_t = 1)]
    jobs: usize,
    /// Run nothing; rebuild the archives of tests/corpora: a minimal set of inputs with the coverage of all past runs
    #[arg(long, conflicts_with_all = ["seconds", "runs"])]
    merge: bool,
    /// Run one target on this input only, and show the result
    #[arg(long, value_name = "FILE", conflicts_with_all = ["merge", "seconds", "runs"])]
    input: Option<PathBuf>,
}

impl Fuzz {
    pub(crate) fn run(&self) -> ExitCode {
        self.outcome().unwrap_or_else(|error| {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        })
    }

    fn outcome(&self) -> Result<ExitCode, String> {
        let targets = chosen(&self.targets)?;
        if self.list {
            targets.iter().for_each(|target| println!("{:15} {}", target.name, target.reads));
            return Ok(ExitCode::SUCCESS);
        }
        let places = Places { program: build::build()?, folder: build::folder() };
        if let Some(input) = &self.input {
            let [target] = targets[..] else { return Err("an input is for one target: name it".to_owned()) };
            let passes = hunt::passes(&places, target, input)?;
            return Ok(if passes { ExitCode::SUCCESS } else { ExitCode::FAILURE });
        }
        if self.merge {
            for target in targets {
                println!("{:15} {}", target.name, merge::merge(&places, target)?);
            }
            return Ok(ExitCode::SUCCESS);
        }
        let whole = Report::sum(&self.hunt(&places, &targets)?);
        println!("{:15} {whole}", "all");
        Ok(if whole.findings.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }

    /// Runs the targets, `jobs` at a time, and prints what came of each.
    fn hunt(&self, places: &Places, targets: &[&'static Target]) -> Result<Vec<Report>, String> {
        let until = self.seconds.map_or(Until::Runs(self.runs), |seconds| Until::After(Duration::from_secs(seconds)));
        let next = Mutex::new(targets.iter());
        let reports = Mutex::new(Vec::new());
        let work = || -> Result<(), String> {
            loop {
                // The guard must not live while the target runs.
                let Some(target) = next.lock().expect("nobody panics with it").next() else { return Ok(()) };
                let report = Hunt { places, target, until }.run()?;
                println!("{:15} {report}", target.name);
                reports.lock().expect("nobody panics with it").push(report);
            }
        };
        thread::scope(|scope| {
            let workers: Vec<_> = (0..self.jobs.max(1)).map(|_| scope.spawn(work)).collect();
            workers.into_iter().try_for_each(|worker| worker.join().expect("a worker returns its error"))
        })?;
        Ok(reports.into_inner().expect("nobody panics with it"))
    }
}

/// The targets of these names, or all.
fn chosen(names: &[String]) -> Result<Vec<&'static Target>, String> {
    if names.is_empty() {
        return Ok(TARGETS.iter().collect());
    }
    let known = |name: &String| target(name).ok_or_else(|| format!("there is no target '{name}'; --list names them"));
    names.iter().map(known).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_are_chosen_by_name() {
        assert_eq!(chosen(&[]).unwrap().len(), TARGETS.len());
        assert_eq!(chosen(&["frames".to_owned()]).unwrap()[0].name, "frames");
        assert_eq!(chosen(&["frame".to_owned()]).err().unwrap(), "there is no target 'frame'; --list names them");
    }
}
