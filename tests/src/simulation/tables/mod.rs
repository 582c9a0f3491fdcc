//! The tables of tasks and the pulls of their rows, as tasks publish, write and pull them. What a pull may report is in `verdict.rs`.

mod memory;
mod verdict;

use std::collections::BTreeMap;
use std::time::Duration;

use sealane_fusion::node::{PullRowsRequest, RecvWaiter, Ticket};
use sealane_fusion::{Code, RecvOutcome};
use sealane_transport::limits::LOCKS_SUFFIX;
use sealane_transport::named_rows::NamedRowsBuf;

use super::run::Simulation;
use super::workload;
use memory::Memory;

/// Locks of a table: so many that a store does not copy them, but fewer than some tables have rows.
const LOCKS: usize = 256;

/// A write of a row, and until when the table held it.
struct Write {
    task: usize,
    key: u32,
    row: u64,
    process: u32,
    until: Option<Duration>,
}

struct Version {
    task: usize,
    key: u32,
    version: i64,
    process: u32,
    /// When it entered and left the store, by shard.
    lay: Vec<Option<(Duration, Option<Duration>)>>,
}

/// A table of a process.
struct Table {
    memory: Memory,
    /// The last write of each row.
    rows: Vec<usize>,
    /// The newest version that was published, or could not be for lack of room.
    newest: i64,
    /// The row that is half written, and since when.
    held: Option<(u64, Duration)>,
}

/// A pull of rows of one task's tables.
pub(super) struct Ask {
    producer: usize,
    consumer: usize,
    /// The keys of the tables, and the rows of each.
    tables: Vec<(u32, Vec<u64>)>,
    host: usize,
    shard: usize,
    min_version: i64,
    issued: Duration,
    deadline: Duration,
    ticket: Option<Ticket>,
    receiver: oneshot::Receiver<RecvOutcome>,
}

#[derive(Default)]
pub(super) struct Tables {
    here: BTreeMap<(usize, u32), Table>,
    writes: Vec<Write>,
    versions: Vec<Version>,
    /// Times during which a row was half written: task, key, start and end.
    held: Vec<(usize, u32, Duration, Duration)>,
    open: BTreeMap<usize, Ask>,
    /// Counts of rows that came, and of pulls that failed.
    pub(super) rows: usize,
    pub(super) failed: usize,
    /// The last pull that ended, and whether it brought its rows.
    last: Option<(usize, bool)>,
}

impl Tables {
    /// Any pull that never ended.
    pub(super) fn left(&self) -> Option<usize> {
        self.open.keys().next().copied()
    }

    /// True if a pull brought its rows, false if it failed; `None` while it has not ended.
    pub(super) fn outcome(&self, ask: usize) -> Option<bool> {
        self.last.filter(|(last, _)| *last == ask && !self.open.contains_key(&ask)).map(|(_, well)| well)
    }

    /// The last version of a table that the task's process published; 0 if there is none.
    fn newest(&self, task: usize, key: u32) -> i64 {
        self.here.get(&(task, key)).map_or(0, |table| table.newest)
    }

    /// What a store held of a table leaves it.
    fn leave(&mut self, (task, key): (usize, u32), shard: usize, now: Duration) {
        let of = |version: &&mut Version| (version.task, version.key) == (task, key);
        for version in self.versions.iter_mut().filter(of) {
            if let Some(Some((_, until @ None))) = version.lay.get_mut(shard) {
                *until = Some(now);
            }
        }
    }
}

/// How many rows a table has, and how many bytes each has: so large in total that a store does not copy them.
pub(super) fn shape(key: u32) -> (u64, usize) {
    [(64, 16), (300, 64), (100, 1000)][key as usize % 3]
}

fn name(key: u32) -> String {
    format!("table{key}")
}

impl Simulation {
    /// A task publishes a table, or the next version of it.
    pub(super) fn publish_table(&mut self, task: usize, key: u32) -> Result<(), String> {
        let host = self.host_of(task);
        if !self.serves(host, task) {
            return Ok(());
        }
        let (process, (rows, row_bytes)) = (self.hosts[host].process, shape(key));
        let mut is_new = false;
        self.tables.here.entry((task, key)).or_insert_with(|| {
            is_new = true;
            let memory = Memory::new(rows, row_bytes, LOCKS);
            Table { memory, rows: vec![usize::MAX; rows as usize], newest: 0, held: None }
        });
        if is_new {
            (0..rows).for_each(|row| self.write_row((task, key), row));
        }
        let table = self.tables.here.get_mut(&(task, key)).expect("it is there now");
        table.newest += 1;
        let (version, [tensor, locks]) = (table.newest, table.memory.tensors()?);
        self.trace.note(self.now, format_args!("task {task} publishes table {key} as version {version}"));
        let shards = self.hosts[host].seats.len();
        let number = self.tables.versions.len();
        self.tables.versions.push(Version { task, key, version, process, lay: vec![None; shards] });
        for shard in 0..shards {
            let (place, name) = (self.place_of(task), name(key));
            let node = &mut self.hosts[host].seats[shard].node;
            let published = node
                .publish(place, &format!("{name}{LOCKS_SUFFIX}"), version, locks.share())
                .and_then(|()| node.publish(place, &name, version, tensor.share()));
            match published {
                Ok(()) => {
                    self.tables.leave((task, key), shard, self.now);
                    self.tables.versions[number].lay[shard] = Some((self.now, None));
                }
                Err(error) if error.code() == Code::ResourceExhausted && self.climate.scarce => {}
                Err(error) => return Err(format!("table {key} of task {task} was not published: {error}")),
            }
            self.settle(host, shard)?;
        }
        Ok(())
    }

    pub(super) fn withdraw_table(&mut self, task: usize, key: u32) -> Result<(), String> {
        let host = self.host_of(task);
        if !self.serves(host, task) || !self.tables.here.contains_key(&(task, key)) {
            return Ok(());
        }
        self.trace.note(self.now, format_args!("task {task} withdraws table {key}"));
        for shard in 0..self.hosts[host].seats.len() {
            let (place, name) = (self.place_of(task), name(key));
            let node = &mut self.hosts[host].seats[shard].node;
            node.withdraw(place, &name);
            node.withdraw(place, &format!("{name}{LOCKS_SUFFIX}"));
            self.tables.leave((task, key), shard, self.now);
            self.settle(host, shard)?;
        }
        // The memory of the table is still written to: gathers from it go on.
        Ok(())
    }

    pub(super) fn withdraw_tables(&mut self) -> Result<(), String> {
        let all: Vec<_> = self.tables.here.keys().copied().collect();
        all.into_iter().try_for_each(|(task, key)| self.withdraw_table(task, key))
    }

    /// A task writes rows of its table, if it has one. A row that is half written is completed first.
    pub(super) fn write_rows(&mut self, task: usize, key: u32, rows: &[u64]) {
        self.end_row(task, key);
        if self.tables.here.contains_key(&(task, key)) {
            self.trace.note(self.now, format_args!("task {task} writes {} rows of table {key}", rows.len()));
            rows.iter().for_each(|&row| self.write_row((task, key), row));
        }
    }

    fn write_row(&mut self, at @ (task, key): (usize, u32), row: u64) {
        let (number, process) = (self.tables.writes.len(), self.hosts[self.host_of(task)].process);
        let table = self.tables.here.get_mut(&at).expect("the caller has looked");
        let mut bytes = vec![0; shape(key).1];
        workload::fill(workload::seed_of_row(task, key, row), number, &mut bytes);
        table.memory.write(row, &bytes);
        let before = std::mem::replace(&mut table.rows[row as usize], number);
        if let Some(before) = self.tables.writes.get_mut(before) {
            before.until = Some(self.now);
        }
        self.tables.writes.push(Write { task, key, row, process, until: None });
    }

    /// A task begins to write a row and leaves it half written.
    pub(super) fn begin_row(&mut self, task: usize, key: u32, row: u64) {
        self.end_row(task, key);
        if let Some(table) = self.tables.here.get_mut(&(task, key)) {
            self.trace.note(self.now, format_args!("task {task} begins to write row {row} of table {key}"));
            table.memory.begin(row);
            table.held = Some((row, self.now));
        }
    }

    /// A task completes its half-written row.
    pub(super) fn end_row(&mut self, task: usize, key: u32) {
        let Some(table) = self.tables.here.get_mut(&(task, key)) else { return };
        if let Some((row, since)) = table.held.take() {
            self.tables.held.push((task, key, since, self.now));
            self.write_row((task, key), row);
        }
    }

    /// Pulls rows; false if the host is down.
    pub(super) fn pull_rows(
        &mut self,
        ask: usize,
        (producer, consumer): (usize, usize),
        tables: Vec<(u32, Vec<u64>)>,
        ahead: i64,
        timeout: Duration,
    ) -> Result<bool, String> {
        let host = self.host_of(consumer);
        // The requests of a call are distributed over the shards.
        let Some((shard, pair)) = self.pulling_seat_of(ask, host, (consumer, producer))? else { return Ok(false) };
        let newest = self.tables.newest(producer, tables[0].0);
        let min_version = if ahead == workload::ANY_AGE { i64::MIN } else { newest + ahead };
        let (sender, receiver) = oneshot::channel();
        let (issued, deadline, now) = (self.now, self.now + timeout, self.instant());
        self.trace.note(
            issued,
            format_args!("{consumer} asks for rows of {producer} as {ask}, version {min_version}, for {timeout:?}"),
        );
        let mut named = NamedRowsBuf::default();
        for (key, ids) in &tables {
            self.trace.note(issued, format_args!("it names {} rows of table {key}", ids.len()));
            if named.name(&name(*key), ids, |count| count as u32) != Some(ids.len()) {
                return Err("these are too many rows for one request".into());
            }
        }
        let (rows, waiter) = (named.as_rows(), RecvWaiter::Channel(sender));
        let request = PullRowsRequest {
            pair,
            rows,
            min_version,
            deadline: self.base + deadline,
            views: false,
            fail_if_gone: false,
            waiter,
        };
        let ticket = self.hosts[host].seats[shard].node.pull_rows(now, request);
        let asked = Ask { producer, consumer, tables, host, shard, min_version, issued, deadline, ticket, receiver };
        self.tables.open.insert(ask, asked);
        self.settle(host, shard)?;
        Ok(true)
    }

    pub(super) fn give_up_rows(&mut self, ask: usize) -> Result<(), String> {
        let Some(Ask { host, shard, ticket, receiver, .. }) = self.tables.open.remove(&ask) else { return Ok(()) };
        self.trace.note(self.now, format_args!("the rows {ask} are given up"));
        let Some(ticket) = ticket else { return Err(format!("the rows {ask} stand without a ticket")) };
        self.hosts[host].seats[shard].node.cancel(ticket);
        match receiver.try_recv() {
            Err(oneshot::TryRecvError::Disconnected) => self.settle(host, shard),
            _ => Err(format!("the rows {ask} were given up, and are still waited for or told")),
        }
    }

    /// Drops the receiver of a pull's outcome.
    pub(super) fn deafen_rows(&mut self, ask: usize) {
        if self.tables.open.remove(&ask).is_some() {
            self.trace.note(self.now, format_args!("nobody listens to the rows {ask}"));
        }
    }

    /// A process has ended, and its tables and pulls with it.
    pub(super) fn forget_tables_of(&mut self, host: usize) {
        let (now, tasks_per_host) = (self.now, self.climate.tasks_per_host);
        self.tables.open.retain(|_, ask| ask.host != host);
        let gone: Vec<_> = self.tables.here.keys().copied().filter(|(task, _)| task / tasks_per_host == host).collect();
        for at @ (task, key) in gone {
            let Table { rows, held, .. } = self.tables.here.remove(&at).expect("just looked at");
            rows.into_iter().for_each(|write| self.tables.writes[write].until = Some(now));
            self.tables.held.extend(held.map(|(_, since)| (task, key, since, now)));
            (0..self.climate.shards_max).for_each(|shard| self.tables.leave(at, shard, now));
        }
    }
}
