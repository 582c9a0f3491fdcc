//! What is installed: `cargo xtask pages` writes the manual pages and the completions of the shells from the program's own
//! description of its arguments, `cargo xtask deb` has `deploy/debian/pack` pack them with the program, the libraries of C and
//! what lies in `deploy/`.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

use clap::CommandFactory;
use clap_complete::{Shell, generate_to};
use sealane_cli::cli::Cli;

use crate::Outcome;
use crate::build::{Build, build, build_library, workspace};
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

    /// Build the program with RDMA verbs, which needs cmake and libclang
    #[arg(long, conflicts_with = "built")]
    verbs: bool,

    /// The directory for the packages; created if missing
    #[arg(long, value_name = "FOLDER", default_value = "target/debian")]
    out: PathBuf,
}

impl Deb {
    pub(crate) fn run(&self) -> Outcome {
        let built = self.built.clone().map_or_else(|| self.build(), Ok)?;
        print!("{}", pack(&built, &self.out)?);
        Ok(true)
    }

    /// Builds program and libraries; the folder where cargo has put all of them.
    fn build(&self) -> Result<PathBuf, String> {
        build_library("sealane-c")?;
        let program =
            build(&Build { package: "sealane-cli", kind: "bin", target: "sealane", release: true, verbs: self.verbs })?;
        Ok(program.parent().expect("a file is in a folder").to_path_buf())
    }
}

/// Packs what is built; the names of the packages, as lines.
fn pack(built: &Path, out: &Path) -> Result<String, String> {
    let pages = tempfile::tempdir().map_err(|error| format!("no folder can be made for the manual: {error}"))?;
    write_pages(pages.path())?;
    let mut pack = Command::new(workspace().join("deploy/debian/pack"));
    output(pack.arg(built).arg(pages.path()).arg(env!("CARGO_PKG_VERSION")).arg(out))
}

/// Writes `man1/*.1` and a completion for each shell into `folder`, which is made. All are made from the program's own description of
/// its arguments, so that they cannot drift.
fn write_pages(folder: &Path) -> Result<(), String> {
    write(folder).map_err(|error| format!("{}: {error}", folder.display()))
}

fn write(folder: &Path) -> io::Result<()> {
    let manual = folder.join("man1");
    fs::create_dir_all(&manual)?;
    clap_mangen::generate_to(Cli::command(), &manual)?;
    for shell in [Shell::Bash, Shell::Zsh, Shell::Fish] {
        generate_to(shell, &mut shown(&Cli::command()), "sealane", folder)?;
    }
    Ok(())
}

/// A command without what is hidden, which the shells would offer too.
fn shown(command: &clap::Command) -> clap::Command {
    // The library wants names that live for ever, and this chore does not live long.
    let for_ever = |text: &str| -> &'static str { text.to_owned().leak() };
    let arguments = command.get_arguments().filter(|argument| !argument.is_hide_set()).cloned();
    let below = command.get_subcommands().filter(|below| !below.is_hide_set()).map(shown);
    let made = clap::Command::new(for_ever(command.get_name())).args(arguments).subcommands(below);
    made.about(command.get_about().cloned().unwrap_or_default()).version(command.get_version().map(for_ever))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command::run;

    #[test]
    fn the_changelog_is_of_this_version() {
        let changelog = include_str!("../../deploy/debian/changelog");
        let begin = format!("sealane ({}) ", env!("CARGO_PKG_VERSION"));
        assert!(changelog.starts_with(&begin), "{changelog}");
    }

    /// Packs a program and libraries that stand in for ours.
    #[test]
    fn packages_hold_what_is_installed_and_say_what_it_needs() {
        if Command::new("dpkg-deb").arg("--version").output().is_err() {
            eprintln!("not tried: this is no Debian");
            return;
        }
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        let version = env!("CARGO_PKG_VERSION");
        fs::write(path("one.c"), "#include <stdio.h>\nint main(void) { return puts(\"one\"); }\n").unwrap();
        let cc = |arguments: &[&str]| {
            run(Command::new("cc").args(arguments).arg("one.c").current_dir(folder.path())).unwrap()
        };
        cc(&["-o", "sealane"]);
        cc(&["-c", "-o", "one.o"]);
        cc(&["-shared", "-fPIC", "-Wl,-soname,libsealane_c.so.1", "-o", "libsealane_c.so"]);
        run(Command::new("ar").args(["rc", "libsealane_c.a", "one.o"]).current_dir(folder.path())).unwrap();

        let packed = pack(folder.path(), &path("out")).unwrap();
        let packages: Vec<&Path> = packed.lines().map(Path::new).collect();
        let names = packages.iter().map(|package| package.file_name().unwrap().to_str().unwrap());
        let names: Vec<&str> = names.map(|name| name.split_once('_').unwrap().0).collect();
        assert_eq!(names, ["sealane", "libsealane-c1", "libsealane-c-dev"]);
        let told = |which: usize, flag: &str| output(Command::new("dpkg-deb").arg(flag).arg(packages[which])).unwrap();
        for (which, fields) in [
            (0, "Package: sealane\nVersion: |Depends: libc6 (>= 2.|), libgcc-s1, init-system-helpers, |Section: net\n"),
            (1, "Source: sealane\n|Depends: libc6 (>= 2.|Multi-Arch: same\n|Description: tensor transport "),
            (2, &format!("Source: sealane\n|Depends: libsealane-c1 (= {version})\n")),
        ] {
            let said = told(which, "--field");
            assert!(fields.split('|').all(|field| said.contains(field)), "{fields} in {said}");
        }
        for (which, files) in [
            (0, "rwxr-xr-x root/root|/usr/bin/sealane\n|/etc/sealane/sealane.toml\n|/man1/sealane-daemon.1.gz\n"),
            (1, &format!("/libsealane_c.so.1 -> libsealane_c.so.{version}\n|/doc/libsealane-c1/changelog.gz\n")),
            (2, "/usr/include/sealane.h\n|/libsealane_c.a\n|/pkgconfig/sealane.pc\n"),
        ] {
            let listed = told(which, "--contents");
            assert!(files.split('|').all(|file| listed.contains(file)), "{files} in {listed}");
        }
        run(Command::new("dpkg-deb").arg("--extract").arg(packages[2]).arg(path("tree"))).unwrap();
        let found = output(Command::new("find").arg(path("tree")).args(["-name", "sealane.pc"])).unwrap();
        let filled = fs::read_to_string(found.trim()).unwrap();
        assert!(filled.starts_with("prefix=/usr\nlibdir=/usr/lib/") && !filled.contains('@'), "{filled}");
        assert!(filled.contains(&format!("Version: {version}\n")), "{filled}");
    }

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
