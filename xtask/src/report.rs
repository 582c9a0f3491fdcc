//! `cargo xtask report`: has `bench/report` (Python) measure, and write the report and the README's figures of what was kept.

use std::process::{Command, ExitCode};

use clap::Args;

use crate::build::workspace;
use crate::command::forget_own_package;

#[derive(Args)]
#[command(disable_help_flag = true)]
pub(crate) struct Report {
    /// What to measure and write; see --help
    #[arg(allow_hyphen_values = true, trailing_var_arg = true)]
    arguments: Vec<String>,
}

impl Report {
    pub(crate) fn run(&self) -> ExitCode {
        let mut python = Command::new("python3");
        forget_own_package(&mut python);
        match python.arg(workspace().join("bench/report")).args(&self.arguments).status() {
            Ok(status) if status.success() => ExitCode::SUCCESS,
            Ok(status) => ExitCode::from(u8::try_from(status.code().unwrap_or(1)).unwrap_or(1)),
            Err(error) => {
                eprintln!("error: the report is made by Python 3.11 or newer, and python3 cannot be run: {error}");
                ExitCode::FAILURE
            }
        }
    }
}
