//! The endpoint map grows while tasks work: its last task joins, and each host loads the new map at a time of its own. Unchanged maps are
//! loaded again, too.

use std::sync::Arc;
use std::time::Duration;

use sealane_fusion::EndpointMap;

use super::climate::MAP_SPREADS;
use super::run::Simulation;

impl Simulation {
    fn newcomer(&self) -> Option<usize> {
        self.climate.grows.then(|| self.tasks() - 1)
    }

    pub(super) fn is_newcomer(&self, task: usize) -> bool {
        self.newcomer() == Some(task)
    }

    /// True if the map that a host has loaded names a task.
    pub(super) fn knows(&self, host: usize, task: usize) -> bool {
        !self.is_newcomer(task) || self.hosts[host].learned.is_some()
    }

    /// True if the process now running on a host serves a task.
    pub(super) fn serves(&self, host: usize, task: usize) -> bool {
        self.hosts[host].runs() && self.host_of(task) == host && self.knows(host, task)
    }

    /// True while some host may not know one of two tasks yet.
    pub(super) fn is_news(&self, one: usize, other: usize) -> bool {
        self.was_news(one, other, self.now)
    }

    /// True if some host may not have known one of two tasks at `then`.
    pub(super) fn was_news(&self, one: usize, other: usize, then: Duration) -> bool {
        let is_late = |host: usize| self.hosts[host].learned.is_none_or(|when| then <= when + MAP_SPREADS);
        (self.is_newcomer(one) || self.is_newcomer(other))
            && [one, other].into_iter().any(|task| is_late(self.host_of(task)))
    }

    pub(super) fn map_of(&self, host: usize) -> Arc<EndpointMap> {
        let names = (0..self.tasks()).filter(|&task| self.knows(host, task));
        let entries = names.map(|task| (self.task_name(task), self.address(self.host_of(task))));
        let entries = entries.chain(self.climate.liar.then(|| self.liar()));
        Arc::new(EndpointMap::from_entries(entries).expect("no task twice"))
    }

    pub(super) fn load_map(&mut self, host: usize) -> Result<(), String> {
        let newcomer = self.newcomer().filter(|&task| !self.knows(host, task) && self.host_of(task) == host);
        let now: Duration = self.now;
        self.trace.note(now, format_args!("host {host} loads its map"));
        self.hosts[host].learned.get_or_insert(now);
        for shard in 0..self.hosts[host].seats.len() {
            let more = newcomer.map(|task| (self.task_name(task), 0)).into_iter().collect();
            let map = self.map_of(host);
            self.hosts[host].seats[shard].node.set_map(map, more).map_err(|error| error.to_string())?;
            self.settle(host, shard)?;
        }
        Ok(())
    }
}
