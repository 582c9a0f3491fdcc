//! The emulated machine: one boot, from power-on to power-off, in a process of its own that ends with this one.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant};

use super::guest::{Console, Heard, Job, init};
use super::host;
use super::image::{self, Program};
use super::kernel::Kernel;

/// From power-on until the device's port is active: ten times what it takes on two busy cores.
const BOOT_WITHIN: Duration = Duration::from_secs(120);

/// What a job is given beyond its own limit, which the guest keeps: after that the guest itself hangs.
const GRACE: Duration = Duration::from_secs(15);

/// Lines shown of a boot that failed.
const LAST_LINES: usize = 20;

/// How a job ended.
pub(crate) struct Ending {
    pub(crate) code: u8,
    pub(crate) took: Duration,
}

/// What happens in a boot, as it happens.
pub(crate) enum Event<'a> {
    /// The guest is up, after that time.
    Up(Duration),
    Began(usize),
    Line(&'a str),
    Ended(usize, &'a Ending),
}

/// The folder of one boot, removed when the boot is over.
struct Folder(PathBuf);

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// An emulator that does not outlive its owner.
struct Emulator(Child);

impl Drop for Emulator {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Boots a machine with these programs, runs the jobs one after the other, and tells `on` what happens.
///
/// # Errors
/// When the guest does not come up, panics, or hangs: with the last lines of what it printed. Not when a job fails.
pub(crate) fn boot(
    lab: &Path,
    kernel: &Kernel,
    programs: &[Program],
    jobs: &[Job],
    on: &mut dyn FnMut(Event<'_>),
) -> Result<(), String> {
    let folder = Folder(host::work_folder(lab, "boot"));
    fs::create_dir_all(&folder.0).map_err(|error| format!("{}: {error}", folder.0.display()))?;
    let [archive, log, complaints] = ["image", "kernel.log", "emulator.log"].map(|name| folder.0.join(name));
    let mark = mark()?;
    let module_name = |path: &PathBuf| path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let modules: Vec<String> = kernel.modules.iter().map(module_name).collect();
    image::write(&archive, &init(&mark, &modules, jobs), kernel, programs, jobs)?;

    let mut emulator = start(kernel, &archive, &log, &complaints)?;
    let lines = emulator.0.stdout.take().map(read_lines).ok_or("the emulator's output is not there")?;
    let mut last = Vec::new();
    let end = follow(&lines, &Console::new(&mark), jobs, &mut last, on);
    drop(emulator);
    let _ = fs::copy(&log, lab.join("kernel.log"));
    end.map_err(|error| {
        let said = |log| String::from_utf8_lossy(&fs::read(log).unwrap_or_default()).into_owned();
        explain(&error, &last.join("\n"), &said(&log), &said(&complaints))
    })
}

/// What no program prints by accident.
fn mark() -> Result<String, String> {
    let mut bytes = [0; 16];
    let read = File::open("/dev/urandom").and_then(|mut random| random.read_exact(&mut bytes));
    read.map_err(|error| format!("/dev/urandom: {error}"))?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

fn start(kernel: &Kernel, archive: &Path, log: &Path, complaints: &Path) -> Result<Emulator, String> {
    let complaints_file = File::create(complaints).map_err(|error| format!("{}: {error}", complaints.display()))?;
    // The first serial port is the kernel's, the second the jobs'. The network leads nowhere.
    let mut command = Command::new("setpriv");
    command
        .args(["--pdeathsig", "KILL", "qemu-system-x86_64"])
        .args(["-accel", "tcg,thread=multi", "-cpu", "max", "-smp", "2", "-m", "2048"])
        .args(["-nodefaults", "-display", "none", "-no-reboot"])
        .args(["-netdev", "hubport,id=n0,hubid=0", "-device", "virtio-net-pci,netdev=n0,status=off,romfile="])
        .arg("-serial")
        .arg(format!("file:{}", log.display()))
        .args(["-chardev", "stdio,id=jobs,signal=off", "-serial", "chardev:jobs"])
        .arg("-kernel")
        .arg(&kernel.image)
        .arg("-initrd")
        .arg(archive)
        .args(["-append", "console=ttyS0 quiet panic=-1 oops=panic net.ifnames=0 tsc=reliable clocksource=tsc"])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(complaints_file);
    command.spawn().map(Emulator).map_err(|error| format!("cannot start the emulator: {error}"))
}

/// The stream's lines, until it ends.
fn read_lines(stream: impl Read + Send + 'static) -> Receiver<Vec<u8>> {
    let (send, receive) = channel();
    thread::spawn(move || {
        for line in BufReader::new(stream).split(b'\n').map_while(Result::ok) {
            if send.send(line).is_err() {
                return;
            }
        }
    });
    receive
}

/// Reads the guest's stream to its end, and keeps the last lines.
fn follow(
    lines: &Receiver<Vec<u8>>,
    console: &Console,
    jobs: &[Job],
    last: &mut Vec<String>,
    on: &mut dyn FnMut(Event<'_>),
) -> Result<(), String> {
    let power_on = Instant::now();
    let (mut began, mut within) = (power_on, BOOT_WITHIN);
    let mut doing = "boot".to_string();
    loop {
        let line = lines.recv_timeout(within.saturating_sub(began.elapsed())).map_err(|error| match error {
            RecvTimeoutError::Timeout => format!("the guest hung in {doing}: nothing for {} s", within.as_secs()),
            RecvTimeoutError::Disconnected => format!("the guest ended in {doing}"),
        })?;
        for heard in console.read(&line) {
            match heard {
                Heard::Ready => on(Event::Up(power_on.elapsed())),
                Heard::Broken(command) => return Err(format!("the guest could not: {command}")),
                Heard::Line(line) => {
                    on(Event::Line(&line));
                    if last.len() == LAST_LINES {
                        last.remove(0);
                    }
                    last.push(line);
                }
                Heard::Began(job) => {
                    began = Instant::now();
                    within = jobs.get(job).map_or(GRACE, |job| job.within + GRACE);
                    doing = format!("job {job}");
                    on(Event::Began(job));
                }
                Heard::Ended(job, code) => {
                    on(Event::Ended(job, &Ending { code, took: began.elapsed() }));
                    (began, within) = (Instant::now(), GRACE);
                    doing = format!("what follows job {job}");
                }
                Heard::Done => return Ok(()),
            }
        }
    }
}

/// An error with what the guest, its kernel and the emulator printed last.
fn explain(error: &str, guest: &str, kernel: &str, emulator: &str) -> String {
    let panic = kernel.lines().find(|line| line.contains("Kernel panic"));
    let mut text = panic.map_or(error.to_string(), |panic| format!("{error}: {}", panic.trim()));
    for (whose, said) in [("guest", guest), ("kernel", kernel), ("emulator", emulator)] {
        let lines: Vec<_> = said.lines().collect();
        if !lines.is_empty() {
            let last = &lines[lines.len().saturating_sub(LAST_LINES)..];
            text += &format!("\nlast lines of the {whose}:\n{}", last.join("\n"));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn jobs() -> Vec<Job> {
        vec![Job { script: String::new(), within: Duration::from_secs(60) }]
    }

    /// What a boot that prints these lines and then ends comes to.
    fn followed(printed: &[&str]) -> (Result<(), String>, Vec<String>, Vec<u8>) {
        let (send, lines) = channel();
        for line in printed {
            send.send(line.as_bytes().to_vec()).unwrap();
        }
        drop(send);
        let (mut last, mut codes) = (Vec::new(), Vec::new());
        let end = follow(&lines, &Console::new("abc"), &jobs(), &mut last, &mut |event| {
            if let Event::Ended(_, ending) = event {
                codes.push(ending.code);
            }
        });
        (end, last, codes)
    }

    #[test]
    fn a_boot_ends_when_its_jobs_have() {
        let printed =
            ["\u{1e}abc ready", "\u{1e}abc began 0", "hello", "\u{1e}abc ended 0 3", "\u{1e}abc done", "not read"];
        let (end, last, codes) = followed(&printed);
        assert_eq!((end, last, codes), (Ok(()), vec!["hello".to_string()], vec![3]));
    }

    #[test]
    fn a_boot_that_stops_early_says_where() {
        let (end, _, codes) = followed(&["\u{1e}abc ready", "\u{1e}abc began 0"]);
        assert_eq!((end, codes), (Err("the guest ended in job 0".to_string()), vec![]));
        let (end, _, _) = followed(&["\u{1e}abc broken insmod x"]);
        assert_eq!(end, Err("the guest could not: insmod x".to_string()));
    }

    #[test]
    fn a_panic_is_named_first() {
        let kernel = "one\n[ 1.0] Kernel panic - not syncing: Fatal\ntwo\n";
        let text = explain("the guest ended in job 0", "working", kernel, "");
        assert!(text.starts_with("the guest ended in job 0: [ 1.0] Kernel panic - not syncing: Fatal"), "{text}");
        assert!(text.contains("last lines of the guest:\nworking\n"), "{text}");
        assert_eq!(explain("it hung", "", "", ""), "it hung");
    }
}
