//! The pulled half of a session: the peer's key sets, and its pulls, answered from the shelf as far as the link takes.
//!
//! Nothing is kept for a pull that waits but its numbers; bytes are read from the shelf when they leave.

use std::collections::VecDeque;

use hashbrown::HashMap;

use super::control::Control;
use super::{Event, Session, failure_of};
use crate::arena::{Arena, Handle};
use crate::error::Error;
use crate::limits::{INLINE_PAYLOAD_BYTES, SETS_MAX, SessionLimits};
use crate::outbox::{Outbox, Owner};
use crate::tray::Shelved;
use crate::wire::{KeySet, Part, Pull, PullFailure, WireError};

/// Published tensors, by slot.
pub trait Shelf {
    /// What lies in a slot, if anything does.
    fn look(&self, slot: u32) -> Option<Shelved<'_>>;
}

/// The shelf of a side that publishes nothing.
pub struct EmptyShelf;

impl Shelf for EmptyShelf {
    fn look(&self, _slot: u32) -> Option<Shelved<'_>> {
        None
    }
}

/// A tensor that a pull waits for: to be told by [`Session::pull_ready`] when it is on the shelf.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Wait {
    /// Where it will lie.
    pub slot: u32,
    /// The oldest version that will do.
    pub min_version: i64,
    /// The pull.
    pub pull: Handle,
    /// The tensor's number in it.
    pub index: u32,
}

/// A set that the peer names: find its slots with [`Session::set_found`], or refuse it.
#[derive(Debug, PartialEq, Eq)]
pub struct Named {
    /// The peer's handle of it.
    pub set: Handle,
    /// Tells this set from an earlier one of the same handle.
    pub serial: u64,
    /// The peer's task that will pull, by the owner's number.
    pub consumer: u32,
    /// The task of this side that is asked, by its place in this side's greeting.
    pub producer: u16,
    /// The keys, by number.
    pub keys: Vec<Box<str>>,
}

struct PeerSet {
    serial: u64,
    /// The task of this side that is asked.
    producer: u16,
    count: usize,
    /// All keys have come.
    whole: bool,
    /// Those that have come, until all have.
    keys: Vec<Box<str>>,
    found: Option<Result<Vec<u32>, Error>>,
    /// The stamps that the peer was told.
    told: Vec<u64>,
}

struct Serving {
    /// The peer's handle.
    id: Handle,
    set: Handle,
    serial: u64,
    min_version: i64,
    /// Numbers to look at: first and count.
    ready: VecDeque<(u32, u32)>,
    /// Numbers that wait for their tensor.
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
    /// Keys of all sets.
    keys: usize,
    keys_max: usize,
    /// Of the last set that was named.
    serial: u64,
    pulls: Arena<Serving>,
    pulls_max: usize,
    /// By the peer's handle.
    ids: HashMap<Handle, Handle>,
    to_serve: VecDeque<Handle>,
    /// Those whose next tensor leaves in chunks, while too many do: the others pass them.
    held_back: VecDeque<Handle>,
    /// Found missing since the owner last took them down.
    waits: Vec<Wait>,
    /// Tensors that are waited for.
    waiting: usize,
}

impl Server {
    pub(super) fn new(limits: &SessionLimits) -> Self {
        Self {
            sets: HashMap::new(),
            keys: 0,
            keys_max: limits.plan_keys_max,
            serial: 0,
            pulls: Arena::new(limits.parked_requests_max),
            pulls_max: limits.parked_requests_max,
            ids: HashMap::new(),
            to_serve: VecDeque::new(),
            held_back: VecDeque::new(),
            waits: Vec::new(),
            waiting: 0,
        }
    }

    pub(super) fn has_parts(&self) -> bool {
        !self.to_serve.is_empty() || !self.held_back.is_empty()
    }

    /// Takes keys of a set in; all of them, once it is whole.
    pub(super) fn name(&mut self, named: &KeySet<'_>) -> Result<Option<Vec<Box<str>>>, WireError> {
        let (id, producer, count) = (named.id, named.producer, named.count as usize);
        if named.first == 0 {
            if self.sets.contains_key(&id) || self.sets.len() >= SETS_MAX {
                return Err(WireError::BadValue {
                    what: "set that is named again, or past the limit",
                    found: id.to_bits(),
                });
            }
            self.serial += 1;
            let serial = self.serial;
            if self.keys + count > self.keys_max {
                let reason = format!("the plans of one peer have {} keys", self.keys_max);
                let full = Some(Err(Error::full("fusion.plan_keys_max", reason)));
                let (keys, told) = (Vec::new(), Vec::new());
                self.sets.insert(id, PeerSet { serial, producer, count: 0, whole: true, keys, found: full, told });
                return Ok(None);
            }
            self.keys += count;
            let keys = Vec::with_capacity(count);
            let told = Vec::new();
            self.sets.insert(id, PeerSet { serial, producer, count, whole: false, keys, found: None, told });
        }
        // Of a set that was refused.
        let Some(set) = self.sets.get_mut(&id).filter(|set| !set.whole) else { return Ok(None) };
        if named.first as usize != set.keys.len() || count != set.count {
            return Err(WireError::BadValue { what: "first key of a part of a set", found: u64::from(named.first) });
        }
        for key in named.keys() {
            set.keys.push(key?.into());
        }
        if set.keys.len() > count {
            return Err(WireError::BadValue { what: "keys of a set", found: set.keys.len() as u64 });
        }
        set.whole = set.keys.len() == count;
        Ok(set.whole.then(|| std::mem::take(&mut set.keys)))
    }

    fn serial_of(&self, id: Handle) -> u64 {
        self.sets.get(&id).map_or(0, |set| set.serial)
    }

    /// The slots of a set that is no more.
    pub(super) fn forget(&mut self, id: Handle) -> Vec<u32> {
        let Some(set) = self.sets.remove(&id) else { return Vec::new() };
        self.keys -= set.count;
        match set.found {
            Some(Ok(slots)) => slots,
            _ => Vec::new(),
        }
    }

    /// The link is gone: the peer names and asks anew. The slots that were found for it.
    pub(super) fn suspend(&mut self) -> Vec<u32> {
        self.to_serve.clear();
        self.held_back.clear();
        self.ids.clear();
        self.waits.clear();
        self.waiting = 0;
        for handle in self.pulls.select(|_| true) {
            self.pulls.remove(handle);
        }
        self.keys = 0;
        let mut slots: Vec<u32> = Vec::new();
        for (_, set) in self.sets.drain() {
            slots.extend(set.found.and_then(Result::ok).unwrap_or_default());
        }
        // A hash map's order is no order: the same history is to leave the same shelf behind.
        slots.sort_unstable();
        slots
    }

    /// Takes a pull in; why not, if it cannot be answered.
    pub(super) fn asked(&mut self, pull: &Pull) -> Result<(), Error> {
        let Some(set) = self.sets.get(&pull.set) else { return Err(Error::invalid("the plan was not named")) };
        let count = match &set.found {
            Some(Err(error)) => return Err(error.clone()),
            None if !set.whole => return Err(Error::invalid("the plan was not named to its end")),
            _ => set.count as u32,
        };
        if self.ids.contains_key(&pull.id) {
            return Err(Error::invalid("the id is that of another pull, which waits"));
        }
        let ready = VecDeque::from([(0, count)]);
        let Pull { id, set: set_id, min_version, .. } = *pull;
        let serial = set.serial;
        let serving = Serving { id, set: set_id, serial, min_version, ready, waiting: 0, queued: true };
        let Ok(handle) = self.pulls.insert(serving) else {
            let reason = format!("{} pulls of this peer wait", self.pulls_max);
            return Err(Error::full("fusion.parked_requests_max", reason));
        };
        self.ids.insert(pull.id, handle);
        self.to_serve.push_back(handle);
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
            self.waiting -= serving.waiting;
        }
    }

    /// Stages the next frame of an answer; false if there is none.
    pub(super) fn stage<S: Shelf + ?Sized>(&mut self, shelf: &S, outbox: &mut Outbox) -> bool {
        if !self.held_back.is_empty() && outbox.has_room_for_answer() {
            self.to_serve.extend(self.held_back.pop_front());
            self.to_serve.rotate_right(1);
        }
        while let Some(&handle) = self.to_serve.front() {
            let Some(serving) = self.pulls.get_mut(handle) else {
                self.to_serve.pop_front();
                continue;
            };
            // Forgotten meanwhile, and perhaps another one named by its handle.
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
                // Its owner has still to look.
                None => return false,
            };
            let waits = Waits { list: &mut self.waits, count: &mut self.waiting, most: self.pulls_max };
            match serving.stage(handle, slots, &mut set.told, waits, shelf, outbox) {
                Staging::Staged => return true,
                Staging::HeldBack => {
                    self.to_serve.pop_front();
                    self.held_back.push_back(handle);
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

/// Where a pull notes what it waits for.
struct Waits<'a> {
    list: &'a mut Vec<Wait>,
    count: &'a mut usize,
    most: usize,
}

/// What became of an answer's turn.
enum Staging {
    /// A frame of it was staged.
    Staged,
    /// Its next tensor leaves in chunks, and too many do.
    HeldBack,
    /// All that is there has left.
    Done,
}

impl Serving {
    /// Stages the next frame of this answer.
    #[inline]
    fn stage<S: Shelf + ?Sized>(
        &mut self,
        handle: Handle,
        slots: &[u32],
        told: &mut [u64],
        waits: Waits<'_>,
        shelf: &S,
        outbox: &mut Outbox,
    ) -> Staging {
        while let Some((first, count)) = self.ready.front_mut() {
            if *count == 0 {
                self.ready.pop_front();
                continue;
            }
            let at = *first as usize;
            let range = at..at + *count as usize;
            let slot = slots[at];
            let Some(shelved) = shelf.look(slot).filter(|shelved| shelved.version >= self.min_version) else {
                let index = *first;
                (*first, *count) = (*first + 1, *count - 1);
                if *waits.count < waits.most {
                    waits.list.push(Wait { slot, min_version: self.min_version, pull: handle, index });
                    (self.waiting, *waits.count) = (self.waiting + 1, *waits.count + 1);
                    continue;
                }
                let reason = format!("{} tensors are waited for by pulls of this peer", waits.most);
                let (code, reason) = failure_of(&Error::full("fusion.parked_requests_max", reason));
                outbox.stage(|writer| writer.pull_failure(&PullFailure { id: self.id, code, index, reason: &reason }));
                return Staging::Staged;
            };
            if told[at] != shelved.stamp {
                tell(self.set, range, slots, told, self.min_version, shelf, outbox);
                return Staging::Staged;
            }
            let sent = if shelved.payload.len() > INLINE_PAYLOAD_BYTES {
                if outbox.is_overtaken(shelved.payload.len()) && !outbox.has_room_for_answer() {
                    return Staging::HeldBack;
                }
                let (id, version, payload) = (self.id, shelved.version, shelved.payload.share());
                let (payload_bytes, index) = (payload.len() as u64, at as u32);
                outbox.post((Owner::Nobody, Handle::NONE), payload, |writer, transfer| {
                    writer.part(&Part { id, version, payload_bytes, transfer, index });
                });
                1
            } else {
                stage_small(self.id, shelved, range, slots, told, shelf, outbox)
            };
            (*first, *count) = (*first + sent, *count - sent);
            return Staging::Staged;
        }
        Staging::Done
    }
}

/// Stages small tensors from the front of `range` on, as long as they are of one version and were told; how many.
#[inline]
fn stage_small<S: Shelf + ?Sized>(
    id: Handle,
    shelved: Shelved<'_>,
    range: std::ops::Range<usize>,
    slots: &[u32],
    told: &[u64],
    shelf: &S,
    outbox: &mut Outbox,
) -> u32 {
    let version = shelved.version;
    let mut count = 0;
    outbox.stage(|writer| {
        let mut parts = writer.parts(id, version, range.start as u32);
        parts.push(shelved.payload.as_ref());
        for (&slot, &told) in slots[range.clone()].iter().zip(&told[range]).skip(1) {
            let Some(next) = shelf.look(slot) else { break };
            let bytes = next.payload.as_ref();
            let fits = bytes.len() <= INLINE_PAYLOAD_BYTES && !parts.is_full(bytes.len());
            if next.version != version || next.stamp != told || !fits {
                break;
            }
            parts.push(bytes);
        }
        count = parts.count();
        parts.end();
    });
    outbox.count_small(count.into());
    count
}

/// Stages what the tensors at the front of `range` look like, of those which leave next.
#[cold]
fn tell<S: Shelf + ?Sized>(
    set: Handle,
    range: std::ops::Range<usize>,
    slots: &[u32],
    told: &mut [u64],
    min_version: i64,
    shelf: &S,
    outbox: &mut Outbox,
) {
    outbox.stage(|writer| {
        let mut metas = writer.metas(set);
        for index in range {
            let Some(shelved) = shelf.look(slots[index]).filter(|shelved| shelved.version >= min_version) else {
                break;
            };
            if told[index] == shelved.stamp {
                continue;
            }
            if metas.is_full(shelved.meta.len()) {
                break;
            }
            metas.push(index as u32, shelved.meta, shelved.payload.len() as u64);
            told[index] = shelved.stamp;
        }
        metas.end();
    });
}

impl<W, D: PartialEq> Session<W, D> {
    /// Where the tensors of a set lie or will lie.
    ///
    /// # Errors
    /// The peer has forgotten the set meanwhile: the slots come back, to be let go.
    pub fn set_found(&mut self, set: Handle, serial: u64, slots: Vec<u32>) -> Result<(), Vec<u32>> {
        let same = |named: &&mut PeerSet| named.serial == serial;
        let Some(named) = self.server.sets.get_mut(&set).filter(same) else { return Err(slots) };
        named.told = vec![0; slots.len()];
        named.found = Some(Ok(slots));
        Ok(())
    }

    /// A set that cannot be pulled: each pull of it ends with `error`.
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

    /// Moves what pulls wait for into `into`, since the last call of [`fill_from`](Self::fill_from).
    pub fn take_waits(&mut self, into: &mut Vec<Wait>) {
        into.append(&mut self.server.waits);
    }

    /// True while a pull of the peer has not ended.
    pub fn is_serving(&self, pull: Handle) -> bool {
        self.server.pulls.get(pull).is_some()
    }

    /// A tensor that a pull waits for has come.
    pub fn pull_ready(&mut self, pull: Handle, index: u32) {
        let Some(serving) = self.server.pulls.get_mut(pull) else { return };
        serving.waiting -= 1;
        self.server.waiting -= 1;
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
        self.server.waiting -= 1;
        let (id, (code, reason)) = (serving.id, failure_of(error));
        if serving.waiting == 0 && serving.ready.is_empty() {
            self.server.end(pull);
        }
        self.control.push(Control::PullFailure { id, code, index, reason });
    }

    /// A task of this side publishes nothing any more: what pulls of it have not come to ends with `error`. What is on its
    /// way arrives.
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

    pub(super) fn pull_asked(&mut self, pull: &Pull) {
        if let Err(error) = self.server.asked(pull) {
            let (code, reason) = failure_of(&error);
            self.control.push_answer(Control::PullFailure { id: pull.id, code, index: PullFailure::ALL, reason });
        }
    }

    pub(super) fn set_named(&mut self, named: &KeySet<'_>) -> Result<(), WireError> {
        let Some(consumer) = self.asking(named.consumer, named.producer)? else { return Ok(()) };
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
