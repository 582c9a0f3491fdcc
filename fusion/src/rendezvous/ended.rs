//! Steps that were aborted: remembered, so that a send or recv that comes late hears of it too.

use std::collections::VecDeque;

use hashbrown::HashMap;

/// Aborted steps remembered; past this the oldest is forgotten.
const ENDED_STEPS_MAX: usize = 4096;

/// Who a step was aborted for: a task of this side with all its peers, or one pair.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Scope {
    /// All pairs of a task.
    Task(u16),
    /// One pair.
    Pair(u32),
}

/// The reasons of aborted steps, the latest `ENDED_STEPS_MAX`.
#[derive(Default)]
pub struct EndedSteps {
    reasons: HashMap<(Scope, i64), Box<str>>,
    order: VecDeque<(Scope, i64)>,
}

impl EndedSteps {
    /// Remembers an abort.
    pub fn insert(&mut self, scope: Scope, step: i64, reason: &str) {
        if self.reasons.insert((scope, step), reason.into()).is_none() {
            self.order.push_back((scope, step));
        }
        while self.order.len() > ENDED_STEPS_MAX {
            let oldest = self.order.pop_front().expect("longer than the limit");
            self.reasons.remove(&oldest);
        }
    }

    /// True if the step was ended for this very scope.
    pub fn has(&self, scope: Scope, step: i64) -> bool {
        self.reasons.contains_key(&(scope, step))
    }

    /// Why the step ended for this task or pair, if it did.
    #[inline]
    pub fn reason(&self, task: u16, pair: u32, step: i64) -> Option<&str> {
        if self.reasons.is_empty() {
            return None;
        }
        let found =
            self.reasons.get(&(Scope::Task(task), step)).or_else(|| self.reasons.get(&(Scope::Pair(pair), step)));
        found.map(|reason| &**reason)
    }

    /// Forgets a step for the scopes that `pick` chooses: it may be used again.
    pub fn forget(&mut self, step: i64, pick: impl Fn(Scope) -> bool) {
        self.order.retain(|(scope, other)| !(*other == step && pick(*scope)));
        self.reasons.retain(|(scope, other), _| !(*other == step && pick(*scope)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_is_forgotten_and_a_cleaned_step_is_new() {
        let mut ended = EndedSteps::default();
        for step in 0..=ENDED_STEPS_MAX as i64 {
            ended.insert(Scope::Task(1), step, "loss is NaN");
        }
        assert_eq!(ended.reason(1, 0, 0), None);
        assert_eq!(ended.reason(1, 0, 1), Some("loss is NaN"));
        assert_eq!(ended.reason(2, 0, 1), None);
        ended.insert(Scope::Pair(7), 1, "peer");
        assert_eq!(ended.reason(2, 7, 1), Some("peer"));
        ended.forget(1, |scope| scope == Scope::Task(1));
        assert_eq!((ended.reason(1, 0, 1), ended.reason(2, 7, 1)), (None, Some("peer")));
    }
}
