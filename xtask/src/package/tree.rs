//! The tree of files of one Debian package, in a folder of its own, packed by `dpkg-deb`.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;

use crate::command::{output, run};

/// What a package says of itself beside its name, version and size.
pub(super) struct About {
    pub(super) section: &'static str,
    /// Fields that not all packages have, as lines.
    pub(super) more: String,
    /// What `Depends:` has beside the C library.
    pub(super) depends: String,
    /// A line, and then a text, in lines that are short enough to be shown.
    pub(super) description: [&'static str; 2],
}

/// See the module.
pub(super) struct Tree {
    name: String,
    folder: TempDir,
    /// The version of the C library that what is packed needs.
    libc: Option<String>,
}

impl Tree {
    /// A package that has its licence and its changelog, which lie in `deploy`.
    pub(super) fn new(name: &str, deploy: &Path) -> Result<Tree, String> {
        let folder =
            tempfile::tempdir().map_err(|error| format!("no folder can be made for the package {name}: {error}"))?;
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755))
            .map_err(|error| at(folder.path(), &error))?;
        let tree = Tree { name: name.to_owned(), folder, libc: None };
        let documents = format!("usr/share/doc/{name}");
        tree.place(&deploy.join("debian/copyright"), &format!("{documents}/copyright"), 0o644)?;
        tree.place_packed(&deploy.join("debian/changelog"), &format!("{documents}/changelog"))?;
        Ok(tree)
    }

    /// Copies a file, with the folders above it.
    pub(super) fn place(&self, from: &Path, to: &str, mode: u32) -> Result<(), String> {
        let to = self.path(to)?;
        fs::copy(from, &to).map_err(|error| at(from, &error))?;
        fs::set_permissions(&to, fs::Permissions::from_mode(mode)).map_err(|error| at(&to, &error))
    }

    /// Copies a file, which is compressed there.
    pub(super) fn place_packed(&self, from: &Path, to: &str) -> Result<(), String> {
        self.place(from, to, 0o644)?;
        run(Command::new("gzip").arg("-9n").arg(self.folder.path().join(to)))
    }

    /// Copies a program or a shared library without what only debuggers need; the package needs the C library that it needs.
    pub(super) fn place_linked(&mut self, from: &Path, to: &str, mode: u32) -> Result<(), String> {
        self.libc = Some(needed_libc(from)?);
        self.place_stripped(from, to, mode)
    }

    /// Copies what a compiler has made without what only debuggers need.
    pub(super) fn place_stripped(&self, from: &Path, to: &str, mode: u32) -> Result<(), String> {
        self.place(from, to, mode)?;
        run(Command::new("strip")
            .args(["--strip-debug", "--enable-deterministic-archives"])
            .arg(self.folder.path().join(to)))
    }

    pub(super) fn write(&self, to: &str, text: &str) -> Result<(), String> {
        let to = self.path(to)?;
        fs::write(&to, text).map_err(|error| at(&to, &error))
    }

    pub(super) fn link(&self, from: &str, to: &str) -> Result<(), String> {
        let from = self.path(from)?;
        symlink(to, &from).map_err(|error| at(&from, &error))
    }

    /// Packs it into `out`; the package.
    pub(super) fn pack(self, about: &About, architecture: &str, out: &Path) -> Result<PathBuf, String> {
        let root = self.folder.path();
        let libc = self.libc.as_deref();
        self.write("DEBIAN/control", &control(&self.name, about, architecture, libc, installed_kib(root)?))?;
        fs::create_dir_all(out).map_err(|error| at(out, &error))?;
        let package = out.join(format!("{}_{}_{architecture}.deb", self.name, env!("CARGO_PKG_VERSION")));
        run(Command::new("dpkg-deb").args(["--root-owner-group", "-Zxz", "--build"]).arg(root).arg(&package))?;
        Ok(package)
    }

    /// Where a file goes, whose folder is made.
    fn path(&self, file: &str) -> Result<PathBuf, String> {
        let file = self.folder.path().join(file);
        make_folder_of(&file)?;
        Ok(file)
    }
}

/// What the package says of itself.
fn control(name: &str, about: &About, architecture: &str, libc: Option<&str>, installed_kib: u64) -> String {
    let About { section, more, depends, description: [line, text] } = about;
    let libc = libc.map(|version| format!("libc6 (>= {version}), ")).unwrap_or_default();
    let source = if name == "sealane" { "" } else { "Source: sealane\n" };
    format!(
        "Package: {name}\n\
         {source}\
         Version: {version}\n\
         Architecture: {architecture}\n\
         Maintainer: The Sealane developers <sealane@localhost>\n\
         Installed-Size: {installed_kib}\n\
         Depends: {libc}{depends}\n\
         {more}\
         Section: {section}\n\
         Priority: optional\n\
         Description: {line}\n {text}\n",
        version = env!("CARGO_PKG_VERSION"),
        text = text.replace('\n', "\n "),
    )
}

/// The newest version of the C library that a program or library needs a symbol of.
fn needed_libc(linked: &Path) -> Result<String, String> {
    let symbols = output(Command::new("objdump").arg("-T").arg(linked))?;
    newest_glibc(&symbols).ok_or_else(|| format!("{}: not linked for Linux with glibc", linked.display()))
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
    fn a_package_says_of_itself_what_dpkg_reads() {
        let about = About {
            section: "libs",
            more: "Multi-Arch: same\n".into(),
            depends: "libgcc-s1".into(),
            description: ["a line", "One line,\nand another."],
        };
        let said = control("libsealane-c1", &about, "amd64", Some("2.34"), 7);
        let fields: Vec<&str> = said.lines().filter(|line| !line.starts_with("Version: ")).collect();
        assert_eq!(
            fields,
            [
                "Package: libsealane-c1",
                "Source: sealane",
                "Architecture: amd64",
                "Maintainer: The Sealane developers <sealane@localhost>",
                "Installed-Size: 7",
                "Depends: libc6 (>= 2.34), libgcc-s1",
                "Multi-Arch: same",
                "Section: libs",
                "Priority: optional",
                "Description: a line",
                " One line,",
                " and another.",
            ]
        );
        assert!(said.ends_with(".\n"));
        let alone = control("sealane", &about, "amd64", None, 7);
        assert!(
            alone.starts_with("Package: sealane\nVersion: ") && alone.contains("\nDepends: libgcc-s1\n"),
            "{alone}"
        );
    }
}
