//! Recvs of one call that wait together. They are matched in the order in which they were made, in which their tensors usually come: an
//! arriving tensor costs one comparison with the next key, and no hash.
//!
//! They wait together for as long as a single recv waits before its request. Before anything else can happen to one of them, the recvs of
//! its call [become single](RemoteRecvs::unpost).

use std::sync::Arc;
use std::time::Instant;

use sealane_runtime::Buffer;
use sealane_transport::limits::AHEAD_TENSOR_BYTES;
use sealane_transport::session::RequestOptions;
use sealane_transport::wire::AheadRecords;
use sealane_transport::{Destination, Handle};

use super::super::batches::Batches;
use super::super::received::Brought;
use super::RemoteRecvs;
use super::delayed_requests::RequestDelay;
use super::key_lists::{KeyList, KeyLists};
use crate::limits::{POSTED_CALLS_MAX, POSTED_KEYS_MAX};
use crate::node::cells::{RecvWaiter, Ticket};
use crate::node::context::Context;
use crate::node::outcomes::Outcomes;
use crate::rendezvous::{MatchKey, RawMatchKey};

/// One recv of a call.
enum Slot {
    /// It waits, with the caller's memory if there is any.
    Open(Option<Destination>),
    /// It has its tensor, or never waited together with the others.
    Over,
}

/// The first waiting slot at or after `from`; looks at a limited number of slots.
#[inline]
fn open_from(slots: &[Slot], from: usize) -> usize {
    let mut at = from;
    while at < from + OVER_SKIPPED_MAX && matches!(slots.get(at), Some(Slot::Over)) {
        at += 1;
    }
    at
}

/// The recvs of one call.
struct Call {
    pair: u32,
    step: i64,
    since: Instant,
    delay: RequestDelay,
    deadline: Instant,
    /// The batch that waits for all of them.
    batch: Handle,
    keys: Arc<KeyList>,
    /// One for each key.
    slots: Vec<Slot>,
    /// The slot whose tensor is expected next.
    next: usize,
    /// How many wait.
    left: usize,
}

impl Call {
    /// When its recvs stop waiting and send their requests.
    #[inline]
    fn requests_at(&self) -> Instant {
        self.since + self.delay.time()
    }

    #[inline]
    fn is_of(&self, of: (u32, i64)) -> bool {
        (self.pair, self.step) == of
    }

    /// True if the next recv waits for that tensor.
    #[inline]
    fn expects(&self, at: RawMatchKey<'_>) -> bool {
        matches!(self.slots.get(self.next), Some(Slot::Open(_)))
            && self.is_of((at.pair, at.step))
            && self.keys.key(self.next).as_bytes() == at.key
    }
}

/// A recv, by the index of its call and its number there; valid until something changes.
#[derive(Clone, Copy)]
pub(super) struct Found {
    call: usize,
    number: usize,
}

/// Calls whose slot memory is kept for reuse.
const SPARE_CALLS_MAX: usize = 8;

/// How many ended slots are skipped in search of the next waiting one: bounds the cost of a tensor that comes out of order.
const OVER_SKIPPED_MAX: usize = 64;

/// All calls whose recvs wait together; see the module.
#[derive(Default)]
pub(super) struct Posted {
    /// In the order in which they were made: the first has waited longest.
    calls: Vec<Call>,
    /// The call whose tensor came last.
    last: usize,
    /// Waiting recvs of all calls.
    recvs: usize,
    /// Keys of recent calls.
    pub(super) lists: KeyLists,
    /// Memory for the slots of future calls.
    spare: Vec<Vec<Slot>>,
}

impl Posted {
    /// True if recvs of a pair and step wait together, some of which may be for these keys.
    pub(super) fn may_have(&self, of: (u32, i64), keys: &KeyList) -> bool {
        self.calls.iter().any(|call| call.is_of(of) && !call.keys.is_known_disjoint_from(keys))
    }

    pub(super) fn recvs(&self) -> usize {
        self.recvs
    }

    /// When the recvs of the first call stop waiting and send their requests.
    #[inline]
    pub(super) fn next_deadline(&self) -> Option<Instant> {
        self.calls.iter().map(Call::requests_at).min()
    }

    /// True if any call waits longer than the shortest time.
    pub(super) fn is_long(&self) -> bool {
        self.calls.iter().any(|call| call.delay != RequestDelay::default())
    }

    /// The recv that waits for a tensor.
    #[inline(always)]
    pub(super) fn find(&self, at: RawMatchKey<'_>) -> Option<Found> {
        if self.recvs == 0 {
            return None;
        }
        match self.calls.get(self.last) {
            None => None,
            Some(call) if call.expects(at) => Some(Found { call: self.last, number: call.next }),
            Some(_) => self.search(at),
        }
    }

    /// Finds a recv whose tensor comes out of order.
    fn search(&self, at: RawMatchKey<'_>) -> Option<Found> {
        let find = |(index, call): (usize, &Call)| {
            let number =
                if call.is_of((at.pair, at.step)) { self.lists.number_of(&call.keys, at.key)? } else { return None };
            matches!(call.slots[number], Slot::Open(_)).then_some(Found { call: index, number })
        };
        self.calls.iter().enumerate().find_map(find)
    }

    /// The waiter at a slot, since when it waits, and its memory.
    #[inline]
    pub(super) fn at(&mut self, Found { call, number }: Found) -> (RecvWaiter, Instant, &mut Option<Destination>) {
        let Call { batch, since, slots, .. } = &mut self.calls[call];
        let Slot::Open(destination) = &mut slots[number] else { unreachable!("just found") };
        (RecvWaiter::Batch { batch: *batch, index: number as u32 }, *since, destination)
    }

    /// A recv that was found has ended.
    #[inline]
    pub(super) fn over(&mut self, Found { call: index, number }: Found) {
        let Call { slots, next, .. } = &mut self.calls[index];
        slots[number] = Slot::Over;
        *next = open_from(slots, number + 1);
        self.ended(index, 1);
    }

    /// Takes the first tensors of a frame, if they are those that a call expects next; also returns since when they were waited for. `None`
    /// if there is no such call; then nothing was taken.
    pub(super) fn take_frame(
        &mut self,
        of: (u32, i64),
        records: AheadRecords<'_>,
        outcomes: &mut Outcomes,
    ) -> Option<(Brought, Instant)> {
        let key = records.iter().next()?.ok()?.key;
        let at = RawMatchKey { pair: of.0, step: of.1, key };
        let index = match self.calls.get(self.last) {
            Some(call) if call.expects(at) => self.last,
            _ => self.calls.iter().position(|call| call.expects(at))?,
        };
        let Call { batch, keys, slots, next, .. } = &mut self.calls[index];
        // A recv with the caller's memory is filled individually.
        let expects = |key: &[u8]| {
            let number = *next;
            let is_it = matches!(slots.get(number), Some(Slot::Open(None))) && keys.key(number).as_bytes() == key;
            is_it.then(|| {
                slots[number] = Slot::Over;
                *next = open_from(slots, number + 1);
                number
            })
        };
        let Outcomes { batches, wakers, .. } = outcomes;
        let brought = batches.take_frame(*batch, records, wakers, expects)?;
        let since = self.ended(index, brought.count);
        Some((brought, since))
    }

    /// `count` recvs of a call have ended; returns since when they have waited.
    fn ended(&mut self, index: usize, count: usize) -> Instant {
        self.last = index;
        let call = &mut self.calls[index];
        call.left -= count;
        let (since, is_over) = (call.since, call.left == 0);
        self.recvs -= count;
        if is_over {
            self.remove(index);
        }
        since
    }

    fn remove(&mut self, index: usize) -> Call {
        let mut call = self.calls.remove(index);
        self.last = 0;
        self.recvs -= call.left;
        if call.left == 0 && self.spare.len() < SPARE_CALLS_MAX {
            let mut slots = std::mem::take(&mut call.slots);
            slots.clear();
            self.spare.push(slots);
        }
        call
    }

    /// The caller no longer waits.
    pub(super) fn close(&mut self, batch: Handle) {
        if let Some(index) = self.calls.iter().position(|call| call.batch == batch) {
            self.remove(index);
        }
    }

    /// Panics unless the counts of waiting recvs are right.
    #[cfg(any(test, feature = "fuzzing"))]
    pub(super) fn check_invariants(&self, listens: impl Fn(Handle) -> bool) {
        for call in &self.calls {
            let left = call.slots.iter().filter(|slot| matches!(slot, Slot::Open(_))).count();
            assert!(left == call.left && left > 0, "a call of which {left} recvs wait would wait for {}", call.left);
            assert_eq!(call.slots.len(), call.keys.len(), "a recv would have no key");
            assert!(listens(call.batch), "a tensor would come for nobody");
        }
        let recvs: usize = self.calls.iter().map(|call| call.left).sum();
        assert_eq!(self.recvs, recvs, "fusion.queued_requests_max would bound something else than recvs");
    }
}

/// Recvs that one call makes together.
pub(in crate::node) struct ToPost<'a, K, D> {
    pub(in crate::node) pair: u32,
    pub(in crate::node) step: i64,
    pub(in crate::node) keys: K,
    pub(in crate::node) count: usize,
    /// The caller's memory for the first recvs, in order.
    pub(in crate::node) destinations: &'a mut D,
    pub(in crate::node) deadline: Instant,
    pub(in crate::node) batch: Handle,
}

impl RemoteRecvs {
    /// Lets those recvs wait together that can, or gives them what came before them; returns the numbers of the others, and their memory.
    /// `None` if none can; then no memory was taken.
    pub(in crate::node) fn post<'k, K, D>(
        &mut self,
        now: Instant,
        session: Handle,
        to_post: ToPost<'_, K, D>,
        context: &mut Context,
    ) -> Option<Vec<(usize, Option<Destination>)>>
    where
        K: Iterator<Item = &'k str> + Clone,
        D: Iterator<Item = Buffer>,
    {
        let ToPost { pair, step, keys, count, destinations, deadline, batch } = to_post;
        let (posted, delay) = (&mut self.posted, self.delayed.delay_of(pair));
        let recvs_max = context.settings.session.queued_requests_max;
        let can_post = (1..=POSTED_KEYS_MAX).contains(&count)
            && self.entries.len() + posted.recvs + count <= recvs_max
            && posted.calls.len() < POSTED_CALLS_MAX
            && deadline > now + delay.time()
            && context.has_requested(pair, session);
        if !can_post {
            return None;
        }
        let in_place = context.reporter.outcomes.batches.is_read_in_place(batch);
        let list = posted.lists.list(count, keys, in_place)?;
        let come = self.take_unexpected((pair, step), &list, in_place, context);
        let come = match come {
            Some(come) if come.is_complete() => {
                context.reporter.outcomes.batches.begin_with(batch, come);
                return Some(Vec::new());
            }
            come => come,
        };
        let is_alone = !self.posted.may_have((pair, step), &list) && !self.steps.may_have((pair, step));
        let (mut slots, mut others) = (self.posted.spare.pop().unwrap_or_default(), Vec::new());
        let mut left = 0;
        for number in 0..count {
            let (key, destination) = (list.key(number), destinations.next().map(Destination::from));
            let is_small = |to: &Destination| to.device().is_none() && to.len() <= AHEAD_TENSOR_BYTES;
            let can_wait = |destination: &Option<Destination>| {
                destination.as_ref().is_none_or(is_small)
                    && !self.large.contains(pair, key)
                    && (is_alone || !self.has(RawMatchKey { pair, step, key: key.as_bytes() }))
            };
            slots.push(if come.as_ref().is_some_and(|come| !come.waits(number)) {
                Slot::Over
            } else if can_wait(&destination) {
                left += 1;
                Slot::Open(destination)
            } else {
                others.push((number, destination));
                Slot::Over
            });
        }
        if let Some(come) = come {
            context.reporter.outcomes.batches.begin_with(batch, come);
        }
        let next = slots.iter().position(|slot| matches!(slot, Slot::Open(_))).unwrap_or(count);
        let call = Call { pair, step, since: now, delay, deadline, batch, keys: list, slots, next, left };
        if left > 0 {
            self.posted.recvs += left;
            self.posted.calls.push(call);
        }
        Some(others)
    }

    /// True if a recv or a tensor waits under this key.
    fn has(&self, at: RawMatchKey<'_>) -> bool {
        self.find(self.hash(at), at).is_some() || self.posted.find(at).is_some()
    }

    /// Makes the recvs of calls that have waited long enough single.
    pub(super) fn unpost_due(&mut self, now: Instant, batches: &mut Batches) {
        while let Some(index) = self.posted.calls.iter().position(|call| call.requests_at() <= now) {
            self.unpost(index, batches);
        }
    }

    /// Makes the recvs of calls single whose pair and step `pick` chooses.
    pub(super) fn unpost_those(&mut self, batches: &mut Batches, pick: impl Fn(u32, i64) -> bool) {
        while let Some(index) = self.posted.calls.iter().position(|call| pick(call.pair, call.step)) {
            self.unpost(index, batches);
        }
    }

    /// Makes the recvs of a call single; they count as waiting since the call was made.
    fn unpost(&mut self, index: usize, batches: &mut Batches) {
        let Call { pair, step, since, delay, deadline, batch, keys, slots, .. } = self.posted.remove(index);
        let mut single = Vec::new();
        for (number, slot) in slots.into_iter().enumerate() {
            let Slot::Open(destination) = slot else { continue };
            let at = MatchKey { pair, step, key: keys.key(number) };
            let hash = self.hash(at.into());
            let (handle, entry) = self.enter(hash, at);
            (entry.since, entry.deadline, entry.takes_ahead) = (since, deadline, true);
            (entry.options, entry.request, entry.waited) =
                (RequestOptions { fused: true, fail_if_gone: false }, None, None);
            entry.destination = destination;
            entry.waiter = Some(RecvWaiter::Batch { batch, index: number as u32 });
            batches.set_ticket(batch, number, Some(Ticket::Remote(handle)));
            single.push(handle);
        }
        self.delayed.insert(delay, since, single);
    }
}
