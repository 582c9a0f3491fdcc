//! The CPUs that this process may run on, and which of them a running daemon claims.

use std::fmt;
use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use serde::Serialize;

use super::verdict::Finding;

/// Most of a lock file that is read: a process id is shorter.
const LOCK_FILE_BYTES_MAX: u64 = 32;

/// The CPUs of this process.
#[derive(Debug, Serialize)]
pub(super) struct Cpus {
    allowed: Vec<usize>,
    claimed: Vec<Claim>,
    claim_directory: String,
    /// What could not be found out.
    error: Option<String>,
}

/// A CPU that a daemon claims.
#[derive(Debug, PartialEq, Eq, Serialize)]
struct Claim {
    cpu: usize,
    /// The process that claims it, by its number where it runs; `null` where its file does not say.
    process: Option<u32>,
}

impl Cpus {
    /// Looks at this process's CPUs and at the lock files in `claim_directory`.
    pub(super) fn look(claim_directory: &Path) -> Cpus {
        let allowed = sealane_runtime::allowed_cpus().map_err(|error| error.to_string());
        let claimed = claims(claim_directory).map_err(|error| {
            let directory = claim_directory.display();
            format!("the claims in {directory} cannot be read: {error}")
        });
        let errors = [allowed.as_ref().err(), claimed.as_ref().err()];
        let errors: Vec<_> = errors.into_iter().flatten().cloned().collect();
        Cpus {
            error: (!errors.is_empty()).then(|| errors.join("; ")),
            allowed: allowed.unwrap_or_default(),
            claimed: claimed.unwrap_or_default(),
            claim_directory: claim_directory.display().to_string(),
        }
    }
}

/// The claims that are held, by CPU; none where there is no such directory.
fn claims(directory: &Path) -> io::Result<Vec<Claim>> {
    let entries = match fs::read_dir(directory) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries?,
    };
    let mut claims = Vec::new();
    for entry in entries {
        let path = entry?.path();
        let Some(cpu) = cpu(&path) else {
            continue;
        };
        // In a shared directory a link could lead anywhere, and opening a pipe could wait.
        let flags = libc::O_NOFOLLOW | libc::O_NONBLOCK;
        let file = OpenOptions::new().read(true).custom_flags(flags).open(&path);
        claims.extend(claim(cpu, file?)?);
    }
    claims.sort_by_key(|claim| claim.cpu);
    Ok(claims)
}

/// The CPU of a lock file, which its name says.
fn cpu(path: &Path) -> Option<usize> {
    let name = path.file_name()?.to_str()?;
    name.strip_prefix("cpu-")?.strip_suffix(".lock")?.parse().ok()
}

/// A claim is a lock; the file merely says whose. An empty file is nobody's, so only one that
/// names a process is tried, with a lock that is gone at once: a daemon that claims the CPU in
/// that moment finds it taken, which can only happen where another died without cleaning up.
fn claim(cpu: usize, mut file: File) -> io::Result<Option<Claim>> {
    let mut text = String::new();
    (&mut file).take(LOCK_FILE_BYTES_MAX).read_to_string(&mut text)?;
    if text.is_empty() {
        return Ok(None);
    }
    match file.try_lock_shared() {
        Ok(()) => Ok(None),
        Err(TryLockError::WouldBlock) => Ok(Some(Claim { cpu, process: text.trim().parse().ok() })),
        Err(TryLockError::Error(error)) => Err(error),
    }
}

impl Cpus {
    /// The CPUs that this process may run on.
    pub(super) fn allowed(&self) -> &[usize] {
        &self.allowed
    }

    /// Those of them that nobody claims.
    pub(super) fn free(&self) -> Vec<usize> {
        let is_claimed = |cpu: &usize| self.claimed.iter().any(|claim| claim.cpu == *cpu);
        self.allowed.iter().copied().filter(|cpu| !is_claimed(cpu)).collect()
    }

    /// What is to be said of the claims.
    pub(super) fn finding(&self) -> Finding {
        const NAME: &str = "claims";
        if let Some(error) = &self.error {
            let remedy = format!("sudo install -d -m 1777 {}", self.claim_directory);
            return Finding::better(NAME, error, remedy);
        }
        let claimed = match &self.claimed[..] {
            [] => "no CPU is claimed".to_owned(),
            claimed => {
                let cpus: Vec<_> = claimed.iter().map(ToString::to_string).collect();
                format!("claimed: CPU {}", cpus.join(", "))
            }
        };
        Finding::ok(NAME, format!("{claimed} in {}", self.claim_directory))
    }
}

impl fmt::Display for Claim {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.process {
            Some(process) => write!(out, "{} by process {process}", self.cpu),
            None => write!(out, "{}", self.cpu),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::verdict::Verdict;
    use super::*;
    use sealane_runtime::{Wanted, claim_cpus};

    #[test]
    fn sees_the_claims_of_a_runtime_while_they_are_held() {
        let directory = tempfile::tempdir().unwrap();
        let held = claim_cpus(directory.path(), Wanted::Any(1), Vec::new()).unwrap();
        let cpus = Cpus::look(directory.path());
        assert_eq!(cpus.error, None);
        assert!(cpus.allowed.contains(&held[0].cpu()));
        let process = std::process::id();
        assert_eq!(cpus.claimed, [Claim { cpu: held[0].cpu(), process: Some(process) }]);
        assert!(!cpus.free().contains(&held[0].cpu()));
        let says = cpus.finding().says;
        assert!(says.contains(&format!("by process {process} in ")), "{says}");
        drop(held);
        assert_eq!(Cpus::look(directory.path()).claimed, []);
        // Looking took nothing.
        claim_cpus(directory.path(), Wanted::Any(1), Vec::new()).unwrap();
    }

    #[test]
    fn what_a_dead_daemon_left_is_no_claim() {
        let directory = tempfile::tempdir().unwrap();
        fs::write(directory.path().join("cpu-0.lock"), "4000000\n").unwrap();
        fs::write(directory.path().join("cpu-x.lock"), "1\n").unwrap();
        assert_eq!(claims(directory.path()).unwrap(), []);
    }

    #[test]
    fn a_claim_without_a_process_is_one() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("cpu-7.lock");
        fs::write(&path, "?").unwrap();
        let holder = File::open(&path).unwrap();
        holder.lock().unwrap();
        let cpus = Cpus::look(directory.path());
        assert!(cpus.finding().says.starts_with("claimed: CPU 7 in "), "{cpus:?}");
    }

    #[test]
    fn a_directory_that_cannot_be_read_is_said() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("file");
        fs::write(&file, "").unwrap();
        let cpus = Cpus::look(&file);
        assert!(cpus.finding().says.contains("file cannot be read: "));
        assert_eq!(cpus.finding().verdict, Verdict::CouldBeBetter);
        assert_eq!(Cpus::look(&directory.path().join("none")).error, None);
        std::os::unix::fs::symlink(&file, directory.path().join("cpu-1.lock")).unwrap();
        assert!(claims(directory.path()).is_err());
    }
}
