//! Slots addressed by generational handles, which are sent to peers or devices instead of pointers.
//!
//! Lives on one shard; bounded by the limit given at construction; allocates only while it grows.

use std::collections::VecDeque;

use crate::limits::SPARE_KEY_BYTES;

/// Identifies one entry of one [`Arena`], and never a later entry in the same slot.
///
/// 63 bits: the slot's index in the low 32, its generation (1 to 2^31 - 1) above. Zero is never a valid handle.
/// A generational index, as in ECS libraries.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Handle(u64);

const GENERATION_MAX: u32 = (1 << 31) - 1;

impl Handle {
    /// The handle of nothing.
    pub const NONE: Handle = Handle(0);

    #[inline]
    fn new(index: u32, generation: u64) -> Self {
        Self(generation << 32 | u64::from(index))
    }

    /// The handle as a number, for a wire field or a work request id.
    pub fn to_bits(self) -> u64 {
        self.0
    }

    /// A handle from an untrusted number: an invalid one is simply not found.
    pub fn from_bits(bits: u64) -> Self {
        Self(bits)
    }

    pub fn index(self) -> usize {
        (self.0 & u64::from(u32::MAX)) as usize
    }

    fn generation(self) -> u64 {
        self.0 >> 32
    }
}

impl std::fmt::Debug for Handle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}#{}", self.index(), self.generation())
    }
}

/// Larger than every generation: the slot is free.
const FREE: u64 = 1 << 32;

struct Slot<T> {
    /// The generation of the value; in a free slot, the generation of the next value, with [`FREE`] added.
    tag: u64,
    /// In a free slot, what [`retire`](Arena::retire) has left.
    value: Option<T>,
}

impl<T> Slot<T> {
    /// Ends the generation.
    #[inline]
    fn free(&mut self) {
        let next = if self.tag == u64::from(GENERATION_MAX) { 1 } else { self.tag + 1 };
        self.tag = next | FREE;
    }
}

/// Handles of ended values that a queue may hold in addition.
const QUEUE_SLACK: usize = 256;

/// A bounded set of values with stable generational handles.
pub struct Arena<T> {
    slots: Vec<Slot<T>>,
    free: Vec<u32>,
    limit: usize,
}

impl<T> Arena<T> {
    /// An empty arena that holds at most `limit` values (at most 2^32 - 1).
    pub fn new(limit: usize) -> Self {
        Self { slots: Vec::new(), free: Vec::new(), limit: limit.min(u32::MAX as usize) }
    }

    pub fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// The largest number of values that there were at a time: iteration visits this many slots.
    pub fn slots(&self) -> usize {
        self.slots.len()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// True if the next [`insert`](Self::insert) returns its value.
    pub fn is_full(&self) -> bool {
        self.len() >= self.limit
    }

    /// Removes from a queue the handles whose values are gone, once they are more than half of it: so a peer or client that
    /// ends values before their turn cannot make the queue grow.
    #[inline]
    pub fn prune(&self, queue: &mut VecDeque<Handle>) {
        if queue.len() > 2 * self.len() + QUEUE_SLACK {
            queue.retain(|&handle| self.get(handle).is_some());
        }
    }

    /// Stores a value, or returns it if the arena is full.
    #[inline]
    pub fn insert(&mut self, value: T) -> Result<Handle, T> {
        if self.is_full() {
            return Err(value);
        }
        Ok(self.place(|| value))
    }

    /// Stores the value that `make` creates, in place; `None` if the arena is full. For values that are expensive to move.
    #[inline]
    pub fn insert_with(&mut self, make: impl FnOnce() -> T) -> Option<Handle> {
        (!self.is_full()).then(|| self.place(make))
    }

    #[inline]
    fn place(&mut self, make: impl FnOnce() -> T) -> Handle {
        if let Some(index) = self.free.pop() {
            let slot = &mut self.slots[index as usize];
            slot.tag &= !FREE;
            slot.value = Some(make());
            return Handle::new(index, slot.tag);
        }
        let index = self.slots.len() as u32;
        self.slots.push(Slot { tag: 1, value: Some(make()) });
        Handle::new(index, 1)
    }

    #[inline]
    pub fn get(&self, handle: Handle) -> Option<&T> {
        let slot = self.slots.get(handle.index())?;
        if slot.tag != handle.generation() { None } else { slot.value.as_ref() }
    }

    #[inline]
    pub fn get_mut(&mut self, handle: Handle) -> Option<&mut T> {
        let slot = self.slots.get_mut(handle.index())?;
        if slot.tag != handle.generation() { None } else { slot.value.as_mut() }
    }

    /// Removes the value of `handle`; the handle becomes invalid.
    #[inline]
    pub fn remove(&mut self, handle: Handle) -> Option<T> {
        let slot = self.slots.get_mut(handle.index())?;
        if slot.tag != handle.generation() {
            return None;
        }
        let value = slot.value.take()?;
        slot.free();
        self.free.push(handle.index() as u32);
        Some(value)
    }

    /// Reuses a [retired](Self::retire) value or, if there is none, stores one from `make`; the caller then fills it in. `None`
    /// if the arena is full. For values that are expensive to move.
    #[inline]
    pub fn renew(&mut self, make: impl FnOnce() -> T) -> Option<(Handle, &mut T)> {
        if self.is_full() {
            return None;
        }
        let index = match self.free.pop() {
            Some(index) => index,
            None => {
                self.slots.push(Slot { tag: 1 | FREE, value: None });
                self.slots.len() as u32 - 1
            }
        };
        let slot = &mut self.slots[index as usize];
        slot.tag &= !FREE;
        Some((Handle::new(index, slot.tag), slot.value.get_or_insert_with(make)))
    }

    /// Lets `f` take what it needs from the value of `handle`, which becomes invalid. What `f` leaves is reused by
    /// [`renew`](Self::renew).
    #[inline]
    pub fn retire<R>(&mut self, handle: Handle, f: impl FnOnce(&mut T) -> R) -> Option<R> {
        let slot = self.slots.get_mut(handle.index())?;
        if slot.tag != handle.generation() {
            return None;
        }
        let taken = f(slot.value.as_mut()?);
        slot.free();
        self.free.push(handle.index() as u32);
        Some(taken)
    }

    /// Every value with its handle, in slot order.
    pub fn iter(&self) -> impl Iterator<Item = (Handle, &T)> {
        self.slots
            .iter()
            .enumerate()
            .filter(|(_, slot)| slot.tag & FREE == 0)
            .filter_map(|(index, slot)| Some((Handle::new(index as u32, slot.tag), slot.value.as_ref()?)))
    }

    /// Every value, mutably, with its handle, in slot order.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = (Handle, &mut T)> {
        self.slots
            .iter_mut()
            .enumerate()
            .filter(|(_, slot)| slot.tag & FREE == 0)
            .filter_map(|(index, slot)| Some((Handle::new(index as u32, slot.tag), slot.value.as_mut()?)))
    }

    /// The handles of all values for which `pick` returns true, in slot order.
    pub fn select(&self, mut pick: impl FnMut(&T) -> bool) -> Vec<Handle> {
        self.iter().filter(|(_, value)| pick(value)).map(|(handle, _)| handle).collect()
    }
}

/// Empties the key of a retired value. The memory of a long key is not kept.
#[inline]
pub fn reuse_key(key: &mut String) {
    key.clear();
    if key.capacity() > SPARE_KEY_BYTES {
        *key = String::new();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dead_handle_finds_nothing_although_its_slot_lives_on() {
        let mut arena = Arena::new(2);
        let first = arena.insert("a").unwrap();
        assert_eq!(arena.remove(first), Some("a"));
        let second = arena.insert("b").unwrap();
        assert_eq!(first.index(), second.index());
        assert_eq!(arena.get(first), None);
        assert_eq!(arena.remove(first), None);
        assert_eq!(arena.get(second), Some(&"b"));
        assert_eq!(Handle::from_bits(second.to_bits()), second);
    }

    #[test]
    fn full_gives_the_value_back() {
        let mut arena = Arena::new(1);
        let only = arena.insert(1).unwrap();
        assert_eq!(arena.insert(2), Err(2));
        arena.remove(only);
        assert!(arena.insert(3).is_ok());
        assert_eq!(arena.len(), 1);
    }

    #[test]
    fn numbers_from_outside_are_merely_not_found() {
        let mut arena = Arena::new(4);
        arena.insert(7).unwrap();
        for bits in [0, 1, u64::MAX, 5 << 32, 99] {
            assert_eq!(arena.get(Handle::from_bits(bits)), None);
            assert_eq!(arena.remove(Handle::from_bits(bits)), None);
        }
    }

    #[test]
    fn what_is_retired_is_not_found_until_it_is_renewed() {
        let mut arena = Arena::new(1);
        let (first, value) = arena.renew(Vec::new).unwrap();
        value.push("a");
        assert_eq!(arena.renew(Vec::new), None, "full");
        assert_eq!(arena.retire(first, |value| value.len()), Some(1));
        let next = Handle::from_bits(first.to_bits() + (1 << 32));
        for handle in [first, next, Handle::from_bits(next.to_bits() | 1 << 63)] {
            assert_eq!(arena.get(handle), None);
            assert_eq!(arena.retire(handle, |_| ()), None);
        }
        assert_eq!((arena.iter().count(), arena.len()), (0, 0));
        assert_eq!(arena.renew(Vec::new), Some((next, &mut vec!["a"])));
        assert_eq!(arena.remove(next), Some(vec!["a"]));
    }
}
