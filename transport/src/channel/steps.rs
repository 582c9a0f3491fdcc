//! Steps that have ended, and why.
//!
//! Limits: [`ENDED_STEPS_MAX`] reasons; of more steps, the lowest are forgotten, and the switch knows of them.

use std::collections::BTreeMap;

/// Most steps whose ends a task remembers.
pub const ENDED_STEPS_MAX: usize = 1024;

/// Steps that have ended and were not cleaned up.
#[derive(Debug, Clone, Default)]
pub struct Steps {
    reasons: BTreeMap<i64, Box<str>>,
    /// The highest forgotten step.
    forgotten: Option<i64>,
}

impl Steps {
    /// True if no step has ended.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.reasons.is_empty() && self.forgotten.is_none()
    }

    /// Why a step has ended, if that is known.
    pub fn reason(&self, step: i64) -> Option<&str> {
        self.reasons.get(&step).map(|reason| &**reason)
    }

    /// True if a step has ended, or may have ended and was forgotten.
    pub fn may_have(&self, step: i64) -> bool {
        self.forgotten.is_some_and(|forgotten| step <= forgotten) || self.reasons.contains_key(&step)
    }

    /// The steps that are known to have ended, and why.
    pub fn iter(&self) -> impl Iterator<Item = (i64, &str)> {
        self.reasons.iter().map(|(step, reason)| (*step, &**reason))
    }

    /// Notes the end of a step. The first reason counts.
    pub fn end(&mut self, step: i64, reason: &str) {
        self.reasons.entry(step).or_insert_with(|| reason.into());
        if self.reasons.len() > ENDED_STEPS_MAX {
            let forgotten = self.reasons.pop_first().map(|(step, _)| step);
            self.forgotten = self.forgotten.max(forgotten);
        }
    }

    /// Lets the number of a step be used again.
    pub fn forget(&mut self, step: i64) {
        self.reasons.remove(&step);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lowest_of_too_many_steps_are_forgotten() {
        let mut steps = Steps::default();
        for step in 0..ENDED_STEPS_MAX as i64 + 2 {
            assert!(!steps.may_have(step));
            steps.end(step, &step.to_string());
        }
        assert_eq!((steps.reason(1), steps.reason(2)), (None, Some("2")));
        assert!(steps.may_have(-9) && steps.may_have(1) && steps.may_have(2));
        steps.forget(2);
        assert!(!steps.may_have(2) && !steps.is_empty());
    }
}
