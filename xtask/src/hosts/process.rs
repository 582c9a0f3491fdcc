//! Processes that a chore starts. They die with the chore, however that ends.

use std::ffi::OsString;
use std::fs::OpenOptions;
use std::io::Write;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::traffic::Order;

/// The C library's allocator gives large blocks back at once, from threads of any number: else it raises its threshold to the
/// largest block that it has seen, and keeps several of those for each of its arenas.
const ALLOCATOR: [(&str, &str); 2] = [("MALLOC_MMAP_THRESHOLD_", "131072"), ("MALLOC_ARENA_MAX", "2")];

/// Between two looks whether a process has ended.
const LOOK_INTERVAL: Duration = Duration::from_millis(5);

/// A daemon or a task: its process, if it has one, and how many it has had. Dropping this kills the process.
#[derive(Default)]
pub(crate) struct Slot {
    process: Option<Child>,
    pub(crate) lives: u32,
}

impl Slot {
    /// Starts a program, through the command `by` if that is not empty; its output is appended to `log`. An existing process is
    /// killed: a draining daemon holds the lock of its socket. To be called on the main thread: the kernel ends the process when
    /// the thread that started it ends.
    pub(crate) fn start(
        &mut self,
        by: &[&str],
        program: &Path,
        arguments: &[OsString],
        log: &Path,
    ) -> Result<(), String> {
        self.kill();
        self.lives += 1;
        let open = || OpenOptions::new().create(true).append(true).open(log);
        let failed = |error| format!("{}: {error}", log.display());
        // Each command replaces itself by the next, so the program has this child's process id.
        let started = Command::new("setpriv")
            .args(["--pdeathsig", "KILL"])
            .args(by)
            .arg(program)
            .args(arguments)
            .env("RUST_LOG", "info")
            .env("RUST_BACKTRACE", "1")
            .envs(ALLOCATOR)
            .stdin(Stdio::piped())
            .stdout(open().map_err(failed)?)
            .stderr(open().map_err(failed)?)
            // A terminal's interrupt is for the chore, which then ends the others.
            .process_group(0)
            .spawn();
        let failed = |error| format!("{} cannot be started (setpriv is of util-linux): {error}", program.display());
        self.process = Some(started.map_err(failed)?);
        Ok(())
    }

    pub(crate) fn id(&self) -> Option<u32> {
        self.process.as_ref().map(Child::id)
    }

    /// Sends a signal. A process that has ended and was not waited for is still our child, so no other has its number.
    pub(crate) fn signal(&self, signal: Signal) {
        let _ = self.id().map(|id| kill(Pid::from_raw(id as i32), signal));
    }

    /// Sends it an order, as a line on its standard input; a process that is gone does not get it.
    pub(crate) fn order(&mut self, order: Order) {
        if let Some(orders) = self.process.as_mut().and_then(|process| process.stdin.as_mut()) {
            let _ = writeln!(orders, "{}", serde_json::to_string(&order).expect("orders are plain data"));
        }
    }

    pub(super) fn ended(&mut self) -> Option<ExitStatus> {
        self.process.as_mut()?.try_wait().ok().flatten()
    }

    /// How it ended, if it does before `until`.
    pub(super) fn wait_until(&mut self, until: Instant) -> Option<ExitStatus> {
        loop {
            let ended = self.ended();
            if ended.is_some() || Instant::now() >= until {
                return ended;
            }
            thread::sleep(LOOK_INTERVAL);
        }
    }

    pub(crate) fn kill(&mut self) {
        if let Some(mut process) = self.process.take() {
            let _ = process.kill();
            let _ = process.wait();
        }
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.kill();
    }
}
