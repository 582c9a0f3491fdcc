//! Manual pages and completions, made from the program's own description of its arguments, so that they cannot drift.

use std::fs;
use std::io;
use std::path::Path;

use clap::{Command, CommandFactory};
use clap_complete::{Shell, generate_to};
use clap_mangen::Man;
use sealane_cli::cli::Cli;

/// The program, and the begin of the name of each page.
const PROGRAM: &str = "sealane";

/// The shells that have completions.
const SHELLS: [Shell; 3] = [Shell::Bash, Shell::Zsh, Shell::Fish];

/// Writes `man1/*.1` and a completion for each shell into `folder`, which is made.
///
/// # Errors
/// A file cannot be written.
pub(crate) fn write(folder: &Path) -> io::Result<()> {
    let manual = folder.join("man1");
    fs::create_dir_all(&manual)?;
    let mut command = Cli::command();
    command.build();
    write_manual(&command, PROGRAM, &manual)?;
    for shell in SHELLS {
        generate_to(shell, &mut shown(&Cli::command()), PROGRAM, folder)?;
    }
    Ok(())
}

/// A command without what is hidden, which the shells would offer too.
fn shown(command: &Command) -> Command {
    // The library wants names that live for ever, and this chore does not live long.
    let for_ever = |text: &str| -> &'static str { text.to_owned().leak() };
    let arguments = command.get_arguments().filter(|argument| !argument.is_hide_set()).cloned();
    let below = command.get_subcommands().filter(|below| !below.is_hide_set()).map(shown);
    let mut made = Command::new(for_ever(command.get_name())).args(arguments).subcommands(below);
    if let Some(about) = command.get_about() {
        made = made.about(about.clone());
    }
    match command.get_version() {
        Some(version) => made.version(for_ever(version)),
        None => made,
    }
}

/// A page for the command, and one for each of its subcommands, as in `sealane-map-lint.1`.
fn write_manual(command: &Command, name: &str, folder: &Path) -> io::Result<()> {
    let titled = command.clone().display_name(name.to_owned()).bin_name(name.replace('-', " "));
    let mut page = Vec::new();
    // A page is of the day of its release, not of the day of its making.
    Man::new(titled).title(name.to_owned()).section("1").date("").source(PROGRAM).render(&mut page)?;
    fs::write(folder.join(format!("{name}.1")), page)?;
    for below in command.get_subcommands().filter(|below| !below.is_hide_set() && below.get_name() != "help") {
        write_manual(below, &format!("{name}-{}", below.get_name()), folder)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_command_has_a_page_and_hidden_ones_have_none() {
        let folder = tempfile::tempdir().unwrap();
        write(folder.path()).unwrap();
        for name in ["sealane", "sealane-daemon", "sealane-map-lint", "sealane-bench-latency"] {
            let page = fs::read_to_string(folder.path().join("man1").join(format!("{name}.1"))).unwrap();
            assert!(page.contains(".SH NAME") && page.contains("sealane"), "{page}");
        }
        for hidden in ["sealane-bench-peer", "sealane-demo-task", "sealane-help"] {
            assert!(!folder.path().join("man1").join(format!("{hidden}.1")).exists(), "{hidden}");
        }
    }

    #[test]
    fn completions_know_the_commands_that_are_shown() {
        let folder = tempfile::tempdir().unwrap();
        write(folder.path()).unwrap();
        for file in ["sealane.bash", "_sealane", "sealane.fish"] {
            let text = fs::read_to_string(folder.path().join(file)).unwrap();
            assert!(text.contains("daemon") && text.contains("endpoint-map"), "{file}");
            assert!(!text.contains("demo-task") && !text.contains("listener-on-stdin"), "{file}");
        }
    }
}
