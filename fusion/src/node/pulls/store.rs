//! Published tensors: those of each task, by key, with a version; readable any number of times.
//!
//! Pure: no clock, no I/O. One store per shard. A slot exists while a tensor lies in it or a plan names it, so that a pull finds its
//! tensors by number. The bytes of small tensors are [packed](Packed); larger ones are shared with the links that send them. At most
//! `fusion.published_tensors_max` tensors lie in it, whatever plans name, and each task has its [share](super::shares) of them; and plans
//! may name as many keys that nobody has published, a quarter of which is reserved for plans of this node.

use std::collections::VecDeque;
use std::hash::BuildHasher;
use std::sync::Arc;

use hashbrown::{DefaultHashBuilder, HashTable};
use sealane_runtime::{Buffer, DeviceError};
use sealane_transport::limits::{INLINE_PAYLOAD_BYTES, LOCKS_SUFFIX};
use sealane_transport::pull_buffer::{Stored, StoredBytes, next_stamp};
use sealane_transport::session::Store;
use sealane_transport::shm::limits::INLINE_BYTES_MAX;
use sealane_transport::tensor::IntoTensor;
use sealane_transport::{Error, Payload, Tensor, TensorMeta};

use super::packed::{Packed, Slot};
use super::shares::{Shares, name_bytes};
use super::watchers::{Watcher, Watchers};
use crate::limits::{PLANS_KEPT_SHARE, WAKES_PER_TURN};

/// What lies in a slot, besides what `packed` has.
struct Published {
    meta: TensorMeta,
    /// `None` if the bytes are packed.
    payload: Option<Payload>,
    /// It is a table whose publisher may be writing rows: it is read row by row, under their locks.
    in_place: bool,
}

/// The key of a slot, and who watches it.
struct Label {
    task: u16,
    key: Box<str>,
    /// How often plans name the slot; a plan that names it twice counts twice.
    plans: u32,
    watchers: Watchers,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Planner {
    /// A task of this node.
    Here,
    /// A peer.
    Peer,
}

/// The published tensors of a shard; see the module.
pub(super) struct PublishedStore {
    /// By slot: what every pull looks at.
    packed: Packed,
    /// By slot, as the next field.
    published: Vec<Option<Published>>,
    labels: Vec<Option<Label>>,
    free: Vec<u32>,
    index: HashTable<u32>,
    hasher: DefaultHashBuilder,
    shares: Shares,
    /// Slots that received a tensor that is waited for, while some watchers are still to be told.
    woken: VecDeque<u32>,
    /// How many watchers may still be told before the next turn.
    wakes: usize,
    /// The slot in which the last tensor was put.
    last: u32,
    /// Kept to reuse its memory.
    locks_key: String,
}

impl Store for PublishedStore {
    #[inline]
    fn look(&self, slot: u32) -> Option<Stored<'_>> {
        let Published { meta, payload, in_place } = self.published.get(slot as usize)?.as_ref()?;
        if *in_place {
            return None;
        }
        let Slot { version, stamp, .. } = *self.packed.slot(slot);
        let bytes = match payload {
            None => StoredBytes::Packed(self.packed.get(slot)?),
            Some(payload) => StoredBytes::Payload(payload),
        };
        Some(Stored { version, meta: meta.as_wire(), stamp, bytes })
    }

    #[inline]
    fn run(&self, slots: &[u32], version: i64, stamps: &[u64], bytes_max: usize) -> (usize, &[u8]) {
        self.packed.run(slots, version, stamps, bytes_max)
    }
}

impl PublishedStore {
    pub(super) fn new(published_max: usize) -> Self {
        Self {
            packed: Packed::new(),
            published: Vec::new(),
            labels: Vec::new(),
            free: Vec::new(),
            index: HashTable::new(),
            hasher: DefaultHashBuilder::default(),
            // Slots have numbers of 32 bits, and there may be twice as many slots as published tensors.
            shares: Shares::new(published_max.min(u32::MAX as usize / 2)),
            woken: VecDeque::new(),
            wakes: WAKES_PER_TURN,
            last: 0,
            locks_key: String::new(),
        }
    }

    /// Tensors that lie in it.
    pub(super) fn published(&self) -> usize {
        self.shares.tensors()
    }

    fn find(&self, task: u16, key: &str) -> (u64, Option<u32>) {
        let hash = self.hasher.hash_one((task, key));
        let labels = &self.labels;
        let same = |slot: &u32| labels[*slot as usize].as_ref().is_some_and(|of| of.task == task && *of.key == *key);
        (hash, self.index.find(hash, same).copied())
    }

    /// What lies under a task's key: version, metadata, and the bytes in place, however few. The publisher may write to them at any time,
    /// and a copy made here would ignore their locks.
    pub(super) fn share_in_place(&mut self, task: u16, key: &str) -> Option<(i64, TensorMeta, Payload)> {
        let slot = self.find(task, key).1?;
        let Published { meta, payload, .. } = self.published[slot as usize].as_mut()?;
        let shared = match payload.take() {
            Some(Payload::Owned(buffer)) => Payload::Shared(Arc::new(buffer)),
            Some(shared) => shared,
            None => Payload::Shared(Arc::new(Buffer::copy_of(self.packed.get(slot)?))),
        };
        self.packed.remove(slot);
        Some((self.packed.slot(slot).version, meta.clone(), payload.insert(shared).share()))
    }

    /// Slots without a tensor: plans name them.
    fn named(&self) -> usize {
        self.labels.len() - self.free.len() - self.published()
    }

    /// The slot after that of the last tensor put, if it belongs to this task and key: tensors are usually published in the same order as
    /// the first time.
    #[inline]
    fn follows(&self, task: u16, key: &str) -> Option<u32> {
        let next = self.last + 1;
        let label = self.labels.get(next as usize)?.as_ref()?;
        (label.task == task && *label.key == *key).then_some(next)
    }

    /// The slot of a task's key; created if there is none and `has_room` returns no error.
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
                self.packed.add_slot();
                self.published.push(None);
                self.labels.push(None);
                self.labels.len() as u32 - 1
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
    /// ResourceExhausted; then no slot is held.
    pub(super) fn hold<'a>(
        &mut self,
        planner: Planner,
        task: u16,
        keys: impl Iterator<Item = &'a str>,
    ) -> Result<Vec<u32>, Error> {
        let published_max = self.shares.tensors_max();
        let most = match planner {
            Planner::Here => published_max,
            Planner::Peer => published_max - published_max / PLANS_KEPT_SHARE,
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
        if label.plans > 0 || self.is_published(slot) {
            return;
        }
        let hash = self.hasher.hash_one((label.task, &*label.key));
        if let Ok(entry) = self.index.find_entry(hash, |other| *other == slot) {
            entry.remove();
        }
        self.labels[slot as usize] = None;
        self.free.push(slot);
    }

    /// Overwrites the bytes of the previous small tensor; `None` if that is newer, of another kind, or not packed.
    #[inline(always)]
    fn overwrite(&mut self, task: u16, key: &str, version: i64, tensor: &Tensor) -> Option<u32> {
        let bytes = tensor.payload().private_bytes()?;
        let slot = self.follows(task, key).or_else(|| self.find(task, key).1)?;
        let is_alike = self.published[slot as usize].as_ref()?.meta == *tensor.meta();
        if !is_alike || !self.packed.overwrite(slot, version, bytes) {
            return None;
        }
        Some(slot)
    }

    /// Puts tensors in the store, each replacing the previous one, and moves their watchers into `ready`: as many as may be told in this
    /// turn, the others in later turns.
    ///
    /// # Errors
    /// The first; the other tensors are put in. InvalidArgument if a newer version is there, ResourceExhausted if
    /// `fusion.published_tensors_max` are published or the task has its share, Unavailable if a tensor is in the memory of a device that
    /// cannot copy it.
    pub(super) fn publish<K: AsRef<str>, T: IntoTensor>(
        &mut self,
        task: u16,
        version: i64,
        tensors: impl Iterator<Item = (K, T)>,
        ready: &mut Vec<Watcher>,
    ) -> Result<(), Error> {
        let mut failed = None;
        for (key, tensor) in tensors {
            let key = key.as_ref();
            let slot = match self.overwrite(task, key, version, tensor.borrow()) {
                Some(slot) => slot,
                None => match self.replace(task, key, version, tensor.into_tensor()) {
                    Ok(slot) => slot,
                    Err(error) => {
                        failed.get_or_insert(error);
                        continue;
                    }
                },
            };
            self.last = slot;
            let label = self.labels[slot as usize].as_mut().expect("just found");
            if label.watchers.wake(version) {
                self.woken.push_back(slot);
            }
        }
        if !self.woken.is_empty() {
            self.move_woken(ready);
        }
        failed.map_or(Ok(()), Err)
    }

    /// Puts a tensor in the store in place of the previous one; returns its slot.
    #[inline(never)]
    fn replace(&mut self, task: u16, key: &str, version: i64, tensor: Tensor) -> Result<u32, Error> {
        let (meta, payload) = tensor.into_parts();
        let name = name_bytes(key, &meta);
        let payload = to_read_often(payload)?;
        let slot = match self.follows(task, key) {
            Some(slot) => slot,
            None => self.slot(task, key, |store| store.shares.check(task, name, None))?,
        };
        let before = *self.packed.slot(slot);
        let replaced = self.published[slot as usize].as_ref().map(|replaced| name_bytes(key, &replaced.meta));
        if replaced.is_some() && before.version > version {
            let reason = format!("version {version} of '{key}' is older than the published version {}", before.version);
            return Err(Error::invalid(reason));
        }
        self.shares.check(task, name, replaced)?;
        // Smaller tables have no locks.
        let in_place = payload.len() > INLINE_BYTES_MAX && self.has_locks(task, key);
        let is_alike = |there: &Published| {
            let len = there.payload.as_ref().map(Payload::len).or_else(|| self.packed.get(slot).map(<[u8]>::len));
            there.meta == meta && len == Some(payload.len())
        };
        let is_alike = self.published[slot as usize].as_ref().is_some_and(is_alike);
        let stamp = if is_alike { before.stamp } else { next_stamp() };
        self.take_out(slot);
        // Larger tensors may be tables with locks; lent memory may be written to where it lies.
        let small = payload.private_bytes().filter(|bytes| bytes.len() <= INLINE_BYTES_MAX);
        let is_small = small.map(|bytes| self.packed.put(slot, bytes.into())).is_some();
        let payload = if is_small { None } else { Some(payload) };
        self.packed.set(slot, version, stamp);
        self.published[slot as usize] = Some(Published { meta, payload, in_place });
        self.shares.add(task, name);
        Ok(slot)
    }

    fn is_published(&self, slot: u32) -> bool {
        self.published[slot as usize].is_some()
    }

    /// Removes what lies in a slot; false if it was empty.
    fn take_out(&mut self, slot: u32) -> bool {
        let was = self.published[slot as usize].take();
        if let (Some(Published { meta, .. }), Some(label)) = (&was, &self.labels[slot as usize]) {
            self.shares.remove(label.task, name_bytes(&label.key, meta));
        }
        self.packed.remove(slot);
        self.packed.set(slot, 0, 0);
        was.is_some()
    }

    /// The version in a slot, if it has one.
    fn version_in(&self, slot: u32) -> Option<i64> {
        self.is_published(slot).then(|| self.packed.slot(slot).version)
    }

    /// A new turn begins: its limit of watchers to tell is available again.
    #[inline]
    pub(super) fn begin_turn(&mut self) {
        self.wakes = WAKES_PER_TURN;
    }

    /// True if watchers are still to be told of something.
    #[inline]
    pub(super) fn has_woken(&self) -> bool {
        !self.woken.is_empty()
    }

    /// Moves watchers of what was published in earlier turns into `ready`, as many as may be told in this turn.
    pub(super) fn move_woken(&mut self, ready: &mut Vec<Watcher>) {
        while self.wakes > 0
            && let Some(&slot) = self.woken.front()
        {
            let version = self.version_in(slot);
            match self.label(slot).and_then(|label| label.watchers.next(version)) {
                Some(watcher) => {
                    self.wakes -= 1;
                    ready.push(watcher);
                }
                None => drop(self.woken.pop_front()),
            }
        }
    }

    /// True if the locks of the table with that key are published: they are published before the table.
    fn has_locks(&mut self, task: u16, key: &str) -> bool {
        self.locks_key.clear();
        self.locks_key.extend([key, LOCKS_SUFFIX]);
        self.find(task, &self.locks_key).1.is_some_and(|slot| self.is_published(slot))
    }

    /// The error for a pull of the slot, if it holds a table written in place: half a row could come.
    pub(super) fn refusal(&self, slot: u32) -> Option<Error> {
        self.published.get(slot as usize)?.as_ref().filter(|published| published.in_place)?;
        Some(Error::invalid(format!(
            "'{}' is a table whose rows are written in place, and a pull of it as a whole might get half of one: pull its rows by \
             number (pull_rows), or publish it with torn=True",
            self.key(slot)
        )))
    }

    /// The version under a task's key, if it is published.
    pub(super) fn version_of(&self, task: u16, key: &str) -> Option<i64> {
        self.version_in(self.find(task, key).1?)
    }

    /// Removes a tensor from the store; pulls of it wait for the next one. False if there was none.
    pub(super) fn withdraw(&mut self, task: u16, key: &str) -> bool {
        let Some(slot) = self.find(task, key).1 else { return false };
        let was = self.take_out(slot);
        self.free_unused(slot);
        was
    }

    /// Removes all that a task has published; those who wait for its tensors are moved into `waiting`.
    pub(super) fn withdraw_all(&mut self, task: u16, waiting: &mut Vec<Watcher>) {
        for slot in 0..self.labels.len() as u32 {
            let Some(label) = self.labels[slot as usize].as_mut().filter(|label| label.task == task) else { continue };
            label.watchers.take_all(waiting);
            self.take_out(slot);
            self.free_unused(slot);
        }
    }

    /// Adds a watcher to its slot. `is_waiting` tells which watchers still wait; it is used to purge a long list.
    pub(super) fn watch(&mut self, watcher: Watcher, is_waiting: impl Fn(&Watcher) -> bool) {
        if let Some(label) = self.label(watcher.wait.slot) {
            label.watchers.add(watcher, is_waiting);
        }
    }

    /// Panics unless exactly those slots are in use that hold a tensor or that plans name; `named` has each slot as often as plans name it.
    #[cfg(any(test, feature = "fuzzing"))]
    pub(super) fn check_invariants(&self, named: impl Iterator<Item = u32>) {
        let mut plans = vec![0; self.labels.len()];
        named.for_each(|slot| plans[slot as usize] += 1);
        let lengths = (self.packed.len(), self.published.len());
        assert_eq!(lengths, (self.labels.len(), self.labels.len()), "a tensor would lie in a slot without a name");
        self.packed.check_invariants();
        for (slot, label) in self.labels.iter().enumerate() {
            let there = (label.as_ref().map_or(0, |label| label.plans), self.published[slot].is_some());
            assert_eq!(there.0, plans[slot], "slot {slot} would be freed while plans name it, or never");
            assert_eq!(label.is_some(), there.0 > 0 || there.1, "slot {slot} would be given to another key, or never");
            if let Some(label) = label {
                let found = self.find(label.task, &label.key).1;
                assert_eq!(found, Some(slot as u32), "'{}' would be published where no pull looks", label.key);
            }
            let version = self.version_in(slot as u32);
            let is_small = self.published[slot].as_ref().is_some_and(|published| published.payload.is_none());
            let (is_there, is_packed) =
                (self.packed.slot(slot as u32).stamp != 0, self.packed.get(slot as u32).is_some());
            assert_eq!((is_there, is_packed), (there.1, is_small), "a pull would read another's bytes");
            let misses = label.as_ref().is_some_and(|label| label.watchers.misses(version));
            assert!(!misses || self.woken.contains(&(slot as u32)), "pulls would wait for what is in slot {slot}");
        }
        let there =
            self.labels.iter().zip(&self.published).filter_map(|(label, there)| label.as_ref().zip(there.as_ref()));
        self.shares.check_invariants(there.map(|(label, there)| (label.task, name_bytes(&label.key, &there.meta))));
        assert_eq!(self.index.len(), self.labels.len() - self.free.len(), "slots would be lost, or given out twice");
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

/// Small payloads are read where they lie, and copied there if they are foreign memory or a device's; large ones are shared with every link
/// that sends them.
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
    use sealane_transport::limits::KEY_BYTES_MAX;
    use sealane_transport::session::Wait;

    use super::super::shares::Share;
    use super::*;
    use crate::limits::{PUBLISHED_NAME_BYTES_MIN, PUBLISHED_SHARED_PART};

    fn tensor(values: &[u8]) -> Tensor {
        Tensor::from_elements(&[values.len() as u64], values).unwrap()
    }

    fn bytes(stored: &Stored<'_>) -> Vec<u8> {
        stored.bytes.host_bytes().unwrap().to_vec()
    }

    fn publish(
        store: &mut PublishedStore,
        task: u16,
        key: &str,
        version: i64,
        tensor: impl IntoTensor,
        ready: &mut Vec<Watcher>,
    ) -> Result<(), Error> {
        store.publish(task, version, std::iter::once((key, tensor)), ready)
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
        publish(&mut store, 0, "w", 3, tensor(&[1, 2]), &mut ready).unwrap();
        let slot = store.hold(Planner::Here, 0, ["w"].into_iter()).unwrap()[0];
        let stamp = store.look(slot).unwrap().stamp;
        publish(&mut store, 0, "w", 4, tensor(&[3, 4]), &mut ready).unwrap();
        let look = store.look(slot).unwrap();
        assert_eq!((look.version, look.stamp, bytes(&look)), (4, stamp, vec![3, 4]));
        let older = publish(&mut store, 0, "w", 3, tensor(&[5, 6]), &mut ready).unwrap_err();
        assert!(older.to_string().contains("older than the published version 4"), "{older}");
        publish(&mut store, 0, "w", 4, tensor(&[7]), &mut ready).unwrap();
        assert_ne!(store.look(slot).unwrap().stamp, stamp, "another shape, another stamp");
        assert!(ready.is_empty());
    }

    #[test]
    fn a_small_tensor_is_written_over_the_one_before_but_not_where_others_read_it() {
        let mut store = PublishedStore::new(8);
        let mut ready = Vec::new();
        let tensors = [tensor(&[1; 100]), tensor(&[2; 100]), tensor(&[3; 100])];
        publish(&mut store, 0, "w", 1, &tensors[0], &mut ready).unwrap();
        let slot = store.hold(Planner::Here, 0, ["w"].into_iter()).unwrap()[0];
        let place = |store: &PublishedStore| store.look(slot).unwrap().bytes.host_bytes().unwrap().as_ptr();
        let before = place(&store);
        publish(&mut store, 0, "w", 2, &tensors[1], &mut ready).unwrap();
        assert_eq!((place(&store), bytes(&store.look(slot).unwrap())), (before, vec![2; 100]));
        let shared = store.share_in_place(0, "w").unwrap().2;
        publish(&mut store, 0, "w", 3, &tensors[2], &mut ready).unwrap();
        assert_eq!((shared.as_ref(), bytes(&store.look(slot).unwrap())), (&[2; 100][..], vec![3; 100]));
        assert!(publish(&mut store, 0, "w", 2, &tensors[0], &mut ready).is_err());
    }

    #[test]
    fn small_tensors_of_one_version_are_read_at_once() {
        let mut store = PublishedStore::new(8);
        let keys = ["a", "b", "c", "d"];
        let slots = store.hold(Planner::Here, 0, keys.into_iter()).unwrap();
        let publish_all = |store: &mut PublishedStore, version, lens: [usize; 4]| {
            let tensors: Vec<Tensor> = (1..).zip(lens).map(|(value, len)| tensor(&vec![value; len])).collect();
            store.publish(0, version, keys.iter().zip(&tensors), &mut Vec::new()).unwrap();
            store.check_invariants(slots.iter().copied());
            slots.iter().map(|slot| store.look(*slot).unwrap().stamp).collect::<Vec<u64>>()
        };
        let stamps = publish_all(&mut store, 1, [2, 1, 0, 3]);
        assert_eq!(store.run(&slots, 1, &stamps, 100), (4, &[1, 1, 2, 4, 4, 4][..]));
        assert_eq!(store.run(&slots[1..], 1, &stamps[1..], 3), (2, &[2][..]));
        // A tensor of another version or with another stamp is not part of the run.
        publish(&mut store, 0, "c", 2, tensor(&[]), &mut Vec::new()).unwrap();
        assert_eq!(store.run(&slots, 1, &stamps, 100), (2, &[1, 1, 2][..]));
        assert_eq!(store.run(&slots, 1, &[stamps[0] + 100], 100), (0, &[][..]));
        // Tensors that change their length move elsewhere.
        let after = publish_all(&mut store, 3, [2, 2, 0, 3]);
        assert_eq!(store.run(&slots, 3, &stamps, 100), (1, &[1, 1][..]));
        assert_eq!(store.run(&slots[1..], 3, &after[1..], 100), (1, &[2, 2][..]));
        // Nor are large, withdrawn or in-place tensors part of a run.
        let large = tensor(&[9; INLINE_BYTES_MAX + 1]);
        publish(&mut store, 0, "a", 4, large, &mut Vec::new()).unwrap();
        assert!(store.withdraw(0, "b") && store.share_in_place(0, "c").is_some());
        store.check_invariants(slots.iter().copied());
        assert!((0..3).all(|at| store.run(&slots[at..], 3, &after[at..], 1000).0 == 0));
        publish_all(&mut store, 5, [1, 2, 3, 4]);
    }

    #[test]
    fn what_is_withdrawn_leaves_the_others_as_they_are() {
        const COUNT: usize = 1000;
        let mut store = PublishedStore::new(2 * COUNT);
        let tensors: Vec<(String, Tensor)> =
            (0..COUNT).map(|number| (number.to_string(), tensor(&[(number % 251) as u8; 200]))).collect();
        let borrowed = tensors.iter().map(|(key, tensor)| (key, tensor));
        store.publish(0, 1, borrowed, &mut Vec::new()).unwrap();
        for (number, (key, _)) in tensors.iter().enumerate().filter(|(number, _)| number % 4 > 0) {
            assert!(store.withdraw(0, key));
            if number % 100 == 1 {
                store.check_invariants([].into_iter());
            }
        }
        for (key, tensor) in tensors.iter().step_by(4) {
            let slot = store.find(0, key).1.unwrap();
            assert_eq!(bytes(&store.look(slot).unwrap()), tensor.bytes());
        }
    }

    #[test]
    fn a_table_is_read_where_it_lies_however_small_it_is() {
        for bytes in [1, 100, INLINE_PAYLOAD_BYTES, INLINE_PAYLOAD_BYTES + 1] {
            let mut store = PublishedStore::new(8);
            publish(&mut store, 0, "w", 3, tensor(&vec![7; bytes]), &mut Vec::new()).unwrap();
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
        publish(&mut store, 0, "w", 1, table(), &mut ready).unwrap();
        assert!(store.look(slot).is_some() && store.refusal(slot).is_none());
        // Locks published by another task do not belong to this table.
        for (task, is_read) in [(1, true), (0, false)] {
            publish(&mut store, task, &format!("w{LOCKS_SUFFIX}"), 1, tensor(&[0; 600]), &mut ready).unwrap();
            publish(&mut store, 0, "w", 2, table(), &mut ready).unwrap();
            assert_eq!((store.look(slot).is_some(), store.refusal(slot).is_none()), (is_read, is_read));
        }
        assert!(store.share_in_place(0, "w").is_some());
        publish(&mut store, 0, "w", 3, tensor(&[7; 10]), &mut ready).unwrap();
        assert!(store.look(slot).is_some(), "so small that it is published anew");
    }

    #[test]
    fn who_waits_is_told_at_the_version_that_it_waits_for() {
        let mut store = PublishedStore::new(8);
        let mut ready = Vec::new();
        let slot = store.hold(Planner::Here, 0, ["w"].into_iter()).unwrap()[0];
        store.watch(wait(slot, 2, 0), |_| true);
        store.watch(wait(slot, 5, 1), |_| true);
        publish(&mut store, 0, "w", 1, tensor(&[1]), &mut ready).unwrap();
        assert!(ready.is_empty());
        publish(&mut store, 0, "w", 4, tensor(&[1]), &mut ready).unwrap();
        assert_eq!(ready, [wait(slot, 2, 0)]);
        publish(&mut store, 0, "w", 5, tensor(&[1]), &mut ready).unwrap();
        assert_eq!(ready.len(), 2);
    }

    #[test]
    fn so_many_are_told_in_a_turn_and_the_others_in_the_next() {
        let mut store = PublishedStore::new(8);
        let slot = store.hold(Planner::Here, 0, ["w"].into_iter()).unwrap()[0];
        let count = 2 * WAKES_PER_TURN as u32 + 3;
        (0..count).for_each(|index| store.watch(wait(slot, 1 + i64::from(index == 7), index), |_| true));
        let mut ready = Vec::new();
        publish(&mut store, 0, "w", 1, tensor(&[1]), &mut ready).unwrap();
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
        publish(&mut store, 0, "w", 1, tensor(&[1]), &mut ready).unwrap();
        assert!(store.withdraw(0, "w"));
        store.begin_turn();
        store.move_woken(&mut ready);
        assert!(!store.has_woken() && ready.len() == WAKES_PER_TURN, "the others wait for the next");
        publish(&mut store, 0, "w", 1, tensor(&[2]), &mut ready).unwrap();
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
        publish(&mut store, 0, "a", 1, tensor(&[1]), &mut ready).unwrap();
        store.let_go(&slots);
        assert!(store.withdraw(0, "a") && !store.withdraw(0, "a"));
        assert_eq!((store.published(), store.hold(Planner::Here, 1, ["x", "y"].into_iter()).unwrap().len()), (0, 2));
    }

    /// Publishes new keys of a task until one is refused; returns how many are there, and the refusal.
    fn fill(store: &mut PublishedStore, task: u16) -> (usize, String) {
        let mut keys = 0..;
        let refused =
            keys.find_map(|key| publish(store, task, &format!("k{key}"), 1, tensor(&[1]), &mut Vec::new()).err());
        store.check_invariants([].into_iter());
        (keys.start - 1, refused.unwrap().to_string())
    }

    #[test]
    fn a_task_leaves_room_for_the_others_and_gets_what_it_gives_back() {
        const LAST: usize = 64;
        let mut store = PublishedStore::new(LAST * PUBLISHED_SHARED_PART);
        let most = LAST * (PUBLISHED_SHARED_PART - 1);
        let (published, refused) = fill(&mut store, 0);
        assert_eq!(published, most);
        assert!(refused.contains("fusion.published_tensors_max is full: the task has published"), "{refused}");
        // A new version takes no more room.
        publish(&mut store, 0, "k0", 2, tensor(&[1; 2]), &mut Vec::new()).unwrap();
        // The others share the rest by halves.
        for (task, expected) in [(1, 32), (2, 16), (3, 8), (4, 4), (5, 2), (6, 1), (7, 1)] {
            assert_eq!(fill(&mut store, task).0, expected, "task {task}");
        }
        assert!(fill(&mut store, 8).1.contains("2048 keys are published"));
        // What is withdrawn can be published again, by anyone.
        (0..3).for_each(|key| assert!(store.withdraw(0, &format!("k{key}"))));
        publish(&mut store, 8, "k0", 1, tensor(&[1]), &mut Vec::new()).unwrap();
        publish(&mut store, 7, "more", 1, tensor(&[1]), &mut Vec::new()).unwrap();
        // So can what a task had at its end.
        store.withdraw_all(0, &mut Vec::new());
        assert_eq!((store.shares.of(0), store.published()), (Share::default(), 66));
        assert_eq!(fill(&mut store, 0).0, most - 66);
    }

    #[test]
    fn a_tasks_keys_and_metadata_have_so_many_bytes() {
        let mut store = PublishedStore::new(1000);
        let key = |number: usize| format!("{number:0width$}", width = KEY_BYTES_MAX);
        let put = |store: &mut PublishedStore, key: &str, version, shape: &[u64]| {
            publish(store, 0, key, version, Tensor::from_elements(shape, &[1_u8]).unwrap(), &mut Vec::new())
        };
        let size = KEY_BYTES_MAX + 16;
        let most = PUBLISHED_NAME_BYTES_MIN / size;
        (0..most).for_each(|number| put(&mut store, &key(number), 1, &[1]).unwrap());
        let refused = put(&mut store, &key(most), 1, &[1]).unwrap_err().to_string();
        assert!(refused.contains("fusion.published_tensors_max is full: the keys and metadata"), "{refused}");
        // As many bytes as before, or fewer, take no more room; more do.
        put(&mut store, &key(0), 2, &[1]).unwrap();
        let left = (PUBLISHED_NAME_BYTES_MIN - most * size) / 8;
        assert!(put(&mut store, &key(0), 3, &vec![1; 2 + left]).is_err());
        put(&mut store, &key(0), 3, &vec![1; 1 + left]).unwrap();
        put(&mut store, &key(0), 4, &[1]).unwrap();
        store.check_invariants([].into_iter());
        // Another task has its own, and what is withdrawn gives the bytes back.
        publish(&mut store, 1, &key(0), 1, tensor(&[1]), &mut Vec::new()).unwrap();
        assert!(store.withdraw(0, &key(0)));
        put(&mut store, &key(most), 1, &[1]).unwrap();
        store.check_invariants([].into_iter());
    }

    #[test]
    fn watchers_that_are_gone_are_forgotten() {
        let mut store = PublishedStore::new(1);
        let slot = store.hold(Planner::Here, 0, ["w"].into_iter()).unwrap()[0];
        for index in 0..1000 {
            store.watch(wait(slot, 1, index), |watcher| watcher.wait.index + 1 >= index);
        }
        let mut ready = Vec::new();
        publish(&mut store, 0, "w", 1, tensor(&[1]), &mut ready).unwrap();
        assert!(ready.len() < 50, "{} are kept", ready.len());
    }
}
