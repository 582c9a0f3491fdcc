//! What a node wants done about connections, and what it is told about them.

use sealane_transport::Handle;
use sealane_transport::endpoint_map::TransportAddress;
use sealane_transport::wire::{Hello, RejectCode};

/// What the owner of a node must do about connections.
#[derive(Debug)]
pub enum ConnectOrder {
    /// Dial a peer, send `hello`, and report with [`Node::dialed`](super::Node::dialed) or [`Node::dial_failed`](super::Node::dial_failed).
    Dial {
        /// Identifies the dial in the report.
        peer: Handle,
        /// The address to dial.
        address: TransportAddress,
        /// The hello to send.
        hello: Hello,
    },
    /// Drop the dial: the peer's own came first.
    HangUp(Handle),
}

/// A dial that failed.
#[derive(Debug)]
pub struct DialFailure {
    /// The reason, for people to read.
    pub reason: String,
    /// The consequence for calls that wait.
    pub kind: DialFailureKind,
}

/// What a failed dial means.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DialFailureKind {
    /// Nobody listens there.
    Refused,
    /// The peer's own dial is in progress.
    Crossed,
    /// It may work later.
    Transient,
    /// It will not work later either: another program or version.
    Final,
    /// One side failed to authenticate, or the two have different jobs.
    Denied,
}

/// The decision about a caller.
#[derive(Debug)]
pub enum Answer {
    /// Accept it: make the link, and hand it over with [`Node::accepted`](super::Node::accepted).
    Welcome {
        /// The handle of the session.
        peer: Handle,
    },
    /// Reject it.
    Reject(RejectCode, String),
}
