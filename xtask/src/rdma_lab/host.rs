//! What this machine must have for the lab: Debian packages, and the folder where the lab keeps its files.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::build::workspace;
use crate::command::{output, run};

/// The emulator, what goes into the guest, and what building with the feature `verbs` needs.
const PACKAGES: &[&str] = &[
    "busybox-static",
    "cmake",
    "cpio",
    "gcc",
    "ibverbs-providers",
    "ibverbs-utils",
    "iproute2",
    "kmod",
    "libc6-dev",
    "libclang-dev",
    "librdmacm1",
    "make",
    "perftest",
    "qemu-system-x86",
    "util-linux",
];

/// The lab's own folder, made if there is none, without what runs that were killed left there.
pub(crate) fn lab_folder() -> Result<PathBuf, String> {
    let folder = workspace().join("target/rdma-lab");
    let entries = fs::create_dir_all(&folder).and_then(|()| fs::read_dir(&folder));
    let entries = entries.map_err(|error| format!("cannot make {}: {error}", folder.display()))?;
    for entry in entries.flatten() {
        let owner = entry.file_name().to_str().and_then(owner);
        if owner.is_some_and(|owner| !Path::new("/proc").join(owner.to_string()).exists()) {
            let _ = fs::remove_dir_all(entry.path());
        }
    }
    Ok(folder)
}

/// What a run keeps while it works, named after its process.
pub(crate) fn work_folder(lab: &Path, what: &str) -> PathBuf {
    lab.join(format!("{what}{WORK}{}", std::process::id()))
}

/// Between the name and the process of a [`work_folder`].
const WORK: &str = ".of-";

/// The process that a folder is named after.
fn owner(folder: &str) -> Option<u32> {
    folder.rsplit_once(WORK)?.1.parse().ok()
}

/// Installs what is missing of [`PACKAGES`].
///
/// # Errors
/// Without `dpkg`, without root, or when `apt-get` fails: says what to install by hand.
pub(crate) fn install() -> Result<(), String> {
    let known = Command::new("dpkg-query")
        .args(["-W", "-f", "${Package} ${db:Status-Status}\n"])
        .args(PACKAGES)
        .stderr(Stdio::null())
        .output()
        .map_err(|error| format!("the lab is made of Debian's packages, and dpkg-query cannot be run: {error}"))?;
    let missing = missing(&String::from_utf8_lossy(&known.stdout), PACKAGES);
    if missing.is_empty() {
        return Ok(());
    }
    let wanted = missing.join(" ");
    if !is_root() {
        return Err(format!("packages are missing; install them as root: apt-get install {wanted}"));
    }
    eprintln!("installing {wanted}");
    update()?;
    let mut install = apt_get();
    install.args(["install", "-y", "-q", "--no-install-recommends"]).args(&missing);
    run(&mut install).map_err(|error| format!("{error}\nthe lab needs: {wanted}"))
}

/// For how long `apt-get` waits for another one to end.
const LOCK_WITHIN: &str = "DPkg::Lock::Timeout=300";

/// Fetches the lists of packages anew.
pub(crate) fn update() -> Result<(), String> {
    run(apt_get().args(["update", "-q"]))
}

pub(crate) fn is_root() -> bool {
    output(Command::new("id").arg("-u")).is_ok_and(|id| id.trim() == "0")
}

fn apt_get() -> Command {
    let mut apt = Command::new("apt-get");
    apt.env("DEBIAN_FRONTEND", "noninteractive").args(["-o", LOCK_WITHIN]);
    apt
}

/// The packages that a listing of `name state` lines does not call installed.
fn missing<'a>(listing: &str, wanted: &[&'a str]) -> Vec<&'a str> {
    let is_installed = |package: &&str| listing.lines().any(|line| line == format!("{package} installed"));
    wanted.iter().filter(|package| !is_installed(package)).copied().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_tells_whose_it_is() {
        let folder = work_folder(Path::new("/lab"), "boot");
        assert_eq!(owner(folder.file_name().unwrap().to_str().unwrap()), Some(std::process::id()));
        assert_eq!(owner("kernel-linux-image-6.1.0-56-amd64"), None);
        assert_eq!(owner("kernel.log"), None);
    }

    #[test]
    fn a_package_half_installed_is_missing() {
        let listing = "cmake installed\nkmod not-installed\nperftest config-files\n";
        assert_eq!(missing(listing, &["cmake", "kmod", "perftest", "make"]), ["kmod", "perftest", "make"]);
    }
}
