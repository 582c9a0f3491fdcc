//! Recvs whose producer is a task of another node, and small tensors of such producers that came before their recvs: where they meet.
//!
//! A recv of a pair that has asked on this link before waits for a moment without a word ([`QUIET_TIME`]): most often its tensor comes
//! ahead of any request. If not, it asks its peer, which is how it hears all that there is to hear: that the producer has left, that
//! the step has ended, that the tensor is large. Bounded by `fusion.queued_requests_max`, and what is kept by the peers' credit and
//! [`KEPT_AHEAD_BYTES_MAX`].

use std::collections::VecDeque;
use std::hash::BuildHasher;
use std::time::Instant;

use hashbrown::{DefaultHashBuilder, HashTable};
use sealane_runtime::Buffer;
use sealane_transport::limits::{AHEAD_TENSOR_BYTES, KEY_BYTES_MAX};
use sealane_transport::session::{Ask, CameAhead, KeyOf, Manner, ReceiveMemory, Unanswered};
use sealane_transport::tensor::Tensor;
use sealane_transport::trace::Moment;
use sealane_transport::wire::{self, Fate, WireError};
use sealane_transport::{Arena, Chains, Error, Handle, Unreceived, reuse_key};

use super::large_keys::LargeKeys;
use super::matches::place;
use super::{Exchange, LastPair, RecvRequest};
use crate::limits::{KEPT_AHEAD_BYTES_MAX, QUIET_TIME};
use crate::metrics::Operation;
use crate::node::cells::{RecvWaiter, Ticket};
use crate::node::context::Context;
use crate::node::memory::Memory;
use crate::node::outcomes::unheard;
use crate::node::pairs::{Pairs, STRANGER};
use crate::node::peers::PeerSession;
use crate::node::reporter::Reporter;
use crate::rendezvous::{MatchKey, RawMatchKey, asked_twice};

/// A tensor that came before its recv.
struct Kept {
    session: Handle,
    number: u64,
    /// What it counts in the session's credit.
    cost: usize,
    tensor: Tensor,
}

/// Memory of a kept tensor that counts so much in its session's credit: the place, its share of index and chains, and what it allocates.
fn memory_of(cost: usize) -> usize {
    cost + 3 * size_of::<Handle>() + size_of::<Place>()
}

/// A recv that waits, or a tensor that came before its recv.
struct Place {
    pair: u32,
    step: i64,
    key: String,
    since: Instant,
    deadline: Instant,
    /// The caller's memory, until it is asked.
    destination: Option<Buffer>,
    /// Of a recv that waits.
    waiter: Option<RecvWaiter>,
    manner: Manner,
    /// It may have a tensor that comes ahead: such lies in the host's memory.
    takes_ahead: bool,
    /// The session that was asked, and the request's name there.
    asked: Option<(Handle, Handle)>,
    kept: Option<Kept>,
}

impl Place {
    /// What a place begins with.
    #[cold]
    fn nothing() -> Self {
        let now = Instant::now();
        Place {
            pair: 0,
            step: 0,
            key: String::new(),
            since: now,
            deadline: now,
            destination: None,
            waiter: None,
            manner: Manner::default(),
            takes_ahead: false,
            asked: None,
            kept: None,
        }
    }

    #[inline]
    fn is(&self, at: RawMatchKey<'_>) -> bool {
        (self.pair, self.step, self.key.as_bytes()) == (at.pair, at.step, at.key)
    }
}

/// See the module.
pub(in crate::node) struct There {
    places: Arena<Place>,
    index: HashTable<Handle>,
    hasher: DefaultHashBuilder,
    /// `places` by pair and step, for those who end a step.
    steps: Chains,
    /// Recvs that have not asked yet, and since when: some may have ended.
    quiet: VecDeque<(Handle, Instant)>,
    /// Those of them that are to ask now.
    hurried: Vec<Handle>,
    /// Memory of all kept tensors.
    kept_bytes: usize,
    /// Those of a pair ask at once.
    large: LargeKeys,
    /// Kept tensors that recvs took in this turn: those of a client must be in its ring before their producers hear so.
    taken: Vec<(Handle, u64, usize)>,
}

impl There {
    pub(super) fn new() -> Self {
        Self {
            places: Arena::new(usize::MAX),
            index: HashTable::new(),
            hasher: DefaultHashBuilder::default(),
            steps: Chains::default(),
            quiet: VecDeque::new(),
            hurried: Vec::new(),
            kept_bytes: 0,
            large: LargeKeys::new(),
            taken: Vec::new(),
        }
    }

    /// When a recv is to ask its peer.
    #[inline]
    pub(super) fn next_deadline(&self) -> Option<Instant> {
        self.quiet.front().map(|(_, since)| *since + QUIET_TIME)
    }

    #[inline]
    fn hash(&self, at: RawMatchKey<'_>) -> u64 {
        self.hasher.hash_one((at.pair, at.step, at.key))
    }

    #[inline]
    fn find(&self, hash: u64, at: RawMatchKey<'_>) -> Option<Handle> {
        self.index.find(hash, |handle| self.places.get(*handle).is_some_and(|place| place.is(at))).copied()
    }

    /// Enters a place where nothing waits, to be filled.
    #[inline]
    fn enter(&mut self, hash: u64, at: MatchKey<'_>) -> (Handle, &mut Place) {
        let Self { places, index, hasher, steps, .. } = self;
        let (handle, place) = places.renew(Place::nothing).expect("2^32 recvs do not fit in memory");
        (place.pair, place.step) = (at.pair, at.step);
        place.key.push_str(at.key);
        let rehash = |handle: &Handle| {
            let place = places.get(*handle).expect("the index holds live places");
            hasher.hash_one((place.pair, place.step, place.key.as_bytes()))
        };
        index.insert_unique(hash, handle, rehash);
        steps.add(handle, (at.pair, at.step));
        (handle, places.get_mut(handle).expect("just entered"))
    }

    /// Ends a place, whose hash is known, with what `f` makes of it.
    #[inline]
    fn take<R>(&mut self, hash: u64, handle: Handle, f: impl FnOnce(&mut Place) -> R) -> Option<R> {
        if let Ok(slot) = self.index.find_entry(hash, |other| *other == handle) {
            slot.remove();
        }
        self.steps.remove(handle);
        let taken = self.places.retire(handle, |place| {
            reuse_key(&mut place.key);
            f(place)
        });
        if self.places.is_empty() {
            self.quiet.clear();
        }
        taken
    }

    /// The same by its name alone.
    fn remove<R>(&mut self, handle: Handle, f: impl FnOnce(&mut Place) -> R) -> Option<R> {
        let Place { pair, step, key, .. } = self.places.get(handle)?;
        let hash = self.hash(RawMatchKey { pair: *pair, step: *step, key: key.as_bytes() });
        self.take(hash, handle, f)
    }

    /// Takes the tensor out that is kept in a place.
    fn take_kept(&mut self, handle: Handle) -> Option<Kept> {
        self.places.get(handle)?.kept.as_ref()?;
        let kept = self.remove(handle, |place| place.kept.take())??;
        self.kept_bytes -= memory_of(kept.cost);
        Some(kept)
    }

    /// True if a recv waits there.
    #[inline]
    fn waits(&self, handle: Handle) -> bool {
        self.places.get(handle).is_some_and(|place| place.waiter.is_some())
    }

    fn of_step(&self, pair: u32, step: i64) -> Vec<Handle> {
        let mut handles = self.steps.of((pair, step));
        handles.retain(|&handle| self.places.get(handle).is_some_and(|it| (it.pair, it.step) == (pair, step)));
        handles
    }

    /// Notes how large the tensor of an answer is.
    #[inline]
    fn note_size(&mut self, handle: Handle, bytes: usize) {
        let Some(Place { pair, key, .. }) = self.places.get(handle) else { return };
        if bytes > AHEAD_TENSOR_BYTES {
            self.large.insert(*pair, key);
        } else {
            self.large.remove(*pair, key);
        }
    }

    /// Who waits for the answer of a request, which has a tensor of so many bytes, or none; `None` if nobody does any more.
    #[inline]
    pub(in crate::node) fn answered(&mut self, handle: Handle, bytes: Option<usize>) -> Option<RecvWaiter> {
        if let Some(bytes) = bytes {
            self.note_size(handle, bytes);
        }
        if !self.waits(handle) {
            return None;
        }
        self.remove(handle, |place| place.waiter.take())?
    }

    /// The peer wants a tensor back: what it cost, if it was kept, and is not any more.
    pub(in crate::node) fn revoked(&mut self, session: Handle, number: u64, pair: u32, of: KeyOf<'_>) -> Option<usize> {
        let at = RawMatchKey { pair, step: of.step, key: of.key.as_bytes() };
        let handle = self.find(self.hash(at), at)?;
        let kept = self.places.get(handle)?.kept.as_ref()?;
        if (kept.session, kept.number) != (session, number) {
            return None;
        }
        self.take_kept(handle).map(|kept| kept.cost)
    }

    /// A tensor of the peer's waits for its request: its recv is to ask at once, now or when it comes.
    pub(in crate::node) fn held(&mut self, pair: u32, of: KeyOf<'_>) {
        self.large.insert(pair, of.key);
        let at = RawMatchKey { pair, step: of.step, key: of.key.as_bytes() };
        let found = self.find(self.hash(at), at);
        if let Some(handle) = found
            && matches!(self.places.get(handle), Some(Place { waiter: Some(_), asked: None, .. }))
        {
            self.hurried.push(handle);
        }
    }
}

impl Exchange {
    /// Asks for a tensor of another node's task. `session` serves the pair, or there is none, for this reason.
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
        let hash = self.there.hash(at.into());
        let failed = match (self.there.find(hash, at.into()), session) {
            (None, Ok(_)) if key.len() > KEY_BYTES_MAX => {
                let found = key.len();
                Error::invalid(format!("the key has {found} bytes, at most {KEY_BYTES_MAX} are accepted"))
            }
            (None, Ok(session)) => {
                let takes_ahead = destination.as_ref().is_none_or(|to| to.device().is_none());
                let is_quiet = takes_ahead
                    && !fail_if_gone
                    && destination.as_ref().is_none_or(|to| to.len() <= AHEAD_TENSOR_BYTES)
                    && deadline > now + QUIET_TIME
                    && self.there.places.len() < context.settings.session.queued_requests_max
                    && context.has_asked(pair, session)
                    && !self.there.large.contains(pair, key);
                let (handle, place) = self.there.enter(hash, at);
                (place.since, place.deadline, place.takes_ahead) = (now, deadline, takes_ahead);
                (place.manner, place.asked) = (Manner { fused, fail_if_gone }, None);
                place.destination = destination;
                place.waiter = Some(waiter);
                if is_quiet {
                    self.there.quiet.push_back((handle, now));
                    return Some(Ticket::There(handle));
                }
                return self.ask(now, handle, session, context).then_some(Ticket::There(handle));
            }
            (None, Err(error)) => error,
            (Some(handle), _) => {
                let Some(kept) = self.there.take_kept(handle) else {
                    let unreceived = Unreceived { error: asked_twice(at), destination };
                    context.reporter.finish_recv(waiter, Err(unreceived));
                    return None;
                };
                self.hand_over(now, kept, at, (destination, waiter), context);
                return None;
            }
        };
        context.reporter.finish_recv(waiter, Err(Unreceived { error: failed, destination }));
        None
    }

    /// The tensor of a recv has come before it.
    fn hand_over(
        &mut self,
        now: Instant,
        Kept { session, number, cost, tensor }: Kept,
        at: MatchKey<'_>,
        (destination, waiter): (Option<Buffer>, RecvWaiter),
        context: &mut Context,
    ) {
        let (meta, payload) = tensor.into_parts();
        let (consumer, limit) = (context.pairs[at.pair].local, context.settings.session.tensor_bytes_max);
        let placed = place(&context.memory, limit, consumer, destination, &payload);
        let way = context.peers.way_of(session);
        let bytes = payload.len();
        match placed.and_then(|place| place.fill(payload)) {
            Ok(payload) => {
                self.there.taken.push((session, number, cost));
                let reporter = &mut context.reporter;
                reporter.count_received(bytes);
                reporter.record(Operation::Recv, way, now);
                let (step, key, bytes) = (at.step, at.key, bytes as u64);
                reporter.trace(Handle::NONE, || Moment::RecvInMemory { step, key: key.into(), since: now, bytes });
                reporter.finish_recv(waiter, Ok(Tensor::from_parts(meta, payload)));
            }
            Err(unreceived) => {
                self.give_back(session, number, cost, context);
                context.reporter.finish_recv(waiter, Err(unreceived));
            }
        }
    }

    /// A kept tensor is its producer's again.
    fn give_back(&mut self, session: Handle, number: u64, cost: usize, context: &mut Context) {
        if let Some(with) = context.peers.session_mut(session) {
            with.release_ahead(number, cost, Fate::Returned);
            context.peers.mark_dirty(session);
        }
    }

    /// The turn is over, or a link is: producers may hear in the next one of what was taken. How much that was.
    #[inline]
    pub(in crate::node) fn release_taken(&mut self, context: &mut Context) -> usize {
        let count = self.there.taken.len();
        for (session, number, cost) in self.there.taken.drain(..) {
            if let Some(with) = context.peers.session_mut(session) {
                with.release_ahead(number, cost, Fate::Taken);
                context.peers.mark_dirty(session);
            }
        }
        count
    }

    /// True if producers are still to hear of what was taken.
    pub(in crate::node) fn has_taken(&self) -> bool {
        !self.there.taken.is_empty()
    }

    /// Asks the peer of a session for the tensor of a recv; false if the recv has ended by that.
    fn ask(&mut self, now: Instant, handle: Handle, session: Handle, context: &mut Context) -> bool {
        let Some(place) = self.there.places.get_mut(handle).filter(|place| place.waiter.is_some()) else {
            return false;
        };
        let known = &context.pairs[place.pair];
        let ask = Ask {
            consumer: known.local,
            producer: known.peer,
            step: place.step,
            key: &place.key,
            deadline: place.deadline,
            destination: place.destination.take(),
            waiter: RecvWaiter::Asked(handle),
        };
        let (pair, deadline) = (place.pair, place.deadline);
        let with = context.peers.session_mut(session).expect("the caller found it");
        match with.request_as(place.since, ask, place.manner) {
            Ok(request) => {
                place.asked = Some((session, request));
                // Of one that waits for a link it is not known yet whether it will be asked there.
                if with.is_attached() {
                    context.pairs.note_asked(pair, session);
                }
                context.asked(now, session, deadline);
                true
            }
            Err((Unanswered { error, destination }, _)) => {
                if let Some(Some(waiter)) = self.there.remove(handle, |place| place.waiter.take()) {
                    context.reporter.finish_recv(waiter, Err(Unreceived { error, destination }));
                }
                false
            }
        }
    }

    /// A recv whose request was never sent asks anew, with the memory that it brought.
    pub(in crate::node) fn ask_again(
        &mut self,
        now: Instant,
        (handle, session): (Handle, Result<Handle, Error>),
        destination: Option<Buffer>,
        context: &mut Context,
    ) {
        let Some(place) = self.there.places.get_mut(handle) else { return };
        (place.destination, place.asked) = (destination, None);
        self.ask_at_last(now, handle, session, context);
    }

    /// The next recv that has waited for long enough without a word, or is to ask now, and its pair.
    pub(in crate::node) fn next_to_ask(&mut self, now: Instant) -> Option<(Handle, u32)> {
        let There { quiet, hurried, places, .. } = &mut self.there;
        loop {
            let is_due = |(handle, since): &(Handle, Instant)| {
                *since + QUIET_TIME <= now || places.get(*handle).is_none_or(|place| place.asked.is_some())
            };
            let handle = match hurried.pop() {
                Some(handle) => handle,
                None => quiet.pop_front_if(|front| is_due(front))?.0,
            };
            if let Some(Place { pair, waiter: Some(_), asked: None, .. }) = places.get(handle) {
                return Some((handle, *pair));
            }
        }
    }

    /// Asks for a recv that [waited](Self::next_to_ask).
    pub(in crate::node) fn ask_at_last(
        &mut self,
        now: Instant,
        handle: Handle,
        session: Result<Handle, Error>,
        context: &mut Context,
    ) {
        match session {
            Ok(session) => _ = self.ask(now, handle, session, context),
            Err(error) => self.fail_there(handle, error, context),
        }
    }

    /// Gives a recv up; false if it has ended.
    pub(super) fn cancel_there(&mut self, handle: Handle, context: &mut Context) -> bool {
        if !self.there.waits(handle) {
            return false;
        }
        let taken = self.there.remove(handle, |place| (place.waiter.take(), place.destination.take(), place.asked));
        let Some((_, _, asked)) = taken else { return false };
        if let Some((session, request)) = asked
            && let Some(with) = context.peers.session_mut(session)
        {
            with.cancel(request);
            context.peers.mark_dirty(session);
        }
        true
    }

    /// Ends a recv with `error`.
    fn fail_there(&mut self, handle: Handle, error: Error, context: &mut Context) {
        let taken = self.there.remove(handle, |place| (place.waiter.take(), place.destination.take(), place.asked));
        let Some((Some(waiter), destination, asked)) = taken else { return };
        let mut back = destination;
        if let Some((session, request)) = asked
            && let Some(with) = context.peers.session_mut(session)
        {
            back = with.cancel(request).and_then(|(_, destination)| destination);
            context.peers.mark_dirty(session);
        }
        context.reporter.finish_recv(waiter, Err(Unreceived { error, destination: back }));
    }

    /// Ends the recvs of a pair in `step` with `error`, and gives back what came for them.
    pub(in crate::node) fn end_there_of(&mut self, pair: u32, step: i64, error: &Error, context: &mut Context) {
        for handle in self.there.of_step(pair, step) {
            self.end_place(handle, Some(error), context);
        }
    }

    /// Gives back what came from the peer of a pair.
    pub(super) fn give_back_of_pair(&mut self, pair: u32, context: &mut Context) {
        for handle in self.there.places.select(|place| place.pair == pair && place.kept.is_some()) {
            self.end_place(handle, None, context);
        }
    }

    /// Gives back what came for a pair in `step`.
    pub(super) fn give_back_of(&mut self, pair: u32, step: i64, context: &mut Context) {
        for handle in self.there.of_step(pair, step) {
            self.end_place(handle, None, context);
        }
    }

    /// Ends what waits for a local task, or for all, with `error`.
    pub(in crate::node) fn end_there(&mut self, local: Option<u16>, error: &Error, context: &mut Context) {
        let pairs = &context.pairs;
        let handles = self.there.places.select(|place| local.is_none_or(|local| pairs[place.pair].local == local));
        for handle in handles {
            self.end_place(handle, Some(error), context);
        }
    }

    /// Ends a recv with `error`, if there is one, or gives a tensor back.
    fn end_place(&mut self, handle: Handle, error: Option<&Error>, context: &mut Context) {
        if let Some(Kept { session, number, cost, .. }) = self.there.take_kept(handle) {
            self.give_back(session, number, cost, context);
        } else if let Some(error) = error {
            self.fail_there(handle, error.clone(), context);
        }
    }

    /// A session has a link, on which what stands of its requests is repeated.
    pub(in crate::node) fn note_repeated(&self, session: Handle, pairs: &mut Pairs) {
        for (_, place) in self.there.places.iter() {
            if place.asked.is_some_and(|(asked, _)| asked == session) {
                pairs.note_asked(place.pair, session);
            }
        }
    }

    /// The link of a session is gone: its peer takes back what no recv has taken.
    pub(super) fn forget_kept(&mut self, session: Handle) {
        let is_of = |place: &Place| place.kept.as_ref().is_some_and(|kept| kept.session == session);
        for handle in self.there.places.select(is_of) {
            self.there.take_kept(handle);
        }
        debug_assert!(self.there.taken.iter().all(|(of, ..)| *of != session), "its producer would send it again");
    }

    /// A small tensor of a peer has come ahead of its request: what became of it, or `None` if it is kept.
    ///
    /// # Errors
    /// It is to be kept, and its key is no text.
    #[inline]
    pub(in crate::node) fn came_ahead(
        &mut self,
        session: (Handle, &mut PeerSession, &mut LastPair),
        came: &CameAhead<'_>,
        (pairs, reporter, memory): (&mut Pairs, &mut Reporter, &Memory),
    ) -> Result<(Option<Fate>, Option<Instant>), WireError> {
        let (of, with, last_pair) = session;
        let ends = (came.consumer, came.producer);
        let pair = match *last_pair {
            Some((last, pair)) if last == ends => pair,
            _ if came.producer == STRANGER => return Ok((Some(Fate::Returned), None)),
            _ => {
                let pair = pairs.pair_of(came.consumer, came.producer);
                *last_pair = Some((ends, pair));
                pair
            }
        };
        let returned = Ok((Some(Fate::Returned), None));
        // Only where the pair has asked: a task that has moved may still send from where it was.
        let is_asked = pairs[pair].asked_there == Some(of) && pairs[pair].owned;
        if !is_asked || self.ended.reason(came.consumer, pair, came.step).is_some() {
            return returned;
        }
        let at = RawMatchKey { pair, step: came.step, key: came.key };
        let there = &mut self.there;
        let hash = there.hash(at);
        let Some(handle) = there.find(hash, at) else {
            return self.keep_ahead(of, hash, at, came).map(|fate| (fate, None));
        };
        let Some(place) = there.places.get_mut(handle).filter(|place| place.kept.is_none()) else {
            return Ok((Some(Fate::Duplicate), None));
        };
        if let Some((asked, request)) = place.asked {
            if asked != of || !place.takes_ahead {
                return returned;
            }
            // Its answer may be arriving: then this one waits with its producer.
            let Some(destination) = with.cancel_unanswered(request) else { return returned };
            place.destination = destination;
        }
        let taken = there.take(hash, handle, |place| (place.waiter.take(), place.destination.take(), place.since));
        let Some((Some(waiter), destination, since)) = taken else { unreachable!("who has no tensor waits for one") };
        if !reporter.outcomes.listens(&waiter) {
            reporter.finish_recv(waiter, Err(unheard().into()));
            return returned;
        }
        let len = came.payload.len();
        let memory = match destination {
            Some(to) if to.len() < len => {
                let reason = format!("the destination has {} bytes, the tensor needs {len}", to.len());
                Err(Unreceived { error: Error::invalid(reason), destination: Some(to) })
            }
            Some(to) => Ok(to),
            None => memory.allocate(came.consumer, len).map_err(Unreceived::from),
        };
        let mut buffer = match memory {
            Ok(buffer) => buffer,
            Err(unreceived) => {
                reporter.finish_recv(waiter, Err(unreceived));
                return returned;
            }
        };
        buffer.truncate(len);
        buffer.volatile_mut().copy_from(came.payload);
        reporter.count_received(len);
        let outcome = reporter.outcomes.tensor_of(came.meta, buffer);
        if reporter.recorder.is_some() {
            let (step, key, bytes) = (came.step, String::from_utf8_lossy(came.key).into(), len as u64);
            reporter.trace(Handle::NONE, || Moment::RecvInMemory { step, key, since, bytes });
        }
        reporter.finish_recv(waiter, outcome);
        Ok((Some(Fate::Taken), Some(since)))
    }

    /// Keeps a tensor that came before its recv, if there is room.
    fn keep_ahead(
        &mut self,
        session: Handle,
        hash: u64,
        at: RawMatchKey<'_>,
        came: &CameAhead<'_>,
    ) -> Result<Option<Fate>, WireError> {
        let cost = came.cost();
        if self.there.kept_bytes + memory_of(cost) > KEPT_AHEAD_BYTES_MAX {
            return Ok(Some(Fate::Returned));
        }
        let key = wire::text("key", came.key)?;
        let Ok(tensor) = Tensor::from_wire(came.meta, Buffer::copy_of(came.payload)) else {
            return Ok(Some(Fate::Returned));
        };
        self.there.kept_bytes += memory_of(cost);
        let (_, place) = self.there.enter(hash, MatchKey { pair: at.pair, step: at.step, key });
        place.kept = Some(Kept { session, number: came.number, cost, tensor });
        place.asked = None;
        Ok(None)
    }

    /// Panics unless each recv has a way to end, and what is kept is of a session with a link.
    #[cfg(any(test, feature = "fuzzing"))]
    pub(super) fn check_there(&self, context: &Context) {
        let there = &self.there;
        let mut kept_bytes = 0;
        for (handle, place) in there.places.iter() {
            let at = RawMatchKey { pair: place.pair, step: place.step, key: place.key.as_bytes() };
            assert_eq!(there.find(there.hash(at), at), Some(handle), "a recv and its tensor would not meet");
            assert!(there.of_step(place.pair, place.step).contains(&handle), "a recv would outlive its step");
            assert!(place.kept.is_some() != place.waiter.is_some(), "an empty place would wait for ever");
            match (&place.kept, place.asked) {
                (Some(kept), _) => {
                    kept_bytes += memory_of(kept.cost);
                    let session = context.peers.session(kept.session);
                    assert!(session.is_some_and(|with| with.is_attached()), "its producer has it back by now");
                }
                (None, None) => {
                    let is_quiet = there.quiet.iter().any(|(quiet, _)| *quiet == handle);
                    assert!(is_quiet || there.hurried.contains(&handle), "a recv would never ask");
                }
                (None, Some((session, request))) => {
                    let waits = context.peers.session(session).is_some_and(|with| with.is_waiting(request));
                    assert!(waits, "a recv would wait for an answer that has come");
                }
            }
        }
        assert_eq!(kept_bytes, there.kept_bytes, "the limit would bound something else than what is kept");
        assert_eq!(there.index.len(), there.places.len(), "a recv would be found that has ended");
    }
}
