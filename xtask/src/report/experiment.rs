//! An experiment: one command line whose JSON is kept in `bench/results` under the experiment's name. Pure.

use std::path::Path;

/// Rounds of an experiment that says nothing else: the fewest whose median has two on either side.
const ROUNDS: u32 = 5;

/// Counted seconds of a system in a round: many times what a system takes to come up to speed, and few enough for the whole
/// report to take less than half an hour.
const SECONDS: f64 = 0.5;

/// The same of a quick run, which tries the machinery and whose figures mean nothing.
const QUICK_ROUNDS: u32 = 1;
const QUICK_SECONDS: f64 = 0.1;

/// The same of a training run.
const QUICK_TRAINING: &str = "--rounds 1 --steps 20 --exchange-steps 50";

/// The same of a TensorFlow job.
const QUICK_TENSORFLOW: &str = "--rounds 1 --seconds 0.1 --steps 20";

/// What a system costs in a round besides the counted seconds, as far as the forecast of the time knows.
const ROUND_OVERHEAD_S: f64 = 0.3;

/// Where results are kept, from the workspace's root.
pub(super) const RESULTS: &str = "bench/results";

/// What runs an experiment.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Program {
    /// `sealane bench`, which takes rounds and seconds.
    Bench,
    /// `sealane bench growth`, which computes, from the results of others.
    Growth(&'static [&'static str]),
    /// A Python program of this repository, with the package `sealane` beside it.
    Python,
    /// The same, in an environment that has TensorFlow and its plugin.
    TensorFlow,
    /// A step of the RDMA lab, of that name.
    Lab(&'static str),
}

/// One command line, and where its result is.
#[derive(Clone, Copy, Debug)]
pub(super) struct Experiment {
    /// Names its file, too.
    pub(super) name: &'static str,
    pub(super) program: Program,
    /// What follows the name of the program.
    arguments: &'static str,
    rounds: u32,
    seconds: f64,
    /// What a quick run adds.
    more: &'static str,
}

/// An experiment of `sealane bench`.
pub(super) const fn bench(name: &'static str, arguments: &'static str) -> Experiment {
    Experiment { name, program: Program::Bench, arguments, rounds: ROUNDS, seconds: SECONDS, more: "" }
}

/// What another program does, which knows by itself how long.
pub(super) const fn other(name: &'static str, program: Program, arguments: &'static str) -> Experiment {
    Experiment { name, program, arguments, rounds: ROUNDS, seconds: SECONDS, more: "" }
}

impl Experiment {
    /// With other rounds, and other counted seconds of each.
    pub(super) const fn rounds(self, rounds: u32, seconds: f64) -> Experiment {
        Experiment { rounds, seconds, ..self }
    }

    /// The same as short as can be.
    pub(super) fn quick(self) -> Experiment {
        let more = match self.program {
            Program::Python => QUICK_TRAINING,
            Program::TensorFlow => QUICK_TENSORFLOW,
            Program::Bench | Program::Growth(_) | Program::Lab(_) => "",
        };
        Experiment { more, ..self.rounds(QUICK_ROUNDS, QUICK_SECONDS) }
    }

    /// The file that its result is kept in.
    pub(super) fn file(&self, folder: &Path) -> std::path::PathBuf {
        folder.join(self.name).with_extension("json")
    }

    /// The words of the command line after the program's name, without the file that the result goes to. `folder` has the
    /// results that it is computed from.
    pub(super) fn words(&self, folder: &Path) -> Vec<String> {
        let mut words: Vec<String> = Vec::new();
        if matches!(self.program, Program::Bench | Program::Growth(_)) {
            words.push("bench".to_owned());
        }
        words.extend(self.arguments.split_whitespace().chain(self.more.split_whitespace()).map(str::to_owned));
        match self.program {
            Program::Bench => {
                words.extend(["--rounds".to_owned(), self.rounds.to_string()]);
                words.extend(["--seconds".to_owned(), self.seconds.to_string()]);
            }
            Program::Growth(inputs) if !inputs.is_empty() => {
                let file = |name: &&str| folder.join(name).with_extension("json").display().to_string();
                words.push("--calibrate".to_owned());
                words.extend(inputs.iter().map(file));
            }
            Program::Growth(_) | Program::Python | Program::TensorFlow | Program::Lab(_) => {}
        }
        words
    }

    /// The command line, to be run from the workspace's root.
    pub(super) fn command(&self) -> String {
        match self.program {
            Program::Lab(step) => format!("cargo xtask rdma-lab --only {step}"),
            Program::Python | Program::TensorFlow => format!("python {}", self.words(Path::new(RESULTS)).join(" ")),
            Program::Bench | Program::Growth(_) => format!("sealane {}", self.words(Path::new(RESULTS)).join(" ")),
        }
    }

    /// What tells it from others: the command line without baselines and rounds.
    pub(super) fn short(&self) -> String {
        let arguments = self.arguments.split(" --baseline").next().unwrap_or_default();
        if self.program == Program::Bench { format!("bench {arguments}") } else { arguments.to_owned() }
    }

    /// About how many seconds it takes, where that can be known.
    pub(super) fn forecast_s(&self) -> Option<f64> {
        (self.program == Program::Bench).then(|| {
            let words: Vec<&str> = self.arguments.split_whitespace().collect();
            let variants = words.iter().map(|word| word.split(',').count()).product::<usize>();
            let baselines = words.iter().filter(|word| **word == "--baseline").count();
            f64::from(self.rounds) * (self.seconds + ROUND_OVERHEAD_S) * (variants + baselines) as f64
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_can_be_typed() {
        let rate = bench("rate", "rate --window 8 --baseline raw").rounds(3, 0.25);
        assert_eq!(rate.command(), "sealane bench rate --window 8 --baseline raw --rounds 3 --seconds 0.25");
        assert_eq!(rate.quick().command(), "sealane bench rate --window 8 --baseline raw --rounds 1 --seconds 0.1");
        let growth = other("growth", Program::Growth(&["ps_50"]), "growth");
        assert_eq!(growth.command(), "sealane bench growth --calibrate bench/results/ps_50.json");
        assert_eq!(other("lab", Program::Lab("bench_read"), "").command(), "cargo xtask rdma-lab --only bench_read");
    }

    #[test]
    fn the_forecast_counts_variants_and_baselines() {
        let systems = |arguments| bench("x", arguments).rounds(1, 1.0 - ROUND_OVERHEAD_S).forecast_s();
        assert_eq!(systems("latency"), Some(1.0));
        assert_eq!(systems("ps --fuse off,plan --request-buffers 1,40 --baseline grpc"), Some(5.0));
        assert_eq!(other("x", Program::Python, "").forecast_s(), None);
    }
}
