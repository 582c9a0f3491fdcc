//! A node's part of its shard's turn: writes what was queued, reads what came, handles timeouts.

use std::time::Instant;

use sealane_transport::error::LinkError;
use sealane_transport::{Handle, Link};

use super::Node;
use super::context::Context;
use super::peers::PeerSession;
use super::pushes::Arrivals;
use super::receiver::Rx;
use crate::limits::{READS_AT_THE_END_MAX, RECEIVE_BUDGET_BYTES};
use crate::metrics::{Operation, Run};

impl Node {
    /// One turn: writes, reads, timeouts, each bounded. Returns the work done; 0 means that there was nothing to do.
    pub fn turn(&mut self, now: Instant) -> usize {
        self.context.reporter.record_runs();
        self.context.reporter.clock = now;
        let mut work = self.transmit_dirty(now);
        work += self.retry_blocked(now);
        work += self.receive_hot(now);
        if self.exchange.is_copying() {
            work += self.exchange.copy_on(&mut self.context);
        }
        work += self.send_due_requests(now);
        work += self.pulls.wake(&mut self.context);
        if self.pulls.is_copying() {
            work += self.pulls.copy_on(&mut self.context);
        }
        work += self.row_requests.copy_on(now, &mut self.pulls, &mut self.context);
        if self.next_timeout().is_some_and(|due| due <= now) {
            self.timeouts(now);
            work += 1;
        }
        while let Some(handle) = self.exchange.next_revoked() {
            self.handle_events(handle);
            work += 1;
        }
        work + self.exchange.release_ended(&mut self.context)
    }

    /// Sends requests for tensors that have not come ahead.
    #[inline]
    fn send_due_requests(&mut self, now: Instant) -> usize {
        let mut sent = 0;
        while let Some((recv, pair)) = self.exchange.next_to_request(now, &mut self.context.reporter.outcomes.batches) {
            self.send_request_for(now, recv, pair);
            sent += 1;
        }
        sent
    }

    /// Requests the tensor of a recv that has waited: from the peer, or here if the producer is a task of this node by now.
    pub(super) fn send_request_for(&mut self, now: Instant, recv: Handle, pair: u32) {
        if let Some(producer_pair) = self.context.pairs[pair].mirror {
            return self.exchange.receive_here(now, recv, producer_pair, &mut self.context);
        }
        let session = self.session_of(pair);
        self.exchange.send_due_request(now, recv, session, &mut self.context);
    }

    fn timeouts(&mut self, now: Instant) {
        let Node { exchange, row_requests, pulls, pushes, context, .. } = self;
        exchange.expire(now, context);
        row_requests.expire(now, context);
        pulls.expire_local(now, context);
        pushes.expire_local(now, context);
        pushes.look_at_promises(now, context);
        while let Some(handle) = self.context.peers.take_due(now) {
            self.look_after(now, handle);
            self.context.reschedule(handle);
        }
    }

    /// The link of this session has bytes: read it every turn for a while.
    pub fn mark_hot(&mut self, handle: Handle) {
        self.context.peers.mark_hot(handle);
    }

    fn transmit_dirty(&mut self, now: Instant) -> usize {
        let mut work = 0;
        // Sessions that become dirty meanwhile wait for the next turn.
        for index in (0..self.context.peers.dirty()).rev() {
            if let Some(handle) = self.context.peers.take_dirty(index) {
                work += self.transmit(now, handle);
            }
        }
        work
    }

    /// Retries links that took less than was offered. Cheaper than asking epoll while the shard spins; when it sleeps, or the link takes
    /// nothing for long, epoll watches it for writability.
    fn retry_blocked(&mut self, now: Instant) -> usize {
        let mut work = 0;
        for index in (0..self.context.peers.blocked().len()).rev() {
            let Some(handle) = self.context.peers.take_blocked(index) else { continue };
            let written = self.transmit(now, handle);
            if written > 0 {
                self.context.peers.took_something(handle);
            }
            work += written;
        }
        work
    }

    /// Moves the sessions whose link has taken nothing for long into `into`: watch their descriptors for writing until
    /// [`has_room`](Self::has_room) is called.
    pub fn take_stuck(&mut self, into: &mut Vec<Handle>) {
        self.context.peers.take_stuck(into);
    }

    /// The link of a session reports that something has come and, if `has_room`, that it can take more.
    pub fn link_told(&mut self, handle: Handle, has_room: bool) {
        let peers = &mut self.context.peers;
        peers.mark_hot(handle);
        if has_room {
            peers.has_room(handle);
            peers.mark_dirty(handle);
        }
    }

    /// The descriptor of a session's link is readable, or broken.
    pub fn link_readable(&mut self, handle: Handle) {
        self.context.peers.mark_hot(handle);
        self.context.peers.descriptor_ready(handle);
    }

    /// The link of a session has room again; false if nothing waited for it.
    pub fn has_room(&mut self, handle: Handle) -> bool {
        self.context.peers.has_room(handle)
    }

    /// Writes what one session has to send, as much as the link takes and the budget allows.
    fn transmit(&mut self, now: Instant, handle: Handle) -> usize {
        let Context { peers, settings, reporter, .. } = &mut self.context;
        let Some(written) = peers.write(now, handle, settings.fuse, self.pulls.published(), &mut reporter.counters)
        else {
            return 0;
        };
        if written.has_waits {
            self.pulls.watch_for(handle, &mut self.context);
        }
        if let Some(error) = &written.lost {
            self.read_out(now, handle);
            let farewell = self.context.peers.session(handle).and_then(farewell);
            self.lose(now, handle, farewell.as_ref().unwrap_or(error));
            return 1;
        }
        let Context { peers, settings, reporter, .. } = &mut self.context;
        peers.after_write(now, handle, &written, settings, &mut reporter.counters);
        // A link that moves payloads beside the frames returns them long after it took them.
        if written.bytes > 0 || peers.has_events(handle) {
            self.handle_events(handle);
        }
        written.bytes
    }

    fn receive_hot(&mut self, now: Instant) -> usize {
        let mut work = 0;
        if self.context.deaf {
            return work;
        }
        for index in (0..self.context.peers.hot().len()).rev() {
            let read = self.receive(now, self.context.peers.hot()[index]);
            work += read;
            self.context.peers.keep_hot(index, read);
        }
        work
    }

    fn receive(&mut self, now: Instant, handle: Handle) -> usize {
        let result = self.read(now, handle);
        if let Ok(0) = result {
            return 0;
        }
        // What came before a link ended still counts: the last answers, and a farewell.
        self.handle_events(handle);
        let Context { peers, settings, reporter, .. } = &mut self.context;
        peers.after_read(now, handle, settings, &mut reporter.counters);
        let Some(peer) = peers.get(handle) else { return 1 };
        let read = match (farewell(&peer.session), result) {
            (None, Ok(read)) => read,
            (Some(error), _) | (None, Err(error)) => {
                self.lose(now, handle, &error);
                return 1;
            }
        };
        // A tensor for a client is released in a later turn, when its outcome is in the client's ring: if the daemon dies before that, it
        // must not have told the producer that the tensor arrived.
        if peer.session.is_urgent() && !peer.is_blocked() && reporter.outcomes.clients.has_only_sends() {
            self.transmit(now, handle);
        } else if peer.session.has_output() {
            // Releases alone wait for the next turn: the task that got the tensor usually asks for more.
            self.context.peers.mark_dirty(handle);
        }
        read
    }

    /// Reads what came before a link ended, after a write has noticed the end: the last answers, and a farewell.
    #[cold]
    fn read_out(&mut self, now: Instant, handle: Handle) {
        if self.context.deaf {
            return;
        }
        for _ in 0..READS_AT_THE_END_MAX {
            if !matches!(self.read(now, handle), Ok(1..)) {
                break;
            }
        }
        self.handle_events(handle);
    }

    /// Reads what the link has, and passes it to the parts concerned; 0 if there is nothing.
    #[inline]
    fn read(&mut self, now: Instant, handle: Handle) -> Result<usize, LinkError> {
        let Node { exchange, pushes, context, .. } = self;
        let Context { peers, pairs, reporter, memory, presence, draining, .. } = context;
        let is_draining = *draining;
        peers.read(now, handle, |link, session, way, requester| {
            let (recvs, sends) = (Run::new(Operation::Recv, now), Run::new(Operation::Send, now));
            let arrivals = Arrivals { session: handle, pushes, memory };
            let mut rx =
                Rx { exchange, pairs, reporter, requester, presence, is_draining, way, now, recvs, sends, arrivals };
            let result = link.receive(&mut session.inbound_to(now, &*memory, &mut rx), RECEIVE_BUDGET_BYTES);
            if !matches!(result, Ok(0)) {
                rx.record_latencies();
            }
            result
        })
    }

    /// True if a turn would do something; what waits for a descriptor does not count.
    pub fn has_work(&self) -> bool {
        self.context.peers.dirty() > 0
            || self.exchange.has_to_release()
            || self.exchange.has_revoked()
            || self.exchange.is_copying()
            || self.pulls.is_copying()
            || self.row_requests.is_copying()
    }

    /// Moves the sessions that have a new link into `into`: watch their descriptors for reading.
    pub fn take_new_links(&mut self, into: &mut Vec<Handle>) {
        self.context.peers.take_new_links(into);
    }

    /// The sessions whose link took less than was offered: watch them for writing too while the shard sleeps.
    pub fn blocked(&self) -> &[Handle] {
        self.context.peers.blocked()
    }

    /// The link between a pair's tasks, if they have one.
    pub(crate) fn link_of(&mut self, pair: u32) -> Option<&dyn Link> {
        let session = self.session_of(pair).ok()?;
        self.link(session)
    }

    /// The link of a session, if it has one.
    pub fn link(&self, handle: Handle) -> Option<&dyn Link> {
        self.context.peers.link(handle)
    }
}

/// The error of a peer that has said goodbye, with its reason.
fn farewell(session: &PeerSession) -> Option<LinkError> {
    session.farewell().map(|reason| LinkError::WentAway(reason.into()))
}
