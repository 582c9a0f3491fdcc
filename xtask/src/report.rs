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
    /// By Python 3.11 or newer; of one experiment alone, or as the arguments say.
    pub(crate) fn run(&self, only: Option<&str>) -> Outcome {
        let mut python = Command::new("python3");
        python.arg(workspace().join("bench/report"));
        hand_over(python.args(only.map(|name| format!("--only={name}"))).args(&self.arguments))
    }
}
