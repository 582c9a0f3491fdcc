//! Small tensors that are sent ahead of their requests: who sent them, until they are taken or back.
//!
//! A pair's tensors go ahead on the link on which its consumer has asked for one: so it is no stranger, this shard serves the pair, and
//! the consumer holds its further requests back for a moment. One that cannot go ahead waits in the table for its request, as one does
//! that comes back. Bounded by the credit of its session and by `fusion.deposited_tensors_max`.

use std::time::Instant;

use hashbrown::HashMap;
use sealane_transport::error::Operation;
use sealane_transport::limits::AHEAD_TENSOR_BYTES;
use sealane_transport::session::{AheadAsk, AheadBack};
use sealane_transport::tensor::{IntoTensor, TensorMeta};
use sealane_transport::trace::Moment;
use sealane_transport::{Arena, Chains, Error, Handle, Payload};

use super::Exchange;
use super::large_keys::LargeKeys;
use crate::limits::REVOKE_TIME;
use crate::metrics::Way;
use crate::node::cells::{SendWaiter, Sender};
use crate::node::context::Context;
use crate::node::peers::Peers;
use crate::node::settings::Fuse;
use crate::rendezvous::MatchKey;

struct Ahead {
    /// Taken when it has ended.
    waiter: SendWaiter,
    since: Instant,
    /// `None` once its sender was told that it has passed.
    deadline: Option<Instant>,
    /// When it is to come back; `None` once that was said.
    revoke_at: Option<Instant>,
    pair: u32,
    step: i64,
    session: Handle,
    /// In the session.
    number: u64,
    bytes: usize,
    is_lent: bool,
    /// What its sender hears if it comes back, instead of its waiting on.
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

    fn take_sender(&mut self) -> Sender {
        Sender { waiter: std::mem::replace(&mut self.waiter, SendWaiter::Nobody), since: self.since }
    }
}

/// See the module.
pub(in crate::node) struct SentAhead {
    sends: Arena<Ahead>,
    /// `sends` by pair and step, for those who end a step.
    steps: Chains,
    /// Lent memory, which is its owner's again when the send has ended, and no sooner.
    lent: HashMap<Handle, Payload>,
    /// No deadline is earlier; it may be later than the truth says, never earlier.
    earliest: Option<Instant>,
    /// The last deadline, and when what has it is to come back: most often the next has the same.
    last: Option<(Instant, Instant)>,
    /// Keys of which consumers were told that a tensor waits for its request.
    held: LargeKeys,
    /// Sessions of which some were told to come back: those that have not left are back already.
    revoked: Vec<Handle>,
}

impl SentAhead {
    pub(super) fn new() -> Self {
        let (sends, steps, lent) = (Arena::new(usize::MAX), Chains::default(), HashMap::new());
        Self { sends, steps, lent, earliest: None, last: None, held: LargeKeys::new(), revoked: Vec::new() }
    }

    pub(super) fn len(&self) -> usize {
        self.sends.len()
    }

    #[inline]
    pub(super) fn next_deadline(&self) -> Option<Instant> {
        self.earliest
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

    /// One was taken: its sender, since when it waited, and its bytes.
    #[inline]
    pub(in crate::node) fn taken(&mut self, deposit: Handle) -> Option<(Sender, usize)> {
        let (sender, bytes, is_lent) = self.sends.retire(deposit, |ahead| {
            ahead.barred = None;
            (ahead.take_sender(), ahead.bytes, ahead.is_lent)
        })?;
        self.removed(deposit, is_lent);
        Some((sender, bytes))
    }

    /// Has one come back that was not told so before.
    fn revoke(&mut self, deposit: Handle, peers: &mut Peers) {
        let Some(ahead) = self.sends.get_mut(deposit) else { return };
        if ahead.revoke_at.take().is_some()
            && let Some(session) = peers.session_mut(ahead.session)
        {
            session.revoke_ahead(ahead.number);
            peers.mark_dirty(ahead.session);
            if self.revoked.last() != Some(&ahead.session) {
                self.revoked.push(ahead.session);
            }
        }
    }

    /// What was lent is its owner's again, before anybody hears of it.
    #[inline]
    fn removed(&mut self, deposit: Handle, is_lent: bool) -> Option<Payload> {
        self.steps.remove(deposit);
        if self.sends.is_empty() {
            self.earliest = None;
        }
        if is_lent { self.lent.remove(&deposit) } else { None }
    }

    fn remove(&mut self, deposit: Handle) -> Option<(Ahead, Option<Payload>)> {
        let ahead = self.sends.remove(deposit)?;
        let lent = self.removed(deposit, ahead.is_lent);
        Some((ahead, lent))
    }
}

/// What a trace calls it: not what it calls an entry of the table.
pub(in crate::node) fn traced(deposit: Handle) -> Handle {
    Handle::from_bits(deposit.to_bits() | 1 << 63)
}

impl Exchange {
    /// Sends a tensor ahead if that can be.
    ///
    /// # Errors
    /// It is to be kept for its request.
    #[inline]
    pub(super) fn send_ahead<T: IntoTensor>(
        &mut self,
        at: MatchKey<'_>,
        tensor: T,
        deadline: Instant,
        waiter: SendWaiter,
        context: &mut Context,
    ) -> Result<(), (T, SendWaiter)> {
        let MatchKey { pair, step, key } = at;
        let known = &context.pairs[pair];
        let (producer, consumer) = (known.local, known.peer);
        let Some(handle) = known.asked_here.filter(|_| !context.draining) else { return Err((tensor, waiter)) };
        let Some(session) = context.peers.session_mut(handle) else { return Err((tensor, waiter)) };
        if !self.table.is_free(at) || self.table.full(self.ahead.len()).is_some() {
            return Err((tensor, waiter));
        }
        let (meta, payload) = (tensor.borrow().meta(), tensor.borrow().payload());
        let Some(bytes) = payload.host_bytes().filter(|bytes| bytes.len() <= AHEAD_TENSOR_BYTES) else {
            // Its consumer remembers for how long it has this link.
            if self.ahead.held.insert((handle, session.epoch(), pair), key) {
                session.hold((producer, consumer), step, key);
                context.peers.mark_dirty(handle);
            }
            return Err((tensor, waiter));
        };
        let (len, is_lent, alone) = (bytes.len(), payload.is_lent(), context.settings.fuse == Fuse::Off);
        let (deposit, ahead) = self.ahead.sends.renew(Ahead::nothing).expect("2^32 sends do not fit in memory");
        let ask = AheadAsk { producer, consumer, step, key, meta: meta.as_wire(), payload: bytes, deposit, alone };
        let Ok(number) = session.send_ahead(ask) else {
            self.ahead.sends.retire(deposit, |_| ());
            return Err((tensor, waiter));
        };
        let since = context.reporter.clock;
        (ahead.waiter, ahead.since, ahead.pair, ahead.step) = (waiter, since, pair, step);
        (ahead.session, ahead.number, ahead.bytes, ahead.is_lent) = (handle, number, len, is_lent);
        ahead.deadline = Some(deadline);
        ahead.barred = None;
        self.ahead.steps.add(deposit, (pair, step));
        let revoke_at = self.ahead.revoke_at(since, deadline);
        self.ahead.sends.get_mut(deposit).expect("just entered").revoke_at = Some(revoke_at);
        if self.ahead.earliest.is_none_or(|earliest| revoke_at < earliest) {
            self.ahead.earliest = Some(revoke_at);
        }
        if is_lent {
            self.ahead.lent.insert(deposit, tensor.into_tensor().into_parts().1);
        }
        context.peers.mark_dirty(handle);
        context.reporter.trace(traced(deposit), || Moment::SendQueued { step, key: key.into(), bytes: len as u64 });
        Ok(())
    }

    /// One that was sent ahead was taken.
    #[cold]
    pub(in crate::node) fn taken_ahead(&mut self, deposit: Handle, way: Way, context: &mut Context) {
        let Some((sender, bytes)) = self.ahead.taken(deposit) else { return };
        let reporter = &mut context.reporter;
        reporter.count_sent(bytes);
        reporter.record(crate::metrics::Operation::Send, way, sender.since);
        reporter.trace(traced(deposit), || Moment::SendReleased);
        reporter.finish_send(sender.waiter, Ok(()));
    }

    /// One that was sent ahead is back, and waits for its request, unless it has nothing to wait for.
    pub(in crate::node) fn back_from_ahead(&mut self, back: AheadBack<Handle>, context: &mut Context) {
        let Some((mut ahead, lent)) = self.ahead.remove(back.deposit) else { return };
        let sender = ahead.take_sender();
        let Ahead { deadline, pair, step, barred, .. } = ahead;
        let key = &*back.key;
        context.reporter.trace(traced(back.deposit), || Moment::SendReleased);
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
        if self.ahead.earliest.is_none_or(|earliest| earliest > now) {
            return;
        }
        let due = self.ahead.sends.select(|ahead| ahead.due().is_some_and(|due| due <= now));
        for deposit in due {
            self.ahead.revoke(deposit, &mut context.peers);
            let Some(ahead) = self.ahead.sends.get_mut(deposit) else { continue };
            if ahead.deadline.is_none_or(|deadline| deadline > now) {
                continue;
            }
            // One that has never left is back by now, and its end is a certain one.
            let session = context.peers.session(ahead.session);
            let Some(key) = session.and_then(|session| session.key_ahead(ahead.number)) else { continue };
            let Some(deadline) = ahead.deadline.take() else { continue };
            let (waited, key) = (deadline.saturating_duration_since(ahead.since), key.into());
            let (operation, step, delivery_unknown) = (Operation::Send, ahead.step, true);
            let awaited = context.awaited(now, ahead.pair, "it has not said that it has the tensor").into();
            let late = sealane_transport::Late { operation, step, key, waited, delivery_unknown, awaited };
            let error = Error::from(late);
            ahead.barred.get_or_insert_with(|| Box::new(error.clone()));
            let mut sender = ahead.take_sender();
            context.reporter.outcomes.send_is_late(&mut sender, error);
            ahead.waiter = sender.waiter;
        }
        self.ahead.earliest = self.ahead.sends.iter().filter_map(|(_, ahead)| ahead.due()).min();
    }

    /// Those of a pair's step are to come back, and end with `error` then.
    pub(super) fn end_ahead_of(&mut self, pair: u32, step: i64, error: &Error, context: &mut Context) {
        for deposit in self.ahead.steps.of((pair, step)) {
            if self.ahead.sends.get(deposit).is_some_and(|ahead| (ahead.pair, ahead.step) == (pair, step)) {
                self.end_ahead(deposit, error.clone(), context);
            }
        }
    }

    /// The same for all of a local task.
    pub(super) fn end_ahead_of_task(&mut self, local: u16, error: &Error, context: &mut Context) {
        let pairs = &context.pairs;
        for deposit in self.ahead.sends.select(|ahead| pairs[ahead.pair].local == local) {
            self.end_ahead(deposit, error.clone(), context);
        }
    }

    fn end_ahead(&mut self, deposit: Handle, error: Error, context: &mut Context) {
        if let Some(ahead) = self.ahead.sends.get_mut(deposit) {
            ahead.barred = Some(Box::new(error));
            self.ahead.revoke(deposit, &mut context.peers);
        }
    }

    /// The peer of a pair has moved: what was sent ahead to where it was comes back, to wait for its request, and what came from there
    /// goes back.
    pub(in crate::node) fn leave_ahead(&mut self, pair: u32, context: &mut Context) {
        for deposit in self.ahead.sends.select(|ahead| ahead.pair == pair) {
            self.ahead.revoke(deposit, &mut context.peers);
        }
        self.give_back_of_pair(pair, context);
    }

    /// All are to come back, and to wait for their requests: the engine drains.
    pub(in crate::node) fn revoke_all_ahead(&mut self, context: &mut Context) {
        for deposit in self.ahead.sends.select(|_| true) {
            self.ahead.revoke(deposit, &mut context.peers);
        }
    }

    /// The engine stops: those that come back before it has end with this. Of the others it is not known whether they are taken, as of a
    /// tensor that is lent.
    pub(super) fn end_all_ahead(&mut self, reason: &str, context: &mut Context) {
        for deposit in self.ahead.sends.select(|_| true) {
            let step = self.ahead.sends.get(deposit).map_or(0, |ahead| ahead.step);
            self.end_ahead(deposit, Error::Aborted { step, reason: reason.into() }, context);
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
