//! When which session needs attention: a heap with at most a few entries per session.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::Instant;

use sealane_transport::Handle;

/// The times at which sessions need attention. A session knows its earliest entry and adds only earlier ones, so the heap does not grow
/// with requests.
#[derive(Default)]
pub(super) struct Schedule {
    heap: BinaryHeap<Reverse<(Instant, Handle)>>,
}

impl Schedule {
    pub(super) fn next(&self) -> Option<Instant> {
        self.heap.peek().map(|Reverse((time, _))| *time)
    }

    #[cfg(any(test, feature = "fuzzing"))]
    pub(super) fn entries(&self) -> Vec<(Instant, Handle)> {
        self.heap.iter().map(|Reverse(entry)| *entry).collect()
    }

    pub(super) fn add(&mut self, time: Instant, peer: Handle) {
        self.heap.push(Reverse((time, peer)));
    }

    pub(super) fn take_due(&mut self, now: Instant) -> Option<(Instant, Handle)> {
        if self.next()? > now {
            return None;
        }
        self.heap.pop().map(|Reverse(due)| due)
    }
}
