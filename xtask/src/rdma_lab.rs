//! `cargo xtask rdma-lab`: real verbs without a NIC. Boots Debian's kernel with Soft-RoCE in an emulated machine, and runs
//! there what needs an RDMA device.

mod figures;
mod guest;
mod host;
mod image;
mod kernel;
mod machine;
mod perftest;
mod steps;
mod whole;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use serde_json::{Map, Value};

use guest::Job;
use image::Program;
use kernel::Kernel;
use machine::{Ending, Event};
use steps::{STEPS, Step};

/// The exit code of what was killed, as a shell tells it.
const KILLED: u8 = 137;

#[derive(Args)]
#[command(
    after_help = "Examples:\n  cargo xtask rdma-lab\n  cargo xtask rdma-lab --only ib_send_lat --only ib_write_bw\n  \
                        cargo xtask rdma-lab --run 'ibv_devinfo -v'\n  \
                        cargo xtask rdma-lab --run 'probe rxe0' --with target/debug/probe --within 60"
)]
pub(crate) struct RdmaLab {
    /// Run only this step (repeatable) [default: all steps]
    #[arg(long, value_name = "STEP", conflicts_with = "run")]
    only: Vec<String>,
    /// Write the reports of the steps named by --only to this file, by name
    #[arg(long, value_name = "FILE", requires = "only")]
    json: Option<PathBuf>,
    /// Instead of the lab's steps, run this command line with the guest's /bin/sh, and exit with its status
    #[arg(long, value_name = "COMMAND LINE")]
    run: Option<String>,
    /// A program or file to copy into the guest's /bin (repeatable)
    #[arg(long = "with", value_name = "PATH", requires = "run")]
    with: Vec<PathBuf>,
    /// Seconds after which the command line is killed
    #[arg(long, value_name = "SECONDS", default_value_t = 300, requires = "run")]
    within: u64,
}

impl RdmaLab {
    pub(crate) fn run(&self) -> ExitCode {
        self.boot().unwrap_or_else(|error| {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        })
    }

    fn boot(&self) -> Result<ExitCode, String> {
        let steps = chosen(&self.only)?;
        let programs: Vec<Program> = self.with.iter().map(|path| program(path)).collect::<Result<_, _>>()?;
        host::install()?;
        let lab = host::lab_folder()?;
        let kernel = kernel::fetch(&lab)?;
        match &self.run {
            Some(script) => self.command(&lab, &kernel, &programs, script),
            None => {
                let passed = whole::run(&lab, &kernel, &steps)?;
                if let (true, Some(file)) = (passed, &self.json) {
                    let written = serde_json::to_vec(&reports(&lab, &self.only)?).map_err(|error| error.to_string())?;
                    fs::write(file, written).map_err(|error| format!("{}: {error}", file.display()))?;
                }
                Ok(if passed { ExitCode::SUCCESS } else { ExitCode::FAILURE })
            }
        }
    }

    fn command(&self, lab: &Path, kernel: &Kernel, programs: &[Program], script: &str) -> Result<ExitCode, String> {
        let jobs = [Job { script: script.to_string(), within: Duration::from_secs(self.within) }];
        let mut code = None;
        machine::boot(lab, kernel, programs, &jobs, &mut |event| match event {
            Event::Up(after) => eprintln!("the guest is up after {:.1} s", after.as_secs_f64()),
            Event::Began(_) => {}
            Event::Line(line) => println!("{line}"),
            Event::Ended(_, ending) => {
                code = Some(ending.code);
                if was_killed(ending, self.within) {
                    eprintln!("error: killed after {} s (--within)", self.within);
                }
            }
        })?;
        code.map(ExitCode::from).ok_or_else(|| "the guest ended before the command line did".to_string())
    }
}

/// The report that each of these steps printed, by its name.
fn reports(lab: &Path, names: &[String]) -> Result<Map<String, Value>, String> {
    let report = |name: &String| {
        let log = whole::log_of(lab, name);
        let printed = fs::read_to_string(&log).map_err(|error| format!("{}: {error}", log.display()))?;
        let report = figures::report(&printed).ok_or_else(|| format!("{}: it has no report", log.display()))?;
        Ok((name.clone(), report))
    };
    names.iter().map(report).collect()
}

/// Whether a job was killed for its time limit. The guest keeps the limit and the host measures: to a second, they agree.
fn was_killed(ending: &Ending, within_s: u64) -> bool {
    ending.code == KILLED && ending.took + Duration::from_secs(1) > Duration::from_secs(within_s)
}

fn program(path: &Path) -> Result<Program, String> {
    let name = path.file_name().filter(|_| path.is_file()).ok_or_else(|| format!("{} is no file", path.display()))?;
    Ok(Program { name: name.to_string_lossy().into_owned(), path: path.to_path_buf() })
}

/// The steps of these names, or all.
fn chosen(names: &[String]) -> Result<Vec<&'static Step>, String> {
    if let Some(unknown) = names.iter().find(|name| !STEPS.iter().any(|step| step.name == **name)) {
        let known: Vec<_> = STEPS.iter().map(|step| step.name).collect();
        return Err(format!("there is no step {unknown:?}; the steps are {}", known.join(", ")));
    }
    Ok(STEPS.iter().filter(|step| names.is_empty() || names.iter().any(|name| name == step.name)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_are_chosen_by_name() {
        assert_eq!(chosen(&[]).unwrap().len(), STEPS.len());
        assert_eq!(chosen(&["ib_send_lat".to_string()]).unwrap()[0].name, "ib_send_lat");
        let error = chosen(&["ib_lat".to_string()]).err().unwrap();
        assert!(error.contains("\"ib_lat\"") && error.contains("ibv_devinfo, "), "{error}");
    }

    #[test]
    fn a_folder_is_no_program() {
        assert!(program(Path::new("/")).is_err());
        assert!(program(Path::new(env!("CARGO_MANIFEST_DIR"))).is_err());
        let this = std::env::current_exe().unwrap();
        assert_eq!(program(&this).unwrap().name, this.file_name().unwrap().to_str().unwrap());
    }

    #[test]
    fn only_a_kill_at_the_limit_is_the_limits() {
        let ending = |code, seconds| Ending { code, took: Duration::from_secs(seconds) };
        assert!(was_killed(&ending(KILLED, 10), 10));
        assert!(!was_killed(&ending(KILLED, 9), 10) && !was_killed(&ending(1, 10), 10));
    }
}
