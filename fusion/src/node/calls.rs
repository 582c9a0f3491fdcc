//! What tasks ask of a node: send, recv, abort, cleanup.

use std::collections::HashSet;
use std::task::{Poll, Waker};
use std::time::Instant;

use sealane_runtime::Buffer;
use sealane_transport::limits::KEY_BYTES_MAX;
use sealane_transport::session::{Ask, Unanswered};
use sealane_transport::trace::Moment;
use sealane_transport::{Error, Handle, RecvOutcome, SendOutcome, Tray, Unreceived};

use super::cells::{PullWaiter, RecvWaiter, SendWaiter, Sender};
use super::{Node, Pair, draining};
use crate::rendezvous::{Deposited, Ended, EndedSteps, Meeting, Parked, Scope, Unsent};
use sealane_transport::tensor::Tensor;

/// A recv, as a task of this shard asks it.
#[derive(Debug)]
pub struct RecvRequest<'a> {
    /// The pair, from [`Node::pair`].
    pub pair: u32,
    /// The step.
    pub step: i64,
    /// The tensor's name within the step.
    pub key: &'a str,
    /// When it ends with DeadlineExceeded.
    pub deadline: Instant,
    /// The caller's memory for the tensor, if it brings any.
    pub destination: Option<Buffer>,
    /// Who is told.
    pub waiter: RecvWaiter,
    /// One of many that are asked for together: it does not wait for the window.
    pub fused: bool,
}

/// Names a request until it ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Ticket {
    /// One that is asked of a peer: the session and its id there.
    Peer {
        /// The session.
        session: Handle,
        /// The request's id there.
        request: Handle,
    },
    /// One that is asked of a task of this node.
    Local(Handle),
}

impl Node {
    /// Asks for a tensor. Its outcome goes to the waiter, errors included; the ticket cancels.
    pub fn recv(&mut self, now: Instant, recv: RecvRequest<'_>) -> Option<Ticket> {
        let Pair { local, peer, .. } = self.context.pairs[recv.pair];
        if let Some(reason) = self.ended.reason(local, recv.pair, recv.step) {
            let error = Error::Aborted { step: recv.step, reason: reason.into() };
            self.context.reporter.finish_recv(recv.waiter, Err(Unreceived { error, destination: recv.destination }));
            return None;
        }
        if self.context.draining && matches!(recv.waiter, RecvWaiter::Client(_)) {
            let refusal = draining();
            self.context
                .reporter
                .finish_recv(recv.waiter, Err(Unreceived { error: refusal, destination: recv.destination }));
            return None;
        }
        if let Some(producer_pair) = self.context.pairs[recv.pair].mirror {
            return self.recv_local(now, recv, producer_pair);
        }
        let session = match self.session_of(recv.pair) {
            Ok(session) => session,
            Err(error) => {
                self.context
                    .reporter
                    .finish_recv(recv.waiter, Err(Unreceived { error, destination: recv.destination }));
                return None;
            }
        };
        let ask = Ask {
            consumer: local,
            producer: peer,
            step: recv.step,
            key: recv.key,
            deadline: recv.deadline,
            destination: recv.destination,
            waiter: recv.waiter,
        };
        let peer = self.context.peers.get_mut(session).expect("session_of gives a live one");
        let asked = if recv.fused { peer.session.request_fused(now, ask) } else { peer.session.request(now, ask) };
        match asked {
            Ok(request) => {
                self.context.asked(now, session, recv.deadline);
                Some(Ticket::Peer { session, request })
            }
            Err((Unanswered { error, destination }, waiter)) => {
                self.context.reporter.finish_recv(waiter, Err(Unreceived { error, destination }));
                None
            }
        }
    }

    /// Gives a recv up, whose waiter then hears nothing; false if it has ended, and its waiter was told or soon will be.
    pub fn cancel(&mut self, ticket: Ticket) -> bool {
        let (session, request) = match ticket {
            Ticket::Peer { session, request } => (session, request),
            Ticket::Local(handle) => return self.cancel_local(handle),
        };
        let cancelled = self.context.peers.get_mut(session).and_then(|peer| peer.session.cancel(request));
        match cancelled {
            Some(_) => {
                self.context.peers.mark_dirty(session);
                true
            }
            None => self.cancel_moved(ticket),
        }
    }

    /// Deposits a tensor, or answers the request that waits for it. The waiter hears how it ended: released by its
    /// consumer, or an error: ResourceExhausted if the table is full, InvalidArgument if a tensor waits there
    /// already, DeadlineExceeded if nobody asked by then, Aborted if the step was.
    pub fn send(&mut self, pair: u32, step: i64, key: &str, tensor: Tensor, deadline: Instant, waiter: SendWaiter) {
        if key.len() > KEY_BYTES_MAX {
            let reason = format!("the key has {} bytes, at most {KEY_BYTES_MAX} are accepted", key.len());
            return self.context.reporter.finish_send(waiter, Err(Error::invalid(reason)));
        }
        if let Some(reason) = self.ended.reason(self.context.pairs[pair].local, pair, step) {
            let error = Error::Aborted { step, reason: reason.into() };
            return self.context.reporter.finish_send(waiter, Err(error));
        }
        if self.context.draining && matches!(waiter, SendWaiter::Client(_)) {
            return self.context.reporter.finish_send(waiter, Err(draining()));
        }
        let at = Meeting { pair, step, key };
        let mut tensor = tensor.into_parts();
        if self.context.pairs[pair].mirror.is_some() {
            let spot = self.table.spot(at);
            match self.send_local(spot, key, tensor) {
                Some(back) => tensor = back,
                None => return self.context.reporter.finish_send(waiter, Ok(())),
            }
        }
        let sender = Sender { waiter, since: self.context.reporter.clock };
        let bytes = tensor.1.len() as u64;
        let queued = || Moment::SendQueued { step, key: key.into(), bytes };
        match self.table.deposit(at, tensor, sender, deadline) {
            Ok(Deposited::Kept(deposit)) => self.context.reporter.trace(deposit, queued),
            Ok(Deposited::Wanted { by, tensor, deposit }) => {
                self.context.reporter.trace(deposit, queued);
                self.lend(by, tensor, deposit);
            }
            Err((error, sender)) => self.context.reporter.finish_send(sender.waiter, Err(error)),
        }
    }

    /// Ends a step of a local task, here and at its peers: every waiting recv of it ends with `reason`, tensors that
    /// wait are freed, and what comes later hears the same until [`cleanup`](Self::cleanup).
    pub fn abort(&mut self, local: u16, step: i64, reason: &str) {
        if self.ended.has(Scope::Task(local), step) {
            return;
        }
        self.ended.insert(Scope::Task(local), step, &EndedSteps::reason_to_keep(reason));
        for pair in self.context.pairs.of_task(local).to_vec() {
            self.end_step(pair, step, reason);
        }
        let error = Error::Aborted { step, reason: reason.into() };
        // Peers that this task has never had to do with need not hear of it.
        let pairs = self.context.pairs.of_task(local).to_vec();
        let peers = pairs.iter().map(|&pair| self.context.pairs[pair].peer);
        let addresses: HashSet<_> = peers.map(|peer| self.context.pairs.peer_address(peer)).collect();
        for handle in self.context.peers.select(|peer| addresses.contains(&peer.address)) {
            let peer = self.context.peers.get_mut(handle).expect("just selected");
            peer.session.end_requests(step, local, None, &error);
            peer.session.abort(step, local, reason);
            self.settle_events(handle);
            self.context.peers.mark_dirty(handle);
        }
        for pair in pairs {
            self.end_local_of(pair, step, &error);
        }
        if let Some(number) = self.context.pairs.number_of_local(local) {
            self.aborted(None, step, number, reason);
        }
    }

    /// Frees what is left of a step of a local task: tensors that wait end with Aborted at their senders, parked
    /// requests at their consumers. The step may be used again.
    pub fn cleanup(&mut self, local: u16, step: i64) {
        for pair in self.context.pairs.of_task(local).to_vec() {
            self.end_step(pair, step, "the step was cleaned up");
            self.ended.forget(Scope::Pair(pair), step);
        }
        self.ended.forget(Scope::Task(local), step);
    }

    /// Frees the tensors of a pair's step and refuses its parked requests.
    pub(super) fn end_step(&mut self, pair: u32, step: i64, reason: &str) {
        let error = Error::Aborted { step, reason: reason.into() };
        let ended = self.table.end_step(pair, step, &error);
        self.tell_ended(ended, &error);
    }

    /// Frees all tensors of a local task and refuses the requests that wait for them.
    pub(super) fn end_task(&mut self, local: u16, error: &Error) {
        let pairs = &self.context.pairs;
        let ended = self.table.end_pairs(|pair| pairs[pair].local == local, error);
        self.tell_ended(ended, error);
    }

    fn tell_ended(&mut self, ended: Ended<Sender>, error: &Error) {
        for Unsent { sender, .. } in ended.unsent {
            self.context.reporter.finish_send(sender.waiter, Err(error.clone()));
        }
        self.refuse_parked(ended.parked, error);
    }

    /// Refuses requests that were taken out of the table.
    pub(super) fn refuse_parked(&mut self, parked: Vec<Parked>, error: &Error) {
        for by in parked {
            match by {
                Parked::Local(handle) => self.fail_local(handle, error.clone()),
                Parked::Peer { session, id } => {
                    if let Some(peer) = self.context.peers.get_mut(session) {
                        peer.session.end_parked(id, error);
                        self.context.peers.mark_dirty(session);
                    }
                }
            }
        }
    }

    /// The cell of a future that waits for a tensor.
    pub fn open_recv(&mut self) -> Handle {
        self.context.reporter.outcomes.recv_cells.open()
    }

    /// The cell of a future that waits for a release.
    pub fn open_send(&mut self) -> Handle {
        self.context.reporter.outcomes.send_cells.open()
    }

    /// The tensor that a future waits for.
    pub fn poll_recv(&mut self, cell: Handle, waker: &Waker) -> Poll<RecvOutcome> {
        self.context.reporter.outcomes.recv_cells.poll(cell, waker)
    }

    /// The release that a future waits for.
    pub fn poll_send(&mut self, cell: Handle, waker: &Waker) -> Poll<SendOutcome> {
        self.context.reporter.outcomes.send_cells.poll(cell, waker)
    }

    /// The future is dropped: the recv is given up, its outcome too.
    pub fn close_recv(&mut self, cell: Handle, ticket: Option<Ticket>) {
        self.context.reporter.outcomes.recv_cells.close(cell);
        if let Some(ticket) = ticket {
            self.cancel(ticket);
        }
    }

    /// The future is dropped: the send goes on, nobody hears its outcome.
    pub fn close_send(&mut self, cell: Handle) {
        self.context.reporter.outcomes.send_cells.close(cell);
    }

    /// Tells a waiter how its recv ended.
    pub fn finish_recv(&mut self, waiter: RecvWaiter, outcome: RecvOutcome) {
        self.context.reporter.outcomes.finish_recv(waiter, outcome);
    }

    /// Gives a waiter the tray of its pull.
    pub fn finish_pull(&mut self, waiter: PullWaiter, tray: Tray) {
        self.context.reporter.outcomes.finish_pull(waiter, tray);
    }

    /// The cell of a future that waits for a pull.
    pub fn open_pull(&mut self) -> Handle {
        self.context.reporter.outcomes.pull_cells.open()
    }

    /// The tray that a future waits for.
    pub fn poll_pull(&mut self, cell: Handle, waker: &Waker) -> Poll<Tray> {
        self.context.reporter.outcomes.pull_cells.poll(cell, waker)
    }

    /// The future is dropped: the pull is given up. Its tray, unless a tensor is arriving in it at this moment.
    pub fn close_pull(&mut self, cell: Handle, pull: Option<Handle>) -> Option<Tray> {
        let done = self.context.reporter.outcomes.pull_cells.take(cell);
        done.or_else(|| self.cancel_pull(pull?))
    }

    /// Tells a waiter how its send ended.
    pub fn finish_send(&mut self, waiter: SendWaiter, outcome: SendOutcome) {
        self.context.reporter.outcomes.finish_send(waiter, outcome);
    }
}
