//! What is installed: `cargo xtask pages` writes the manual pages and shell completions from the program's own description of its
//! arguments; `cargo xtask deb` runs `deploy/debian/pack`, which packs them with the program, the C libraries and the contents of
//! `deploy/`.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use clap::CommandFactory;
use clap_complete::{Shell, generate_to};

use crate::Outcome;
use crate::build::{Build, workspace};
use crate::command::output;

/// Arguments of `cargo xtask pages`.
#[derive(clap::Args)]
pub(crate) struct Pages {
    /// The directory to write to; created if missing
    #[arg(long, value_name = "FOLDER", default_value = "target/pages")]
    out: PathBuf,
}

impl Pages {
    pub(crate) fn run(&self) -> Outcome {
        write_pages(&self.out)?;
        println!("manual pages and completions are in {}", self.out.display());
        Ok(true)
    }
}

/// Arguments of `cargo xtask deb`.
#[derive(clap::Args)]
pub(crate) struct Deb {
    /// A directory with the program and the C libraries already built [default: build them]
    #[arg(long, value_name = "FOLDER")]
    built: Option<PathBuf>,

    /// The directory for the packages; created if missing
    #[arg(long, value_name = "FOLDER", default_value = "target/debian")]
    out: PathBuf,
}

/// The program, and beside it the benchmark program and the C libraries: one build puts them all in one directory.
const SEALANE: Build = Build { package: "sealane-cli", kind: "bin", target: "sealane", is_packed: true };
const AND_OTHERS: [&str; 7] =
    ["--package", "sealane-bench", "--bin", "sealane-bench", "--package", "sealane-c", "--lib"];

impl Deb {
    pub(crate) fn run(&self) -> Outcome {
        let built = match &self.built {
            Some(folder) => folder.clone(),
            None => SEALANE.build(&AND_OTHERS)?.parent().expect("a file is in a folder").to_path_buf(),
        };
        let pages = tempfile::tempdir().map_err(|error| format!("no folder can be made for the manual: {error}"))?;
        write_pages(pages.path())?;
        let mut pack = Command::new(workspace().join("deploy/debian/pack"));
        print!("{}", output(pack.arg(built).arg(pages.path()).arg(env!("CARGO_PKG_VERSION")).arg(&self.out))?);
        Ok(true)
    }
}

const BENCH: &str = "sealane-bench";

/// Writes `man1/*.1` and, for each shell, completions of both programs into `folder`, which is created. All are made from the
/// programs' own descriptions of their arguments, so that they cannot diverge.
fn write_pages(folder: &Path) -> Result<(), String> {
    let write = || {
        let manual = folder.join("man1");
        fs::create_dir_all(&manual)?;
        let bench = sealane_bench::commands::Cli::command().name(BENCH);
        // The page of `sealane bench` is that of the program that it runs.
        for (name, program) in [("sealane", sealane_cli::cli::Cli::command()), (BENCH, bench)] {
            clap_mangen::generate_to(program.clone(), &manual)?;
            for shell in [Shell::Bash, Shell::Zsh, Shell::Fish] {
                generate_to(shell, &mut shown(&program), name, folder)?;
            }
        }
        Ok(())
    };
    write().map_err(|error: std::io::Error| format!("{}: {error}", folder.display()))
}

/// A command without its hidden parts, which the shells would offer too.
fn shown(command: &clap::Command) -> clap::Command {
    // The library requires `'static` names, and this chore is short-lived.
    let for_ever = |text: &str| -> &'static str { text.to_owned().leak() };
    let arguments = command.get_arguments().filter(|argument| !argument.is_hide_set()).cloned();
    let below = command.get_subcommands().filter(|below| !below.is_hide_set()).map(shown);
    let made = clap::Command::new(for_ever(command.get_name())).args(arguments).subcommands(below);
    made.about(command.get_about().cloned().unwrap_or_default()).version(command.get_version().map(for_ever))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_changelog_is_of_this_version() {
        let changelog = include_str!("../../deploy/debian/changelog");
        assert!(changelog.starts_with(&format!("sealane ({}) ", env!("CARGO_PKG_VERSION"))), "{changelog}");
    }

    #[test]
    fn every_command_has_a_page_and_is_completed_and_hidden_ones_are_not() {
        let folder = tempfile::tempdir().unwrap();
        write_pages(folder.path()).unwrap();
        for name in ["sealane", "sealane-daemon", "sealane-map-lint", "sealane-bench", "sealane-bench-latency"] {
            let page = fs::read_to_string(folder.path().join("man1").join(format!("{name}.1"))).unwrap();
            assert!(page.contains(".SH NAME") && page.contains("sealane"), "{page}");
        }
        for hidden in ["sealane-bench-peer", "sealane-demo-task", "sealane-help"] {
            assert!(!folder.path().join("man1").join(format!("{hidden}.1")).exists(), "{hidden}");
        }
        for (files, command, flag) in [
            (["sealane.bash", "_sealane", "sealane.fish"], "daemon", "endpoint-map"),
            (["sealane-bench.bash", "_sealane-bench", "sealane-bench.fish"], "latency", "baseline"),
        ] {
            for file in files {
                let text = fs::read_to_string(folder.path().join(file)).unwrap();
                assert!(text.contains(command) && text.contains(flag), "{file}");
                assert!(!text.contains("demo-task") && !text.contains("listener-on-stdin"), "{file}");
            }
        }
    }
}
