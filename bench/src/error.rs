//! What can go wrong in a measurement: what was being done, and with which system.

use std::io;
use std::process::ExitStatus;
use std::time::Duration;

/// Why a measurement could not be made.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BenchError {
    /// A setting of the plan is outside what can be measured.
    #[error("{setting} is {value}; give {accepted}")]
    Setting {
        /// The flag or field.
        setting: &'static str,
        /// What was given.
        value: String,
        /// What is accepted.
        accepted: String,
    },
    /// A system call failed.
    #[error("cannot {operation}: {source}")]
    Io {
        /// What was being done, as in "cannot connect to the producer".
        operation: String,
        /// What the operating system said.
        source: io::Error,
    },
    /// The producer process ended while it was needed.
    #[error("the producer of {system} ended ({status}); it wrote: {stderr}")]
    PeerDied {
        /// The system whose producer it is.
        system: &'static str,
        /// How it ended.
        status: ExitStatus,
        /// The end of its standard error.
        stderr: String,
    },
    /// A link moved nothing for too long.
    #[error("the link of {system} moved nothing for {waited:?}")]
    Stalled {
        /// The system that stalled.
        system: &'static str,
        /// How long was waited.
        waited: Duration,
    },
    /// A measured system refused to start, failed a call, or did not do what was asked of it.
    #[error("{system} failed to {operation}: {reason}")]
    Failed {
        /// The system, or what it is made of.
        system: &'static str,
        /// What was being done.
        operation: &'static str,
        /// What it said, causes included.
        reason: String,
    },
}

impl BenchError {
    /// True if the arguments were wrong (exit code 2), false if the work failed (exit code 1).
    pub fn is_usage(&self) -> bool {
        matches!(self, Self::Setting { .. })
    }

    /// The error that a setting cannot be measured.
    pub(crate) fn setting(setting: &'static str, value: impl ToString, accepted: impl Into<String>) -> Self {
        Self::Setting { setting, value: value.to_string(), accepted: accepted.into() }
    }

    /// Wraps an operating system error with what was being done.
    pub(crate) fn io<E: Into<io::Error>>(operation: impl Into<String>) -> impl FnOnce(E) -> Self {
        let operation = operation.into();
        move |source| Self::Io { operation, source: source.into() }
    }

    /// Wraps an error of a measured system.
    pub(crate) fn failed<E: ToString>(system: &'static str, operation: &'static str) -> impl FnOnce(E) -> Self {
        move |reason| Self::Failed { system, operation, reason: reason.to_string() }
    }

    /// Wraps an error of the measured engine, or of a client of it.
    pub(crate) fn sealane<E: ToString>(operation: &'static str) -> impl FnOnce(E) -> Self {
        Self::failed("sealane", operation)
    }
}
