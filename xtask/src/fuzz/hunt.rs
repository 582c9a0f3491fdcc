//! One target under libFuzzer: started, listened to, and its findings sorted out; and its corpora, merged.

use std::collections::VecDeque;
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use sealane_tests::fuzz::corpus::{Inputs, pack};
use sealane_tests::fuzz::{TARGET_VARIABLE, Target};

use super::places::Places;
use crate::command::run;

/// Time between two lines of progress.
const PROGRESS_EVERY: Duration = Duration::from_secs(10);
/// An input that takes longer hangs; each takes a fraction of a millisecond.
const INPUT_SECONDS_MAX: u32 = 10;
/// Memory of the process at most: it holds a corpus, and inputs that take some megabytes.
const MEMORY_MIB_MAX: u32 = 512;
/// Last lines of libFuzzer that are shown with a finding.
const LINES_SHOWN: usize = 25;
/// How libFuzzer calls an input that took too long. It goes by the clock, which also runs while the process is stopped.
const TIMEOUT_PREFIX: &str = "timeout-";
/// How it calls one that was slow, and no finding.
const SLOW_PREFIX: &str = "slow-unit-";

/// Inputs that are kept of one target at most, and their bytes: the sources are not to be drowned in them.
const INPUTS_MAX: usize = 150;
const BYTES_MAX: usize = 64 * 1024;

pub(super) struct Hunt<'a> {
    pub(super) places: &'a Places,
    pub(super) target: &'static Target,
    /// Inputs to try, unless there is a number of seconds instead.
    pub(super) runs: u64,
    pub(super) seconds: Option<u64>,
}

impl Hunt<'_> {
    /// Runs the target until it has run for long enough, or has found something; what libFuzzer says last of how far it came, and what
    /// was found.
    pub(super) fn run(&self) -> Result<(String, Vec<PathBuf>), String> {
        let (start, mut runs) = (Instant::now(), 0);
        loop {
            let left = match self.seconds {
                None => format!("-runs={}", self.runs.saturating_sub(runs)),
                Some(seconds) => {
                    format!("-max_total_time={}", seconds.saturating_sub(start.elapsed().as_secs()).max(1))
                }
            };
            let mut status = String::new();
            let (ended_well, said) = self.once(&left, &mut status)?;
            runs += tried(&status).unwrap_or(0);
            let found = self.findings()?;
            if ended_well {
                return Ok((status, Vec::new()));
            }
            if found.is_empty() {
                return Err(format!("{} ended without a finding:\n{said}", self.target.name));
            }
            let confirmed = self.confirmed(found)?;
            if !confirmed.is_empty() {
                eprintln!("{said}");
                return Ok((status, confirmed));
            }
            eprintln!("{}: an input took long once, and not again: going on", self.target.name);
        }
    }

    /// Runs libFuzzer once; whether it ended well, and what it said last. `status` becomes its last line of how far it came.
    fn once(&self, left: &str, status: &mut String) -> Result<(bool, String), String> {
        let mut command = command(self.places, self.target);
        let findings = self.places.kept("findings", self.target)?;
        command.arg(left).arg(format!("-artifact_prefix={}/", findings.display()));
        command.arg(format!("-max_len={}", self.target.input_bytes_max));
        if let Some(words) = self.places.words(self.target)? {
            command.arg(format!("-dict={}", words.display()));
        }
        command.arg(self.places.kept("corpus", self.target)?).args(self.places.begun(self.target)?);
        let mut child = command.stderr(Stdio::piped()).spawn().map_err(|error| format!("cannot run it: {error}"))?;
        let (mut last, mut shown) = (VecDeque::new(), Instant::now());
        for line in BufReader::new(child.stderr.take().expect("it is piped")).split(b'\n') {
            let line = line.map_err(|error| format!("cannot hear it: {error}"))?;
            let line = String::from_utf8_lossy(&line).into_owned();
            if tried(&line).is_some() {
                status.clone_from(&line);
                if shown.elapsed() >= PROGRESS_EVERY {
                    shown = Instant::now();
                    eprintln!("{:15} {line}", self.target.name);
                }
            }
            last.push_back(line);
            if last.len() > LINES_SHOWN {
                last.pop_front();
            }
        }
        let ended = child.wait().map_err(|error| format!("cannot wait for it: {error}"))?;
        Ok((ended.success(), Vec::from(last).join("\n")))
    }

    /// What the target's folder of findings holds; what was merely slow is thrown away.
    fn findings(&self) -> Result<Vec<PathBuf>, String> {
        let folder = self.places.kept("findings", self.target)?;
        let entries = fs::read_dir(&folder).map_err(|error| format!("cannot read {}: {error}", folder.display()))?;
        let paths: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
        let (slow, found): (Vec<_>, Vec<_>) =
            paths.into_iter().partition(|path: &PathBuf| is_called(path, SLOW_PREFIX));
        slow.iter().for_each(|path| drop(fs::remove_file(path)));
        Ok(found)
    }

    /// Those that are findings: an input that took too long must do so again, when nobody stops the process.
    fn confirmed(&self, found: Vec<PathBuf>) -> Result<Vec<PathBuf>, String> {
        let mut confirmed = Vec::new();
        for path in found {
            if is_called(&path, TIMEOUT_PREFIX) && passes(self.places, self.target, &path)? {
                let _ = fs::remove_file(&path);
            } else {
                confirmed.push(path);
            }
        }
        Ok(confirmed)
    }
}

/// How many inputs were tried, in a line of libFuzzer's of how far it came: `#4096 NEW cov: 217 ft: 262 corp: 82/1285b ...`.
fn tried(line: &str) -> Option<u64> {
    let (number, rest) = line.strip_prefix('#')?.split_once(char::is_whitespace)?;
    if rest.contains("cov: ") { number.parse().ok() } else { None }
}

fn is_called(path: &Path, prefix: &str) -> bool {
    path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(prefix))
}

/// libFuzzer on a target, with the limits that hold for every input.
fn command(places: &Places, target: &Target) -> Command {
    let mut command = Command::new(&places.program);
    command.env(TARGET_VARIABLE, target.name).env("RUST_BACKTRACE", "1").stdin(Stdio::null()).stdout(Stdio::null());
    command.args([format!("-timeout={INPUT_SECONDS_MAX}"), format!("-rss_limit_mb={MEMORY_MIB_MAX}")]);
    command
}

/// Runs one input, with what it says shown; true if no promise was broken.
pub(super) fn passes(places: &Places, target: &Target, input: &Path) -> Result<bool, String> {
    let findings = places.kept("findings", target)?;
    let mut command = command(places, target);
    // Not into the findings once more.
    let again = command.arg(format!("-exact_artifact_path={}", findings.with_extension("again").display())).arg(input);
    let status = again.status().map_err(|error| format!("cannot run it: {error}"))?;
    Ok(status.success())
}

/// Packs the target's archive in the sources anew; how many inputs it has, and their bytes. What once broke a promise stays
/// beside it as it is.
///
/// # Errors
/// libFuzzer fails, or files cannot be written.
pub(super) fn merge(places: &Places, target: &'static Target) -> Result<String, String> {
    let merged = places.filled("merged", target, [])?;
    let mut merging = command(places, target);
    // By edges alone: how often one is passed makes corpora many times as large.
    merging.args(["-merge=1", "-use_counters=0"]).arg(&merged);
    run(merging.args(places.begun(target)?).arg(places.kept("corpus", target)?))?;
    let unreadable = |error| format!("cannot read {}: {error}", merged.display());
    let mut candidates = Inputs::new();
    for entry in fs::read_dir(&merged).map_err(unreadable)? {
        let entry = entry.map_err(unreadable)?;
        candidates
            .push((entry.file_name().to_string_lossy().into_owned(), fs::read(entry.path()).map_err(unreadable)?));
    }
    let found = target.found().map_err(|error| format!("cannot read what was found of {}: {error}", target.name))?;
    candidates.retain(|(_, input)| found.iter().all(|(_, known)| known != input));
    // The largest reach the most.
    candidates.sort_by_key(|(_, input)| std::cmp::Reverse(input.len()));
    let (mut inputs, mut bytes) = (Inputs::new(), 0);
    for (name, input) in candidates {
        if inputs.len() + found.len() < INPUTS_MAX && bytes + input.len() <= BYTES_MAX {
            bytes += input.len();
            inputs.push((name, input));
        }
    }
    inputs.sort_unstable();
    let archive = target.corpus_archive();
    pack(&archive, &inputs).map_err(|error| format!("cannot write {}: {error}", archive.display()))?;
    Ok(format!("keeps {} inputs of {bytes} bytes, and {} that once broke something", inputs.len(), found.len()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn progress_is_read() {
        let line = "#30000\tDONE   cov: 543 ft: 920 corp: 230/1886b lim: 29 exec/s: 0 rss: 30Mb";
        assert_eq!(tried(line), Some(30_000));
        for line in ["INFO: Seed: 5", "#1", "#x cov: 1 corp: 1/1b", "#2\tINITED exec/s: 0 rss: 27Mb"] {
            assert_eq!(tried(line), None, "{line}");
        }
    }
}
