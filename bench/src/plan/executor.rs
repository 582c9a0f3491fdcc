//! What Sealane's shards run on, as flags spell it.

use sealane_runtime::ExecutorChoice;
use serde::{Deserialize, Serialize};

/// What Sealane's shards run on and sleep in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Executor {
    /// What they run on unless told otherwise.
    #[default]
    Auto,
    /// io_uring.
    IoUring,
    /// epoll.
    Epoll,
}

impl From<Executor> for ExecutorChoice {
    fn from(executor: Executor) -> Self {
        match executor {
            Executor::Auto => Self::Auto,
            Executor::IoUring => Self::IoUring,
            Executor::Epoll => Self::Epoll,
        }
    }
}
