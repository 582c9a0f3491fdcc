//! What Sealane's shards run on, as flags spell it.

use std::fmt;
use std::str::FromStr;

use sealane_runtime::ExecutorChoice;
use serde::{Deserialize, Serialize};

use crate::error::BenchError;

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

impl fmt::Display for Executor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Auto => "auto",
            Self::IoUring => "io_uring",
            Self::Epoll => "epoll",
        })
    }
}

impl FromStr for Executor {
    type Err = BenchError;

    fn from_str(text: &str) -> Result<Self, BenchError> {
        match text {
            "auto" => Ok(Self::Auto),
            "io_uring" => Ok(Self::IoUring),
            "epoll" => Ok(Self::Epoll),
            _ => Err(BenchError::Setting {
                setting: "--executor",
                value: text.to_owned(),
                accepted: "auto, io_uring or epoll".to_owned(),
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_executor_is_spelt_the_same_everywhere() {
        for executor in [Executor::Auto, Executor::IoUring, Executor::Epoll] {
            let text = executor.to_string();
            assert_eq!(text.parse::<Executor>().unwrap(), executor);
            assert_eq!(serde_json::to_string(&executor).unwrap(), format!("\"{text}\""));
        }
        let error = "uring".parse::<Executor>().unwrap_err().to_string();
        assert!(error.contains("--executor") && error.contains("auto, io_uring or epoll"), "{error}");
    }
}
