//! What the parts of a node share that carry calls: lent to each by argument, while the part itself is at work.

use std::time::Instant;

use sealane_transport::if_gone::IfGone;
use sealane_transport::{Error, Handle};

use super::memory::Memory;
use super::pairs::Pairs;
use super::peers::Peers;
use super::reporter::Reporter;
use super::settings::NodeSettings;
use crate::presence::{self, Presence};

/// See the module.
pub(super) struct Context {
    pub(super) settings: NodeSettings,
    pub(super) pairs: Pairs,
    pub(super) peers: Peers,
    pub(super) reporter: Reporter,
    pub(super) memory: Memory,
    /// Which local tasks have a process.
    pub(super) presence: Presence,
    /// No new calls of clients, and no requests that would have to wait.
    pub(super) draining: bool,
    /// Nothing that comes is read: what would be taken now would be lost with the node.
    pub(super) deaf: bool,
}

impl Context {
    /// Calls the peer of a session if something waits for it and no call is in progress.
    #[inline]
    pub(super) fn want_link(&mut self, now: Instant, session: Handle) {
        self.peers.want_link(now, session, &self.settings, &self.pairs);
    }

    /// Something was asked of a session that is to end by `deadline`.
    #[inline]
    pub(super) fn asked(&mut self, now: Instant, session: Handle, deadline: Instant) {
        // Most often others were asked in this turn, and sooner.
        if self.peers.is_looked_after(session, deadline) {
            return;
        }
        self.peers.mark_dirty(session);
        self.peers.schedule_by(session, deadline);
        self.want_link(now, session);
    }

    /// True if a pair's local task has asked on the link that the session has now: the peer knows that it may send ahead.
    #[inline]
    pub(super) fn has_asked(&self, pair: u32, session: Handle) -> bool {
        self.pairs[pair].asked_there == Some(session)
            && self.peers.session(session).is_some_and(|with| with.is_attached())
    }

    /// The error of a call that does not wait for a local task which has left, if it has.
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

/// What new calls hear while the engine drains.
pub(super) fn draining() -> Error {
    Error::unavailable("this engine", "it is draining: it finishes calls in flight and then stops")
}
