//! The next daemon, which this one starts if a service manager must not see it stop: the same command line, with `--take-over`.

use std::env;
use std::ffi::OsString;
use std::io;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

/// The flag that makes a daemon take over.
const TAKE_OVER: &str = "--take-over";

#[derive(Debug)]
pub(super) struct NextDaemon {
    /// Where this program was when it started: an upgrade puts the next release there.
    program: io::Result<PathBuf>,
    arguments: Vec<OsString>,
    child: Option<Child>,
}

impl NextDaemon {
    /// The next daemon with this process's command line.
    pub(super) fn of_this() -> NextDaemon {
        NextDaemon { program: env::current_exe(), arguments: env::args_os().skip(1).collect(), child: None }
    }

    /// Starts it, unless the one started before is still running.
    pub(super) fn start(&mut self) {
        if self.child.is_some() {
            return tracing::warn!("the next daemon was started already, and has not taken over yet");
        }
        let spawned = match &self.program {
            Ok(program) => self.command(program.clone()).spawn(),
            Err(error) => Err(io::Error::new(error.kind(), error.to_string())),
        };
        match spawned {
            Ok(child) => {
                tracing::info!(pid = child.id(), "the next daemon is started, to take over");
                self.child = Some(child);
            }
            Err(error) => tracing::error!(%error, "the next daemon cannot be started; this one serves on"),
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

    /// Notices that it has ended, which it does not do if it has taken over.
    pub(super) fn look(&mut self) {
        let Some(child) = &mut self.child else { return };
        match child.try_wait() {
            Ok(None) => {}
            Ok(Some(status)) => {
                tracing::error!(%status, "the next daemon has ended before it took over; its messages say why, and this one serves on");
                self.child = None;
            }
            Err(error) => {
                tracing::warn!(%error, "the next daemon cannot be watched");
                self.child = None;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_next_daemon_has_the_same_command_line_and_takes_over() {
        for arguments in [&["daemon", "--task", "a:1"][..], &["daemon", "--task", "a:1", TAKE_OVER]] {
            let arguments = arguments.iter().map(OsString::from).collect();
            let next = NextDaemon { program: Ok("/bin/sealane".into()), arguments, child: None };
            let command = next.command("/bin/sealane".into());
            assert_eq!(command.get_args().collect::<Vec<_>>(), ["daemon", "--task", "a:1", TAKE_OVER]);
        }
    }

    #[test]
    fn one_that_ends_can_be_started_again() {
        let _copied = crate::OPEN_FILES.write();
        let mut next = NextDaemon { program: Ok("/bin/false".into()), arguments: Vec::new(), child: None };
        next.start();
        while next.child.is_some() {
            next.look();
            std::thread::yield_now();
        }
        next.start();
        assert!(next.child.is_some());
        next.child.unwrap().wait().unwrap();
        let mut gone = NextDaemon { program: Ok("/nowhere".into()), arguments: Vec::new(), child: None };
        gone.start();
        assert!(gone.child.is_none());
    }
}
