//! The producer's process: start, wake, rest, end, as the consumer's process sees it; from the inside, it does one job and ends
//! with its parent.
//!
//! The producer is this same executable with a hidden subcommand. It says on its standard output
//! that it is ready and ends when its standard input closes. While other systems are measured it is
//! stopped (SIGSTOP), so that even a spinning producer costs them nothing.

use std::collections::VecDeque;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{self, Child, ChildStderr, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use nix::sys::prctl::set_pdeathsig;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde::{Deserialize, Serialize};

use crate::allocator::keep_freed_memory;
use crate::error::BenchError;
use crate::limits::{BLAME_LIMIT, END_LIMIT, READY_LIMIT, READY_LINE_BYTES_MAX, STDERR_BYTES_KEPT};
use crate::machine::Pinned;
use crate::plan::{Keys, Plan, SystemName};

/// How to start a producer: a program and what comes before the job among its arguments.
#[derive(Clone, Debug)]
pub struct PeerProgram {
    /// The executable.
    pub program: PathBuf,
    /// Arguments that make it call [`serve_peer`](crate::serve_peer) with the argument after them.
    pub arguments: Vec<String>,
}

impl PeerProgram {
    /// The running executable, even if its file was replaced meanwhile, with these arguments.
    pub fn this(arguments: &[&str]) -> Self {
        Self {
            program: PathBuf::from("/proc/self/exe"),
            arguments: arguments.iter().map(|argument| (*argument).to_owned()).collect(),
        }
    }
}

/// What a producer is told to do, as JSON in one argument.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct PeerJob {
    /// Whose producer it is.
    pub system: SystemName,
    /// What is measured.
    pub plan: Plan,
    /// The CPU that it pins itself to.
    pub cpu: Option<usize>,
    /// The port that the consumer listens on, where a system's consumer does.
    pub consumer_port: Option<u16>,
    /// Where both sides meet that have no port: a Unix socket, at which the producer listens, or shared memory.
    pub meeting_place: Option<PathBuf>,
    /// What both sides show each other.
    pub keys: Option<Keys>,
}

impl PeerJob {
    /// Where the consumer is to be met.
    pub(crate) fn meeting_place(&self) -> Result<&Path, BenchError> {
        let absent = || BenchError::io("find the consumer: the job names no place")(io::ErrorKind::NotFound);
        self.meeting_place.as_deref().ok_or_else(absent)
    }
}

/// What a producer says when it can be connected to, as one line of JSON.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct PeerReady {
    /// The TCP port that it listens on; 0 where the link has none.
    pub port: u16,
    /// The ports of several parameter servers, where a producer has them.
    #[serde(default)]
    pub ports: Vec<u16>,
}

impl From<u16> for PeerReady {
    /// A producer with one port.
    fn from(port: u16) -> Self {
        Self { port, ports: Vec::new() }
    }
}

/// A running producer process. Dropping it ends the process.
#[derive(Debug)]
pub struct Peer {
    system: &'static str,
    child: Child,
    /// Closing it tells the producer to end.
    control: Option<ChildStdin>,
    stderr: StderrTail,
    ready: PeerReady,
}

impl Peer {
    /// Starts a producer and waits until it is ready.
    ///
    /// The process is killed with the calling thread, so start it on one that outlives the run.
    ///
    /// # Errors
    /// [`BenchError::PeerDied`] and [`BenchError::PeerSilent`] carry what it wrote to standard error.
    pub fn start(program: &PeerProgram, job: &PeerJob) -> Result<Self, BenchError> {
        let system = job.system.as_str();
        let text =
            serde_json::to_string(job).map_err(BenchError::dialogue("the job of a producer", format!("{job:?}")))?;
        let mut child = Command::new(&program.program)
            .args(&program.arguments)
            .arg(text)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(BenchError::io(format!("start the producer of {system}")))?;
        let pipes = (child.stdin.take(), child.stdout.take(), child.stderr.take());
        let (Some(control), Some(stdout), Some(stderr)) = pipes else {
            unreachable!("all three streams were asked to be pipes");
        };
        // From here on the producer's drop cleans up, whatever fails.
        let mut peer = Self {
            system,
            child,
            control: Some(control),
            stderr: StderrTail::follow(stderr),
            ready: PeerReady::default(),
        };
        let line = peer.first_line(stdout)?;
        let ready = serde_json::from_str(&line);
        peer.ready = ready.map_err(BenchError::dialogue("what a producer said", line))?;
        Ok(peer)
    }

    /// What the producer said of itself.
    pub fn ready(&self) -> &PeerReady {
        &self.ready
    }

    /// The producer's process id.
    pub fn process_id(&self) -> u32 {
        self.child.id()
    }

    /// Lets the producer run.
    ///
    /// # Errors
    /// [`BenchError::PeerDied`] when it is gone.
    pub fn resume(&mut self) -> Result<(), BenchError> {
        self.signal(Signal::SIGCONT)
    }

    /// Stops the producer where it is.
    ///
    /// # Errors
    /// [`BenchError::PeerDied`] when it is gone.
    pub fn rest(&mut self) -> Result<(), BenchError> {
        self.signal(Signal::SIGSTOP)
    }

    /// Explains a failed round: the producer's end, if it ended, else the failure itself.
    pub fn blame(&mut self, failure: BenchError) -> BenchError {
        if !self.stderr.ended_within(BLAME_LIMIT) {
            return failure;
        }
        self.died().unwrap_or(failure)
    }

    /// Waits for the line in which the producer says that it is ready.
    fn first_line(&mut self, stdout: ChildStdout) -> Result<String, BenchError> {
        let (line_out, line_in) = mpsc::sync_channel(1);
        thread::spawn(move || {
            let mut line = String::new();
            let read = BufReader::new(stdout.take(READY_LINE_BYTES_MAX)).read_line(&mut line);
            // Nobody waits any more when the limit passed first.
            let _ = line_out.send(read.map(|_| line));
        });
        let silent = |peer: &Self| BenchError::PeerSilent {
            system: peer.system,
            waited: READY_LIMIT,
            stderr: peer.stderr.text(),
        };
        match line_in.recv_timeout(READY_LIMIT) {
            Ok(Ok(line)) if !line.is_empty() => Ok(line),
            Ok(_) => {
                let failure = silent(self);
                Err(self.blame(failure))
            }
            Err(_) => Err(silent(self)),
        }
    }

    fn signal(&mut self, signal: Signal) -> Result<(), BenchError> {
        // Asking first also reaps it: a signal to a reaped process could hit a stranger, one to
        // a child that has not been waited for cannot.
        if let Ok(Some(_)) = self.child.try_wait() {
            self.stderr.ended_within(BLAME_LIMIT);
            return Err(self.died().expect("a process that was waited for has a status"));
        }
        kill(self.pid(), signal).map_err(BenchError::io(format!("send {signal} to the producer of {}", self.system)))
    }

    fn died(&mut self) -> Option<BenchError> {
        let status = self.child.wait().ok()?;
        Some(BenchError::PeerDied { system: self.system, status, stderr: self.stderr.text() })
    }

    fn pid(&self) -> Pid {
        Pid::from_raw(i32::try_from(self.child.id()).expect("process ids are positive i32"))
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        // Errors mean that it is gone already, which is what is wanted.
        self.control = None;
        let _ = self.resume();
        if !self.stderr.ended_within(END_LIMIT) {
            let _ = self.child.kill();
        }
        let _: io::Result<_> = self.child.wait();
    }
}

/// Takes the job that a parent passed as an argument, and the CPU that it names, on which this thread stays, as do those
/// that it starts. The process ends when its standard input closes or its parent dies.
///
/// # Errors
/// A job that cannot be read, a CPU that cannot be pinned.
pub(crate) fn take_job(job: &str) -> Result<(PeerJob, Option<Pinned>), BenchError> {
    let job: PeerJob = serde_json::from_str(job).map_err(BenchError::dialogue("the job of a producer", job))?;
    end_with_parent()?;
    keep_freed_memory();
    let pinned = job.cpu.map(Pinned::to).transpose()?;
    thread::spawn(end_with_input);
    Ok((job, pinned))
}

/// Tells the parent that the producer can be connected to.
pub(crate) fn announce(ready: impl Into<PeerReady>) -> Result<(), BenchError> {
    let ready = ready.into();
    let line = serde_json::to_string(&ready).expect("ports are numbers");
    let mut stdout = io::stdout().lock();
    writeln!(stdout, "{line}").and_then(|()| stdout.flush()).map_err(BenchError::io("say that the producer is ready"))
}

/// Waits for the end of the process, which ends with its standard input or its parent.
pub(crate) fn until_ended() -> ! {
    loop {
        thread::park();
    }
}

/// A stopped process does not see its input close, but it can be killed.
fn end_with_parent() -> Result<(), BenchError> {
    set_pdeathsig(Signal::SIGKILL).map_err(BenchError::io("ask to be ended with the parent process"))
}

fn end_with_input() {
    let mut ignored = [0; 64];
    let mut input = io::stdin().lock();
    while let Ok(1..) = input.read(&mut ignored) {}
    process::exit(0);
}

/// Follows a child's standard error until the child ends.
#[derive(Debug)]
struct StderrTail {
    kept: Arc<Mutex<VecDeque<u8>>>,
    /// Never gets a message: its other end goes away when the stream has ended.
    ended: Receiver<()>,
}

impl StderrTail {
    fn follow(mut stream: ChildStderr) -> Self {
        let kept = Arc::new(Mutex::new(VecDeque::new()));
        let (guard, ended) = mpsc::sync_channel(0);
        let tail = Arc::clone(&kept);
        thread::spawn(move || {
            let _guard = guard;
            let mut chunk = [0; 1024];
            while let Ok(count @ 1..) = stream.read(&mut chunk) {
                keep(&mut tail.lock().unwrap_or_else(PoisonError::into_inner), &chunk[..count]);
            }
        });
        Self { kept, ended }
    }

    /// What was written last, or that nothing was.
    pub(super) fn text(&self) -> String {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        let text = String::from_utf8_lossy(kept.make_contiguous()).trim().to_owned();
        if text.is_empty() { "nothing".to_owned() } else { text }
    }

    /// Whether the stream, and so the child, ended before `limit` passed.
    fn ended_within(&self, limit: Duration) -> bool {
        matches!(self.ended.recv_timeout(limit), Err(RecvTimeoutError::Disconnected))
    }
}

fn keep(kept: &mut VecDeque<u8>, chunk: &[u8]) {
    kept.extend(chunk);
    let excess = kept.len().saturating_sub(STDERR_BYTES_KEPT);
    kept.drain(..excess);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_job_that_cannot_be_read_is_an_error() {
        let error = take_job("{}").expect_err("no job");
        assert!(matches!(error, BenchError::Dialogue { .. }), "{error}");
    }

    #[test]
    fn only_the_end_is_kept() {
        let mut kept = VecDeque::new();
        for _ in 0..100 {
            keep(&mut kept, &[b'a'; 1000]);
        }
        keep(&mut kept, b"the end");
        assert_eq!(kept.len(), STDERR_BYTES_KEPT);
        assert!(kept.make_contiguous().ends_with(b"the end"));
    }
}
