//! Which faults were injected, where, and when; the ledgers are compared with this. Times are those of the machine's clock, in
//! microseconds.

use std::time::Duration;

use super::deeds::{Deed, Harm, Victim};
use crate::hosts::{host_of, is_embedded};
use crate::traffic::Order;

/// How long effects of a fault may be seen after it was undone: calls are repeated up to a second apart, a new process attaches,
/// and the backlog is processed.
pub(crate) const SETTLE: Duration = Duration::from_secs(3);

/// A fault that was injected.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Done {
    pub(crate) deed: Deed,
    pub(crate) began: u64,
    /// `u64::MAX` while it lasts.
    pub(crate) ended: u64,
}

impl Done {
    /// True if it, or its aftermath, could be seen in that time.
    fn touches(&self, from: u64, until: u64) -> bool {
        self.began <= until && from <= self.ended.saturating_add(micros(SETTLE))
    }
}

pub(crate) struct History {
    pub(crate) is_patient: bool,
    pub(crate) start: u64,
    pub(crate) done: Vec<Done>,
}

impl History {
    pub(crate) fn new(is_patient: bool, start: u64) -> History {
        History { is_patient, start, done: Vec::new() }
    }

    /// Records that a fault begins, and returns its index.
    pub(crate) fn begin(&mut self, deed: Deed, began: u64) -> usize {
        self.done.push(Done { deed, began, ended: u64::MAX });
        self.done.len() - 1
    }

    /// Whether a fault affects a task: it, its daemon, its cable, or the pools that it shares with others of its host.
    pub(crate) fn reaches(deed: Deed, task: usize) -> bool {
        let host = host_of(task);
        match deed.victim {
            Victim::Daemon(other) => other == host && !is_embedded(task),
            Victim::Cable(other) => other == host,
            Victim::Task(other) if matches!(deed.harm, Harm::Order(Order::Burst { .. })) => host_of(other) == host,
            Victim::Task(other) => other == task,
        }
    }

    /// The faults that affected one of these tasks, and could be seen in that time.
    pub(crate) fn felt<'a>(&'a self, tasks: &'a [usize], from: u64, until: u64) -> impl Iterator<Item = &'a Done> {
        let reaches = |deed, tasks: &[usize]| tasks.iter().any(|&task| History::reaches(deed, task));
        self.done.iter().filter(move |done| done.touches(from, until) && reaches(done.deed, tasks))
    }

    /// True if no fault that could be seen in that time affected any of these tasks.
    pub(crate) fn is_calm(&self, tasks: &[usize], from: u64, until: u64) -> bool {
        self.felt(tasks, from, until).next().is_none()
    }

    /// How much of that time a task's own process was stopped.
    pub(crate) fn standstill(&self, task: usize, from: u64, until: u64) -> u64 {
        let stood = |done: &&Done| done.deed.stops() && done.deed.victim == Victim::Task(task);
        self.done.iter().filter(stood).map(|done| overlap((done.began, done.ended), (from, until))).sum()
    }

    /// A time as shown in the log.
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
