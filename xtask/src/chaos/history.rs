//! What was done, to whom, and when: what the ledgers are compared with. Times are those of the machine's clock, in
//! microseconds.

use std::time::Duration;

use super::deeds::{Deed, Victim};
use crate::hosts::{Patience, host_of, is_embedded};

/// How long the traces of a deed are seen after it was undone: calls are repeated up to a second apart, a new process
/// attaches, and what piled up is worked off.
pub(crate) const SETTLE: Duration = Duration::from_secs(3);

/// A deed that was done.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Done {
    pub(crate) deed: Deed,
    pub(crate) began: u64,
    /// `u64::MAX` while it lasts.
    pub(crate) ended: u64,
    index: usize,
}

impl Done {
    /// True if it, or what follows from it, was to be seen in that time.
    fn touches(&self, from: u64, until: u64) -> bool {
        self.began <= until && from <= self.ended.saturating_add(micros(SETTLE))
    }
}

pub(crate) struct History {
    pub(crate) patience: Patience,
    pub(crate) start: u64,
    pub(crate) done: Vec<Done>,
}

impl History {
    pub(crate) fn new(patience: Patience, start: u64) -> History {
        History { patience, start, done: Vec::new() }
    }

    pub(crate) fn begin(&mut self, index: usize, deed: Deed, began: u64) {
        self.done.push(Done { deed, began, ended: u64::MAX, index });
    }

    pub(crate) fn end(&mut self, index: usize, at: u64) {
        if let Some(done) = self.done.iter_mut().find(|done| done.index == index) {
            done.ended = at;
        }
    }

    /// Adds what was done later.
    pub(crate) fn append(&mut self, later: History) {
        self.done.extend(later.done);
    }

    /// Whether a deed reaches a task: it, its daemon, its cable, or the pools that it shares with others of its host.
    pub(crate) fn reaches(deed: Deed, task: usize) -> bool {
        let host = host_of(task);
        match (deed, deed.victim()) {
            (_, Victim::Daemon(other)) => other == host && !is_embedded(task),
            (_, Victim::Cable(other)) => other == host,
            (Deed::Burst { .. }, Victim::Task(other)) => host_of(other) == host,
            (_, Victim::Task(other)) => other == task,
        }
    }

    /// The deeds that reached one of these tasks, and could be felt in that time.
    pub(crate) fn felt<'a>(&'a self, tasks: &'a [usize], from: u64, until: u64) -> impl Iterator<Item = &'a Done> {
        let reaches = |deed, tasks: &[usize]| tasks.iter().any(|&task| History::reaches(deed, task));
        self.done.iter().filter(move |done| done.touches(from, until) && reaches(done.deed, tasks))
    }

    /// True if nothing was done to any of these tasks that could be felt in that time.
    pub(crate) fn is_calm(&self, tasks: &[usize], from: u64, until: u64) -> bool {
        self.felt(tasks, from, until).next().is_none()
    }

    /// How much of that time a task's own process stood still.
    pub(crate) fn standstill(&self, task: usize, from: u64, until: u64) -> u64 {
        let stood = |done: &&Done| matches!(done.deed, Deed::StopTask(other) if other == task);
        self.done.iter().filter(stood).map(|done| overlap((done.began, done.ended), (from, until))).sum()
    }

    /// A time as the log shows it.
    pub(crate) fn seconds(&self, at: u64) -> f64 {
        (at as f64 - self.start as f64) / 1e6
    }
}

pub(crate) fn overlap(one: (u64, u64), other: (u64, u64)) -> u64 {
    one.1.min(other.1).saturating_sub(one.0.max(other.0))
}

pub(crate) fn micros(time: Duration) -> u64 {
    time.as_micros() as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hosts::{Cut, TASKS};

    fn history(deeds: &[(Deed, u64, u64)]) -> History {
        let mut history = History::new(Patience::Short, 0);
        for (index, &(deed, began, ended)) in deeds.iter().enumerate() {
            history.begin(index, deed, began);
            history.end(index, ended);
        }
        history
    }

    #[test]
    fn a_deed_reaches_those_who_depend_on_its_victim() {
        let reached = |deed| (0..TASKS).filter(|&task| History::reaches(deed, task)).collect::<Vec<_>>();
        assert_eq!(reached(Deed::KillDaemon(0)), [0, 1]);
        assert_eq!(reached(Deed::Cut(0, Cut::Pulled)), [0, 1, 6]);
        assert_eq!(reached(Deed::StopTask(2)), [2]);
        assert_eq!(reached(Deed::Burst { task: 2, bytes: 1, count: 1 }), [2, 3]);
    }

    #[test]
    fn a_deed_is_felt_until_it_has_settled() {
        let settle = micros(SETTLE);
        let history = history(&[(Deed::KillTask(1), 1000, 2000)]);
        assert!(history.is_calm(&[0, 2], 1000, 2000));
        assert!(history.is_calm(&[1], 0, 999) && !history.is_calm(&[0, 1], 0, 1000));
        assert!(!history.is_calm(&[1], 2000 + settle, u64::MAX) && history.is_calm(&[1], 2001 + settle, u64::MAX));
    }

    #[test]
    fn a_standstill_counts_as_far_as_it_overlaps() {
        let history = history(&[(Deed::StopTask(1), 10, 20), (Deed::StopDaemon(0), 0, 100)]);
        assert_eq!(history.standstill(1, 15, 50), 5);
        assert_eq!(history.standstill(0, 0, 50), 0);
    }
}
