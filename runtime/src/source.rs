//! Sources: what a shard polls. The table of them belongs to the reactor; changes are queued and applied between
//! calls, so a source may add or remove sources, itself included, while it is being polled.

use std::{
    cell::{Cell, RefCell},
    fmt,
    time::Instant,
};

use crate::{readiness::Readiness, shard::Shard};

/// Something that a shard polls every turn: a link, a completion queue, a client's ring.
///
/// All methods are called on the shard's thread, and may call the [`Shard`] back. A source that panics is logged
/// and dropped; the shard goes on.
pub trait Source {
    /// Does a bounded amount of work and returns how much was done; zero means that there was nothing to do.
    ///
    /// `budget` is in the source's own units. What is left over is done in the next turn.
    fn poll(&mut self, shard: &Shard, budget: usize) -> usize;

    /// Hears what the kernel reported for one of its descriptors, under the token that it was watched with.
    fn ready(&mut self, token: u64, readiness: Readiness) {
        let _ = (token, readiness);
    }

    /// Whether a poll now would find work; cheap, and true when unsure. Asked before the shard sleeps.
    fn has_work(&self) -> bool;

    /// For a source whose work appears in memory at any moment: whether there is some, in a few nanoseconds. An idle shard then
    /// peeks at it between turns and calls epoll less often. `None`: no need to peek.
    fn peek(&self) -> Option<bool> {
        None
    }

    /// Prepares for sleep: arms its events, then looks for work once more. False means that it found some, and the
    /// shard stays awake.
    fn try_sleep(&mut self) -> bool;

    /// Disarms its events: the shard is awake again, or did not go to sleep after all.
    fn wake(&mut self);

    /// When it must be polled again even if nothing happens; asked before the shard sleeps.
    fn next_timeout(&self) -> Option<Instant> {
        None
    }

    /// What stall reports and logs call it; the type's name unless overridden.
    fn name(&self) -> &'static str {
        std::any::type_name::<Self>()
    }
}

/// Names a source of one shard; never reused for another one.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct SourceId {
    index: u32,
    generation: u32,
}

impl fmt::Debug for SourceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "source {}.{}", self.index, self.generation)
    }
}

/// Queued changes to the set of sources, and the names given out.
#[derive(Default)]
pub(crate) struct SourceChanges {
    queued: RefCell<Vec<Change>>,
    any: Cell<bool>,
    names: RefCell<Names>,
}

#[derive(Default)]
struct Names {
    generations: Vec<u32>,
    free: Vec<u32>,
}

enum Change {
    Add(SourceId, Box<dyn Source>),
    Remove(SourceId),
}

impl SourceChanges {
    pub(crate) fn add(&self, source: Box<dyn Source>) -> SourceId {
        let mut names = self.names.borrow_mut();
        let index = names.free.pop().unwrap_or_else(|| {
            names.generations.push(0);
            (names.generations.len() - 1) as u32
        });
        let id = SourceId { index, generation: names.generations[index as usize] };
        self.queued.borrow_mut().push(Change::Add(id, source));
        self.any.set(true);
        id
    }

    pub(crate) fn remove(&self, id: SourceId) {
        self.queued.borrow_mut().push(Change::Remove(id));
        self.any.set(true);
    }

    #[inline]
    pub(crate) fn any(&self) -> bool {
        self.any.get()
    }
}

/// The reactor's table of sources. Plain vectors, because every turn walks it.
#[derive(Default)]
pub(crate) struct SourceTable {
    slots: Vec<Slot>,
}

struct Slot {
    id: SourceId,
    source: Option<Box<dyn Source>>,
}

impl SourceTable {
    /// Applies the changes queued since the last call and returns the removed sources, for the caller to drop when nothing is
    /// borrowed.
    pub(crate) fn apply(&mut self, changes: &SourceChanges) -> Vec<Box<dyn Source>> {
        changes.any.set(false);
        let queued = std::mem::take(&mut *changes.queued.borrow_mut());
        let mut removed = Vec::new();
        for change in queued {
            match change {
                Change::Add(id, source) => {
                    let slot = Slot { id, source: Some(source) };
                    match self.slots.get_mut(id.index as usize) {
                        Some(place) => *place = slot,
                        None => {
                            debug_assert_eq!(self.slots.len(), id.index as usize);
                            self.slots.push(slot);
                        }
                    }
                }
                Change::Remove(id) => removed.extend(self.take(id, changes)),
            }
        }
        removed
    }

    fn take(&mut self, id: SourceId, changes: &SourceChanges) -> Option<Box<dyn Source>> {
        let slot = self.slots.get_mut(id.index as usize).filter(|slot| slot.id == id)?;
        let source = slot.source.take()?;
        let mut names = changes.names.borrow_mut();
        let generation = &mut names.generations[id.index as usize];
        *generation = generation.wrapping_add(1);
        names.free.push(id.index);
        Some(source)
    }

    /// The source of that name, if it still exists.
    pub(crate) fn get_mut(&mut self, id: SourceId) -> Option<&mut Box<dyn Source>> {
        self.slots.get_mut(id.index as usize).filter(|slot| slot.id == id)?.source.as_mut()
    }

    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = (SourceId, &mut Box<dyn Source>)> {
        self.slots.iter_mut().filter_map(|slot| Some((slot.id, slot.source.as_mut()?)))
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (SourceId, &dyn Source)> {
        self.slots.iter().filter_map(|slot| Some((slot.id, slot.source.as_deref()?)))
    }

    /// Takes every source out, for the caller to drop.
    pub(crate) fn clear(&mut self) -> Vec<Box<dyn Source>> {
        self.slots.drain(..).filter_map(|slot| slot.source).collect()
    }
}

/// A source for tests that never has anything to do.
#[cfg(test)]
pub(crate) struct Nothing;

#[cfg(test)]
impl Source for Nothing {
    fn poll(&mut self, _: &Shard, _: usize) -> usize {
        0
    }

    fn has_work(&self) -> bool {
        false
    }

    fn try_sleep(&mut self) -> bool {
        true
    }

    fn wake(&mut self) {}
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_outlives_its_source_but_names_no_other() {
        let (changes, mut table) = (SourceChanges::default(), SourceTable::default());
        let first = changes.add(Box::new(Nothing));
        assert!(table.get_mut(first).is_none(), "not applied yet");
        table.apply(&changes);
        assert!(table.get_mut(first).is_some());
        changes.remove(first);
        changes.remove(first);
        assert_eq!(table.apply(&changes).len(), 1);
        let second = changes.add(Box::new(Nothing));
        table.apply(&changes);
        assert_ne!(first, second);
        assert_eq!(table.iter().count(), 1, "the place is used again");
        assert!(table.get_mut(first).is_none());
        assert!(table.get_mut(second).is_some());
        assert!(table.iter().next().unwrap().1.name().contains("Nothing"));
    }

    #[test]
    fn a_source_added_and_removed_at_once_is_given_back() {
        let (changes, mut table) = (SourceChanges::default(), SourceTable::default());
        let id = changes.add(Box::new(Nothing));
        changes.remove(id);
        assert_eq!(table.apply(&changes).len(), 1);
        assert_eq!(table.iter().count(), 0);
    }
}
