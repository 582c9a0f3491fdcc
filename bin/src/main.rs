//! The program `sealane`: hands the arguments and the environment of the process to the library.

use std::process::ExitCode;

use sealane::settings::Environment;

fn main() -> ExitCode {
    sealane::run(std::env::args_os(), Environment::of_process())
}
