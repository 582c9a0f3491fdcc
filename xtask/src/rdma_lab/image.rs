//! What is in the guest: busybox, verbs' libraries and tools, the kernel's modules, the programs to run, and every library
//! that one of them names.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;

use super::guest::{Job, script_path};
use super::kernel::Kernel;
use crate::command::run;

/// Where the guest's programs look for libraries, and where Debian keeps them.
const LIBRARIES: &str = "/usr/lib/x86_64-linux-gnu";

/// Loaded by name at run time, or by a panic: `ldd` does not list them.
const LOADED_LATER: &[&str] = &["libgcc_s.so.1", "libibverbs.so.1", "librdmacm.so.1"];

/// This machine's programs that the guest has too.
const TOOLS: &[&str] = &[
    "/usr/bin/ib_read_bw",
    "/usr/bin/ib_read_lat",
    "/usr/bin/ib_send_bw",
    "/usr/bin/ib_send_lat",
    "/usr/bin/ib_write_bw",
    "/usr/bin/ib_write_lat",
    "/usr/bin/ibv_devices",
    "/usr/bin/ibv_devinfo",
    "/usr/bin/ibv_rc_pingpong",
    "/bin/ip",
    "/usr/bin/rdma",
];

/// Scripts of the lab's own, by name.
const SCRIPTS: &[(&str, &str)] = &[("listening", LISTENING), ("pair", PAIR)];

/// `listening PORT` ends when somebody listens on that TCP port. A listener is no event that a shell can wait for.
const LISTENING: &str = r#"#!/bin/sh
port=$(printf %04X "$1")
until grep -qE ":$port [0-9A-F]+:0000 0A" /proc/net/tcp /proc/net/tcp6; do usleep 20000; done
"#;

/// `pair PROGRAM ARGUMENT...` runs one of perftest's programs as server and as client, and prints what the client does.
const PAIR: &str = r#"#!/bin/sh
"$@" -p 18515 >/tmp/pair.log 2>&1 &
server=$!
listening 18515
"$@" -p 18515 10.9.0.1 && wait $server && exit
code=$?
echo "the server said:"
cat /tmp/pair.log
exit $code
"#;

/// A file of this machine and its name in the guest's `/bin`.
pub(crate) struct Program {
    pub(crate) name: String,
    pub(crate) path: PathBuf,
}

/// Packs the current folder as the kernel reads it, whoever owns its files.
const PACK: &str = "set -e; find . -mindepth 1 -print0 | sort -z | cpio --quiet --null --create --format=newc --owner=+0:+0 --file=\"$0\"";

/// Writes the guest's file system to `path`, with `init` as its first program.
pub(crate) fn write(
    path: &Path,
    init: &str,
    kernel: &Kernel,
    programs: &[Program],
    jobs: &[Job],
) -> Result<(), String> {
    let folder = path.parent().unwrap_or(Path::new("."));
    let tree = TempDir::new_in(folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    let image = Image { root: tree.path().to_owned() };
    for program in programs {
        image.program(&program.name, &program.path)?;
    }
    image.program("busybox", Path::new("/bin/busybox"))?;
    // Not busybox as the shell: it prefers its own commands to the programs of their names.
    image.program("sh", Path::new("/bin/dash"))?;
    for tool in TOOLS {
        image.program(tool.rsplit('/').next().unwrap_or(tool), Path::new(tool))?;
    }
    for name in LOADED_LATER {
        image.library(name, &Path::new(LIBRARIES).join(name))?;
    }
    image.provider()?;
    for module in &kernel.modules {
        let name = module.file_name().unwrap_or_default().to_string_lossy();
        image.copy(&format!("/modules/{name}"), module)?;
    }
    image.text("/init", 0o755, init)?;
    for (number, job) in jobs.iter().enumerate() {
        image.text(&script_path(number), 0o644, &job.script)?;
    }
    for (name, script) in SCRIPTS {
        image.text(&format!("/bin/{name}"), 0o755, script)?;
    }
    image.text("/etc/passwd", 0o644, "root:x:0:0:root:/tmp:/bin/sh\n")?;
    image.text("/etc/group", 0o644, "root:x:0:\n")?;
    image.text("/etc/hosts", 0o644, "127.0.0.1 localhost\n10.9.0.1 lab\n")?;
    image.text("/etc/nsswitch.conf", 0o644, "hosts: files\n")?;
    for folder in ["proc", "sys", "dev", "tmp", "run", "var", "root"] {
        fs::create_dir_all(image.root.join(folder)).map_err(|error| format!("the guest's /{folder}: {error}"))?;
    }
    run(Command::new("sh").args(["-c", PACK]).arg(path).current_dir(&image.root))
}

/// The guest's files, in a folder of this machine.
struct Image {
    root: PathBuf,
}

impl Image {
    fn text(&self, path: &str, mode: u32, text: &str) -> Result<(), String> {
        self.file(path, mode, text.as_bytes())
    }

    fn copy(&self, path: &str, from: &Path) -> Result<(), String> {
        let contents = fs::read(from).map_err(|error| format!("{}: {error}", from.display()))?;
        self.file(path, 0o755, &contents)
    }

    /// Writes a file of the guest's, unless it has it.
    fn file(&self, path: &str, mode: u32, contents: &[u8]) -> Result<(), String> {
        let place = self.place(path);
        if place.exists() {
            return Ok(());
        }
        let made = fs::create_dir_all(place.parent().unwrap_or(&self.root)).and_then(|()| fs::write(&place, contents));
        made.and_then(|()| fs::set_permissions(&place, fs::Permissions::from_mode(mode)))
            .map_err(|error| format!("the guest's {path}: {error}"))
    }

    fn place(&self, path: &str) -> PathBuf {
        self.root.join(path.trim_start_matches('/'))
    }

    /// A program and the libraries that it names; a file of another kind is copied as it is.
    fn program(&self, name: &str, from: &Path) -> Result<(), String> {
        self.copy(&format!("/bin/{name}"), from)?;
        self.libraries_of(from)
    }

    fn library(&self, name: &str, from: &Path) -> Result<(), String> {
        let path = format!("{LIBRARIES}/{name}");
        if self.place(&path).exists() {
            return Ok(());
        }
        self.copy(&path, from)?;
        self.libraries_of(from)
    }

    fn libraries_of(&self, file: &Path) -> Result<(), String> {
        for needed in named_by_ldd(file)? {
            match needed {
                // All lie in one folder of the guest, where they are looked for last but always.
                Library::Named(name, path) => self.copy(&format!("{LIBRARIES}/{name}"), Path::new(&path))?,
                Library::Loader(path) => self.copy(&path, Path::new(&path))?,
            }
        }
        Ok(())
    }

    /// Soft-RoCE's half in user space, which libibverbs finds by name.
    fn provider(&self) -> Result<(), String> {
        let folder = format!("{LIBRARIES}/libibverbs");
        let entries = fs::read_dir(&folder).map_err(|error| format!("{folder}: {error}"))?;
        for entry in entries.flatten() {
            let name = entry.file_name().to_string_lossy().into_owned();
            if name.starts_with("librxe") {
                self.copy(&format!("{folder}/{name}"), &entry.path())?;
                self.libraries_of(&entry.path())?;
            }
        }
        self.text("/etc/libibverbs.d/rxe.driver", 0o644, "driver rxe\n")
    }
}

/// A library as `ldd` names it.
#[derive(Debug, PartialEq)]
enum Library {
    /// Its name, and where this machine has it.
    Named(String, String),
    /// The dynamic loader, which a program names by its path.
    Loader(String),
}

fn named_by_ldd(file: &Path) -> Result<Vec<Library>, String> {
    // It fails for what is not a dynamic program, and such a file needs nothing.
    let said = Command::new("ldd").arg(file).output().map_err(|error| format!("cannot run ldd: {error}"))?;
    if !said.status.success() {
        return Ok(Vec::new());
    }
    libraries(&String::from_utf8_lossy(&said.stdout)).map_err(|error| format!("{}: {error}", file.display()))
}

/// What `ldd` printed, without the kernel's own `linux-vdso`.
fn libraries(said: &str) -> Result<Vec<Library>, String> {
    let mut found = Vec::new();
    for line in said.lines() {
        // Each ends with the address where it would be loaded.
        let line = line.rsplit_once(" (0x").map_or(line, |(line, _)| line).trim();
        match line.split_once(" => ") {
            Some((name, "not found")) => return Err(format!("this machine has not its library {name}")),
            Some((name, _)) if name.starts_with('/') => found.push(Library::Loader(name.to_string())),
            Some((name, path)) => found.push(Library::Named(name.to_string(), path.to_string())),
            None if line.starts_with('/') => found.push(Library::Loader(line.to_string())),
            None => {}
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ldd_names_libraries_and_the_loader() {
        let said = "\tlinux-vdso.so.1 (0x00007ff2944be000)\n\
                    \tlibm.so.6 => /lib/x86_64-linux-gnu/libm.so.6 (0x00007ff294383000)\n\
                    \t/lib64/ld-linux-x86-64.so.2 (0x00007ff2944c0000)\n";
        let expected = [
            Library::Named("libm.so.6".to_string(), "/lib/x86_64-linux-gnu/libm.so.6".to_string()),
            Library::Loader("/lib64/ld-linux-x86-64.so.2".to_string()),
        ];
        assert_eq!(libraries(said).unwrap(), expected);
        assert_eq!(libraries("\tstatically linked\n").unwrap(), []);
    }

    #[test]
    fn the_first_file_of_a_path_stays_and_folders_are_made() {
        let root = TempDir::new().unwrap();
        let image = Image { root: root.path().to_owned() };
        image.text("/etc/lab/one", 0o640, "first").unwrap();
        image.text("/etc/lab/one", 0o755, "second").unwrap();
        let one = root.path().join("etc/lab/one");
        assert_eq!(fs::read_to_string(&one).unwrap(), "first");
        assert_eq!(fs::metadata(one).unwrap().permissions().mode() & 0o777, 0o640);
    }

    #[test]
    fn a_library_that_is_missing_is_named() {
        let error = libraries("\tlibpci.so.3 => not found\n").unwrap_err();
        assert!(error.contains("libpci.so.3"), "{error}");
    }

    #[test]
    fn a_text_file_needs_no_libraries() {
        assert_eq!(named_by_ldd(Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml"))).unwrap(), []);
    }
}
