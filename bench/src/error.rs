//! What can go wrong in a measurement: what was being done, and with which system.

use std::io;
use std::net::SocketAddr;
use std::process::ExitStatus;
use std::time::Duration;

#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BenchError {
    /// A setting of the plan is outside what can be measured.
    #[error("{setting} is {value}; give {accepted}")]
    Setting { setting: &'static str, value: String, accepted: String },
    #[error("cannot {operation}: {source}")]
    Io {
        /// What was being done, as in "cannot connect to the producer".
        operation: String,
        source: io::Error,
    },
    #[error("the producer of {system} ended ({status}); it wrote: {stderr}")]
    PeerDied {
        system: &'static str,
        status: ExitStatus,
        /// The end of its standard error.
        stderr: String,
    },
    /// A producer on another host failed, or that host does not answer.
    #[error("{host}: {reason}")]
    OtherHost { host: SocketAddr, reason: String },
    #[error("the link of {system} moved nothing for {waited:?}")]
    Stalled { system: &'static str, waited: Duration },
    /// A measured system refused to start, failed a call, or did not do what was asked of it.
    #[error("{system} failed to {operation}: {reason}")]
    Failed {
        /// The system, or what it is made of.
        system: &'static str,
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

    pub(crate) fn setting(setting: &'static str, value: impl ToString, accepted: impl Into<String>) -> Self {
        Self::Setting { setting, value: value.to_string(), accepted: accepted.into() }
    }

    pub(crate) fn io<E: Into<io::Error>>(operation: impl Into<String>) -> impl FnOnce(E) -> Self {
        let operation = operation.into();
        move |source| Self::Io { operation, source: source.into() }
    }

    pub(crate) fn failed<E: ToString>(system: &'static str, operation: &'static str) -> impl FnOnce(E) -> Self {
        move |reason| Self::Failed { system, operation, reason: reason.to_string() }
    }

    pub(crate) fn sealane<E: ToString>(operation: &'static str) -> impl FnOnce(E) -> Self {
        Self::failed("sealane", operation)
    }
}
