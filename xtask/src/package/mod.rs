//! What is installed: `cargo xtask pages` writes the manual pages and the completions of the shells from the program's own
//! description of its arguments, `cargo xtask deb` has `deploy/debian/pack` pack them with the program, the libraries of C and
//! what lies in `deploy/`.

mod pages;

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

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
    pub(crate) fn run(&self) -> ExitCode {
        let written = write_pages(&self.out);
        told(written.map(|()| format!("manual pages and completions are in {}\n", self.out.display())))
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
    pub(crate) fn run(&self) -> ExitCode {
        let built = self.built.clone().map_or_else(|| self.build(), Ok);
        told(built.and_then(|built| pack(&built, &self.out)))
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

fn write_pages(folder: &Path) -> Result<(), String> {
    pages::write(folder).map_err(|error| format!("{}: {error}", folder.display()))
}

fn told(outcome: Result<String, String>) -> ExitCode {
    match outcome {
        Ok(done) => {
            print!("{done}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::command::run;

    #[test]
    fn the_changelog_is_of_this_version() {
        let changelog = include_str!("../../../deploy/debian/changelog");
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
}
