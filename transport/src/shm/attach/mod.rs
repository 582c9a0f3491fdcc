//! The attach protocol, by which a client gets its shared memory: one request, one answer, and one message with each shard's
//! memory. JSON on a `SOCK_SEQPACKET` Unix socket, with descriptors attached.
//!
//! The client may block until a deadline; the daemon never does. Afterwards the socket stays open: the daemon rings on it, and
//! each side detects the other's exit by it.
//!
//! By the same socket a daemon takes the place of a running one, its *predecessor*:
//!
//! 1. `take_over`: the predecessor shows what it has, and shares the locks of its CPUs. It serves on.
//! 2. `hand_over`, once the successor is prepared: the predecessor drains, and then sends its listening sockets. If the successor
//!    hangs up from here on, it serves again.
//! 3. `taken`: the predecessor answers `yours`, and from then on is the one that stops, and the successor the one that serves. No
//!    moment has two daemons that accept callers, and callers wait in the sockets' queues at most.

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
use crate::error::Error;

pub use self::{
    client::{AttachError, Attached, GivenLane, attach, connect, connection, drain, lane, map_arena, show},
    daemon::{
        Credentials, RequestError, ShardDescriptors, Welcoming, accept, credentials, draining, give_connection,
        give_lane, listen, listen_again, read_request, refuse, show_arena, show_figures,
    },
    predecessor::{Bequest, bequeath, let_go, show_estate},
    successor::{Inheritance, Shown, Successor},
};

/// Version of the attach protocol, the rings' records and the segments' layout, which change together. Client and daemon must
/// have the same.
pub const VERSION: u32 = 16;

/// Version of the conversation in which one daemon takes the place of another. It changes independently of [`VERSION`], so that
/// a daemon can hand over to one of another release.
pub const HAND_OVER_VERSION: u32 = 1;

/// A client's request to attach.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Attach {
    /// The client's [`VERSION`].
    pub version: u32,
    /// The task that it is.
    pub task: String,
    /// The requested arena size.
    pub arena_bytes: u64,
    /// The daemon may grant less.
    pub or_less: bool,
}

impl Attach {
    /// A request of this version.
    pub fn new(task: impl Into<String>, arena_bytes: u64) -> Self {
        Self { version: VERSION, task: task.into(), arena_bytes, or_less: false }
    }
}

/// The daemon's answer to a client that it attaches.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Welcome {
    /// The daemon's [`VERSION`].
    pub version: u32,
    /// How many shards it has; a segment and a doorbell of each follow.
    pub shards: u32,
    /// The size of the arena.
    pub arena_bytes: u64,
    /// The size of each segment.
    pub segment_bytes: u64,
    /// The size of the receive area in each segment.
    pub area_bytes: u64,
    /// The default timeout of calls; 0 for no limit.
    pub request_timeout_ms: u64,
    /// The largest tensor that the daemon carries.
    pub tensor_bytes_max: u64,
    /// The daemon's process.
    pub daemon_pid: u32,
    /// Tasks of this host with whose clients this one may have a direct lane.
    pub neighbours: Vec<String>,
}

/// A client's request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "request", rename_all = "snake_case")]
pub enum Request {
    /// To be attached.
    Attach(Attach),
    /// That the daemon takes no new requests, finishes those in flight and stops.
    Drain {
        /// The asker's [`VERSION`].
        version: u32,
    },
    /// For an arena in which the client was told of a tensor, to read that there.
    Arena {
        /// The asker's [`VERSION`].
        version: u32,
        /// Its number, which nobody can guess.
        arena: u64,
    },
    /// For its end of the direct lane between two clients of one user.
    Lane {
        /// The asker's [`VERSION`].
        version: u32,
        /// The task as which the asker is attached.
        task: String,
        /// The other one's.
        peer: String,
    },
    /// For a connection to the daemon of a task of another host, for one stream between the asker and that task.
    Connect {
        /// The asker's [`VERSION`].
        version: u32,
        /// The task as which the asker is attached.
        task: String,
        /// The other one's.
        peer: String,
    },
    /// For a connection that another host's daemon has made for a stream between that task and the asker, as it has told.
    Connection {
        /// The asker's [`VERSION`].
        version: u32,
        /// The task as which the asker is attached.
        task: String,
        /// The other one's.
        peer: String,
        /// Which of those between the two.
        number: u64,
    },
    /// To be shown the daemon's figures.
    Show {
        /// The asker's [`VERSION`].
        version: u32,
    },
    /// To be shown what the daemon has, by the one that is to take its place and that prepares itself with it.
    TakeOver {
        /// The asker's [`HAND_OVER_VERSION`].
        version: u32,
    },
    /// That the daemon drains and hands over its sockets: its successor is prepared.
    HandOver {
        /// The asker's [`HAND_OVER_VERSION`].
        version: u32,
    },
    /// That the daemon goes: its successor has the sockets, and serves once it hears that they are its own.
    Taken {
        /// The asker's [`HAND_OVER_VERSION`].
        version: u32,
    },
}

/// What a daemon has that another one takes over. Fields that a daemon does not know it ignores.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Estate {
    /// Its process.
    pub pid: u32,
    /// Its release.
    pub release: String,
    /// How long its drain may take, in milliseconds.
    pub drain_timeout_ms: u64,
    /// The transport addresses at which it listens, each with the address of its socket.
    pub listeners: Vec<(String, SocketAddr)>,
    /// Where it serves metrics.
    pub metrics: Option<SocketAddr>,
    /// The CPUs that it has claimed; their locks follow.
    pub cpus: Vec<usize>,
    /// The sizes of its clients' arenas.
    pub arenas: Vec<u64>,
}

/// The part of every request that every version has.
#[derive(Deserialize)]
struct Versioned {
    #[serde(default)]
    request: String,
    version: u32,
}

impl Versioned {
    /// The version that such a request must have to be understood here.
    fn expected(&self) -> u32 {
        match &*self.request {
            "take_over" | "hand_over" | "taken" => HAND_OVER_VERSION,
            _ => VERSION,
        }
    }
}

/// What the daemon says.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "answer", rename_all = "snake_case")]
enum Answer {
    /// The arena comes with it.
    Welcome(Welcome),
    /// A segment and its doorbell come with it.
    Shard {
        index: u32,
    },
    Refused(Refused),
    Draining,
    /// An arena of so many bytes comes with it, to be read.
    Arena {
        bytes: u64,
    },
    /// A direct lane comes with it, the ear of the asker and the bell of the other client. Which end of it is the asker's.
    Lane {
        first: bool,
    },
    /// A connected TCP socket comes with it, and which of those between the two tasks it is.
    Connection {
        number: u64,
    },
    /// So many bytes of JSON are in the memory that comes with it.
    Figures {
        bytes: u64,
    },
    /// So many bytes of JSON, an [`Estate`], are in the memory that comes with it.
    Estate {
        bytes: u64,
    },
    /// The lock of that CPU comes with it.
    Cpu {
        cpu: usize,
    },
    /// The socket that listens for that transport address comes with it.
    Listener {
        address: String,
    },
    /// The socket that serves metrics comes with it.
    Metrics,
    /// The socket that clients attach at and its lock come with it, and nothing after it.
    ClientSocket,
    /// What was handed over is the successor's alone.
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
            // Nobody is refused for what was sent.
            delivery_unknown: false,
            step: self.step,
            waited: Failure::waited(self.waited_s, self.waited_ns)?,
            subject: &self.subject,
            reason: &self.reason,
        }
        .into_error()
    }
}

/// A message as it goes over the socket.
fn encode(message: &impl Serialize) -> Vec<u8> {
    serde_json::to_vec(message).expect("these structures have nothing that JSON cannot say")
}
