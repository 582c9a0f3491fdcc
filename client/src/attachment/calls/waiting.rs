//! Who waits for calls, and until when.

use std::task::Waker;

use sealane_transport::{Destination, Error, Unreceived};

use super::{Aftermath, Calls, Direction, INDEX_MASK, slot::Caller};
use crate::{clock::Tick, limits::CALL_INDEX_BITS};

/// Calls that a future waits for: somebody has to look at the rings for them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Watched {
    all: usize,
    /// Those that end only when the daemon releases a tensor, not by an answer.
    releases: usize,
}

impl Watched {
    /// A future waits for a call of that direction, or no longer.
    pub(super) fn changes(&mut self, direction: Direction, was: bool, is: bool) {
        let released = direction.is_released();
        self.all = self.all + usize::from(is) - usize::from(was);
        self.releases = self.releases + usize::from(is && released) - usize::from(was && released);
    }
}

impl Calls {
    /// Calls that a future waits for.
    pub(in crate::attachment) fn watched(&self) -> usize {
        self.watched.all
    }

    /// Those among them that end only when the daemon releases a tensor, not by an answer.
    pub(in crate::attachment) fn watched_releases(&self) -> usize {
        self.watched.releases
    }

    /// True if the call ends with an answer.
    pub(in crate::attachment) fn is_answered(&self, call: u32) -> bool {
        let of_slot = || self.slots.get((call & INDEX_MASK) as usize).map(|slot| slot.direction);
        let direction = self.batches.about(call).map(|(direction, _)| direction).or_else(of_slot);
        direction.is_some_and(|direction| !direction.is_released())
    }

    /// Wakes `waker` when the call ends; `watched` if only the driver looks at the rings meanwhile.
    pub(in crate::attachment) fn wake_at_end(
        &mut self,
        call: u32,
        waker: &Waker,
        watched: bool,
        after: &mut Aftermath,
    ) {
        if self.batches.wake_at_end(call, (waker, watched), &mut self.watched, after) {
            return;
        }
        let Some(slot) = self.slot(call).filter(|slot| slot.caller == Caller::Waiting) else { return };
        if !slot.waker.as_ref().is_some_and(|known| known.will_wake(waker)) {
            // Dropping a replaced waker may run code of its owner, so it is not dropped here.
            after.wakers.extend(slot.waker.replace(waker.clone()));
        }
        self.watch_for(call, watched);
    }

    /// Notes whether a future waits for the call.
    #[inline]
    pub(super) fn watch_for(&mut self, call: u32, watched: bool) {
        let slot = &mut self.slots[(call & INDEX_MASK) as usize];
        let was = std::mem::replace(&mut slot.watched, watched);
        self.watched.changes(slot.direction, was, watched);
    }

    /// Nobody sleeps for the call any more.
    pub(in crate::attachment) fn wake_nobody(&mut self, call: u32) {
        if !self.batches.wake_nobody(call)
            && let Some(slot) = self.slot(call)
        {
            slot.waker = None;
        }
    }

    /// When the daemon must have ended the call.
    pub(in crate::attachment) fn deadline(&mut self, call: u32) -> Tick {
        match self.batches.about(call) {
            Some((_, deadline)) => deadline,
            None => self.slot(call).map_or(Tick::NEVER, |slot| slot.deadline),
        }
    }

    /// Ends a call that the daemon does not answer: the caller is told, the memory stays with the daemon.
    pub(in crate::attachment) fn overdue(&mut self, call: u32, error: Error, after: &mut Aftermath) {
        let Some(slot) = self.slot(call) else { return };
        if slot.caller != Caller::Waiting {
            return;
        }
        if slot.daemon.is_here() {
            return self.end_untold(call, error, after);
        }
        let (destination, kept) = std::mem::take(&mut slot.memory).apart();
        slot.memory = kept;
        let destination = destination.map(Destination::into_memory);
        slot.failure = Some(Box::new(Unreceived { error, destination }));
        // Its caller may write the destination from now on.
        slot.keeps &= !slot.borrowed;
        self.end(call, after);
        self.unset_aside(call, after);
    }

    /// Ends every call that a future waits for and that should have ended before `then`.
    pub(in crate::attachment) fn sweep(&mut self, then: Tick, error: impl Fn() -> Error, after: &mut Aftermath) {
        self.take_watched_apart(then);
        for index in 0..self.slots.len() {
            let slot = &self.slots[index];
            if slot.watched && slot.deadline < then {
                self.overdue(slot.generation << CALL_INDEX_BITS | index as u32, error(), after);
            }
        }
    }
}
