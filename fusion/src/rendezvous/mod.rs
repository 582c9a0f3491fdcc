//! The table where sends and recvs are matched. Pure: no clock, no I/O.
//!
//! One table per shard; bounded by `fusion.pending_sends_max` pending sends and by what sessions let their peers park. `S` is what the
//! owner gets back when a pending send ends (the sender's waiter). Entries keep their key while the tensor is matched, so that a
//! tensor that comes back can be requested again.

mod ended;
mod ending;
#[cfg(any(test, feature = "fuzzing"))]
mod invariants;

use std::hash::BuildHasher;
use std::time::Instant;

use hashbrown::{DefaultHashBuilder, HashMap, HashTable, hash_table};
use sealane_runtime::{Sweep, earliest};
use sealane_transport::{Arena, Chains, Error, Handle, Payload, reuse_key};

use crate::deadlines::Deadlines;
pub use ended::{EndedSteps, Scope};
pub use ending::Ended;
use sealane_transport::tensor::TensorMeta;

/// What a send and a recv must have in common to match, one of each.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MatchKey<'a> {
    /// Producer and consumer, as the owner's number of the pair.
    pub pair: u32,
    pub step: i64,
    /// The tensor's name within the step.
    pub key: &'a str,
}

/// A [`MatchKey`] whose key came from a peer: it is validated only when it is kept.
#[derive(Debug, Clone, Copy)]
pub struct RawMatchKey<'a> {
    /// Producer and consumer, as the owner's number of the pair.
    pub pair: u32,
    pub step: i64,
    /// The tensor's name within the step, if it is valid UTF-8.
    pub key: &'a [u8],
}

impl<'a> From<MatchKey<'a>> for RawMatchKey<'a> {
    #[inline]
    fn from(MatchKey { pair, step, key }: MatchKey<'a>) -> Self {
        RawMatchKey { pair, step, key: key.as_bytes() }
    }
}

/// A request that waits in the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Parked {
    Peer {
        session: Handle,
        id: Handle,
    },
    /// From a task of this node, by the node's handle for it.
    Local(Handle),
}

/// The result of looking up a match key: what waits there, if anything. Valid until the table changes.
#[derive(Debug, Clone, Copy)]
pub struct Slot {
    hash: u64,
    entry: Option<Handle>,
}

/// What waits in a slot.
#[derive(Debug)]
pub enum Waiting<'a> {
    Tensor(&'a (TensorMeta, Payload)),
    Request(Parked),
}

/// What a send found.
#[derive(Debug)]
pub enum Sent {
    /// Nobody waits yet: the table keeps the tensor.
    Kept(Handle),
    /// A request waits, and is matched: give it the tensor, and [release](Table::release) the pending send later.
    Requested {
        /// Who waits.
        by: Parked,
        /// The tensor, handed back.
        tensor: (TensorMeta, Payload),
        /// The pending send.
        pending: Handle,
    },
}

/// What a request found.
#[derive(Debug)]
pub enum Found {
    /// The tensor, which is matched until it is [released](Table::release).
    Tensor((TensorMeta, Payload), Handle),
    /// Nothing yet: the request waits in the table.
    Parked,
    /// Nothing, and nothing can come: the key is not valid UTF-8.
    NotText,
}

/// A pending send that ended without being taken.
#[derive(Debug)]
pub struct Unsent<S> {
    pub sender: S,
    /// The handle that the pending send had.
    pub pending: Handle,
    /// Producer and consumer, for the message.
    pub pair: u32,
    pub key: String,
    pub step: i64,
    pub deadline: Instant,
}

/// A pending send whose deadline passed while it was matched.
#[derive(Debug, Clone, Copy)]
pub struct Late<'a> {
    /// Producer and consumer, for the message.
    pub pair: u32,
    /// The key, for the message.
    pub key: &'a str,
    /// The step, for the message.
    pub step: i64,
    /// Its deadline.
    pub deadline: Instant,
}

type Parts = (TensorMeta, Payload);

enum State<S> {
    /// A tensor was sent: it waits while the entry holds it, otherwise it is matched: given to its request, and not released yet.
    Sent {
        /// Taken when the tensor is released.
        sender: Option<S>,
        /// `None` once it has passed and the sender was told.
        deadline: Option<Instant>,
        /// The error that the sender gets if a matched tensor comes back; it then does not wait again.
        barred: Option<Box<Error>>,
    },
    Requested(Parked),
}

impl<S> State<S> {
    /// A placeholder, for an entry that is not in use.
    const NOTHING: State<S> = State::Requested(Parked::Local(Handle::NONE));
}

struct Entry<S> {
    pair: u32,
    step: i64,
    key: String,
    tensor: Option<Parts>,
    state: State<S>,
}

impl<S> Entry<S> {
    /// The part of the entry that is hashed.
    fn at(&self) -> (u32, i64, &[u8]) {
        (self.pair, self.step, self.key.as_bytes())
    }

    /// When the send of its tensor expires, if it has one and its sender has not been told yet.
    fn deadline(&self) -> Option<Instant> {
        match self.state {
            State::Sent { deadline, .. } => deadline,
            State::Requested(_) => None,
        }
    }

    #[inline]
    fn is(&self, at: RawMatchKey<'_>) -> bool {
        self.at() == (at.pair, at.step, at.key)
    }
}

/// Where a request of a peer waits.
struct Waits {
    entry: Handle,
    /// The request fails when its producer leaves, and must be told which process that is.
    fails_if_gone: bool,
}

pub struct Table<S> {
    entries: Arena<Entry<S>>,
    index: HashTable<Handle>,
    /// `entries` by pair and step, matched ones included, for ending a step.
    steps: Chains,
    /// Requests of peers that wait.
    parked: HashMap<Parked, Waits>,
    /// The latest time until which each of them waits, by entry.
    parked_until: Deadlines,
    /// How many of this node's own requests wait.
    local_requests: usize,
    hasher: DefaultHashBuilder,
    pending_sends: usize,
    pending_sends_max: usize,
    deadlines: Sweep,
}

impl<S> Table<S> {
    /// An empty table for at most `pending_sends_max` tensors, matched ones included.
    pub fn new(pending_sends_max: usize) -> Self {
        Self {
            entries: Arena::new(usize::MAX),
            index: HashTable::new(),
            steps: Chains::default(),
            parked: HashMap::new(),
            parked_until: Deadlines::default(),
            local_requests: 0,
            hasher: DefaultHashBuilder::default(),
            pending_sends: 0,
            pending_sends_max,
            deadlines: Sweep::default(),
        }
    }

    /// Tensors that wait or are matched.
    pub fn pending_sends(&self) -> usize {
        self.pending_sends
    }

    pub fn parked(&self) -> usize {
        self.parked.len() + self.local_requests
    }

    #[inline]
    fn hash(&self, at: RawMatchKey<'_>) -> u64 {
        self.hasher.hash_one((at.pair, at.step, at.key))
    }

    /// Inserts a request into an empty slot.
    fn insert_request(&mut self, hash: u64, at: MatchKey<'_>, by: Parked) -> Handle {
        let Self { entries, index, hasher, steps, .. } = self;
        let slot = vacant(index, (entries, hasher), hash, at).expect("nothing is there");
        let (handle, entry) = enter(slot, (entries, steps), at);
        entry.state = State::Requested(by);
        handle
    }

    /// Takes an entry out of the index, so that its slot is free again.
    #[inline]
    fn unlink(&mut self, hash: u64, handle: Handle) {
        if let Ok(slot) = self.index.find_entry(hash, |other| *other == handle) {
            slot.remove();
        }
    }

    fn hash_of(&self, handle: Handle) -> u64 {
        self.hasher.hash_one(self.entries.get(handle).expect("the caller holds a live entry").at())
    }

    /// Removes an entry; returns its tensor and state.
    #[inline]
    fn remove(&mut self, handle: Handle) -> Option<(Option<Parts>, State<S>)> {
        let (tensor, state) = self.entries.retire(handle, |entry| {
            reuse_key(&mut entry.key);
            (entry.tensor.take(), std::mem::replace(&mut entry.state, State::NOTHING))
        })?;
        self.steps.remove(handle);
        if !matches!(state, State::Requested(_)) {
            self.uncount_pending();
        }
        Some((tensor, state))
    }

    /// A tensor no longer waits or is matched.
    #[inline]
    fn uncount_pending(&mut self) {
        debug_assert!(self.pending_sends > 0, "the table would be full for ever");
        self.pending_sends -= 1;
        if self.pending_sends == 0 {
            self.deadlines.clear();
        }
    }

    /// True if nothing waits under a key; usually the whole table is empty.
    #[inline]
    pub fn is_free(&self, at: MatchKey<'_>) -> bool {
        self.index.is_empty() || self.slot(at).entry.is_none()
    }

    #[inline]
    pub fn slot(&self, at: MatchKey<'_>) -> Slot {
        let hash = self.hash(at.into());
        let is_it = |handle: &Handle| self.entries.get(*handle).is_some_and(|entry| entry.is(at.into()));
        Slot { hash, entry: self.index.find(hash, is_it).copied() }
    }

    #[inline]
    pub fn waiting(&self, slot: Slot) -> Option<Waiting<'_>> {
        match self.entries.get(slot.entry?)? {
            Entry { tensor: Some(tensor), .. } => Some(Waiting::Tensor(tensor)),
            Entry { state: State::Requested(by), .. } => Some(Waiting::Request(*by)),
            Entry { state: State::Sent { .. }, .. } => None,
        }
    }

    /// Takes the tensor that waits in a slot. This ends its pending send, whose handle is returned too: it can no longer be given back.
    #[inline]
    pub fn take_tensor(&mut self, slot: Slot) -> Option<((TensorMeta, Payload), S, Handle)> {
        let handle = slot.entry?;
        self.entries.get(handle)?.tensor.as_ref()?;
        self.unlink(slot.hash, handle);
        match self.remove(handle)? {
            (Some(tensor), State::Sent { sender: Some(sender), .. }) => Some((tensor, sender, handle)),
            _ => unreachable!("just looked at"),
        }
    }

    #[inline]
    pub fn take_request(&mut self, slot: Slot) -> Option<Parked> {
        let handle = slot.entry?;
        let State::Requested(by) = self.entries.get(handle)?.state else { return None };
        self.forget_parked(by);
        self.unlink(slot.hash, handle);
        self.entries.retire(handle, |entry| reuse_key(&mut entry.key));
        self.steps.remove(handle);
        Some(by)
    }

    /// Parks a request of this node's in an empty slot; the returned handle cancels it.
    #[inline]
    pub fn park_local(&mut self, slot: Slot, at: MatchKey<'_>, by: Handle) -> Handle {
        debug_assert!(slot.entry.is_none(), "what waits there would never be found again");
        self.local_requests += 1;
        self.insert_request(slot.hash, at, Parked::Local(by))
    }

    /// Forgets a waiting request of this node's; false if it has been answered already.
    pub fn cancel_local(&mut self, entry: Handle) -> bool {
        let is_waiting = |entry: &Entry<S>| matches!(entry.state, State::Requested(Parked::Local(_)));
        if !self.entries.get(entry).is_some_and(is_waiting) {
            return false;
        }
        let hash = self.hash_of(entry);
        self.unlink(hash, entry);
        self.remove(entry);
        self.local_requests -= 1;
        true
    }

    /// The request is no longer parked. Local requests are not in `parked`, only counted.
    #[inline]
    fn forget_parked(&mut self, by: Parked) {
        match by {
            Parked::Peer { .. } => _ = self.unpark(by),
            Parked::Local(_) => self.local_requests -= 1,
        }
    }

    /// A request of a peer is no longer parked; returns its entry.
    fn unpark(&mut self, by: Parked) -> Option<Handle> {
        let Waits { entry, .. } = self.parked.remove(&by)?;
        self.parked_until.remove(entry);
        Some(entry)
    }

    /// How many more tensors may wait, if `others` wait elsewhere.
    #[inline]
    pub fn room(&self, others: usize) -> usize {
        self.pending_sends_max.saturating_sub(self.pending_sends + others)
    }

    /// The error for a further tensor, if the table is full with `others` waiting elsewhere.
    #[inline]
    pub fn full(&self, others: usize) -> Option<Error> {
        (self.room(others) == 0).then(|| {
            let pending = self.pending_sends + others;
            let reason = format!("{pending} tensors wait to be received or released");
            Error::full("fusion.pending_sends_max", reason)
        })
    }

    /// Sends a tensor, or finds the request that waits for it.
    ///
    /// # Errors
    /// ResourceExhausted if the table is full, InvalidArgument if a tensor waits there already; the sender is returned.
    #[inline]
    pub fn send(
        &mut self,
        at: MatchKey<'_>,
        tensor: (TensorMeta, Payload),
        sender: S,
        deadline: Instant,
    ) -> Result<Sent, (Error, S)> {
        if let Some(error) = self.full(0) {
            return Err((error, sender));
        }
        let hash = self.hash(at.into());
        let Self { entries, index, hasher, steps, .. } = self;
        let handle = match vacant(index, (entries, hasher), hash, at) {
            Ok(slot) => {
                let (handle, entry) = enter(slot, (entries, steps), at);
                entry.tensor = Some(tensor);
                entry.state = State::Sent { sender: Some(sender), deadline: Some(deadline), barred: None };
                self.count_pending(deadline);
                return Ok(Sent::Kept(handle));
            }
            Err(handle) => handle,
        };
        let entry = entries.get_mut(handle).expect("the index holds live entries");
        let State::Requested(by) = entry.state else {
            return Err((sent_twice(at), sender));
        };
        entry.state = State::Sent { sender: Some(sender), deadline: Some(deadline), barred: None };
        self.count_pending(deadline);
        self.forget_parked(by);
        self.unlink(hash, handle);
        Ok(Sent::Requested { by, tensor, pending: handle })
    }

    /// One more tensor waits (until `deadline`) or is matched.
    #[inline]
    fn count_pending(&mut self, deadline: Instant) {
        self.pending_sends += 1;
        self.deadlines.enter(deadline);
    }

    /// Looks for the tensor of a request; parks the request of a peer if it is not there yet.
    ///
    /// # Errors
    /// InvalidArgument if another request waits there already, or this one's id is in use.
    #[inline]
    pub fn request<'a>(&mut self, at: impl Into<RawMatchKey<'a>>, by: Parked) -> Result<Found, Error> {
        let at = at.into();
        let (hash, entries) = (self.hash(at), &mut self.entries);
        let is_it = |handle: &Handle| entries.get(*handle).is_some_and(|entry| entry.is(at));
        let Ok(found) = self.index.find_entry(hash, is_it) else { return self.park(hash, at, by) };
        let handle = *found.get();
        let entry = entries.get_mut(handle).expect("the index holds live entries");
        let Some(tensor) = entry.tensor.take() else {
            let key = String::from_utf8_lossy(at.key);
            return Err(requested_twice(MatchKey { pair: at.pair, step: at.step, key: &key }));
        };
        found.remove();
        Ok(Found::Tensor(tensor, handle))
    }

    /// Parks a request whose tensor is not there.
    fn park(&mut self, hash: u64, at: RawMatchKey<'_>, by: Parked) -> Result<Found, Error> {
        if self.parked.contains_key(&by) {
            return Err(Error::invalid("the id is that of another request, which waits"));
        }
        let Ok(key) = std::str::from_utf8(at.key) else { return Ok(Found::NotText) };
        let at = MatchKey { pair: at.pair, step: at.step, key };
        let entry = self.insert_request(hash, at, by);
        self.parked.insert(by, Waits { entry, fails_if_gone: false });
        Ok(Found::Parked)
    }

    /// Releases a pending send whose tensor was taken; returns its sender.
    #[inline]
    pub fn release_taken(&mut self, pending: Handle, payload: Payload) -> Option<S> {
        // First, while the sender is still in the table: freeing memory of the caller's may panic.
        drop(payload);
        let sender = self.entries.retire(pending, |entry| {
            reuse_key(&mut entry.key);
            match &mut entry.state {
                State::Sent { sender, barred, .. } => {
                    *barred = None;
                    sender.take()
                }
                State::Requested(_) => unreachable!("only what is matched comes back"),
            }
        })?;
        self.steps.remove(pending);
        self.uncount_pending();
        sender
    }

    /// Releases a pending send. If the tensor was taken, its sender is to be told. If it was given back, it waits again, unless
    /// another tensor has taken its place, its step has ended meanwhile, or a request waits for it.
    pub fn release(&mut self, pending: Handle, tensor: (TensorMeta, Payload), taken: bool) -> Released<S> {
        let Some(entry) = self.entries.get(pending) else { return Released::Gone };
        if taken {
            return self.release_taken(pending, tensor.1).map_or(Released::Gone, Released::Taken);
        }
        let key = entry.key.clone();
        let at = MatchKey { pair: entry.pair, step: entry.step, key: &key };
        let Some((_, State::Sent { sender: Some(sender), deadline, barred })) = self.remove(pending) else {
            return Released::Gone;
        };
        if let Some(error) = barred {
            return Released::Displaced(sender, *error);
        }
        let deadline = deadline.expect("who was told of a deadline is barred");
        match self.send(at, tensor, sender, deadline) {
            Ok(Sent::Kept(pending)) => Released::Kept(pending),
            Ok(Sent::Requested { by, tensor, pending }) => Released::Requested { by, tensor, pending },
            Err((error, sender)) => Released::Displaced(sender, error),
        }
    }

    /// The key of an entry, if it is still there.
    pub fn key_of(&self, entry: Handle) -> Option<&str> {
        Some(&self.entries.get(entry)?.key)
    }

    /// The step of an entry, if it is still there.
    pub fn step_of(&self, entry: Handle) -> Option<i64> {
        Some(self.entries.get(entry)?.step)
    }

    /// Forgets a parked request; false if it has been answered already.
    pub fn cancel(&mut self, by: Parked) -> bool {
        let Some(handle) = self.unpark(by) else { return false };
        let hash = self.hash_of(handle);
        self.unlink(hash, handle);
        self.remove(handle);
        true
    }

    /// Forgets every parked request of a session: its link is gone, and outstanding requests will be repeated.
    pub fn forget_session(&mut self, session: Handle) {
        let of_session = |by: &&Parked| matches!(by, Parked::Peer { session: of, .. } if *of == session);
        let mut parked: Vec<_> = self.parked.keys().filter(of_session).copied().collect();
        // The order of a hash map is arbitrary: the same history must leave the same table behind.
        parked.sort_unstable();
        for by in parked {
            self.cancel(by);
        }
    }

    /// When [`expire`](Self::expire) and [`expire_parked`](Self::expire_parked) must be called at the latest.
    #[inline]
    pub fn next_deadline(&self) -> Option<Instant> {
        earliest([self.deadlines.next(), self.parked_until.next()])
    }

    /// Takes out the tensors that waited past their deadline. For those that are matched at that time, `tell` is called and makes their
    /// error: they end when they are released, and do not wait again if they come back.
    pub fn expire(&mut self, now: Instant, mut tell: impl FnMut(&mut S, Late<'_>) -> Error) -> Vec<Unsent<S>> {
        if !self.deadlines.is_due(now) {
            return Vec::new();
        }
        for (_, Entry { pair, step, key, tensor, state }) in self.entries.iter_mut() {
            if tensor.is_none()
                && let State::Sent { sender: Some(sender), deadline, barred } = state
                && let Some(deadline) = deadline.take_if(|deadline| *deadline <= now)
            {
                *barred = Some(Box::new(tell(sender, Late { pair: *pair, key, step: *step, deadline })));
            }
        }
        let expired = self.take_those(|entry| entry.deadline().is_some_and(|deadline| deadline <= now));
        self.deadlines = Sweep::after(now, self.entries.slots());
        self.deadlines.extend(self.entries.iter().filter_map(|(_, entry)| entry.deadline()));
        expired
    }
}

/// The place of a new entry in the index, or the entry that is already there.
#[inline(always)]
fn vacant<'a, S>(
    index: &'a mut HashTable<Handle>,
    (entries, hasher): (&Arena<Entry<S>>, &DefaultHashBuilder),
    hash: u64,
    at: MatchKey<'_>,
) -> Result<hash_table::VacantEntry<'a, Handle>, Handle> {
    let live = |handle: &Handle| entries.get(*handle).expect("the index holds live entries");
    match index.entry(hash, |other| live(other).is(at.into()), |other| hasher.hash_one(live(other).at())) {
        hash_table::Entry::Occupied(found) => Err(*found.get()),
        hash_table::Entry::Vacant(slot) => Ok(slot),
    }
}

/// Puts a new entry in its place in the index, without a tensor; the caller sets its state.
#[inline(always)]
fn enter<'a, S>(
    slot: hash_table::VacantEntry<'_, Handle>,
    (entries, steps): (&'a mut Arena<Entry<S>>, &mut Chains),
    at: MatchKey<'_>,
) -> (Handle, &'a mut Entry<S>) {
    let empty = || Entry { pair: 0, step: 0, key: String::new(), tensor: None, state: State::NOTHING };
    let (handle, entry) = entries.renew(empty).expect("2^32 entries do not fit in memory");
    (entry.pair, entry.step) = (at.pair, at.step);
    entry.key.push_str(at.key);
    slot.insert(handle);
    steps.add(handle, (at.pair, at.step));
    (handle, entry)
}

/// The error for a second tensor under the same key.
pub fn sent_twice(at: MatchKey<'_>) -> Error {
    Error::invalid(format!(
        "a tensor for step {} key '{}' is already waiting; one send matches one recv",
        at.step, at.key
    ))
}

/// The error for a second request for the same tensor.
pub fn requested_twice(at: MatchKey<'_>) -> Error {
    Error::invalid(format!("a recv of step {} key '{}' is already waiting; one send matches one recv", at.step, at.key))
}

/// What became of a pending send that was released.
#[derive(Debug)]
pub enum Released<S> {
    /// The consumer has it.
    Taken(S),
    /// It waits again, as another pending send.
    Kept(Handle),
    /// It came back, and another request waits for it, and is matched.
    Requested {
        /// Who waits.
        by: Parked,
        tensor: (TensorMeta, Payload),
        /// The pending send, matched again.
        pending: Handle,
    },
    /// It came back, but its place was taken meanwhile or its step has ended.
    Displaced(S, Error),
    /// The pending send had ended before.
    Gone,
}

#[cfg(test)]
mod tests;
