//! `cargo xtask without-io-uring -- COMMAND`: runs a command, and all that it starts, with io_uring forbidden as by the default
//! seccomp profile of containers: shards then run on the other executor.

use std::ffi::OsString;
use std::process::Command;

use clap::Args;
use nix::libc;
use seccompiler::{BpfProgram, SeccompAction, SeccompFilter, apply_filter};

use crate::Outcome;
use crate::command::hand_over;

#[derive(Args)]
#[command(after_help = "Example:\n  cargo xtask without-io-uring -- cargo test -p sealane-fusion")]
pub(crate) struct WithoutIoUring {
    /// The command and its arguments
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

impl WithoutIoUring {
    pub(crate) fn run(&self) -> Outcome {
        let (program, arguments) = self.command.split_first().expect("clap demands it");
        forbid().map_err(|error| format!("cannot forbid io_uring: {error}"))?;
        // The program may be cargo.
        hand_over(Command::new(program).args(arguments))
    }
}

/// Forbids io_uring permanently to this thread and all that it starts.
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
}
