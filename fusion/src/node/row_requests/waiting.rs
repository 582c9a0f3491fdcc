//! Row requests whose table is missing: by table, those that want the oldest version first.
//!
//! A publication only notes that requests may proceed; which ones is found out a few per turn, so that its cost does not grow with the
//! number of waiting requests. Bounded by the requests, and for each table by [`ROW_WAITS_MAX`] of one peer.

use std::collections::{BTreeSet, VecDeque};
use std::rc::Rc;

use hashbrown::HashMap;
use sealane_transport::Handle;
use sealane_transport::session::PeerQuota;

use super::Name;
use crate::limits::ROW_WAITS_MAX;

/// A peer, identified by the quota that its sessions share: it exists as long as one of them does, and so its address is unique.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct PeerId(*const PeerQuota);

impl PeerId {
    pub(super) fn of(quota: &Rc<PeerQuota>) -> PeerId {
        PeerId(Rc::as_ptr(quota))
    }
}

/// The requests that wait for one table.
#[derive(Default)]
struct OfTable {
    /// Each with the minimum version that it wants.
    waiting: BTreeSet<(i64, Handle)>,
    of_peers: HashMap<PeerId, usize>,
    /// It is in `woken`.
    is_woken: bool,
}

#[derive(Clone, Copy)]
pub(super) struct Waiter {
    pub(super) handle: Handle,
    pub(super) min_version: i64,
    /// The peer that asked; `None` for a task of this node.
    pub(super) peer: Option<PeerId>,
}

/// All requests that wait for tables; see the module.
#[derive(Default)]
pub(super) struct Waiting {
    tables: HashMap<Name, OfTable>,
    /// Published tables whose waiting requests are still to be checked.
    woken: VecDeque<Name>,
}

impl Waiting {
    pub(super) fn is_empty(&self) -> bool {
        self.tables.is_empty()
    }

    /// Nobody waits any more, and nothing is left to be checked.
    pub(super) fn clear(&mut self) {
        debug_assert!(self.handles().next().is_none(), "who waits would wait for ever");
        self.tables.clear();
        self.woken.clear();
    }

    /// Requests that wait.
    #[cfg(any(test, feature = "fuzzing"))]
    pub(super) fn len(&self) -> usize {
        self.tables.values().map(|table| table.waiting.len()).sum()
    }

    pub(super) fn handles(&self) -> impl Iterator<Item = Handle> {
        self.tables.values().flat_map(|table| table.waiting.iter().map(|(_, handle)| *handle))
    }

    /// Adds a request; false if its peer has too many waiting for the table already.
    pub(super) fn enter(&mut self, name: &Name, Waiter { handle, min_version, peer }: Waiter) -> bool {
        let table = match self.tables.get_mut(name) {
            Some(table) => table,
            None => self.tables.entry(name.clone()).or_default(),
        };
        if let Some(peer) = peer {
            let count = table.of_peers.entry(peer).or_default();
            if *count == ROW_WAITS_MAX {
                return false;
            }
            *count += 1;
        }
        table.waiting.insert((min_version, handle));
        true
    }

    pub(super) fn remove(&mut self, name: &Name, Waiter { handle, min_version, peer }: Waiter) {
        let Some(table) = self.tables.get_mut(name) else { return };
        table.waiting.remove(&(min_version, handle));
        if let Some(peer) = peer
            && let Some(count) = table.of_peers.get_mut(&peer)
        {
            *count -= 1;
            if *count == 0 {
                table.of_peers.remove(&peer);
            }
        }
        if table.waiting.is_empty() && !table.is_woken {
            self.tables.remove(name);
        }
    }

    /// A table was published in this version.
    pub(super) fn published(&mut self, name: Name, version: i64) {
        let Some(table) = self.tables.get_mut(&name) else { return };
        if !table.is_woken && table.waiting.first().is_some_and(|(wanted, _)| *wanted <= version) {
            table.is_woken = true;
            self.woken.push_back(name);
        }
    }

    /// True if some requests may be able to proceed.
    pub(super) fn has_woken(&self) -> bool {
        !self.woken.is_empty()
    }

    /// The next request that can proceed, which the caller must remove; `version_of` gives the published version of a table.
    pub(super) fn next_woken(&mut self, version_of: impl Fn(&Name) -> Option<i64>) -> Option<Handle> {
        while let Some(name) = self.woken.front() {
            let table = self.tables.get_mut(name)?;
            let first = table.waiting.first().copied();
            match first.filter(|(wanted, _)| version_of(name) >= Some(*wanted)) {
                Some((_, handle)) => return Some(handle),
                None => {
                    table.is_woken = false;
                    let name = self.woken.pop_front()?;
                    if first.is_none() {
                        self.tables.remove(&name);
                    }
                }
            }
        }
        None
    }

    /// Panics unless each table has waiting requests, or is to be checked.
    #[cfg(any(test, feature = "fuzzing"))]
    pub(super) fn check_invariants(&self) {
        for table in self.tables.values() {
            assert!(table.is_woken || !table.waiting.is_empty(), "a table would be remembered for nobody");
            assert!(table.of_peers.values().sum::<usize>() <= table.waiting.len(), "peers would be charged for others");
        }
        let woken = self.tables.values().filter(|table| table.is_woken).count();
        assert_eq!(woken, self.woken.len(), "those who wait for a table would not be looked at, or twice");
    }

    /// True if a request waits for a table.
    #[cfg(any(test, feature = "fuzzing"))]
    pub(super) fn contains(&self, name: &Name, at: (i64, Handle)) -> bool {
        self.tables.get(name).is_some_and(|table| table.waiting.contains(&at))
    }
}
