//! `cargo xtask rdma-lab`: real verbs without a NIC. Boots Debian's kernel with Soft-RoCE in an emulated machine, and runs
//! there what needs an RDMA device. `rdma_lab/lab.sh` has what is done on this machine, `guest.sh` what is done in the other.

mod machine;
mod steps;

use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use serde_json::{Map, Value};

use crate::build::{build, workspace};
use crate::command::output;
use machine::{Ending, Event, Job, Machine, last_lines, script};
use steps::{Outputs, STEPS, Step};

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

/// A row of the table at the end.
struct Row {
    name: &'static str,
    took: Duration,
    /// The step's one line, or why it failed.
    outcome: Result<String, String>,
}

impl RdmaLab {
    pub(crate) fn run(&self) -> Result<ExitCode, String> {
        let steps = chosen(&self.only)?;
        let programs = self.with.iter().map(|path| program(path)).collect::<Result<_, _>>()?;
        let lab = workspace().join("target/rdma-lab");
        fs::create_dir_all(&lab).map_err(|error| format!("{}: {error}", lab.display()))?;
        eprintln!("looking for packages and the guest's kernel; what is missing is downloaded");
        output(&mut script("install"))?;
        let kernel = output(script("kernel").arg(&lab))?.trim_end().into();
        let mut machine = Machine { lab, kernel, programs };
        if let Some(script) = &self.run {
            return self.command(&machine, script);
        }
        machine.programs = build_all(&steps)?;
        let (rows, outputs) = run_all(&machine, &steps)?;
        print!("{}", table(&rows));
        let passed = rows.iter().all(|row| row.outcome.is_ok());
        if let (true, Some(file)) = (passed, &self.json) {
            let written = serde_json::to_vec(&reports(&outputs, &self.only)?).map_err(|error| error.to_string())?;
            fs::write(file, written).map_err(|error| format!("{}: {error}", file.display()))?;
        }
        Ok(if passed { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }

    fn command(&self, machine: &Machine, script: &str) -> Result<ExitCode, String> {
        let mut code = None;
        machine.boot(&[Job { script: script.to_owned(), within_s: self.within }], &mut |event| match event {
            Event::Up => eprintln!("the guest is up"),
            Event::Began(_) => {}
            Event::Line(line) => println!("{line}"),
            Event::Ended(_, ending) => {
                code = Some(ending.code);
                if ending.is_killed_after(self.within) {
                    eprintln!("error: killed after {} s (--within)", self.within);
                }
            }
        })?;
        code.map(ExitCode::from).ok_or_else(|| "the guest ended before the command line did".to_string())
    }
}

/// The report that each of these steps printed, by its name.
fn reports(outputs: &Outputs, names: &[String]) -> Result<Map<String, Value>, String> {
    let report = |name: &String| {
        let report = outputs.get(name.as_str()).and_then(|printed| steps::report(printed));
        Ok((name.clone(), report.ok_or_else(|| format!("{name} printed no report"))?))
    };
    names.iter().map(report).collect()
}

fn program(path: &Path) -> Result<(String, PathBuf), String> {
    let name = path.file_name().filter(|_| path.is_file()).ok_or_else(|| format!("{} is no file", path.display()))?;
    Ok((name.to_string_lossy().into_owned(), path.to_path_buf()))
}

/// The steps of these names, or all.
fn chosen(names: &[String]) -> Result<Vec<&'static Step>, String> {
    if let Some(unknown) = names.iter().find(|name| !STEPS.iter().any(|step| step.name == **name)) {
        let known: Vec<_> = STEPS.iter().map(|step| step.name).collect();
        return Err(format!("there is no step {unknown:?}; the steps are {}", known.join(", ")));
    }
    Ok(STEPS.iter().filter(|step| names.is_empty() || names.iter().any(|name| name == step.name)).collect())
}

/// Every program that a step runs, by the name of its target.
fn build_all(steps: &[&Step]) -> Result<Vec<(String, PathBuf)>, String> {
    let wanted = steps::PROGRAMS.iter().filter(|program| steps.iter().any(|step| step.runs(program)));
    let built = wanted.map(|program| {
        eprintln!("building {}", program.target);
        build(program).map(|path| (program.target.to_owned(), path))
    });
    built.collect()
}

/// Runs the steps; how they went, and what each printed.
///
/// # Errors
/// When the guest does not come up.
fn run_all(machine: &Machine, steps: &[&'static Step]) -> Result<(Vec<Row>, Outputs), String> {
    let (mut rows, mut outputs) = (Vec::new(), Outputs::new());
    while rows.len() < steps.len() {
        let done = rows.len();
        let Err(error) = one_boot(machine, steps, &mut rows, &mut outputs) else { continue };
        // A step that takes the guest down with it fails; those after it get a guest of their own.
        let broken = steps.get(rows.len()).and_then(|step| Some((step, outputs.get(step.name)?)));
        if let Some((step, output)) = broken {
            keep_log(&machine.lab, step.name, output);
            let outcome = Err(error.lines().next().unwrap_or_default().to_string());
            rows.push(Row { name: step.name, took: Duration::ZERO, outcome });
        } else if done == rows.len() || rows.len() == steps.len() {
            return Err(error);
        }
        eprintln!("{error}");
    }
    Ok((rows, outputs))
}

/// Boots once, and runs the steps that have no row yet.
fn one_boot(
    machine: &Machine,
    steps: &[&'static Step],
    rows: &mut Vec<Row>,
    outputs: &mut Outputs,
) -> Result<(), String> {
    let rest = &steps[rows.len()..];
    let job = |step: &&Step| Job { script: step.run.to_string(), within_s: step.within_s };
    let jobs: Vec<Job> = rest.iter().map(job).collect();
    let mut running = "";
    eprintln!("booting the guest");
    machine.boot(&jobs, &mut |event| match event {
        Event::Up => eprintln!("the guest is up"),
        Event::Began(number) => {
            running = rest[number].name;
            outputs.insert(running, String::new());
            eprintln!("running {running} ({} of {})", rows.len() + 1, steps.len());
        }
        Event::Line(line) => outputs.entry(running).or_default().extend([line.as_str(), "\n"]),
        Event::Ended(number, ending) => {
            let outcome = judge(rest[number], ending, outputs);
            if outcome.is_err() {
                eprintln!("{}", last_lines(&outputs[running]));
            }
            keep_log(&machine.lab, running, &outputs[running]);
            rows.push(Row { name: running, took: ending.took, outcome });
        }
    })
}

fn judge(step: &Step, ending: Ending, outputs: &Outputs) -> Result<String, String> {
    match ending.code {
        0 => (step.judge)(outputs, step),
        _ if ending.is_killed_after(step.within_s) => Err(format!("killed after {} s", step.within_s)),
        code => Err(format!("exit code {code}")),
    }
}

fn keep_log(lab: &Path, step: &str, output: &str) {
    let log = lab.join(format!("{step}.log"));
    if let Err(error) = fs::write(&log, output) {
        eprintln!("{}: {error}", log.display());
    }
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
    use crate::command::run;
    use std::os::unix::fs::PermissionsExt;

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
        assert_eq!(program(&this).unwrap().0, this.file_name().unwrap().to_str().unwrap());
    }

    #[test]
    fn a_step_passes_by_its_exit_code_and_its_output() {
        let step = Step {
            name: "one",
            run: "true",
            within_s: 10,
            judge: |outputs, step| match outputs[step.name].as_str() {
                "good\n" => Ok("is good".to_string()),
                _ => Err("is bad".to_string()),
            },
        };
        let judged = |code, seconds, printed: &str| {
            let ending = Ending { code, took: Duration::from_secs(seconds) };
            judge(&step, ending, &Outputs::from([("one", printed.to_string())]))
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
        let loaders = ["lib", "lib64"].map(|folder| fs::read_dir(at(folder)).into_iter().flatten().count());
        assert_eq!(loaders.iter().sum::<usize>(), 1, "the loader");
    }

    #[test]
    fn a_file_that_is_missing_is_named() {
        let root = tempfile::tempdir().unwrap();
        let error = run(script("copy").args(["bin/none", "/no/such/program"]).current_dir(root.path())).unwrap_err();
        assert!(error.contains("/no/such/program"), "{error}");
    }

    /// Runs the lab's script where these stand in for the system's commands, each a script.
    fn with_commands(commands: &[(&str, &str)], arguments: &[&str], folder: &Path) -> Result<String, String> {
        for (name, script) in commands {
            fs::write(folder.join(name), format!("#!/bin/sh\n{script}\n")).unwrap();
            fs::set_permissions(folder.join(name), fs::Permissions::from_mode(0o755)).unwrap();
        }
        let path = format!("{}:{}", folder.display(), std::env::var("PATH").unwrap());
        output(script(arguments[0]).args(&arguments[1..]).env("PATH", path))
    }

    #[test]
    fn a_package_half_installed_is_missing() {
        let folder = tempfile::tempdir().unwrap();
        let query = "case $4 in kmod) echo not-installed;; make) echo config-files;; *) echo installed;; esac";
        let commands = [("dpkg-query", query), ("id", "echo 1000")];
        let error = with_commands(&commands, &["install"], folder.path()).unwrap_err();
        assert!(error.ends_with("as root: apt-get install kmod make"), "{error}");
        with_commands(&[("dpkg-query", "echo installed")], &["install"], folder.path()).unwrap();
    }

    #[test]
    fn the_kernel_is_kept_with_its_modules_in_their_order() {
        let folder = tempfile::tempdir().unwrap();
        let lab = folder.path().to_str().unwrap();
        let unpack = "cd \"$3\" 2>/dev/null || mkdir \"$3\" && cd \"$3\" && mkdir -p boot lib/modules/6.1 && \
                      echo kernel >boot/vmlinuz-6.1 && echo module >lib/modules/6.1/udp.ko && echo module >lib/modules/6.1/rxe.ko.xz";
        let modprobe = "echo builtin virtio; echo \"insmod $4/lib/modules/6.1/udp.ko \"; \
                        if [ \"$8\" = rdma_rxe ]; then echo \"insmod $4/lib/modules/6.1/rxe.ko.xz \"; fi";
        let commands = [
            (
                "apt-cache",
                "echo linux-image-amd64; echo '  Depends: linux-image-6.1.0-56-amd64'; echo '  Conflicts: other'",
            ),
            ("apt-get", "echo package >kernel.deb"),
            ("dpkg", unpack),
            ("depmod", "true"),
            ("modprobe", modprobe),
        ];
        let kept = folder.path().join("kernel-linux-image-6.1.0-56-amd64");
        let found = with_commands(&commands, &["kernel", lab], folder.path()).unwrap();
        assert_eq!(Path::new(found.trim_end()), kept);
        let list = fs::read_to_string(kept.join("list")).unwrap();
        assert!(list.ends_with("rdma_ucm\nudp.ko\nrxe.ko.xz\n") && list.lines().count() == 3, "{list}");
        assert!(["vmlinuz", "udp.ko", "rxe.ko.xz"].into_iter().all(|name| kept.join(name).is_file()));
        // It is not downloaded again, unless other modules were chosen.
        let offline = [("apt-get", "echo 'there is no network'; exit 1")];
        with_commands(&offline, &["kernel", lab], folder.path()).unwrap();
        fs::write(kept.join("list"), "other\nudp.ko\n").unwrap();
        let error = with_commands(&offline, &["kernel", lab], folder.path()).unwrap_err();
        assert!(error.contains("there is no network"), "{error}");
        with_commands(&commands, &["kernel", lab], folder.path()).unwrap();
        assert_eq!(fs::read_to_string(kept.join("list")).unwrap(), list);
        let unknown = [("apt-cache", "echo linux-image-amd64"), ("id", "echo 1000")];
        let error = with_commands(&unknown, &["kernel", lab], folder.path()).unwrap_err();
        assert!(error.contains("apt knows no kernel package"), "{error}");
    }
}
