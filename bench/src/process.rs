//! What the kernel counts: the CPU time and resident memory of another process, the traffic of an interface, and the files that this
//! process may open.

use std::net::IpAddr;
use std::time::Duration;
use std::{fs, io};

use nix::ifaddrs::{InterfaceAddress, getifaddrs};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::time::ClockId;
use nix::unistd::Pid;
use serde::{Deserialize, Serialize};

use crate::error::BenchError;

/// What the kernel counts of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Counter {
    /// User and system time of all its threads since it started, in nanoseconds.
    CpuNanoseconds,
    /// Memory that it holds, including memory that it shares, in bytes.
    ResidentBytes,
    /// Files that it has open.
    OpenFiles,
}

/// A process of this host.
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

    /// Reads a counter.
    ///
    /// # Errors
    /// [`BenchError::Io`] when the process is gone.
    pub(crate) fn read(&self, counter: Counter) -> Result<u64, BenchError> {
        match counter {
            Counter::CpuNanoseconds => self.cpu_time().map(|time| time.as_nanos() as u64),
            Counter::ResidentBytes => self.resident_bytes(),
            Counter::OpenFiles => self.open_files().map(|files| files as u64),
        }
    }

    fn cpu_time(&self) -> Result<Duration, BenchError> {
        let time = self.clock.now();
        let time = time.map_err(BenchError::io(format!("read the CPU clock of process {}", self.id)))?;
        Ok(time.into())
    }

    /// Counted page by page, since the kernel's cheap counter is off by more than an idle peer takes.
    fn resident_bytes(&self) -> Result<u64, BenchError> {
        let file = format!("/proc/{}/smaps_rollup", self.id);
        let failed = BenchError::io(format!("read the resident memory in {file}"));
        let text = match fs::read_to_string(&file) {
            Ok(text) => text,
            Err(error) => return Err(failed(error)),
        };
        resident_in(&text).ok_or_else(|| failed(io::ErrorKind::InvalidData.into()))
    }

    fn open_files(&self) -> Result<usize, BenchError> {
        let directory = format!("/proc/{}/fd", self.id);
        let files = fs::read_dir(&directory).map_err(BenchError::io(format!("count the open files in {directory}")))?;
        Ok(files.count())
    }
}

fn resident_in(rollup: &str) -> Option<u64> {
    let line = rollup.lines().find_map(|line| line.strip_prefix("Rss:"))?;
    let kibibytes: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kibibytes * 1024)
}

/// The counters of all interfaces of this network namespace.
const INTERFACES: &str = "/proc/self/net/dev";

/// The interface that has an address: counts what all processes send and receive through it.
#[derive(Clone, Debug)]
pub(crate) struct Interface {
    name: String,
}

impl Interface {
    /// Finds the interface of this host that has the address `ip`.
    ///
    /// # Errors
    /// [`BenchError::Io`] if no interface has it.
    pub(crate) fn with(ip: IpAddr) -> Result<Self, BenchError> {
        let failed = |error: io::Error| BenchError::io(format!("find the interface that has {ip}"))(error);
        let has = |interface: &InterfaceAddress| {
            let address = interface.address.as_ref();
            let four = address.and_then(|address| address.as_sockaddr_in()).map(|address| IpAddr::V4(address.ip()));
            let six = address.and_then(|address| address.as_sockaddr_in6()).map(|address| IpAddr::V6(address.ip()));
            four.or(six) == Some(ip)
        };
        let found = getifaddrs().map_err(|errno| failed(errno.into()))?.find(has);
        let interface = found.ok_or_else(|| failed(io::ErrorKind::NotFound.into()))?;
        Ok(Self { name: interface.interface_name })
    }

    /// Bytes sent and received since the interface came up; on loopback, where they are the same, counted once.
    ///
    /// # Errors
    /// [`BenchError::Io`] when the kernel does not tell.
    pub(crate) fn bytes_moved(&self) -> Result<u64, BenchError> {
        let failed = BenchError::io(format!("read what {} has moved in {INTERFACES}", self.name));
        match fs::read_to_string(INTERFACES) {
            Ok(text) => moved_in(&text, &self.name).ok_or_else(|| failed(io::ErrorKind::InvalidData.into())),
            Err(error) => Err(failed(error)),
        }
    }
}

/// Of an interface's line, the first number is received bytes and the ninth sent bytes.
fn moved_in(table: &str, interface: &str) -> Option<u64> {
    let line = table.lines().find_map(|line| line.trim_start().strip_prefix(interface)?.strip_prefix(':'))?;
    let numbers: Vec<u64> = line.split_whitespace().map_while(|number| number.parse().ok()).collect();
    let (received, sent) = (*numbers.first()?, *numbers.get(8)?);
    Some(if interface == "lo" { received } else { received + sent })
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
