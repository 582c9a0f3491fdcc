//! Which executor shards would run on here: io_uring's where the kernel lets this process have it, or epoll's.

use sealane_runtime::{ExecutorChoice, ExecutorKind, RuntimeError, try_io_uring};
use serde::Serialize;

use super::verdict::{Finding, advice};
use crate::settings::Sourced;

/// Whether this process can use io_uring, and what shards run on.
#[derive(Debug, Serialize)]
pub(super) struct IoUring {
    available: bool,
    /// What makes it so, and what to do about it.
    reason: String,
    /// What shards run on; none if they do not start.
    executor: Option<String>,
    /// What of the settings decides that.
    because: String,
}

impl IoUring {
    /// Makes what a shard needs of io_uring, and closes it again.
    pub(super) fn look(choice: &Sourced<ExecutorChoice>) -> IoUring {
        IoUring::of(try_io_uring(), choice)
    }

    fn of(outcome: Result<(), RuntimeError>, choice: &Sourced<ExecutorChoice>) -> IoUring {
        let available = outcome.is_ok();
        let (executor, word) = match (choice.value, available) {
            (ExecutorChoice::Auto, true) => (Some(ExecutorKind::IoUring), "auto"),
            (ExecutorChoice::Auto, false) => (Some(ExecutorKind::Epoll), "auto"),
            (ExecutorChoice::IoUring, true) => (Some(ExecutorKind::IoUring), "io_uring"),
            (ExecutorChoice::IoUring, false) => (None, "io_uring"),
            (ExecutorChoice::Epoll, _) => (Some(ExecutorKind::Epoll), "epoll"),
        };
        let reason = match outcome {
            Ok(()) => "a ring was created".to_owned(),
            Err(RuntimeError::IoUring { reason }) => reason,
            Err(error) => error.to_string(),
        };
        let because = format!("runtime.executor is {word} ({})", choice.source);
        IoUring { available, reason, executor: executor.map(|kind| kind.to_string()), because }
    }

    /// What is to be said of it: the reasons end with what to do.
    pub(super) fn finding(&self) -> Finding {
        const NAME: &str = "io_uring";
        let IoUring { available, reason, executor, because } = self;
        let (says, remedy) = reason.split_once("; ").unwrap_or((reason, "check the kernel log (dmesg)"));
        match executor {
            None => {
                let says = format!("not available: {says}; shards do not start, since {because}");
                Finding::fails(NAME, says, advice("set runtime.executor to auto"))
            }
            Some(executor) if *available => {
                Finding::ok(NAME, format!("available: {reason}; shards run on {executor}, since {because}"))
            }
            Some(executor) => {
                let says = format!("not available: {says}; shards run on {executor}, since {because}");
                Finding::better(NAME, says, advice(remedy))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::Source;

    #[test]
    fn shards_run_without_io_uring_unless_it_is_asked_for() {
        let shown = |choice, is_there: bool| {
            let reason = "a seccomp profile forbids it".to_owned();
            let outcome = if is_there { Ok(()) } else { Err(RuntimeError::IoUring { reason }) };
            let look = IoUring::of(outcome, &Sourced { value: choice, source: Source::Flag("--set") });
            assert_eq!(look.available, is_there);
            (look.executor.clone().unwrap_or_default(), look.finding().says)
        };
        for (choice, is_there, executor, says) in [
            (ExecutorChoice::Auto, true, "io_uring", "available: a ring was created; shards run on io_uring, since"),
            (ExecutorChoice::Auto, false, "epoll", "not available: a seccomp profile forbids it; shards run on epoll"),
            (ExecutorChoice::IoUring, true, "io_uring", "since runtime.executor is io_uring (--set)"),
            (ExecutorChoice::IoUring, false, "", "shards do not start, since runtime.executor is io_uring (--set)"),
            (ExecutorChoice::Epoll, true, "epoll", "shards run on epoll, since runtime.executor is epoll (--set)"),
            (ExecutorChoice::Epoll, false, "epoll", "shards run on epoll, since runtime.executor is epoll (--set)"),
        ] {
            let (runs, shown) = shown(choice, is_there);
            assert_eq!(runs, executor);
            assert!(shown.contains(says), "{shown}");
        }
    }

    #[test]
    fn looking_always_gives_a_reason() {
        let auto = Sourced { value: ExecutorChoice::Auto, source: Source::Default };
        let look = IoUring::look(&auto);
        assert!(!look.reason.is_empty() && look.executor.is_some());
    }
}
