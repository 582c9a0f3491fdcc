//! The Debian packages: the program with its service, the shared library of the C interface, and what programs are compiled with.
//! What is in them lies in `deploy/` and `capi/`; what says which versions of libraries they need is read from what is packed.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::pages;
use super::tree::{About, Tree};
use crate::command::output;

/// Where each file of `deploy/` goes, and its mode.
const FILES: [(&str, &str, u32); 7] = [
    ("systemd/sealane.service", "usr/lib/systemd/system/sealane.service", 0o644),
    ("systemd/sealane.sysusers", "usr/lib/sysusers.d/sealane.conf", 0o644),
    ("etc/sealane.toml", "etc/sealane/sealane.toml", 0o644),
    ("slurm/prolog.sh", "usr/share/doc/sealane/examples/slurm/prolog.sh", 0o644),
    ("slurm/epilog.sh", "usr/share/doc/sealane/examples/slurm/epilog.sh", 0o644),
    ("kubernetes/daemonset.yaml", "usr/share/doc/sealane/examples/kubernetes/daemonset.yaml", 0o644),
    ("kubernetes/job.yaml", "usr/share/doc/sealane/examples/kubernetes/job.yaml", 0o644),
];

/// What is done when the package of the program comes and goes.
const SCRIPTS: [&str; 3] = ["postinst", "prerm", "postrm"];

/// Files that an administrator may change, and that stay as they were changed.
const CONFFILES: &str = "/etc/sealane/sealane.toml\n";

/// The shared library, as the linker knows it.
pub(super) const SHARED: &str = "libsealane_c.so";
/// The static library.
pub(super) const ARCHIVE: &str = "libsealane_c.a";
/// The package of what programs are compiled with.
const DEVELOPMENT: &str = "libsealane-c-dev";

/// What is packed of what cargo has built.
pub(super) struct Built {
    pub(super) program: PathBuf,
    pub(super) shared: PathBuf,
    pub(super) archive: PathBuf,
}

/// Packs what is built with what lies in the workspace; the packages.
///
/// # Errors
/// What could not be read, made or run, in a sentence.
pub(super) fn pack(built: &Built, workspace: &Path, out: &Path) -> Result<Vec<PathBuf>, String> {
    let architecture = said(Command::new("dpkg").arg("--print-architecture"))?;
    // Where the libraries of an architecture are, which may lie beside those of another.
    let libraries = format!("usr/lib/{}", said(Command::new("cc").arg("-print-multiarch"))?);
    let soname = soname(&built.shared)?;
    let library = library_package(&soname)?;
    let packages = [
        program(built, &workspace.join("deploy"))?,
        shared_library(built, workspace, &library, &soname, &libraries)?,
        development(built, workspace, &library, &libraries)?,
    ];
    packages.into_iter().map(|(tree, about)| tree.pack(&about, &architecture, out)).collect()
}

/// The program, its manual and completions, and the service.
fn program(built: &Built, deploy: &Path) -> Result<(Tree, About), String> {
    let mut tree = Tree::new("sealane", deploy)?;
    tree.place_linked(&built.program, "usr/bin/sealane", 0o755)?;
    for (from, to, mode) in FILES {
        tree.place(&deploy.join(from), to, mode)?;
    }
    place_pages(&tree)?;
    for script in SCRIPTS {
        tree.place(&deploy.join("debian").join(script), &format!("DEBIAN/{script}"), 0o755)?;
    }
    tree.write("DEBIAN/conffiles", CONFFILES)?;
    let about = About {
        section: "net",
        depends: "libgcc-s1, init-system-helpers, systemd | systemd-standalone-sysusers | adduser".into(),
        more: "Recommends: libibverbs1, ibverbs-providers\n".into(),
        description: [
            "tensor transport for parameter-server training",
            "One daemon a host carries the tensors of all training processes on it, over\n\
             shared memory, TCP and, where it was built with them, RDMA verbs. The program\n\
             has also what measures and checks it: see sealane(1).",
        ],
    };
    Ok((tree, about))
}

/// Manual pages and completions, where Debian has them.
fn place_pages(tree: &Tree) -> Result<(), String> {
    let made = tempfile::tempdir().map_err(|error| format!("no folder can be made for the manual: {error}"))?;
    let at = |path: &Path, error: &std::io::Error| format!("{}: {error}", path.display());
    pages::write(made.path()).map_err(|error| at(made.path(), &error))?;
    for (from, to) in [
        ("sealane.bash", "usr/share/bash-completion/completions/sealane"),
        ("_sealane", "usr/share/zsh/vendor-completions/_sealane"),
        ("sealane.fish", "usr/share/fish/vendor_completions.d/sealane.fish"),
    ] {
        tree.place(&made.path().join(from), to, 0o644)?;
    }
    let manual = made.path().join("man1");
    for page in fs::read_dir(&manual).map_err(|error| at(&manual, &error))? {
        let page = page.map_err(|error| at(&manual, &error))?;
        tree.place_packed(&page.path(), &format!("usr/share/man/man1/{}", page.file_name().display()))?;
    }
    Ok(())
}

/// The shared library, which programs find by the name that has the version of its interface.
fn shared_library(
    built: &Built,
    workspace: &Path,
    name: &str,
    soname: &str,
    libraries: &str,
) -> Result<(Tree, About), String> {
    let mut tree = Tree::new(name, &workspace.join("deploy"))?;
    let file = format!("{SHARED}.{}", env!("CARGO_PKG_VERSION"));
    tree.place_linked(&built.shared, &format!("{libraries}/{file}"), 0o644)?;
    tree.link(&format!("{libraries}/{soname}"), &file)?;
    tree.write("DEBIAN/triggers", "activate-noawait ldconfig\n")?;
    // Which package, and from which release on, a package needs whose programs are linked with it.
    let (stem, version) = soname.split_once(".so.").expect("library_package has seen it");
    tree.write("DEBIAN/shlibs", &format!("{stem} {version} {name} (>= {})\n", env!("CARGO_PKG_VERSION")))?;
    let about = About {
        section: "libs",
        depends: "libgcc-s1".into(),
        more: "Multi-Arch: same\nSuggests: sealane\n".into(),
        description: [
            "tensor transport for parameter-server training: C library",
            "Programs that are linked with it attach to the host's daemon, which the\n\
             package sealane has, or start an engine of their own.",
        ],
    };
    Ok((tree, about))
}

/// What programs are compiled and linked with.
fn development(built: &Built, workspace: &Path, library: &str, libraries: &str) -> Result<(Tree, About), String> {
    let tree = Tree::new(DEVELOPMENT, &workspace.join("deploy"))?;
    let capi = workspace.join("capi");
    tree.place(&capi.join("include/sealane.h"), "usr/include/sealane.h", 0o644)?;
    tree.place(&capi.join("examples/ping.c"), &format!("usr/share/doc/{DEVELOPMENT}/examples/ping.c"), 0o644)?;
    tree.place_stripped(&built.archive, &format!("{libraries}/{ARCHIVE}"), 0o644)?;
    tree.link(&format!("{libraries}/{SHARED}"), &format!("{SHARED}.{}", env!("CARGO_PKG_VERSION")))?;
    let template = capi.join("sealane.pc.in");
    let template = fs::read_to_string(&template).map_err(|error| format!("{}: {error}", template.display()))?;
    tree.write(&format!("{libraries}/pkgconfig/sealane.pc"), &pkg_config(&template, libraries))?;
    let about = About {
        section: "libdevel",
        depends: format!("{library} (= {})", env!("CARGO_PKG_VERSION")),
        more: "Multi-Arch: same\nSuggests: pkgconf | pkg-config\n".into(),
        description: [
            "tensor transport for parameter-server training: C header",
            "The header, the static library, and what pkg-config needs to compile programs\n\
             in C and C++ that send and receive tensors.",
        ],
    };
    Ok((tree, about))
}

/// What pkg-config reads, of an installation into `/usr`.
fn pkg_config(template: &str, libraries: &str) -> String {
    let filled = template.replace("@PREFIX@", "/usr").replace("@LIBDIR@", &format!("/{libraries}"));
    filled.replace("@VERSION@", env!("CARGO_PKG_VERSION"))
}

/// The name that programs ask for at run time: `libsealane_c.so.1`.
fn soname(shared: &Path) -> Result<String, String> {
    let headers = output(Command::new("objdump").arg("-p").arg(shared))?;
    let name = headers.lines().find_map(|line| line.trim().strip_prefix("SONAME"));
    name.map(|name| name.trim().to_owned()).ok_or_else(|| format!("{}: it has no SONAME", shared.display()))
}

/// The package of a shared library, named after it as Debian's are: `libsealane-c1` of `libsealane_c.so.1`.
fn library_package(soname: &str) -> Result<String, String> {
    let (stem, version) = soname.split_once(".so.").ok_or_else(|| format!("the SONAME {soname} has no version"))?;
    Ok(format!("{}{version}", stem.replace('_', "-")))
}

fn said(command: &mut Command) -> Result<String, String> {
    output(command).map(|text| text.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::build::workspace;

    #[test]
    fn the_changelog_is_of_this_version() {
        let changelog = include_str!("../../../deploy/debian/changelog");
        let begin = format!("sealane ({}) ", env!("CARGO_PKG_VERSION"));
        assert!(changelog.starts_with(&begin), "{changelog}");
    }

    #[test]
    fn what_is_packed_is_there() {
        let deploy = workspace().join("deploy");
        for file in FILES.map(|(from, ..)| from.to_owned()).into_iter().chain(SCRIPTS.map(|s| format!("debian/{s}"))) {
            assert!(deploy.join(&file).is_file(), "{file}");
        }
    }

    #[test]
    fn the_package_of_the_library_has_its_interface_s_version() {
        assert_eq!(library_package("libsealane_c.so.1").as_deref(), Ok("libsealane-c1"));
        assert!(library_package("libsealane_c.so").unwrap_err().contains("no version"));
    }

    #[test]
    fn what_pkg_config_reads_is_filled_in() {
        let template = fs::read_to_string(workspace().join("capi/sealane.pc.in")).unwrap();
        let filled = pkg_config(&template, "usr/lib/x86_64-linux-gnu");
        assert!(
            filled.contains("prefix=/usr\nlibdir=/usr/lib/x86_64-linux-gnu\n") && !filled.contains('@'),
            "{filled}"
        );
    }
}
