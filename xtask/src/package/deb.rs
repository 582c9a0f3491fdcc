//! The Debian package: a tree in a folder of its own, packed by `dpkg-deb`. What is in it lies in `deploy/`; what says which
//! versions of libraries it needs is read from the program.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::pages;
use crate::command::{output, run};

/// Where each file of `deploy/` goes, and its mode.
const FILES: [(&str, &str, u32); 8] = [
    ("systemd/sealane.service", "usr/lib/systemd/system/sealane.service", 0o644),
    ("systemd/sealane.sysusers", "usr/lib/sysusers.d/sealane.conf", 0o644),
    ("etc/sealane.toml", "etc/sealane/sealane.toml", 0o644),
    ("debian/copyright", "usr/share/doc/sealane/copyright", 0o644),
    ("slurm/prolog.sh", "usr/share/doc/sealane/examples/slurm/prolog.sh", 0o644),
    ("slurm/epilog.sh", "usr/share/doc/sealane/examples/slurm/epilog.sh", 0o644),
    ("kubernetes/daemonset.yaml", "usr/share/doc/sealane/examples/kubernetes/daemonset.yaml", 0o644),
    ("kubernetes/job.yaml", "usr/share/doc/sealane/examples/kubernetes/job.yaml", 0o644),
];

/// What is done when the package comes and goes.
const SCRIPTS: [&str; 3] = ["postinst", "prerm", "postrm"];

/// Files that an administrator may change, and that stay as they were changed.
const CONFFILES: &str = "/etc/sealane/sealane.toml\n";

/// Packs the program with what lies in `deploy`; the package.
///
/// # Errors
/// What could not be read, made or run, in a sentence.
pub(super) fn pack(program: &Path, deploy: &Path, out: &Path) -> Result<PathBuf, String> {
    let tree = tempfile::tempdir().map_err(|error| format!("no folder can be made for the package: {error}"))?;
    let root = tree.path();
    fs::set_permissions(root, fs::Permissions::from_mode(0o755)).map_err(|error| at(root, &error))?;
    place(program, &root.join("usr/bin/sealane"), 0o755)?;
    run(Command::new("strip").arg("--strip-debug").arg(root.join("usr/bin/sealane")))?;
    for (from, to, mode) in FILES {
        place(&deploy.join(from), &root.join(to), mode)?;
    }
    place_pages(root)?;
    let changelog = root.join("usr/share/doc/sealane/changelog");
    place(&deploy.join("debian/changelog"), &changelog, 0o644)?;
    run(Command::new("gzip").arg("-9n").arg(&changelog))?;
    for script in SCRIPTS {
        place(&deploy.join("debian").join(script), &root.join("DEBIAN").join(script), 0o755)?;
    }
    write(&root.join("DEBIAN/conffiles"), CONFFILES)?;
    let architecture = output(Command::new("dpkg").arg("--print-architecture"))?.trim().to_owned();
    let control = control(&architecture, &needed_libc(program)?, installed_kib(root)?);
    write(&root.join("DEBIAN/control"), &control)?;
    fs::create_dir_all(out).map_err(|error| at(out, &error))?;
    let package = out.join(format!("sealane_{}_{architecture}.deb", env!("CARGO_PKG_VERSION")));
    run(Command::new("dpkg-deb").args(["--root-owner-group", "-Zxz", "--build"]).arg(root).arg(&package))?;
    Ok(package)
}

/// Manual pages and completions, where Debian has them.
fn place_pages(root: &Path) -> Result<(), String> {
    let made = tempfile::tempdir().map_err(|error| format!("no folder can be made for the manual: {error}"))?;
    pages::write(made.path()).map_err(|error| at(made.path(), &error))?;
    for (from, to) in [
        ("sealane.bash", "usr/share/bash-completion/completions/sealane"),
        ("_sealane", "usr/share/zsh/vendor-completions/_sealane"),
        ("sealane.fish", "usr/share/fish/vendor_completions.d/sealane.fish"),
    ] {
        place(&made.path().join(from), &root.join(to), 0o644)?;
    }
    let manual = made.path().join("man1");
    for page in fs::read_dir(&manual).map_err(|error| at(&manual, &error))? {
        let page = page.map_err(|error| at(&manual, &error))?;
        let to = root.join("usr/share/man/man1").join(page.file_name());
        place(&page.path(), &to, 0o644)?;
        run(Command::new("gzip").arg("-9n").arg(&to))?;
    }
    Ok(())
}

/// What the package says of itself.
fn control(architecture: &str, libc: &str, installed_kib: u64) -> String {
    format!(
        "Package: sealane\n\
         Version: {version}\n\
         Architecture: {architecture}\n\
         Maintainer: The Sealane developers <sealane@localhost>\n\
         Installed-Size: {installed_kib}\n\
         Depends: libc6 (>= {libc}), libgcc-s1, init-system-helpers, systemd | systemd-standalone-sysusers | adduser\n\
         Recommends: libibverbs1, ibverbs-providers\n\
         Section: net\n\
         Priority: optional\n\
         Description: tensor transport for parameter-server training\n \
         One daemon a host carries the tensors of all training processes on it, over\n \
         shared memory, TCP and, where it was built with them, RDMA verbs. The program\n \
         has also what measures and checks it: see sealane(1).\n",
        version = env!("CARGO_PKG_VERSION"),
    )
}

/// The newest version of the C library that the program needs a symbol of.
fn needed_libc(program: &Path) -> Result<String, String> {
    let symbols = output(Command::new("objdump").arg("-T").arg(program))?;
    newest_glibc(&symbols).ok_or_else(|| format!("{}: no program for Linux with glibc", program.display()))
}

fn newest_glibc(symbols: &str) -> Option<String> {
    let versions = symbols.split("GLIBC_").skip(1);
    let versions = versions.filter_map(|rest| {
        let version: String = rest.chars().take_while(|char| char.is_ascii_digit() || *char == '.').collect();
        let numbers: Option<Vec<u32>> = version.split('.').map(|number| number.parse().ok()).collect();
        Some((numbers?, version))
    });
    versions.max().map(|(_, version)| version)
}

fn installed_kib(root: &Path) -> Result<u64, String> {
    let counted = output(Command::new("du").arg("-sk").arg("--apparent-size").arg(root))?;
    let first = counted.split_whitespace().next().and_then(|kib| kib.parse().ok());
    first.ok_or_else(|| format!("du said {counted:?}"))
}

/// Copies a file, with the folders above it.
fn place(from: &Path, to: &Path, mode: u32) -> Result<(), String> {
    make_folder_of(to)?;
    fs::copy(from, to).map_err(|error| at(from, &error))?;
    fs::set_permissions(to, fs::Permissions::from_mode(mode)).map_err(|error| at(to, &error))
}

fn write(to: &Path, text: &str) -> Result<(), String> {
    make_folder_of(to)?;
    fs::write(to, text).map_err(|error| at(to, &error))
}

/// Folders are open to all readers, whatever the mask of whoever packs.
fn make_folder_of(file: &Path) -> Result<(), String> {
    let folder = file.parent().expect("a file is in a folder");
    if folder.is_dir() {
        return Ok(());
    }
    make_folder_of(folder)?;
    fs::create_dir(folder).map_err(|error| at(folder, &error))?;
    fs::set_permissions(folder, fs::Permissions::from_mode(0o755)).map_err(|error| at(folder, &error))
}

fn at(path: &Path, error: &std::io::Error) -> String {
    format!("{}: {error}", path.display())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_version_of_the_c_library_is_needed() {
        let symbols = "0 DF *UND* 0 (GLIBC_2.4) stat\n0 DF *UND* 0 (GLIBC_2.34) x\n0 DF *UND* 0 (GLIBC_2.17) y\n\
                       0 DF *UND* 0 (GLIBC_2.2.5) z\n0 DF *UND* 0 (GLIBC_PRIVATE) w\n";
        assert_eq!(newest_glibc(symbols).as_deref(), Some("2.34"));
        assert_eq!(newest_glibc("static"), None);
    }

    #[test]
    fn the_changelog_is_of_this_version() {
        let changelog = include_str!("../../../deploy/debian/changelog");
        let begin = format!("sealane ({}) ", env!("CARGO_PKG_VERSION"));
        assert!(changelog.starts_with(&begin), "{changelog}");
    }

    #[test]
    fn what_is_packed_is_there() {
        let deploy = crate::build::workspace().join("deploy");
        for file in FILES.map(|(from, ..)| from.to_owned()).into_iter().chain(SCRIPTS.map(|s| format!("debian/{s}"))) {
            assert!(deploy.join(&file).is_file(), "{file}");
        }
        let control = control("amd64", "2.34", 7);
        assert!(
            control.contains("\nDepends: libc6 (>= 2.34), ") && control.ends_with("see sealane(1).\n"),
            "{control}"
        );
        assert!(control.contains("\n One daemon a host "), "{control}");
    }
}
