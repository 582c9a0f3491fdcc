//! Small tensors that are sent ahead of their requests: who sent them, until they are taken or back.
//!
//! A pair's tensors go ahead on the link on which its consumer has asked for one: so it is no stranger, this shard serves the pair, and
//! the consumer holds its further requests back for a moment. One that cannot go ahead waits in the table for its request, as one does
//! that comes back. Bounded by the credit of its session and by `fusion.pending_sends_max`.

use std::ops::Range;
use std::time::Instant;

use hashbrown::HashMap;
use sealane_runtime::Sweep;
use sealane_transport::limits::{AHEAD_TENSOR_BYTES, KEY_BYTES_MAX};
use sealane_transport::session::{AheadAsk, AheadBack};
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

/// Tensors that were sent together: several only if a group waits for them, or nobody.
struct Ahead {
    /// Taken when they have ended.
    waiter: SendWaiter,
    since: Instant,
    /// `None` once their sender was told that it has passed.
    deadline: Option<Instant>,
    /// When they are to come back; `None` once that was said.
    revoke_at: Option<Instant>,
    pair: u32,
    step: i64,
    session: Handle,
    /// The first in the session; the others follow.
    number: u64,
    count: u32,
    /// Those that have not ended.
    left: u32,
    /// Of those that are not back.
    bytes: usize,
    is_lent: bool,
    /// What their sender hears if they come back, instead of their waiting on.
    barred: Option<Box<Error>>,
}

impl Ahead {
    /// What a place begins with.
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

    /// When something is to be done about it.
    #[inline]
    fn due(&self) -> Option<Instant> {
        self.revoke_at.or(self.deadline)
    }

    fn numbers(&self) -> Range<u64> {
        self.number..self.number + u64::from(self.count)
    }
}

/// See the module.
pub(in crate::node) struct SentAhead {
    sends: Arena<Ahead>,
    /// Tensors of all of them that have not ended.
    tensors: usize,
    /// `sends` by pair and step, for those who end a step.
    steps: Chains,
    /// Lent memory, which is its owner's again when the send has ended, and no sooner.
    lent: HashMap<Handle, Payload>,
    /// No deadline is earlier; it may be later than the truth says, never earlier.
    deadlines: Sweep,
    /// The last deadline, and when what has it is to come back: most often the next has the same.
    last: Option<(Instant, Instant)>,
    /// Keys of which consumers were told that a tensor waits for its request.
    held: LargeKeys,
    /// The last pair and step of which the consumer was told, on that link, that a tensor waits for want of credit, and others may. None
    /// once there was credit for it again.
    short: Option<(u32, i64, (Handle, u32))>,
    /// Sessions of which some were told to come back: those that have not left are back already.
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

    /// When a send of that deadline is to come back.
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

    /// So many of those that were sent together have ended: who is to hear how, and with the last the bytes of all that are not back.
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
            // Its owner's again, before anybody hears of it.
            self.lent.remove(&pending);
        }
        Some((sender, bytes))
    }

    /// A place for tensors that end together, with the first.
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

    /// Keeps the memory of one, which is lent.
    #[cold]
    fn lend(&mut self, pending: Handle, tensor: Tensor) {
        if let Some(ahead) = self.sends.get_mut(pending) {
            ahead.is_lent = true;
            self.lent.insert(pending, tensor.into_parts().1);
        }
    }

    /// Has those come back that were not told so before.
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
    /// Panics unless what is counted is what its sessions have, and ends in time.
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

    /// Who waits, and for how many.
    pub(super) fn waiters(&self) -> impl Iterator<Item = (&SendWaiter, u32)> {
        self.sends.iter().map(|(_, ahead)| (&ahead.waiter, ahead.left))
    }
}

/// What a trace calls it: not what it calls an entry of the table.
pub(in crate::node) fn traced(pending: Handle) -> Handle {
    Handle::from_bits(pending.to_bits() | 1 << 63)
}

impl Exchange {
    /// Sends those ahead that can be; the first that cannot, which is to be kept for its request.
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
        let Some(handle) = known.asked_here.filter(|_| !context.draining) else { return Some(next) };
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
                // Of a large one its consumer remembers it for how long it has this link.
                let is_small = payload.len() <= AHEAD_TENSOR_BYTES;
                break (is_new && (is_small || self.ahead.held.insert((handle, epoch, pair), key)), Some(next));
            };
            let len = bytes.len();
            if !sending.has_room(key.len() + meta.len(), len) {
                let short = (pair, step, (handle, epoch));
                break (self.ahead.short.replace(short) != Some(short), Some(next));
            }
            // Lent memory goes back by itself, and a trace names each tensor.
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
            sending.add(AheadAsk { key, meta, payload: bytes, pending });
            (open, has_said) = (Some(pending), true);
            self.ahead.short.take_if(|(of, ..)| *of == pair);
            if is_single {
                open = None;
                let bytes = len as u64;
                context.reporter.trace(traced(pending), || Moment::SendQueued { step, key: key.into(), bytes });
                if payload.is_lent() {
                    self.ahead.lend(pending, next.1.into_tensor());
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

    /// One that was sent ahead is back, and waits for its request, unless it has nothing to wait for.
    pub(in crate::node) fn back_from_ahead(&mut self, back: AheadBack<Handle>, context: &mut Context) {
        let Some(ahead) = self.ahead.sends.get_mut(back.pending) else { return };
        ahead.bytes -= back.buffer.len();
        let (deadline, pair, step, barred) = (ahead.deadline, ahead.pair, ahead.step, ahead.barred.clone());
        let lent = self.ahead.lent.remove(&back.pending);
        let Some((sender, bytes)) = self.ahead.ended(back.pending, 1) else { return };
        context.reporter.count_sent(0, bytes);
        let key = &*back.key;
        context.reporter.trace(traced(back.pending), || Moment::SendReleased);
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

    /// Has those come back whose deadlines are near, so that they wait for a request until then, and their senders hear for certain that
    /// nobody has asked. Of one that is not back by its deadline its sender hears that its delivery is unknown.
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
            // One that has never left is back by now, and its end is a certain one.
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

    /// Those of a pair's step are to come back, and end with `error` then.
    pub(super) fn end_ahead_of(&mut self, pair: u32, step: i64, error: &Error, context: &mut Context) {
        for pending in self.ahead.steps.of((pair, step)) {
            if self.ahead.sends.get(pending).is_some_and(|ahead| (ahead.pair, ahead.step) == (pair, step)) {
                self.end_ahead(pending, error.clone(), context);
            }
        }
    }

    /// The same for all of a local task.
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

    /// The peer of a pair has moved: what was sent ahead to where it was comes back, to wait for its request, and what came from there
    /// goes back.
    pub(in crate::node) fn leave_ahead(&mut self, pair: u32, context: &mut Context) {
        for pending in self.ahead.sends.select(|ahead| ahead.pair == pair) {
            self.ahead.revoke(pending, &mut context.peers);
        }
        self.give_back_of_pair(pair, context);
    }

    /// All are to come back, and to wait for their requests: the engine drains.
    pub(in crate::node) fn revoke_all_ahead(&mut self, context: &mut Context) {
        for pending in self.ahead.sends.select(|_| true) {
            self.ahead.revoke(pending, &mut context.peers);
        }
    }

    /// The engine stops: those that come back before it has end with this. Of the others it is not known whether they are taken, as of a
    /// tensor that is lent.
    pub(super) fn end_all_ahead(&mut self, reason: &str, context: &mut Context) {
        for pending in self.ahead.sends.select(|_| true) {
            let step = self.ahead.sends.get(pending).map_or(0, |ahead| ahead.step);
            self.end_ahead(pending, Error::Aborted { step, reason: reason.into() }, context);
        }
    }

    /// A session of which some were told to come back, whose events are to be settled: its link may take nothing for long.
    #[inline]
    pub(in crate::node) fn next_revoked(&mut self) -> Option<Handle> {
        self.ahead.revoked.pop()
    }

    /// True if [`next_revoked`](Self::next_revoked) has one.
    pub(in crate::node) fn has_revoked(&self) -> bool {
        !self.ahead.revoked.is_empty()
    }
}
