//! A shard's metrics of one published table whose rows it has gathered.

use serde::{Deserialize, Serialize};
use zerocopy::{FromBytes, Immutable, IntoBytes};

use super::SeqLock;

/// Rows that were gathered from a table.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, Serialize, Deserialize)]
#[repr(C)]
pub struct TableCounters {
    /// Requests that were answered.
    pub requests: u64,
    pub rows: u64,
    pub bytes: u64,
    /// How often the requesters had named these rows: a row that a batch names twice is requested once.
    pub rows_named: u64,
    /// Nanoseconds spent gathering them.
    pub gather_ns: u64,
}

impl TableCounters {
    /// The share of named rows that did not have to be gathered, because they were named before; `None` if none was named.
    pub fn share_of_duplicates(&self) -> Option<f64> {
        let named = self.rows_named as f64;
        (self.rows_named > 0).then(|| (1. - self.rows as f64 / named).max(0.))
    }

    pub(crate) fn add(&mut self, other: &TableCounters) {
        let TableCounters { requests, rows, bytes, rows_named, gather_ns } = other;
        for (sum, more) in [
            (&mut self.requests, requests),
            (&mut self.rows, rows),
            (&mut self.bytes, bytes),
            (&mut self.rows_named, rows_named),
            (&mut self.gather_ns, gather_ns),
        ] {
            *sum = sum.saturating_add(*more);
        }
    }
}

/// A table's metrics. Written by the shard, read by any thread.
#[derive(Debug)]
pub(crate) struct TableMetrics {
    pub(crate) task: String,
    pub(crate) table: String,
    pub(crate) counters: SeqLock<TableCounters>,
}

impl TableMetrics {
    pub(crate) fn figures(&self) -> TableFigures {
        TableFigures { task: self.task.clone(), table: self.table.clone(), counters: self.counters.read() }
    }
}

/// A shard's metrics of one table.
#[derive(Debug, Clone)]
pub struct TableFigures {
    /// The task that has published it.
    pub task: String,
    /// Its key.
    pub table: String,
    pub counters: TableCounters,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn duplicates_are_what_was_named_and_not_gathered() {
        let of =
            |rows, rows_named| TableCounters { rows, rows_named, ..TableCounters::default() }.share_of_duplicates();
        assert_eq!([of(0, 0), of(3, 4), of(4, 4), of(9, 4)], [None, Some(0.25), Some(0.), Some(0.)]);
    }
}
