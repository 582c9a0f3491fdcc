//! Lists of sessions that need attention. A flag in each session says whether it is on a list, so that it is there only once.
//!
//! A list may still name a session that is gone, until the list is next processed.

use sealane_transport::Handle;

use super::{Peer, Peers};
use crate::limits::{BLOCKED_TURNS, HOT_IDLE_TURNS};

/// The lists of sessions; see the module.
#[derive(Default)]
pub(super) struct Lists {
    /// Sessions with something to send.
    pub(super) dirty: Vec<Handle>,
    /// Sessions whose link took less than was offered.
    pub(super) blocked: Vec<Handle>,
    /// Sessions whose link has taken nothing for long, not yet taken by the owner.
    pub(super) stuck: Vec<Handle>,
    /// Sessions whose link is read every turn.
    pub(super) hot: Vec<Handle>,
    /// Sessions with a new link, not yet taken by the owner.
    pub(super) new_links: Vec<Handle>,
    /// Sessions whose counters have changed since they were published.
    pub(super) unshown: Vec<Handle>,
}

/// The counters of a session have changed: they must be published.
#[inline]
pub(super) fn touch(peer: &mut Peer, handle: Handle, unshown: &mut Vec<Handle>) {
    if !std::mem::replace(&mut peer.is_touched, true) {
        unshown.push(handle);
    }
}

impl Peers {
    /// The session has something to send.
    #[inline]
    pub(in crate::node) fn mark_dirty(&mut self, handle: Handle) {
        if let Some(peer) = self.arena.get_mut(handle)
            && !peer.in_dirty
        {
            peer.in_dirty = true;
            self.lists.dirty.push(handle);
        }
    }

    #[inline]
    pub(in crate::node) fn dirty(&self) -> usize {
        self.lists.dirty.len()
    }

    /// Takes a session from the list of those with something to send; `None` if its link is blocked.
    #[inline]
    pub(in crate::node) fn take_dirty(&mut self, index: usize) -> Option<Handle> {
        let handle = self.lists.dirty.swap_remove(index);
        let peer = self.arena.get_mut(handle)?;
        debug_assert!(peer.in_dirty, "it is on the list twice, and would be written to twice");
        peer.in_dirty = false;
        (!peer.blocked).then_some(handle)
    }

    /// The link of this session has bytes: read it every turn for a while.
    pub(in crate::node) fn mark_hot(&mut self, handle: Handle) {
        let Some(peer) = self.arena.get_mut(handle) else { return };
        peer.idle_turns = 0;
        if !peer.in_hot {
            peer.in_hot = true;
            self.lists.hot.push(handle);
        }
    }

    /// Sessions whose link is read every turn.
    #[inline]
    pub(in crate::node) fn hot(&self) -> &[Handle] {
        &self.lists.hot
    }

    /// `read` bytes were read from the link of the session at `index`: it stays on the list unless it is idle for long, or gone.
    #[inline]
    pub(in crate::node) fn keep_hot(&mut self, index: usize, read: usize) {
        let Some(peer) = self.arena.get_mut(self.lists.hot[index]) else {
            self.lists.hot.swap_remove(index);
            return;
        };
        debug_assert!(peer.in_hot, "it is on the list twice, and would be read twice");
        peer.idle_turns = if read > 0 { 0 } else { peer.idle_turns + 1 };
        if peer.link.is_none() || peer.idle_turns >= HOT_IDLE_TURNS {
            peer.in_hot = false;
            self.lists.hot.swap_remove(index);
        }
    }

    /// The sessions whose link took less than was offered.
    #[inline]
    pub(in crate::node) fn blocked(&self) -> &[Handle] {
        &self.lists.blocked
    }

    /// The link of a session took less than was offered.
    pub(super) fn mark_blocked(&mut self, handle: Handle) {
        if let Some(peer) = self.arena.get_mut(handle)
            && !peer.in_blocked
        {
            peer.in_blocked = true;
            self.lists.blocked.push(handle);
        }
    }

    /// Takes a session from the list of blocked ones, to retry it; `None` if it has been retried for long, and its owner must watch it for
    /// writability.
    #[inline]
    pub(in crate::node) fn take_blocked(&mut self, index: usize) -> Option<Handle> {
        let handle = self.lists.blocked.swap_remove(index);
        let peer = self.arena.get_mut(handle)?;
        debug_assert!(peer.in_blocked, "it is on the list twice, and would be tried twice a turn");
        peer.in_blocked = false;
        let can_be_watched = peer.link.as_ref().is_some_and(|link| link.descriptor().is_some());
        if peer.blocked_turns >= BLOCKED_TURNS && can_be_watched {
            peer.stuck = true;
            self.lists.stuck.push(handle);
            return None;
        }
        peer.blocked_turns += 1;
        Some(handle)
    }

    /// The link of a session that was retried has taken something.
    pub(in crate::node) fn took_something(&mut self, handle: Handle) {
        if let Some(peer) = self.arena.get_mut(handle) {
            peer.blocked_turns = 0;
        }
    }

    /// The link of a session has room again; false if nothing waited for it.
    pub(in crate::node) fn has_room(&mut self, handle: Handle) -> bool {
        let Some(peer) = self.arena.get_mut(handle).filter(|peer| peer.stuck) else { return false };
        (peer.stuck, peer.blocked_turns) = (false, 0);
        self.mark_blocked(handle);
        true
    }

    pub(in crate::node) fn take_stuck(&mut self, into: &mut Vec<Handle>) {
        into.append(&mut self.lists.stuck);
    }

    pub(in crate::node) fn take_new_links(&mut self, into: &mut Vec<Handle>) {
        into.append(&mut self.lists.new_links);
    }
}
