//! The guest's kernel: Debian's own, downloaded once and not installed, and of its modules those that Soft-RoCE needs.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::host;
use crate::command::{output, run};

/// The package that depends on the current kernel's.
const KERNEL: &str = "linux-image-amd64";

/// What the guest loads, beside what these depend on. Soft-RoCE computes its checksums with `crc32`, whose driver it does
/// not name as a dependency.
const MODULES: &[&str] = &["crc32_generic", "virtio_pci", "virtio_net", "rdma_rxe", "ib_uverbs", "rdma_ucm"];

/// The file that lists a kept kernel's modules, first line [`MODULES`]: written last, so a folder with it is whole.
const LIST: &str = "modules";

/// A kernel and its modules.
pub(crate) struct Kernel {
    pub(crate) image: PathBuf,
    /// In the order in which they can be loaded.
    pub(crate) modules: Vec<PathBuf>,
}

/// The kernel from the lab's folder, downloaded if it is not there.
pub(crate) fn fetch(lab: &Path) -> Result<Kernel, String> {
    let package = package()?;
    let folder = lab.join(format!("kernel-{package}"));
    if let Some(kernel) = kept(&folder) {
        return Ok(kernel);
    }
    eprintln!("downloading {package}");
    let work = host::work_folder(lab, "download");
    let done = unpack(&package, &work).and_then(|ready| {
        let _ = fs::remove_dir_all(&folder);
        // Another run may have put the same kernel there meanwhile: what is looked at below decides.
        let _ = fs::rename(ready, &folder);
        kept(&folder).ok_or_else(|| format!("{} holds no kernel", folder.display()))
    });
    let _ = fs::remove_dir_all(&work);
    done
}

fn kept(folder: &Path) -> Option<Kernel> {
    let list = fs::read_to_string(folder.join(LIST)).ok()?;
    let mut lines = list.lines();
    (lines.next() == Some(&MODULES.join(" ")))
        .then(|| Kernel { image: folder.join("vmlinuz"), modules: lines.map(|name| folder.join(name)).collect() })
}

fn package() -> Result<String, String> {
    let ask = || output(Command::new("apt-cache").args(["depends", KERNEL])).unwrap_or_default();
    if let Some(package) = dependency(&ask()) {
        return Ok(package);
    }
    if host::is_root() {
        host::update()?;
    }
    dependency(&ask()).ok_or_else(|| {
        format!("apt knows no kernel package for {KERNEL}: run apt-get update as root (the lab boots Debian's kernel)")
    })
}

/// The kernel's package in what `apt-cache depends` prints.
fn dependency(listing: &str) -> Option<String> {
    let mut names = listing.lines().filter_map(|line| line.trim().strip_prefix("Depends: "));
    names.find(|name| name.starts_with("linux-image-")).map(str::to_string)
}

/// Downloads the package into `work` and gives the folder there with what the lab keeps of it.
fn unpack(package: &str, work: &Path) -> Result<PathBuf, String> {
    let in_work = |error: std::io::Error| format!("{}: {error}", work.display());
    let (root, keep) = (work.join("root"), work.join("keep"));
    fs::create_dir_all(&root).and_then(|()| fs::create_dir_all(&keep)).map_err(in_work)?;
    run(Command::new("apt-get").args(["download", "-q", package]).current_dir(work))?;
    let archive = find(work, |name| name.ends_with(".deb"))?;
    run(Command::new("dpkg").arg("-x").arg(archive).arg(&root))?;
    if !root.join("lib").exists() {
        symlink("usr/lib", root.join("lib")).map_err(in_work)?;
    }
    let tree = find(&root.join("lib/modules"), |_| true)?;
    let release = tree.file_name().unwrap_or_default();
    run(Command::new("depmod").arg("-b").arg(&root).arg(release))?;

    let mut list = MODULES.join(" ");
    for path in load_order(&root, release)? {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        fs::copy(&path, keep.join(&*name)).map_err(in_work)?;
        list = list + "\n" + &name;
    }
    let image = find(&root.join("boot"), |name| name.starts_with("vmlinuz"))?;
    fs::copy(image, keep.join("vmlinuz")).map_err(in_work)?;
    fs::write(keep.join(LIST), list).map_err(in_work)?;
    Ok(keep)
}

/// The one entry of a folder whose name is as wanted.
fn find(folder: &Path, wanted: impl Fn(&str) -> bool) -> Result<PathBuf, String> {
    let entries = fs::read_dir(folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    entries
        .flatten()
        .find(|entry| wanted(&entry.file_name().to_string_lossy()))
        .map(|entry| entry.path())
        .ok_or_else(|| format!("the kernel's package has not the expected file in {}", folder.display()))
}

/// The modules' paths in an order in which each comes after those that it depends on, each once.
fn load_order(root: &Path, release: &OsStr) -> Result<Vec<PathBuf>, String> {
    let mut order = Vec::new();
    for module in MODULES {
        // Without what this machine wants of modules of that name.
        let mut modprobe = Command::new("modprobe");
        modprobe.args(["--config", "/dev/null", "--dirname"]).arg(root).arg("--set-version").arg(release);
        for path in loaded(&output(modprobe.args(["--show-depends", module]))?) {
            if !order.contains(&path) {
                order.push(path);
            }
        }
    }
    Ok(order)
}

/// What `modprobe` says that it would load. What is built in needs no loading.
fn loaded(said: &str) -> impl Iterator<Item = PathBuf> {
    said.lines().filter_map(|line| line.strip_prefix("insmod ")).map(|path| path.trim().into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_is_what_the_current_one_depends_on() {
        let listing = "linux-image-amd64\n  Depends: linux-image-6.1.0-56-amd64\n  Conflicts: other\n";
        assert_eq!(dependency(listing).as_deref(), Some("linux-image-6.1.0-56-amd64"));
        assert_eq!(dependency("linux-image-amd64\n"), None);
    }

    #[test]
    fn modules_are_loaded_as_modprobe_says() {
        let said = "builtin virtio\ninsmod /k/udp_tunnel.ko \ninsmod /k/rdma_rxe.ko.xz \n";
        assert_eq!(loaded(said).collect::<Vec<_>>(), ["/k/udp_tunnel.ko", "/k/rdma_rxe.ko.xz"].map(PathBuf::from));
    }

    #[test]
    fn modules_of_another_choice_are_not_kept() {
        let folder = std::env::temp_dir().join(format!("sealane-kernel-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        assert!(kept(&folder).is_none());
        fs::write(folder.join(LIST), MODULES.join(" ") + "\nrxe.ko").unwrap();
        assert_eq!(kept(&folder).unwrap().modules, [folder.join("rxe.ko")]);
        fs::write(folder.join(LIST), "other\nrxe.ko").unwrap();
        assert!(kept(&folder).is_none());
        fs::remove_dir_all(&folder).unwrap();
    }
}
