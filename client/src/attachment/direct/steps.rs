//! Steps that have ended, and why. No I/O; bounded by [`ENDED_STEPS_MAX`].

use std::collections::BTreeMap;

use crate::limits::ENDED_STEPS_MAX;

/// Steps that have ended and were not cleaned up. If there are too many, the lowest are forgotten; the daemon remembers them.
#[derive(Default)]
pub(super) struct Steps {
    reasons: BTreeMap<i64, Box<str>>,
    /// The highest forgotten step.
    forgotten: Option<i64>,
}

impl Steps {
    /// Why a step has ended, if known.
    #[inline]
    pub(super) fn reason(&self, step: i64) -> Option<&str> {
        self.reasons.get(&step).map(|reason| &**reason)
    }

    /// True if a step has ended, or may have: the daemon knows.
    #[inline]
    pub(super) fn may_have(&self, step: i64) -> bool {
        self.forgotten.is_some_and(|forgotten| step <= forgotten) || self.reasons.contains_key(&step)
    }

    pub(super) fn end(&mut self, step: i64, reason: &str) {
        self.reasons.entry(step).or_insert_with(|| reason.into());
        if self.reasons.len() > ENDED_STEPS_MAX {
            let forgotten = self.reasons.pop_first().map(|(step, _)| step);
            self.forgotten = self.forgotten.max(forgotten);
        }
    }

    /// Lets a step's number be used again.
    pub(super) fn forget(&mut self, step: i64) {
        self.reasons.remove(&step);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_too_many_steps_the_lowest_are_the_daemons_to_know() {
        let mut steps = Steps::default();
        for step in 0..ENDED_STEPS_MAX as i64 + 2 {
            assert!(!steps.may_have(step));
            steps.end(step, &step.to_string());
        }
        assert_eq!((steps.reason(1), steps.reason(2)), (None, Some("2")));
        assert!(steps.may_have(-9) && steps.may_have(1) && steps.may_have(2));
        steps.forget(2);
        assert!(!steps.may_have(2));
    }
}
