//! What the parts of a node that carry calls share: passed to each as an argument while it works.

use std::time::Instant;

use sealane_transport::if_gone::IfGone;
use sealane_transport::{Error, Handle};

use super::memory::Memory;
use super::pairs::Pairs;
use super::peers::Peers;
use super::reporter::Reporter;
use super::settings::NodeSettings;
use crate::presence::{self, Presence};

/// The shared state of a node's parts; see the module.
pub(super) struct Context {
    pub(super) settings: NodeSettings,
    pub(super) pairs: Pairs,
    pub(super) peers: Peers,
    pub(super) reporter: Reporter,
    pub(super) memory: Memory,
    /// Which local tasks have a process.
    pub(super) presence: Presence,
    /// New calls of clients, and requests that would have to wait, are refused.
    pub(super) draining: bool,
    /// Nothing that comes is read: what would be taken now would be lost with the node.
    pub(super) deaf: bool,
}

impl Context {
    /// Dials the peer of a session if something waits for it and no dial is in progress.
    #[inline]
    pub(super) fn want_link(&mut self, now: Instant, session: Handle) {
        self.peers.want_link(now, session, &self.settings, &self.pairs);
    }

    /// Something was requested on a session, with this deadline.
    #[inline]
    pub(super) fn requested(&mut self, now: Instant, session: Handle, deadline: Instant) {
        // Usually other requests with an earlier deadline were made in this turn.
        if self.peers.is_looked_after(session, deadline) {
            return;
        }
        self.peers.mark_dirty(session);
        self.peers.schedule_by(session, deadline);
        self.want_link(now, session);
    }

    /// True if a pair's local task has made a request on the session's current link: the peer knows that it may send ahead.
    #[inline]
    pub(super) fn has_requested(&self, pair: u32, session: Handle) -> bool {
        self.pairs[pair].requested_there == Some(session)
            && self.peers.session(session).is_some_and(|with| with.is_attached())
    }

    /// The error for a call that must not wait for a local task that has left.
    #[inline]
    pub(super) fn gone(&self, producer: u16, fail_if_gone: bool) -> Option<Error> {
        let refused = self.presence.admit(producer, IfGone::new(fail_if_gone)).err();
        refused.map(|reason| presence::gone(self.pairs.task(producer).as_str(), reason))
    }

    /// Enters the session's next timeout, unless an earlier one is entered.
    pub(super) fn reschedule(&mut self, session: Handle) {
        self.peers.reschedule(session, &self.settings);
    }
}

/// The error of new calls while the engine drains.
pub(super) fn draining() -> Error {
    Error::unavailable("this engine", "it is draining: it finishes calls in flight and then stops")
}
