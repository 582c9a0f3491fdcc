//! Errors of the runtime: one variant per operation, with its operands and what to do.

use std::{fmt, io, path::PathBuf, time::Duration};

#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RuntimeError {
    /// The io_uring executor cannot be used here.
    #[error("io_uring cannot be used: {reason}; or leave runtime.executor at auto, which then uses epoll")]
    IoUring {
        /// The reason, and what to do about it.
        reason: String,
    },
    #[error("{operation} failed: {}", WithRemedy(.source))]
    System { operation: &'static str, source: io::Error },
    /// A setting is invalid.
    #[error("setting {setting}: {problem}")]
    Setting {
        setting: &'static str,
        /// What is wrong with it, and what would be right.
        problem: String,
    },
    /// A requested CPU is not available to this process.
    #[error("CPU {cpu} is not one of those that this process may use ({allowed:?}); change the pinning or the cpuset")]
    CpuNotAllowed { cpu: usize, allowed: Vec<usize> },
    /// A requested CPU is claimed by another runtime.
    #[error("CPU {cpu} is claimed by {} (lock file {})", holder_text(.holder), .path.display())]
    CpuClaimed {
        cpu: usize,
        /// The process that holds it, where its lock file says so.
        holder: Option<u32>,
        /// The lock file.
        path: PathBuf,
    },
    /// Fewer CPUs are free than there are shards to pin.
    #[error("{wanted} CPUs are needed, but only {free} of the {allowed} allowed ones are free")]
    TooFewCpus {
        wanted: usize,
        free: usize,
        /// How many this process may run on.
        allowed: usize,
    },
    /// The lock file of a CPU, or its directory, cannot be used.
    #[error("CPU lock file {}: {source}", .path.display())]
    ClaimFile {
        /// The file or directory.
        path: PathBuf,
        source: io::Error,
    },
    /// The shard stopped before it could answer.
    #[error("shard {shard} has stopped")]
    ShardGone { shard: usize },
    /// The task panicked; the shard continues.
    #[error("the task panicked: {message}")]
    TaskPanicked { message: String },
    #[error("the mailbox of shard {shard} is full ({slots} slots)")]
    MailboxFull { shard: usize, slots: usize },
    /// A shard did not stop in time; its thread is left running.
    #[error("shard {shard} did not stop within {waited:?}; a task does not return")]
    StopTimedOut { shard: usize, waited: Duration },
    /// A shard's thread ended by a panic of the reactor itself.
    #[error("the thread of shard {shard} panicked")]
    ShardPanicked { shard: usize },
}

#[cfg(shards)]
impl RuntimeError {
    pub(crate) fn system(operation: &'static str) -> impl FnOnce(nix::errno::Errno) -> Self {
        move |errno| Self::System { operation, source: errno.into() }
    }
}

fn holder_text(holder: &Option<u32>) -> String {
    match holder {
        Some(pid) => format!("process {pid}"),
        None => "another process".into(),
    }
}

#[cfg(shards)]
pub fn panic_message(payload: &(dyn std::any::Any + Send)) -> String {
    if let Some(text) = payload.downcast_ref::<&str>() {
        (*text).into()
    } else if let Some(text) = payload.downcast_ref::<String>() {
        text.clone()
    } else {
        "(no message)".into()
    }
}

/// The error of a system call in words; if no descriptors are left, with the limit to raise.
#[derive(Debug)]
pub struct WithRemedy<'e>(pub &'e io::Error);

impl fmt::Display for WithRemedy<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self.0, f)?;
        match self.0.raw_os_error() {
            Some(libc::EMFILE) => {
                f.write_str("; raise this process's limit: `ulimit -n`, or LimitNOFILE= in the systemd unit")
            }
            Some(libc::ENFILE) => f.write_str("; raise this host's limit: `sysctl fs.file-max`"),
            _ => Ok(()),
        }
    }
}
