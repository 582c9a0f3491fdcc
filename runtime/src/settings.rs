//! The settings of a runtime: data with working defaults, checked once when the runtime starts.

use std::{path::PathBuf, time::Duration};

use crate::{error::RuntimeError, executor::ExecutorChoice, limits::SHARDS_MAX, polling::Polling};

/// Whether, and on which CPUs, the shards' threads are pinned.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Pin {
    /// Do not pin; the kernel moves the threads as it likes.
    Off,
    /// Pin when a CPU can be claimed for every shard; otherwise run unpinned and log a warning that says why.
    #[default]
    IfFree,
    /// Pin to exactly these CPUs, shard 0 to the first, and fail where one is not allowed or already claimed.
    Cpus(Vec<usize>),
}

/// How a [`Runtime`](crate::Runtime) is set up.
#[derive(Clone, Debug)]
pub struct RuntimeSettings {
    /// Number of shards, 1 to 1024; default 1.
    pub shards: usize,
    /// What a shard does when it finds no work; default: spin for 200 us, then sleep.
    pub polling: Polling,
    /// What runs the shards' tasks and lets them sleep; default: io_uring where it can be used, else epoll.
    pub executor: ExecutorChoice,
    /// Whether and where the threads are pinned; default [`Pin::IfFree`].
    pub pin: Pin,
    /// Where the lock files of claimed CPUs are kept, one directory for all runtimes of a host; it is created if
    /// it is missing. Default [`CLAIM_DIRECTORY`](Self::CLAIM_DIRECTORY).
    pub claim_directory: PathBuf,
    /// Jobs that may wait in one shard's mailbox; default [`MAILBOX_SLOTS`](Self::MAILBOX_SLOTS), 24 bytes each.
    pub mailbox_slots: usize,
    /// A shard that takes no turn for longer than this is reported, unless it is being [set up](crate::Shard::set_up);
    /// default 100 ms, zero turns reports off.
    pub stall_report: Duration,
    /// Start of the threads' names, to which `-` and the shard's number are added; default `shard`. Linux shows
    /// 15 bytes.
    pub thread_name: String,
    /// How long [`Runtime::stop`](crate::Runtime::stop) waits for the shards; default 10 s.
    pub stop_within: Duration,
}

impl RuntimeSettings {
    /// Where CPUs are claimed by default: the same directory for every user, session and environment. Otherwise two runtimes of a
    /// host would not see each other's claims and pin to the same CPU.
    pub const CLAIM_DIRECTORY: &'static str = "/tmp/sealane";

    /// Jobs that may wait in a mailbox by default: as many as a burst of the calls that one link may queue, each of which is a job.
    /// 1.5 MiB a shard.
    pub const MAILBOX_SLOTS: usize = 1 << 16;

    /// Default of [`stall_report`](Self::stall_report): a shard held up for this long has missed hundreds of round trips.
    pub const STALL_REPORT: Duration = Duration::from_millis(100);
}

impl Default for RuntimeSettings {
    fn default() -> Self {
        Self {
            shards: 1,
            polling: Polling::default(),
            executor: ExecutorChoice::default(),
            pin: Pin::default(),
            claim_directory: Self::CLAIM_DIRECTORY.into(),
            mailbox_slots: Self::MAILBOX_SLOTS,
            stall_report: Self::STALL_REPORT,
            thread_name: "shard".into(),
            stop_within: Duration::from_secs(10),
        }
    }
}

impl RuntimeSettings {
    pub(crate) fn check(&self) -> Result<(), RuntimeError> {
        let problem = |setting, problem: String| Err(RuntimeError::Setting { setting, problem });
        if self.shards == 0 || self.shards > SHARDS_MAX {
            return problem("shards", format!("{} is not between 1 and {SHARDS_MAX}", self.shards));
        }
        if self.mailbox_slots == 0 {
            return problem("mailbox_slots", "a mailbox needs at least one slot".into());
        }
        if self.thread_name.contains('\0') {
            return problem("thread_name", "a thread's name cannot contain a NUL byte".into());
        }
        if let Pin::Cpus(cpus) = &self.pin
            && cpus.len() != self.shards
        {
            return problem("pin", format!("{} CPUs are listed for {} shards", cpus.len(), self.shards));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rejected(settings: RuntimeSettings) -> &'static str {
        match settings.check() {
            Err(RuntimeError::Setting { setting, .. }) => setting,
            other => panic!("expected a rejected setting, got {other:?}"),
        }
    }

    #[test]
    fn the_defaults_are_valid() {
        RuntimeSettings::default().check().unwrap();
    }

    #[test]
    fn every_setting_that_cannot_work_is_named() {
        let settings = RuntimeSettings::default;
        assert_eq!(rejected(RuntimeSettings { shards: 0, ..settings() }), "shards");
        assert_eq!(rejected(RuntimeSettings { shards: SHARDS_MAX + 1, ..settings() }), "shards");
        assert_eq!(rejected(RuntimeSettings { mailbox_slots: 0, ..settings() }), "mailbox_slots");
        assert_eq!(rejected(RuntimeSettings { thread_name: "a\0b".into(), ..settings() }), "thread_name");
        assert_eq!(rejected(RuntimeSettings { pin: Pin::Cpus(vec![0, 1]), ..settings() }), "pin");
    }
}
