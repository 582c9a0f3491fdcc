//! Writing to a session's link, and what follows from reading it.

use std::time::Instant;

use sealane_transport::error::LinkError;
use sealane_transport::link::Traits;
use sealane_transport::session::Store;
use sealane_transport::{Handle, Link};

use super::lists::touch;
use super::{Peer, PeerSession, Peers};
use crate::limits::TRANSMIT_BUDGET_BYTES;
use crate::metrics::Way;
use crate::node::counters::Counters;
use crate::node::exchange::Requester;
use crate::node::settings::{Fuse, NodeSettings};

/// The result of a write.
pub(in crate::node) struct Written {
    pub(in crate::node) bytes: usize,
    /// The link is lost.
    pub(in crate::node) lost: Option<LinkError>,
    /// Pulls of the session wait for tensors that are not there.
    pub(in crate::node) has_waits: bool,
    /// The link took less than was offered.
    blocked: bool,
    /// The link reports when it can take more.
    tells_of_room: bool,
    /// There is more to write, in another turn.
    more: bool,
}

impl Peers {
    /// Writes what one session has to send, as much as its link takes and the budget allows; `None` without a link.
    pub(in crate::node) fn write(
        &mut self,
        now: Instant,
        handle: Handle,
        fuse: Fuse,
        store: &impl Store,
        counters: &mut Counters,
    ) -> Option<Written> {
        let peer = self.arena.get_mut(handle)?;
        peer.blocked = false;
        let traits = peer.link.as_ref()?.traits();
        let mut written = Written {
            bytes: 0,
            lost: None,
            has_waits: false,
            blocked: false,
            tells_of_room: traits.tells_of_room,
            more: false,
        };
        write_to(peer, now, (fuse, traits), store, &mut written, counters);
        peer.counters.bytes_sent += written.bytes as u64;
        counters.messages_sent += peer.count_messages();
        touch(peer, handle, &mut self.lists.unshown);
        written.more = !written.blocked && traits.open && peer.session.has_output();
        written.has_waits = peer.session.has_waits();
        peer.blocked = written.blocked && written.lost.is_none();
        peer.stuck = peer.blocked && traits.tells_of_room;
        Some(written)
    }

    /// Puts a session on its lists after a write, if its link has survived it.
    pub(in crate::node) fn after_write(
        &mut self,
        now: Instant,
        handle: Handle,
        written: &Written,
        settings: &NodeSettings,
        counters: &mut Counters,
    ) {
        debug_assert!(written.lost.is_none(), "a link that is gone would be written to");
        if written.blocked && !written.tells_of_room {
            self.mark_blocked(handle);
        } else if written.more {
            self.mark_dirty(handle);
        }
        self.look_whether_open(now, handle, settings, counters);
        if written.bytes > 0 {
            self.mark_hot(handle);
        }
    }

    /// Calls `read` on the link of a session, if it has one that can be read; returns the bytes read.
    #[inline]
    pub(in crate::node) fn read(
        &mut self,
        now: Instant,
        handle: Handle,
        read: impl FnOnce(&mut dyn Link, &mut PeerSession, Way, Requester<'_>) -> Result<usize, LinkError>,
    ) -> Result<usize, LinkError> {
        let Some(peer) = self.arena.get_mut(handle) else { return Ok(0) };
        let Some(link) = &mut peer.link else { return Ok(0) };
        if !peer.session.can_receive() {
            return Ok(0);
        }
        let requester = Requester { session: handle, traced_as: peer.traced_as, last_pair: &mut peer.last_pair };
        let result = read(&mut **link, &mut peer.session, peer.way, requester);
        if !matches!(result, Ok(0)) {
            peer.counters.bytes_received += *result.as_ref().unwrap_or(&0) as u64;
            touch(peer, handle, &mut self.lists.unshown);
            peer.session.heard(now);
        }
        result
    }

    /// After what was read from a session's link has been handled: checks whether the link has opened, or has room.
    #[inline]
    pub(in crate::node) fn after_read(
        &mut self,
        now: Instant,
        handle: Handle,
        settings: &NodeSettings,
        counters: &mut Counters,
    ) {
        let Some(peer) = self.arena.get_mut(handle) else { return };
        if peer.is_negotiating {
            // The link may have something of its own to send.
            self.mark_dirty(handle);
            self.look_whether_open(now, handle, settings, counters);
        } else if peer.stuck && peer.link.as_ref().is_some_and(|link| link.traits().tells_of_room) {
            // What came may have brought credit.
            self.has_room(handle);
        }
    }

    /// A link that has just opened can be written to, and may already have been notified of data to read.
    #[inline]
    fn look_whether_open(&mut self, now: Instant, handle: Handle, settings: &NodeSettings, counters: &mut Counters) {
        if self.arena.get(handle).is_some_and(|peer| peer.is_negotiating) {
            self.check_negotiation(now, handle, settings, counters);
        }
    }

    fn check_negotiation(&mut self, now: Instant, handle: Handle, settings: &NodeSettings, counters: &mut Counters) {
        let Some(peer) = self.arena.get_mut(handle) else { return };
        if peer.link.as_ref().is_some_and(|link| link.traits().open) {
            peer.is_negotiating = false;
            self.link_opened(now, handle, settings, counters);
            self.mark_dirty(handle);
            self.mark_hot(handle);
        }
    }
}

/// Writes to the link of a session until it takes no more, there is nothing left, or the budget is used up.
#[inline]
fn write_to(
    peer: &mut Peer,
    now: Instant,
    (fuse, traits): (Fuse, Traits),
    store: &impl Store,
    written: &mut Written,
    counters: &mut Counters,
) {
    let one_message = fuse == Fuse::Off;
    let Some(link) = &mut peer.link else { return };
    peer.session.outbox().set_traits(traits);
    loop {
        let filled = traits.open && peer.session.fill_from(store, now, one_message);
        // If each message is a write, a last call tells the link that nothing follows. A link that is being negotiated, or that moves
        // payloads beside the frames, has things of its own to send.
        if peer.session.outbox().is_empty() && !one_message && traits == Traits::STREAM {
            return;
        }
        let more_follows = one_message && peer.session.is_urgent();
        let budget = TRANSMIT_BUDGET_BYTES - written.bytes;
        match link.transmit(peer.session.outbox(), budget, more_follows) {
            Ok(bytes) => {
                debug_assert!(bytes <= budget, "a link that takes more than it was given would starve its neighbours");
                // A link that took the whole budget may be able to take more.
                written.blocked = bytes < budget && !peer.session.outbox().is_empty();
                written.bytes += bytes;
                peer.counters.writes += u64::from(bytes > 0);
                counters.writes += u64::from(bytes > 0);
            }
            Err(lost) => {
                written.lost = Some(lost);
                return;
            }
        }
        peer.session.collect_written();
        if written.blocked || !filled || written.bytes == TRANSMIT_BUDGET_BYTES {
            return;
        }
    }
}
