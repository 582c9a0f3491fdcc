//! A node's state for one peer shard: the session, the link if there is one, and the state of the connection.

use std::sync::Arc;
use std::time::{Duration, Instant};

use sealane_runtime::earliest;
use sealane_transport::endpoint_map::{TaskName, TransportAddress};
use sealane_transport::error::LinkError;
use sealane_transport::{Handle, Link};

use super::PeerSession;
use super::calls::Calls;
use crate::metrics::{PeerCounters, PeerMetrics, Way};
use crate::node::exchange::{LastPair, Requester};

/// The state of a peer's connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::node) enum Connection {
    /// No link is wanted.
    Idle,
    /// A dial is in progress.
    Dialing,
    /// The next dial is due at that time.
    Waiting(Instant),
    Attached,
}

pub(in crate::node) struct Peer {
    /// The index of this side's transport address that the peer knows.
    pub(super) via: u16,
    pub(in crate::node) address: TransportAddress,
    /// The peer's shard; `None` until its number of shards is known.
    pub(in crate::node) shard: Option<u16>,
    /// A lane that leads to that shard.
    pub(super) lane: u32,
    /// The peer's, from its last handshake.
    pub(in crate::node) incarnation: Option<u64>,
    /// True if the session resumes on the next link; false if it starts over.
    pub(in crate::node) remembers: bool,
    /// Counts this side's resets of the session, and is part of the handshake's incarnation, so that a delayed handshake for an
    /// earlier reset of the session is rejected.
    pub(super) life: u64,
    // Before the session, whose memory the link's peer may reach until the link has ended.
    pub(super) link: Option<Box<dyn Link>>,
    pub(in crate::node) session: PeerSession,
    /// The link does not accept frames yet.
    pub(super) is_negotiating: bool,
    pub(in crate::node) connection: Connection,
    pub(super) calls: Calls,
    /// The peer announced its stop, so calls wait for the next process at its address.
    pub(super) is_expected_back: bool,
    /// When the last link was lost.
    pub(super) lost_at: Option<Instant>,
    pub(super) in_dirty: bool,
    pub(super) in_hot: bool,
    pub(super) idle_turns: u32,
    /// The link took less than was offered: wait until it is writable.
    pub(super) blocked: bool,
    /// It is on the list of blocked links to retry.
    pub(super) in_blocked: bool,
    /// Turns in which the link took nothing.
    pub(super) blocked_turns: u32,
    /// The link took nothing for so long that its owner watches it for writability.
    pub(super) stuck: bool,
    /// Its earliest entry in the schedule.
    pub(super) scheduled: Option<Instant>,
    /// The pair of the last request.
    pub(super) last_pair: LastPair,
    /// The peer named tasks that the endpoint map did not have when the link was made.
    pub(in crate::node) has_strangers: bool,
    /// The way its tensors travel.
    pub(in crate::node) way: Way,
    pub(super) counters: PeerCounters,
    /// The counters have changed since they were published.
    pub(super) is_touched: bool,
    pub(super) metrics: Arc<PeerMetrics>,
    /// The session's id in traces.
    pub(in crate::node) traced_as: u64,
}

impl Peer {
    /// The session, and the requester of its requests.
    pub(in crate::node) fn requesting(&mut self, handle: Handle) -> (&mut PeerSession, Requester<'_>) {
        (&mut self.session, Requester { session: handle, traced_as: self.traced_as, last_pair: &mut self.last_pair })
    }

    pub(super) fn new(
        via: u16,
        address: TransportAddress,
        shard: Option<u16>,
        lane: u32,
        session: PeerSession,
    ) -> Self {
        let metrics = Arc::new(PeerMetrics::new(address.to_string(), shard));
        Self {
            via,
            address,
            shard,
            lane,
            incarnation: None,
            remembers: false,
            life: 0,
            session,
            link: None,
            is_negotiating: false,
            connection: Connection::Idle,
            calls: Calls::default(),
            is_expected_back: false,
            lost_at: None,
            in_dirty: false,
            in_hot: false,
            idle_turns: 0,
            blocked: false,
            in_blocked: false,
            blocked_turns: 0,
            stuck: false,
            scheduled: None,
            last_pair: None,
            has_strangers: false,
            way: Way::TCP,
            counters: PeerCounters::default(),
            is_touched: false,
            metrics,
            traced_as: 0,
        }
    }

    /// A lane that leads to the peer's shard.
    pub(in crate::node) fn lane(&self) -> u32 {
        self.lane
    }

    pub(in crate::node) fn has_link(&self) -> bool {
        self.link.is_some()
    }

    /// For tests: as if the link took less than was offered.
    #[cfg(test)]
    pub(in crate::node) fn block(&mut self) {
        self.blocked = true;
    }

    /// True if the link took less than was offered.
    #[inline]
    pub(in crate::node) fn is_blocked(&self) -> bool {
        self.blocked
    }

    /// Messages sent since the last call.
    pub(super) fn count_messages(&mut self) -> u64 {
        let messages = self.session.sent().messages;
        messages - std::mem::replace(&mut self.counters.messages_sent, messages)
    }

    /// Publishes the counters for other threads.
    pub(super) fn show(&mut self) {
        self.is_touched = false;
        let (sent, received) = (self.session.sent(), self.session.received());
        self.counters.messages_received = received.messages;
        self.counters.tensors_sent = sent.tensors;
        self.counters.tensors_received = received.tensors;
        self.counters.in_flight = self.session.requests() as u64;
        self.counters.unreleased = self.session.unreleased() as u64;
        self.metrics.counters.write(&self.counters);
    }

    /// True if the peer was connected, ended without an announcement, and has refused connections since, for
    /// [`OUTAGE_TIME_MIN`](crate::limits::OUTAGE_TIME_MIN) or longer.
    pub(super) fn is_gone(&self, now: Instant) -> bool {
        self.incarnation.is_some() && !self.is_expected_back && self.calls.are_refused(now)
    }

    /// The state of its connection, in words.
    pub(in crate::node) fn standing(&self, now: Instant) -> String {
        standing(self.link.as_deref(), self.is_negotiating, &self.calls, now)
    }

    /// Handles timeouts of its session; `name_of` names the peer's tasks.
    ///
    /// # Errors
    /// The peer has been silent for too long.
    pub(super) fn handle_timeout<'a>(
        &mut self,
        now: Instant,
        name_of: impl Fn(u32) -> &'a TaskName,
    ) -> Result<(), LinkError> {
        let Self { session, link, is_negotiating, calls, address, .. } = self;
        let standing = || standing(link.as_deref(), *is_negotiating, calls, now);
        session.handle_timeout_of(now, &|task| format!("{} at {address}: {}", name_of(task), standing()))
    }

    /// When the peer must be looked at next, at the latest.
    pub(super) fn next_timeout(&self, connect_timeout: Duration, lease: Duration) -> Option<Instant> {
        let redial = match self.connection {
            Connection::Waiting(until) => Some(until),
            _ => None,
        };
        // A link that is being negotiated ends that state by itself, one way or the other.
        let has_none = self.link.is_none();
        let give_up = self.calls.wanted_for(connect_timeout).filter(|_| has_none);
        let lease_over = self.lost_at.filter(|_| has_none && self.session.awaits_releases()).map(|lost| lost + lease);
        earliest([self.session.next_timeout(), redial, give_up, lease_over])
    }
}

fn standing(link: Option<&dyn Link>, is_negotiating: bool, calls: &Calls, now: Instant) -> String {
    match link {
        Some(_) if is_negotiating => "its link is being set up".into(),
        Some(_) => "connected".into(),
        None => calls.standing(now),
    }
}
