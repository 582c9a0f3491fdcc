//! A node's state for one peer shard: the session, the link if there is one, and the state of the connection.

use std::sync::Arc;
use std::time::{Duration, Instant};

use sealane_transport::endpoint_map::TransportAddress;
use sealane_transport::{Handle, Link};

use super::PeerSession;
use crate::limits::{REDIAL_WAIT_MAX, REDIAL_WAIT_MIN};
use crate::metrics::{PeerCounters, PeerMetrics, Way};
use crate::node::exchange::{Asker, LastPair};

/// The state of the connection while there is no link, or that there is one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::node) enum Connection {
    /// Nothing wants one.
    Idle,
    /// A call is in progress.
    Dialing,
    /// The next call is due then.
    Waiting(Instant),
    /// There is a link.
    Attached,
}

pub(in crate::node) struct Peer {
    /// Which of this side's transport addresses it knows.
    pub(super) via: u16,
    pub(in crate::node) address: TransportAddress,
    /// The peer's shard; `None` until its number of shards is known.
    pub(in crate::node) shard: Option<u16>,
    /// A lane that leads to that shard.
    pub(super) lane: u32,
    /// From its last handshake.
    pub(in crate::node) incarnation: Option<u64>,
    /// The session resumes on the next link; false if it starts over.
    pub(in crate::node) remembers: bool,
    /// Counts this side's resets of the session, and is part of the handshake's incarnation, so that a delayed handshake for an
    /// earlier reset of the session is rejected.
    pub(super) life: u64,
    // Before the session, whose memory the link's peer may reach until the link has ended.
    pub(super) link: Option<Box<dyn Link>>,
    pub(in crate::node) session: PeerSession,
    /// The link does not take frames yet.
    pub(super) settling: bool,
    pub(in crate::node) connection: Connection,
    /// Since when a link is wanted and missing.
    pub(super) wanted_since: Option<Instant>,
    /// When the last link was lost.
    pub(super) lost_at: Option<Instant>,
    pub(super) attempts: u32,
    pub(super) last_error: String,
    pub(super) in_dirty: bool,
    pub(super) in_hot: bool,
    pub(super) idle_turns: u32,
    /// The link took less than there was: wait for it to be writable.
    pub(super) blocked: bool,
    /// It is on the list of those that are tried again.
    pub(super) in_blocked: bool,
    /// Turns in which it took nothing.
    pub(super) blocked_turns: u32,
    /// It took nothing for so long that its owner watches it for room.
    pub(super) stuck: bool,
    /// The earliest entry in the schedule.
    pub(super) scheduled: Option<Instant>,
    /// The pair of the last request.
    pub(super) last_pair: LastPair,
    /// The peer named tasks that the endpoint map did not have when the link was made.
    pub(in crate::node) has_strangers: bool,
    /// The way that its tensors go.
    pub(in crate::node) way: Way,
    pub(super) counters: PeerCounters,
    /// The counters have changed since they were shown.
    pub(super) is_touched: bool,
    pub(super) metrics: Arc<PeerMetrics>,
    /// What a trace calls the session.
    pub(in crate::node) traced_as: u64,
}

impl Peer {
    /// The session, and who asks by it.
    pub(in crate::node) fn asking(&mut self, handle: Handle) -> (&mut PeerSession, Asker<'_>) {
        (&mut self.session, Asker { session: handle, traced_as: self.traced_as, last_pair: &mut self.last_pair })
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
            settling: false,
            connection: Connection::Idle,
            wanted_since: None,
            lost_at: None,
            attempts: 0,
            last_error: String::new(),
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

    /// A lane that leads to its shard.
    pub(in crate::node) fn lane(&self) -> u32 {
        self.lane
    }

    pub(in crate::node) fn has_link(&self) -> bool {
        self.link.is_some()
    }

    /// The link took less than there was.
    #[inline]
    pub(in crate::node) fn is_blocked(&self) -> bool {
        self.blocked
    }

    /// Messages that were sent since this was last called.
    pub(super) fn count_messages(&mut self) -> u64 {
        let messages = self.session.sent().messages;
        messages - std::mem::replace(&mut self.counters.messages_sent, messages)
    }

    /// Shows other threads how things stand.
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

    /// The wait before the next call: doubled each time, and spread by up to a half so that a thousand workers do not call a
    /// restarted ps in step. `seed` is the process's own.
    pub(super) fn backoff(&mut self, seed: u64) -> Duration {
        let doubled = REDIAL_WAIT_MIN * (1 << self.attempts.min(7));
        self.attempts += 1;
        let drawn = mix(seed ^ (u64::from(self.lane) << 32 | u64::from(self.attempts)));
        let spread = (drawn >> 32) as f64 / (1_u64 << 33) as f64;
        doubled.min(REDIAL_WAIT_MAX).mul_f64(1.0 - spread)
    }

    /// When the peer needs a look at the latest.
    pub(super) fn next_timeout(&self, connect_timeout: Duration, lease: Duration) -> Option<Instant> {
        let redial = match self.connection {
            Connection::Waiting(until) => Some(until),
            _ => None,
        };
        // A link that settles ends that by itself, one way or the other.
        let has_none = self.link.is_none();
        let give_up = self.wanted_since.filter(|_| has_none).map(|since| since + connect_timeout);
        let lease_over = self.lost_at.filter(|_| has_none && self.session.has_loans()).map(|lost| lost + lease);
        [self.session.next_timeout(), redial, give_up, lease_over].into_iter().flatten().min()
    }
}

/// Any bit of the outcome depends on all bits of the number (the finalizer of SplitMix64).
fn mix(number: u64) -> u64 {
    let number = (number ^ number >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let number = (number ^ number >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    number ^ number >> 31
}

#[cfg(test)]
mod tests {
    use sealane_transport::SessionLimits;
    use sealane_transport::session::Session;

    use super::*;

    fn waits(seed: u64) -> Vec<Duration> {
        let session = Session::new("ps:1", 1, SessionLimits::default());
        let mut peer = Peer::new(0, "127.0.0.1:1".parse().unwrap(), None, 7, session);
        (0..20).map(|_| peer.backoff(seed)).collect()
    }

    #[test]
    fn waits_grow_up_to_a_bound_and_no_two_processes_wait_alike() {
        let (one, other) = (waits(1), waits(2));
        assert_eq!(one, waits(1), "drawn from the seed");
        assert!(one.iter().zip(&other).all(|(one, other)| one != other));
        assert!((REDIAL_WAIT_MIN / 2..=REDIAL_WAIT_MIN).contains(&one[0]));
        assert!(one[8..].iter().all(|wait| (REDIAL_WAIT_MAX / 2..=REDIAL_WAIT_MAX).contains(wait)));
    }
}
