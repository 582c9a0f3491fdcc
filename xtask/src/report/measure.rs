//! Runs experiments one after another, and keeps what they wrote with where it comes from.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use serde_json::Value;

use super::experiment::{Experiment, Program};
use super::results::{PROVENANCE, Provenance, Results};
use crate::build::workspace;
use crate::command;
use crate::rdma_lab;

/// Where the virtual environment of the Python programs is made, from the workspace's root.
const PYTHON: &str = "target/report-python";

/// The Python that has TensorFlow and Sealane's plugin for it, from the workspace's root. It is large, so that who wants to measure
/// it makes it.
const TENSORFLOW: &str = "target/report-tensorflow/bin/python";

/// Variables that say how busy the machine is, and what it is.
const LOAD: &str = "/proc/loadavg";
const MEMORY: &str = "/proc/meminfo";
const CONGESTION: &str = "/proc/sys/net/ipv4/tcp_congestion_control";

/// Files that a report writes itself, which make no other program of it.
const WRITTEN: [&str; 4] = [":!bench/results", ":!bench/REPORT.md", ":!bench/REPORT.html", ":!README.md"];

/// What runs the experiments, and where their results go.
pub(super) struct Bench {
    /// The program `sealane`.
    pub(super) program: PathBuf,
    /// The folder of the results.
    pub(super) folder: PathBuf,
}

impl Bench {
    /// Runs each of these; one that fails leaves what was kept of it, and the others go on. `before` forecasts the time.
    ///
    /// # Errors
    /// Those that failed, each with its reason.
    pub(super) fn run(&self, experiments: &[Experiment], before: &Results) -> Result<(), Vec<String>> {
        let alone = |error: String| vec![error];
        fs::create_dir_all(&self.folder).map_err(|error| alone(format!("{}: {error}", self.folder.display())))?;
        self.run_each(experiments, before, &facts().map_err(alone)?)
    }

    fn run_each(&self, experiments: &[Experiment], before: &Results, facts: &Provenance) -> Result<(), Vec<String>> {
        let mut problems = Vec::new();
        let (in_lab, here): (Vec<&Experiment>, Vec<&Experiment>) =
            experiments.iter().partition(|experiment| matches!(experiment.program, Program::Lab(_)));
        for (number, experiment) in here.iter().enumerate() {
            let known = before.get(experiment.name).map(|run| run.provenance.took_s);
            let about = known.or_else(|| experiment.forecast_s()).map(|seconds| format!(", about {seconds:.0} s"));
            eprintln!("experiment {} of {}: {}{}", number + 1, here.len(), experiment.name, about.unwrap_or_default());
            if let Err(error) = self.one(experiment, facts) {
                eprintln!("{}: {error}", experiment.name);
                problems.push(format!("{} was not measured: {error}", experiment.name));
            }
        }
        if let Err(error) = self.lab(&in_lab, facts) {
            problems.push(format!("the lab's experiments were not measured: {error}"));
        }
        if problems.is_empty() { Ok(()) } else { Err(problems) }
    }

    fn one(&self, experiment: &Experiment, facts: &Provenance) -> Result<(), String> {
        let (load, begun) = (load()?, Instant::now());
        let mut program = Command::new(&self.program);
        let python = match experiment.program {
            Program::Python => Some(python()?),
            Program::TensorFlow => Some(tensorflow()?),
            Program::Bench | Program::Growth(_) | Program::Lab(_) => None,
        };
        if let Some(python) = python {
            program = Command::new(python);
            program.env("SEALANE_BIN", &self.program);
        }
        let report = self.written(experiment, program)?;
        self.keep(experiment, report, facts, (load, begun))
    }

    /// Runs what needs the lab in one boot, since only figures of one boot can be compared.
    fn lab(&self, experiments: &[&Experiment], facts: &Provenance) -> Result<(), String> {
        let step = |experiment: &&Experiment| match experiment.program {
            Program::Lab(step) => Some(step.to_owned()),
            _ => None,
        };
        let has_step = |experiment: &&&Experiment| step(experiment).is_some_and(|step| rdma_lab::has_step(&step));
        let (there, missing): (Vec<&Experiment>, Vec<&Experiment>) = experiments.iter().partition(has_step);
        let steps: Vec<String> = there.iter().filter_map(step).collect();
        if !steps.is_empty() {
            self.one_boot(&there, &steps, facts)?;
        }
        match missing.first() {
            None => Ok(()),
            Some(experiment) => Err(format!("the lab has no step for {}", experiment.name)),
        }
    }

    fn one_boot(&self, experiments: &[&Experiment], steps: &[String], facts: &Provenance) -> Result<(), String> {
        eprintln!("{} experiments in the RDMA lab", steps.len());
        let (load, begun) = (load()?, Instant::now());
        let reports = rdma_lab::reports(steps)?;
        let mut kept = experiments.iter().zip(reports);
        kept.try_for_each(|(experiment, report)| self.keep(experiment, report, facts, (load, begun)))
    }

    fn keep(
        &self,
        experiment: &Experiment,
        report: Value,
        facts: &Provenance,
        began: (f64, Instant),
    ) -> Result<(), String> {
        let (load, begun) = began;
        let unix_seconds = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        let took_s = begun.elapsed().as_secs_f64();
        let provenance = Provenance { command: experiment.command(), unix_seconds, took_s, load, ..facts.clone() };
        keep(&experiment.file(&self.folder), report, &provenance)
    }

    /// What a program writes to the file that it is given.
    fn written(&self, experiment: &Experiment, mut program: Command) -> Result<Value, String> {
        let file = tempfile::NamedTempFile::new().map_err(|error| format!("cannot make a file: {error}"))?;
        // From the workspace's root, so that what is kept names no place of this machine.
        let folder = self.folder.strip_prefix(workspace()).unwrap_or(&self.folder);
        program.args(experiment.words(folder)).arg("--json").arg(file.path()).current_dir(workspace());
        command::run(&mut program)?;
        let text = fs::read_to_string(file.path()).map_err(|error| format!("what it wrote: {error}"))?;
        serde_json::from_str(&text).map_err(|error| format!("what it wrote is no JSON: {error}"))
    }
}

/// Writes a result in one piece, so that a run that is interrupted spoils none.
fn keep(file: &Path, mut report: Value, provenance: &Provenance) -> Result<(), String> {
    let told = |error: &dyn std::fmt::Display| format!("{}: {error}", file.display());
    let fields = report.as_object_mut().ok_or("what it wrote is no object")?;
    fields.insert(PROVENANCE.to_owned(), serde_json::to_value(provenance).map_err(|error| told(&error))?);
    let text = serde_json::to_string_pretty(&report).map_err(|error| told(&error))? + "\n";
    let unfinished = file.with_extension("unfinished");
    fs::write(&unfinished, text).and_then(|()| fs::rename(&unfinished, file)).map_err(|error| told(&error))
}

/// What is the same for all experiments of this run.
fn facts() -> Result<Provenance, String> {
    let git = |words: &[&str]| command::output(Command::new("git").args(words).current_dir(workspace()));
    let changed = git(&[&["status", "--porcelain", "--untracked-files=no", "--", "."], &WRITTEN[..]].concat())?;
    let commit =
        git(&["rev-parse", "--short=10", "HEAD"])?.trim().to_owned() + if changed.is_empty() { "" } else { "+" };
    let rustc = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let version = command::output(Command::new(rustc).arg("--version"))?;
    let compiler = version.split_whitespace().take(2).collect::<Vec<_>>().join(" ");
    let congestion = read(CONGESTION)?.trim().to_owned();
    let memory_gib = memory_gib(&read(MEMORY)?).ok_or_else(|| format!("{MEMORY} does not say how much there is"))?;
    let (command, unix_seconds, took_s, load) = (String::new(), 0, 0.0, 0.0);
    Ok(Provenance { command, unix_seconds, took_s, commit, compiler, congestion, memory_gib, load })
}

fn read(file: &str) -> Result<String, String> {
    fs::read_to_string(file).map_err(|error| format!("{file}: {error}"))
}

/// Processes that ran or wanted to, on average over the last minute.
fn load() -> Result<f64, String> {
    let text = read(LOAD)?;
    let first = text.split_whitespace().next().and_then(|first| first.parse().ok());
    first.ok_or_else(|| format!("{LOAD} begins with no number"))
}

fn memory_gib(text: &str) -> Option<f64> {
    let line = text.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    let kib: f64 = line.trim().strip_suffix(" kB")?.parse().ok()?;
    Some((kib / f64::from(1 << 20) * 10.0).round() / 10.0)
}

/// A Python that has this repository's package, made once and brought up to date.
fn python() -> Result<PathBuf, String> {
    let folder = workspace().join(PYTHON);
    let program = folder.join("bin/python");
    if !program.exists() {
        command::run(Command::new("python3").args(["-m", "venv"]).arg(&folder))?;
    }
    let package = format!("{}[examples]", workspace().join("python").display());
    command::run(Command::new(&program).args(["-m", "pip", "install", "--quiet", &package]))?;
    Ok(program)
}

/// Whether TensorFlow can be measured here.
pub(super) fn has_tensorflow() -> bool {
    workspace().join(TENSORFLOW).exists()
}

fn tensorflow() -> Result<PathBuf, String> {
    let told = format!(
        "there is no {TENSORFLOW}; make it with `python3 -m venv target/report-tensorflow`, and in it \
         `pip install 'tensorflow-cpu==2.21.*'` and `pip install ./python ./python/tensorflow`"
    );
    if has_tensorflow() { Ok(workspace().join(TENSORFLOW)) } else { Err(told) }
}

#[cfg(test)]
mod tests {
    use super::super::experiment::{bench, other};
    use super::super::fixtures::provenance;
    use super::*;

    #[test]
    fn a_result_is_kept_with_where_it_comes_from() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("latency.json");
        keep(&file, serde_json::json!({"schema": "x"}), &provenance()).unwrap();
        let kept: Value = serde_json::from_str(&fs::read_to_string(&file).unwrap()).unwrap();
        assert_eq!((&kept["schema"], &kept[PROVENANCE]["commit"]), (&"x".into(), &"0123abc".into()));
        assert_eq!(Results::load(folder.path()).unwrap().get("latency").unwrap().provenance, provenance());
        assert!(keep(&file, Value::Null, &provenance()).unwrap_err().contains("no object"));
        assert!(
            keep(&folder.path().join("none/x.json"), serde_json::json!({}), &provenance())
                .unwrap_err()
                .contains("none")
        );
    }

    #[test]
    fn what_fails_is_named_and_spoils_nothing() {
        let folder = tempfile::tempdir().unwrap();
        // Where the sources come from is not asked: they need not lie in a repository of this user's.
        let run = |program: &str, experiments: &[Experiment]| {
            let bench = Bench { program: program.into(), folder: folder.path().to_owned() };
            bench.run_each(experiments, &Results::default(), &provenance()).unwrap_err()
        };
        let experiments = [bench("latency", "latency"), other("growth", Program::Growth(&[]), "growth")];
        let in_lab = [other("ps_verbs", Program::Lab("no_such_step"), "")];
        let problems = run("/bin/false", &in_lab);
        assert_eq!(problems, ["the lab's experiments were not measured: the lab has no step for ps_verbs"]);
        let problems = run("/bin/false", &experiments);
        assert_eq!(problems.len(), 2);
        assert!(
            problems[0].starts_with("latency was not measured: /bin/false bench latency --rounds 5"),
            "{problems:?}"
        );
        // Does nothing, and writes nothing.
        let problems = run("/bin/true", &experiments);
        assert!(problems[1].contains("growth was not measured: what it wrote is no JSON"), "{problems:?}");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
    }

    #[test]
    fn the_machine_tells_its_memory_and_its_load() {
        assert_eq!(memory_gib("MemTotal:        8148000 kB\nMemFree: 1 kB\n"), Some(7.8));
        assert_eq!(memory_gib("nothing"), None);
        assert!(load().unwrap() >= 0.0);
    }
}
