//! What the kernel counts: the CPU time and resident memory of another process, the traffic of the loopback interface, and the
//! files that this process may open.

use std::time::Duration;
use std::{fs, io};

use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::time::ClockId;
use nix::unistd::Pid;

use crate::error::BenchError;

#[derive(Clone, Copy, Debug)]
pub(crate) struct Process {
    id: u32,
    clock: ClockId,
}

impl Process {
    /// The process with this id.
    ///
    /// # Errors
    /// [`BenchError::Io`] when there is none.
    pub(crate) fn new(id: u32) -> Result<Self, BenchError> {
        let pid = Pid::from_raw(i32::try_from(id).expect("process ids are positive i32"));
        let clock =
            ClockId::pid_cpu_clock_id(pid).map_err(BenchError::io(format!("find the CPU clock of process {id}")))?;
        Ok(Self { id, clock })
    }

    /// User and system time of all its threads since it started.
    ///
    /// # Errors
    /// [`BenchError::Io`] when it is gone.
    pub(crate) fn cpu_time(&self) -> Result<Duration, BenchError> {
        let time = self.clock.now();
        let time = time.map_err(BenchError::io(format!("read the CPU clock of process {}", self.id)))?;
        Ok(time.into())
    }

    /// Bytes of memory that it holds, including shared ones. Counted page by page, since the kernel's cheap counter is off by more
    /// than an idle peer takes.
    ///
    /// # Errors
    /// [`BenchError::Io`] when it is gone.
    pub(crate) fn resident_bytes(&self) -> Result<u64, BenchError> {
        let file = format!("/proc/{}/smaps_rollup", self.id);
        let failed = BenchError::io(format!("read the resident memory in {file}"));
        let text = match fs::read_to_string(&file) {
            Ok(text) => text,
            Err(error) => return Err(failed(error)),
        };
        resident_in(&text).ok_or_else(|| failed(io::ErrorKind::InvalidData.into()))
    }

    /// Number of files that it has open.
    ///
    /// # Errors
    /// [`BenchError::Io`] when it is gone.
    pub(crate) fn open_files(&self) -> Result<usize, BenchError> {
        let directory = format!("/proc/{}/fd", self.id);
        let files = fs::read_dir(&directory).map_err(BenchError::io(format!("count the open files in {directory}")))?;
        Ok(files.count())
    }
}

/// Growth of a process's resident memory since this was made.
#[derive(Debug)]
pub(crate) struct Growth {
    process: Process,
    before_bytes: u64,
}

impl Growth {
    /// Starts with the current memory of the process with this id.
    ///
    /// # Errors
    /// [`BenchError::Io`] when there is none.
    pub(crate) fn of(id: u32) -> Result<Self, BenchError> {
        let process = Process::new(id)?;
        Ok(Self { before_bytes: process.resident_bytes()?, process })
    }

    /// Growth divided by `count`.
    ///
    /// # Errors
    /// [`BenchError::Io`] when the process is gone.
    pub(crate) fn bytes_each(&self, count: usize) -> Result<f64, BenchError> {
        Ok((self.process.resident_bytes()? as f64 - self.before_bytes as f64) / count as f64)
    }
}

fn resident_in(rollup: &str) -> Option<u64> {
    let line = rollup.lines().find_map(|line| line.strip_prefix("Rss:"))?;
    let kibibytes: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kibibytes * 1024)
}

const LOOPBACK_TABLE: &str = "/proc/self/net/dev";

/// Bytes that have passed the loopback interface of this network namespace since it came up, from all senders.
///
/// # Errors
/// [`BenchError::Io`] when the kernel does not tell.
pub(crate) fn bytes_moved() -> Result<u64, BenchError> {
    let failed = BenchError::io(format!("read what the loopback interface has moved in {LOOPBACK_TABLE}"));
    match fs::read_to_string(LOOPBACK_TABLE) {
        Ok(text) => moved_in(&text).ok_or_else(|| failed(io::ErrorKind::InvalidData.into())),
        Err(error) => Err(failed(error)),
    }
}

/// The first number of its line: on loopback, received bytes equal sent bytes.
fn moved_in(table: &str) -> Option<u64> {
    let line = table.lines().find_map(|line| line.trim_start().strip_prefix("lo:"))?;
    line.split_whitespace().next()?.parse().ok()
}

/// Files that a process has open besides its peers: its streams, a shard's descriptors, a listener.
const FILES_BESIDE: usize = 64;

/// Lets this process open `each` files for each of `peers`, a number given by `setting`, and some more; raises the limit as far as
/// the system allows.
///
/// # Errors
/// [`BenchError::Setting`] when the system does not allow so many.
pub(crate) fn allow_open_files(setting: &'static str, peers: usize, each: usize) -> Result<(), BenchError> {
    let limits = getrlimit(Resource::RLIMIT_NOFILE).map_err(BenchError::io("ask how many files may be open"));
    let (now, most) = limits?;
    let most_peers = usize::try_from(most).unwrap_or(usize::MAX).saturating_sub(FILES_BESIDE) / each;
    if peers > most_peers {
        let accepted = format!("at most {most_peers}, or raise the hard limit of open files ({most})");
        return Err(BenchError::setting(setting, peers, accepted));
    }
    if now < most {
        setrlimit(Resource::RLIMIT_NOFILE, most, most)
            .map_err(BenchError::io(format!("raise the limit of open files to {most}")))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_that_is_gone_is_named() {
        let mut child = std::process::Command::new("true").spawn().expect("every system has it");
        let process = Process::new(child.id()).expect("not waited for, so it is there");
        child.wait().expect("it ends by itself");
        let error = process.resident_bytes().expect_err("it is gone");
        assert!(error.to_string().contains(&child.id().to_string()), "{error}");
        assert!(process.cpu_time().is_err() && Process::new(child.id()).is_err());
    }

    #[test]
    fn more_than_the_system_allows_is_the_users_to_change() {
        let error = allow_open_files("--peers", usize::MAX, 1).expect_err("no system allows it");
        assert!(error.is_usage() && error.to_string().contains("hard limit of open files"), "{error}");
    }
}
