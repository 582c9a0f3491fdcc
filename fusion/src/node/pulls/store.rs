//! Published tensors: each task's, by key, with a version, read as often as anyone likes.
//!
//! Pure: no clock, no I/O. One store a shard. A slot is there while a tensor lies in it or a plan names it, so that a pull finds
//! its tensors by number. `fusion.published_tensors_max` tensors may lie in it, whatever plans name; and plans may name as many
//! keys that nobody has published, of which a quarter is kept for plans of this node.

use std::collections::VecDeque;
use std::hash::BuildHasher;
use std::sync::Arc;

use hashbrown::{DefaultHashBuilder, HashTable};
use sealane_runtime::{Buffer, DeviceError};
use sealane_transport::limits::{INLINE_PAYLOAD_BYTES, LOCKS_SUFFIX};
use sealane_transport::session::Store;
use sealane_transport::shm::limits::INLINE_BYTES_MAX;
use sealane_transport::tensor::IntoTensor;
use sealane_transport::tray::Stored;
use sealane_transport::tray::next_stamp;
use sealane_transport::{Error, Payload, Tensor, TensorMeta};

use super::watchers::{Watcher, Watchers};
use crate::limits::{PLANS_KEPT_SHARE, WAKES_PER_TURN};

struct Published {
    version: i64,
    stamp: u64,
    meta: TensorMeta,
    payload: Payload,
    /// The rows of a table, which whoever has published it may be writing: they are read by row, with their locks.
    in_place: bool,
}

/// What names a slot, and who looks at it.
struct Label {
    task: u16,
    key: Box<str>,
    /// Plans that name the slot, each as often as it does.
    plans: u32,
    watchers: Watchers,
}

/// Whose plan names a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Planner {
    /// A task of this node.
    Here,
    /// A peer.
    Peer,
}

/// See the module.
pub(super) struct PublishedStore {
    /// What lies in each slot: read for every tensor that is pulled, so apart from the labels.
    slots: Vec<Option<Published>>,
    labels: Vec<Option<Label>>,
    free: Vec<u32>,
    index: HashTable<u32>,
    hasher: DefaultHashBuilder,
    published_max: usize,
    published: usize,
    /// Slots in which something was put that is waited for, where who waits is still to be told.
    woken: VecDeque<u32>,
    /// How many may still be told before the next turn.
    wakes: usize,
    /// In which the last tensor was put.
    last: u32,
    /// Kept to reuse its memory.
    locks_key: String,
}

impl Store for PublishedStore {
    #[inline]
    fn look(&self, slot: u32) -> Option<Stored<'_>> {
        let Published { version, stamp, meta, payload, in_place } = self.slots.get(slot as usize)?.as_ref()?;
        if *in_place {
            return None;
        }
        Some(Stored { version: *version, meta: meta.as_wire(), stamp: *stamp, payload })
    }
}

impl PublishedStore {
    pub(super) fn new(published_max: usize) -> Self {
        Self {
            slots: Vec::new(),
            labels: Vec::new(),
            free: Vec::new(),
            index: HashTable::new(),
            hasher: DefaultHashBuilder::default(),
            // Slots have numbers of 32 bits, and there are twice as many.
            published_max: published_max.min(u32::MAX as usize / 2),
            published: 0,
            woken: VecDeque::new(),
            wakes: WAKES_PER_TURN,
            last: 0,
            locks_key: String::new(),
        }
    }

    /// Tensors that lie in it.
    pub(super) fn published(&self) -> usize {
        self.published
    }

    fn find(&self, task: u16, key: &str) -> (u64, Option<u32>) {
        let hash = self.hasher.hash_one((task, key));
        let labels = &self.labels;
        let same = |slot: &u32| labels[*slot as usize].as_ref().is_some_and(|of| of.task == task && *of.key == *key);
        (hash, self.index.find(hash, same).copied())
    }

    /// What lies under a task's key: version, metadata, and the bytes where they lie, however few. Whoever has published them may write
    /// them at any time, and a copy here would be made without a look at their locks.
    pub(super) fn share_in_place(&mut self, task: u16, key: &str) -> Option<(i64, TensorMeta, Payload)> {
        let slot = self.find(task, key).1?;
        let Published { version, meta, payload, .. } = self.slots[slot as usize].as_mut()?;
        if let Payload::Owned(buffer) = payload {
            *payload = Payload::Shared(Arc::new(std::mem::take(buffer)));
        }
        Some((*version, meta.clone(), payload.share()))
    }

    /// Slots in which nothing lies: plans name them.
    fn named(&self) -> usize {
        self.slots.len() - self.free.len() - self.published
    }

    /// The slot behind that in which the last tensor was put, if it is that of a task's key: tensors are most often published in the order of the
    /// first time.
    #[inline]
    fn follows(&self, task: u16, key: &str) -> Option<u32> {
        let next = self.last + 1;
        let label = self.labels.get(next as usize)?.as_ref()?;
        (label.task == task && *label.key == *key).then_some(next)
    }

    /// The slot of a task's key; made if there is none, and if `has_room` of the store.
    fn slot(&mut self, task: u16, key: &str, has_room: impl FnOnce(&Self) -> Result<(), Error>) -> Result<u32, Error> {
        let (hash, found) = self.find(task, key);
        if let Some(slot) = found {
            return Ok(slot);
        }
        has_room(self)?;
        let label = Label { task, key: key.into(), plans: 0, watchers: Watchers::default() };
        let slot = match self.free.pop() {
            Some(slot) => slot,
            None => {
                self.slots.push(None);
                self.labels.push(None);
                self.slots.len() as u32 - 1
            }
        };
        self.labels[slot as usize] = Some(label);
        let (labels, hasher) = (&self.labels, &self.hasher);
        self.index.insert_unique(hash, slot, |other| {
            let label = labels[*other as usize].as_ref().expect("the index holds slots in use");
            hasher.hash_one((label.task, &*label.key))
        });
        Ok(slot)
    }

    fn label(&mut self, slot: u32) -> Option<&mut Label> {
        self.labels.get_mut(slot as usize)?.as_mut()
    }

    /// The slots of a plan's keys, which stay until they are [let go](Self::let_go).
    ///
    /// # Errors
    /// ResourceExhausted, and none is kept.
    pub(super) fn hold<'a>(
        &mut self,
        planner: Planner,
        task: u16,
        keys: impl Iterator<Item = &'a str>,
    ) -> Result<Vec<u32>, Error> {
        let most = match planner {
            Planner::Here => self.published_max,
            Planner::Peer => self.published_max - self.published_max / PLANS_KEPT_SHARE,
        };
        let has_room = |store: &Self| match store.named() < most {
            true => Ok(()),
            false => {
                let reason = format!("plans name {most} keys that are not published");
                Err(Error::full("fusion.published_tensors_max", reason))
            }
        };
        let mut slots = Vec::with_capacity(keys.size_hint().0);
        for key in keys {
            match self.slot(task, key, has_room) {
                Ok(slot) => {
                    self.label(slot).expect("just found").plans += 1;
                    slots.push(slot);
                }
                Err(full) => {
                    self.let_go(&slots);
                    return Err(full);
                }
            }
        }
        Ok(slots)
    }

    /// A plan is gone.
    pub(super) fn let_go(&mut self, slots: &[u32]) {
        for &slot in slots {
            if let Some(label) = self.label(slot) {
                debug_assert!(label.plans > 0, "the slot of '{}' would be another's while a plan names it", label.key);
                label.plans -= 1;
                self.free_unused(slot);
            }
        }
    }

    fn free_unused(&mut self, slot: u32) {
        let Some(label) = &self.labels[slot as usize] else { return };
        if label.plans > 0 || self.slots[slot as usize].is_some() {
            return;
        }
        let hash = self.hasher.hash_one((label.task, &*label.key));
        if let Ok(entry) = self.index.find_entry(hash, |other| *other == slot) {
            entry.remove();
        }
        self.labels[slot as usize] = None;
        self.free.push(slot);
    }

    /// Copies a small tensor over the bytes of the one before; false if that is newer, of another kind, or not in memory of the store's own.
    #[inline]
    fn overwrite(&mut self, task: u16, key: &str, version: i64, tensor: &Tensor) -> Option<u32> {
        // What is larger may be a table with locks.
        let payload =
            Some(tensor.payload()).filter(|payload| payload.len() <= INLINE_BYTES_MAX && !payload.is_lent())?;
        let bytes = payload.host_bytes()?;
        let slot = self.follows(task, key).or_else(|| self.find(task, key).1)?;
        let before = self.slots[slot as usize].as_mut()?;
        let Payload::Owned(buffer) = &mut before.payload else { return None };
        let is_own = buffer.lender().is_none() && buffer.device().is_none();
        let is_alike = buffer.len() == bytes.len() && before.meta.as_wire() == tensor.meta().as_wire();
        if before.version > version || !is_own || !is_alike {
            return None;
        }
        buffer.volatile_mut().copy_from(bytes);
        before.version = version;
        Some(slot)
    }

    /// Puts a tensor in the store in place of the one before, and moves those who waited for it into `ready`: as many as may be told in
    /// this turn, the others in the next.
    ///
    /// # Errors
    /// InvalidArgument if a newer version lies there, ResourceExhausted if `fusion.published_tensors_max` are, Unavailable if it is in
    /// the memory of a device that does not copy it.
    pub(super) fn publish(
        &mut self,
        task: u16,
        key: &str,
        version: i64,
        tensor: impl IntoTensor,
        ready: &mut Vec<Watcher>,
    ) -> Result<(), Error> {
        let slot = match self.overwrite(task, key, version, tensor.borrow()) {
            Some(slot) => slot,
            None => self.replace(task, key, version, tensor.into_tensor())?,
        };
        self.last = slot;
        let label = self.labels[slot as usize].as_mut().expect("just found");
        if label.watchers.wake(version) {
            self.woken.push_back(slot);
        }
        if !self.woken.is_empty() {
            self.move_woken(ready);
        }
        Ok(())
    }

    /// Puts a tensor in the store in place of the one before; its slot.
    fn replace(&mut self, task: u16, key: &str, version: i64, tensor: Tensor) -> Result<u32, Error> {
        let full = |store: &Self| match store.published < store.published_max {
            true => Ok(()),
            false => {
                let reason = format!("{} keys are published", store.published_max);
                Err(Error::full("fusion.published_tensors_max", reason))
            }
        };
        let (meta, payload) = tensor.into_parts();
        let payload = to_read_often(payload)?;
        let slot = match self.follows(task, key) {
            Some(slot) => slot,
            None => self.slot(task, key, full)?,
        };
        if self.slots[slot as usize].is_none() {
            full(self)?;
        }
        // No smaller table has locks.
        let in_place = payload.len() > INLINE_BYTES_MAX && self.has_locks(task, key);
        match &mut self.slots[slot as usize] {
            Some(before) if before.version > version => {
                let reason =
                    format!("version {version} of '{key}' is older than the published version {}", before.version);
                return Err(Error::invalid(reason));
            }
            Some(before) => {
                if before.meta.as_wire() != meta.as_wire() || before.payload.len() != payload.len() {
                    (before.stamp, before.meta) = (next_stamp(), meta);
                }
                (before.version, before.payload, before.in_place) = (version, payload, in_place);
            }
            place => {
                self.published += 1;
                *place = Some(Published { version, stamp: next_stamp(), meta, payload, in_place });
            }
        }
        Ok(slot)
    }

    /// As many may be told as a turn may tell.
    #[inline]
    pub(super) fn begin_turn(&mut self) {
        self.wakes = WAKES_PER_TURN;
    }

    /// True if who waits is still to be told of something.
    #[inline]
    pub(super) fn has_woken(&self) -> bool {
        !self.woken.is_empty()
    }

    /// Moves those who waited for what was published before into `ready`, as many as may be told in this turn.
    pub(super) fn move_woken(&mut self, ready: &mut Vec<Watcher>) {
        while self.wakes > 0
            && let Some(&slot) = self.woken.front()
        {
            let version = self.slots[slot as usize].as_ref().map(|published| published.version);
            match self.label(slot).and_then(|label| label.watchers.next(version)) {
                Some(watcher) => {
                    self.wakes -= 1;
                    ready.push(watcher);
                }
                None => drop(self.woken.pop_front()),
            }
        }
    }

    /// The locks of the table of that key are published: they are before it is.
    fn has_locks(&mut self, task: u16, key: &str) -> bool {
        self.locks_key.clear();
        self.locks_key.extend([key, LOCKS_SUFFIX]);
        self.find(task, &self.locks_key).1.is_some_and(|slot| self.slots[slot as usize].is_some())
    }

    /// Why a pull of what is in a slot need not wait for it: half a row could come.
    pub(super) fn refusal(&self, slot: u32) -> Option<Error> {
        self.slots.get(slot as usize)?.as_ref().filter(|published| published.in_place)?;
        Some(Error::invalid(format!(
            "'{}' is a table whose rows are written in place, and a pull of it as a whole might get half of one: pull its rows by \
             number (pull_rows), or publish it with torn=True",
            self.key(slot)
        )))
    }

    /// The version that lies under a task's key.
    pub(super) fn version_of(&self, task: u16, key: &str) -> Option<i64> {
        let slot = self.find(task, key).1?;
        Some(self.slots[slot as usize].as_ref()?.version)
    }

    /// Takes a tensor out of the store; pulls of it wait for the next. False if there was none.
    pub(super) fn withdraw(&mut self, task: u16, key: &str) -> bool {
        let Some(slot) = self.find(task, key).1 else { return false };
        let was = self.slots[slot as usize].take().is_some();
        self.published -= usize::from(was);
        self.free_unused(slot);
        was
    }

    /// Takes all that a task has published out of the store; those who wait for its tensors go into `waiting`.
    pub(super) fn withdraw_all(&mut self, task: u16, waiting: &mut Vec<Watcher>) {
        for slot in 0..self.labels.len() as u32 {
            let Some(label) = self.labels[slot as usize].as_mut().filter(|label| label.task == task) else { continue };
            label.watchers.take_all(waiting);
            self.published -= usize::from(self.slots[slot as usize].take().is_some());
            self.free_unused(slot);
        }
    }

    /// Someone waits for a tensor. `is_waiting` says who still does, when there are many.
    pub(super) fn watch(&mut self, watcher: Watcher, is_waiting: impl Fn(&Watcher) -> bool) {
        if let Some(label) = self.label(watcher.wait.slot) {
            label.watchers.add(watcher, is_waiting);
        }
    }

    /// Panics unless the slots in use are those in which a tensor lies and those that plans name: `named` has each as often as
    /// they do.
    #[cfg(any(test, feature = "fuzzing"))]
    pub(super) fn check_invariants(&self, named: impl Iterator<Item = u32>) {
        let mut plans = vec![0; self.labels.len()];
        named.for_each(|slot| plans[slot as usize] += 1);
        assert_eq!(self.slots.len(), self.labels.len(), "a tensor would lie in a slot without a name");
        for (slot, label) in self.labels.iter().enumerate() {
            let there = (label.as_ref().map_or(0, |label| label.plans), self.slots[slot].is_some());
            assert_eq!(there.0, plans[slot], "slot {slot} would be freed while plans name it, or never");
            assert_eq!(label.is_some(), there.0 > 0 || there.1, "slot {slot} would be given to another key, or never");
            if let Some(label) = label {
                let found = self.find(label.task, &label.key).1;
                assert_eq!(found, Some(slot as u32), "'{}' would be published where no pull looks", label.key);
            }
            let version = self.slots[slot].as_ref().map(|published| published.version);
            let misses = label.as_ref().is_some_and(|label| label.watchers.misses(version));
            assert!(!misses || self.woken.contains(&(slot as u32)), "pulls would wait for what is in slot {slot}");
        }
        assert_eq!(self.published, self.slots.iter().flatten().count(), "another bound than the one that is set");
        assert_eq!(self.index.len(), self.labels.len() - self.free.len(), "slots would be lost, or given out twice");
        assert!(self.published <= self.published_max, "fusion.published_tensors_max would be no bound");
    }

    /// Keys that are published or named by plans.
    pub(super) fn keys(&self) -> usize {
        self.index.len()
    }

    /// The task whose slot it is.
    pub(super) fn task(&self, slot: u32) -> u16 {
        self.labels.get(slot as usize).and_then(Option::as_ref).map_or(0, |label| label.task)
    }

    /// The key of a slot, for messages.
    pub(super) fn key(&self, slot: u32) -> &str {
        self.labels.get(slot as usize).and_then(Option::as_ref).map_or("", |label| &*label.key)
    }
}

/// Small payloads are read where they lie, and copied there if they are someone else's or a device's; large ones are shared with
/// every link that sends them.
fn to_read_often(payload: Payload) -> Result<Payload, DeviceError> {
    match payload {
        payload if payload.len() > INLINE_PAYLOAD_BYTES => Ok(payload.into_shared()),
        payload if payload.len() <= Buffer::OWN_BYTES || payload.host_bytes().is_none() => {
            let mut copy = Buffer::of_len(payload.len());
            payload.copy_to(&mut copy, 0..payload.len())?;
            Ok(copy.into())
        }
        payload => Ok(payload),
    }
}

#[cfg(test)]
mod tests {
    use sealane_transport::Handle;
    use sealane_transport::session::Wait;

    use super::*;

    fn tensor(values: &[u8]) -> Tensor {
        Tensor::from_elements(&[values.len() as u64], values).unwrap()
    }

    fn wait(slot: u32, min_version: i64, index: u32) -> Watcher {
        Watcher {
            session: None,
            wait: Wait { slot, min_version, pull: Handle::from_bits(1 << 32), index, fail_if_gone: false },
        }
    }

    #[test]
    fn a_newer_version_takes_the_place_of_the_older_and_never_the_other_way() {
        let mut store = PublishedStore::new(8);
        let mut ready = Vec::new();
        store.publish(0, "w", 3, tensor(&[1, 2]), &mut ready).unwrap();
        let slot = store.hold(Planner::Here, 0, ["w"].into_iter()).unwrap()[0];
        let stamp = store.look(slot).unwrap().stamp;
        store.publish(0, "w", 4, tensor(&[3, 4]), &mut ready).unwrap();
        let look = store.look(slot).unwrap();
        assert_eq!((look.version, look.stamp, look.payload.as_ref()), (4, stamp, &[3, 4][..]));
        let older = store.publish(0, "w", 3, tensor(&[5, 6]), &mut ready).unwrap_err();
        assert!(older.to_string().contains("older than the published version 4"), "{older}");
        store.publish(0, "w", 4, tensor(&[7]), &mut ready).unwrap();
        assert_ne!(store.look(slot).unwrap().stamp, stamp, "another shape, another stamp");
        assert!(ready.is_empty());
    }

    #[test]
    fn a_small_tensor_is_written_over_the_one_before_but_not_where_others_read_it() {
        let mut store = PublishedStore::new(8);
        let mut ready = Vec::new();
        let tensors = [tensor(&[1; 100]), tensor(&[2; 100]), tensor(&[3; 100])];
        store.publish(0, "w", 1, &tensors[0], &mut ready).unwrap();
        let slot = store.hold(Planner::Here, 0, ["w"].into_iter()).unwrap()[0];
        let place = |store: &PublishedStore| store.look(slot).unwrap().payload.volatile().as_ptr();
        let before = place(&store);
        store.publish(0, "w", 2, &tensors[1], &mut ready).unwrap();
        assert_eq!((place(&store), store.look(slot).unwrap().payload.as_ref()), (before, &[2; 100][..]));
        let shared = store.share_in_place(0, "w").unwrap().2;
        store.publish(0, "w", 3, &tensors[2], &mut ready).unwrap();
        assert_eq!((shared.as_ref(), store.look(slot).unwrap().payload.as_ref()), (&[2; 100][..], &[3; 100][..]));
        assert!(store.publish(0, "w", 2, &tensors[0], &mut ready).is_err());
    }

    #[test]
    fn a_table_is_read_where_it_lies_however_small_it_is() {
        for bytes in [1, 100, INLINE_PAYLOAD_BYTES, INLINE_PAYLOAD_BYTES + 1] {
            let mut store = PublishedStore::new(8);
            store.publish(0, "w", 3, tensor(&vec![7; bytes]), &mut Vec::new()).unwrap();
            let [first, second] = [(); 2].map(|()| store.share_in_place(0, "w").unwrap().2);
            assert_eq!(first.volatile().as_ptr(), second.volatile().as_ptr(), "{bytes} bytes were copied");
            assert_eq!(second.as_ref(), vec![7; bytes]);
            assert!(store.share_in_place(1, "w").is_none());
        }
    }

    #[test]
    fn a_table_with_locks_is_not_read_as_a_whole() {
        let mut store = PublishedStore::new(8);
        let mut ready = Vec::new();
        let slot = store.hold(Planner::Here, 0, ["w"].into_iter()).unwrap()[0];
        let table = || tensor(&[7; INLINE_BYTES_MAX + 1]);
        store.publish(0, "w", 1, table(), &mut ready).unwrap();
        assert!(store.look(slot).is_some() && store.refusal(slot).is_none());
        // Those of another task are not its.
        for (task, is_read) in [(1, true), (0, false)] {
            store.publish(task, &format!("w{LOCKS_SUFFIX}"), 1, tensor(&[0; 600]), &mut ready).unwrap();
            store.publish(0, "w", 2, table(), &mut ready).unwrap();
            assert_eq!((store.look(slot).is_some(), store.refusal(slot).is_none()), (is_read, is_read));
        }
        assert!(store.share_in_place(0, "w").is_some());
        store.publish(0, "w", 3, tensor(&[7; 10]), &mut ready).unwrap();
        assert!(store.look(slot).is_some(), "so small that it is published anew");
    }

    #[test]
    fn who_waits_is_told_at_the_version_that_it_waits_for() {
        let mut store = PublishedStore::new(8);
        let mut ready = Vec::new();
        let slot = store.hold(Planner::Here, 0, ["w"].into_iter()).unwrap()[0];
        store.watch(wait(slot, 2, 0), |_| true);
        store.watch(wait(slot, 5, 1), |_| true);
        store.publish(0, "w", 1, tensor(&[1]), &mut ready).unwrap();
        assert!(ready.is_empty());
        store.publish(0, "w", 4, tensor(&[1]), &mut ready).unwrap();
        assert_eq!(ready, [wait(slot, 2, 0)]);
        store.publish(0, "w", 5, tensor(&[1]), &mut ready).unwrap();
        assert_eq!(ready.len(), 2);
    }

    #[test]
    fn so_many_are_told_in_a_turn_and_the_others_in_the_next() {
        let mut store = PublishedStore::new(8);
        let slot = store.hold(Planner::Here, 0, ["w"].into_iter()).unwrap()[0];
        let count = 2 * WAKES_PER_TURN as u32 + 3;
        (0..count).for_each(|index| store.watch(wait(slot, 1 + i64::from(index == 7), index), |_| true));
        let mut ready = Vec::new();
        store.publish(0, "w", 1, tensor(&[1]), &mut ready).unwrap();
        assert_eq!(ready.len(), WAKES_PER_TURN);
        for told in [2 * WAKES_PER_TURN, count as usize - 1] {
            assert!(store.has_woken());
            store.begin_turn();
            store.move_woken(&mut ready);
            assert_eq!(ready.len(), told);
        }
        store.begin_turn();
        store.move_woken(&mut ready);
        assert!(!store.has_woken() && ready.len() == count as usize - 1, "one waits for the next version");
        let order: Vec<u32> = ready.iter().map(|watcher| watcher.wait.index).collect();
        assert!(order.is_sorted(), "who waited first is told first");
    }

    #[test]
    fn what_was_taken_back_meanwhile_is_not_told_of() {
        let mut store = PublishedStore::new(8);
        let slot = store.hold(Planner::Here, 0, ["w"].into_iter()).unwrap()[0];
        (0..2 * WAKES_PER_TURN as u32).for_each(|index| store.watch(wait(slot, 1, index), |_| true));
        let mut ready = Vec::new();
        store.publish(0, "w", 1, tensor(&[1]), &mut ready).unwrap();
        assert!(store.withdraw(0, "w"));
        store.begin_turn();
        store.move_woken(&mut ready);
        assert!(!store.has_woken() && ready.len() == WAKES_PER_TURN, "the others wait for the next");
        store.publish(0, "w", 1, tensor(&[2]), &mut ready).unwrap();
        assert_eq!(ready.len(), 2 * WAKES_PER_TURN);
    }

    #[test]
    fn slots_are_there_while_they_are_used() {
        let mut store = PublishedStore::new(2);
        let mut ready = Vec::new();
        let slots = store.hold(Planner::Here, 0, ["a", "b", "a"].into_iter()).unwrap();
        assert_eq!(slots[0], slots[2]);
        assert!(
            store
                .hold(Planner::Here, 1, ["a"].into_iter())
                .unwrap_err()
                .to_string()
                .contains("fusion.published_tensors_max")
        );
        store.publish(0, "a", 1, tensor(&[1]), &mut ready).unwrap();
        store.let_go(&slots);
        assert!(store.withdraw(0, "a") && !store.withdraw(0, "a"));
        assert_eq!((store.published(), store.hold(Planner::Here, 1, ["x", "y"].into_iter()).unwrap().len()), (0, 2));
    }

    #[test]
    fn watchers_that_are_gone_are_forgotten() {
        let mut store = PublishedStore::new(1);
        let slot = store.hold(Planner::Here, 0, ["w"].into_iter()).unwrap()[0];
        for index in 0..1000 {
            store.watch(wait(slot, 1, index), |watcher| watcher.wait.index + 1 >= index);
        }
        let mut ready = Vec::new();
        store.publish(0, "w", 1, tensor(&[1]), &mut ready).unwrap();
        assert!(ready.len() < 50, "{} are kept", ready.len());
    }
}
