//! Commands of the system that a chore runs: each is waited for, and one that fails is named with its words.

use std::process::{Command, Stdio};

/// Runs a command whose output only matters when it fails.
pub(crate) fn run(command: &mut Command) -> Result<(), String> {
    output(command).map(drop)
}

/// Runs a command and gives what it printed.
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
    fn a_command_that_fails_is_named_with_its_words() {
        let error = run(Command::new("ls").arg("/no/such/folder").env("LC_ALL", "C")).unwrap_err();
        assert!(error.contains("ls /no/such/folder failed") && error.contains("No such file"), "{error}");
    }
}
