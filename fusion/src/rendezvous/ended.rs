//! Aborted steps: remembered, so that a late send or recv is told too.
//!
//! Bounded by [`ENDED_STEPS_MAX`] records and by [`ENDED_REASON_BYTES`] of text each. At that limit a scope that has at least an equal
//! share loses its own oldest record, otherwise the scope with the most does: nobody can make this side forget what another has aborted
//! within its share.

use std::collections::VecDeque;
use std::sync::Arc;

use hashbrown::HashMap;

use crate::limits::{ENDED_ORDER_SLACK, ENDED_REASON_BYTES, ENDED_STEPS_MAX};

/// The scope of an abort: a task of this side with all its peers, or one pair.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Scope {
    /// All pairs of a task.
    Task(u16),
    Pair(u32),
}

/// The aborted steps of one scope.
#[derive(Default)]
struct Steps {
    /// By step: its number in `order`, and the reason.
    reasons: HashMap<i64, (u64, Arc<str>)>,
    /// Oldest first; an entry whose number is not that of its step is stale.
    order: VecDeque<(u64, i64)>,
    last: u64,
}

/// The reasons of aborted steps.
#[derive(Default)]
pub struct EndedSteps {
    owners: HashMap<Scope, Steps>,
    count: usize,
}

impl EndedSteps {
    /// Remembers an abort, unless the step is remembered already: the first reason stays.
    pub fn insert(&mut self, scope: Scope, step: i64, reason: &Arc<str>) {
        if self.has(scope, step) {
            return;
        }
        if self.count >= ENDED_STEPS_MAX {
            self.make_room(scope);
        }
        let steps = self.owners.entry(scope).or_default();
        steps.last += 1;
        steps.reasons.insert(step, (steps.last, reason.clone()));
        steps.order.push_back((steps.last, step));
        self.count += 1;
    }

    /// A reason, cut to the length that is kept, to be shared by all for whom a step ends.
    pub fn reason_to_keep(reason: &str) -> Arc<str> {
        reason[..reason.floor_char_boundary(ENDED_REASON_BYTES)].into()
    }

    /// True if the step was ended for exactly this scope.
    pub fn has(&self, scope: Scope, step: i64) -> bool {
        self.owners.get(&scope).is_some_and(|steps| steps.reasons.contains_key(&step))
    }

    /// The reason with which the step ended for this task or pair, if it did.
    #[inline]
    pub fn reason(&self, task: u16, pair: u32, step: i64) -> Option<&str> {
        if self.owners.is_empty() {
            return None;
        }
        let of = |scope| Some(&*self.owners.get(&scope)?.reasons.get(&step)?.1);
        of(Scope::Task(task)).or_else(|| of(Scope::Pair(pair)))
    }

    /// Forgets a step of a scope, which may be used again.
    pub fn forget(&mut self, scope: Scope, step: i64) {
        let Some(steps) = self.owners.get_mut(&scope) else { return };
        if steps.reasons.remove(&step).is_some() {
            debug_assert!(self.count > 0, "steps would be remembered without bound");
            self.count -= 1;
            steps.tidy();
        }
        if steps.reasons.is_empty() {
            self.owners.remove(&scope);
        }
    }

    /// Panics unless the records are counted, and can be forgotten in their order.
    #[cfg(any(test, feature = "fuzzing"))]
    pub(crate) fn check_invariants(&self) {
        let remembered: usize = self.owners.values().map(|steps| steps.reasons.len()).sum();
        assert_eq!(self.count, remembered, "too little would be remembered, or without bound");
        assert!(self.count <= ENDED_STEPS_MAX, "peers could make this side remember without bound");
        for (scope, steps) in &self.owners {
            assert!(!steps.reasons.is_empty(), "{scope:?} would have a share and nothing to lose");
            let ordered = steps.order.iter().filter(|entry| steps.is_remembered(**entry)).count();
            assert_eq!(ordered, steps.reasons.len(), "a step of {scope:?} would never be forgotten");
        }
    }

    /// Evicts the oldest step of `scope` if that is at its fair share, else of the scope with the most.
    fn make_room(&mut self, scope: Scope) {
        let share = ENDED_STEPS_MAX / self.owners.len();
        let own = self.owners.get(&scope).map_or(0, |steps| steps.reasons.len());
        // Evaluated only while `scope` is below its share. Among equals the first, since the order of a hash map is arbitrary.
        let most = || self.owners.iter().max_by_key(|(scope, steps)| (steps.reasons.len(), std::cmp::Reverse(**scope)));
        let from = if own >= share { scope } else { *most().expect("the memory is full").0 };
        let oldest = self.owners.get_mut(&from).and_then(Steps::oldest);
        if let Some(step) = oldest {
            self.forget(from, step);
        }
        debug_assert!(self.count < ENDED_STEPS_MAX, "one more step would be remembered than there is room for");
    }
}

impl Steps {
    fn is_remembered(&self, (number, step): (u64, i64)) -> bool {
        self.reasons.get(&step).is_some_and(|(last, _)| *last == number)
    }

    fn oldest(&mut self) -> Option<i64> {
        while let Some(&first) = self.order.front() {
            if self.is_remembered(first) {
                return Some(first.1);
            }
            self.order.pop_front();
        }
        None
    }

    fn tidy(&mut self) {
        if self.order.len() > 2 * self.reasons.len() + ENDED_ORDER_SLACK {
            let order = std::mem::take(&mut self.order);
            self.order = order.into_iter().filter(|&entry| self.is_remembered(entry)).collect();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOUD: Scope = Scope::Task(1);

    fn reason() -> Arc<str> {
        EndedSteps::reason_to_keep("loss is NaN")
    }

    #[test]
    fn a_cleaned_step_is_new_for_those_who_cleaned_it() {
        let mut ended = EndedSteps::default();
        ended.insert(LOUD, 1, &reason());
        ended.insert(LOUD, 1, &EndedSteps::reason_to_keep("said again"));
        ended.insert(Scope::Pair(7), 1, &EndedSteps::reason_to_keep("peer"));
        assert_eq!((ended.reason(1, 0, 1), ended.reason(2, 0, 1)), (Some("loss is NaN"), None));
        assert_eq!(ended.reason(2, 7, 1), Some("peer"));
        ended.forget(LOUD, 1);
        ended.forget(LOUD, 1);
        assert_eq!((ended.reason(1, 0, 1), ended.reason(2, 7, 1)), (None, Some("peer")));
        assert_eq!((ended.count, ended.owners.len()), (1, 1));
    }

    #[test]
    fn who_aborts_on_and_on_forgets_its_own_steps_and_nobody_elses() {
        let (mut ended, reason) = (EndedSteps::default(), reason());
        for step in 0..100 {
            ended.insert(Scope::Pair(3), step, &reason);
        }
        for step in 0..2 * ENDED_STEPS_MAX as i64 {
            ended.insert(LOUD, step, &reason);
        }
        assert_eq!(ended.count, ENDED_STEPS_MAX);
        assert!((0..100).all(|step| ended.has(Scope::Pair(3), step)));
        assert!(!ended.has(LOUD, 0) && ended.has(LOUD, 2 * ENDED_STEPS_MAX as i64 - 1), "the oldest goes first");
        // A task that has fewer entries takes room from the one that has most, up to an equal share.
        for step in 0..ENDED_STEPS_MAX as i64 {
            ended.insert(Scope::Task(2), step, &reason);
        }
        assert!((0..100).all(|step| ended.has(Scope::Pair(3), step)));
        assert_eq!(ended.owners[&Scope::Task(2)].reasons.len(), ENDED_STEPS_MAX / 3);
        assert_eq!(ended.count, ENDED_STEPS_MAX);
    }

    #[test]
    fn steps_that_come_and_go_leave_nothing_behind() {
        let (mut ended, long) = (EndedSteps::default(), "ü".repeat(ENDED_REASON_BYTES));
        let reason = EndedSteps::reason_to_keep(&long);
        assert_eq!(reason.len(), ENDED_REASON_BYTES);
        ended.insert(LOUD, -1, &reason);
        for step in 0..1000 {
            ended.insert(LOUD, step, &reason);
            ended.forget(LOUD, step);
            assert!(ended.owners[&LOUD].order.len() <= 2 + ENDED_ORDER_SLACK);
        }
        ended.insert(LOUD, 1, &reason);
        ended.forget(LOUD, -1);
        assert_eq!(ended.owners.get_mut(&LOUD).and_then(Steps::oldest), Some(1));
        ended.forget(LOUD, 1);
        assert_eq!((ended.count, ended.owners.len()), (0, 0));
    }
}
