//! What another process costs: its CPU time and its resident memory, as the kernel counts them.

use std::fs;
use std::io;
use std::time::Duration;

use nix::time::ClockId;
use nix::unistd::Pid;

use crate::error::BenchError;

/// A process of this user.
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

    /// User and system time of all its threads since it began.
    ///
    /// # Errors
    /// [`BenchError::Io`] when it is gone.
    pub(crate) fn cpu_time(&self) -> Result<Duration, BenchError> {
        let time = self.clock.now();
        let time = time.map_err(BenchError::io(format!("read the CPU clock of process {}", self.id)))?;
        Ok(time.into())
    }

    /// Bytes of memory that it holds, shared ones included. Counted page by page, since the cheap counter of the kernel is
    /// off by more than what an idle peer takes.
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

    /// Files that it has open.
    ///
    /// # Errors
    /// [`BenchError::Io`] when it is gone.
    pub(crate) fn open_files(&self) -> Result<usize, BenchError> {
        let directory = format!("/proc/{}/fd", self.id);
        let files = fs::read_dir(&directory).map_err(BenchError::io(format!("count the open files in {directory}")))?;
        Ok(files.count())
    }
}

/// What the resident memory of a process has grown by since this was made.
#[derive(Debug)]
pub(crate) struct Growth {
    process: Process,
    before_bytes: u64,
}

impl Growth {
    /// That of the process with this id, from now on.
    ///
    /// # Errors
    /// [`BenchError::Io`] when there is none.
    pub(crate) fn of(id: u32) -> Result<Self, BenchError> {
        let process = Process::new(id)?;
        Ok(Self { before_bytes: process.resident_bytes()?, process })
    }

    /// Bytes for each of so many.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_takes_time_and_memory() {
        let this = Process::new(std::process::id()).expect("it runs");
        let before = this.cpu_time().expect("it runs");
        let memory = vec![1_u8; 32 << 20];
        assert!(this.resident_bytes().expect("it runs") > memory.len() as u64);
        assert!(this.cpu_time().expect("it runs") > before);
        assert!(this.open_files().expect("it runs") >= 3, "its three streams");
    }

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
    fn only_the_resident_memory_is_read() {
        let text =
            "5000-6000 ---p 00000000 00:00 0 [rollup]\nRss:                2216 kB\nPss:                 100 kB\n";
        assert_eq!(resident_in(text), Some(2_216 * 1_024));
        assert_eq!(resident_in("Pss: 100 kB\n"), None);
        assert_eq!(resident_in("Rss: many kB\n"), None);
    }
}
