//! Which recvs wait for tensors of direct lanes, and which tensors wait there for recvs, by name. No I/O; under the
//! attachment's lock; bounded by the calls in flight and by the entries of the lanes.

use std::hash::BuildHasher;

use hashbrown::{DefaultHashBuilder, HashSet, HashTable, hash_table::Entry};

use crate::limits::BY_DAEMON_MAX;

/// The hash of a peer's lane, a step and a key. Its seed is the process's own: whoever chooses keys cannot choose the seed, and two
/// different names collide as rarely as memory errs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::attachment) struct Name(u64);

/// What a name stands for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::attachment) enum Awaited {
    /// A recv that waits for its tensor, by the number of its call.
    Recv(u32),
    /// A tensor that waits for its recv, in an entry of its lane.
    Tensor {
        /// The lane.
        lane: u16,
        /// The entry.
        entry: u16,
    },
}

#[derive(Default)]
pub(in crate::attachment) struct Matching {
    table: HashTable<(Name, Awaited)>,
    hasher: DefaultHashBuilder,
    /// Hashes of peers and keys whose last tensor came through the daemon in spite of a lane: the daemon is asked at once.
    by_daemon: HashSet<u64>,
}

impl Matching {
    /// Notes that a tensor came through the daemon for which a lane was waited for.
    pub(in crate::attachment) fn came_by_daemon(&mut self, peer: &str, key: &str) {
        if self.by_daemon.len() >= BY_DAEMON_MAX {
            self.by_daemon.clear();
        }
        self.by_daemon.insert(self.hasher.hash_one((peer, key)));
    }

    /// Notes that a tensor of that key came over the lane.
    #[inline]
    pub(in crate::attachment) fn came_by_lane(&mut self, peer: &str, key: &str) {
        if !self.by_daemon.is_empty() {
            self.by_daemon.remove(&self.hasher.hash_one((peer, key)));
        }
    }

    #[inline]
    pub(in crate::attachment) fn comes_by_daemon(&self, peer: &str, key: &str) -> bool {
        !self.by_daemon.is_empty() && self.by_daemon.contains(&self.hasher.hash_one((peer, key)))
    }

    #[inline]
    pub(in crate::attachment) fn name(&self, lane: u16, step: i64, key: &str) -> Name {
        Name(self.hasher.hash_one((lane, step, key)))
    }

    /// What has that name.
    #[inline]
    pub(in crate::attachment) fn find(&self, name: Name) -> Option<Awaited> {
        self.table.find(name.0, |(other, _)| *other == name).map(|(_, awaited)| *awaited)
    }

    /// What has that name; a recv loses it.
    #[inline]
    pub(in crate::attachment) fn take_recv(&mut self, name: Name) -> Option<Awaited> {
        let found = self.table.find_entry(name.0, |(other, _)| *other == name).ok()?;
        let (_, awaited) = *found.get();
        if matches!(awaited, Awaited::Recv(_)) {
            found.remove();
        }
        Some(awaited)
    }

    /// Gives something a name; false if something else has it.
    #[inline]
    pub(in crate::attachment) fn insert(&mut self, name: Name, awaited: Awaited) -> bool {
        match self.table.entry(name.0, |(other, _)| *other == name, |(other, _)| other.0) {
            Entry::Occupied(_) => false,
            Entry::Vacant(vacant) => {
                vacant.insert((name, awaited));
                true
            }
        }
    }

    /// Gives something a name that nothing has.
    #[inline]
    pub(in crate::attachment) fn insert_new(&mut self, name: Name, awaited: Awaited) {
        debug_assert!(self.find(name).is_none(), "two things would have one name");
        self.table.insert_unique(name.0, (name, awaited), |(other, _)| other.0);
    }

    /// Forgets all names: the lanes are gone.
    pub(in crate::attachment) fn clear(&mut self) {
        self.table.clear();
    }

    /// Removes the name, if this has it.
    #[inline]
    pub(in crate::attachment) fn remove(&mut self, name: Name, awaited: Awaited) -> bool {
        match self.table.find_entry(name.0, |(other, of)| *other == name && *of == awaited) {
            Ok(found) => {
                found.remove();
                true
            }
            Err(_) => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_one_things_until_it_is_taken_from_it() {
        let mut matching = Matching::default();
        let name = matching.name(1, -7, "w");
        let others = [(2, -7, "w"), (1, 7, "w"), (1, -7, "v")].map(|(lane, step, key)| matching.name(lane, step, key));
        let tensor = Awaited::Tensor { lane: 1, entry: 9 };
        assert!(matching.insert(name, Awaited::Recv(3)));
        assert!(!matching.insert(name, tensor));
        assert_eq!(
            (matching.find(name), others.map(|other| matching.find(other))),
            (Some(Awaited::Recv(3)), [None; 3])
        );
        assert!(!matching.remove(name, Awaited::Recv(4)), "a later call, which has taken the place of the first");
        assert!(matching.remove(name, Awaited::Recv(3)));
        assert!(matching.insert(name, tensor));
        assert_eq!(matching.find(name), Some(tensor));
    }
}
