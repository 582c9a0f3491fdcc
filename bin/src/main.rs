//! The program `sealane`: hands the arguments and the environment of the process to the library.

use std::process::ExitCode;

use sealane_cli::cli::Cli;
use sealane_cli::settings::Environment;

fn main() -> ExitCode {
    sealane_cli::run::<Cli>(std::env::args_os(), Environment::of_process())
}
