//! `cargo xtask instructions`: counts the processor instructions of the data path with valgrind's callgrind, and compares them with
//! the stored counts. The drives are in `tests/src/drive/`; each is run twice, and the difference is the cost of the steps alone.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::thread::{self, available_parallelism};

use clap::Args;
use serde::{Deserialize, Serialize};

use crate::Outcome;
use crate::build::{Build, workspace};
use crate::command::{output, run};

/// Steps of the first run, which warm up state that is kept between steps.
const STEPS: u64 = 40;
/// Steps that the second run has more, and at least as many tensors in them.
const MORE_STEPS: u64 = 100;
const MORE_TENSORS: u64 = 4_000;
/// Functions below this count are not stored, in instructions a tensor.
const SMALL: f64 = 2.0;
/// Factor above the stored count that is a failure: for instructions, and for system calls, as a connection may be read once more
/// before data is there.
const WORSE: f64 = 1.02;
const WORSE_CALLS: f64 = 1.1;
const KEPT: &str = "tests/snapshots/instructions.json";
/// Copies of two KiB and more use vectors. `rep movsb`, which glibc uses for some of them depending on their relative addresses, is
/// counted as an instruction a byte: the same program would cost more on one machine than on the next.
const NO_REP_MOVSB: (&str, &str) = ("GLIBC_TUNABLES", "glibc.cpu.hwcaps=-ERMS");

#[derive(Args)]
pub(crate) struct Instructions {
    /// Fails where a drive takes over 2% more than the kept counts, and names the functions that grew
    #[arg(long)]
    check: bool,
}

#[derive(Serialize, Deserialize, Default)]
struct Counts {
    compiler: String,
    drives: BTreeMap<String, Count>,
}

/// The cost of a drive per tensor.
#[derive(Serialize, Deserialize, Clone)]
struct Count {
    about: String,
    instructions: f64,
    system_calls: f64,
    /// By function, including what was inlined into it.
    functions: BTreeMap<String, f64>,
}

impl Instructions {
    /// Counts, shows, and compares or stores.
    pub(crate) fn run(&self) -> Outcome {
        let drive = Build { package: "sealane-tests", kind: "example", target: "drive", is_packed: true };
        let program = drive.build(&["--no-default-features", "--locked"])?;
        let compiler = output(Command::new("rustc").arg("--version").current_dir(workspace()))?;
        let mut found = Counts { compiler: compiler.trim().to_owned(), drives: BTreeMap::new() };
        let path = workspace().join(KEPT);
        let kept: Counts = match fs::read_to_string(&path) {
            Ok(text) => serde_json::from_str(&text).map_err(|error| format!("{KEPT}: {error}"))?,
            Err(_) => Counts::default(),
        };
        println!("{:<22} {:>12} {:>8} {:>13}", "a tensor of", "instructions", "kept", "system calls");
        let drives = output(&mut Command::new(&program))?;
        let drives: Vec<&str> = drives.lines().collect();
        // Each is one thread's work, and valgrind is slow: as many as there are CPUs run together.
        for some in drives.chunks(available_parallelism().map_or(1, usize::from)) {
            let counts: Vec<Result<_, String>> = thread::scope(|scope| {
                let counting: Vec<_> = some.iter().map(|drive| scope.spawn(|| count(&program, drive))).collect();
                counting.into_iter().map(|count| count.join().expect("counting does not panic")).collect()
            });
            for count in counts {
                let (name, count) = count?;
                let before = kept.drives.get(&name).map_or(f64::NAN, |kept| kept.instructions);
                println!("{name:<22} {:>12.1} {before:>8.1} {:>13.2}", count.instructions, count.system_calls);
                found.drives.insert(name, count);
            }
        }
        if self.check {
            return Ok(compare(&kept, &found));
        }
        let text = serde_json::to_string_pretty(&found).expect("numbers and text");
        fs::write(&path, text + "\n").map_err(|error| format!("{KEPT}: {error}"))?;
        println!("kept in {KEPT}; cargo xtask report --render writes them into the report");
        Ok(true)
    }
}

/// Counts the cost per tensor of a drive, of which the program has told a line; its name and that.
fn count(program: &Path, drive: &str) -> Result<(String, Count), String> {
    let fields: Vec<&str> = drive.split('\t').collect();
    let no_drive = || format!("no drive: {drive}");
    let [name, tensors, about] = fields[..] else { return Err(no_drive()) };
    let tensors: u64 = tensors.parse().map_err(|_| no_drive())?;
    let more = MORE_STEPS.max(MORE_TENSORS / tensors);
    let (few, many) = (profile(program, name, STEPS)?, profile(program, name, STEPS + more)?);
    let each = |few: u64, many: u64| {
        // Rounded to digits that do not differ between runs.
        ((many as f64 - few as f64) / (more * tensors) as f64 * 100.0).round() / 100.0
    };
    let functions = many.functions.iter().map(|(name, &count)| {
        let before = few.functions.get(name).copied().unwrap_or(0);
        (name.clone(), each(before, count))
    });
    let count = Count {
        about: about.to_owned(),
        instructions: each(few.functions.values().sum(), many.functions.values().sum()),
        system_calls: each(few.system_calls, many.system_calls),
        functions: functions.filter(|(_, count)| *count >= SMALL).collect(),
    };
    Ok((name.to_owned(), count))
}

#[derive(Debug, Default, PartialEq)]
struct Profile {
    system_calls: u64,
    /// Instructions, by function.
    functions: BTreeMap<String, u64>,
}

fn profile(program: &Path, name: &str, steps: u64) -> Result<Profile, String> {
    let folder = tempfile::tempdir().map_err(|error| format!("no temporary directory: {error}"))?;
    let file = folder.path().join("callgrind.out");
    let mut valgrind = Command::new("valgrind");
    valgrind.env(NO_REP_MOVSB.0, NO_REP_MOVSB.1);
    valgrind.args(["--tool=callgrind", "--collect-systime=yes", "--compress-strings=no", "--compress-pos=no"]);
    valgrind.arg(format!("--callgrind-out-file={}", file.display())).arg(program).arg(name).arg(steps.to_string());
    run(&mut valgrind).map_err(|error| format!("{error}; valgrind is of the package of that name"))?;
    read(&fs::read_to_string(&file).map_err(|error| format!("valgrind has written no profile: {error}"))?)
}

/// Reads the needed parts of callgrind's output: each function's own costs, of the events Ir, sysCount and sysTime. The format is
/// in valgrind's manual, "Callgrind format specification"; strings and positions are not compressed.
///
/// # Errors
/// It is not such a profile.
fn read(text: &str) -> Result<Profile, String> {
    let mut profile = Profile::default();
    let (mut function, mut is_call) = ("", false);
    for line in text.lines() {
        if let Some(name) = line.strip_prefix("fn=") {
            function = without_hash(name);
        } else if line.starts_with("calls=") {
            is_call = true;
        } else if line.starts_with(|first: char| first.is_ascii_digit()) {
            // The line after a call has the callee's cost, which is counted with the callee.
            if std::mem::take(&mut is_call) {
                continue;
            }
            let costs: Result<Vec<u64>, _> = line.split(' ').skip(1).map(str::parse).collect();
            let costs = costs.map_err(|_| format!("no costs: {line}"))?;
            let cost = |place| costs.get(place).copied().unwrap_or(0);
            *profile.functions.entry(function.to_owned()).or_default() += cost(0);
            profile.system_calls += cost(1);
        }
    }
    let is_profile = text.contains("\nevents: Ir sysCount") && !profile.functions.is_empty();
    if is_profile { Ok(profile) } else { Err("callgrind has not counted Ir and sysCount".into()) }
}

/// A function's path without the hash, which differs in each build.
fn without_hash(name: &str) -> &str {
    let path = name.split('\'').next().unwrap_or(name);
    path.rfind("::h").filter(|at| path.len() - at == 19).map_or(path, |at| &path[..at])
}

/// True if nothing has become worse.
fn compare(kept: &Counts, found: &Counts) -> bool {
    if kept.compiler != found.compiler {
        println!("note: {KEPT} was counted with {}, this with {}", kept.compiler, found.compiler);
    }
    let mut is_well = kept.drives.keys().eq(found.drives.keys());
    if !is_well {
        eprintln!("error: {KEPT} has not the same drives: cargo xtask instructions counts them");
    }
    for (name, count) in &found.drives {
        let Some(before) = kept.drives.get(name) else { continue };
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

    #[test]
    fn each_functions_own_costs_are_summed() {
        let text = "# callgrind format\nevents: Ir sysCount sysTime\nsummary: 112 1 3\n\nfl=???\n\
                    fn=sealane::turn::h0123456789abcdef\n12 5\n13 7\ncfn=write\ncalls=1 0\n13 100 1 3\n14 0 0\n\
                    fn=write\n0 100 1 3\nfn=sealane::turn::h0123456789abcdef\nfi=/inlined.rs\n20 3\n";
        let functions = BTreeMap::from([("sealane::turn".to_owned(), 15), ("write".to_owned(), 100)]);
        assert_eq!(read(text), Ok(Profile { system_calls: 1, functions }));
        assert!(read("").is_err() && read("\nevents: Cycles\nfn=a\n1 2").is_err());
        assert!(read("\nevents: Ir sysCount\nfn=a\n1 x").is_err());
    }
}
