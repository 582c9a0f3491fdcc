//! What sessions report, carried to the table and to those who wait.

use std::time::{Duration, Instant};

use sealane_transport::session::{Asked, Event};
use sealane_transport::trace::Moment;
use sealane_transport::{Error, Handle, Payload, Unreceived};

use super::cells::RecvWaiter;
use super::{Node, STRANGER, draining};
use crate::metrics::{Operation, Way};
use crate::rendezvous::{EndedSteps, Found, Late, Meeting, Parked, Scope, Settled, Unsent};
use sealane_transport::tensor::{Tensor, TensorMeta};

/// How much longer than its deadline a peer's request is kept: the peer ends it at its deadline and takes it back, and one that
/// does not is to cost nothing after this.
const PARKED_GRACE: Duration = Duration::from_secs(1);

impl Node {
    /// Handles all that a session has to report.
    pub(super) fn settle_events(&mut self, handle: Handle) {
        let mut events = std::mem::take(&mut self.events);
        while let Some(peer) = self.context.peers.get_mut(handle).filter(|peer| peer.session.has_events()) {
            peer.session.swap_events(&mut events);
            for event in events.drain(..) {
                self.settle_event(handle, event);
            }
        }
        self.events = events;
        if !self.filled_queues.is_empty() {
            self.settle_queues();
        }
    }

    #[inline]
    fn settle_event(&mut self, handle: Handle, event: Event<RecvWaiter, Handle>) {
        match event {
            Event::Asked(asked) => self.asked(handle, asked),
            Event::Withdrawn(id) => {
                if self.table.withdraw(Parked::Peer { session: handle, id })
                    && let Some(peer) = self.context.peers.get_mut(handle)
                {
                    peer.session.unpark();
                }
            }
            Event::Answered { waiter, answer } => {
                let outcome = match *answer {
                    Ok(arrived) => {
                        self.context.reporter.count_received(arrived.buffer.len());
                        Tensor::from_wire(&arrived.meta, arrived.buffer).map_err(|error| {
                            let peer = self.context.peers.name_of(handle);
                            Unreceived::from(Error::unavailable(peer, format!("it sent a bad tensor: {error}")))
                        })
                    }
                    Err(unanswered) => Err(Unreceived { error: unanswered.error, destination: unanswered.destination }),
                };
                self.context.reporter.finish_recv(waiter, outcome);
            }
            Event::Settled { deposit, tensor, taken } => {
                let (meta, payload) = *tensor;
                let (bytes, way) = (payload.len() as u64, self.context.peers.way_of(handle));
                self.settled_as(deposit, (TensorMeta::from_own_wire(meta), payload), bytes, taken, way);
            }
            Event::Pulled { waiter, tray } => {
                let RecvWaiter::Pull(pull) = waiter else { unreachable!("pulls are asked with their own names") };
                let mut missing = tray.len();
                for index in 0..tray.len() {
                    if let Ok(tensor) = tray.get(index) {
                        self.context.reporter.count_received(tensor.len());
                        missing -= 1;
                    }
                }
                if let Some(pull) = self.pulls.get(pull).filter(|_| missing == 0) {
                    self.context.reporter.record(Operation::Pull, self.context.peers.way_of(handle), pull.since);
                }
                self.pulled(pull, tray);
            }
            Event::Pushed { .. } => unreachable!("pushes come to the node's ear"),
            Event::PushEnded { deposit, count, outcome } => self.push_ended(deposit, count, outcome),
            Event::Opened(opened) => self.stream_opened(handle, opened),
            Event::Closed { streams } => self.streams_closed(handle, &streams),
            Event::Named(named) => self.named(handle, named),
            Event::Forgotten { slots } => self.shelf.let_go(&slots),
            Event::Aborted { step, peer_task, reason } => self.aborted(Some(handle), step, peer_task, &reason),
        }
    }

    fn asked(&mut self, handle: Handle, asked: Asked) {
        let ends = (asked.producer, asked.consumer);
        let peer = self.context.peers.get_mut(handle).expect("its session just reported");
        let pair = match peer.last_pair {
            Some((last, pair)) if last == ends => pair,
            _ if asked.consumer == STRANGER => {
                let reason = "the asking task is not in the endpoint map of the asked host".into();
                let task = "the asking task".into();
                peer.session.refuse(asked.id, &Error::NotFound { task, reason });
                return;
            }
            _ => {
                let pair = self.context.pairs.pair_of(asked.producer, asked.consumer);
                self.context.peers.get_mut(handle).expect("still there").last_pair = Some((ends, pair));
                pair
            }
        };
        let peer = self.context.peers.get_mut(handle).expect("still there");
        if !self.context.pairs[pair].owned {
            let reason = "the pair is served by another shard: the two sides disagree on lanes";
            peer.session.refuse(asked.id, &Error::invalid(reason));
            return;
        }
        if let Some(reason) = self.ended.reason(asked.producer, pair, asked.step) {
            peer.session.refuse(asked.id, &Error::Aborted { step: asked.step, reason: reason.into() });
            return;
        }
        let at = Meeting { pair, step: asked.step, key: peer.session.key(&asked) };
        match self.table.want(at, Parked::Peer { session: handle, id: asked.id }) {
            Ok(Found::Tensor((meta, payload), deposit)) => {
                let session = peer.traced_as;
                match peer.session.answer(asked.id, meta.into_wire(), payload, deposit) {
                    Ok(answer) => self.context.reporter.trace(deposit, || Moment::SendMatched { session, answer }),
                    Err((meta, payload, deposit)) => {
                        self.settled(deposit, (TensorMeta::from_own_wire(meta), payload), false);
                    }
                }
            }
            Ok(Found::Parked) if self.context.draining => {
                self.table.withdraw(Parked::Peer { session: handle, id: asked.id });
                peer.session.refuse(asked.id, &draining());
            }
            Ok(Found::Parked) => {
                peer.session.park(asked.id);
                let until = self.context.reporter.clock + Duration::from_millis(asked.timeout_ms.into()) + PARKED_GRACE;
                self.table.park_until(Parked::Peer { session: handle, id: asked.id }, until);
            }
            Err(error) => peer.session.refuse(asked.id, &error),
        }
    }

    /// Hands a tensor to a request that waited for it.
    pub(super) fn lend(&mut self, by: Parked, (meta, payload): (TensorMeta, Payload), deposit: Handle) {
        let (session, id) = match by {
            Parked::Peer { session, id } => (session, id),
            Parked::Local(handle) => return self.lend_local(handle, (meta, payload), deposit),
        };
        let Some(peer) = self.context.peers.get_mut(session) else {
            // Sessions leave the table before they go.
            return self.settled(deposit, (meta, payload), false);
        };
        peer.session.unpark();
        let traced_as = peer.traced_as;
        let answered = peer.session.answer(id, meta.into_wire(), payload, deposit);
        self.context.peers.mark_dirty(session);
        match answered {
            Ok(answer) => self.context.reporter.trace(deposit, || Moment::SendMatched { session: traced_as, answer }),
            Err((meta, payload, deposit)) => {
                self.settled(deposit, (TensorMeta::from_own_wire(meta), payload), false);
            }
        }
    }

    /// A tensor that was lent to a task of this node, or to nobody after all, is back.
    pub(super) fn settled(&mut self, deposit: Handle, tensor: (TensorMeta, Payload), taken: bool) {
        let bytes = tensor.1.len() as u64;
        self.settled_as(deposit, tensor, bytes, taken, Way::Memory);
    }

    /// A tensor of `bytes` that was lent is back, or taken; its payload may have changed hands already.
    pub(super) fn settled_as(
        &mut self,
        deposit: Handle,
        tensor: (TensorMeta, Payload),
        bytes: u64,
        taken: bool,
        way: Way,
    ) {
        match self.table.settle(deposit, tensor, taken) {
            Settled::Taken(sender) => {
                self.context.reporter.counters.tensors_sent += 1;
                self.context.reporter.counters.bytes_sent += bytes;
                self.context.reporter.record(Operation::Send, way, sender.since);
                self.context.reporter.trace(deposit, || Moment::SendReleased);
                self.context.reporter.finish_send(sender.waiter, Ok(()));
            }
            Settled::Kept | Settled::Gone => {}
            Settled::Wanted { by, tensor, deposit } => self.lend(by, tensor, deposit),
            Settled::Displaced(sender, error) => self.context.reporter.finish_send(sender.waiter, Err(error)),
        }
    }

    /// A peer's task ends a step: `handle` is the session that says so, none for a task of this node.
    pub(super) fn aborted(&mut self, handle: Option<Handle>, step: i64, peer_task: u32, reason: &str) {
        if peer_task == STRANGER {
            return;
        }
        let known = &self.context.pairs;
        let pairs: Vec<_> = known.of_peer(peer_task).iter().map(|&pair| (pair, known[pair].local)).collect();
        // Said before, and so done: a peer that repeats itself costs no second look at the table.
        if pairs.iter().all(|&(pair, local)| self.ended.reason(local, pair, step).is_some()) {
            return;
        }
        let error = Error::Aborted { step, reason: reason.into() };
        let kept = EndedSteps::reason_to_keep(reason);
        for &(pair, local) in &pairs {
            self.ended.insert(Scope::Pair(pair), step, &kept);
            match handle.and_then(|handle| self.context.peers.get_mut(handle)) {
                Some(peer) => peer.session.end_requests(step, local, Some(peer_task), &error),
                None => self.end_local_of(pair, step, &error),
            }
        }
        for (pair, _) in pairs {
            self.end_step(pair, step, reason);
        }
    }

    /// Ends what has waited past its deadline in the table.
    pub(super) fn expire_deposits(&mut self, now: Instant) {
        let late = self.table.expire_parked(now);
        if !late.is_empty() {
            let error = Error::Aborted { step: 0, reason: "its deadline was over, and nobody took it back".into() };
            self.refuse_parked(late, &error);
        }
        let outcomes = &mut self.context.reporter.outcomes;
        let unsent = self.table.expire(now, |sender, Late { key, step, deadline }| {
            let waited = deadline.saturating_duration_since(sender.since);
            let (operation, key, delivery_unknown) = (Operation::Send, key.into(), true);
            let error = Error::DeadlineExceeded { operation, step, key, waited, delivery_unknown };
            outcomes.send_is_late(sender, error.clone());
            error
        });
        for Unsent { sender, key, step, deadline } in unsent {
            let waited = deadline.saturating_duration_since(sender.since);
            self.context.reporter.finish_send(sender.waiter, Err(Error::late(Operation::Send, step, key, waited)));
        }
    }
}
