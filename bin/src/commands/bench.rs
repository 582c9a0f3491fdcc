//! `sealane bench`: runs the program `sealane-bench`, which keeps benchmarks out of the daemon's program.

use std::ffi::OsString;
use std::io::ErrorKind;
use std::os::unix::process::CommandExt;
use std::process::Command;

use crate::flags::{LogFlags, LogFormat};
use crate::{Failure, programs};

const PROGRAM: &str = "sealane-bench";

/// Measure Sealane and its baselines side by side: runs sealane-bench
#[derive(Debug, clap::Args)]
#[command(
    disable_help_flag = true,
    after_help = "Example:\n  sealane bench latency --baseline raw --baseline grpc-stream"
)]
pub struct Args {
    /// What sealane-bench is given; `sealane bench --help` shows what it takes
    #[arg(value_name = "ARGUMENT", trailing_var_arg = true, allow_hyphen_values = true)]
    arguments: Vec<OsString>,
}

/// Replaces this process by `sealane-bench` with its arguments; returns only if that fails.
///
/// # Errors
/// There is no such program, or it cannot be started.
pub fn run(args: &Args, log: &LogFlags) -> Result<(), Failure> {
    let path = programs::find(PROGRAM);
    let mut command = Command::new(&path);
    command.args(log.filter.iter().flat_map(|filter| ["--log", filter]));
    if log.format == LogFormat::Json {
        command.args(["--log-format", "json"]);
    }
    let error = command.args(&args.arguments).exec();
    Err(Failure::input(match error.kind() {
        ErrorKind::NotFound => format!(
            "{PROGRAM} is neither beside this program nor in PATH; in a checkout, `cargo build --release -p {PROGRAM}` builds it, \
             and `cargo install --path bench` installs it"
        ),
        _ => format!("{} cannot be started ({error}); make it executable, or install it again", path.display()),
    }))
}
