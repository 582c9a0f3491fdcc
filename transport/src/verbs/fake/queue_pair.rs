//! A queue pair: its connection and its requests.
//!
//! Bounded by the device's send depth. As with a real one, a place in the send queue is free only once a completion of its
//! request, or of a later one, was polled.

use std::collections::VecDeque;

use crate::verbs::device::{Endpoint, Status, Work};

/// Each end's view of a connection.
#[derive(Debug, Clone, Copy)]
pub(super) struct Connection {
    /// What this end told the peer.
    pub(super) first_packet: u32,
    /// The smaller of both.
    pub(super) mtu: u16,
    /// What the peer told this end.
    pub(super) peer: Endpoint,
}

#[derive(Debug, Clone, Copy)]
pub(super) enum State {
    Idle,
    Connected(Connection),
    Failed,
}

/// A request that was posted and has not completed.
#[derive(Debug)]
pub(super) struct Outstanding {
    pub(super) id: u64,
    pub(super) is_signaled: bool,
    pub(super) work: Work,
    /// The bytes of an inline send.
    pub(super) inline: Box<[u8]>,
    /// When it is carried out or, if it was, acknowledged.
    pub(super) due: u64,
    /// When it is given up, if it has met a port that is down.
    pub(super) deadline: Option<u64>,
    /// It is carried out, but ends with this status.
    pub(super) lost: Option<Status>,
}

#[derive(Debug)]
pub(super) struct QueuePair {
    /// The device that it belongs to.
    pub(super) context: u32,
    pub(super) state: State,
    pub(super) pending: VecDeque<Outstanding>,
    /// How many at the front of `pending` are carried out and wait for their acknowledgement.
    pub(super) carried: usize,
    /// Places of the send queue in use.
    pub(super) occupied: u32,
    /// Of these, places of requests that completed without an entry in the completion queue.
    pub(super) silent: u32,
    /// The receive buffer of a message that has begun to come and broke off.
    pub(super) partial: Option<u64>,
}

impl QueuePair {
    pub(super) fn new(context: u32) -> Self {
        Self {
            context,
            state: State::Idle,
            pending: VecDeque::new(),
            carried: 0,
            occupied: 0,
            silent: 0,
            partial: None,
        }
    }

    pub(super) fn connection(&self) -> Option<&Connection> {
        match &self.state {
            State::Connected(connection) => Some(connection),
            State::Idle | State::Failed => None,
        }
    }
}
