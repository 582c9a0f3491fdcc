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

/// Copies files, with the libraries that they name.
const COPY: &str = include_str!("image.sh");

/// This machine's programs that the guest has too.
const TOOLS: &[&str] = &[
    "/bin/busybox",
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
    let root = tree.path();
    copy(root, &files(kernel, programs)?)?;
    for folder in ["proc", "sys", "dev", "tmp", "run", "var", "root", "lab", "etc/libibverbs.d"] {
        fs::create_dir_all(root.join(folder)).map_err(|error| format!("the guest's /{folder}: {error}"))?;
    }
    text(root, "/init", 0o755, init)?;
    for (number, job) in jobs.iter().enumerate() {
        text(root, &script_path(number), 0o644, &job.script)?;
    }
    for (name, script) in SCRIPTS {
        text(root, &format!("/bin/{name}"), 0o755, script)?;
    }
    text(root, "/etc/libibverbs.d/rxe.driver", 0o644, "driver rxe\n")?;
    text(root, "/etc/passwd", 0o644, "root:x:0:0:root:/tmp:/bin/sh\n")?;
    text(root, "/etc/group", 0o644, "root:x:0:\n")?;
    text(root, "/etc/hosts", 0o644, "127.0.0.1 localhost\n10.9.0.1 lab\n")?;
    text(root, "/etc/nsswitch.conf", 0o644, "hosts: files\n")?;
    run(Command::new("sh").args(["-c", PACK]).arg(path).current_dir(root))
}

/// Places in the guest, and the files of this machine that go there.
fn files(kernel: &Kernel, programs: &[Program]) -> Result<Vec<(String, PathBuf)>, String> {
    let name = |path: &Path| path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let mut files: Vec<(String, PathBuf)> = Vec::new();
    files.extend(programs.iter().map(|program| (format!("bin/{}", program.name), program.path.clone())));
    // Not busybox as the shell: it prefers its own commands to the programs of their names.
    files.push(("bin/sh".to_owned(), "/bin/dash".into()));
    files.extend(TOOLS.iter().map(Path::new).map(|tool| (format!("bin/{}", name(tool)), tool.to_owned())));
    files.extend(LOADED_LATER.iter().map(|name| (format!(".{LIBRARIES}/{name}"), Path::new(LIBRARIES).join(name))));
    files.extend(kernel.modules.iter().map(|module| (format!("modules/{}", name(module)), module.clone())));
    // Soft-RoCE's half in user space, which libibverbs finds by name.
    let folder = format!("{LIBRARIES}/libibverbs");
    let providers = fs::read_dir(&folder).map_err(|error| format!("{folder}: {error}"))?;
    let providers = providers.flatten().map(|entry| entry.path()).filter(|path| name(path).starts_with("librxe"));
    files.extend(providers.map(|path| (format!(".{}", path.display()), path)));
    Ok(files)
}

fn copy(root: &Path, files: &[(String, PathBuf)]) -> Result<(), String> {
    let mut copy = Command::new("sh");
    copy.args(["-c", COPY, "image.sh", LIBRARIES]).current_dir(root);
    files.iter().for_each(|(place, path)| {
        copy.arg(place).arg(path);
    });
    run(&mut copy)
}

fn text(root: &Path, path: &str, mode: u32, text: &str) -> Result<(), String> {
    let place = root.join(path.trim_start_matches('/'));
    fs::write(&place, text)
        .and_then(|()| fs::set_permissions(&place, fs::Permissions::from_mode(mode)))
        .map_err(|error| format!("the guest's {path}: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_comes_with_its_libraries_and_a_text_as_it_is() {
        let root = TempDir::new().unwrap();
        let at = |path: &str| root.path().join(path.trim_start_matches('/'));
        let manifest = PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml"));
        let this = std::env::current_exe().unwrap();
        let file = |place: &str, path: &Path| (place.to_owned(), path.to_owned());
        copy(root.path(), &[file("bin/this", &this), file("lab/text", &manifest), file("bin/this", &manifest)])
            .unwrap();
        assert_eq!(fs::read(at("lab/text")).unwrap(), fs::read(&manifest).unwrap());
        assert_eq!(fs::metadata(at("bin/this")).unwrap().len(), fs::metadata(this).unwrap().len(), "the first stays");
        assert!(at(&format!("{LIBRARIES}/libc.so.6")).is_file());
        let loaders = ["lib", "lib64"].map(|folder| fs::read_dir(at(folder)).into_iter().flatten().count());
        assert_eq!(loaders.iter().sum::<usize>(), 1, "the loader");
    }

    #[test]
    fn a_file_that_is_missing_is_named() {
        let root = TempDir::new().unwrap();
        let error = copy(root.path(), &[("bin/none".to_owned(), "/no/such/program".into())]).unwrap_err();
        assert!(error.contains("/no/such/program"), "{error}");
    }
}
