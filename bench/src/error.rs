//! What can go wrong in a measurement, with what was being done and to which system.

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
    /// The kernel does not offer the congestion control that was asked for.
    #[error(
        "cannot use congestion control {name}: {source}; choose one of \
         /proc/sys/net/ipv4/tcp_allowed_congestion_control"
    )]
    Congestion {
        /// The name that was asked for.
        name: String,
        /// What the operating system said.
        source: io::Error,
    },
    /// Two systems of one run ended up with different congestion controls.
    #[error("{system} runs with congestion control {found}, the others with {expected}; set one with --congestion")]
    CongestionDiffers {
        /// The system that differs.
        system: &'static str,
        /// Its congestion control.
        found: String,
        /// That of the systems before it.
        expected: String,
    },
    /// The producer process did not say in time that it is ready.
    #[error("the producer of {system} was not ready within {waited:?}; it wrote: {stderr}")]
    PeerSilent {
        /// The system whose producer it is.
        system: &'static str,
        /// How long was waited.
        waited: Duration,
        /// The end of its standard error.
        stderr: String,
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
    /// What was handed to a producer process, or what it answered, is not understood.
    #[error("cannot understand {what} {text:?}: {source}")]
    Dialogue {
        /// Which text.
        what: &'static str,
        /// The text itself.
        text: String,
        /// Why not.
        source: serde_json::Error,
    },
    /// A link moved nothing for too long.
    #[error("the link of {system} moved nothing for {waited:?}")]
    Stalled {
        /// The system that stalled.
        system: &'static str,
        /// How long was waited.
        waited: Duration,
    },
    /// Peers were not welcomed, or not kept.
    #[error("{refused} of {peers} peers were refused or hung up on by {system}; the first because: {reason}")]
    Refused {
        /// The system that did so.
        system: &'static str,
        /// How many.
        refused: usize,
        /// Of how many.
        peers: usize,
        /// What the first of them heard.
        reason: String,
    },
    /// A reply had another length than the tensor that was asked for.
    #[error("{system} answered {received} bytes to a request for {expected}")]
    WrongReply {
        /// The system that answered.
        system: &'static str,
        /// The tensor's bytes.
        expected: usize,
        /// The reply's bytes.
        received: usize,
    },
    /// A step's tensor arrived with other bytes than it was sent with.
    #[error("{system} delivered tensor {tensor} of the step with other bytes than were sent")]
    WrongBytes {
        /// The system that delivered it.
        system: &'static str,
        /// Its number.
        tensor: usize,
    },
    /// A measured system refused to start or failed a call.
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
    /// Whether the arguments were wrong (exit code 2), rather than the work failed (exit code 1).
    pub fn is_usage(&self) -> bool {
        matches!(self, Self::Setting { .. } | Self::Congestion { .. })
    }

    /// A setting that is not what can be measured.
    pub(crate) fn setting(setting: &'static str, value: impl ToString, accepted: impl Into<String>) -> Self {
        Self::Setting { setting, value: value.to_string(), accepted: accepted.into() }
    }

    /// Wraps why a text between the two processes is not understood.
    pub(crate) fn dialogue(what: &'static str, text: impl Into<String>) -> impl FnOnce(serde_json::Error) -> Self {
        let text = text.into();
        move |source| Self::Dialogue { what, text, source }
    }

    /// Wraps an operating system error with what was being done.
    pub(crate) fn io<E: Into<io::Error>>(operation: impl Into<String>) -> impl FnOnce(E) -> Self {
        let operation = operation.into();
        move |source| Self::Io { operation, source: source.into() }
    }

    /// Wraps what the measured engine, or a client of it, said.
    pub fn sealane<E: ToString>(operation: &'static str) -> impl FnOnce(E) -> Self {
        move |reason| Self::Failed { system: "sealane", operation, reason: reason.to_string() }
    }
}
