//! The whole lab: builds, boots, runs the steps, keeps what each printed, and prints how they went.

use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::guest::Job;
use super::image::Program;
use super::kernel::Kernel;
use super::machine::{self, Ending, Event};
use super::steps::{Outputs, Step};
use super::was_killed;
use crate::build::{Build, build};

/// Lines shown of a step that failed; all of them are in its log.
const SHOWN_LINES: usize = 30;

/// A row of the table at the end.
struct Row {
    name: &'static str,
    took: Duration,
    /// The step's one line, or why it failed.
    outcome: Result<String, String>,
}

/// Runs the steps, and says whether all passed.
///
/// # Errors
/// When something does not build, or the guest does not come up.
pub(crate) fn run(lab: &Path, kernel: &Kernel, steps: &[&Step]) -> Result<bool, String> {
    let programs = build_all(steps)?;
    let (mut rows, mut outputs) = (Vec::new(), Outputs::new());
    while rows.len() < steps.len() {
        let done = rows.len();
        let Err(error) = one_boot(lab, kernel, &programs, steps, &mut rows, &mut outputs) else { continue };
        // A step that takes the guest down with it fails; those after it get a guest of their own.
        let broken = steps.get(rows.len()).and_then(|step| Some((step.name, outputs.get(step.name)?)));
        match broken {
            Some((name, output)) => {
                keep_log(lab, name, output)?;
                eprintln!("{error}");
                let outcome = Err(error.lines().next().unwrap_or_default().to_string());
                rows.push(Row { name, took: Duration::ZERO, outcome });
            }
            None if done < rows.len() && rows.len() < steps.len() => eprintln!("{error}"),
            None => return Err(error),
        }
    }
    print!("{}", table(&rows));
    Ok(rows.iter().all(|row| row.outcome.is_ok()))
}

/// Every program that a step needs, once.
fn build_all(steps: &[&Step]) -> Result<Vec<Program>, String> {
    let mut builds: Vec<&Build> = Vec::new();
    for need in steps.iter().flat_map(|step| step.needs) {
        if !builds.contains(&need) {
            builds.push(need);
        }
    }
    let count = builds.len();
    let programs = builds.iter().enumerate().map(|(number, wanted)| {
        eprintln!("building {} ({} of {count})", wanted.target, number + 1);
        // Its name in the guest is its target's.
        build(wanted).map(|path| Program { name: wanted.target.to_string(), path })
    });
    programs.collect()
}

/// Boots once, and runs the steps that have no row yet.
fn one_boot(
    lab: &Path,
    kernel: &Kernel,
    programs: &[Program],
    steps: &[&Step],
    rows: &mut Vec<Row>,
    outputs: &mut Outputs,
) -> Result<(), String> {
    let rest = &steps[rows.len()..];
    let job = |step: &&Step| Job { script: step.run.to_string(), within: Duration::from_secs(step.within_s) };
    let jobs: Vec<Job> = rest.iter().map(job).collect();
    let (mut running, mut kept) = ("", Ok(()));
    eprintln!("booting the guest");
    machine::boot(lab, kernel, programs, &jobs, &mut |event| match event {
        Event::Up(after) => eprintln!("the guest is up after {:.1} s", after.as_secs_f64()),
        Event::Began(number) => {
            running = rest[number].name;
            outputs.insert(running, String::new());
            eprintln!("running {running} ({} of {})", rows.len() + 1, steps.len());
        }
        Event::Line(line) => {
            if let Some(output) = outputs.get_mut(running) {
                *output += line;
                *output += "\n";
            }
        }
        Event::Ended(number, ending) => {
            let outcome = judge(rest[number], ending, outputs);
            if outcome.is_err() {
                eprintln!("{}", last_lines(&outputs[running]));
            }
            let saved = keep_log(lab, running, &outputs[running]);
            kept = std::mem::replace(&mut kept, Ok(())).and(saved);
            rows.push(Row { name: running, took: ending.took, outcome });
        }
    })?;
    kept
}

fn judge(step: &Step, ending: &Ending, outputs: &Outputs) -> Result<String, String> {
    match ending.code {
        0 => (step.judge)(outputs, step.name),
        _ if was_killed(ending, step.within_s) => Err(format!("killed after {} s", step.within_s)),
        code => Err(format!("exit code {code}")),
    }
}

/// Where what a step printed is kept.
pub(crate) fn log_of(lab: &Path, step: &str) -> PathBuf {
    lab.join(format!("{step}.log"))
}

fn keep_log(lab: &Path, step: &str, output: &str) -> Result<(), String> {
    let path = log_of(lab, step);
    fs::write(&path, output).map_err(|error| format!("{}: {error}", path.display()))
}

fn last_lines(output: &str) -> String {
    let lines: Vec<_> = output.lines().collect();
    lines[lines.len().saturating_sub(SHOWN_LINES)..].join("\n")
}

fn table(rows: &[Row]) -> String {
    let width = rows.iter().map(|row| row.name.len()).max().unwrap_or(0).max("step".len());
    let mut text = format!("\n{:width$}  result  seconds\n", "step");
    for Row { name, took, outcome } in rows {
        let (result, line) = match outcome {
            Ok(line) => ("passed", line),
            Err(why) => ("FAILED", why),
        };
        let _ = writeln!(text, "{name:width$}  {result}  {:7.1}  {line}", took.as_secs_f64());
    }
    let failed = rows.iter().filter(|row| row.outcome.is_err()).count();
    text + &format!("{} steps, {failed} failed; what each printed is in target/rdma-lab/STEP.log\n", rows.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn step() -> Step {
        let judge = |outputs: &Outputs, step: &str| match outputs[step].as_str() {
            "good\n" => Ok("is good".to_string()),
            _ => Err("is bad".to_string()),
        };
        Step { name: "one", run: "true", within_s: 10, needs: &[], judge }
    }

    #[test]
    fn a_step_passes_by_its_exit_code_and_its_output() {
        let judged = |code, seconds, printed: &str| {
            let ending = Ending { code, took: Duration::from_secs(seconds) };
            judge(&step(), &ending, &Outputs::from([("one", printed.to_string())]))
        };
        assert_eq!(judged(0, 1, "good\n"), Ok("is good".to_string()));
        assert_eq!(judged(0, 1, "other\n"), Err("is bad".to_string()));
        assert_eq!(judged(2, 1, "good\n"), Err("exit code 2".to_string()));
        assert_eq!(judged(137, 1, "good\n"), Err("exit code 137".to_string()));
        assert_eq!(judged(137, 10, "good\n"), Err("killed after 10 s".to_string()));
    }

    #[test]
    fn the_table_shows_every_step() {
        let rows = [
            Row { name: "ibv_devinfo", took: Duration::from_millis(300), outcome: Ok("port active".to_string()) },
            Row { name: "probe", took: Duration::from_secs(60), outcome: Err("exit code 1".to_string()) },
        ];
        let expected = "\nstep         result  seconds\n\
                        ibv_devinfo  passed      0.3  port active\n\
                        probe        FAILED     60.0  exit code 1\n\
                        2 steps, 1 failed; what each printed is in target/rdma-lab/STEP.log\n";
        assert_eq!(table(&rows), expected);
    }

    #[test]
    fn a_long_output_is_shown_by_its_end() {
        let output: String = (0..100).map(|line| format!("{line}\n")).collect();
        assert!(last_lines(&output).starts_with("70\n") && last_lines(&output).ends_with("99"));
        assert_eq!(last_lines("one\n"), "one");
    }
}
