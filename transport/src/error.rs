//! Errors of calls, in gRPC's canonical codes, and errors of links.

use std::{fmt, io::ErrorKind, time::Duration};

use sealane_runtime::{DeviceError, WithRemedy};

/// gRPC's canonical codes that Sealane uses; the number is the one on the wire.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Code {
    InvalidArgument = 3,
    DeadlineExceeded = 4,
    NotFound = 5,
    PermissionDenied = 7,
    ResourceExhausted = 8,
    Aborted = 10,
    Unimplemented = 12,
    Unavailable = 14,
}

/// A kind of call; the number is the one reported to clients.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum Operation {
    /// A recv; measured until its tensor is there, zero if it was available.
    Recv,
    /// A send; measured until the consumer's release.
    Send,
    /// A pull; measured until the last of its tensors.
    Pull,
    /// A push; measured until the queue has taken all of it.
    Push,
}

impl Operation {
    /// All operations, in the order of their numbers.
    pub const ALL: [Operation; 4] = [Operation::Recv, Operation::Send, Operation::Pull, Operation::Push];

    /// The name used in messages and metrics.
    pub fn name(self) -> &'static str {
        match self {
            Operation::Recv => "recv",
            Operation::Send => "send",
            Operation::Pull => "pull",
            Operation::Push => "push",
        }
    }
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Why a call failed. Every failed call gets one of these; none waits forever.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The task is not in the endpoint map, or not served at its address.
    #[error("task {task} is not known: {reason}")]
    NotFound {
        /// The requested task.
        task: Box<str>,
        /// What was checked, and what to do.
        reason: Box<str>,
    },
    /// The peer cannot be reached, or was lost.
    #[error("{peer} is unavailable: {reason}")]
    Unavailable {
        /// The peer's transport address.
        peer: Box<str>,
        /// What happened.
        reason: Box<str>,
    },
    /// The peer's process has ended or has detached from its daemon; the code is Unavailable.
    #[error("{task} has left ({reason})")]
    Left {
        /// The peer.
        task: Box<str>,
        /// How it left, as far as its daemon knows.
        reason: Box<str>,
    },
    /// The deadline passed first.
    #[error("{0}")]
    DeadlineExceeded(Box<Late>),
    /// What a thread waited for on a stream did not happen in time.
    #[error("{reason}")]
    TimedOut {
        /// What was waited for, and for how long.
        reason: Box<str>,
    },
    /// The step was aborted, here or at the peer, or the engine is stopping.
    #[error("step {step} was aborted: {reason}")]
    Aborted {
        /// The step.
        step: i64,
        /// The reason given for the abort.
        reason: Box<str>,
    },
    /// A named limit was reached; try again later or raise the setting.
    #[error("{limit} is full: {reason}")]
    ResourceExhausted {
        /// The limit's name, as in the settings.
        limit: Box<str>,
        /// Its value, and what exceeded it.
        reason: Box<str>,
    },
    /// The call is invalid, whatever the state.
    #[error("{reason}")]
    InvalidArgument {
        /// What is wrong and what is accepted.
        reason: Box<str>,
    },
    /// The peer or the daemon refuses this caller.
    #[error("permission denied: {reason}")]
    PermissionDenied {
        /// Who refused and why.
        reason: Box<str>,
    },
    /// The peer or this build does not support the operation.
    #[error("not implemented: {reason}")]
    Unimplemented {
        /// What is missing.
        reason: Box<str>,
    },
}

// The outcome of every call is this large, and is moved several times.
const _: () = assert!(size_of::<Error>() <= 48);

impl Error {
    /// The canonical code.
    pub fn code(&self) -> Code {
        match self {
            Error::NotFound { .. } => Code::NotFound,
            Error::Unavailable { .. } | Error::Left { .. } => Code::Unavailable,
            Error::DeadlineExceeded(_) | Error::TimedOut { .. } => Code::DeadlineExceeded,
            Error::Aborted { .. } => Code::Aborted,
            Error::ResourceExhausted { .. } => Code::ResourceExhausted,
            Error::InvalidArgument { .. } => Code::InvalidArgument,
            Error::PermissionDenied { .. } => Code::PermissionDenied,
            Error::Unimplemented { .. } => Code::Unimplemented,
        }
    }

    /// The error for a limit that was reached; `limit` is its setting's name.
    pub fn full(limit: &str, reason: impl Into<Box<str>>) -> Self {
        Error::ResourceExhausted { limit: limit.into(), reason: reason.into() }
    }

    /// An invalid call.
    pub fn invalid(reason: impl Into<Box<str>>) -> Self {
        Error::InvalidArgument { reason: reason.into() }
    }

    /// The error for a deadline that passed before the tensor was in transit; `awaited` says what was waited for.
    pub fn late(
        operation: Operation,
        step: i64,
        key: impl Into<Box<str>>,
        waited: Duration,
        awaited: impl Into<Box<str>>,
    ) -> Self {
        let (key, awaited) = (key.into(), awaited.into());
        Late { operation, step, key, waited, delivery_unknown: false, awaited }.into()
    }

    /// A peer that cannot be used.
    pub fn unavailable(peer: &str, reason: impl Into<Box<str>>) -> Self {
        Error::Unavailable { peer: peer.into(), reason: reason.into() }
    }
}

/// A call that ended by its deadline.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Late {
    /// Which call.
    pub operation: Operation,
    /// The step.
    pub step: i64,
    /// The key.
    pub key: Box<str>,
    /// How long it was allowed to wait.
    pub waited: Duration,
    /// A send or push whose tensor was in transit: it is not known whether it arrived.
    pub delivery_unknown: bool,
    /// What it waited for, such as the peer, its address, and why there is no connection; empty if unknown.
    pub awaited: Box<str>,
}

impl fmt::Display for Late {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { operation, step, key, waited, delivery_unknown, awaited } = self;
        write!(f, "{operation} of {}key '{key}' waited {waited:?} and its deadline passed", wanted(*operation, *step))?;
        if *delivery_unknown {
            f.write_str(": delivery unknown, the tensor was in transit and may still arrive")?;
        }
        match &**awaited {
            "" => Ok(()),
            awaited => write!(f, "{} {awaited}", if *delivery_unknown { ';' } else { ':' }),
        }
    }
}

impl From<Late> for Error {
    fn from(late: Late) -> Error {
        Error::DeadlineExceeded(Box::new(late))
    }
}

/// The code on the wire of [`Error::Left`], whose text is the task and the reason, separated by a line feed. A peer that
/// does not know it reads Unavailable.
#[cfg(feature = "network")]
const LEFT: u8 = 78;

/// What was requested: for a pull the number is a version, and the smallest number means that any version would do.
fn wanted(operation: Operation, step: i64) -> String {
    match (operation, step) {
        (Operation::Pull, i64::MIN) => String::new(),
        (Operation::Pull, version) => format!("version {version} of "),
        _ => format!("step {step} "),
    }
}

/// A copy to or from device memory has failed: that ends one call, but no link.
impl From<DeviceError> for Error {
    fn from(error: DeviceError) -> Error {
        Error::unavailable("device memory", error.to_string())
    }
}

#[cfg(feature = "network")]
impl Error {
    /// The error that a peer sent. An unknown code reads as Unavailable: the request has ended, and an older version can only
    /// try again elsewhere.
    pub(crate) fn from_wire(code: u8, peer: &str, step: i64, message: &str) -> Self {
        let reason: Box<str> = given(message).into();
        match code {
            3 => Error::InvalidArgument { reason },
            // The peer's own deadline passed; ours is about to.
            4 => Error::Aborted { step, reason },
            5 => Error::NotFound { task: peer.into(), reason },
            7 => Error::PermissionDenied { reason },
            8 => Error::ResourceExhausted { limit: "a limit of the peer".into(), reason },
            10 => Error::Aborted { step, reason },
            12 => Error::Unimplemented { reason },
            LEFT if let Some((task, why)) = reason.split_once('\n') => {
                Error::Left { task: task.into(), reason: given(why).into() }
            }
            _ => Error::Unavailable { peer: peer.into(), reason },
        }
    }

    /// The code to send.
    pub(crate) fn wire_code(&self) -> u8 {
        match (self, self.code()) {
            (Error::Left { .. }, _) => LEFT,
            // Each side reports its own deadlines only.
            (_, Code::DeadlineExceeded) => Code::Aborted as u8,
            (_, code) => code as u8,
        }
    }

    /// The text to send with the code: only the reason if there is one.
    pub(crate) fn wire_reason(&self) -> String {
        match self {
            Error::Aborted { reason, .. } => reason.to_string(),
            Error::InvalidArgument { reason } => reason.to_string(),
            Error::Left { task, reason } => format!("{task}\n{reason}"),
            other => other.to_string(),
        }
    }
}

/// A reason from outside, or a default text if it is missing.
pub(crate) fn given(reason: &str) -> &str {
    if reason.is_empty() { "no reason was given" } else { reason }
}

/// Why a link ended. The session survives it, and repeats its requests on the next one.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LinkError {
    /// The peer closed, between two frames or within one.
    #[error("the peer closed the connection")]
    Closed,
    #[error("{operation}: {message}")]
    Io {
        operation: &'static str,
        message: String,
        /// The kind of the system's error. `ConnectionRefused` means that no process listens there; of a link that was once up, that
        /// the peer is gone.
        kind: ErrorKind,
    },
    #[error("the peer broke the protocol: {0}")]
    Protocol(#[from] crate::wire::WireError),
    /// The peer was silent for longer than `transport.peer_timeout_ms`.
    #[error("the peer was silent for {0:?}")]
    Silent(Duration),
    #[error("the peer went away: {0}")]
    WentAway(String),
    /// The peer violated TLS, or bytes were altered in transit.
    #[error("TLS: {0}")]
    Tls(String),
    /// A work request, or the device as a whole, has failed.
    #[error("verbs: {0}")]
    Verbs(String),
    /// This side replaces the link with a better one.
    #[error("closed: the peer can be reached over verbs again")]
    Replaced,
    /// Verbs are required (`transport.require`), and cannot be used.
    #[error("verbs are required (transport.require), but {0}")]
    VerbsRequired(String),
    /// A fault that a test injected.
    #[error("injected fault: {0}")]
    Injected(&'static str),
}

impl LinkError {
    pub fn io(operation: &'static str, error: &std::io::Error) -> Self {
        LinkError::Io { operation, message: WithRemedy(error).to_string(), kind: error.kind() }
    }
}
