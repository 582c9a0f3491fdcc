//! A process on a host. It dies with the chore, however that ends.

use std::ffi::OsString;
use std::fs::OpenOptions;
use std::io::Write;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
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

/// See the module. Dropped, it is killed.
pub(crate) struct Process {
    child: Child,
    orders: Option<ChildStdin>,
}

impl Process {
    /// Starts a program in a namespace; what it says is added to `log`. For the main thread: the kernel ends the process when
    /// the thread ends that started it.
    ///
    /// # Errors
    /// It cannot be started.
    pub(super) fn start(
        namespace: &str,
        program: &Path,
        arguments: &[OsString],
        log: &Path,
    ) -> Result<Process, String> {
        let open = || OpenOptions::new().create(true).append(true).open(log);
        let (out, complaints) = (open(), open());
        let failed = |error| format!("{}: {error}", log.display());
        // Both commands become the program: its number is this child's.
        let mut child = Command::new("setpriv")
            .args(["--pdeathsig", "KILL", "ip", "netns", "exec", namespace])
            .arg(program)
            .args(arguments)
            .env("RUST_LOG", "info")
            .env("RUST_BACKTRACE", "1")
            .envs(ALLOCATOR)
            .stdin(Stdio::piped())
            .stdout(out.map_err(failed)?)
            .stderr(complaints.map_err(failed)?)
            // A terminal's interrupt is for the chore, which then ends the others.
            .process_group(0)
            .spawn()
            .map_err(|error| format!("{} cannot be started (setpriv is of util-linux): {error}", program.display()))?;
        let orders = child.stdin.take();
        Ok(Process { child, orders })
    }

    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    /// Sends a signal. One that has ended is still ours, and no other process has its number.
    pub(crate) fn signal(&self, signal: Signal) {
        let _ = kill(Pid::from_raw(self.child.id() as i32), signal);
    }

    /// Gives it an order, as a line of its standard input; one that is gone does not hear it.
    pub(crate) fn order(&mut self, order: Order) {
        if let Some(orders) = &mut self.orders {
            let line = serde_json::to_string(&order).expect("orders are plain data");
            let _ = writeln!(orders, "{line}");
        }
    }

    /// How it ended, if it has.
    pub(super) fn ended(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().ok().flatten()
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
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
