//! The serving half of pulls: the peer's key sets and pulls, answered from the store as fast as the link takes data.
//!
//! A waiting pull holds only numbers; bytes are read from the store when they are sent.

use std::collections::VecDeque;
use std::rc::Rc;

use hashbrown::HashMap;

use super::control::Control;
use super::quota::{Charges, Held, PeerQuota, Share};
use super::{Event, Session, failure_of};
use crate::arena::{Arena, Handle};
use crate::error::Error;
use crate::limits::{INLINE_PAYLOAD_BYTES, LOOKS_PER_TURN, SETS_MAX, SessionLimits};
use crate::outbox::{Outbox, Owner, Unreadable};
use crate::pull_buffer::{Stored, StoredBytes};
use crate::wire::{KeySet, Part, Pull, PullFailure, WireError};

/// Published tensors, by slot.
pub trait Store {
    /// What is in a slot, if anything.
    fn look(&self, slot: u32) -> Option<Stored<'_>>;

    /// A run of [packed](StoredBytes::Packed) tensors to be copied at once: how many of the first of these slots have tensors
    /// that are of this version, have these stamps, and lie contiguously in at most `bytes_max` bytes; and those bytes. If it
    /// is 0, as from a store that packs nothing, each tensor is looked up by itself.
    fn run(&self, _slots: &[u32], _version: i64, _stamps: &[u64], _bytes_max: usize) -> (usize, &[u8]) {
        (0, &[])
    }
}

/// The store of a side that publishes nothing.
pub struct EmptyStore;

impl Store for EmptyStore {
    fn look(&self, _slot: u32) -> Option<Stored<'_>> {
        None
    }
}

/// A tensor that a pull waits for: the owner calls [`Session::pull_ready`] once it is in the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Wait {
    /// The slot it will be in.
    pub slot: u32,
    /// The oldest version that will do.
    pub min_version: i64,
    /// The pull.
    pub pull: Handle,
    /// The tensor's index in the pull.
    pub index: u32,
    /// The pull fails if the task has left.
    pub fail_if_gone: bool,
}

/// A key set that the peer names: answer with its slots by [`Session::set_found`], or refuse it.
#[derive(Debug, PartialEq, Eq)]
pub struct Named {
    /// The peer's handle for it.
    pub set: Handle,
    /// Distinguishes this set from an earlier one with the same handle.
    pub serial: u64,
    /// The peer's task that will pull, by the owner's number for it.
    pub consumer: u32,
    /// The task of this side that is pulled from, by its index in this side's task list.
    pub producer: u16,
    /// The keys, in the order of their numbers.
    pub keys: Vec<Box<str>>,
}

struct PeerSet {
    serial: u64,
    /// The task of this side that is pulled from.
    producer: u16,
    count: usize,
    /// All keys have come.
    whole: bool,
    /// The keys that have come, until all have.
    keys: Vec<Box<str>>,
    /// Total bytes of its keys.
    name_bytes: usize,
    found: Option<Result<Vec<u32>, Error>>,
    /// The stamps of the metadata that the peer was told.
    told: Vec<u64>,
}

struct Serving {
    /// The peer's handle.
    id: Handle,
    set: Handle,
    serial: u64,
    min_version: i64,
    fail_if_gone: bool,
    /// Ranges of key numbers to look up: first and count.
    ready: VecDeque<(u32, u32)>,
    /// How many keys wait for their tensor.
    waiting: usize,
    queued: bool,
}

impl Serving {
    fn add(&mut self, index: u32) {
        match self.ready.back_mut() {
            Some((first, count)) if *first + *count == index => *count += 1,
            _ => self.ready.push_back((index, 1)),
        }
    }
}

pub(super) struct Server {
    sets: HashMap<Handle, PeerSet>,
    /// The peer's charges: its sets, their keys and bytes, its pulls and what they wait for.
    share: Share,
    /// Serial of the last named set.
    serial: u64,
    pulls: Arena<Serving>,
    /// `pulls` by the peer's handle.
    ids: HashMap<Handle, Handle>,
    to_serve: VecDeque<Handle>,
    /// Pulls whose next tensor leaves in chunks while too many already do: the others pass them.
    held_back: VecDeque<Handle>,
    /// Pulls whose next tensor is in device memory, and waits for host memory to be copied to.
    starved: VecDeque<Handle>,
    /// Tensors found missing since the owner last took these.
    waits: Vec<Wait>,
    /// How many tensors may still be looked up in this turn.
    looks: usize,
}

impl Server {
    pub(super) fn new(limits: &SessionLimits, quota: &Rc<PeerQuota>) -> Self {
        Self {
            sets: HashMap::new(),
            share: Share::of(quota),
            serial: 0,
            pulls: Arena::new(limits.parked_requests_max),
            ids: HashMap::new(),
            to_serve: VecDeque::new(),
            held_back: VecDeque::new(),
            starved: VecDeque::new(),
            waits: Vec::new(),
            looks: 0,
        }
    }

    /// Renews the number of lookups for a turn.
    #[inline]
    pub(super) fn may_look(&mut self) {
        self.looks = LOOKS_PER_TURN;
    }

    /// True if no more may be looked up in this turn.
    #[inline]
    pub(super) fn has_looked(&self) -> bool {
        self.looks == 0
    }

    /// True if no pull waits for its turn.
    #[inline]
    pub(super) fn is_idle(&self) -> bool {
        self.to_serve.is_empty() && self.held_back.is_empty() && self.starved.is_empty()
    }

    pub(super) fn has_parts(&self, outbox: &Outbox) -> bool {
        let is_fed = !self.starved.is_empty() && !outbox.awaits_copies();
        !self.to_serve.is_empty() || !self.held_back.is_empty() || is_fed
    }

    /// Takes in keys of a set; returns all of them once the set is complete.
    pub(super) fn name(&mut self, named: &KeySet<'_>) -> Result<Option<Vec<Box<str>>>, WireError> {
        let (id, producer, count) = (named.id, named.producer, named.count as usize);
        if named.first == 0 {
            if self.sets.contains_key(&id) || self.sets.len() >= SETS_MAX {
                return Err(WireError::BadValue {
                    what: "set that is named again, or past the limit",
                    found: id.to_bits(),
                });
            }
            if self.share.take(Held::Plans, 1).is_err() {
                // The set's pulls will be told why.
                return Ok(None);
            }
            self.serial += 1;
            let taken = self.share.take(Held::Keys, count);
            let count = if taken.is_ok() { count } else { 0 };
            let set = PeerSet {
                serial: self.serial,
                producer,
                count,
                whole: taken.is_err(),
                keys: Vec::with_capacity(count),
                name_bytes: 0,
                found: taken.err().map(Err),
                told: Vec::new(),
            };
            self.sets.insert(id, set);
        }
        // The keys may be of a set that was refused.
        let Some(set) = self.sets.get_mut(&id).filter(|set| !set.whole) else { return Ok(None) };
        if named.first as usize != set.keys.len() || count != set.count {
            return Err(WireError::BadValue { what: "first key of a part of a set", found: u64::from(named.first) });
        }
        let mut name_bytes = 0;
        for key in named.keys() {
            let key = key?;
            name_bytes += key.len();
            set.keys.push(key.into());
        }
        if let Err(full) = self.share.take(Held::NameBytes, name_bytes) {
            self.share.give_back(Held::Keys, set.count);
            self.share.give_back(Held::NameBytes, set.name_bytes);
            (set.count, set.name_bytes, set.keys) = (0, 0, Vec::new());
            (set.whole, set.found) = (true, Some(Err(full)));
            return Ok(None);
        }
        set.name_bytes += name_bytes;
        if set.keys.len() > count {
            return Err(WireError::BadValue { what: "keys of a set", found: set.keys.len() as u64 });
        }
        set.whole = set.keys.len() == count;
        Ok(set.whole.then(|| std::mem::take(&mut set.keys)))
    }

    fn serial_of(&self, id: Handle) -> u64 {
        self.sets.get(&id).map_or(0, |set| set.serial)
    }

    /// Forgets a set, and returns its slots.
    pub(super) fn forget(&mut self, id: Handle) -> Vec<u32> {
        let Some(set) = self.sets.remove(&id) else { return Vec::new() };
        self.share.give_back(Held::Plans, 1);
        self.share.give_back(Held::Keys, set.count);
        self.share.give_back(Held::NameBytes, set.name_bytes);
        match set.found {
            Some(Ok(slots)) => slots,
            _ => Vec::new(),
        }
    }

    /// The link is gone: the peer sends its sets and pulls again. Returns the slots of its sets.
    pub(super) fn suspend(&mut self) -> Vec<u32> {
        self.to_serve.clear();
        self.held_back.clear();
        self.starved.clear();
        self.ids.clear();
        self.waits.clear();
        self.share.give_all_back();
        for handle in self.pulls.select(|_| true) {
            self.pulls.remove(handle);
        }
        let mut slots: Vec<u32> = Vec::new();
        for (_, set) in self.sets.drain() {
            slots.extend(set.found.and_then(Result::ok).unwrap_or_default());
        }
        // A hash map has no stable order, but the same history must leave the same store behind.
        slots.sort_unstable();
        slots
    }

    /// Takes in a pull; an error says why it cannot be answered.
    pub(super) fn requested(&mut self, pull: &Pull) -> Result<(), Error> {
        let Some(set) = self.sets.get(&pull.set) else {
            return Err(self.share.is_full(Held::Plans).unwrap_or_else(|| Error::invalid("the plan is unknown")));
        };
        let count = match &set.found {
            Some(Err(error)) => return Err(error.clone()),
            None if !set.whole => return Err(Error::invalid("the plan's keys are incomplete")),
            _ => set.count as u32,
        };
        if self.ids.contains_key(&pull.id) {
            return Err(Error::invalid("the id is that of another pull, which waits"));
        }
        self.share.take(Held::Pulls, 1)?;
        let ready = VecDeque::from([(0, count)]);
        let Pull { id, set: set_id, min_version, fail_if_gone, .. } = *pull;
        let serial = set.serial;
        let serving = Serving { id, set: set_id, serial, min_version, fail_if_gone, ready, waiting: 0, queued: true };
        let Ok(handle) = self.pulls.insert(serving) else { unreachable!("it has room for all that a peer may have") };
        self.ids.insert(pull.id, handle);
        self.to_serve.push_back(handle);
        for queue in [&mut self.to_serve, &mut self.held_back, &mut self.starved] {
            self.pulls.prune(queue);
        }
        Ok(())
    }

    pub(super) fn cancel(&mut self, id: Handle) {
        if let Some(&handle) = self.ids.get(&id) {
            self.end(handle);
        }
    }

    fn end(&mut self, handle: Handle) {
        if let Some(serving) = self.pulls.remove(handle) {
            self.ids.remove(&serving.id);
            self.share.give_back(Held::Pulls, 1);
            self.share.give_back(Held::Waits, serving.waiting);
        }
    }

    /// What is charged to the peer, and what the tables actually hold.
    pub(super) fn counted(&self) -> (Charges, Charges) {
        let mut there = Charges::default();
        there[Held::Plans as usize] = self.sets.len();
        there[Held::Keys as usize] = self.sets.values().map(|set| set.count).sum();
        there[Held::NameBytes as usize] = self.sets.values().map(|set| set.name_bytes).sum();
        there[Held::Pulls as usize] = self.pulls.len();
        there[Held::Waits as usize] = self.pulls.iter().map(|(_, serving)| serving.waiting).sum();
        (self.share.mine(), there)
    }

    /// The slots of the peer's sets.
    pub(super) fn slots(&self) -> impl Iterator<Item = u32> {
        self.sets.values().filter_map(|set| set.found.as_ref()?.as_ref().ok()).flatten().copied()
    }

    /// Stages the next frame of a pull's answer; false if there is none.
    pub(super) fn stage<S: Store + ?Sized>(&mut self, store: &S, outbox: &mut Outbox) -> bool {
        if !self.held_back.is_empty() && outbox.has_room_for_answer() {
            self.to_serve.extend(self.held_back.pop_front());
            self.to_serve.rotate_right(1);
        }
        if !self.starved.is_empty() && !outbox.awaits_copies() {
            self.to_serve.append(&mut self.starved);
        }
        while let Some(&handle) = self.to_serve.front() {
            let Some(serving) = self.pulls.get_mut(handle) else {
                self.to_serve.pop_front();
                continue;
            };
            // The set may have been forgotten meanwhile, and another one named with its handle.
            let Some(set) = self.sets.get_mut(&serving.set).filter(|set| set.serial == serving.serial) else {
                self.end(handle);
                continue;
            };
            let slots = match &set.found {
                Some(Ok(slots)) => slots,
                Some(Err(error)) => {
                    let (code, reason) = failure_of(error);
                    let failure = PullFailure { id: serving.id, code, index: PullFailure::ALL, reason: &reason };
                    outbox.stage(|writer| writer.pull_failure(&failure));
                    self.end(handle);
                    return true;
                }
                // The owner has not looked up its slots yet.
                None => return false,
            };
            let waits = Waits { list: &mut self.waits, share: &mut self.share };
            match serving.stage(handle, (slots, &mut set.told), (waits, &mut self.looks), store, outbox) {
                Staging::Staged => return true,
                Staging::Later => return false,
                Staging::HeldBack => {
                    self.to_serve.pop_front();
                    self.held_back.push_back(handle);
                    continue;
                }
                Staging::Starved => {
                    self.to_serve.pop_front();
                    self.starved.push_back(handle);
                    continue;
                }
                Staging::Done => {}
            }
            self.to_serve.pop_front();
            serving.queued = false;
            if serving.waiting == 0 {
                self.end(handle);
            }
        }
        false
    }
}

/// Where a pull records what it waits for.
struct Waits<'a> {
    list: &'a mut Vec<Wait>,
    share: &'a mut Share,
}

/// The result of a pull's turn.
enum Staging {
    Staged,
    /// Its next tensor leaves in chunks, and too many already do.
    HeldBack,
    /// There is no memory now for a host copy of its next tensor, which is in device memory.
    Starved,
    /// The lookups of this turn are used up.
    Later,
    /// All that is there was sent.
    Done,
}

impl Serving {
    /// Stages the next frame of this pull's answer.
    #[inline]
    fn stage<S: Store + ?Sized>(
        &mut self,
        handle: Handle,
        (slots, told): (&[u32], &mut [u64]),
        (waits, looks): (Waits<'_>, &mut usize),
        store: &S,
        outbox: &mut Outbox,
    ) -> Staging {
        while let Some((first, count)) = self.ready.front_mut() {
            if *count == 0 {
                self.ready.pop_front();
                continue;
            }
            if *looks == 0 {
                return Staging::Later;
            }
            let at = *first as usize;
            let range = at..at + (*count as usize).min(*looks);
            let slot = slots[at];
            let Some(stored) = store.look(slot).filter(|stored| stored.version >= self.min_version) else {
                let index = *first;
                *looks -= 1;
                (*first, *count) = (*first + 1, *count - 1);
                let Err(full) = waits.share.take(Held::Waits, 1) else {
                    let Serving { min_version, fail_if_gone, .. } = *self;
                    waits.list.push(Wait { slot, min_version, pull: handle, index, fail_if_gone });
                    self.waiting += 1;
                    continue;
                };
                let (code, reason) = failure_of(&full);
                outbox.stage(|writer| writer.pull_failure(&PullFailure { id: self.id, code, index, reason: &reason }));
                return Staging::Staged;
            };
            if told[at] != stored.stamp {
                tell(self.set, range, slots, told, self.min_version, store, outbox);
                return Staging::Staged;
            }
            let sent = if let StoredBytes::Payload(payload) = stored.bytes
                && payload.len() > INLINE_PAYLOAD_BYTES
            {
                if outbox.is_overtaken(payload.len()) && !outbox.has_room_for_answer() {
                    return Staging::HeldBack;
                }
                let (id, version, mut payload) = (self.id, stored.version, payload.share());
                let (payload_bytes, index) = (payload.len() as u64, at as u32);
                match outbox.make_readable(&mut payload) {
                    Ok(()) => {}
                    Err(Unreadable::Waits) => return Staging::Starved,
                    Err(Unreadable::Fails(error)) => {
                        (*first, *count) = (*first + 1, *count - 1);
                        let (code, reason) = failure_of(&error);
                        outbox.stage(|writer| writer.pull_failure(&PullFailure { id, code, index, reason: &reason }));
                        return Staging::Staged;
                    }
                }
                outbox.post((Owner::Nobody, Handle::NONE), payload, |writer, transfer| {
                    writer.part(&Part { id, version, payload_bytes, transfer, index });
                });
                1
            } else {
                stage_small(self.id, stored, range, slots, told, store, outbox)
            };
            (*first, *count) = (*first + sent, *count - sent);
            *looks -= sent as usize;
            return Staging::Staged;
        }
        Staging::Done
    }
}

/// Stages small tensors from the front of `range`, as long as they have one version and their metadata was told. Returns
/// how many.
#[inline]
fn stage_small<S: Store + ?Sized>(
    id: Handle,
    stored: Stored<'_>,
    range: std::ops::Range<usize>,
    slots: &[u32],
    told: &[u64],
    store: &S,
    outbox: &mut Outbox,
) -> u32 {
    let version = stored.version;
    let mut count = 0;
    outbox.stage(|writer| {
        let mut parts = writer.parts(id, version, range.start as u32);
        let mut next = Some(stored);
        while let Some(Stored { bytes, .. }) = next {
            let at = range.start + parts.count() as usize..range.end;
            match bytes {
                StoredBytes::Packed(first) => {
                    let bytes_max = parts.room().max(first.len());
                    match store.run(&slots[at.clone()], version, &told[at], bytes_max) {
                        (0, _) => parts.push(1, first.into()),
                        (run, bytes) => parts.push(run as u32, bytes.into()),
                    }
                }
                StoredBytes::Payload(payload) => parts.push(1, payload.volatile()),
            }
            let at = range.start + parts.count() as usize;
            // Large tensors may be in device memory.
            let follows = |next: &Stored<'_>| {
                let bytes_max = INLINE_PAYLOAD_BYTES.min(parts.room());
                let fits = next.bytes.len() <= bytes_max && next.bytes.host_bytes().is_some();
                fits && next.version == version && next.stamp == told[at]
            };
            next = if at < range.end { store.look(slots[at]).filter(follows) } else { None };
        }
        count = parts.count();
        parts.end();
    });
    outbox.count_small(count.into());
    count
}

/// Stages the metadata of the tensors at the front of `range` that leave next.
#[cold]
fn tell<S: Store + ?Sized>(
    set: Handle,
    range: std::ops::Range<usize>,
    slots: &[u32],
    told: &mut [u64],
    min_version: i64,
    store: &S,
    outbox: &mut Outbox,
) {
    outbox.stage(|writer| {
        let mut metas = writer.metas(set);
        for index in range {
            let Some(stored) = store.look(slots[index]).filter(|stored| stored.version >= min_version) else {
                break;
            };
            if told[index] == stored.stamp {
                continue;
            }
            if metas.is_full(stored.meta.len()) {
                break;
            }
            metas.push(index as u32, stored.meta, stored.bytes.len() as u64);
            told[index] = stored.stamp;
        }
        metas.end();
    });
}

impl<W, D: PartialEq + Clone> Session<W, D> {
    /// Sets the slots where the tensors of a set are or will be.
    ///
    /// # Errors
    /// The peer has forgotten the set meanwhile: the slots come back, to be released.
    pub fn set_found(&mut self, set: Handle, serial: u64, slots: Vec<u32>) -> Result<(), Vec<u32>> {
        let same = |named: &&mut PeerSet| named.serial == serial;
        let Some(named) = self.server.sets.get_mut(&set).filter(same) else { return Err(slots) };
        named.told = vec![0; slots.len()];
        named.found = Some(Ok(slots));
        Ok(())
    }

    /// Refuses a set that cannot be pulled: each pull of it ends with `error`.
    pub fn refuse_set(&mut self, set: Handle, serial: u64, error: Error) {
        if let Some(named) = self.server.sets.get_mut(&set).filter(|named| named.serial == serial) {
            named.found = Some(Err(error));
        }
    }

    /// True if [`take_waits`](Self::take_waits) has something.
    #[inline]
    pub fn has_waits(&self) -> bool {
        !self.server.waits.is_empty()
    }

    /// Moves to `into` what pulls were found to wait for by [`fill_from`](Self::fill_from) since the last call.
    pub fn take_waits(&mut self, into: &mut Vec<Wait>) {
        into.append(&mut self.server.waits);
    }

    /// True while a pull of the peer has not ended.
    pub fn is_serving(&self, pull: Handle) -> bool {
        self.server.pulls.get(pull).is_some()
    }

    /// A tensor that a pull waits for is in the store.
    pub fn pull_ready(&mut self, pull: Handle, index: u32) {
        let Some(serving) = self.server.pulls.get_mut(pull) else { return };
        serving.waiting -= 1;
        self.server.share.give_back(Held::Waits, 1);
        serving.add(index);
        if !serving.queued {
            serving.queued = true;
            self.server.to_serve.push_back(pull);
        }
    }

    /// A tensor that a pull waits for will not come.
    pub fn refuse_pull(&mut self, pull: Handle, index: u32, error: &Error) {
        let Some(serving) = self.server.pulls.get_mut(pull) else { return };
        serving.waiting -= 1;
        self.server.share.give_back(Held::Waits, 1);
        let (id, (code, reason)) = (serving.id, failure_of(error));
        if serving.waiting == 0 && serving.ready.is_empty() {
            self.server.end(pull);
        }
        self.control.push(Control::PullFailure { id, code, index, reason });
    }

    /// A task of this side no longer publishes: what pulls from it have not reached yet ends with `error`. What was already staged
    /// arrives.
    pub fn refuse_pulls_of(&mut self, producer: u16, error: &Error) {
        let Server { sets, pulls, .. } = &mut self.server;
        let is_of = |serving: &Serving| {
            let set = sets.get(&serving.set).filter(|set| set.serial == serving.serial);
            set.is_some_and(|set| set.producer == producer && set.found.is_some())
        };
        for handle in pulls.select(is_of) {
            let serving = self.server.pulls.get_mut(handle).expect("just selected");
            let (id, ready) = (serving.id, std::mem::take(&mut serving.ready));
            for index in ready.into_iter().flat_map(|(first, count)| first..first + count) {
                let (code, reason) = failure_of(error);
                self.control.push(Control::PullFailure { id, code, index, reason });
            }
            if serving.waiting == 0 {
                self.server.end(handle);
            }
        }
    }

    pub(super) fn pull_requested(&mut self, pull: &Pull) {
        if let Err(error) = self.server.requested(pull) {
            let (code, reason) = failure_of(&error);
            self.control.push_answer(Control::PullFailure { id: pull.id, code, index: PullFailure::ALL, reason });
        }
    }

    pub(super) fn set_named(&mut self, named: &KeySet<'_>) -> Result<(), WireError> {
        let Some(consumer) = self.requester(named.consumer, named.producer)? else { return Ok(()) };
        if let Some(keys) = self.server.name(named)? {
            let (set, serial, producer) = (named.id, self.server.serial_of(named.id), named.producer);
            self.events.push_back(Event::Named(Named { set, serial, consumer, producer, keys }));
        }
        Ok(())
    }

    pub(super) fn set_forgotten(&mut self, set: Handle) {
        let slots = self.server.forget(set);
        if !slots.is_empty() {
            self.events.push_back(Event::Forgotten { slots });
        }
    }
}
