//! One target under libFuzzer: started, listened to, and its findings sorted out.

use std::collections::VecDeque;
use std::fmt;
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use sealane_tests::fuzz::{TARGET_VARIABLE, Target};

use super::places::Places;

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

/// When a target has run for long enough.
#[derive(Clone, Copy)]
pub(super) enum Until {
    /// So many inputs were tried.
    Runs(u64),
    /// So much time has passed.
    After(Duration),
}

pub(super) struct Hunt<'a> {
    pub(super) places: &'a Places,
    pub(super) target: &'static Target,
    pub(super) until: Until,
}

/// What came of it.
#[derive(Default)]
pub(super) struct Report {
    runs: u64,
    took: Duration,
    /// Edges of the code that were reached.
    edges: u64,
    /// Inputs that reach them all.
    corpus: u64,
    pub(super) findings: Vec<PathBuf>,
}

impl Report {
    /// All of them together, as if they had run one after the other.
    pub(super) fn sum(reports: &[Report]) -> Report {
        reports.iter().fold(Report::default(), |sum, report| Report {
            runs: sum.runs + report.runs,
            took: sum.took + report.took,
            edges: sum.edges + report.edges,
            corpus: sum.corpus + report.corpus,
            findings: [sum.findings, report.findings.clone()].concat(),
        })
    }
}

impl fmt::Display for Report {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Report { runs, took, edges, corpus, findings } = self;
        let rate = *runs as f64 / took.as_secs_f64().max(1e-3);
        write!(out, "{runs:>11} runs in {:>7.1} s, {rate:>7.0}/s", took.as_secs_f64())?;
        write!(out, ", {edges:>5} edges, corpus {corpus:>4}, ")?;
        match &findings[..] {
            [] => write!(out, "nothing found"),
            found => {
                write!(out, "{} found:", found.len())?;
                found.iter().try_for_each(|finding| write!(out, " {}", finding.display()))
            }
        }
    }
}

/// What a line of libFuzzer's says of how far it is: `#4096 NEW cov: 217 ft: 262 corp: 82/1285b ...`.
#[derive(Debug, PartialEq, Eq)]
struct Status {
    runs: u64,
    edges: u64,
    corpus: u64,
}

impl Status {
    fn parse(line: &str) -> Option<Status> {
        let mut words = line.strip_prefix('#')?.split_whitespace();
        let runs = words.next()?.parse().ok()?;
        let mut after = |name: &str| {
            words.find(|word| *word == name)?;
            let digits = words.next()?.split('/').next()?;
            digits.parse().ok()
        };
        Some(Status { runs, edges: after("cov:")?, corpus: after("corp:")? })
    }
}

impl Hunt<'_> {
    /// Runs the target until it has run for long enough, or has found something.
    pub(super) fn run(&self) -> Result<Report, String> {
        let start = Instant::now();
        let mut report = Report::default();
        loop {
            let left = match self.until {
                Until::Runs(runs) => format!("-runs={}", runs.saturating_sub(report.runs)),
                Until::After(time) => {
                    format!("-max_total_time={}", time.saturating_sub(start.elapsed()).as_secs().max(1))
                }
            };
            let before = report.runs;
            let (ended_well, said) = self.once(&left, start, before, &mut report)?;
            report.took = start.elapsed();
            let found = self.findings()?;
            if ended_well {
                return Ok(report);
            }
            if found.is_empty() {
                return Err(format!("{} ended without a finding:\n{said}", self.target.name));
            }
            report.findings = self.confirmed(found)?;
            if !report.findings.is_empty() {
                eprintln!("{said}");
                return Ok(report);
            }
            eprintln!("{}: an input took long once, and not again: going on", self.target.name);
        }
    }

    /// Runs libFuzzer once; whether it ended well, and what it said last.
    fn once(&self, left: &str, start: Instant, before: u64, report: &mut Report) -> Result<(bool, String), String> {
        let mut command = command(self.places, self.target)?;
        let findings = self.places.findings(self.target)?;
        command.arg(left).arg(format!("-artifact_prefix={}/", findings.display()));
        command.arg(format!("-max_len={}", self.target.input_bytes_max));
        if let Some(words) = self.places.words(self.target)? {
            command.arg(format!("-dict={}", words.display()));
        }
        command.arg(self.places.corpus(self.target)?).arg(self.places.seeds(self.target)?);
        command.arg(self.places.kept(self.target)?);
        let mut child = command.stderr(Stdio::piped()).spawn().map_err(|error| format!("cannot run it: {error}"))?;
        let (mut last, mut shown) = (VecDeque::new(), Instant::now());
        for line in BufReader::new(child.stderr.take().expect("it is piped")).split(b'\n') {
            let line = line.map_err(|error| format!("cannot hear it: {error}"))?;
            let line = String::from_utf8_lossy(&line).into_owned();
            if let Some(status) = Status::parse(&line) {
                report.runs = before + status.runs;
                (report.edges, report.corpus, report.took) = (status.edges, status.corpus, start.elapsed());
                if shown.elapsed() >= PROGRESS_EVERY {
                    shown = Instant::now();
                    eprintln!("{:15} {report} so far", self.target.name);
                }
            }
            last.push_back(line);
            if last.len() > LINES_SHOWN {
                last.pop_front();
            }
        }
        let status = child.wait().map_err(|error| format!("cannot wait for it: {error}"))?;
        Ok((status.success(), Vec::from(last).join("\n")))
    }

    /// What the target's folder of findings holds; what was merely slow is thrown away.
    fn findings(&self) -> Result<Vec<PathBuf>, String> {
        let folder = self.places.findings(self.target)?;
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

fn is_called(path: &Path, prefix: &str) -> bool {
    path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(prefix))
}

/// libFuzzer on a target, with the limits that hold for every input.
pub(super) fn command(places: &Places, target: &Target) -> Result<Command, String> {
    let mut command = Command::new(&places.program);
    command.env(TARGET_VARIABLE, target.name).env("RUST_BACKTRACE", "1").stdin(Stdio::null()).stdout(Stdio::null());
    command.args([format!("-timeout={INPUT_SECONDS_MAX}"), format!("-rss_limit_mb={MEMORY_MIB_MAX}")]);
    Ok(command)
}

/// Runs one input, with what it says shown; true if no promise was broken.
pub(super) fn passes(places: &Places, target: &Target, input: &Path) -> Result<bool, String> {
    let findings = places.findings(target)?;
    let mut command = command(places, target)?;
    // Not into the findings once more.
    let again = command.arg(format!("-exact_artifact_path={}", findings.with_extension("again").display())).arg(input);
    let status = again.status().map_err(|error| format!("cannot run it: {error}"))?;
    Ok(status.success())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn progress_is_read() {
        let line = "#30000\tDONE   cov: 543 ft: 920 corp: 230/1886b lim: 29 exec/s: 0 rss: 30Mb";
        assert_eq!(Status::parse(line), Some(Status { runs: 30_000, edges: 543, corpus: 230 }));
        for line in ["INFO: Seed: 5", "#1", "#x cov: 1 corp: 1/1b", "#2\tINITED exec/s: 0 rss: 27Mb"] {
            assert_eq!(Status::parse(line), None, "{line}");
        }
    }

    #[test]
    fn reports_add_up() {
        let report = |runs, findings: &[&str]| Report {
            runs,
            took: Duration::from_secs(2),
            edges: 7,
            corpus: 3,
            findings: findings.iter().map(PathBuf::from).collect(),
        };
        let sum = Report::sum(&[report(100, &[]), report(300, &["crash-1"])]).to_string();
        assert!(sum.contains("400 runs in     4.0 s,     100/s,    14 edges, corpus    6, 1 found: crash-1"), "{sum}");
        assert!(report(1, &[]).to_string().ends_with("nothing found"));
    }
}
