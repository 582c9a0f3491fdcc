//! Claims on CPUs, so that several runtimes on a host pin their shards to different ones: one locked file per CPU.
//!
//! The lock is the kernel's (`flock`) and ends with the process; a leftover file means nothing. Its contents only tell people
//! who holds the CPU. A process can give another one a duplicate of its descriptor: the claim then lasts until both have
//! closed it.

use std::{
    fs::{self, DirBuilder, File, OpenOptions, Permissions, TryLockError},
    io,
    os::{
        fd::OwnedFd,
        unix::fs::{DirBuilderExt, FileExt, MetadataExt, OpenOptionsExt, PermissionsExt},
    },
    path::{Path, PathBuf},
};

use super::{allowed::allowed_cpus, list::parse_list};
use crate::error::RuntimeError;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wanted<'a> {
    /// This many, whichever are free.
    Any(usize),
    These(&'a [usize]),
}

/// A CPU that no other runtime of the host will pin to while this exists.
#[derive(Debug)]
pub struct CpuClaim {
    cpu: usize,
    file: File,
}

impl CpuClaim {
    pub fn cpu(&self) -> usize {
        self.cpu
    }

    /// A descriptor by which another process can [share](Self::share) the claim.
    ///
    /// # Errors
    /// [`RuntimeError::System`] where no descriptor is left.
    pub fn duplicate(&self) -> Result<OwnedFd, RuntimeError> {
        let failed = |source| RuntimeError::System { operation: "duplicating the lock of a CPU", source };
        self.file.try_clone().map(OwnedFd::from).map_err(failed)
    }

    /// Shares the claim of another process: `descriptor` is a [duplicate](Self::duplicate) of its lock. The file names the other
    /// process until [`take_over`](Self::take_over).
    ///
    /// # Errors
    /// [`RuntimeError::ClaimFile`] if the descriptor is not the lock file of that CPU in `directory`;
    /// [`RuntimeError::CpuClaimed`] if it is not the one that holds the lock.
    pub fn share(directory: &Path, cpu: usize, descriptor: OwnedFd) -> Result<CpuClaim, RuntimeError> {
        let path = lock_file(directory, cpu);
        let failed = |source| RuntimeError::ClaimFile { path: path.clone(), source };
        let file = File::from(descriptor);
        let (found, wanted) = (file.metadata().map_err(failed)?, fs::symlink_metadata(&path).map_err(failed)?);
        if (found.dev(), found.ino()) != (wanted.dev(), wanted.ino()) {
            return Err(failed(io::Error::other("another file was handed over in its place")));
        }
        // Locks the open file that already has the lock.
        lock(&file, cpu, &path)?;
        Ok(CpuClaim { cpu, file })
    }

    /// Writes this process into the file: it holds the claim alone now, or will soon.
    pub fn take_over(&self) {
        // Its contents only inform people, so a failure does not matter.
        let _ = sign(&self.file);
    }
}

impl Drop for CpuClaim {
    fn drop(&mut self) {
        // Only clears the name in the file; closing it ends the claim. A file that names another process is shared.
        if holder(&self.file) == Some(std::process::id()) {
            let _ = self.file.set_len(0);
        }
    }
}

/// Claims CPUs among those that this process may use, all or none: those in `held` first, then others. It takes one hardware thread
/// of every core before the second of any.
///
/// `directory` must be the same for all runtimes that are to avoid each other; it is created if missing.
///
/// # Errors
/// [`RuntimeError::TooFewCpus`], [`RuntimeError::CpuNotAllowed`], [`RuntimeError::CpuClaimed`] or
/// [`RuntimeError::ClaimFile`].
pub fn claim_cpus(
    directory: &Path,
    wanted: Wanted<'_>,
    mut held: Vec<CpuClaim>,
) -> Result<Vec<CpuClaim>, RuntimeError> {
    let allowed = allowed_cpus()?;
    prepare(directory)?;
    held.retain(|claim| allowed.contains(&claim.cpu));
    match wanted {
        Wanted::These(cpus) => cpus
            .iter()
            .map(|cpu| {
                if !allowed.contains(cpu) {
                    return Err(RuntimeError::CpuNotAllowed { cpu: *cpu, allowed: allowed.clone() });
                }
                match held.iter().position(|claim| claim.cpu == *cpu) {
                    Some(place) => Ok(held.swap_remove(place)),
                    None => claim(directory, *cpu),
                }
            })
            .collect(),
        Wanted::Any(count) => {
            let mut claims = held;
            claims.truncate(count);
            for cpu in cores_first(&allowed, siblings) {
                if claims.len() == count {
                    break;
                }
                match claim(directory, cpu) {
                    Ok(claim) => claims.push(claim),
                    // Another user's file counts as taken: that user may be running.
                    Err(RuntimeError::CpuClaimed { .. } | RuntimeError::ClaimFile { .. }) => {}
                    Err(error) => return Err(error),
                }
            }
            if claims.len() < count {
                let (free, allowed) = (claims.len(), allowed.len());
                return Err(RuntimeError::TooFewCpus { wanted: count, free, allowed });
            }
            Ok(claims)
        }
    }
}

/// The CPUs that are claimed in a directory, in order, each with the process that holds it where its file says so. Claims nothing:
/// a file that names no process counts as unclaimed, and any other is tried with a lock that is released at once. A runtime that
/// claims such a CPU at that moment finds it taken, which can only happen where another died without cleaning up.
///
/// # Errors
/// The directory or a lock file in it cannot be read. Where there is no directory, nothing is claimed.
pub fn claimed_cpus(directory: &Path) -> io::Result<Vec<(usize, Option<u32>)>> {
    let entries = match fs::read_dir(directory) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries?,
    };
    let mut claimed = Vec::new();
    for entry in entries {
        let name = entry?.file_name();
        let cpu = name.to_str().and_then(|name| name.strip_prefix("cpu-")?.strip_suffix(".lock")?.parse().ok());
        let Some(cpu) = cpu else { continue };
        // Opening a pipe could block.
        let flags = libc::O_NOFOLLOW | libc::O_NONBLOCK;
        let file = OpenOptions::new().read(true).custom_flags(flags).open(lock_file(directory, cpu))?;
        if file.metadata()?.len() == 0 {
            continue;
        }
        match file.try_lock_shared() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => claimed.push((cpu, holder(&file))),
            Err(TryLockError::Error(error)) => return Err(error),
        }
    }
    claimed.sort_unstable();
    Ok(claimed)
}

/// Makes the directory, open to every user and, like `/tmp`, with files that only their owner can remove.
fn prepare(directory: &Path) -> Result<(), RuntimeError> {
    let failed = |source| RuntimeError::ClaimFile { path: directory.into(), source };
    match fs::metadata(directory) {
        Ok(data) if data.is_dir() => Ok(()),
        Ok(_) => Err(failed(io::ErrorKind::NotADirectory.into())),
        Err(_) => {
            DirBuilder::new().recursive(true).mode(0o755).create(directory).map_err(failed)?;
            fs::set_permissions(directory, Permissions::from_mode(0o1777)).map_err(failed)
        }
    }
}

fn claim(directory: &Path, cpu: usize) -> Result<CpuClaim, RuntimeError> {
    let path = lock_file(directory, cpu);
    let failed = |source| RuntimeError::ClaimFile { path: path.clone(), source };
    let file = open(&path).map_err(failed)?;
    lock(&file, cpu, &path)?;
    sign(&file).map_err(failed)?;
    Ok(CpuClaim { cpu, file })
}

fn lock_file(directory: &Path, cpu: usize) -> PathBuf {
    directory.join(format!("cpu-{cpu}.lock"))
}

fn lock(file: &File, cpu: usize, path: &Path) -> Result<(), RuntimeError> {
    match file.try_lock() {
        Ok(()) => Ok(()),
        Err(TryLockError::WouldBlock) => {
            Err(RuntimeError::CpuClaimed { cpu, holder: holder(file), path: path.to_owned() })
        }
        Err(TryLockError::Error(source)) => Err(RuntimeError::ClaimFile { path: path.to_owned(), source }),
    }
}

fn sign(file: &File) -> io::Result<()> {
    file.set_len(0)?;
    file.write_all_at(format!("{}\n", std::process::id()).as_bytes(), 0)
}

/// Opens or makes a lock file, which any user may lock. In a shared directory a link could lead anywhere, so none
/// is followed.
fn open(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).custom_flags(libc::O_NOFOLLOW);
    match options.open(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        opened => return opened,
    }
    match options.create_new(true).mode(0o666).open(path) {
        Ok(file) => {
            // The process's umask removed bits.
            file.set_permissions(Permissions::from_mode(0o666))?;
            Ok(file)
        }
        // Another runtime was faster.
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            OpenOptions::new().read(true).write(true).custom_flags(libc::O_NOFOLLOW).open(path)
        }
        Err(error) => Err(error),
    }
}

fn holder(file: &File) -> Option<u32> {
    let mut text = [0; 32];
    let len = file.read_at(&mut text, 0).ok()?;
    std::str::from_utf8(&text[..len]).ok()?.trim().parse().ok()
}

/// The CPUs in the order in which to take them: the first hardware threads of all cores, then the second ones.
fn cores_first(cpus: &[usize], siblings: impl Fn(usize) -> Option<Vec<usize>>) -> Vec<usize> {
    let mut order: Vec<(usize, usize)> = cpus
        .iter()
        .map(|cpu| {
            let threads = siblings(*cpu).unwrap_or_default();
            (threads.iter().position(|thread| thread == cpu).unwrap_or(0), *cpu)
        })
        .collect();
    order.sort_unstable();
    order.into_iter().map(|(_, cpu)| cpu).collect()
}

/// The hardware threads of a CPU's core, itself included.
fn siblings(cpu: usize) -> Option<Vec<usize>> {
    let path = format!("/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list");
    parse_list(&fs::read_to_string(PathBuf::from(path)).ok()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn first_allowed() -> usize {
        allowed_cpus().unwrap()[0]
    }

    #[test]
    fn a_claimed_cpu_cannot_be_claimed_again_until_it_is_free() {
        let directory = tempfile::tempdir().unwrap();
        let (directory, cpu) = (directory.path().join("a/b"), first_allowed());
        let claims = claim_cpus(&directory, Wanted::These(&[cpu]), Vec::new()).unwrap();
        assert_eq!(claims[0].cpu(), cpu);
        let error = claim_cpus(&directory, Wanted::These(&[cpu]), Vec::new()).unwrap_err();
        let RuntimeError::CpuClaimed { cpu: claimed, holder, .. } = &error else {
            panic!("{error}");
        };
        assert_eq!((*claimed, *holder), (cpu, Some(std::process::id())));
        assert!(error.to_string().contains(&format!("process {}", std::process::id())));
        drop(claims);
        claim_cpus(&directory, Wanted::These(&[cpu]), Vec::new()).unwrap();
    }

    #[test]
    fn any_claims_all_or_none_and_never_the_same_twice() {
        let directory = tempfile::tempdir().unwrap();
        let allowed = allowed_cpus().unwrap().len();
        let first = claim_cpus(directory.path(), Wanted::Any(1), Vec::new()).unwrap();
        let error = claim_cpus(directory.path(), Wanted::Any(allowed), Vec::new()).unwrap_err();
        let RuntimeError::TooFewCpus { wanted, free, allowed: all } = error else { panic!("{error}") };
        assert_eq!((wanted, free, all), (allowed, allowed - 1, allowed));
        let rest = claim_cpus(directory.path(), Wanted::Any(allowed - 1), Vec::new()).unwrap();
        let mut cpus: Vec<_> = first.iter().chain(&rest).map(CpuClaim::cpu).collect();
        cpus.sort_unstable();
        assert_eq!(cpus, allowed_cpus().unwrap());
    }

    #[test]
    fn a_cpu_that_is_not_ours_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        let error = claim_cpus(directory.path(), Wanted::These(&[60_000]), Vec::new()).unwrap_err();
        assert!(matches!(error, RuntimeError::CpuNotAllowed { cpu: 60_000, .. }), "{error}");
    }

    #[test]
    fn a_directory_or_file_that_cannot_be_used_is_named() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("file");
        fs::write(&file, "").unwrap();
        let error = claim_cpus(&file, Wanted::Any(1), Vec::new()).unwrap_err();
        assert!(matches!(&error, RuntimeError::ClaimFile { path, .. } if *path == file), "{error}");

        let cpu = first_allowed();
        let link = directory.path().join(format!("cpu-{cpu}.lock"));
        std::os::unix::fs::symlink(&file, &link).unwrap();
        let error = claim_cpus(directory.path(), Wanted::These(&[cpu]), Vec::new()).unwrap_err();
        assert!(matches!(&error, RuntimeError::ClaimFile { path, .. } if *path == link), "{error}");
    }

    #[test]
    fn a_claim_that_is_shared_lasts_until_both_have_let_go() {
        let directory = tempfile::tempdir().unwrap();
        let (directory, cpu) = (directory.path(), first_allowed());
        let claim = || claim_cpus(directory, Wanted::These(&[cpu]), Vec::new());
        let first = claim().unwrap().remove(0);
        let second = CpuClaim::share(directory, cpu, first.duplicate().unwrap()).unwrap();
        let again = claim_cpus(directory, Wanted::Any(1), vec![second]).unwrap();
        assert_eq!(again[0].cpu(), cpu);
        drop(first);
        assert!(matches!(claim(), Err(RuntimeError::CpuClaimed { .. })));
        again[0].take_over();
        let Err(RuntimeError::CpuClaimed { holder, .. }) = claim() else { panic!("it is claimed") };
        assert_eq!(holder, Some(std::process::id()));
        drop(again);
        // A file beside the lock file is no claim.
        let other = File::create(directory.join("other")).unwrap();
        assert!(matches!(CpuClaim::share(directory, cpu, other.into()), Err(RuntimeError::ClaimFile { .. })));
        claim().unwrap();
    }

    #[test]
    fn second_hardware_threads_come_last() {
        let pairs = |cpu: usize| Some(vec![cpu % 4, cpu % 4 + 4]);
        assert_eq!(cores_first(&[0, 4, 1, 5, 6], pairs), [0, 1, 4, 5, 6]);
        assert_eq!(cores_first(&[3, 2], |_| None), [2, 3]);
    }
}
