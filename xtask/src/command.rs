//! System commands that a chore runs: each is waited for, and a failed one is reported with its output.

use std::env;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};

use crate::Outcome;

pub(crate) fn cargo() -> Command {
    let mut cargo = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    forget_own_package(&mut cargo);
    cargo
}

/// Replaces this process by a command, which shows its outcome itself.
pub(crate) fn hand_over(command: &mut Command) -> Outcome {
    forget_own_package(command);
    // Returns only if it has failed.
    let error = command.exec();
    Err(format!("cannot run {}: {error}", command.get_program().display()))
}

/// Hides from a command the package of this program, which `cargo run` set in variables. Build scripts of dependencies (ring's)
/// read these, so that a cargo started here would rebuild them, and so would the next one started directly.
fn forget_own_package(command: &mut Command) {
    let told = ["CARGO_PKG_", "CARGO_MANIFEST_"];
    for (name, _) in env::vars_os() {
        if told.iter().any(|start| name.as_encoded_bytes().starts_with(start.as_bytes())) {
            command.env_remove(name);
        }
    }
}

/// Runs a command whose output only matters when it fails.
pub(crate) fn run(command: &mut Command) -> Result<(), String> {
    output(command).map(drop)
}

pub(crate) fn output(command: &mut Command) -> Result<String, String> {
    let program = command.get_program().to_string_lossy().into_owned();
    let done = command.stdin(Stdio::null()).output().map_err(|error| format!("cannot run {program}: {error}"))?;
    if done.status.success() {
        return Ok(String::from_utf8_lossy(&done.stdout).into_owned());
    }
    let arguments: Vec<_> = command.get_args().map(|argument| argument.to_string_lossy()).collect();
    let said = String::from_utf8_lossy(&done.stderr);
    Err(format!("{program} {} failed ({}): {}", arguments.join(" "), done.status, said.trim()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cargo_that_is_started_here_is_told_of_no_package() {
        let told = |name: &str| name.starts_with("CARGO_PKG_") || name.starts_with("CARGO_MANIFEST_");
        let of_this = env::vars_os().filter(|(name, _)| name.to_str().is_some_and(told)).count();
        assert!(of_this > 0, "cargo has started this");
        assert_eq!(cargo().get_envs().filter(|(_, value)| value.is_none()).count(), of_this);
    }
}
