//! What a pull of rows may report, and when.
//!
//! - It ends once, by its deadline (and the lateness of a turn): with as many rows of each table as were asked for, or with an error
//!   that what happened explains.
//! - Each row is one that its task wrote to that place of that table, to the last byte, and that was there at some time during the pull
//!   after all tables of the pull had been there together and as new as was asked for. All rows are from one process.
//! - When nothing goes wrong, rows of tables that lie in the store together for long enough must come.
//! - A pull that is given up reports nothing.

use std::iter::zip;
use std::time::Duration;

use sealane_fusion::{Code, DType, Error, RecvOutcome, Tensor, TensorMeta};
use sealane_transport::gathered_rows::{self, Part};

use super::{Ask, Version, Write, shape};
use crate::simulation::climate::{LATENESS_MAX, Weather};
use crate::simulation::run::Simulation;
use crate::simulation::workload;

/// When nothing goes wrong, rows of tables that lie in the store together for this long must come.
const PULL_TIME: Duration = Duration::from_millis(500);

impl Simulation {
    /// Collects the outcomes of a host's pulls of rows.
    pub(in crate::simulation) fn look_at_rows(&mut self, host: usize) -> Result<(), String> {
        let mut ended = Vec::new();
        for (&ask, asked) in self.tables.open.iter().filter(|(_, asked)| asked.host == host) {
            match asked.receiver.try_recv() {
                Ok(outcome) => ended.push((ask, outcome)),
                Err(oneshot::TryRecvError::Empty) => {}
                Err(oneshot::TryRecvError::Disconnected) => {
                    return Err(format!("the rows {ask} were forgotten without a word"));
                }
            }
        }
        for (ask, outcome) in ended {
            let asked = self.tables.open.remove(&ask).expect("just looked at");
            let well = outcome.is_ok();
            self.rows_ended(&asked, outcome).map_err(|what| format!("the rows {ask}: {what}"))?;
            self.trace.note(self.now, format_args!("the rows {ask} came: {well}"));
            self.tables.last = Some((ask, well));
        }
        Ok(())
    }

    fn rows_ended(&mut self, asked: &Ask, outcome: RecvOutcome) -> Result<(), String> {
        if self.now > asked.deadline + LATENESS_MAX {
            return Err(format!("they ended {:?} after their deadline", self.now - asked.deadline));
        }
        match outcome {
            Ok(rows) => {
                self.check_rows(asked, &rows)?;
                self.tables.rows += asked.tables.iter().map(|(_, ids)| ids.len()).sum::<usize>();
                Ok(())
            }
            Err(unreceived) => {
                let error = unreceived.error;
                self.trace.note(self.now, format_args!("they failed: {error}"));
                self.tables.failed += 1;
                let unexplained = self.unexplained_rows(asked, &error);
                unexplained.map_or(Ok(()), |reason| Err(format!("they were told '{error}', but {reason}")))
            }
        }
    }

    fn check_rows(&self, asked: &Ask, answer: &Tensor) -> Result<(), String> {
        let parts = gathered_rows::read(answer.bytes(), asked.tables.len()).map_err(|error| error.to_string())?;
        let mut writes = Vec::new();
        for ((key, ids), part) in zip(&asked.tables, parts) {
            let of_table = self.writes_of((asked.producer, *key), ids, &part);
            writes.extend(of_table.map_err(|what| format!("table {key}: {what}"))?);
        }
        let process = writes.first().map(|write| write.process);
        // The earliest time at which they can have been gathered.
        let stores = 0..self.climate.shards_max;
        let spans = stores.flat_map(|store| self.lay_together(asked, process, store, self.now));
        let Some(since) = spans.map(|(since, _)| since).min() else {
            return Err(format!("their tables were never there together, as new as {}", asked.min_version));
        };
        for &Write { key, row, process: of, until, .. } in writes {
            if Some(of) != process {
                return Err(format!("row {row} of table {key} is of another process than those before it"));
            }
            if until.is_some_and(|until| until < since) {
                return Err(format!(
                    "row {row} of table {key} was overwritten at {until:?}, before all tables were there at {since:?}"
                ));
            }
        }
        Ok(())
    }

    /// The writes that the rows of one table come from; each must be exactly what its task wrote.
    fn writes_of(&self, (producer, key): (usize, u32), ids: &[u64], part: &Part<&[u8]>) -> Result<Vec<&Write>, String> {
        let (table_rows, row_bytes) = shape(key);
        let there: Vec<u64> = ids.iter().copied().filter(|&id| id < table_rows).collect();
        let meta = TensorMeta::new(DType::U8, &[there.len() as u64, row_bytes as u64]);
        if meta.as_ref() != Ok(&part.meta) || part.table_rows != table_rows {
            let (meta, of) = (&part.meta, part.table_rows);
            return Err(format!("{meta:?} of {of} came for {} of {table_rows} rows of {row_bytes} bytes", there.len()));
        }
        let mut expected = vec![0; row_bytes];
        let write_of = |(&id, row): (&u64, &[u8])| {
            let number = u64::from_le_bytes(*row.first_chunk().expect("rows are longer")) as usize;
            let Some(write) = self.tables.writes.get(number) else { return Err(format!("nobody wrote row {id}")) };
            if (write.task, write.key, write.row) != (producer, key, id) {
                return Err(format!("row {id} is row {} of table {} of task {}", write.row, write.key, write.task));
            }
            workload::fill(workload::seed_of_row(producer, key, id), number, &mut expected);
            match row == expected {
                true => Ok(write),
                false => Err(format!("row {id} is not whole: {number} was written last")),
            }
        };
        zip(&there, part.rows.chunks_exact(row_bytes)).map(write_of).collect()
    }

    /// Why nothing that happened explains the error; `None` if something does.
    fn unexplained_rows(&self, asked: &Ask, error: &Error) -> Option<&'static str> {
        let Ask { producer, consumer, .. } = *asked;
        let is_held = |(key, _): &(u32, _)| self.was_held_within((producer, *key), asked.issued, self.now);
        let was_held = asked.tables.iter().any(is_held);
        let explained = match error.code() {
            Code::DeadlineExceeded => self.now >= asked.deadline,
            Code::Unavailable => self.climate.weather != Weather::Calm,
            Code::ResourceExhausted => self.climate.scarce,
            Code::NotFound => self.is_news(producer, consumer),
            Code::PermissionDenied => self.was_denied(producer, consumer),
            Code::Aborted => was_held,
            _ => false,
        };
        if !explained {
            return Some("nothing that happened explains it");
        }
        let undisturbed = self.climate.weather == Weather::Calm
            && !self.climate.scarce
            && !self.is_newcomer(producer)
            && !self.is_newcomer(consumer)
            && !was_held;
        let host = &self.hosts[self.host_of(producer)];
        let store = host.shard_for(&self.task_name(producer), &self.task_name(consumer));
        let long_enough = |&(since, until): &(Duration, Duration)| since + PULL_TIME < until;
        let there = undisturbed && self.lay_together(asked, None, store, asked.deadline).iter().any(long_enough);
        there.then_some("all tables were there, and nothing went wrong")
    }

    /// When all tables of a pull lay in a store together, new enough and from the given process if any, between the request and `end`.
    fn lay_together(
        &self,
        asked: &Ask,
        process: Option<u32>,
        store: usize,
        end: Duration,
    ) -> Vec<(Duration, Duration)> {
        let mut spans = vec![(asked.issued, end)];
        for &(key, _) in &asked.tables {
            let of = |version: &&Version| {
                (version.task, version.key) == (asked.producer, key)
                    && version.version >= asked.min_version
                    && process.is_none_or(|process| process == version.process)
            };
            let lay = || self.tables.versions.iter().filter(of).filter_map(|version| *version.lay.get(store)?);
            let both = |(from, to): (Duration, Duration)| {
                lay().map(move |(since, until)| (since.max(from), until.unwrap_or(to).min(to)))
            };
            spans = spans.into_iter().flat_map(both).filter(|(since, until)| since <= until).collect();
        }
        spans
    }

    /// True if a row of a table was half written at some time from `from` to `to`.
    fn was_held_within(&self, at: (usize, u32), from: Duration, to: Duration) -> bool {
        let ended =
            self.tables.held.iter().any(|&(task, key, since, until)| (task, key) == at && since <= to && until >= from);
        ended || self.tables.here.get(&at).is_some_and(|table| table.held.is_some())
    }
}
