//! What a pull of rows may be told, and when.
//!
//! - It ends once, by its deadline (and the lateness of a turn): with as many rows as were asked for, or with an error that what
//!   happened explains.
//! - Each row is one that its task has written in that place of that table, to the last byte, and that was there at some time while
//!   the pull was in progress. All of them are of one process, and none is older than the version that was asked for.
//! - When nothing goes wrong, rows of a table that lies in the store for long enough come.
//! - A pull that is given up says nothing.

use std::time::Duration;

use sealane_fusion::{Code, DType, Error, RecvOutcome, Tensor, TensorMeta};
use sealane_transport::gathered_rows;

use super::{Ask, Version, shape};
use crate::simulation::climate::{LATENESS_MAX, Weather};
use crate::simulation::run::Simulation;
use crate::simulation::workload;

/// Rows of a table that lies in the store for so long come, when nothing goes wrong.
const PULL_TIME: Duration = Duration::from_millis(500);

impl Simulation {
    /// Hears what the pulls of rows of a host have come to.
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
                self.tables.rows += asked.ids.len();
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

    /// Rows came: which are they, and might they?
    fn check_rows(&self, asked: &Ask, answer: &Tensor) -> Result<(), String> {
        let (now, (table_rows, row_bytes)) = (self.now, shape(asked.key));
        let part = gathered_rows::read(answer.bytes(), 1).map_err(|error| error.to_string())?.remove(0);
        let there: Vec<u64> = asked.ids.iter().copied().filter(|&id| id < table_rows).collect();
        let meta = TensorMeta::new(DType::U8, &[there.len() as u64, row_bytes as u64]);
        if meta.as_ref() != Ok(&part.meta) || part.table_rows != table_rows {
            let (meta, of) = (part.meta, part.table_rows);
            return Err(format!("{meta:?} of {of} came for {} of {table_rows} rows of {row_bytes} bytes", there.len()));
        }
        let of = |version: &&Version| (version.task, version.key) == (asked.producer, asked.key);
        let new_enough = || self.tables.versions.iter().filter(of).filter(|it| it.version >= asked.min_version);
        let (mut process, mut expected) = (None, vec![0; row_bytes]);
        for (&id, row) in there.iter().zip(part.rows.chunks_exact(row_bytes)) {
            let number = u64::from_le_bytes(*row.first_chunk().expect("rows are longer")) as usize;
            let Some(write) = self.tables.writes.get(number) else { return Err(format!("nobody wrote row {id}")) };
            if (write.task, write.key, write.row) != (asked.producer, asked.key, id) {
                return Err(format!("row {id} is row {} of table {} of task {}", write.row, write.key, write.task));
            }
            workload::fill(workload::seed_of_row(write.task, write.key, id), number, &mut expected);
            if row != expected {
                return Err(format!("row {id} is not whole: {number} was written last"));
            }
            if *process.get_or_insert(write.process) != write.process {
                return Err(format!("row {id} is of another process than those before it"));
            }
            // The earliest that a table of that age was there to be gathered from.
            let there = new_enough().filter(|version| version.process == write.process);
            let lay = there.flat_map(|version| version.lay.iter().flatten());
            let while_asked = lay.filter(|(_, until)| until.is_none_or(|until| until >= asked.issued));
            let Some(since) = while_asked.map(|&(since, _)| since.max(asked.issued)).min() else {
                return Err(format!("row {id} is of no version that was there and as new as {}", asked.min_version));
            };
            if write.until.is_some_and(|until| until < since) || write.since > now {
                return Err(format!(
                    "row {id} was {number} until {:?}, and was asked for since {since:?}",
                    write.until
                ));
            }
        }
        Ok(())
    }

    /// Why what happened does not explain the error; `None` if it does.
    fn unexplained_rows(&self, asked: &Ask, error: &Error) -> Option<&'static str> {
        let Ask { producer, consumer, key, .. } = *asked;
        let explained = match error.code() {
            Code::DeadlineExceeded => self.now >= asked.deadline,
            Code::Unavailable => self.climate.weather != Weather::Calm,
            Code::ResourceExhausted => self.climate.scarce,
            Code::NotFound => self.is_news(producer, consumer),
            Code::PermissionDenied => self.was_denied(producer, consumer),
            Code::Aborted => self.was_held_within((producer, key), asked.issued, self.now),
            _ => false,
        };
        if !explained {
            return Some("nothing that happened explains it");
        }
        let undisturbed = self.climate.weather == Weather::Calm
            && !self.climate.scarce
            && !self.is_newcomer(producer)
            && !self.is_newcomer(consumer)
            && !self.was_held_within((producer, key), asked.issued, self.now);
        let host = &self.hosts[self.host_of(producer)];
        let store = host.shard_for(&self.task_name(producer), &self.task_name(consumer));
        let came = |version: &Version| {
            let of = (version.task, version.key) == (producer, key) && version.version >= asked.min_version;
            of && matches!(version.lay[store], Some((since, until))
                if since.max(asked.issued) + PULL_TIME < until.unwrap_or(asked.deadline).min(asked.deadline))
        };
        let there = undisturbed && self.tables.versions.iter().any(came);
        there.then_some("the table was there, and nothing went wrong")
    }

    /// True if a row of a table was being written at some time from `from` to `to`.
    fn was_held_within(&self, at: (usize, u32), from: Duration, to: Duration) -> bool {
        let ended =
            self.tables.held.iter().any(|&(task, key, since, until)| (task, key) == at && since <= to && until >= from);
        ended || self.tables.here.get(&at).is_some_and(|table| table.held.is_some())
    }
}
