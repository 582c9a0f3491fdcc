//! The demo's daemons and tasks as their parent sees them, over pipes. None outlives it: tasks end with their standard input,
//! daemons with their parent, and any that does not is killed. A signal that ends a demo waits in a descriptor here; the tasks,
//! which a terminal interrupts as well, leave it to the parent.

use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, Write};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{SigSet, Signal, kill};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use nix::unistd::Pid;

use super::task::{Job, Told};
use crate::Failure;
use crate::commands::daemon::socket::listener;

/// How long a task may take for one thing, and a daemon to start: longer than the requests of tasks wait, since their errors say
/// what went wrong.
const ANSWER_TIME: Duration = Duration::from_secs(120);
/// When a process dies, others may first report the transfers that it took with it: an end is waited for this long, as it is the
/// better reason.
const ROOT_CAUSE_TIME: Duration = Duration::from_secs(5);
/// When no task has reported anything for this long, daemons are checked, since one may have ended.
const QUIET_TIME: Duration = Duration::from_millis(100);
/// How long daemons may take to end after they were told to.
const END_TIME: Duration = Duration::from_secs(5);
/// Time between two checks of a process.
const LOOK_EVERY: Duration = Duration::from_millis(5);
/// Lines shown of a daemon that ends: an error and what led to it.
const LAST_WORDS_MAX: usize = 3;
/// Signals that end a program in good order: a terminal's interrupt, a terminal that goes away, and a plain `kill`.
const ENDING: [Signal; 3] = [Signal::SIGINT, Signal::SIGHUP, Signal::SIGTERM];

struct Named {
    name: String,
    process: Child,
    /// For a daemon: the file that its standard error goes to.
    log: PathBuf,
}

struct Task {
    lines: ChildStdin,
    answers: BufReader<ChildStdout>,
}

pub(super) struct Children {
    /// What they are doing, for errors: `in step 3`.
    pub(super) doing: String,
    signals: SignalFd,
    tasks: Vec<(Named, Task)>,
    daemons: Vec<Named>,
    /// Logs of daemons that are to be shown, read up to what was shown already.
    logs: Vec<File>,
}

impl Children {
    /// No children yet. Signals that end a program wait here from now on; children inherit that these are blocked.
    ///
    /// # Errors
    /// The kernel refuses.
    pub(super) fn none() -> Result<Children, Failure> {
        let ending: SigSet = ENDING.into_iter().collect();
        let flags = SfdFlags::SFD_NONBLOCK | SfdFlags::SFD_CLOEXEC;
        let signals = ending.thread_block().and_then(|()| SignalFd::with_flags(&ending, flags));
        let signals = signals.map_err(|error| Failure::work(format!("signals cannot be set up ({error})")))?;
        Ok(Children {
            doing: "while it started".to_owned(),
            signals,
            tasks: Vec::new(),
            daemons: Vec::new(),
            logs: Vec::new(),
        })
    }

    /// Starts a daemon, which logs to a file beside its socket, and waits until it serves there.
    ///
    /// # Errors
    /// The process cannot be started, or has ended.
    pub(super) fn start_daemon(
        &mut self,
        name: &str,
        command: &mut Command,
        socket: &Path,
        shows_log: bool,
    ) -> Result<u32, Failure> {
        let log = socket.with_extension("log");
        let refused = |error| Failure::work(format!("{} cannot be written ({error})", log.display()));
        let process = spawn(name, command.stdout(Stdio::null()).stderr(File::create(&log).map_err(refused)?))?;
        if shows_log {
            self.logs.push(File::open(&log).map_err(refused)?);
        }
        let id = process.id();
        self.daemons.push(Named { name: name.to_owned(), process, log });
        let deadline = Instant::now() + ANSWER_TIME;
        while listener(socket).is_err() {
            let daemon = self.daemons.last_mut().expect("it was added just now");
            match daemon.process.try_wait() {
                Ok(None) if Instant::now() < deadline => std::thread::sleep(LOOK_EVERY),
                _ => return Err(ended(daemon, &self.doing)),
            }
            unless_signalled(&self.signals, &self.doing)?;
        }
        Ok(id)
    }

    /// Starts a task and gives it its job.
    ///
    /// # Errors
    /// The process cannot be started.
    pub(super) fn start_task(&mut self, job: &Job, command: &mut Command) -> Result<u32, Failure> {
        let mut process = spawn(&job.task(), command.stdin(Stdio::piped()).stdout(Stdio::piped()))?;
        let id = process.id();
        let (lines, answers) = (process.stdin.take().expect("a pipe"), process.stdout.take().expect("a pipe"));
        let mut task = Task { lines, answers: BufReader::new(answers) };
        task.write(&serde_json::to_string(job).expect("a job is plain data"));
        self.tasks.push((Named { name: job.task(), process, log: PathBuf::new() }, task));
        Ok(id)
    }

    /// Waits until every task has done its next thing. Returns their reports, in order.
    ///
    /// # Errors
    /// A process ended, a task failed or took too long; or a signal came.
    pub(super) fn hear(&mut self) -> Result<Vec<Told>, Failure> {
        self.show_logs();
        let deadline = Instant::now() + ANSWER_TIME;
        let mut all: Vec<Option<Told>> = self.tasks.iter().map(|_| None).collect();
        while let Some(missing) = all.iter().position(Option::is_none) {
            let wait_for = |descriptor| PollFd::new(descriptor, PollFlags::POLLIN);
            let tasks = self.tasks.iter().map(|(_, task)| wait_for(task.answers.get_ref().as_fd()));
            let mut polled: Vec<PollFd<'_>> = tasks.chain([wait_for(self.signals.as_fd())]).collect();
            match poll(&mut polled, PollTimeout::try_from(QUIET_TIME).unwrap_or(PollTimeout::MAX)) {
                Ok(0) if Instant::now() >= deadline => {
                    let reason = format!("it did not answer within {} s", ANSWER_TIME.as_secs());
                    return Err(self.failed(missing, &reason));
                }
                Ok(0) => match self.gone() {
                    Some(failure) => return Err(failure),
                    None => continue,
                },
                Ok(_) | Err(Errno::EINTR) => {}
                Err(error) => return Err(Failure::work(format!("tasks cannot be waited for ({error})"))),
            }
            let is_ready: Vec<bool> = polled.iter().map(|polled| polled.any() == Some(true)).collect();
            unless_signalled(&self.signals, &self.doing)?;
            for index in (0..self.tasks.len()).filter(|index| is_ready[*index]) {
                let (named, task) = &mut self.tasks[index];
                let mut line = String::new();
                if task.answers.read_line(&mut line).unwrap_or(0) == 0 {
                    return Err(ended(named, &self.doing));
                }
                let told = serde_json::from_str::<Result<Told, String>>(&line);
                let told = told.unwrap_or_else(|error| Err(format!("it gave a wrong answer ({error}): {line}")));
                all[index] = Some(told.map_err(|reason| self.failed(index, &reason))?);
            }
        }
        Ok(all.into_iter().flatten().collect())
    }

    /// Lets all tasks go on, and waits like [`Children::hear`].
    ///
    /// # Errors
    /// As for [`Children::hear`].
    pub(super) fn go_on(&mut self) -> Result<Vec<Told>, Failure> {
        self.tasks.iter_mut().for_each(|(_, task)| task.write(""));
        self.hear()
    }

    /// Lets all tasks end, then all daemons, and waits until they have.
    ///
    /// # Errors
    /// One did not end well.
    pub(super) fn finish(mut self) -> Result<(), Failure> {
        self.tasks.iter_mut().for_each(|(_, task)| task.write(""));
        let (signals, doing) = (&self.signals, &self.doing);
        let well = |named: &mut Named, time| {
            let deadline = Instant::now() + time;
            loop {
                unless_signalled(signals, doing)?;
                match end_of(&mut named.process, Instant::now() + QUIET_TIME) {
                    Some(status) if status.success() => return Ok(()),
                    None if Instant::now() < deadline => {}
                    _ => return Err(ended(named, doing)),
                }
            }
        };
        self.tasks.iter_mut().try_for_each(|(named, _)| well(named, ANSWER_TIME))?;
        self.daemons.iter_mut().for_each(stop);
        self.daemons.iter_mut().try_for_each(|named| well(named, END_TIME))
    }

    fn show_logs(&mut self) {
        // Without standard error nobody could read it.
        self.logs.iter_mut().for_each(|log| drop(io::copy(log, &mut io::stderr())));
    }

    /// Why a demo cannot go on whose process has ended.
    fn gone(&mut self) -> Option<Failure> {
        let mut all = self.tasks.iter_mut().map(|(named, _)| named).chain(&mut self.daemons);
        let is_gone = |named: &mut Named| matches!(named.process.try_wait(), Ok(Some(_)));
        all.find_map(|named| is_gone(named).then_some(named)).map(|gone| ended(gone, &self.doing))
    }

    /// A task reports a failure, which may be caused by a process that has ended.
    fn failed(&mut self, index: usize, reason: &str) -> Failure {
        let deadline = Instant::now() + ROOT_CAUSE_TIME;
        loop {
            if let Some(failure) = self.gone() {
                return failure;
            }
            if Instant::now() >= deadline {
                return Failure::work(format!("{} failed {}: {}", self.tasks[index].0.name, self.doing, reason.trim()));
            }
            std::thread::sleep(LOOK_EVERY);
        }
    }
}

impl Drop for Children {
    fn drop(&mut self) {
        self.daemons.iter_mut().for_each(stop);
        // A task needs no clean-up. Killing one that has ended does no harm.
        self.tasks.iter_mut().for_each(|(named, _)| drop(named.process.kill()));
        let deadline = Instant::now() + END_TIME;
        for Named { process, .. } in self.tasks.iter_mut().map(|(named, _)| named).chain(&mut self.daemons) {
            if end_of(process, deadline).is_none() {
                let _ = process.kill().and_then(|()| process.wait());
            }
        }
        self.show_logs();
    }
}

impl Task {
    /// A task that is gone does not read; its end is noticed separately.
    fn write(&mut self, line: &str) {
        let _ = self.lines.write_all(format!("{line}\n").as_bytes());
    }
}

/// # Errors
/// A signal has come. This takes it, so nobody else sees it.
fn unless_signalled(signals: &SignalFd, doing: &str) -> Result<(), Failure> {
    let Some(signal) = signals.read_signal().ok().flatten() else { return Ok(()) };
    let signal = Signal::try_from(signal.ssi_signo as i32).map_or("a signal", Signal::as_str);
    Err(Failure::work(format!("{signal} was received {doing}; the demo has stopped its tasks")))
}

fn spawn(name: &str, command: &mut Command) -> Result<Child, Failure> {
    command.spawn().map_err(|error| Failure::work(format!("{name} cannot be started ({error})")))
}

/// Signals a daemon to end, unless it has ended: then its process id may belong to another process.
fn stop(daemon: &mut Named) {
    if let Ok(None) = daemon.process.try_wait() {
        let _ = kill(Pid::from_raw(daemon.process.id() as i32), Signal::SIGTERM);
    }
}

/// How a process ended, if it does before the deadline.
fn end_of(process: &mut Child, deadline: Instant) -> Option<ExitStatus> {
    loop {
        match process.try_wait() {
            Ok(None) if Instant::now() < deadline => std::thread::sleep(LOOK_EVERY),
            ended => return ended.ok().flatten(),
        }
    }
}

/// The error that a process has ended, or is just ending.
fn ended(Named { name, process, log }: &mut Named, doing: &str) -> Failure {
    let how = match end_of(process, Instant::now() + ROOT_CAUSE_TIME) {
        Some(status) => format!("ended {doing}, before its work was done: {status}"),
        None => format!("did not go on {doing}"),
    };
    let log = fs::read_to_string(log).unwrap_or_default();
    let lines: Vec<&str> = log.lines().map(str::trim).collect();
    let said = match &lines[lines.len().saturating_sub(LAST_WORDS_MAX)..] {
        [] => String::new(),
        last => format!("; its last output: {}", last.join(" | ")),
    };
    Failure::work(format!("{name} (process {}) {how}{said}", process.id()))
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::thread;

    use nix::sys::pthread::{pthread_kill, pthread_self};

    use super::*;
    use crate::commands::demo::task::Part;

    /// Tasks that each run a shell script. Starting them blocks signals on the calling thread, which belongs to the test alone.
    fn start(scripts: &[&str]) -> Children {
        let mut children = Children::none().unwrap();
        for (index, script) in scripts.iter().enumerate() {
            let job = Job::example(Part::Worker, index);
            let _copied = crate::OPEN_FILES.write();
            children.start_task(&job, Command::new("sh").args(["-c", script])).unwrap();
        }
        children.doing = "in step 3".to_owned();
        children
    }

    #[test]
    fn a_signal_is_heard_whenever_it_comes() {
        let mut children = start(&["read job; while echo '{\"Ok\":{}}'; do read line; done"]);
        children.hear().unwrap();
        let (sent, heard, this) = (AtomicUsize::new(0), AtomicUsize::new(0), pthread_self());
        thread::scope(|scope| {
            scope.spawn(|| {
                for count in 0..1_000 {
                    while heard.load(Ordering::Acquire) < count {
                        thread::yield_now();
                    }
                    pthread_kill(this, Signal::SIGINT).unwrap();
                    sent.store(count + 1, Ordering::Release);
                }
            });
            let mut lost = 0;
            for count in 0..1_000 {
                let heard_it = loop {
                    let is_sent = sent.load(Ordering::Acquire) > count;
                    match children.go_on() {
                        Err(failure) => break failure.to_string().starts_with("SIGINT was received"),
                        Ok(_) if is_sent => break false,
                        Ok(_) => {}
                    }
                };
                lost += usize::from(!heard_it);
                heard.store(count + 1, Ordering::Release);
            }
            assert_eq!(lost, 0, "of 1,000 signals");
        });
    }

    #[test]
    fn every_task_answers_and_ends_well_or_is_named() {
        let (wait, fail) = ("cat > /dev/null", "echo '{\"Err\":\"no luck\"}'; cat > /dev/null");
        let ok = "read job; echo '{\"Ok\":{}}'; read line; exit 3";
        let mut children = start(&[ok]);
        assert_eq!(children.hear().unwrap().len(), 1);
        let failure = children.finish().unwrap_err().to_string();
        assert!(failure.starts_with("worker0:2222 (process ") && failure.ends_with("exit status: 3"), "{failure}");
        let cases: [(&[&str], &str, &str); 4] = [
            (
                &["read job; exit 7", wait],
                "worker0:2222 (",
                " ended in step 3, before its work was done: exit status: 7",
            ),
            (&[fail, wait], "worker0:2222 failed in step 3: no luck", ""),
            (&["echo hello; cat"], "worker0:2222 failed in step 3: it gave a wrong answer (", ": hello"),
            // A task that dies is the cause when another one fails.
            (&[fail, "exit 1"], "worker1:2222 (process ", "exit status: 1"),
        ];
        for (scripts, begins, ends) in cases {
            let failure = start(scripts).hear().unwrap_err().to_string();
            assert!(failure.starts_with(begins) && failure.ends_with(ends), "{failure}");
        }
    }
}
