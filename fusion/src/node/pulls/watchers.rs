//! The watchers of one key: those that want the oldest version first, and among these in the order of arrival.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use sealane_transport::Handle;
use sealane_transport::session::Wait;

use crate::limits::WATCHERS_SLACK;

/// A pull that waits for a tensor in some version.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Watcher {
    /// The session that pulls; `None` for a pull of this node.
    pub(super) session: Option<Handle>,
    pub(super) wait: Wait,
}

/// A watcher, with its order.
#[derive(Debug)]
struct Entry {
    order: Reverse<(i64, u64)>,
    watcher: Watcher,
}

impl PartialEq for Entry {
    fn eq(&self, other: &Self) -> bool {
        self.order == other.order
    }
}

impl Eq for Entry {}

impl PartialOrd for Entry {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Entry {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.order.cmp(&other.order)
    }
}

/// The watchers of one key; see the module.
#[derive(Debug, Default)]
pub(super) struct Watchers {
    waiting: BinaryHeap<Entry>,
    /// Watchers added so far.
    count: u64,
    /// The number of watchers at which stale ones are purged.
    look_at: usize,
    /// Some are to be told, and the slot is in the store's list of such slots.
    is_woken: bool,
}

impl Watchers {
    /// Adds a watcher. `is_waiting` tells which watchers still wait; it is used to purge a long list.
    pub(super) fn add(&mut self, watcher: Watcher, is_waiting: impl Fn(&Watcher) -> bool) {
        if self.waiting.len() >= self.look_at.max(WATCHERS_SLACK) {
            self.waiting.retain(|entry| is_waiting(&entry.watcher));
            self.look_at = 2 * self.waiting.len() + WATCHERS_SLACK;
        }
        let order = Reverse((watcher.wait.min_version, self.count));
        self.waiting.push(Entry { order, watcher });
        self.count += 1;
    }

    /// A version is there. True if a watcher is to be told, and none was before.
    pub(super) fn wake(&mut self, version: i64) -> bool {
        let wakes = !self.is_woken && self.misses(Some(version));
        self.is_woken |= wakes;
        wakes
    }

    /// The next watcher to be told that this version is there.
    pub(super) fn next(&mut self, version: Option<i64>) -> Option<Watcher> {
        self.is_woken = self.misses(version);
        if self.is_woken { self.waiting.pop().map(|entry| entry.watcher) } else { None }
    }

    /// True if a watcher waits for this version, or an older one.
    pub(super) fn misses(&self, version: Option<i64>) -> bool {
        let first = self.waiting.peek().map(|entry| entry.watcher.wait.min_version);
        first.zip(version).is_some_and(|(wanted, version)| wanted <= version)
    }

    /// Moves all watchers into `into`, in order.
    pub(super) fn take_all(&mut self, into: &mut Vec<Watcher>) {
        let mut all = std::mem::take(&mut self.waiting).into_vec();
        all.sort_unstable_by_key(|entry| Reverse(entry.order));
        into.extend(all.into_iter().map(|entry| entry.watcher));
    }
}
