//! `cargo xtask wheels`: has `python/wheels.sh` build the Python package and the TensorFlow plugin as wheels.

use std::path::PathBuf;
use std::process::Command;

use crate::Outcome;
use crate::build::workspace;
use crate::command::hand_over;

/// Arguments of `cargo xtask wheels`.
#[derive(clap::Args)]
pub(crate) struct Wheels {
    /// The directory for the wheels; created if missing
    #[arg(long, value_name = "FOLDER", default_value = "target/wheels")]
    out: PathBuf,

    /// The TensorFlow releases to build for, as in `2.21` [default: all that the plugin supports]
    #[arg(long, value_name = "RELEASE")]
    tensorflow: Vec<String>,
}

impl Wheels {
    pub(crate) fn run(&self) -> Outcome {
        hand_over(Command::new(workspace().join("python/wheels.sh")).arg(&self.out).args(&self.tensorflow))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command::run;

    #[test]
    fn the_plugin_supports_releases_of_tensorflow() {
        let script = workspace().join("python/wheels.sh");
        let error = run(Command::new(script).args(["target/none", "2.21", "1.15"])).unwrap_err();
        assert!(error.contains("does not support TensorFlow 1.15, but") && error.contains("2.21"), "{error}");
    }
}
