//! The program `sealane-bench`, which `sealane bench` runs.

use std::process::ExitCode;

use sealane_bench::commands::Cli;
use sealane_cli::settings::Environment;

fn main() -> ExitCode {
    sealane_cli::run::<Cli>(std::env::args_os(), Environment::of_process())
}
