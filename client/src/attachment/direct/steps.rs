//! Steps that have ended, and why. No I/O; bounded by [`ENDED_STEPS_MAX`].

use std::collections::BTreeMap;

use crate::limits::ENDED_STEPS_MAX;

/// Steps that have ended and were not cleaned up. Of more than may be, the lowest are forgotten: the daemon remembers them.
#[derive(Default)]
pub(super) struct Steps(BTreeMap<i64, Box<str>>);

impl Steps {
    /// Why a step has ended, if it has.
    #[inline]
    pub(super) fn reason(&self, step: i64) -> Option<&str> {
        self.0.get(&step).map(|reason| &**reason)
    }

    pub(super) fn end(&mut self, step: i64, reason: &str) {
        self.0.entry(step).or_insert_with(|| reason.into());
        if self.0.len() > ENDED_STEPS_MAX {
            self.0.pop_first();
        }
    }

    /// It may be used again.
    pub(super) fn forget(&mut self, step: i64) {
        self.0.remove(&step);
    }
}
