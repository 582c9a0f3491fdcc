//! `cargo xtask report`: has `bench/report` (Python) measure, and write the report and the README's figures of what was kept.

use std::process::Command;

use clap::Args;

use crate::Outcome;
use crate::build::workspace;
use crate::command::hand_over;

#[derive(Args)]
#[command(disable_help_flag = true)]
pub(crate) struct Report {
    /// What to measure and write; see --help
    #[arg(allow_hyphen_values = true, trailing_var_arg = true)]
    arguments: Vec<String>,
}

impl Report {
    /// By Python 3.11 or newer.
    pub(crate) fn run(&self) -> Outcome {
        hand_over(Command::new("python3").arg(workspace().join("bench/report")).args(&self.arguments))
    }
}
