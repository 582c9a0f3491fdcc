//! The next daemon, which this one starts if a service manager must not see it stop: the same command line, with `--take-over`.
//!
//! Threads: a thread of its own starts the program, since the file system of the program may not answer. Limits: one at a time.

use std::env;
use std::ffi::OsString;
use std::io;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, TryRecvError, channel};
use std::thread;

/// The flag that makes a daemon take over.
const TAKE_OVER: &str = "--take-over";

#[derive(Debug)]
pub(super) struct NextDaemon {
    /// Where this program was when it started: an upgrade puts the next release there.
    program: io::Result<PathBuf>,
    arguments: Vec<OsString>,
    stage: Stage,
}

#[derive(Debug)]
enum Stage {
    /// None was started, or the last one has ended.
    Idle,
    /// A thread is starting the program.
    Starting(Receiver<io::Result<Child>>),
    Running(Child),
}

impl NextDaemon {
    /// The next daemon with this process's command line.
    pub(super) fn of_this() -> NextDaemon {
        NextDaemon { program: env::current_exe(), arguments: env::args_os().skip(1).collect(), stage: Stage::Idle }
    }

    /// Starts it, unless the one started before is still running.
    pub(super) fn start(&mut self) {
        if !matches!(self.stage, Stage::Idle) {
            return tracing::warn!("the next daemon was started already, and has not taken over yet");
        }
        let program = match &self.program {
            Ok(program) => program.clone(),
            Err(error) => return not_started(error),
        };
        let mut command = self.command(program);
        let (started, starting) = channel();
        // The receiver waits until the thread has sent the child.
        let start = move || drop(started.send(command.spawn()));
        match thread::Builder::new().name("sealane-next".into()).spawn(start) {
            Ok(_) => self.stage = Stage::Starting(starting),
            Err(error) => not_started(&error),
        }
    }

    fn command(&self, program: PathBuf) -> Command {
        let mut command = Command::new(program);
        command.args(&self.arguments).stdin(Stdio::null());
        if !self.arguments.iter().any(|argument| argument == TAKE_OVER) {
            command.arg(TAKE_OVER);
        }
        command
    }

    /// Notices that it has been started, and that it has ended, which it does not do if it has taken over.
    pub(super) fn look(&mut self) {
        if let Stage::Starting(starting) = &self.stage {
            match starting.try_recv() {
                Err(TryRecvError::Empty) => {}
                Ok(Ok(child)) => {
                    tracing::info!(pid = child.id(), "the next daemon is started, to take over");
                    self.stage = Stage::Running(child);
                }
                Ok(Err(error)) => {
                    not_started(&error);
                    self.stage = Stage::Idle;
                }
                Err(TryRecvError::Disconnected) => self.stage = Stage::Idle,
            }
        }
        let Stage::Running(child) = &mut self.stage else { return };
        match child.try_wait() {
            Ok(None) => return,
            Ok(Some(status)) => {
                tracing::error!(%status, "the next daemon has ended before it took over; its messages say why, and this one serves on");
            }
            Err(error) => tracing::warn!(%error, "the next daemon cannot be watched"),
        }
        self.stage = Stage::Idle;
    }
}

fn not_started(error: &io::Error) {
    tracing::error!(%error, "the next daemon cannot be started; this one serves on");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_next_daemon_has_the_same_command_line_and_takes_over() {
        for arguments in [&["daemon", "--task", "a:1"][..], &["daemon", "--task", "a:1", TAKE_OVER]] {
            let arguments = arguments.iter().map(OsString::from).collect();
            let next = NextDaemon { program: Ok("/bin/sealane".into()), arguments, stage: Stage::Idle };
            let command = next.command("/bin/sealane".into());
            assert_eq!(command.get_args().collect::<Vec<_>>(), ["daemon", "--task", "a:1", TAKE_OVER]);
        }
    }

    #[test]
    fn one_that_ends_can_be_started_again() {
        let _copied = crate::OPEN_FILES.write();
        // Both end before they take over; the second one is not found.
        for program in ["/bin/false", "/nowhere"] {
            let mut next = NextDaemon { program: Ok(program.into()), arguments: Vec::new(), stage: Stage::Idle };
            for _ in 0..2 {
                next.start();
                assert!(!matches!(next.stage, Stage::Idle));
                while !matches!(next.stage, Stage::Idle) {
                    next.look();
                    thread::yield_now();
                }
            }
        }
    }
}
