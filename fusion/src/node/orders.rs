//! What a node wants done about connections, and what it is told of them.

use sealane_transport::Handle;
use sealane_transport::endpoint_map::TransportAddress;
use sealane_transport::wire::{Hello, RejectCode};

/// What the owner of a node is to do about connections.
#[derive(Debug)]
pub enum ConnectOrder {
    /// Call a peer, say `hello`, and report with [`Node::dialed`](super::Node::dialed) or
    /// [`Node::dial_failed`](super::Node::dial_failed).
    Dial {
        /// Names the call in the report.
        peer: Handle,
        /// Whom to call.
        address: TransportAddress,
        /// What to say.
        hello: Hello,
    },
    /// Drop the call: the peer's own call came first.
    HangUp(Handle),
}

/// A call that failed.
#[derive(Debug)]
pub struct DialFailure {
    /// Why, for a person.
    pub reason: String,
    /// What it means for those who wait.
    pub kind: DialFailureKind,
}

/// What a failed call means.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DialFailureKind {
    /// Nobody listens there.
    Refused,
    /// The peer's own call is on its way.
    Crossed,
    /// It may work later.
    Transient,
    /// It will not work later either: another program or version.
    Final,
    /// One side has not shown the other that it may talk.
    Denied,
}

/// What becomes of a caller.
#[derive(Debug)]
pub enum Answer {
    /// Make the link, and hand it over with [`Node::accepted`](super::Node::accepted).
    Welcome {
        /// Names the session.
        peer: Handle,
    },
    /// Say no.
    Reject(RejectCode, String),
}
