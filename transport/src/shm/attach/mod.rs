//! The attach protocol, by which a client gets its shared memory: one request, one answer, and one message with each shard's
//! memory. JSON on a `SOCK_SEQPACKET` Unix socket, with descriptors attached.
//!
//! The client may block until a deadline; the daemon never does. Afterwards the socket stays open: the daemon rings on it, and
//! each side detects the other's exit by it.

mod client;
mod daemon;
#[cfg(feature = "fuzzing")]
#[doc(hidden)]
pub mod fuzzing;

use serde::{Deserialize, Serialize};

use super::{failure::Failure, fields::Malformed};
use crate::error::Error;

pub use self::{
    client::{AttachError, Attached, attach, drain, show},
    daemon::{
        Credentials, RequestError, ShardDescriptors, Welcoming, accept, credentials, draining, listen, read_request,
        refuse, show_figures,
    },
};

/// Version of the attach protocol, the rings' records and the segments' layout, which change together. Client and daemon must
/// have the same.
pub const VERSION: u32 = 5;

/// A client's request to attach.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Attach {
    /// The client's [`VERSION`].
    pub version: u32,
    /// The task that it is.
    pub task: String,
    /// The requested arena size; the daemon may grant less.
    pub arena_bytes: u64,
}

impl Attach {
    /// A request of this version.
    pub fn new(task: impl Into<String>, arena_bytes: u64) -> Self {
        Self { version: VERSION, task: task.into(), arena_bytes }
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
    /// To be shown the daemon's figures.
    Show {
        /// The asker's [`VERSION`].
        version: u32,
    },
}

/// The part of every request that every version has.
#[derive(Deserialize)]
struct Versioned {
    version: u32,
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
    /// So many bytes of JSON are in the memory that comes with it.
    Figures {
        bytes: u64,
    },
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
