//! A node's part of its shard's turn: write what was queued, read what came, look at what is due.

use std::time::Instant;

use sealane_transport::error::LinkError;
use sealane_transport::link::Traits;
use sealane_transport::{Handle, Link};

use super::outcomes::Ear;
use super::peer::touch;
use super::queues::Arrivals;
use super::{Fuse, Node};
use crate::metrics::{Operation, Run};

/// Bytes read from one link in one turn at most, so that a busy link does not starve its neighbours.
const RECEIVE_BUDGET_BYTES: usize = 1 << 20;
/// Bytes written to one link at once at most; what is left waits for the next turn.
pub(super) const TRANSMIT_BUDGET_BYTES: usize = 4 << 20;
/// Turns without a byte after which a link is no longer read every turn, and its shard's epoll set tells when to. With a
/// thousand busy links fewer were no faster, and left some waiting for the epoll set's turn.
const HOT_IDLE_TURNS: u32 = 4096;
/// Turns in which a link that took less than there was is tried again, before the shard's epoll set tells when to: a peer
/// that does not read is not to cost its neighbours a system call a turn.
const BLOCKED_TURNS: u32 = 64;

impl Node {
    /// One turn: writes, reads, timeouts, each bounded. The work done; 0 means that there was nothing to do.
    pub fn turn(&mut self, now: Instant) -> usize {
        self.context.reporter.clock = now;
        let mut work = self.transmit_dirty(now);
        work += self.retry_blocked(now);
        work += self.receive_hot(now);
        if self.local.is_copying() {
            work += self.copy_on();
        }
        if !self.local_pulls.is_empty() {
            work += self.pull_on();
        }
        if self.next_timeout().is_some_and(|due| due <= now) {
            self.timeouts(now);
            work += 1;
        }
        work
    }

    fn timeouts(&mut self, now: Instant) {
        self.expire_deposits(now);
        self.expire_local(now);
        self.expire_local_pulls(now);
        self.expire_local_pushes(now);
        while let Some((time, handle)) = self.schedule.take_due(now) {
            let Some(peer) = self.peers.get_mut(handle) else { continue };
            if peer.scheduled == Some(time) {
                peer.scheduled = None;
            }
            self.look_after(now, handle);
            self.reschedule(handle);
        }
    }

    /// Enters the session's next timeout, unless an earlier one is entered.
    pub(super) fn reschedule(&mut self, handle: Handle) {
        let Some(peer) = self.peers.get(handle) else { return };
        if let Some(time) = peer.next_timeout(self.context.settings.connect_timeout, self.context.settings.lease) {
            self.schedule_by(handle, time);
        }
    }

    #[inline]
    pub(super) fn schedule_by(&mut self, handle: Handle, time: Instant) {
        let Some(peer) = self.peers.get_mut(handle) else { return };
        if peer.scheduled.is_none_or(|scheduled| time < scheduled) {
            peer.scheduled = Some(time);
            self.schedule.add(time, handle);
        }
    }

    #[inline]
    pub(super) fn mark_dirty(&mut self, handle: Handle) {
        if let Some(peer) = self.peers.get_mut(handle)
            && !peer.in_dirty
        {
            peer.in_dirty = true;
            self.dirty.push(handle);
        }
    }

    /// The link of this session has bytes: read it every turn for a while.
    pub fn mark_hot(&mut self, handle: Handle) {
        let Some(peer) = self.peers.get_mut(handle) else { return };
        peer.idle_turns = 0;
        if !peer.in_hot {
            peer.in_hot = true;
            self.hot.push(handle);
        }
    }

    fn transmit_dirty(&mut self, now: Instant) -> usize {
        let mut work = 0;
        // What becomes dirty meanwhile waits for the next turn.
        for index in (0..self.dirty.len()).rev() {
            let handle = self.dirty.swap_remove(index);
            let Some(peer) = self.peers.get_mut(handle) else { continue };
            peer.in_dirty = false;
            if !peer.blocked {
                work += self.transmit(now, handle);
            }
        }
        work
    }

    /// Tries again where a link took less than there was. Cheaper than asking epoll while the shard spins; when it
    /// sleeps, or the link takes nothing for long, epoll watches it for room.
    fn retry_blocked(&mut self, now: Instant) -> usize {
        let mut work = 0;
        for index in (0..self.blocked.len()).rev() {
            let handle = self.blocked.swap_remove(index);
            let Some(peer) = self.peers.get_mut(handle) else { continue };
            let can_be_watched = peer.link.as_ref().is_some_and(|link| link.descriptor().is_some());
            if peer.blocked_turns >= BLOCKED_TURNS && can_be_watched {
                peer.stuck = true;
                self.stuck.push(handle);
                continue;
            }
            peer.blocked_turns += 1;
            let written = self.transmit(now, handle);
            if written > 0
                && let Some(peer) = self.peers.get_mut(handle)
            {
                peer.blocked_turns = 0;
            }
            work += written;
        }
        work
    }

    /// Moves the sessions whose link has taken nothing for long into `into`: their descriptors are to be watched for writing
    /// until [`has_room`](Self::has_room) is called.
    pub fn take_stuck(&mut self, into: &mut Vec<Handle>) {
        into.append(&mut self.stuck);
    }

    /// The link of a session tells that something has come, or that it has room too.
    pub fn link_told(&mut self, handle: Handle, has_room: bool) {
        self.mark_hot(handle);
        if has_room {
            self.has_room(handle);
            self.mark_dirty(handle);
        }
    }

    /// The descriptor of a session's link is readable, or broken.
    pub fn link_readable(&mut self, handle: Handle) {
        self.mark_hot(handle);
        if let Some(link) = self.peers.get_mut(handle).and_then(|peer| peer.link.as_mut()) {
            link.descriptor_ready();
        }
    }

    /// The link of a session has room again; false if nothing waited for it.
    pub fn has_room(&mut self, handle: Handle) -> bool {
        let Some(peer) = self.peers.get_mut(handle).filter(|peer| peer.stuck) else { return false };
        (peer.stuck, peer.blocked_turns) = (false, 0);
        self.blocked.push(handle);
        true
    }

    /// Writes what one session has to say, as much as the link takes and the budget allows.
    fn transmit(&mut self, now: Instant, handle: Handle) -> usize {
        let one_message = self.context.settings.fuse == Fuse::Off;
        let mut total = 0;
        let mut error = None;
        let mut blocked = false;
        let Some(peer) = self.peers.get_mut(handle) else { return 0 };
        peer.blocked = false;
        let Some(link) = &mut peer.link else { return 0 };
        let traits = link.traits();
        peer.session.outbox().set_aside(traits.aside);
        loop {
            let filled = traits.open && peer.session.fill_from(&self.shelf, now, one_message);
            // With a write a message, a last call tells the link that nothing follows. A link that settles, or that moves
            // payloads beside the frames, has things of its own to say.
            if peer.session.outbox().is_empty() && !one_message && traits == Traits::STREAM {
                break;
            }
            let more_follows = one_message && peer.session.is_urgent();
            let budget = TRANSMIT_BUDGET_BYTES - total;
            match link.transmit(peer.session.outbox(), budget, more_follows) {
                Ok(written) => {
                    // A link that took the whole budget may take more.
                    blocked = written < budget && !peer.session.outbox().is_empty();
                    total += written;
                    peer.counters.writes += u64::from(written > 0);
                    self.context.reporter.counters.writes += u64::from(written > 0);
                }
                Err(lost) => {
                    error = Some(lost);
                    break;
                }
            }
            peer.session.collect_written();
            if blocked || !filled || total == TRANSMIT_BUDGET_BYTES {
                break;
            }
        }
        peer.counters.bytes_sent += total as u64;
        self.context.reporter.counters.messages_sent += peer.count_messages();
        touch(peer, handle, &mut self.unshown);
        let more = !blocked && traits.open && peer.session.has_output();
        let waits = peer.session.has_waits();
        peer.blocked = blocked && error.is_none();
        peer.stuck = peer.blocked && traits.tells_of_room;
        if waits {
            self.watch_for(handle);
        }
        if let Some(error) = error {
            self.lose(now, handle, &error);
            return 1;
        }
        if blocked && !traits.tells_of_room {
            self.blocked.push(handle);
        } else if more {
            self.mark_dirty(handle);
        }
        self.look_whether_open(handle);
        if total > 0 {
            self.mark_hot(handle);
        }
        // Payloads come back from a link that moves them beside the frames long after it took them.
        let has_events = self.peers.get(handle).is_some_and(|peer| peer.session.has_events());
        if total > 0 || has_events {
            self.settle_events(handle);
        }
        total
    }

    /// A link that has opened wants to be fed, and may have been told of something before.
    fn look_whether_open(&mut self, handle: Handle) {
        let Some(peer) = self.peers.get_mut(handle).filter(|peer| peer.settling) else { return };
        if peer.link.as_ref().is_some_and(|link| link.traits().open) {
            peer.settling = false;
            self.link_opened(handle);
            self.mark_dirty(handle);
            self.mark_hot(handle);
        }
    }

    fn receive_hot(&mut self, now: Instant) -> usize {
        let mut work = 0;
        for index in (0..self.hot.len()).rev() {
            let handle = self.hot[index];
            let read = self.receive(now, handle);
            work += read;
            let Some(peer) = self.peers.get_mut(handle) else {
                self.hot.swap_remove(index);
                continue;
            };
            peer.idle_turns = if read > 0 { 0 } else { peer.idle_turns + 1 };
            if peer.link.is_none() || peer.idle_turns >= HOT_IDLE_TURNS {
                peer.in_hot = false;
                self.hot.swap_remove(index);
            }
        }
        work
    }

    fn receive(&mut self, now: Instant, handle: Handle) -> usize {
        let Some(peer) = self.peers.get_mut(handle) else { return 0 };
        let Some(link) = &mut peer.link else { return 0 };
        if !peer.session.can_receive() {
            return 0;
        }
        let mut ear = Ear {
            table: &mut self.table,
            outcomes: &mut self.context.reporter.outcomes,
            counters: &mut self.context.reporter.counters,
            metrics: &self.context.reporter.metrics,
            recorder: self.context.reporter.recorder.as_ref(),
            way: peer.way,
            now,
            recvs: Run::new(Operation::Recv, now),
            sends: Run::new(Operation::Send, now),
            arrivals: Arrivals {
                session: handle,
                queues: &mut self.queues,
                streams: &mut self.streams,
                last_stream: &mut self.last_stream,
                filled_queues: &mut self.filled_queues,
            },
        };
        let mut inbound = peer.session.inbound_to(now, &self.context.memory, &mut ear);
        let result = link.receive(&mut inbound, RECEIVE_BUDGET_BYTES);
        if let Ok(0) = result {
            return 0;
        }
        ear.record_latencies();
        peer.counters.bytes_received += *result.as_ref().unwrap_or(&0) as u64;
        touch(peer, handle, &mut self.unshown);
        peer.session.heard(now);
        // What came before the end of a link counts: the last answers, and a farewell.
        self.settle_events(handle);
        let Some(peer) = self.peers.get_mut(handle) else { return 1 };
        if peer.settling {
            // It may have something to say of its own.
            self.mark_dirty(handle);
            self.look_whether_open(handle);
        } else if peer.stuck && peer.link.as_ref().is_some_and(|link| link.traits().tells_of_room) {
            // What has come may have brought credit.
            self.has_room(handle);
        }
        let Some(peer) = self.peers.get_mut(handle) else { return 1 };
        let farewell = peer.session.farewell().map(|reason| LinkError::WentAway(reason.into()));
        let read = match (farewell, result) {
            (None, Ok(read)) => read,
            (Some(error), _) | (None, Err(error)) => {
                self.lose(now, handle, &error);
                return 1;
            }
        };
        // A tensor for a client is released in a later turn, when its outcome is in the client's ring: a daemon that dies
        // before must not have told the producer that it arrived.
        if peer.session.is_urgent() && !peer.blocked && self.context.reporter.outcomes.clients.is_empty() {
            self.transmit(now, handle);
        } else if peer.session.has_output() {
            // Releases by themselves wait for the next turn: the task that got the tensor most often asks for more.
            self.mark_dirty(handle);
        }
        read
    }

    /// True if a turn would do something: nothing that waits for a descriptor counts.
    pub fn has_work(&self) -> bool {
        !self.dirty.is_empty() || self.local.is_copying() || !self.local_pulls.is_empty()
    }

    /// Moves the sessions that have a new link into `into`: their descriptors are to be watched for reading.
    pub fn take_new_links(&mut self, into: &mut Vec<Handle>) {
        into.append(&mut self.new_links);
    }

    /// The sessions whose link took less than there was: to be watched for writing too while the shard sleeps.
    pub fn blocked(&self) -> &[Handle] {
        &self.blocked
    }

    /// The link of a session, if it has one.
    pub fn link(&self, handle: Handle) -> Option<&dyn Link> {
        Some(&**self.peers.get(handle)?.link.as_ref()?)
    }
}
