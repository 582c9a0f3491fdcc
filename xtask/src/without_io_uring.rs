//! `cargo xtask without-io-uring -- COMMAND`: runs a command, and all that it starts, where io_uring is forbidden as the
//! default seccomp profile of containers forbids it: what runs on shards then runs on the executor that does without.

use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode};

use clap::Args;
use nix::libc;
use seccompiler::{BpfProgram, SeccompAction, SeccompFilter, apply_filter};

use crate::command::forget_own_package;

#[derive(Args)]
#[command(after_help = "Example:\n  cargo xtask without-io-uring -- cargo test -p sealane-fusion")]
pub(crate) struct WithoutIoUring {
    /// The command and its arguments
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

impl WithoutIoUring {
    pub(crate) fn run(&self) -> ExitCode {
        let (program, arguments) = self.command.split_first().expect("clap demands it");
        let mut command = Command::new(program);
        // It may be cargo.
        forget_own_package(&mut command);
        let error = match forbid() {
            // Returns only when it has failed.
            Ok(()) => format!("cannot run {}: {}", program.display(), command.args(arguments).exec()),
            Err(error) => format!("cannot forbid io_uring: {error}"),
        };
        eprintln!("error: {error}");
        ExitCode::FAILURE
    }
}

/// Forbids io_uring to this thread and to all that it starts, for ever.
fn forbid() -> Result<(), seccompiler::Error> {
    let forbidden = [libc::SYS_io_uring_setup, libc::SYS_io_uring_enter, libc::SYS_io_uring_register];
    let filter = SeccompFilter::new(
        forbidden.into_iter().map(|call| (call, Vec::new())).collect(),
        SeccompAction::Allow,
        SeccompAction::Errno(libc::EPERM as u32),
        std::env::consts::ARCH.try_into()?,
    )?;
    apply_filter(&BpfProgram::try_from(filter)?)
}

#[cfg(test)]
mod tests {
    use sealane_runtime::{ExecutorKind, Pin, Runtime, RuntimeSettings, try_io_uring};

    use super::*;

    #[test]
    fn a_thread_that_may_not_use_io_uring_starts_shards_without() {
        let there = std::thread::spawn(|| {
            forbid().unwrap();
            let runtime = Runtime::start(RuntimeSettings { pin: Pin::Off, ..RuntimeSettings::default() }).unwrap();
            (try_io_uring().unwrap_err().to_string(), runtime.executor())
        });
        let (reason, executor) = there.join().unwrap();
        assert!(reason.contains("seccomp") || reason.contains("io_uring_disabled"), "{reason}");
        assert_eq!(executor, ExecutorKind::Epoll);
    }

    #[test]
    fn a_command_that_cannot_be_run_is_an_error() {
        let there = std::thread::spawn(|| WithoutIoUring { command: vec!["/no/such/program".into()] }.run());
        assert_eq!(there.join().unwrap(), ExitCode::FAILURE);
    }
}
