//! `cargo xtask fuzz`: the fuzz targets of `tests/` under libFuzzer, which finds inputs by what they reach.

mod hunt;
mod places;

use std::path::PathBuf;
use std::sync::Mutex;
use std::thread;

use clap::Args;
use sealane_tests::fuzz::{TARGETS, Target, target};

use crate::Outcome;
use hunt::Hunt;
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
    pub(crate) fn run(&self) -> Outcome {
        let targets = chosen(&self.targets)?;
        if self.list {
            targets.iter().for_each(|target| println!("{:15} {}", target.name, target.reads));
            return Ok(true);
        }
        let places = Places::build()?;
        if let Some(input) = &self.input {
            let [target] = targets[..] else { return Err("an input is for one target: name it".to_owned()) };
            return hunt::passes(&places, target, input);
        }
        if self.merge {
            for target in targets {
                println!("{:15} {}", target.name, hunt::merge(&places, target)?);
            }
            return Ok(true);
        }
        let found = self.hunt(&places, &targets)?;
        println!("{} targets, {found} inputs found that break a promise", targets.len());
        Ok(found == 0)
    }

    /// Runs the targets, `jobs` at a time, and prints what came of each; how much was found.
    fn hunt(&self, places: &Places, targets: &[&'static Target]) -> Result<usize, String> {
        let (runs, seconds) = (self.runs, self.seconds);
        let next = Mutex::new(targets.iter());
        let work = || -> Result<usize, String> {
            let mut count = 0;
            loop {
                // The guard must not live while the target runs.
                let Some(target) = next.lock().expect("nobody panics with it").next() else { return Ok(count) };
                let (status, found) = Hunt { places, target, runs, seconds }.run()?;
                println!("{:15} {status}", target.name);
                found.iter().for_each(|input| println!("{:15} found: {}", target.name, input.display()));
                count += found.len();
            }
        };
        thread::scope(|scope| {
            let workers: Vec<_> = (0..self.jobs.max(1)).map(|_| scope.spawn(work)).collect();
            workers.into_iter().map(|worker| worker.join().expect("a worker returns its error")).sum()
        })
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
