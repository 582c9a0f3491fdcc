//! Small tensors that are sent ahead of their requests, and their senders, until the tensors are taken or back.
//!
//! A pair's tensors go ahead on a link on which the consumer has requested one before: so it is no stranger, this shard serves the pair,
//! and the consumer delays its further requests for a moment. A tensor that cannot go ahead, or that comes back, waits in the table for its
//! request. Bounded by the session's credit and by `fusion.pending_sends_max`.

use std::ops::Range;
use std::time::Instant;

use hashbrown::HashMap;
use sealane_runtime::Sweep;
use sealane_transport::limits::{AHEAD_TENSOR_BYTES, KEY_BYTES_MAX};
use sealane_transport::session::{AheadBack, AheadParams};
use sealane_transport::tensor::{IntoTensor, Tensor, TensorMeta};
use sealane_transport::trace::Moment;
use sealane_transport::{Arena, Chains, Error, Handle, Payload};

use super::Exchange;
use super::large_keys::LargeKeys;
use crate::limits::REVOKE_TIME;
use crate::metrics::{Operation, Way};
use crate::node::cells::{SendWaiter, Sender};
use crate::node::context::Context;
use crate::node::peers::Peers;
use crate::node::settings::Fuse;
use crate::rendezvous::MatchKey;

/// Tensors that were sent together: several only if their waiter is a group or nobody.
struct Ahead {
    /// Taken when all of them have ended.
    waiter: SendWaiter,
    since: Instant,
    /// `None` once the sender was told that it has passed.
    deadline: Option<Instant>,
    /// When they are recalled; `None` once they were.
    revoke_at: Option<Instant>,
    pair: u32,
    step: i64,
    session: Handle,
    /// The session's number for the first; the others follow.
    number: u64,
    count: u32,
    /// How many have not ended.
    left: u32,
    /// Bytes of those that are not back.
    bytes: usize,
    is_lent: bool,
    /// The error that their sender gets if they come back; they then do not wait any longer.
    barred: Option<Box<Error>>,
}

impl Ahead {
    /// An unused entry.
    #[cold]
    fn nothing() -> Self {
        Ahead {
            waiter: SendWaiter::Nobody,
            since: Instant::now(),
            deadline: None,
            revoke_at: None,
            pair: 0,
            step: 0,
            session: Handle::NONE,
            number: 0,
            count: 0,
            left: 0,
            bytes: 0,
            is_lent: false,
            barred: None,
        }
    }

    /// When it next needs attention.
    #[inline]
    fn due(&self) -> Option<Instant> {
        self.revoke_at.or(self.deadline)
    }

    fn numbers(&self) -> Range<u64> {
        self.number..self.number + u64::from(self.count)
    }
}

/// What was sent ahead; see the module.
pub(in crate::node) struct SentAhead {
    sends: Arena<Ahead>,
    /// All tensors that have not ended.
    tensors: usize,
    /// `sends` by pair and step, for ending a step.
    steps: Chains,
    /// Lent memory, which goes back to its owner exactly when the send ends.
    lent: HashMap<Handle, Payload>,
    /// A lower bound of the earliest due time.
    deadlines: Sweep,
    /// The last deadline and its recall time: usually the next send has the same deadline.
    last: Option<(Instant, Instant)>,
    /// Keys for which consumers were told that a tensor waits for its request.
    held: LargeKeys,
    /// The last pair, step and link for which the consumer was told that a tensor, and perhaps others, waits for want of credit. `None`
    /// once there was credit for the pair again.
    short: Option<(u32, i64, (Handle, u32))>,
    /// Sessions in which some were recalled; tensors that had not left yet are back at once.
    revoked: Vec<Handle>,
}

impl SentAhead {
    pub(super) fn new() -> Self {
        let (sends, steps, lent) = (Arena::new(usize::MAX), Chains::default(), HashMap::new());
        let held = LargeKeys::new();
        let (deadlines, last, short, revoked) = (Sweep::default(), None, None, Vec::new());
        Self { sends, tensors: 0, steps, lent, deadlines, last, held, short, revoked }
    }

    /// Tensors that have not ended.
    pub(super) fn len(&self) -> usize {
        self.tensors
    }

    #[inline]
    pub(super) fn next_deadline(&self) -> Option<Instant> {
        self.deadlines.next()
    }

    /// When a send with that deadline is recalled.
    #[inline]
    fn revoke_at(&mut self, since: Instant, deadline: Instant) -> Instant {
        match self.last {
            Some((last, at)) if last == deadline => at,
            _ => {
                let at = deadline - (deadline.saturating_duration_since(since) / 2).min(REVOKE_TIME);
                self.last = Some((deadline, at));
                at
            }
        }
    }

    /// `count` of the tensors sent together have ended: returns who is told how, and with the last one the bytes of all that did not come
    /// back.
    #[inline]
    pub(in crate::node) fn ended(&mut self, pending: Handle, count: u32) -> Option<(Sender, usize)> {
        let ahead = self.sends.get_mut(pending)?;
        debug_assert!(count <= ahead.left, "one would end twice");
        (ahead.left, self.tensors) = (ahead.left - count, self.tensors - count as usize);
        let sender = Sender { waiter: ahead.waiter.for_one(), since: ahead.since };
        if ahead.left > 0 {
            return Some((sender, 0));
        }
        let (bytes, is_lent) = (ahead.bytes, ahead.is_lent);
        self.sends.retire(pending, |ahead| ahead.barred = None);
        self.steps.remove(pending);
        if self.sends.is_empty() {
            self.deadlines.clear();
        }
        if is_lent {
            // Back with its owner before anybody hears of it.
            self.lent.remove(&pending);
        }
        Some((sender, bytes))
    }

    /// Opens an entry for tensors that end together, with the first of them.
    #[inline(always)]
    fn open(
        &mut self,
        (pair, step): (u32, i64),
        (session, number): (Handle, u64),
        (since, deadline): (Instant, Instant),
        (waiter, bytes): (SendWaiter, usize),
    ) -> Handle {
        let revoke_at = self.revoke_at(since, deadline);
        let (pending, ahead) = self.sends.renew(Ahead::nothing).expect("2^32 sends do not fit in memory");
        (ahead.waiter, ahead.since, ahead.pair, ahead.step) = (waiter, since, pair, step);
        (ahead.session, ahead.number, ahead.count, ahead.left) = (session, number, 1, 1);
        (ahead.bytes, ahead.is_lent) = (bytes, false);
        (ahead.deadline, ahead.revoke_at) = (Some(deadline), Some(revoke_at));
        self.steps.add(pending, (pair, step));
        self.deadlines.enter(revoke_at);
        pending
    }

    /// Keeps the lent memory of a tensor.
    #[cold]
    fn keep_lent(&mut self, pending: Handle, tensor: Tensor) {
        if let Some(ahead) = self.sends.get_mut(pending) {
            ahead.is_lent = true;
            self.lent.insert(pending, tensor.into_parts().1);
        }
    }

    /// Recalls those that were not recalled before.
    fn revoke(&mut self, pending: Handle, peers: &mut Peers) {
        let Some(ahead) = self.sends.get_mut(pending) else { return };
        if ahead.revoke_at.take().is_some()
            && let Some(session) = peers.session_mut(ahead.session)
        {
            ahead.numbers().for_each(|number| session.revoke_ahead(number));
            peers.mark_dirty(ahead.session);
            if self.revoked.last() != Some(&ahead.session) {
                self.revoked.push(ahead.session);
            }
        }
    }
}

#[cfg(any(test, feature = "fuzzing"))]
impl SentAhead {
    /// Panics unless the counts agree with the sessions, and every send has its deadline in the sweep.
    pub(super) fn check_invariants(&self, peers: &Peers) {
        let left: usize = self.sends.iter().map(|(_, ahead)| ahead.left as usize).sum();
        assert_eq!(self.tensors, left, "fusion.pending_sends_max would bound something else than tensors");
        for (pending, ahead) in self.sends.iter() {
            let Ahead { pair, step, count, left, .. } = *ahead;
            assert!(0 < left && left <= count, "of {count} tensors {left} are left");
            assert!(self.steps.of((pair, step)).contains(&pending), "a send would outlive step {step}");
            let ends = ahead.due().is_none_or(|due| self.deadlines.covers(due));
            assert!(ends, "a send would wait past its deadline");
            let session = peers.session(ahead.session).filter(|session| !session.has_events());
            if let Some(session) = session {
                let found = ahead.numbers().filter(|&number| session.key_ahead(number).is_some()).count();
                assert_eq!(found, left as usize, "a send would end with another's tensors, or never");
            }
        }
    }

    /// The waiters, and how many sends each waits for.
    pub(super) fn waiters(&self) -> impl Iterator<Item = (&SendWaiter, u32)> {
        self.sends.iter().map(|(_, ahead)| (&ahead.waiter, ahead.left))
    }
}

/// The handle that traces use; distinct from that of any table entry.
pub(in crate::node) fn traced(pending: Handle) -> Handle {
    Handle::from_bits(pending.to_bits() | 1 << 63)
}

impl Exchange {
    /// Sends tensors ahead as far as possible; returns the first that cannot go ahead and must wait for its request.
    #[inline]
    pub(super) fn send_ahead<K: AsRef<str>, T: IntoTensor>(
        &mut self,
        (pair, step): (u32, i64),
        tensors: &mut impl Iterator<Item = (K, T)>,
        deadline: Instant,
        waiter: &mut SendWaiter,
        context: &mut Context,
    ) -> Option<(K, T)> {
        let mut next = tensors.next()?;
        let known = &context.pairs[pair];
        let ends = (known.local, known.peer);
        let Some(handle) = known.requested_here.filter(|_| !context.draining) else { return Some(next) };
        let Some(session) = context.peers.session_mut(handle) else { return Some(next) };
        let (epoch, alone) = (session.epoch(), context.settings.fuse == Fuse::Off);
        let Some(mut sending) = session.send_ahead(ends, step, alone) else { return Some(next) };
        let (since, is_traced) = (context.reporter.clock, context.reporter.recorder.is_some());
        let (mut room, mut open, mut has_said) = (self.table.room(self.ahead.len()), None, false);
        let (is_held, kept) = loop {
            let (key, tensor) = (next.0.as_ref(), next.1.borrow());
            let (meta, payload) = (tensor.meta().as_wire(), tensor.payload());
            let is_new = room > 0 && key.len() <= KEY_BYTES_MAX && self.table.is_free(MatchKey { pair, step, key });
            let bytes = payload.host_bytes().filter(|bytes| bytes.len() <= AHEAD_TENSOR_BYTES);
            let (true, Some(bytes)) = (is_new, bytes) else {
                // The consumer remembers a large tensor's key as long as it has this link, so it is told once.
                let is_small = payload.len() <= AHEAD_TENSOR_BYTES;
                break (is_new && (is_small || self.ahead.held.insert((handle, epoch, pair), key)), Some(next));
            };
            let len = bytes.len();
            if !sending.has_room(key.len() + meta.len(), len) {
                let short = (pair, step, (handle, epoch));
                break (self.ahead.short.replace(short) != Some(short), Some(next));
            }
            // Lent memory is given back individually, and a trace names each tensor.
            let is_single = payload.is_lent() || is_traced;
            let pending = match open.filter(|_| !is_single) {
                Some(pending) => {
                    let ahead = self.ahead.sends.get_mut(pending).expect("none of its tensors has ended");
                    (ahead.count, ahead.left, ahead.bytes) = (ahead.count + 1, ahead.left + 1, ahead.bytes + len);
                    pending
                }
                None => {
                    let (at, first) = ((pair, step), (handle, sending.next()));
                    self.ahead.open(at, first, (since, deadline), (waiter.for_one(), len))
                }
            };
            (self.ahead.tensors, room) = (self.ahead.tensors + 1, room - 1);
            sending.add(AheadParams { key, meta, payload: bytes, pending });
            (open, has_said) = (Some(pending), true);
            self.ahead.short.take_if(|(of, ..)| *of == pair);
            if is_single {
                open = None;
                let bytes = len as u64;
                context.reporter.trace(traced(pending), || Moment::SendQueued { step, key: key.into(), bytes });
                if payload.is_lent() {
                    self.ahead.keep_lent(pending, next.1.into_tensor());
                }
            }
            match tensors.next() {
                Some(more) => next = more,
                None => break (false, None),
            }
        };
        if is_held
            && let Some((key, _)) = &kept
            && let Some(session) = context.peers.session_mut(handle)
        {
            session.hold(ends, step, key.as_ref());
            has_said = true;
        }
        if has_said {
            context.peers.mark_dirty(handle);
        }
        kept
    }

    /// Tensors that were sent ahead together were taken.
    #[cold]
    pub(in crate::node) fn taken_ahead(&mut self, pending: Handle, count: u32, way: Way, context: &mut Context) {
        let Some((sender, bytes)) = self.ahead.ended(pending, count) else { return };
        let reporter = &mut context.reporter;
        reporter.count_sent(count, bytes);
        (0..count).for_each(|_| reporter.record(Operation::Send, way, sender.since));
        reporter.trace(traced(pending), || Moment::SendReleased);
        reporter.outcomes.finish_sends(sender.waiter, count, Ok(()));
    }

    /// A tensor that was sent ahead is back. It waits for its request, unless an error bars that.
    pub(in crate::node) fn back_from_ahead(&mut self, back: AheadBack<Handle>, context: &mut Context) {
        let Some(ahead) = self.ahead.sends.get_mut(back.pending) else { return };
        ahead.bytes -= back.buffer.len();
        let (deadline, pair, step, barred) = (ahead.deadline, ahead.pair, ahead.step, ahead.barred.clone());
        let lent = self.ahead.lent.remove(&back.pending);
        let Some((sender, bytes)) = self.ahead.ended(back.pending, 1) else { return };
        context.reporter.count_sent(0, bytes);
        let key = &*back.key;
        context.reporter.trace(traced(back.pending), || Moment::SendEnded);
        let ended = match barred {
            Some(error) => Some(*error),
            None if back.is_duplicate => Some(crate::rendezvous::sent_twice(MatchKey { pair, step, key })),
            None => None,
        };
        if let Some(error) = ended {
            drop(lent);
            return context.reporter.finish_send(sender.waiter, Err(error));
        }
        let tensor = (TensorMeta::from_own_wire(back.meta), lent.unwrap_or_else(|| back.buffer.into()));
        let deadline = deadline.expect("who was told of a deadline is barred");
        self.keep(MatchKey { pair, step, key }, tensor, deadline, sender, context);
    }

    /// Recalls tensors whose deadlines are near, so that they wait here for a request until then, and their senders hear for certain that
    /// nobody asked. If one is not back by its deadline, its sender hears that its delivery is unknown.
    pub(super) fn expire_ahead(&mut self, now: Instant, context: &mut Context) {
        if !self.ahead.deadlines.is_due(now) {
            return;
        }
        let due = self.ahead.sends.select(|ahead| ahead.due().is_some_and(|due| due <= now));
        for pending in due {
            self.ahead.revoke(pending, &mut context.peers);
            let Some(ahead) = self.ahead.sends.get_mut(pending) else { continue };
            if ahead.deadline.is_none_or(|deadline| deadline > now) {
                continue;
            }
            // One that had never left is back by now, and its outcome is certain.
            let session = context.peers.session(ahead.session);
            let key = session.and_then(|session| ahead.numbers().find_map(|number| session.key_ahead(number)));
            let Some(key) = key else { continue };
            let Some(deadline) = ahead.deadline.take() else { continue };
            let (waited, key) = (deadline.saturating_duration_since(ahead.since), key.into());
            let (operation, step, delivery_unknown) = (sealane_transport::error::Operation::Send, ahead.step, true);
            let awaited = context.awaited(now, ahead.pair, "it has not said that it has the tensor").into();
            let late = sealane_transport::Late { operation, step, key, waited, delivery_unknown, awaited };
            let error = Error::from(late);
            ahead.barred.get_or_insert_with(|| Box::new(error.clone()));
            context.reporter.outcomes.sends_are_late(&mut ahead.waiter, ahead.left, error);
        }
        self.ahead.deadlines = Sweep::after(now, self.ahead.sends.slots());
        self.ahead.deadlines.extend(self.ahead.sends.iter().filter_map(|(_, ahead)| ahead.due()));
    }

    /// Recalls what was sent ahead for a pair's step; it ends with `error` when it comes back.
    pub(super) fn end_ahead_of(&mut self, pair: u32, step: i64, error: &Error, context: &mut Context) {
        for pending in self.ahead.steps.of((pair, step)) {
            if self.ahead.sends.get(pending).is_some_and(|ahead| (ahead.pair, ahead.step) == (pair, step)) {
                self.end_ahead(pending, error.clone(), context);
            }
        }
    }

    /// Like [`end_ahead_of`](Self::end_ahead_of), for all steps of a local task.
    pub(super) fn end_ahead_of_task(&mut self, local: u16, error: &Error, context: &mut Context) {
        let pairs = &context.pairs;
        for pending in self.ahead.sends.select(|ahead| pairs[ahead.pair].local == local) {
            self.end_ahead(pending, error.clone(), context);
        }
    }

    fn end_ahead(&mut self, pending: Handle, error: Error, context: &mut Context) {
        if let Some(ahead) = self.ahead.sends.get_mut(pending) {
            ahead.barred = Some(Box::new(error));
            self.ahead.revoke(pending, &mut context.peers);
        }
    }

    /// The peer of a pair has moved: what was sent ahead to its old address is recalled, to wait for its request, and what came from there
    /// goes back.
    pub(in crate::node) fn leave_ahead(&mut self, pair: u32, context: &mut Context) {
        for pending in self.ahead.sends.select(|ahead| ahead.pair == pair) {
            self.ahead.revoke(pending, &mut context.peers);
        }
        self.give_back_of_pair(pair, context);
    }

    /// The engine drains: recalls everything, to wait for requests.
    pub(in crate::node) fn revoke_all_ahead(&mut self, context: &mut Context) {
        for pending in self.ahead.sends.select(|_| true) {
            self.ahead.revoke(pending, &mut context.peers);
        }
    }

    /// The engine stops: tensors that come back before it has stopped end with this error. For the others it is unknown whether they were
    /// taken, as for a matched tensor.
    pub(super) fn end_all_ahead(&mut self, reason: &str, context: &mut Context) {
        for pending in self.ahead.sends.select(|_| true) {
            let step = self.ahead.sends.get(pending).map_or(0, |ahead| ahead.step);
            self.end_ahead(pending, Error::Aborted { step, reason: reason.into() }, context);
        }
    }

    /// A session with recalled tensors, whose events must be handled now: its link may accept nothing for long.
    #[inline]
    pub(in crate::node) fn next_revoked(&mut self) -> Option<Handle> {
        self.ahead.revoked.pop()
    }

    /// True if [`next_revoked`](Self::next_revoked) returns one.
    pub(in crate::node) fn has_revoked(&self) -> bool {
        !self.ahead.revoked.is_empty()
    }
}
