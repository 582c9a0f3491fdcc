//! A producer's process on this host: start, wake, rest, end; and from the inside: it does one job and ends with its parent.
//!
//! The producer is this same executable with a hidden subcommand. It reports on its standard output that it is ready, and ends when
//! its standard input closes. It is stopped (SIGSTOP) while other systems are measured, so that even a spinning producer costs them
//! nothing.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::process::{self, Child, ChildStdin, ChildStdout, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::prctl::set_pdeathsig;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::PeerJob;
use crate::allocator::keep_freed_memory;
use crate::error::BenchError;
use crate::limits::{BLAME_LIMIT, END_LIMIT, READY_LIMIT, READY_LINE_BYTES_MAX, STDERR_BYTES_TOLD};
use crate::machine::Pinned;

/// Time between two checks whether a producer has ended.
const LOOK: Duration = Duration::from_millis(1);

/// A program, and the arguments before the job.
#[derive(Clone, Debug)]
pub(super) struct Program {
    pub(super) program: PathBuf,
    pub(super) arguments: Vec<String>,
}

/// A running producer process. Dropping it ends the process.
#[derive(Debug)]
pub(crate) struct LocalPeer {
    system: &'static str,
    child: Child,
    /// Closing it tells the producer to end.
    control: Option<ChildStdin>,
    /// Its standard error, in a file without a name.
    stderr: File,
    ports: Vec<u16>,
}

impl LocalPeer {
    /// Starts a producer and waits until it is ready.
    ///
    /// The process is killed with the calling thread, so start it on one that outlives the run.
    ///
    /// # Errors
    /// [`BenchError::PeerDied`] carries what it wrote to standard error.
    pub(super) fn start(program: &Program, job: &PeerJob) -> Result<Self, BenchError> {
        let system = job.system.as_str();
        let failed = || BenchError::io(format!("start the producer of {system}"));
        let job = serde_json::to_string(job).expect("a job has only named fields and finite numbers");
        let stderr = tempfile::tempfile().map_err(failed())?;
        let mut child = Command::new(&program.program)
            .args(&program.arguments)
            .arg(job)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(stderr.try_clone().map_err(failed())?)
            .spawn()
            .map_err(failed())?;
        let (control, stdout) = (child.stdin.take(), child.stdout.take().expect("it was asked to be a pipe"));
        // From here on, dropping `peer` cleans up, whatever fails.
        let mut peer = Self { system, child, control, stderr, ports: Vec::new() };
        peer.ports = peer.hear(stdout)?;
        Ok(peer)
    }

    /// The TCP ports that it listens on: one, or one for each parameter server; empty if the link has none.
    pub(crate) fn ports(&self) -> &[u16] {
        &self.ports
    }

    pub(crate) fn process_id(&self) -> u32 {
        self.child.id()
    }

    /// Lets the producer run.
    ///
    /// # Errors
    /// [`BenchError::PeerDied`] when it is gone.
    pub(crate) fn resume(&mut self) -> Result<(), BenchError> {
        self.signal(Signal::SIGCONT)
    }

    /// Stops the producer until it is resumed.
    ///
    /// # Errors
    /// [`BenchError::PeerDied`] when it is gone.
    pub(crate) fn rest(&mut self) -> Result<(), BenchError> {
        self.signal(Signal::SIGSTOP)
    }

    /// How the producer ended, if it has, or does in a moment.
    pub(crate) fn death(&mut self) -> Option<BenchError> {
        self.ended_within(BLAME_LIMIT)
    }

    /// Waits for the line in which the producer reports that it is ready.
    fn hear(&mut self, stdout: ChildStdout) -> Result<Vec<u16>, BenchError> {
        let limit = PollTimeout::try_from(READY_LIMIT).expect("it is less than a day");
        let (mut line, mut came) = (String::new(), [PollFd::new(stdout.as_fd(), PollFlags::POLLIN)]);
        let has_said = poll(&mut came, limit).is_ok_and(|count| count > 0)
            && BufReader::new(stdout.take(READY_LINE_BYTES_MAX)).read_line(&mut line).is_ok_and(|bytes| bytes > 0);
        let failed = || BenchError::failed(self.system, "get its producer ready");
        if has_said {
            return serde_json::from_str(&line).map_err(|error| failed()(format!("it said {line:?} ({error})")));
        }
        let silent = failed()(format!("it said nothing for {READY_LIMIT:?}; it wrote: {}", self.written()));
        Err(self.death().unwrap_or(silent))
    }

    fn signal(&mut self, signal: Signal) -> Result<(), BenchError> {
        // Checking first also reaps it: a signal to a reaped process could hit another process, one to a child that has not been
        // waited for cannot.
        if let Some(died) = self.ended_within(Duration::ZERO) {
            return Err(died);
        }
        let process = Pid::from_raw(i32::try_from(self.child.id()).expect("process ids are positive i32"));
        kill(process, signal).map_err(BenchError::io(format!("send {signal} to the producer of {}", self.system)))
    }

    /// How it ended, if it does within `limit`.
    fn ended_within(&mut self, limit: Duration) -> Option<BenchError> {
        let begun = Instant::now();
        loop {
            match self.child.try_wait().ok()? {
                Some(status) => {
                    return Some(BenchError::PeerDied { system: self.system, status, stderr: self.written() });
                }
                None if begun.elapsed() < limit => thread::sleep(LOOK),
                None => return None,
            }
        }
    }

    /// The end of its standard error, or that it wrote nothing.
    fn written(&self) -> String {
        let length = self.stderr.metadata().map_or(0, |file| file.len());
        let told = length.min(STDERR_BYTES_TOLD);
        let mut text = vec![0; told as usize];
        // The file offset belongs to the producer, which may still write.
        let read = self.stderr.read_exact_at(&mut text, length - told);
        match String::from_utf8_lossy(&text).trim() {
            text if read.is_ok() && !text.is_empty() => text.to_owned(),
            _ => "nothing".to_owned(),
        }
    }
}

impl Drop for LocalPeer {
    fn drop(&mut self) {
        // Errors mean that it has already gone, as intended.
        self.control = None;
        let _ = self.resume();
        if self.ended_within(END_LIMIT).is_none() {
            let _ = self.child.kill();
        }
        let _: io::Result<_> = self.child.wait();
    }
}

/// Reads the job that a parent passed as an argument, and pins this thread, and those that it starts, to the CPU in the job. The
/// process ends when its standard input closes or its parent dies.
///
/// # Errors
/// A job that cannot be read, a CPU that cannot be pinned.
pub(crate) fn take_job(job: &str) -> Result<(PeerJob, Option<Pinned>), BenchError> {
    let job: PeerJob = serde_json::from_str(job).map_err(BenchError::failed("a producer", "understand its job"))?;
    // A stopped process does not notice that its input closes, but it can be killed.
    set_pdeathsig(Signal::SIGKILL).map_err(BenchError::io("ask to be ended with the parent process"))?;
    keep_freed_memory();
    let pinned = job.cpu.map(Pinned::to).transpose()?;
    thread::spawn(end_with_input);
    Ok((job, pinned))
}

/// Tells the parent that the producer can be connected to, at these ports.
pub(crate) fn announce(ports: &[u16]) -> Result<(), BenchError> {
    let mut stdout = io::stdout().lock();
    writeln!(stdout, "{ports:?}")
        .and_then(|()| stdout.flush())
        .map_err(BenchError::io("say that the producer is ready"))
}

/// Waits forever: the process ends with its standard input or its parent.
pub(crate) fn until_ended() -> ! {
    loop {
        thread::park();
    }
}

fn end_with_input() {
    let mut ignored = [0; 64];
    let mut input = io::stdin().lock();
    while let Ok(1..) = input.read(&mut ignored) {}
    process::exit(0);
}
