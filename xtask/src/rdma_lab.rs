//! `cargo xtask rdma-lab`: real verbs without a NIC. Boots Debian's kernel with Soft-RoCE in an emulated machine, and runs there
//! what needs an RDMA device. `rdma_lab/lab.sh` is the part for this machine, `guest.sh` that for the other.
//!
//! The guest sends one stream: the lines that steps print, mixed with the records of `guest.sh`, each of which begins with a byte
//! that does not occur in text.

mod steps;

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

use clap::Args;
use serde_json::{Map, Value};

use crate::Outcome;
use crate::build::workspace;
use crate::command::output;
use steps::{PROGRAMS, Step};

/// Time for a boot beyond the limits of its steps, which the guest enforces: ten times what it takes on two busy cores.
const BOOT_WITHIN_S: u64 = 120;

/// Lines shown of a boot or a step that failed.
const LAST_LINES: usize = 30;

/// Begins every record.
const RECORD: &str = "\u{1e}lab ";

#[derive(Args)]
#[command(
    after_help = "Examples:\n  cargo xtask rdma-lab\n  cargo xtask rdma-lab --only ib_send_lat --only ib_write_bw"
)]
pub(crate) struct RdmaLab {
    /// Run only this step (repeatable) [default: all steps]
    #[arg(long, value_name = "STEP")]
    only: Vec<String>,
    /// Write the reports of the steps named by --only to this file, by name
    #[arg(long, value_name = "FILE", requires = "only")]
    json: Option<PathBuf>,
}

impl RdmaLab {
    pub(crate) fn run(&self) -> Outcome {
        let steps = chosen(&self.only)?;
        let lab = workspace().join("target/rdma-lab");
        fs::create_dir_all(&lab).map_err(|error| format!("{}: {error}", lab.display()))?;
        eprintln!("looking for packages and the guest's kernel; what is missing is downloaded");
        output(&mut script("install"))?;
        let kernel = PathBuf::from(output(script("kernel").arg(&lab))?.trim_end());
        let wanted = PROGRAMS.iter().filter(|program| steps.iter().any(|step| step.runs(program)));
        let built = wanted.map(|program| program.build(&[]).map(|path| (program.target, path)));
        let programs: Vec<(&str, PathBuf)> = built.collect::<Result<_, _>>()?;
        let mut run = Run { lab: &lab, steps: &steps, done: 0, failed: 0, reports: Map::new() };
        let booted = boot(&mut run, &kernel, &programs);
        let failed = run.failed + steps.len() - run.done;
        println!("{} steps, {failed} failed or not run; what each printed is in target/rdma-lab/STEP.log", steps.len());
        booted?;
        if let (0, Some(file)) = (failed, &self.json) {
            let written = fs::write(file, Value::from(run.reports).to_string());
            written.map_err(|error| format!("{}: {error}", file.display()))?;
        }
        Ok(failed == 0)
    }
}

/// The steps of a boot, and their results.
struct Run<'a> {
    lab: &'a Path,
    steps: &'a [Step],
    done: usize,
    failed: usize,
    reports: Map<String, Value>,
}

/// The steps with these names, or all.
fn chosen(names: &[String]) -> Result<Vec<Step>, String> {
    let mut steps = steps::steps();
    if let Some(unknown) = names.iter().find(|name| !steps.iter().any(|step| step.name == **name)) {
        let known: Vec<_> = steps.iter().map(|step| step.name).collect();
        return Err(format!("there is no step {unknown:?}; the steps are {}", known.join(", ")));
    }
    steps.retain(|step| names.is_empty() || names.iter().any(|name| name == step.name));
    Ok(steps)
}

/// The lab's script with this command.
fn script(what: &str) -> Command {
    let mut script = Command::new(workspace().join("xtask/src/rdma_lab/lab.sh"));
    script.arg(what);
    script
}

/// Boots the machine, runs the steps one after the other, and powers it off.
///
/// # Errors
/// The guest does not come up, panics, or hangs: with the last lines that it printed. A failed step is no error.
fn boot(run: &mut Run<'_>, kernel: &Path, programs: &[(&str, PathBuf)]) -> Result<(), String> {
    let Run { lab, steps, .. } = *run;
    let told = |error| format!("{}: {error}", lab.display());
    let work = tempfile::Builder::new().prefix("work-").tempdir_in(lab).map_err(told)?;
    let folder = work.path().join("root/lab");
    fs::create_dir_all(&folder).map_err(told)?;
    let mut written =
        steps.iter().enumerate().map(|(number, step)| fs::write(folder.join(number.to_string()), &step.run));
    written.try_for_each(|written| written).map_err(told)?;
    let limits: String = steps.iter().map(|step| format!("{}\n", step.within_s)).collect();
    fs::write(folder.join("limits"), limits).map_err(told)?;
    let mut image = script("image");
    image.arg(kernel).arg(work.path());
    for (name, path) in programs {
        image.arg(format!("bin/{name}")).arg(path);
    }
    output(&mut image)?;
    let within_s = BOOT_WITHIN_S + steps.iter().map(|step| step.within_s).sum::<u64>();
    let mut start = script("start");
    start.arg(kernel).arg(work.path()).arg(within_s.to_string()).stdin(Stdio::null()).stdout(Stdio::piped());
    eprintln!("booting the guest");
    let mut emulator = start.spawn().map_err(|error| format!("cannot start the emulator: {error}"))?;
    let end = run.follow(BufReader::new(emulator.stdout.take().expect("it is piped")));
    let _ = emulator.kill();
    let _ = emulator.wait();
    let said = |log: &str| String::from_utf8_lossy(&fs::read(work.path().join(log)).unwrap_or_default()).into_owned();
    let (kernel, emulator) = (said("kernel.log"), said("emulator.log"));
    let _ = fs::write(lab.join("kernel.log"), &kernel);
    end.map_err(|error| format!("{error}\n{}\n{}", last_lines(&kernel), last_lines(&emulator)))
}

impl Run<'_> {
    /// Reads the guest's stream to its end, and judges steps by their output.
    fn follow(&mut self, stream: impl BufRead) -> Result<(), String> {
        let (mut began, mut printed, mut doing) = (Instant::now(), String::new(), "boot");
        for line in stream.split(b'\n').map_while(Result::ok) {
            let line = String::from_utf8_lossy(&line);
            let line = line.strip_suffix('\r').unwrap_or(&line);
            // A step's last line may lack its newline: then a record follows on the same line.
            let (text, record) = line.split_once(RECORD).map_or((line, ""), |(text, record)| (text, record));
            if record.is_empty() || !text.is_empty() {
                printed.extend([text, "\n"]);
            }
            match (record.split(' ').collect::<Vec<_>>().as_slice(), self.steps.get(self.done)) {
                (["broken", ..], _) => return Err(format!("the guest could not: {record}\n{}", last_lines(&printed))),
                (["began", _], Some(step)) => {
                    (began, doing) = (Instant::now(), step.name);
                    printed.clear();
                    eprintln!("running {doing} ({} of {})", self.done + 1, self.steps.len());
                }
                (["ended", _, code], Some(step)) => self.ended(step, code, began, &std::mem::take(&mut printed)),
                (["done"], _) => return Ok(()),
                _ => {}
            }
        }
        Err(format!("the guest ended in {doing}\n{}", last_lines(&printed)))
    }

    /// Stores a step's output, and prints its result.
    fn ended(&mut self, step: &Step, code: &str, began: Instant, printed: &str) {
        let (name, log) = (step.name, self.lab.join(format!("{}.log", step.name)));
        fs::write(&log, printed).unwrap_or_else(|error| eprintln!("{}: {error}", log.display()));
        let judged = match code {
            "0" => step.judge(printed),
            "137" => Err(format!("killed, as after {} s", step.within_s)),
            code => Err(format!("exit code {code}")),
        };
        self.done += 1;
        self.reports.extend(steps::report(printed).map(|report| (name.to_owned(), report)));
        let (result, line) = judged.map_or_else(|why| ("FAILED", why), |line| ("passed", line));
        println!("{name:15}  {result}  {:7.1} s  {line}", began.elapsed().as_secs_f64());
        if result == "FAILED" {
            self.failed += 1;
            eprintln!("{}", last_lines(printed));
        }
    }
}

fn last_lines(printed: &str) -> String {
    let lines: Vec<_> = printed.lines().collect();
    lines[lines.len().saturating_sub(LAST_LINES)..].join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command::run;

    /// Runs the loop of the guest over two steps, in a folder of this machine and without what ends every process.
    #[test]
    fn what_the_guest_runs_is_heard() {
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| fs::write(folder.path().join(name), text).unwrap();
        write("0", "echo one; printf 'ended 0 0'; exit 3");
        write("1", "true");
        write("limits", "5\n60\n");
        let guest = include_str!("rdma_lab/guest.sh");
        let jobs = &guest[guest.find("say ready").unwrap()..];
        let jobs = jobs.replace("/lab/", "./").replace("kill -9 -1", "true").replace("poweroff -f", "");
        let say = guest.lines().find(|line| line.starts_with("say()")).unwrap();
        let said =
            output(Command::new("sh").args(["-c", &format!("{say}\n{jobs}")]).current_dir(folder.path())).unwrap();
        let steps = chosen(&["ibv_devinfo".to_owned(), "verbs_probe".to_owned()]).unwrap();
        let followed = |said: &str| {
            let mut run = Run { lab: folder.path(), steps: &steps, done: 0, failed: 0, reports: Map::new() };
            (run.follow(said.as_bytes()), run.done, run.failed)
        };
        // The second prints nothing.
        assert_eq!(followed(&said), (Ok(()), 2, 2));
        assert_eq!(fs::read_to_string(folder.path().join("ibv_devinfo.log")).unwrap(), "one\nended 0 0\n");
        let error = |said: &str| followed(said).0.unwrap_err();
        assert!(error("").contains("ended in boot"));
        assert!(error("\u{1e}lab ready\n\u{1e}lab began 0\nhello").contains("ended in ibv_devinfo\nhello"));
        assert!(error("\u{1e}lab broken insmod x\n").contains("could not: broken insmod x"));
    }

    #[test]
    fn a_program_comes_with_its_libraries_and_a_text_as_it_is() {
        let root = tempfile::tempdir().unwrap();
        let at = |path: &str| root.path().join(path);
        let manifest = concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml");
        let this = std::env::current_exe().unwrap();
        let mut copy = script("copy");
        copy.arg("bin/this").arg(&this).args(["lab/text", manifest, "bin/this", manifest]);
        run(copy.current_dir(root.path())).unwrap();
        assert_eq!(fs::read(at("lab/text")).unwrap(), fs::read(manifest).unwrap());
        assert_eq!(fs::metadata(at("bin/this")).unwrap().len(), fs::metadata(this).unwrap().len(), "the first stays");
        assert!(at("usr/lib/x86_64-linux-gnu/libc.so.6").is_file());
        let error = run(script("copy").args(["bin/none", "/no/such/program"]).current_dir(root.path())).unwrap_err();
        assert!(error.contains("/no/such/program"), "{error}");
    }
}
