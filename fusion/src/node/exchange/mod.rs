//! Where sends and recvs meet: the rendezvous, the recvs between tasks of this node, and the steps that have ended.

mod ahead;
pub(super) mod batches;
mod large_keys;
mod local_recvs;
mod received;
mod remote_recvs;
mod steps;

use std::time::{Duration, Instant};

use hashbrown::HashMap;
use sealane_runtime::earliest;
use sealane_transport::limits::KEY_BYTES_MAX;
use sealane_transport::session::{PeerRequest, RequestParams};
use sealane_transport::trace::Moment;
use sealane_transport::wire::WireError;
use sealane_transport::{Destination, Error, Handle, Payload, Unreceived};

use super::cells::{RecvWaiter, SendWaiter, Sender, Ticket};
use super::context::{Context, draining};
use super::pairs::{Pairs, STRANGER};
use super::peers::{PeerSession, Peers};
use super::reporter::Reporter;
use super::row_requests::PullRowsRequest;
use super::settings::NodeSettings;
use crate::limits::PARKED_GRACE;
use crate::metrics::{Operation, Way};
use crate::presence::{self, Presence};
use crate::rendezvous::{EndedSteps, Found, Late, MatchKey, Parked, RawMatchKey, Released, Sent, Table, Unsent};
use ahead::SentAhead;
pub(super) use ahead::traced as traced_ahead;
pub use batches::{BatchWaiter, FusedRequest};
use local_recvs::LocalRecvs;
pub use received::ReceivedBatch;
use remote_recvs::RemoteRecvs;
pub(super) use remote_recvs::ToPost;
use sealane_transport::tensor::{IntoTensor, TensorMeta};

/// A recv, as a task of this shard requests it.
#[derive(Debug)]
pub struct RecvRequest<'a> {
    /// The pair, from [`Node::pair`](super::Node::pair).
    pub pair: u32,
    /// The step.
    pub step: i64,
    /// The tensor's name within the step.
    pub key: &'a str,
    /// When it ends with DeadlineExceeded.
    pub deadline: Instant,
    /// The caller's memory for the tensor, if it brings any.
    pub destination: Option<Destination>,
    /// Who gets the outcome.
    pub waiter: RecvWaiter,
    /// One of many requested together: it does not wait for the window.
    pub fused: bool,
    /// Fail at once if the producer has left.
    pub fail_if_gone: bool,
}

/// The session through which a peer's requests come, while it is lent to its link.
pub(super) struct Requester<'a> {
    pub(super) session: Handle,
    /// The session's id in traces.
    pub(super) traced_as: u64,
    /// The pair of its last request, which usually is also that of the next.
    pub(super) last_pair: &'a mut LastPair,
}

/// (Producer, consumer) and the number of their pair.
pub(super) type LastPair = Option<((u16, u32), u32)>;

/// The exchange of a node; see the module.
pub(super) struct Exchange {
    table: Table<Sender>,
    ended: EndedSteps,
    local: LocalRecvs,
    remote: RemoteRecvs,
    ahead: SentAhead,
    /// Requests for rows that moved to another session than their tickets name.
    moved: HashMap<Ticket, Ticket>,
}

impl Exchange {
    pub(super) fn new(settings: &NodeSettings) -> Exchange {
        Exchange {
            table: Table::new(settings.pending_sends_max),
            ended: EndedSteps::default(),
            local: LocalRecvs::new(settings.session.queued_requests_max),
            remote: RemoteRecvs::new(),
            ahead: SentAhead::new(),
            moved: HashMap::new(),
        }
    }

    /// Tensors that wait or are matched, or were sent ahead.
    pub(super) fn pending_sends(&self) -> usize {
        self.table.pending_sends() + self.ahead.len()
    }

    /// Requests that wait here.
    pub(super) fn parked(&self) -> usize {
        self.table.parked()
    }

    /// The table, which releases the tensors that a session's peer has taken.
    pub(super) fn table(&mut self) -> &mut Table<Sender> {
        &mut self.table
    }

    /// Recvs from tasks of other nodes, and tensors that came before their recvs.
    pub(super) fn remote(&mut self) -> &mut RemoteRecvs {
        &mut self.remote
    }

    /// What was sent ahead.
    pub(super) fn ahead(&mut self) -> &mut SentAhead {
        &mut self.ahead
    }

    /// When [`expire`](Self::expire) must be called at the latest, or a recv is to [send its request](Self::next_to_request).
    #[inline]
    pub(super) fn next_deadline(&self) -> Option<Instant> {
        let (remote, ahead) = (self.remote.next_deadline(), self.ahead.next_deadline());
        earliest([self.table.next_deadline(), self.local.next_deadline(), remote, ahead])
    }

    /// True if a step of a pair has ended for its local task.
    pub(super) fn has_ended(&self, local: u16, pair: u32, step: i64) -> bool {
        self.ended.reason(local, pair, step).is_some()
    }

    /// The error that ends a recv before it begins, if there is one.
    #[inline]
    pub(super) fn refusal(&self, recv: &RecvRequest<'_>, local: u16, is_draining: bool) -> Option<Error> {
        if let Some(reason) = self.ended.reason(local, recv.pair, recv.step) {
            return Some(Error::Aborted { step: recv.step, reason: reason.into() });
        }
        (is_draining && matches!(recv.waiter, RecvWaiter::Client(_))).then(draining)
    }

    /// Cancels a recv, whose waiter then hears nothing; false if it has ended, and its waiter was told or soon will be.
    pub(super) fn cancel(&mut self, ticket: Ticket, context: &mut Context) -> bool {
        let is_cancelled = match ticket {
            Ticket::Peer { session, request } => {
                let cancelled = context.peers.session_mut(session).and_then(|with| with.cancel(request));
                context.peers.mark_dirty(session);
                cancelled.is_some()
            }
            Ticket::Local(handle) => self.cancel_here(handle),
            Ticket::Remote(handle) => self.cancel_there(handle, context),
            Ticket::Rows(_) => unreachable!("the node looks for rows"),
        };
        // It may have moved since its ticket was issued.
        is_cancelled || self.moved.remove(&ticket).is_some_and(|moved| self.cancel(moved, context))
    }

    /// The current ticket of a request.
    pub(super) fn follow(&self, mut ticket: Ticket) -> Ticket {
        while let Some(next) = self.moved.get(&ticket) {
            ticket = *next;
        }
        ticket
    }

    /// Requests rows of tables from the peer of a session.
    pub(super) fn rows_there(
        &mut self,
        now: Instant,
        session: Handle,
        request: PullRowsRequest<'_>,
        context: &mut Context,
    ) -> Option<Ticket> {
        let PullRowsRequest { pair, rows, min_version: step, deadline, fail_if_gone, waiter, .. } = request;
        let (consumer, producer) = (context.pairs[pair].local, context.pairs[pair].peer);
        let key = rows.title();
        let params = RequestParams { consumer, producer, step, key: &key, deadline, destination: None, waiter };
        let with = context.peers.session_mut(session).expect("the caller found it");
        match with.request_rows(now, params, rows, fail_if_gone) {
            Ok(request) => {
                context.requested(now, session, deadline);
                Some(Ticket::Peer { session, request })
            }
            Err((Unreceived { error, destination }, waiter)) => {
                context.reporter.finish_recv(waiter, Err(Unreceived { error, destination }));
                None
            }
        }
    }

    /// A request has moved to another session than its ticket names.
    pub(super) fn moved(&mut self, from: Ticket, to: Ticket) {
        debug_assert_ne!(from, to, "cancelling the request would never find it");
        self.moved.insert(from, to);
    }

    /// Forgets moves of requests that have ended: what is kept is bounded by the open requests.
    pub(super) fn forget_ended_moves(&mut self, peers: &Peers) {
        let Self { moved, local, remote, .. } = self;
        let is_open = |ticket: &Ticket| match *ticket {
            Ticket::Peer { session, request } => peers.session(session).is_some_and(|with| with.is_waiting(request)),
            Ticket::Local(handle) => local.is_there(handle),
            Ticket::Remote(handle) => remote.waits(handle),
            Ticket::Rows(_) => false,
        };
        let ended = |mut ticket: Ticket| {
            while let Some(next) = moved.get(&ticket) {
                ticket = *next;
            }
            !is_open(&ticket)
        };
        let ended: Vec<_> = moved.keys().copied().filter(|ticket| ended(*ticket)).collect();
        for ticket in ended {
            self.moved.remove(&ticket);
        }
    }

    /// Sends tensors of a pair and a step, by key, or answers the requests that wait for them. For several tensors the waiter is a group.
    #[inline]
    pub(super) fn send<K: AsRef<str>, T: IntoTensor>(
        &mut self,
        (pair, step): (u32, i64),
        mut tensors: impl ExactSizeIterator<Item = (K, T)>,
        deadline: Instant,
        mut waiter: SendWaiter,
        context: &mut Context,
    ) {
        let refused = if let Some(reason) = self.ended.reason(context.pairs[pair].local, pair, step) {
            Some(Error::Aborted { step, reason: reason.into() })
        } else {
            (context.draining && matches!(waiter, SendWaiter::Client(_))).then(draining)
        };
        if let Some(error) = refused {
            let count = tensors.len() as u32;
            // Memory goes back to the caller before it hears the outcome.
            drop(tensors);
            return context.reporter.outcomes.finish_sends(waiter, count, Err(error));
        }
        let since = context.reporter.clock;
        if context.pairs[pair].mirror.is_some() {
            for (key, tensor) in tensors {
                let (at, waiter) = (MatchKey { pair, step, key: key.as_ref() }, waiter.for_one());
                let slot = self.table.slot(at);
                match self.send_here((at, slot), tensor.into_tensor().into_parts(), context) {
                    Some(back) => self.keep(at, back, deadline, Sender { waiter, since }, context),
                    None => {
                        context.reporter.record(Operation::Send, Way::MEMORY, since);
                        context.reporter.finish_send(waiter, Ok(()));
                    }
                }
            }
            return;
        }
        while let Some((key, tensor)) = self.send_ahead((pair, step), &mut tensors, deadline, &mut waiter, context) {
            let (at, waiter) = (MatchKey { pair, step, key: key.as_ref() }, waiter.for_one());
            self.keep(at, tensor.into_tensor().into_parts(), deadline, Sender { waiter, since }, context);
        }
    }

    /// Puts a tensor into the table, or answers the request that waits for it there.
    fn keep(
        &mut self,
        at: MatchKey<'_>,
        tensor: (TensorMeta, Payload),
        deadline: Instant,
        sender: Sender,
        context: &mut Context,
    ) {
        let MatchKey { step, key, .. } = at;
        let refused = match key.len() > KEY_BYTES_MAX {
            true => {
                let reason = format!("the key has {} bytes, at most {KEY_BYTES_MAX} are accepted", key.len());
                Some(Error::invalid(reason))
            }
            false => self.table.full(self.ahead.len()),
        };
        if let Some(error) = refused {
            return context.reporter.finish_send(sender.waiter, Err(error));
        }
        let bytes = tensor.1.len() as u64;
        let queued = || Moment::SendQueued { step, key: key.into(), bytes };
        match self.table.send(at, tensor, sender, deadline) {
            Ok(Sent::Kept(pending)) => context.reporter.trace(pending, queued),
            Ok(Sent::Requested { by, tensor, pending }) => {
                context.reporter.trace(pending, queued);
                self.match_parked(by, tensor, pending, context);
            }
            Err((error, sender)) => context.reporter.finish_send(sender.waiter, Err(error)),
        }
    }

    /// A peer requests a tensor; its key is not yet validated.
    ///
    /// # Errors
    /// The request would have to wait, and its key is not valid UTF-8.
    #[inline(always)]
    pub(super) fn requested(
        &mut self,
        session: &mut PeerSession,
        (request, key): (&PeerRequest, &[u8]),
        requester: &mut Requester<'_>,
        (pairs, reporter): (&mut Pairs, &mut Reporter),
        (presence, is_draining): (&Presence, bool),
    ) -> Result<(), WireError> {
        let ends = (request.producer, request.consumer);
        let pair = match *requester.last_pair {
            Some((last, pair)) if last == ends => pair,
            _ if request.consumer == STRANGER => {
                let reason = "the requesting task is not in the endpoint map of the producer's host".into();
                let task = "the requesting task".into();
                session.refuse(request.id, &Error::NotFound { task, reason });
                return Ok(());
            }
            _ => {
                let pair = pairs.pair_of(request.producer, request.consumer);
                *requester.last_pair = Some((ends, pair));
                pair
            }
        };
        if !pairs[pair].owned {
            let reason = "the pair is served by another shard: the two sides disagree on lanes";
            session.refuse(request.id, &Error::invalid(reason));
            return Ok(());
        }
        pairs.note_requested_here(pair, requester.session);
        if let Some(reason) = self.ended.reason(request.producer, pair, request.step) {
            session.refuse(request.id, &Error::Aborted { step: request.step, reason: reason.into() });
            return Ok(());
        }
        let attachment = match presence.admit(request.producer, request.if_gone) {
            Ok(attachment) => attachment,
            Err(reason) => {
                session.refuse(request.id, &presence::gone(pairs.task(request.producer).as_str(), reason));
                return Ok(());
            }
        };
        let at = RawMatchKey { pair, step: request.step, key };
        let by = Parked::Peer { session: requester.session, id: request.id };
        match self.table.request(at, by) {
            Ok(Found::Tensor((meta, payload), pending)) => {
                match session.respond(request.id, meta.into_wire(), payload, pending) {
                    Ok(response) => {
                        let session = requester.traced_as;
                        reporter.trace(pending, || Moment::SendMatched { session, response });
                    }
                    Err((meta, payload, pending)) => session.give_back(meta, payload, pending),
                }
            }
            Ok(Found::Parked) if is_draining => {
                self.table.cancel(by);
                session.refuse(request.id, &draining());
            }
            Ok(Found::Parked) => {
                session.park_for(request.id, attachment);
                let until = reporter.clock + Duration::from_millis(request.timeout_ms.into()) + PARKED_GRACE;
                self.table.park_until(by, until, request.if_gone.fails());
            }
            Ok(Found::NotText) => return Err(WireError::NotUtf8("key")),
            Err(error) => session.refuse(request.id, &error),
        }
        Ok(())
    }

    /// Like [`requested`](Self::requested), for a request that came after other events.
    #[cold]
    pub(super) fn requested_behind_events(&mut self, handle: Handle, request: &PeerRequest, context: &mut Context) {
        let Context { peers, pairs, reporter, presence, draining, .. } = context;
        let peer = peers.get_mut(handle).expect("its session just reported");
        let key = peer.session.key(request).to_owned();
        let (session, mut requester) = peer.requesting(handle);
        let of_node = (&*presence, *draining);
        let heard = self.requested(session, (request, key.as_bytes()), &mut requester, (pairs, reporter), of_node);
        debug_assert!(heard.is_ok(), "its key is text");
    }

    /// A peer cancels a request.
    pub(super) fn cancelled(&mut self, session: Handle, id: Handle, peers: &mut Peers) {
        if self.table.cancel(Parked::Peer { session, id })
            && let Some(with) = peers.session_mut(session)
        {
            with.unpark();
        }
    }

    /// A local task has attached: requests of peers that fail when it leaves are told which attachment they wait for.
    pub(super) fn tell_attachment(&mut self, local: u16, attachment: u32, context: &mut Context) {
        let Context { pairs, peers, .. } = context;
        for (session, id) in self.table.parked_to_fail(|pair| pairs[pair].local == local) {
            if let Some(with) = peers.session_mut(session) {
                with.tell_attachment(id, attachment);
                peers.mark_dirty(session);
            }
        }
    }

    /// The link of a session is gone: its peer will repeat the requests it still waits for.
    pub(super) fn forget_session(&mut self, session: Handle) {
        self.table.forget_session(session);
        self.forget_kept(session);
        self.remote.forget_delays();
    }

    /// Hands a tensor to the parked request that it was matched with.
    pub(super) fn match_parked(
        &mut self,
        by: Parked,
        (meta, payload): (TensorMeta, Payload),
        pending: Handle,
        context: &mut Context,
    ) {
        let (session, id) = match by {
            Parked::Peer { session, id } => (session, id),
            Parked::Local(handle) => return self.match_here(handle, (meta, payload), pending, context),
        };
        let Some(peer) = context.peers.get_mut(session) else {
            // Cannot happen: sessions leave the table before they are removed.
            return self.released(pending, (meta, payload), false, context);
        };
        peer.session.unpark();
        let traced_as = peer.traced_as;
        let answered = peer.session.respond(id, meta.into_wire(), payload, pending);
        context.peers.mark_dirty(session);
        match answered {
            Ok(response) => context.reporter.trace(pending, || Moment::SendMatched { session: traced_as, response }),
            Err((meta, payload, pending)) => {
                self.released(pending, (TensorMeta::from_own_wire(meta), payload), false, context);
            }
        }
    }

    /// A tensor that was matched with a task of this node, or in the end with nobody, is back or taken.
    fn released(&mut self, pending: Handle, tensor: (TensorMeta, Payload), taken: bool, context: &mut Context) {
        let bytes = tensor.1.len() as u64;
        self.released_as(pending, tensor, (bytes, taken, Way::MEMORY), context);
    }

    /// A matched tensor of `bytes` bytes is back, or taken; its payload may have changed hands already.
    pub(super) fn released_as(
        &mut self,
        pending: Handle,
        tensor: (TensorMeta, Payload),
        (bytes, taken, way): (u64, bool, Way),
        context: &mut Context,
    ) {
        let reporter = &mut context.reporter;
        let released = self.table.release(pending, tensor, taken);
        if !taken {
            reporter.trace(pending, || Moment::SendEnded);
        }
        match released {
            Released::Taken(sender) => {
                reporter.count_sent(1, bytes as usize);
                reporter.record(Operation::Send, way, sender.since);
                reporter.trace(pending, || Moment::SendReleased);
                reporter.finish_send(sender.waiter, Ok(()));
            }
            Released::Kept(again) => self.trace_again(again, bytes, reporter),
            Released::Gone => {}
            Released::Requested { by, tensor, pending } => {
                self.trace_again(pending, bytes, reporter);
                self.match_parked(by, tensor, pending, context);
            }
            Released::Displaced(sender, error) => reporter.finish_send(sender.waiter, Err(error)),
        }
    }

    /// Traces a send whose tensor of `bytes` bytes came back, and which is another entry of the table now.
    fn trace_again(&self, pending: Handle, bytes: u64, reporter: &Reporter) {
        let step = self.table.step_of(pending).unwrap_or_default();
        let queued = || Moment::SendQueued { step, key: self.table.key_of(pending).unwrap_or_default().into(), bytes };
        reporter.trace(pending, queued);
    }

    /// Ends what has passed its deadline.
    pub(super) fn expire(&mut self, now: Instant, context: &mut Context) {
        let late = self.table.expire_parked(now);
        if !late.is_empty() {
            let error = Error::Aborted { step: 0, reason: "its deadline passed, and it was not cancelled".into() };
            self.refuse_parked(late, &error, context);
        }
        let unsent = self.table.expire(now, |sender, Late { pair, key, step, deadline }| {
            let waited = deadline.saturating_duration_since(sender.since);
            let (operation, key, delivery_unknown) = (Operation::Send, key.into(), true);
            let awaited = context.awaited(now, pair, "it has not said that it has the tensor").into();
            let late = sealane_transport::Late { operation, step, key, waited, delivery_unknown, awaited };
            let error = Error::from(late);
            context.reporter.outcomes.sends_are_late(&mut sender.waiter, 1, error.clone());
            error
        });
        for Unsent { sender, pending, pair, key, step, deadline } in unsent {
            context.reporter.trace(pending, || Moment::SendEnded);
            let waited = deadline.saturating_duration_since(sender.since);
            let awaited = context.awaited(now, pair, "nobody there has asked for it");
            let error = Error::late(Operation::Send, step, key, waited, awaited);
            context.reporter.finish_send(sender.waiter, Err(error));
        }
        self.expire_here(now, context);
        self.expire_ahead(now, context);
    }

    /// Panics unless the table is consistent with itself, with the local recvs, and with the sessions of waiting requests.
    #[cfg(any(test, feature = "fuzzing"))]
    pub(super) fn check_invariants(&self, context: &Context) {
        self.table.check_invariants(|by| match by {
            Parked::Local(handle) => self.local.is_there(handle),
            Parked::Peer { session, .. } => context.peers.session(session).is_some(),
        });
        self.local.check_invariants(|entry| self.table.local_at(entry), &context.pairs);
        self.check_there(context);
        self.ahead.check_invariants(&context.peers);
        let kept = self.table.senders().map(|sender| (&sender.waiter, 1));
        context.reporter.outcomes.check_groups(kept.chain(self.ahead.waiters()));
        self.ended.check_invariants();
        context.reporter.outcomes.batches.check_invariants();
        for (ticket, to) in &self.moved {
            assert_ne!(ticket, to, "cancelling the request would never find it");
        }
    }
}
