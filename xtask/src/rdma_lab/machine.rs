//! The emulated machine: one boot, from power-on to power-off, in a process of its own that ends with this one.
//!
//! One stream comes out of the guest: the lines that jobs print, and between them the records of `guest.sh`, each of which begins
//! with a byte that text does not use.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant};

use crate::build::workspace;
use crate::command::output;

/// From power-on until the device's port is active: ten times what it takes on two busy cores.
const BOOT_WITHIN: Duration = Duration::from_secs(120);

/// What a job is given beyond its own limit, which the guest keeps: after that the guest itself hangs.
const GRACE: Duration = Duration::from_secs(15);

/// Lines shown of a boot or a step that failed.
const LAST_LINES: usize = 30;

/// Begins every record.
const RECORD: &str = "\u{1e}lab ";

/// The exit code of what was killed, as a shell tells it.
const KILLED: u8 = 137;

/// A command line to run in the guest.
pub(crate) struct Job {
    /// For `/bin/sh`.
    pub(crate) script: String,
    /// Seconds after which it is killed.
    pub(crate) within_s: u64,
}

/// How a job ended.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Ending {
    pub(crate) code: u8,
    pub(crate) took: Duration,
}

impl Ending {
    /// Whether it was killed for its time limit. The guest keeps the limit and the host measures: to a second, they agree.
    pub(crate) fn is_killed_after(self, within_s: u64) -> bool {
        self.code == KILLED && self.took + Duration::from_secs(1) > Duration::from_secs(within_s)
    }
}

/// What happens in a boot, as it happens.
#[derive(Debug, PartialEq)]
pub(crate) enum Event {
    /// The device's port is active, jobs come next.
    Up,
    Began(usize),
    Line(String),
    Ended(usize, Ending),
}

/// What every boot takes.
pub(crate) struct Machine {
    /// Where the lab keeps its files.
    pub(crate) lab: PathBuf,
    /// The folder with the kernel and its modules.
    pub(crate) kernel: PathBuf,
    /// Names in the guest's `/bin`, and the files of this machine that go there.
    pub(crate) programs: Vec<(String, PathBuf)>,
}

impl Machine {
    /// Boots it, runs the jobs one after the other, and tells `on` what happens.
    ///
    /// # Errors
    /// When the guest does not come up, panics, or hangs: with the last lines of what it printed. Not when a job fails.
    pub(crate) fn boot(&self, jobs: &[Job], on: &mut dyn FnMut(Event)) -> Result<(), String> {
        let told = |error| format!("{}: {error}", self.lab.display());
        let work = tempfile::Builder::new().prefix("work-").tempdir_in(&self.lab).map_err(told)?;
        write(jobs, &work.path().join("root/lab")).map_err(told)?;
        let mut image = script("image");
        image.arg(&self.kernel).arg(work.path());
        for (name, path) in &self.programs {
            image.arg(format!("bin/{name}")).arg(path);
        }
        output(&mut image)?;
        let mut start = script("start");
        start.arg(&self.kernel).arg(work.path()).stdin(Stdio::null()).stdout(Stdio::piped());
        let mut emulator = start.spawn().map_err(|error| format!("cannot start the emulator: {error}"))?;
        let lines = read_lines(BufReader::new(emulator.stdout.take().expect("it is piped")));
        let mut printed = String::new();
        let end = follow(&lines, jobs, &mut printed, on);
        let _ = emulator.kill();
        let _ = emulator.wait();
        let said =
            |log: &str| String::from_utf8_lossy(&fs::read(work.path().join(log)).unwrap_or_default()).into_owned();
        let (kernel, emulator) = (said("kernel.log"), said("emulator.log"));
        let _ = fs::write(self.lab.join("kernel.log"), &kernel);
        end.map_err(|error| explain(&error, &printed, &kernel, &emulator))
    }
}

/// The lab's script, which does this.
pub(crate) fn script(what: &str) -> Command {
    let mut script = Command::new(workspace().join("xtask/src/rdma_lab/lab.sh"));
    script.arg(what);
    script
}

/// The last lines of what was printed.
pub(crate) fn last_lines(printed: &str) -> String {
    let lines: Vec<_> = printed.lines().collect();
    lines[lines.len().saturating_sub(LAST_LINES)..].join("\n")
}

/// Writes the jobs as `guest.sh` reads them.
fn write(jobs: &[Job], folder: &Path) -> std::io::Result<()> {
    fs::create_dir_all(folder)?;
    jobs.iter().enumerate().try_for_each(|(number, job)| fs::write(folder.join(number.to_string()), &job.script))?;
    let limits: String = jobs.iter().map(|job| format!("{}\n", job.within_s)).collect();
    fs::write(folder.join("limits"), limits)
}

/// The stream's lines, until it ends.
fn read_lines(stream: impl BufRead + Send + 'static) -> Receiver<Vec<u8>> {
    let (send, receive) = channel();
    thread::spawn(move || stream.split(b'\n').map_while(Result::ok).try_for_each(|line| send.send(line)));
    receive
}

/// Reads the guest's stream to its end, and keeps what jobs printed.
fn follow(
    lines: &Receiver<Vec<u8>>,
    jobs: &[Job],
    printed: &mut String,
    on: &mut dyn FnMut(Event),
) -> Result<(), String> {
    let (mut began, mut within, mut doing) = (Instant::now(), BOOT_WITHIN, "boot".to_owned());
    loop {
        let line = lines.recv_timeout(within.saturating_sub(began.elapsed())).map_err(|error| match error {
            RecvTimeoutError::Timeout => format!("the guest hung in {doing}: nothing for {} s", within.as_secs()),
            RecvTimeoutError::Disconnected => format!("the guest ended in {doing}"),
        })?;
        let line = String::from_utf8_lossy(&line);
        let line = line.strip_suffix('\r').unwrap_or(&line);
        // A job's last line may lack its end: then a record follows in the same line.
        let (text, record) = line.split_once(RECORD).map_or((line, None), |(text, record)| (text, Some(record)));
        if record.is_none() || !text.is_empty() {
            printed.push_str(text);
            printed.push('\n');
            on(Event::Line(text.to_owned()));
        }
        let Some(record) = record else { continue };
        let (kind, rest) = record.split_once(' ').unwrap_or((record, ""));
        let numbers: Vec<usize> = rest.split(' ').map_while(|number| number.parse().ok()).collect();
        match (kind, &numbers[..]) {
            ("ready", []) => on(Event::Up),
            ("broken", _) => return Err(format!("the guest could not: {rest}")),
            ("began", &[job]) => {
                let limit = jobs.get(job).map_or(0, |job| job.within_s);
                (began, within, doing) = (Instant::now(), Duration::from_secs(limit) + GRACE, format!("job {job}"));
                on(Event::Began(job));
            }
            ("ended", &[job, code @ 0..=255]) => {
                on(Event::Ended(job, Ending { code: code as u8, took: began.elapsed() }));
                (began, within, doing) = (Instant::now(), GRACE, format!("what follows job {job}"));
            }
            ("done", []) => return Ok(()),
            _ => {}
        }
    }
}

/// An error with what the guest, its kernel and the emulator printed last.
fn explain(error: &str, guest: &str, kernel: &str, emulator: &str) -> String {
    let panic = kernel.lines().find(|line| line.contains("Kernel panic"));
    let mut text = panic.map_or(error.to_string(), |panic| format!("{error}: {}", panic.trim()));
    for (whose, said) in [("guest", guest), ("kernel", kernel), ("emulator", emulator)] {
        if !said.is_empty() {
            text += &format!("\nlast lines of the {whose}:\n{}", last_lines(said));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a boot that prints these lines and then ends comes to; jobs took no time.
    fn followed(printed: &[u8]) -> (Result<(), String>, Vec<Event>) {
        let (lines, jobs) =
            (read_lines(printed.to_vec().leak() as &[u8]), [Job { script: String::new(), within_s: 60 }]);
        let mut events = Vec::new();
        let end = follow(&lines, &jobs, &mut String::new(), &mut |event| {
            events.push(match event {
                Event::Ended(job, ending) => Event::Ended(job, Ending { took: Duration::ZERO, ..ending }),
                event => event,
            });
        });
        (end, events)
    }

    fn line(text: &str) -> Event {
        Event::Line(text.to_owned())
    }

    fn ended(code: u8) -> Event {
        Event::Ended(0, Ending { code, took: Duration::ZERO })
    }

    #[test]
    fn what_jobs_print_is_theirs_and_records_are_the_labs() {
        let (end, events) = followed(
            b"\x1elab ready\r\n\x1elab began 0\nhello\n\nended 0 0\n\x1ewrong ended 0 0\n\xff!\n\
              almost\x1elab ended 0 3\n\x1elab done\nnot read",
        );
        let mut expected = vec![Event::Up, Event::Began(0)];
        expected.extend(["hello", "", "ended 0 0", "\u{1e}wrong ended 0 0", "\u{fffd}!", "almost"].map(line));
        expected.push(ended(3));
        assert_eq!((end, events), (Ok(()), expected));
    }

    #[test]
    fn records_that_make_no_sense_do_no_harm() {
        let (_, events) = followed(b"\x1elab ended 0\n\x1elab ended 0 1000\n\x1elab\n\x1elab ended 0 137\n");
        assert_eq!(events, [line("\u{1e}lab"), ended(137)]);
    }

    #[test]
    fn a_boot_that_stops_early_says_where() {
        let error = |printed: &[u8]| followed(printed).0.unwrap_err();
        assert_eq!(error(b""), "the guest ended in boot");
        assert_eq!(error(b"\x1elab ready\n\x1elab began 0\n"), "the guest ended in job 0");
        assert_eq!(error(b"\x1elab broken insmod x\n"), "the guest could not: insmod x");
    }

    #[test]
    fn a_record_is_printed_as_it_is_read() {
        let guest = include_str!("guest.sh");
        let say = guest.lines().find(|line| line.starts_with("say()")).unwrap();
        let said = output(Command::new("sh").arg("-c").arg(format!("{say}\nsay ended 0 2"))).unwrap();
        assert_eq!(followed(said.as_bytes()).1, [ended(2)]);
    }

    #[test]
    fn jobs_are_written_as_the_guest_reads_them() {
        let folder = tempfile::tempdir().unwrap();
        let job = |script: &str, within_s| Job { script: script.to_owned(), within_s };
        write(&[job("exit 3", 5), job("true", 60)], folder.path()).unwrap();
        // The loop of the guest, in this folder and without what ends every process.
        let guest = include_str!("guest.sh");
        let begin = guest.find("number=0").unwrap();
        let jobs = guest[begin..guest.find("say 'done'").unwrap()].replace("/lab/", "./").replace("kill -9 -1", "true");
        let say = guest.lines().find(|line| line.starts_with("say()")).unwrap();
        let said =
            output(Command::new("sh").args(["-c", &format!("{say}\n{jobs}")]).current_dir(folder.path())).unwrap();
        assert_eq!(said.replace(RECORD, ""), "began 0\nended 0 3\nbegan 1\nended 1 0\n");
    }

    #[test]
    fn only_a_kill_at_the_limit_is_the_limits() {
        let ending = |code, seconds| Ending { code, took: Duration::from_secs(seconds) };
        assert!(ending(KILLED, 10).is_killed_after(10));
        assert!(!ending(KILLED, 9).is_killed_after(10) && !ending(1, 10).is_killed_after(10));
    }

    #[test]
    fn a_panic_is_named_first() {
        let kernel = "one\n[ 1.0] Kernel panic - not syncing: Fatal\ntwo\n";
        let text = explain("the guest ended in job 0", "working", kernel, "");
        assert!(text.starts_with("the guest ended in job 0: [ 1.0] Kernel panic - not syncing: Fatal"), "{text}");
        assert!(text.contains("last lines of the guest:\nworking\n"), "{text}");
        assert_eq!(explain("it hung", "", "", ""), "it hung");
    }

    #[test]
    fn a_long_output_is_shown_by_its_end() {
        let output: String = (0..100).map(|line| format!("{line}\n")).collect();
        assert!(last_lines(&output).starts_with("70\n") && last_lines(&output).ends_with("99"));
        assert_eq!(last_lines("one\n"), "one");
    }
}
