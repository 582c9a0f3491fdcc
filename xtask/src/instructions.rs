//! `cargo xtask instructions`: counts what the data path takes of a processor, by valgrind's callgrind, and compares with the counts that are
//! kept. The drives are in `tests/src/drive/`; each is run twice, and the difference is that of the steps alone.

mod callgrind;

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use clap::Args;
use serde::{Deserialize, Serialize};

use crate::Outcome;
use crate::build::{Build, build_with, workspace};
use callgrind::{Profile, read};

/// Steps of the first run, which warm up what is kept between steps.
const STEPS: u64 = 40;
/// Steps that the second run has more, and tensors in them, at least.
const MORE_STEPS: u64 = 100;
const MORE_TENSORS: u64 = 4_000;
/// A count of a function that is too small to be kept, in instructions a tensor.
const SMALL: f64 = 2.0;
/// How much worse than what is kept is a failure: of instructions; and of system calls, as a connection may be read once more before
/// something is there.
const WORSE: f64 = 1.02;
const WORSE_CALLS: f64 = 1.1;
const KEPT: &str = "tests/snapshots/instructions.json";

#[derive(Args)]
pub(crate) struct Instructions {
    /// Fails where a drive takes over 2% more than the kept counts, and names the functions that grew
    #[arg(long)]
    check: bool,
    /// Only drives whose name contains this
    #[arg(long)]
    only: Option<String>,
    /// Functions to show for each drive
    #[arg(long, default_value_t = 5)]
    top: usize,
}

/// The counts of all drives.
#[derive(Serialize, Deserialize, Default)]
struct Counts {
    compiler: String,
    drives: BTreeMap<String, Count>,
}

/// A tensor's share of a drive.
#[derive(Serialize, Deserialize, Clone)]
struct Count {
    about: String,
    instructions: f64,
    system_calls: f64,
    /// By function, what was inlined into it included.
    functions: BTreeMap<String, f64>,
}

impl Instructions {
    /// Counts, shows, and compares or keeps.
    pub(crate) fn run(&self) -> Outcome {
        let (package, kind, target) = ("sealane-tests", "example", "drive");
        let drive = Build { package, kind, target, release: true, verbs: false };
        let program = build_with(&drive, &["--no-default-features", "--locked"])?;
        let mut found = Counts { compiler: compiler()?, drives: BTreeMap::new() };
        let path = workspace().join(KEPT);
        let kept: Counts = match fs::read_to_string(&path) {
            Ok(text) => serde_json::from_str(&text).map_err(|error| format!("{KEPT}: {error}"))?,
            Err(_) => Counts::default(),
        };
        println!("{:<22} {:>12} {:>8} {:>13}", "a tensor of", "instructions", "kept", "system calls");
        for drive in drives(&program)? {
            if self.only.as_ref().is_some_and(|only| !drive.name.contains(only)) {
                continue;
            }
            let count = drive.count(&program)?;
            let before = kept.drives.get(&drive.name).map_or(f64::NAN, |kept| kept.instructions);
            println!("{:<22} {:>12.1} {before:>8.1} {:>13.2}", drive.name, count.instructions, count.system_calls);
            let mut functions: Vec<_> = count.functions.iter().collect();
            functions.sort_by(|one, other| other.1.total_cmp(one.1));
            functions.iter().take(self.top).for_each(|(name, count)| println!("{:>29.1}  {name}", count));
            found.drives.insert(drive.name, count);
        }
        if found.drives.is_empty() {
            return Err(format!("no drive's name contains {}", self.only.as_deref().unwrap_or_default()));
        }
        if self.check {
            let gone = kept.drives.keys().filter(|name| self.only.is_none() && !found.drives.contains_key(*name));
            gone.clone().for_each(|name| eprintln!("error: {KEPT} has {name}, and there is no such drive"));
            return Ok(gone.count() == 0 && compare(&kept, &found));
        }
        // Those that were not counted now stay.
        let mut all = kept.drives;
        all.extend(found.drives);
        let text = serde_json::to_string_pretty(&Counts { drives: all, ..found }).expect("numbers and text");
        fs::write(&path, text + "\n").map_err(|error| format!("{KEPT}: {error}"))?;
        println!("kept in {KEPT}; cargo xtask report --render writes them into the report");
        Ok(true)
    }
}

/// A drive as the program lists it.
struct Drive {
    name: String,
    tensors: u64,
    about: String,
}

fn drives(program: &Path) -> Result<Vec<Drive>, String> {
    let listed = Command::new(program).output().map_err(|error| format!("{}: {error}", program.display()))?;
    let drive = |line: &str| {
        let mut fields = line.split('\t');
        let (name, tensors, about) =
            (fields.next()?.to_owned(), fields.next()?.parse().ok()?, fields.next()?.to_owned());
        Some(Drive { name, tensors, about })
    };
    let drives: Option<_> = String::from_utf8_lossy(&listed.stdout).lines().map(drive).collect();
    drives.ok_or_else(|| format!("{} lists what are no drives", program.display()))
}

impl Drive {
    fn count(&self, program: &Path) -> Result<Count, String> {
        let more = MORE_STEPS.max(MORE_TENSORS / self.tensors);
        let (few, many) = (self.profile(program, STEPS)?, self.profile(program, STEPS + more)?);
        let tensors = (more * self.tensors) as f64;
        let each = |few: u64, many: u64| rounded((many as f64 - few as f64) / tensors);
        let function = |(name, &count): (&String, &u64)| {
            (name.clone(), each(few.functions.get(name).copied().unwrap_or(0), count))
        };
        Ok(Count {
            about: self.about.clone(),
            instructions: each(few.instructions, many.instructions),
            system_calls: each(few.system_calls, many.system_calls),
            functions: many.functions.iter().map(function).filter(|(_, count)| *count >= SMALL).collect(),
        })
    }

    fn profile(&self, program: &Path, steps: u64) -> Result<Profile, String> {
        let folder = tempfile::tempdir().map_err(|error| format!("no temporary directory: {error}"))?;
        let file = folder.path().join("callgrind.out");
        let mut valgrind = Command::new("valgrind");
        valgrind.args([
            "--tool=callgrind",
            "--quiet",
            "--collect-systime=yes",
            "--compress-strings=no",
            "--compress-pos=no",
        ]);
        valgrind.arg(format!("--callgrind-out-file={}", file.display()));
        valgrind.arg(program).arg(&self.name).arg(steps.to_string()).stdin(Stdio::null());
        let ended = valgrind
            .status()
            .map_err(|error| format!("cannot run valgrind ({error}): install it (apt install valgrind)"))?;
        if !ended.success() {
            return Err(format!("{} of {steps} steps failed under valgrind ({ended})", self.name));
        }
        let text = fs::read_to_string(&file).map_err(|error| format!("valgrind has written no profile: {error}"))?;
        read(&text)
    }
}

/// True if nothing has become worse.
fn compare(kept: &Counts, found: &Counts) -> bool {
    if kept.compiler != found.compiler {
        println!("note: {KEPT} was counted with {}, this with {}", kept.compiler, found.compiler);
    }
    let mut is_well = true;
    for (name, count) in &found.drives {
        let Some(before) = kept.drives.get(name) else {
            eprintln!("error: {KEPT} has no {name}: cargo xtask instructions counts it");
            is_well = false;
            continue;
        };
        if count.instructions <= before.instructions * WORSE && count.system_calls <= before.system_calls * WORSE_CALLS
        {
            continue;
        }
        is_well = false;
        eprintln!(
            "error: {name} takes {} instructions and {} system calls a tensor, not {} and {}",
            count.instructions, count.system_calls, before.instructions, before.system_calls
        );
        let grown = |(function, count): (&String, &f64)| {
            let more = count - before.functions.get(function).copied().unwrap_or(0.0);
            (more >= SMALL).then(|| (more, function.clone()))
        };
        let mut grown: Vec<_> = count.functions.iter().filter_map(grown).collect();
        grown.sort_by(|one, other| other.0.total_cmp(&one.0));
        grown.iter().for_each(|(more, function)| eprintln!("  {more:+.1}  {function}"));
    }
    if !is_well {
        eprintln!("what is meant to cost more is kept by: cargo xtask instructions, then cargo xtask report --render");
    }
    is_well
}

/// To what does not differ from run to run.
fn rounded(count: f64) -> f64 {
    (count * 100.0).round() / 100.0
}

fn compiler() -> Result<String, String> {
    let mut rustc = Command::new(std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into()));
    let said = rustc.arg("--version").current_dir(workspace()).output().map_err(|error| format!("rustc: {error}"))?;
    Ok(String::from_utf8_lossy(&said.stdout).trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(instructions: f64, function: f64) -> Counts {
        let functions = BTreeMap::from([("turn".to_owned(), function)]);
        let count = Count { about: String::new(), instructions, system_calls: 2.0, functions };
        Counts { compiler: "one".into(), drives: BTreeMap::from([("recv".to_owned(), count)]) }
    }

    #[test]
    fn two_percent_is_borne_and_more_is_not() {
        assert!(compare(&counts(1000.0, 10.0), &counts(1020.0, 30.0)));
        assert!(compare(&counts(1000.0, 10.0), &counts(700.0, 30.0)));
        assert!(!compare(&counts(1000.0, 10.0), &counts(1021.0, 31.0)));
        assert!(!compare(&Counts::default(), &counts(1.0, 1.0)));
    }
}
