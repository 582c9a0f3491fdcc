//! The attach protocol, by which a client gets its shared memory: one request, one answer, and one message with each
//! shard's memory. JSON on a `SOCK_SEQPACKET` Unix socket, with descriptors attached.
//!
//! The client may block until a deadline; the daemon never does. Afterwards the socket stays open: the daemon rings on it,
//! and each side detects by it that the other is gone.
//!
//! On the same socket a daemon takes the place of a running one, its *predecessor*:
//!
//! 1. `take_over`: the predecessor shows its state, and shares the locks of its CPUs. It keeps serving.
//! 2. `hand_over`, once the successor is prepared: the predecessor drains, and then sends its listening sockets. If the
//!    successor hangs up from here on, the predecessor serves again.
//! 3. `taken`: the predecessor answers `yours`. From then on it is the one that stops, and the successor the one that
//!    serves. At no moment do two daemons accept callers; at worst callers wait in the sockets' backlogs.

mod client;
mod daemon;
#[cfg(feature = "fuzzing")]
#[doc(hidden)]
pub mod fuzzing;
mod predecessor;
mod successor;

use std::net::SocketAddr;

use serde::{Deserialize, Serialize};

use super::{failure::Failure, fields::Malformed};
use crate::{error::Error, job::JobName};

pub use self::{
    client::{
        AttachError, Attached, GivenLane, LaneBells, attach, connect, connection, drain, lane, map_arena, measure, show,
    },
    daemon::{
        Credentials, RequestError, ShardDescriptors, Welcoming, accept, credentials, draining, give_connection,
        give_lane, listen, listen_again, read_request, refuse, refuse_for_job, show_arena, show_figures,
    },
    predecessor::{Bequest, bequeath, let_go, show_estate},
    successor::{Inheritance, Shown, Successor},
};

/// Version of the attach protocol, the rings' records and the segments' layout, which change together. Client and daemon
/// must have the same.
pub const VERSION: u32 = 22;

/// Version of the conversation by which one daemon takes the place of another. It changes independently of [`VERSION`], so
/// that a daemon can hand over to another release.
pub const HAND_OVER_VERSION: u32 = 1;

/// A client's request to attach.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Attach {
    /// The client's [`VERSION`].
    pub version: u32,
    /// The task as which it attaches.
    pub task: String,
    pub arena_bytes: u64,
    /// The daemon may grant less than that.
    pub or_less: bool,
    pub job: RequiredJob,
    /// The daemon is to detach another process of the same user that is attached as the task.
    pub replace: bool,
}

/// The job that a client requires its daemon to serve.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RequiredJob {
    /// Any: the client joins the daemon's job.
    Any,
    /// None: the client was attached to a daemon without a job's name.
    Unnamed,
    Named(JobName),
}

impl RequiredJob {
    /// The requirement of a client that belongs to `job`.
    pub fn exactly(job: Option<JobName>) -> Self {
        job.map_or(Self::Unnamed, Self::Named)
    }

    /// True if a daemon of `job` will do.
    pub fn allows(&self, job: Option<&JobName>) -> bool {
        match self {
            Self::Any => true,
            Self::Unnamed => job.is_none(),
            Self::Named(name) => job == Some(name),
        }
    }

    /// The required job's name, if it has one.
    pub fn name(&self) -> Option<&JobName> {
        match self {
            Self::Any | Self::Unnamed => None,
            Self::Named(name) => Some(name),
        }
    }
}

impl Attach {
    /// A request with this version.
    pub fn new(task: impl Into<String>, arena_bytes: u64) -> Self {
        let (job, replace) = (RequiredJob::Any, false);
        Self { version: VERSION, task: task.into(), arena_bytes, or_less: false, job, replace }
    }
}

/// The daemon's answer to a client that it accepts.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Welcome {
    /// The daemon's [`VERSION`].
    pub version: u32,
    /// Number of shards; a segment and a doorbell for each follow.
    pub shards: u32,
    pub arena_bytes: u64,
    pub segment_bytes: u64,
    /// The size of the receive area in each segment.
    pub area_bytes: u64,
    /// The default timeout of calls, in milliseconds; 0 for no limit.
    pub request_timeout_ms: u64,
    pub tensor_bytes_max: u64,
    pub daemon_pid: u32,
    /// The daemon's job.
    pub job: Option<JobName>,
    /// Tasks of this host with whose clients this one may have a lane.
    pub neighbours: Vec<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "request", rename_all = "snake_case")]
pub enum Request {
    Attach(Attach),
    /// To accept no new requests, finish those in flight and stop.
    Drain {
        /// The client's [`VERSION`].
        version: u32,
    },
    /// For an arena that holds a tensor the client was told of, to read it there.
    Arena {
        /// The client's [`VERSION`].
        version: u32,
        /// The arena's number, which nobody can guess.
        arena: u64,
    },
    /// For the client's end of the lane to another client.
    Lane {
        /// The client's [`VERSION`].
        version: u32,
        /// The task as which the client is attached.
        task: String,
        peer: String,
    },
    /// For a connection to the daemon of a task on another host, for one stream between the client and that task.
    Connect {
        /// The client's [`VERSION`].
        version: u32,
        /// The task as which the client is attached.
        task: String,
        peer: String,
    },
    /// For a connection that another host's daemon has made for a stream between its task and the client, which was told of it.
    Connection {
        /// The client's [`VERSION`].
        version: u32,
        /// The task as which the client is attached.
        task: String,
        peer: String,
        /// Which of the connections between the two.
        number: u64,
    },
    /// To show the daemon's figures.
    Show {
        /// The client's [`VERSION`].
        version: u32,
    },
    /// To measure the links to the daemon's peers, and show the results. Takes seconds.
    Measure {
        /// The client's [`VERSION`].
        version: u32,
    },
    /// To show the daemon's state to the daemon that will take its place, which prepares itself with it.
    TakeOver {
        /// The successor's [`HAND_OVER_VERSION`].
        version: u32,
        /// The successor's job.
        #[serde(default)]
        job: Option<JobName>,
    },
    /// To drain and hand over its sockets: its successor is prepared.
    HandOver {
        /// The successor's [`HAND_OVER_VERSION`].
        version: u32,
    },
    /// To stop: its successor has the sockets, and serves once it is told that they are its own.
    Taken {
        /// The successor's [`HAND_OVER_VERSION`].
        version: u32,
    },
}

/// The users whose processes may make a request, as identified by the kernel when the process connected.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Permission {
    /// The daemon's user, root, and the users that the daemon's settings allow.
    Attach,
    /// The daemon's user and root.
    Drain,
    /// The daemon's user.
    TakeOver,
}

impl Request {
    /// Returns the permission that the daemon checks before it handles this request. A request for a client's memory, lane or
    /// connection is also checked against the user or process that owns the resource.
    pub fn permission(&self) -> Permission {
        match self {
            Self::Attach(_)
            | Self::Arena { .. }
            | Self::Lane { .. }
            | Self::Connect { .. }
            | Self::Connection { .. }
            | Self::Show { .. }
            | Self::Measure { .. } => Permission::Attach,
            Self::Drain { .. } => Permission::Drain,
            Self::TakeOver { .. } | Self::HandOver { .. } | Self::Taken { .. } => Permission::TakeOver,
        }
    }
}

/// The state of a daemon that another one takes over. Unknown fields are ignored.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Estate {
    pub pid: u32,
    pub release: String,
    /// How long its drain may take, in milliseconds.
    pub drain_timeout_ms: u64,
    /// The transport addresses at which it listens, each with its socket's address.
    pub listeners: Vec<(String, SocketAddr)>,
    pub metrics: Option<SocketAddr>,
    /// The CPUs that it has claimed; their locks follow.
    pub cpus: Vec<usize>,
}

/// The part of a request that all versions share.
#[derive(Deserialize)]
struct Versioned {
    #[serde(default)]
    request: String,
    version: u32,
}

impl Versioned {
    /// The version that such a request must have here.
    fn expected(&self) -> u32 {
        match &*self.request {
            "take_over" | "hand_over" | "taken" => HAND_OVER_VERSION,
            _ => VERSION,
        }
    }
}

#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "answer", rename_all = "snake_case")]
enum Answer {
    /// Comes with the arena.
    Welcome(Welcome),
    /// Comes with a segment and its doorbell.
    Shard {
        index: u32,
    },
    Refused(Refused),
    /// The daemon serves this job, and the client requires another one.
    OtherJob {
        job: Option<JobName>,
    },
    Draining,
    /// Comes with an arena of `bytes` bytes, read-only.
    Arena {
        bytes: u64,
    },
    /// Comes with a lane, and with the client's own ear and the other client's bell if the two share it. Says which end of the lane is the client's.
    Lane {
        first: bool,
    },
    /// Comes with a connected TCP socket. Says which of the connections between the two tasks it is.
    Connection {
        number: u64,
    },
    /// Comes with memory that holds this many bytes of JSON.
    Figures {
        bytes: u64,
    },
    /// Comes with memory that holds this many bytes of JSON, an [`Estate`].
    Estate {
        bytes: u64,
    },
    /// Comes with the lock of this CPU.
    Cpu {
        cpu: usize,
    },
    /// Comes with the socket that listens at this transport address.
    Listener {
        address: String,
    },
    /// Comes with the socket that serves metrics.
    Metrics,
    /// Comes with the socket for clients and its lock; it is the last message.
    ClientSocket,
    /// What was handed over now belongs to the successor alone.
    Yours,
}

/// An [`Error`] on the socket.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Refused {
    code: u8,
    subject: String,
    reason: String,
    step: i64,
    operation: u8,
    waited_s: u64,
    waited_ns: u32,
}

impl From<&Error> for Refused {
    fn from(error: &Error) -> Self {
        let Failure { code, operation, step, waited, subject, reason, .. } = Failure::of(error);
        let (subject, reason) = (subject.to_owned(), reason.to_owned());
        Self { code, subject, reason, step, operation, waited_s: waited.as_secs(), waited_ns: waited.subsec_nanos() }
    }
}

impl Refused {
    fn into_error(self) -> Result<Error, Malformed> {
        Failure {
            code: self.code,
            operation: self.operation,
            // A refusal is never about something that was sent.
            delivery_unknown: false,
            step: self.step,
            waited: Failure::waited(self.waited_s, self.waited_ns)?,
            subject: &self.subject,
            reason: &self.reason,
        }
        .into_error()
    }
}

/// A message as sent over the socket.
fn encode(message: &impl Serialize) -> Vec<u8> {
    serde_json::to_vec(message).expect("these structures have nothing that JSON cannot say")
}
