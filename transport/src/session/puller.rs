//! The pulling half of a session: key sets, sent once per link, and pulls of them.
//!
//! A pull reads published tensors and needs no release: when a link dies, it is repeated from the start.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;

use sealane_runtime::{Buffer, Sweep};

use super::control::{Control, ControlQueue};
use super::receive::ReceiveMemory;
use super::{Awaited, Event, Roster, Session};
use crate::arena::{Arena, Handle};
use crate::error::{Error, Operation};
use crate::limits::{SETS_MAX, SessionLimits};
use crate::link::{Landing, LandingOf, Place};
use crate::outbox::Outbox;
use crate::payload::Meta;
use crate::pull_buffer::{Keys, Known, PullBuffer, next_stamp};
use crate::tensor::TensorMeta;
use crate::wire::{Metas, Part, Parts, Pull, PullFailure, WireError};

/// A pull: of which set, how recent, until when, and into what.
#[derive(Debug)]
pub struct PullParams<W> {
    /// The set, from [`Session::add_set`].
    pub set: Handle,
    /// The oldest version that will do.
    pub min_version: i64,
    /// When tensors still missing fail with DeadlineExceeded.
    pub deadline: Instant,
    /// It fails for tensors that are not published if their task has left.
    pub fail_if_gone: bool,
    /// One place for each key of the set.
    pub pull_buffer: PullBuffer,
    /// Returned with the pull buffer.
    pub waiter: W,
}

struct Set {
    consumer: u16,
    producer: u32,
    keys: Arc<Keys>,
    /// Number of keys that the producer was told on this link.
    told: usize,
    known: Vec<Option<Known>>,
}

struct Pulling<W> {
    set: Handle,
    min_version: i64,
    since: Instant,
    deadline: Instant,
    fail_if_gone: bool,
    /// It was sent on the current link.
    out: bool,
    /// It was sent at least once, on any link.
    was_sent: bool,
    pull_buffer: PullBuffer,
    waiter: W,
}

pub(super) struct Puller<W> {
    sets: Arena<Set>,
    pulls: Arena<Pulling<W>>,
    pulls_max: usize,
    queued: VecDeque<Handle>,
    /// A lower bound of all deadlines.
    deadlines: Sweep,
    tensor_bytes_max: u64,
}

impl<W> Puller<W> {
    pub(super) fn new(limits: &SessionLimits) -> Self {
        Self {
            sets: Arena::new(SETS_MAX),
            pulls: Arena::new(limits.queued_requests_max),
            pulls_max: limits.queued_requests_max,
            queued: VecDeque::new(),
            deadlines: Sweep::default(),
            tensor_bytes_max: limits.tensor_bytes_max,
        }
    }

    pub(super) fn pulls(&self) -> usize {
        self.pulls.len()
    }

    #[inline]
    pub(super) fn can_request(&self) -> bool {
        !self.queued.is_empty()
    }

    pub(super) fn next_deadline(&self) -> Option<Instant> {
        self.deadlines.next()
    }

    /// Stages the next frame of a pull: keys that the producer does not know yet, or the pull itself.
    pub(super) fn stage(&mut self, now: Instant, roster: &Roster, outbox: &mut Outbox) -> bool {
        while let Some(&id) = self.queued.front() {
            let Some(pull) = self.pulls.get_mut(id) else {
                self.queued.pop_front();
                continue;
            };
            let set = self.sets.get_mut(pull.set).expect("a set stays while it is pulled");
            let Some(producer) = roster.place_of(set.producer) else {
                self.queued.pop_front();
                continue;
            };
            if set.told < set.keys.len() {
                let ends = (set.consumer, producer);
                let place = (set.keys.len() as u32, set.told as u32);
                let keys = set.keys.iter().skip(set.told);
                let mut told = 0;
                outbox.stage(|writer| told = writer.key_set(pull.set, ends, place, keys));
                set.told += told as usize;
                return true;
            }
            self.queued.pop_front();
            (pull.out, pull.was_sent) = (true, true);
            let left = pull.deadline.saturating_duration_since(now);
            let timeout_ms = left.as_millis().min(u128::from(u32::MAX)) as u32;
            let Pulling { set, min_version, fail_if_gone, .. } = *pull;
            let pull = Pull { id, set, min_version, timeout_ms, fail_if_gone };
            outbox.stage(|writer| writer.pull(&pull));
            return true;
        }
        false
    }

    /// Ends the pulls of tasks that the peer does not serve.
    pub(super) fn resume<D>(&mut self, roster: &Roster, error: &Error, events: &mut VecDeque<Event<W, D>>) {
        let sets = &self.sets;
        let is_strange =
            |pull: &Pulling<W>| sets.get(pull.set).is_some_and(|set| roster.place_of(set.producer).is_none());
        for handle in self.pulls.select(is_strange) {
            self.end(handle, error, events);
        }
    }

    /// Removes a pull; what has not come of it fails with `error`.
    fn end<D>(&mut self, handle: Handle, error: &Error, events: &mut VecDeque<Event<W, D>>) {
        if let Some(pull) = self.pulls.get_mut(handle) {
            pull.pull_buffer.fail_missing(|_| error.clone());
            self.finish(handle, events);
        }
    }

    fn finish<D>(&mut self, handle: Handle, events: &mut VecDeque<Event<W, D>>) {
        let Some(Pulling { waiter, pull_buffer, .. }) = self.remove(handle) else { return };
        events.push_back(Event::Pulled { waiter, pull_buffer });
    }

    fn remove(&mut self, handle: Handle) -> Option<Pulling<W>> {
        let pull = self.pulls.remove(handle)?;
        if self.pulls.is_empty() {
            self.deadlines.clear();
        }
        Some(pull)
    }

    /// The link is gone: sets and pulls are sent again on the next.
    pub(super) fn suspend(&mut self, landings: &mut [Landing]) {
        for landing in landings {
            if let LandingOf::Part { index, .. } = landing.of
                && let Some(pull) = self.pulls.get_mut(landing.request)
                && let Place::Buffer(memory) = std::mem::replace(&mut landing.place, Place::Nowhere)
            {
                pull.pull_buffer.take_back(index as usize, memory);
            }
        }
        self.sets.iter_mut().for_each(|(_, set)| set.told = 0);
        self.queued.clear();
        for (handle, pull) in self.pulls.iter_mut() {
            pull.out = false;
            pull.pull_buffer.begin();
            self.queued.push_back(handle);
        }
    }

    pub(super) fn end_sent<D>(&mut self, error: &Error, events: &mut VecDeque<Event<W, D>>) {
        for handle in self.pulls.select(|pull| pull.was_sent) {
            self.end(handle, error, events);
        }
    }

    pub(super) fn forget_sent(&mut self) {
        self.pulls.iter_mut().for_each(|(_, pull)| pull.was_sent = false);
    }

    /// Ends the pulls of `consumer`, or of all tasks if `None`.
    pub(super) fn end_those<D>(
        &mut self,
        consumer: Option<u16>,
        error: &Error,
        control: &mut ControlQueue,
        events: &mut VecDeque<Event<W, D>>,
    ) {
        let sets = &self.sets;
        let of_consumer = |pull: &Pulling<W>| {
            consumer.is_none_or(|consumer| sets.get(pull.set).is_some_and(|set| set.consumer == consumer))
        };
        for handle in self.pulls.select(of_consumer) {
            self.cancel_out(handle, control);
            self.end(handle, error, events);
        }
    }

    fn cancel_out(&self, handle: Handle, control: &mut ControlQueue) {
        if self.pulls.get(handle).is_some_and(|pull| pull.out) {
            control.push(Control::PullCancel(handle));
        }
    }

    pub(super) fn expire<D>(
        &mut self,
        now: Instant,
        awaited: &Awaited<'_>,
        control: &mut ControlQueue,
        events: &mut VecDeque<Event<W, D>>,
    ) {
        if !self.deadlines.is_due(now) {
            return;
        }
        for handle in self.pulls.select(|pull| pull.deadline <= now) {
            self.cancel_out(handle, control);
            let pull = self.pulls.get_mut(handle).expect("just selected");
            let set = self.sets.get(pull.set).expect("a set stays while it is pulled");
            let waited = pull.deadline.saturating_duration_since(pull.since);
            let (step, keys) = (pull.min_version, &set.keys);
            let awaited = awaited.of(set.producer, "but nobody there has published it, or not all of it has come");
            let late = |index| Error::late(Operation::Pull, step, keys.get(index), waited, awaited.as_str());
            pull.pull_buffer.fail_missing(late);
            self.finish(handle, events);
        }
        self.deadlines = Sweep::after(now, self.pulls.slots());
        self.deadlines.extend(self.pulls.iter().map(|(_, pull)| pull.deadline));
    }

    /// Records the metadata of tensors of a set.
    pub(super) fn learn(&mut self, metas: &Metas<'_>) -> Result<(), WireError> {
        let Some(set) = self.sets.get_mut(metas.set) else { return Ok(()) };
        for entry in metas.iter() {
            let (index, meta, len) = entry?;
            let Some(slot) = set.known.get_mut(index as usize) else {
                return Err(WireError::BadValue { what: "number of a set's tensor", found: u64::from(index) });
            };
            if slot.as_ref().is_some_and(|known| known.meta.as_wire() == meta && known.len as u64 == len) {
                continue;
            }
            let bad = |_| WireError::BadValue { what: "length of a set's tensor", found: len };
            let meta = TensorMeta::from_wire(meta).map_err(bad)?;
            meta.check_bytes(len).map_err(bad)?;
            *slot = Some(Known { stamp: next_stamp(), meta, len: len as usize });
        }
        Ok(())
    }

    /// Takes in small tensors; returns how many.
    ///
    /// # Errors
    /// They differ from what the peer has said of them, or one has come before. Each is sent only once per link: without bytes
    /// a frame could name tens of thousands.
    #[inline]
    pub(super) fn take<D>(
        &mut self,
        parts: &Parts<'_>,
        memory: &dyn ReceiveMemory,
        events: &mut VecDeque<Event<W, D>>,
    ) -> Result<u64, WireError> {
        // The pull may have been given up.
        let Some(pull) = self.pulls.get_mut(parts.id) else { return Ok(0) };
        let set = self.sets.get(pull.set).expect("a set stays while it is pulled");
        let first = parts.first as usize;
        let Some(known) = first.checked_add(parts.count as usize).and_then(|end| set.known.get(first..end)) else {
            return Err(WireError::BadValue { what: "number of a set's tensor", found: u64::from(parts.first) });
        };
        let mut rest = parts.payload;
        for (index, known) in (first..).zip(known) {
            let Some(known) = known else {
                return Err(WireError::BadValue { what: "tensor without metadata", found: index as u64 });
            };
            let Some((bytes, tail)) = rest.split_at_checked(known.len) else {
                return Err(WireError::Truncated { what: "parts", found: parts.payload.len() });
            };
            rest = tail;
            if !pull.pull_buffer.is_missing(index) {
                return Err(comes_again(index as u32));
            }
            pull.pull_buffer.put(index, known, parts.version, bytes, |len| memory.allocate_to_stay(set.consumer, len));
        }
        if !rest.is_empty() {
            return Err(WireError::BadValue { what: "bytes behind the last part", found: rest.len() as u64 });
        }
        if pull.pull_buffer.is_complete() {
            self.finish(parts.id, events);
        }
        Ok(parts.count.into())
    }

    /// Finds the place for a tensor that begins to arrive.
    pub(super) fn land<D>(
        &mut self,
        part: &Part,
        outbox: Option<&mut Outbox>,
        memory: &dyn ReceiveMemory,
        events: &mut VecDeque<Event<W, D>>,
    ) -> Result<Landing, WireError> {
        let bytes = (part.payload_bytes, part.transfer);
        let landing = |of, place| Landing::new((part.id, Handle::NONE), (of, Meta::new()), place, bytes);
        let Some(pull) = self.pulls.get_mut(part.id) else { return Ok(landing(LandingOf::GivenUp, Place::Nowhere)) };
        let set = self.sets.get(pull.set).expect("a set stays while it is pulled");
        let index = part.index as usize;
        let known =
            set.known.get(index).and_then(Option::as_ref).filter(|known| known.len as u64 == part.payload_bytes);
        let Some(known) = known else {
            return Err(WireError::BadValue { what: "length of a set's tensor", found: part.payload_bytes });
        };
        if !pull.pull_buffer.is_missing(index) {
            return Err(comes_again(part.index));
        }
        let refusal = if part.payload_bytes > self.tensor_bytes_max {
            let (bytes, limit) = (part.payload_bytes, self.tensor_bytes_max);
            Error::full("transport.tensor_bytes_max", format!("the tensor has {bytes} bytes, the limit is {limit}"))
        } else {
            let allocate = |len| memory.allocate_to_stay(set.consumer, len);
            match pull.pull_buffer.lend_for(index, known.len, outbox, allocate) {
                Ok(memory) => {
                    let (index, version, known) = (part.index, part.version, known.clone());
                    return Ok(landing(LandingOf::Part { index, version, known }, Place::Buffer(memory)));
                }
                Err(full) => full,
            }
        };
        pull.pull_buffer.fail(index, refusal);
        if pull.pull_buffer.is_complete() {
            self.finish(part.id, events);
        }
        Ok(landing(LandingOf::GivenUp, Place::Nowhere))
    }

    /// A tensor has fully arrived; `known` is its metadata as of when it began to arrive, since the set may have learned other
    /// metadata meanwhile.
    pub(super) fn landed<D>(
        &mut self,
        id: Handle,
        (index, version, known): (u32, i64, &Known),
        memory: Buffer,
        events: &mut VecDeque<Event<W, D>>,
    ) {
        let Some(pull) = self.pulls.get_mut(id) else { return };
        pull.pull_buffer.land(index as usize, known, version, memory);
        if pull.pull_buffer.is_complete() {
            self.finish(id, events);
        }
    }

    pub(super) fn failed<D>(
        &mut self,
        failure: &PullFailure<'_>,
        peer: &str,
        control: &mut ControlQueue,
        events: &mut VecDeque<Event<W, D>>,
    ) {
        let Some(pull) = self.pulls.get_mut(failure.id) else { return };
        let error = Error::from_wire(failure.code, peer, pull.min_version, failure.reason);
        let set = (failure.index == PullFailure::ALL).then_some(pull.set);
        if failure.index == PullFailure::ALL {
            pull.pull_buffer.fail_missing(|_| error.clone());
        } else if (failure.index as usize) < pull.pull_buffer.len() {
            pull.pull_buffer.fail(failure.index as usize, error);
        }
        if pull.pull_buffer.is_complete() {
            self.finish(failure.id, events);
        }
        // The peer has not taken in the set, perhaps for lack of room: the next pull names it again.
        if let Some(id) = set
            && !self.pulls.iter().any(|(_, pull)| pull.set == id && pull.out)
            && let Some(set) = self.sets.get_mut(id)
        {
            set.told = 0;
            control.push(Control::ForgetSet(id));
        }
    }
}

fn comes_again(index: u32) -> WireError {
    WireError::BadValue { what: "number of a tensor that has come", found: index.into() }
}

impl<W, D: PartialEq + Clone> Session<W, D> {
    /// Names a set of keys of the peer's task `producer`, for `consumer` to pull. The peer is told with the first pull.
    ///
    /// # Errors
    /// ResourceExhausted if there are [`SETS_MAX`] already.
    pub fn add_set(&mut self, consumer: u16, producer: u32, keys: Arc<Keys>) -> Result<Handle, Error> {
        let known = vec![None; keys.len()];
        let set = Set { consumer, producer, keys, told: 0, known };
        self.puller.sets.insert(set).map_err(|_| {
            Error::full("plans of a session", format!("{SETS_MAX} plans with {} are already open", self.peer))
        })
    }

    /// Forgets a set; pulls of it end as if cancelled.
    pub fn forget_set(&mut self, set: Handle) {
        for handle in self.puller.pulls.select(|pull| pull.set == set) {
            self.cancel_pull(handle);
        }
        if let Some(Set { told: 1.., .. }) = self.puller.sets.remove(set) {
            self.control.push(Control::ForgetSet(set));
        }
    }

    /// Pulls a set; the pull buffer comes back as [`Event::Pulled`], with each place filled or failed.
    ///
    /// # Errors
    /// ResourceExhausted if `fusion.queued_requests_max` pulls exist, NotFound if the attached peer does not serve the task,
    /// Unavailable if the peer is going away. Each returns the pull buffer and the waiter.
    pub fn pull(&mut self, now: Instant, params: PullParams<W>) -> Result<Handle, (Error, PullBuffer, W)> {
        let PullParams { set, min_version, deadline, fail_if_gone, mut pull_buffer, waiter } = params;
        if let Some(reason) = &self.going_away {
            return Err((Error::unavailable(&self.peer, reason.clone()), pull_buffer, waiter));
        }
        let Some(told) = self.puller.sets.get(set) else {
            return Err((Error::invalid("the plan was closed"), pull_buffer, waiter));
        };
        if pull_buffer.len() != told.keys.len() {
            let (places, keys) = (pull_buffer.len(), told.keys.len());
            return Err((Error::invalid(format!("{places} places for {keys} tensors")), pull_buffer, waiter));
        }
        if let Some(attached) = &self.attached
            && attached.roster.place_of(told.producer).is_none()
        {
            return Err((super::consumer::not_served(&self.peer), pull_buffer, waiter));
        }
        pull_buffer.begin();
        let puller = &mut self.puller;
        puller.pulls.prune(&mut puller.queued);
        let (since, out, was_sent) = (now, false, false);
        let pull = Pulling { set, min_version, since, deadline, fail_if_gone, out, was_sent, pull_buffer, waiter };
        match puller.pulls.insert(pull) {
            Ok(handle) => {
                puller.queued.push_back(handle);
                puller.deadlines.enter(deadline);
                Ok(handle)
            }
            Err(Pulling { pull_buffer, waiter, .. }) => {
                let reason = format!("{} pulls from {} are already waiting", puller.pulls_max, self.peer);
                Err((Error::full("fusion.queued_requests_max", reason), pull_buffer, waiter))
            }
        }
    }

    /// Cancels a pull: nothing more is reported for it. `None` if it has already ended.
    pub fn cancel_pull(&mut self, handle: Handle) -> Option<(W, PullBuffer)> {
        self.puller.cancel_out(handle, &mut self.control);
        let pull = self.puller.remove(handle)?;
        Some((pull.waiter, pull.pull_buffer))
    }

    /// Removes and returns the pulls that `pick` (consumer, producer) chooses and that were not sent: see
    /// [`take_requests`](Self::take_requests).
    pub fn take_pulls(&mut self, mut pick: impl FnMut(u16, u32) -> bool, mut each: impl FnMut(PullParams<W>)) {
        debug_assert!(self.attached.is_none(), "pulls move before a link is attached");
        let sets = &self.puller.sets;
        let chosen = |pull: &Pulling<W>| sets.get(pull.set).is_some_and(|set| pick(set.consumer, set.producer));
        for handle in self.puller.pulls.select(chosen) {
            let pull = self.puller.pulls.remove(handle).expect("just selected");
            let Pulling { set, min_version, deadline, fail_if_gone, pull_buffer, waiter, .. } = pull;
            each(PullParams { set, min_version, deadline, fail_if_gone, pull_buffer, waiter });
        }
    }
}
