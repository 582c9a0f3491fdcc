//! What tasks have published: when each tensor lay in which store, and what the stores must say.

use std::collections::BTreeMap;
use std::time::Duration;

use sealane_fusion::{Buffer, Code, Tensor};

use super::run::Simulation;
use super::workload;

pub(super) struct Publication {
    pub(super) task: usize,
    pub(super) key: u32,
    pub(super) version: i64,
    pub(super) bytes: usize,
    /// The process that published it.
    pub(super) process: u32,
    /// When it entered and left the store, by shard.
    pub(super) lay: Vec<Option<(Duration, Option<Duration>)>>,
}

#[derive(Default)]
pub(super) struct Published {
    pub(super) all: Vec<Publication>,
    /// What the stores hold now, by task, key and shard.
    here: BTreeMap<(usize, u32, usize), usize>,
    /// The last version that a process published, by task and key; removed with the process.
    latest: BTreeMap<(usize, u32), i64>,
}

impl Published {
    fn leaves(&mut self, at: (usize, u32, usize), now: Duration) -> Option<usize> {
        let publication = self.here.remove(&at)?;
        let (_, until) = self.all[publication].lay[at.2].as_mut().expect("it lies there");
        *until = Some(now);
        Some(publication)
    }

    /// The last version of a key that the task's process published; 0 if there is none.
    pub(super) fn newest(&self, task: usize, key: u32) -> i64 {
        self.latest.get(&(task, key)).copied().unwrap_or(0)
    }

    /// True if a publication lay in any store at some time from `from` to `to`.
    pub(super) fn lay_within(&self, publication: usize, from: Duration, to: Duration) -> bool {
        let lay = self.all[publication].lay.iter().flatten();
        lay.into_iter().any(|&(since, until)| since <= to && until.is_none_or(|until| until >= from))
    }

    /// True if all tensors in a publication's place at some time from `from` to `to` are of its length.
    pub(super) fn are_alike(&self, publication: usize, from: Duration, to: Duration) -> bool {
        let Publication { task, key, bytes, .. } = self.all[publication];
        let others = self.all.iter().enumerate().filter(|(_, other)| (other.task, other.key) == (task, key));
        others.into_iter().all(|(number, other)| other.bytes == bytes || !self.lay_within(number, from, to))
    }

    /// True if a tensor of a task's key, of `min_version` or newer, lay in the store of `shard` without a break for at least `time` between
    /// `from` and `to`; with `still`, only one that lies there now counts.
    pub(super) fn lay_long_enough(
        &self,
        (task, key, shard): (usize, u32, usize),
        min_version: i64,
        (from, to): (Duration, Duration),
        time: Duration,
        still: bool,
    ) -> bool {
        let of = |one: &&Publication| (one.task, one.key) == (task, key) && one.version >= min_version;
        self.all.iter().filter(of).any(|one| match one.lay.get(shard) {
            Some(&Some((_, Some(_)))) if still => false,
            Some(&Some((since, until))) => since.max(from) + time < until.unwrap_or(to).min(to),
            _ => false,
        })
    }
}

/// The name of a key; some are so long that a plan does not fit in one frame.
pub(super) fn key(number: u32) -> String {
    let padding = if number % 7 == 3 { 3000 } else { 0 };
    format!("param{number}/{}", "x".repeat(padding))
}

impl Simulation {
    /// A task publishes a tensor on every shard, with a version `rise` above its last one of that key.
    pub(super) fn publish(&mut self, task: usize, number: u32, rise: i64, bytes: usize) -> Result<(), String> {
        let host = self.host_of(task);
        if !self.serves(host, task) {
            return Ok(());
        }
        let shards = self.hosts[host].seats.len();
        let lies_everywhere = (0..shards).all(|shard| self.published.here.contains_key(&(task, number, shard)));
        // A task's versions must rise, though a store from which the tensor was withdrawn would accept an older one.
        let rise = if lies_everywhere { rise } else { rise.max(1) };
        let version = self.published.newest(task, number) + rise;
        let publication = self.published.all.len();
        self.trace
            .note(self.now, format_args!("task {task} publishes key {number} version {version} as {publication}"));
        let slab = self.hosts[host].seats[0].node.send_slab();
        // Memory of a shard's slab stays on that shard.
        let from_slab = if shards == 1 { slab.allocate(bytes).ok() } else { None };
        let mut buffer = from_slab.unwrap_or_else(|| Buffer::from_vec(vec![0; bytes]));
        workload::fill(workload::seed_of_published(task, number, version), publication, &mut buffer);
        let tensor = Tensor::new(workload::meta(publication, bytes), buffer).map_err(|error| error.to_string())?;
        let tensor = tensor.into_shared();
        let (process, lay) = (self.hosts[host].process, vec![None; shards]);
        self.published.all.push(Publication { task, key: number, version, bytes, process, lay });
        for shard in 0..shards {
            let at = (task, number, shard);
            let before = self.published.here.get(&at).map(|&before| self.published.all[before].version);
            let place = self.place_of(task);
            let node = &mut self.hosts[host].seats[shard].node;
            match node.publish(place, &key(number), version, tensor.share()) {
                Ok(()) if before.is_some_and(|before| before > version) => {
                    return Err(format!("publication {publication} took the place of a newer one"));
                }
                Ok(()) => {
                    self.published.leaves(at, self.now);
                    self.published.here.insert(at, publication);
                    self.published.all[publication].lay[shard] = Some((self.now, None));
                    self.published.latest.insert((task, number), version);
                }
                Err(error) => {
                    let explained = match error.code() {
                        Code::InvalidArgument => before.is_some_and(|before| before > version),
                        Code::ResourceExhausted => self.climate.scarce && before.is_none(),
                        _ => false,
                    };
                    if !explained {
                        return Err(format!("publication {publication} failed: {error}"));
                    }
                }
            }
            self.settle(host, shard)?;
        }
        Ok(())
    }

    pub(super) fn withdraw(&mut self, task: usize, number: u32) -> Result<(), String> {
        let host = self.host_of(task);
        if !self.serves(host, task) {
            return Ok(());
        }
        self.trace.note(self.now, format_args!("task {task} withdraws key {number}"));
        for shard in 0..self.hosts[host].seats.len() {
            let place = self.place_of(task);
            let lay = self.published.leaves((task, number, shard), self.now).is_some();
            if self.hosts[host].seats[shard].node.withdraw(place, &key(number)) != lay {
                return Err(format!("withdrawing key {number} of task {task}: it lay there: {lay}"));
            }
            self.settle(host, shard)?;
        }
        Ok(())
    }

    pub(super) fn withdraw_all(&mut self) -> Result<(), String> {
        while let Some(&(task, number, _)) = self.published.here.keys().next() {
            self.withdraw(task, number)?;
        }
        Ok(())
    }

    /// A process has ended, and what it had published is gone.
    pub(super) fn forget_published_of(&mut self, host: usize) {
        let tasks_per_host = self.climate.tasks_per_host;
        let is_of = |task: usize| task / tasks_per_host == host;
        let gone: Vec<_> = self.published.here.keys().copied().filter(|(task, ..)| is_of(*task)).collect();
        for at in gone {
            self.published.leaves(at, self.now);
        }
        self.published.latest.retain(|(task, _), _| !is_of(*task));
    }

    /// Checks that no store keeps a key once nothing is published and no plan is open.
    pub(super) fn look_for_kept_keys(&self) -> Result<(), String> {
        for (index, host) in self.hosts.iter().enumerate() {
            for (shard, seat) in host.seats.iter().enumerate() {
                let kept = seat.node.keys_in_store();
                if kept > 0 {
                    return Err(format!("host {index} shard {shard} keeps {kept} keys when all plans are closed"));
                }
            }
        }
        Ok(())
    }
}
