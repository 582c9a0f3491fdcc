//! Calls of a lane by when something is to be done for them. No I/O; about as long as the most calls that waited at once.

use std::collections::VecDeque;

use sealane_transport::shm::limits::LANE_ENTRIES;

use crate::clock::Tick;

/// Length from which on the whole queue is searched for calls that have ended.
const SEARCHED_FROM: usize = 2 * LANE_ENTRIES;

/// A queue of calls. It does not hear of their ends: whoever uses it asks whether a call still waits.
pub(super) struct Due {
    calls: VecDeque<(Tick, u32)>,
    /// When the queue has grown to this length, it is searched.
    searched_at: usize,
}

impl Default for Due {
    fn default() -> Self {
        Self { calls: VecDeque::new(), searched_at: SEARCHED_FROM }
    }
}

impl Due {
    /// The first call, and when it is due.
    #[inline]
    pub(super) fn first(&self) -> Option<(Tick, u32)> {
        self.calls.front().copied()
    }

    #[inline]
    pub(super) fn pop(&mut self) {
        self.calls.pop_front();
    }

    pub(super) fn calls(&self) -> impl Iterator<Item = u32> {
        self.calls.iter().map(|(_, call)| *call)
    }

    /// Drops the first calls that do not wait any more. Call this before others are added.
    ///
    /// The first one may wait long because the daemon does not read; then the rest is searched whenever the queue has doubled.
    #[inline]
    pub(super) fn forget(&mut self, mut waits: impl FnMut(u32) -> bool) {
        while self.calls.front().is_some_and(|(_, first)| !waits(*first)) {
            self.calls.pop_front();
        }
        if self.calls.len() >= self.searched_at {
            self.calls.retain(|(_, call)| waits(*call));
            self.searched_at = SEARCHED_FROM.max(2 * self.calls.len());
        }
    }

    /// Adds a call, usually behind all others.
    #[inline(always)]
    pub(super) fn push(&mut self, due: Tick, call: u32) {
        match self.calls.back() {
            Some((last, _)) if *last > due => self.push_before(due, call),
            _ => self.calls.push_back((due, call)),
        }
    }

    #[cold]
    fn push_before(&mut self, due: Tick, call: u32) {
        let place = self.calls.partition_point(|(other, _)| *other <= due);
        self.calls.insert(place, (due, call));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_are_queued_by_when_they_are_due_and_those_that_have_ended_take_no_room() {
        let (mut queue, begun) = (Due::default(), Tick::now());
        for call in 0..20 * LANE_ENTRIES as u32 {
            queue.forget(|call| call == 3);
            queue.push(begun.later(call.into()), call);
            assert!(queue.calls.len() <= SEARCHED_FROM);
        }
        assert_eq!(queue.first(), Some((begun.later(3), 3)), "the one that waits is the first");
        queue.push(begun, 7);
        queue.push(begun.later(3), 8);
        let first: Vec<u32> = queue.calls().take(3).collect();
        assert_eq!(first, [7, 3, 8], "of those that are due together, the last is behind");
    }
}
