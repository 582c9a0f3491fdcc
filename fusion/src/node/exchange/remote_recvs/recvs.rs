//! Recvs from other nodes: made, cancelled and ended; and which ones send requests, and when.

use std::time::Instant;

use sealane_transport::limits::{AHEAD_TENSOR_BYTES, KEY_BYTES_MAX};
use sealane_transport::session::{RequestOptions, RequestParams};
use sealane_transport::tensor::Tensor;
use sealane_transport::trace::Moment;
use sealane_transport::wire::Fate;
use sealane_transport::{Destination, Error, Handle, Unreceived};

use super::super::batches::Batches;
use super::super::local_recvs::place;
use super::super::{Exchange, RecvRequest};
use super::arrivals::release;
use super::{Entry, Kept, RemoteRecvs};
use crate::metrics::Operation;
use crate::node::cells::{RecvWaiter, Ticket};
use crate::node::context::Context;
use crate::node::pairs::Pairs;
use crate::rendezvous::{MatchKey, requested_twice};

impl Exchange {
    /// Requests a tensor from another node's task. `session` serves the pair; if there is none, it is the reason.
    #[inline]
    pub(in crate::node) fn recv_there(
        &mut self,
        now: Instant,
        session: Result<Handle, Error>,
        recv: RecvRequest<'_>,
        context: &mut Context,
    ) -> Option<Ticket> {
        let RecvRequest { pair, step, key, deadline, destination, waiter, fused, fail_if_gone } = recv;
        let at = MatchKey { pair, step, key };
        self.remote.split_up(at.into());
        let hash = self.remote.hash(at.into());
        let failed = match (self.remote.find(hash, at.into()), session) {
            (None, _) if self.remote.posted.find(at.into()).is_some() => requested_twice(at),
            (None, Ok(_)) if key.len() > KEY_BYTES_MAX => {
                let found = key.len();
                Error::invalid(format!("the key has {found} bytes, at most {KEY_BYTES_MAX} are accepted"))
            }
            (None, Ok(session)) => {
                let takes_ahead = destination.as_ref().is_none_or(|to| to.device().is_none());
                let delay = self.remote.delayed.delay_of(pair);
                let is_delayed = takes_ahead
                    && !fail_if_gone
                    && destination.as_ref().is_none_or(|to| to.len() <= AHEAD_TENSOR_BYTES)
                    && deadline > now + delay.time()
                    && self.remote.entries.len() + self.remote.posted.recvs()
                        < context.settings.session.queued_requests_max
                    && context.has_requested(pair, session)
                    && !self.remote.large.contains(pair, key);
                let (handle, entry) = self.remote.enter(hash, at);
                (entry.since, entry.deadline, entry.takes_ahead) = (now, deadline, takes_ahead);
                (entry.options, entry.request, entry.waited) = (RequestOptions { fused, fail_if_gone }, None, None);
                entry.destination = destination;
                entry.waiter = Some(waiter);
                if is_delayed {
                    self.remote.delayed.push(delay, handle, now);
                    return Some(Ticket::Remote(handle));
                }
                return self.send_request(now, handle, session, context).then_some(Ticket::Remote(handle));
            }
            (None, Err(error)) => error,
            (Some(handle), _) => {
                let Some(kept) = self.remote.take_kept(handle) else {
                    let unreceived = Unreceived::returning(requested_twice(at), destination);
                    context.reporter.finish_recv(waiter, Err(unreceived));
                    return None;
                };
                self.hand_over(now, kept, at, (destination, waiter), context);
                return None;
            }
        };
        context.reporter.finish_recv(waiter, Err(Unreceived::returning(failed, destination)));
        None
    }

    /// A tensor has come before its recv: gives it to the recv.
    fn hand_over(
        &mut self,
        now: Instant,
        Kept { range, tensor }: Kept,
        at: MatchKey<'_>,
        (destination, waiter): (Option<Destination>, RecvWaiter),
        context: &mut Context,
    ) {
        let (meta, payload) = tensor.into_parts();
        let (consumer, limit) = (context.pairs[at.pair].local, context.settings.session.tensor_bytes_max);
        let placed = place(&context.memory, limit, consumer, destination, (&meta, &payload));
        let way = context.peers.way_of(range.session);
        let bytes = payload.len();
        match placed.and_then(|place| place.fill(payload)) {
            Ok(payload) => {
                self.remote.to_release.push((range, Fate::Taken));
                let reporter = &mut context.reporter;
                reporter.count_received(1, bytes);
                reporter.record(Operation::Recv, way, now);
                let (step, key, bytes) = (at.step, at.key, bytes as u64);
                reporter.trace(Handle::NONE, || Moment::RecvInMemory { step, key: key.into(), since: now, bytes });
                reporter.finish_recv(waiter, Ok(Tensor::from_parts(meta, payload)));
            }
            Err(unreceived) => {
                release(range, Fate::Returned, context);
                context.reporter.finish_recv(waiter, Err(unreceived));
            }
        }
    }

    /// Sends the request of a recv to the peer of a session; false if that has ended the recv.
    fn send_request(&mut self, now: Instant, handle: Handle, session: Handle, context: &mut Context) -> bool {
        let Some(entry) = self.remote.entries.get_mut(handle).filter(|entry| entry.waiter.is_some()) else {
            return false;
        };
        let known = &context.pairs[entry.pair];
        let params = RequestParams {
            consumer: known.local,
            producer: known.peer,
            step: entry.step,
            key: &entry.key,
            deadline: entry.deadline,
            destination: entry.destination.take(),
            waiter: RecvWaiter::Remote(handle),
        };
        let (pair, deadline) = (entry.pair, entry.deadline);
        let with = context.peers.session_mut(session).expect("the caller found it");
        match with.request_as(entry.since, params, entry.options) {
            Ok(request) => {
                entry.request = Some((session, request));
                // While the session waits for a link, it is not yet known whether the request will go to that peer.
                if with.is_attached() {
                    context.pairs.note_requested(pair, session);
                }
                context.requested(now, session, deadline);
                true
            }
            Err((Unreceived { error, destination }, _)) => {
                if let Some(Some(waiter)) = self.remote.remove(handle, |entry| entry.waiter.take()) {
                    context.reporter.finish_recv(waiter, Err(Unreceived { error, destination }));
                }
                false
            }
        }
    }

    /// The request of a recv was never sent: the recv may send another, with the memory that it brought.
    pub(in crate::node) fn forget_request(&mut self, handle: Handle, destination: Option<Destination>) {
        if let Some(entry) = self.remote.entries.get_mut(handle) {
            (entry.destination, entry.request) = (destination, None);
        }
    }

    /// The producer of a recv that has sent no request is a task of this node by now.
    #[cold]
    pub(in crate::node) fn receive_here(
        &mut self,
        now: Instant,
        handle: Handle,
        producer_pair: u32,
        context: &mut Context,
    ) {
        let Some(Entry { pair, step, deadline, options, key, .. }) = self.remote.entries.get(handle) else { return };
        let (pair, step, deadline, RequestOptions { fused, fail_if_gone }) = (*pair, *step, *deadline, *options);
        let key = key.clone();
        let taken = self.remote.remove(handle, |entry| (entry.waiter.take(), entry.destination.take()));
        let Some((Some(waiter), destination)) = taken else { return };
        let recv = RecvRequest { pair, step, key: &key, deadline, destination, waiter, fused, fail_if_gone };
        if let Some(ticket) = self.recv_here(now, recv, producer_pair, context) {
            self.moved(Ticket::Remote(handle), ticket);
        }
    }

    /// The next recv that has waited long enough, or is to send its request now, and its pair.
    pub(in crate::node) fn next_to_request(&mut self, now: Instant, batches: &mut Batches) -> Option<(Handle, u32)> {
        self.remote.unpost_due(now, batches);
        let RemoteRecvs { delayed, hurried, hurried_steps, entries, .. } = &mut self.remote;
        loop {
            let has_ended = |handle| entries.get(handle).is_none_or(|entry| entry.request.is_some());
            let (handle, delay) = match hurried.pop() {
                Some(handle) => (handle, None),
                None => {
                    hurried_steps.clear();
                    delayed.pop(now, has_ended).map(|(handle, delay)| (handle, Some(delay)))?
                }
            };
            if let Some(Entry { pair, waiter: Some(_), request: None, waited, .. }) = entries.get_mut(handle) {
                *waited = delay.map(|delay| (delay, now));
                return Some((handle, *pair));
            }
        }
    }

    /// Sends the request of a recv that [waited](Self::next_to_request).
    pub(in crate::node) fn send_due_request(
        &mut self,
        now: Instant,
        handle: Handle,
        session: Result<Handle, Error>,
        context: &mut Context,
    ) {
        match session {
            Ok(session) => _ = self.send_request(now, handle, session, context),
            Err(error) => self.fail_there(handle, error, context),
        }
    }

    /// Cancels a recv; false if it has ended.
    pub(in crate::node::exchange) fn cancel_there(&mut self, handle: Handle, context: &mut Context) -> bool {
        if !self.remote.waits(handle) {
            return false;
        }
        let taken = self.remote.remove(handle, |entry| (entry.waiter.take(), entry.destination.take(), entry.request));
        let Some((_, _, request)) = taken else { return false };
        if let Some((session, id)) = request
            && let Some(with) = context.peers.session_mut(session)
        {
            with.cancel(id);
            context.peers.mark_dirty(session);
        }
        true
    }

    /// Ends a recv with `error`.
    fn fail_there(&mut self, handle: Handle, error: Error, context: &mut Context) {
        let taken = self.remote.remove(handle, |entry| (entry.waiter.take(), entry.destination.take(), entry.request));
        let Some((Some(waiter), destination, request)) = taken else { return };
        let mut back = destination;
        if let Some((session, id)) = request
            && let Some(with) = context.peers.session_mut(session)
        {
            back = with.cancel(id).and_then(|(_, destination)| destination);
            context.peers.mark_dirty(session);
        }
        context.reporter.finish_recv(waiter, Err(Unreceived::returning(error, back)));
    }

    /// Ends the recvs of a pair in `step` with `error`, and gives back what came for them.
    pub(in crate::node) fn end_there_of(&mut self, pair: u32, step: i64, error: &Error, context: &mut Context) {
        let batches = &mut context.reporter.outcomes.batches;
        self.remote.unpost_those(batches, |of, at| (of, at) == (pair, step));
        self.remote.split_up_step((pair, step));
        for handle in self.remote.of_step(pair, step) {
            self.end_entry(handle, Some(error), context);
        }
    }

    /// Ends what waits for a local task, or for all, with `error`.
    pub(in crate::node) fn end_there(&mut self, local: Option<u16>, error: &Error, context: &mut Context) {
        let pairs = &context.pairs;
        let is_of = |pair: u32| local.is_none_or(|local| pairs[pair].local == local);
        self.remote.unpost_those(&mut context.reporter.outcomes.batches, |pair, _| is_of(pair));
        self.remote.split_up_pairs(is_of);
        let handles = self.remote.entries.select(|entry| is_of(entry.pair));
        for handle in handles {
            self.end_entry(handle, Some(error), context);
        }
    }

    /// Ends a recv with `error`, if one is given, or gives back a kept tensor.
    pub(super) fn end_entry(&mut self, handle: Handle, error: Option<&Error>, context: &mut Context) {
        if let Some(Kept { range, .. }) = self.remote.take_kept(handle) {
            release(range, Fate::Returned, context);
        } else if let Some(error) = error {
            self.fail_there(handle, error.clone(), context);
        }
    }

    /// A session has a new link, on which its open requests are repeated.
    pub(in crate::node) fn note_repeated(&self, session: Handle, pairs: &mut Pairs) {
        for (_, entry) in self.remote.entries.iter() {
            if entry.request.is_some_and(|(by, _)| by == session) {
                pairs.note_requested(entry.pair, session);
            }
        }
    }
}
