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

/// A daemon or a task: its process, if it has one, and how many it has had. Dropped, that is killed.
#[derive(Default)]
pub(crate) struct Slot {
    process: Option<Child>,
    pub(crate) lives: u32,
}

impl Slot {
    /// Starts a program, by the command `by` if that has words; what it says is added to `log`. A process that is still there is killed: a daemon that drains
    /// holds the lock of its socket. For the main thread: the kernel ends the process when the thread ends that started it.
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
        // All commands become the program: its number is this child's.
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

    /// The number of its process, if it has one.
    pub(crate) fn id(&self) -> Option<u32> {
        self.process.as_ref().map(Child::id)
    }

    /// Sends a signal. One that has ended is still ours, and no other process has its number.
    pub(crate) fn signal(&self, signal: Signal) {
        let _ = self.id().map(|id| kill(Pid::from_raw(id as i32), signal));
    }

    /// Gives it an order, as a line of its standard input; one that is gone does not hear it.
    pub(crate) fn order(&mut self, order: Order) {
        if let Some(orders) = self.process.as_mut().and_then(|process| process.stdin.as_mut()) {
            let _ = writeln!(orders, "{}", serde_json::to_string(&order).expect("orders are plain data"));
        }
    }

    /// How it ended, if it has.
    pub(super) fn ended(&mut self) -> Option<ExitStatus> {
        self.process.as_mut()?.try_wait().ok().flatten()
    }

    /// How it ended, if it does until then.
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
