//! `cargo xtask fuzz`: the fuzz targets of `tests/` under libFuzzer, which searches for inputs by the code that they reach. Without
//! cargo-fuzz, which would have to be installed and needs nightly Rust, while the stable compiler accepts the flags that count
//! covered code; the targets themselves check what sanitizers would. All files are below `target/fuzz`, except the corpora in the
//! sources.

use std::fs;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::thread;

use clap::Args;
use sealane_tests::fuzz::corpus::{Inputs, pack};
use sealane_tests::fuzz::{TARGET_VARIABLE, TARGETS, Target, target};

use crate::Outcome;
use crate::build::workspace;
use crate::command::{cargo, run};

/// Makes LLVM count each edge of the code and report compared values.
const RUSTFLAGS: &str = "-Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 \
                         -Cllvm-args=-sanitizer-coverage-inline-8bit-counters \
                         -Cllvm-args=-sanitizer-coverage-pc-table \
                         -Cllvm-args=-sanitizer-coverage-trace-compares";

/// Limits of each run: an input that takes a minute hangs, as a normal one takes a fraction of a millisecond, and the clock also
/// runs while the process is stopped; memory holds a corpus, and inputs that need some megabytes.
const LIMITS: [&str; 3] = ["-timeout=60", "-report_slow_units=60", "-rss_limit_mb=512"];

/// Last lines of libFuzzer that are shown with a finding.
const LINES_SHOWN: usize = 25;

/// Most inputs kept of one target, and their bytes: they must not dominate the sources.
const INPUTS_MAX: usize = 150;
const BYTES_MAX: usize = 64 * 1024;

#[derive(Args)]
#[command(after_help = "Examples:\n  cargo xtask fuzz --runs 10000000\n  \
                        cargo xtask fuzz session frames --seconds 600 --jobs 2\n  cargo xtask fuzz --merge\n  \
                        cargo xtask fuzz session --input target/fuzz/findings/session/crash-0123")]
pub(crate) struct Fuzz {
    /// The targets to run [default: all]
    #[arg(value_name = "TARGET")]
    targets: Vec<String>,
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
        let fuzzer = Fuzzer::build()?;
        if let Some(input) = &self.input {
            let [target] = targets[..] else { return Err("an input is for one target: name it".to_owned()) };
            let status = fuzzer.command(target).arg(input).status();
            return status.map(|status| status.success()).map_err(|error| format!("cannot run it: {error}"));
        }
        if self.merge {
            targets.into_iter().try_for_each(|target| fuzzer.merge(target))?;
            return Ok(true);
        }
        let limit = self.seconds.map_or(format!("-runs={}", self.runs), |most| format!("-max_total_time={most}"));
        let jobs = self.jobs.max(1);
        // Each worker runs every n-th target, and continues after a failed one.
        let work = |worker| {
            let mut own = targets.iter().skip(worker).step_by(jobs);
            own.try_fold(true, |is_well, target| Ok(fuzzer.hunt(target, &limit)? && is_well))
        };
        thread::scope(|scope| {
            let workers: Vec<_> = (0..jobs).map(|worker| scope.spawn(move || work(worker))).collect();
            let mut ends = workers.into_iter().map(|worker| worker.join().expect("a worker returns its error"));
            ends.try_fold(true, |is_well, end: Outcome| Ok(end? && is_well))
        })
    }
}

/// The targets with these names, or all.
fn chosen(names: &[String]) -> Result<Vec<&'static Target>, String> {
    if names.is_empty() {
        return Ok(TARGETS.iter().collect());
    }
    let all = || TARGETS.iter().map(|target| target.name).collect::<Vec<_>>().join(", ");
    let known = |name: &String| target(name).ok_or_else(|| format!("there is no target '{name}', but {}", all()));
    names.iter().map(known).collect()
}

struct Fuzzer {
    program: PathBuf,
    /// `target/fuzz`: a separate build directory, since no other build has its flags.
    folder: PathBuf,
}

impl Fuzzer {
    /// Builds the program with all fuzz targets, `tests/fuzz`, so that it records which code each input reaches.
    ///
    /// # Errors
    /// It does not build, and cargo has said why: libFuzzer is C++, and needs a compiler for that.
    fn build() -> Result<Fuzzer, String> {
        // With an explicit target, the flags apply only to the program, not to build scripts and macros.
        let machine = format!("{}-unknown-linux-gnu", std::env::consts::ARCH);
        let (manifest, folder) = (workspace().join("tests/fuzz/Cargo.toml"), workspace().join("target/fuzz"));
        let mut cargo = cargo();
        cargo.args(["build", "--release", "--locked", "--target", &machine, "--manifest-path"]).arg(manifest);
        cargo.env("RUSTFLAGS", RUSTFLAGS).env("CARGO_TARGET_DIR", &folder).env_remove("CARGO_ENCODED_RUSTFLAGS");
        let status = cargo.stdin(Stdio::null()).status().map_err(|error| format!("cannot run cargo: {error}"))?;
        if !status.success() {
            return Err("the fuzz targets do not build".to_owned());
        }
        Ok(Fuzzer { program: folder.join(machine).join("release/sealane-fuzz"), folder })
    }

    /// libFuzzer for a target, with the limits for every input.
    fn command(&self, target: &Target) -> Command {
        let mut command = Command::new(&self.program);
        command.env(TARGET_VARIABLE, target.name).env("RUST_BACKTRACE", "1");
        command.args(LIMITS).stdin(Stdio::null()).stdout(Stdio::null());
        command
    }

    /// Runs the target up to `limit`, starting from all known inputs, and prints the result; false if an input breaks a promise.
    fn hunt(&self, target: &'static Target, limit: &str) -> Outcome {
        let mut command = self.command(target);
        let findings = self.kept("findings", target)?;
        command.args([limit, &format!("-max_len={}", target.input_bytes_max)]);
        command.arg(format!("-artifact_prefix={}/", findings.display()));
        if !target.words.is_empty() {
            let words: String = target.words.iter().map(|word| format!("\"{}\"\n", escaped(word))).collect();
            let path = self.folder.join("findings").join(target.name).with_extension("words");
            fs::write(&path, words).map_err(|error| format!("{}: {error}", path.display()))?;
            command.arg(format!("-dict={}", path.display()));
        }
        command.arg(self.corpus(target)?);
        let ended = command.stderr(Stdio::piped()).output().map_err(|error| format!("cannot run it: {error}"))?;
        let said = String::from_utf8_lossy(&ended.stderr);
        let lines: Vec<&str> = said.lines().collect();
        let status = lines.iter().rfind(|line| line.contains(" cov: ")).unwrap_or(&"nothing was tried");
        println!("{:15} {status}", target.name);
        if !ended.status.success() {
            eprintln!("{}", lines[lines.len().saturating_sub(LINES_SHOWN)..].join("\n"));
        }
        Ok(ended.status.success())
    }

    /// Rebuilds the target's archive in the sources. Inputs that once broke a promise are kept beside it unchanged.
    fn merge(&self, target: &'static Target) -> Result<(), String> {
        let told = |error| format!("the corpus of {}: {error}", target.name);
        let merged = self.kept("merged", target)?;
        fs::remove_dir_all(&merged).and_then(|()| fs::create_dir(&merged)).map_err(told)?;
        let mut merging = self.command(target);
        // Considers only edges: counting how often each is passed makes corpora many times larger.
        merging.args(["-merge=1", "-use_counters=0"]).arg(&merged);
        run(merging.arg(self.corpus(target)?))?;
        let found = target.found().map_err(told)?;
        let mut candidates = Inputs::new();
        for entry in fs::read_dir(&merged).map_err(told)?.flatten() {
            let input = fs::read(entry.path()).map_err(told)?;
            if found.iter().all(|(_, known)| *known != input) {
                candidates.push((entry.file_name().to_string_lossy().into_owned(), input));
            }
        }
        // The largest inputs reach the most.
        candidates.sort_by_key(|(_, input)| std::cmp::Reverse(input.len()));
        let (mut inputs, mut bytes) = (Inputs::new(), 0);
        for (name, input) in candidates {
            if inputs.len() + found.len() < INPUTS_MAX && bytes + input.len() <= BYTES_MAX {
                bytes += input.len();
                inputs.push((name, input));
            }
        }
        inputs.sort_unstable();
        pack(&target.corpus_archive(), &inputs).map_err(told)?;
        println!("{:15} keeps {} inputs of {bytes} bytes beside {} found", target.name, inputs.len(), found.len());
        Ok(())
    }

    /// The target's directory of inputs from earlier runs: in `corpus` those that reach something, in `findings` those that break a
    /// promise. Runs add to it.
    fn kept(&self, kind: &str, target: &Target) -> Result<PathBuf, String> {
        let folder = self.folder.join(kind).join(target.name);
        fs::create_dir_all(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;
        Ok(folder)
    }

    /// The inputs that runs start from: those found by earlier runs, the target's own seeds, and its corpus in the sources.
    fn corpus(&self, target: &Target) -> Result<PathBuf, String> {
        let folder = self.kept("corpus", target)?;
        let told = |error| format!("the corpus of {}: {error}", target.name);
        let seeds = (target.seeds)().into_iter().enumerate().map(|(number, seed)| (format!("seed-{number:02}"), seed));
        let mut inputs = target.corpus().map_err(told)?.into_iter().chain(seeds);
        inputs.try_for_each(|(name, input)| fs::write(folder.join(name), input)).map_err(told)?;
        Ok(folder)
    }
}

/// A word for libFuzzer's dictionaries, in quotes: bytes that are not plain are written as two hexadecimal digits.
fn escaped(word: &[u8]) -> String {
    let escaped = |byte: &u8| match byte {
        b'"' | b'\\' => format!("\\{}", char::from(*byte)),
        b' '..=b'~' => char::from(*byte).to_string(),
        other => format!("\\x{other:02x}"),
    };
    word.iter().map(escaped).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_written_as_they_are_read() {
        assert_eq!(escaped(b"a \"b\\\x93\n"), r#"a \"b\\\x93\x0a"#);
    }
}
