//! Scripts of this repository: `cargo xtask wheels` is `python/wheels.sh`, which builds the Python package and the TensorFlow
//! plugin; `report` and `peers` are `bench/report` (Python 3.11 or newer), which measures and updates the documents with the
//! results.

use std::process::Command;

use clap::Args;

use crate::Outcome;
use crate::build::workspace;
use crate::command::hand_over;

#[derive(Args)]
#[command(disable_help_flag = true)]
pub(crate) struct Script {
    /// What the script takes; of a report, see --help
    #[arg(allow_hyphen_values = true, trailing_var_arg = true)]
    arguments: Vec<String>,
}

impl Script {
    /// Arguments are the directory of the wheels and the TensorFlow releases to build for; without them, all that the plugin
    /// supports, in `target/wheels`.
    pub(crate) fn wheels(&self) -> Outcome {
        let default = ["target/wheels".to_owned()];
        let arguments = if self.arguments.is_empty() { &default[..] } else { &self.arguments };
        hand_over(Command::new(workspace().join("python/wheels.sh")).args(arguments))
    }

    /// A report of one experiment only, or according to the arguments.
    pub(crate) fn report(&self, only: Option<&str>) -> Outcome {
        let only = only.map(|name| format!("--only={name}"));
        hand_over(Command::new("python3").arg(workspace().join("bench/report")).args(only).args(&self.arguments))
    }
}
