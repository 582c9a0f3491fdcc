//! What rows of tables add to a step: the rows that a worker names are drawn as `bench rows` draws them, divided over the parameter
//! servers as a sharded table is, and put into requests as a client puts them: those of all tables together. Pure; the same for the same tables.

use sealane_transport::named_rows::NamedRowsBuf;
use serde::Serialize;

use super::scene::{Load, Part};
use crate::plan::{Tables, check_tables};
use crate::systems::Wanted;

/// Bytes of a request for rows besides what it names.
const REQUEST_BYTES: usize = 16;
/// A key as `bench rows` has them.
const KEY: &str = "layer_0/kernel";
/// Bytes of rows that a client asks for at once at most, as docs/tables.md says.
const ANSWER_BYTES_MAX: usize = 128 << 10;

/// The rows that a worker names in a few steps.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Lookups {
    /// The tables that it names them of.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    tables: Vec<Tables>,
    /// By steps and tables; each row once, in order.
    #[serde(skip)]
    steps: Vec<Vec<Vec<u64>>>,
}

/// What a worker asks one ps for in a step, on average.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Asked {
    pub(super) requests: f64,
    pub(super) request_bytes: f64,
    /// Each once, however often it was named.
    pub(super) rows: f64,
    pub(super) row_bytes: f64,
}

impl Lookups {
    /// Draws rows of these tables; of tables that a plan's check refuses, none.
    pub fn new(tables: Vec<Tables>) -> Self {
        if tables.is_empty() || check_tables(&tables).is_err() {
            return Self { tables, steps: Vec::new() };
        }
        let mut steps = Wanted::of(tables.iter().flat_map(Tables::each).collect(), 0).into_steps();
        for rows in steps.iter_mut().flatten() {
            rows.sort_unstable();
            rows.dedup();
        }
        Self { tables, steps }
    }

    /// The tables, those of one size together.
    pub(crate) fn tables(&self) -> &[Tables] {
        &self.tables
    }

    /// What each of so many parameter servers is asked for.
    pub(super) fn over(&self, ps: usize) -> Vec<Asked> {
        let mut asked = vec![Asked::default(); ps];
        let each: Vec<Tables> = self.tables.iter().flat_map(Tables::each).collect();
        for step in &self.steps {
            // The rows of each ps, table by table, as `Sharding::modulo` has them.
            let mut shares: Vec<Vec<Vec<u64>>> = vec![vec![Vec::new(); step.len()]; ps];
            for (table, rows) in step.iter().enumerate() {
                rows.iter().for_each(|row| shares[(row % ps as u64) as usize][table].push(row / ps as u64));
            }
            for (asked, shares) in asked.iter_mut().zip(&shares) {
                asked.ask(each.iter().zip(shares));
            }
        }
        asked.iter().map(|sum| sum.divided(self.steps.len().max(1) as f64)).collect()
    }

    /// Adds to what each ps has of a step.
    pub(super) fn add_to(&self, loads: &mut [Load]) {
        let asked = self.over(loads.len());
        for (load, asked) in loads.iter_mut().zip(asked) {
            load.add(&asked);
        }
    }
}

impl Asked {
    /// Asks for rows of all tables, by as few requests as a client does.
    fn ask<'t>(&mut self, tables: impl Iterator<Item = (&'t Tables, &'t Vec<u64>)>) {
        let (mut named, mut room) = (NamedRowsBuf::default(), ANSWER_BYTES_MAX);
        for (table, rows) in tables {
            let mut rest = &rows[..];
            while !rest.is_empty() {
                let fit = (room / table.row_bytes()).max(usize::from(named.is_empty()));
                let most = &rest[..rest.len().min(fit)];
                let named_now = (fit > 0).then(|| named.name(KEY, most, |_| 0)).flatten();
                match named_now {
                    Some(count) => {
                        rest = &rest[count..];
                        room = room.saturating_sub(count * table.row_bytes());
                        self.rows += count as f64;
                        self.row_bytes += (count * table.row_bytes()) as f64;
                    }
                    None => {
                        self.sent(&named);
                        (named, room) = (NamedRowsBuf::default(), ANSWER_BYTES_MAX);
                    }
                }
            }
        }
        self.sent(&named);
    }

    fn sent(&mut self, named: &NamedRowsBuf) {
        if !named.is_empty() {
            self.requests += 1.0;
            self.request_bytes += (REQUEST_BYTES + named.as_rows().as_bytes().len()) as f64;
        }
    }

    fn divided(&self, by: f64) -> Self {
        let Self { requests, request_bytes, rows, row_bytes } = *self;
        Self { requests: requests / by, request_bytes: request_bytes / by, rows: rows / by, row_bytes: row_bytes / by }
    }
}

impl Load {
    /// Each request is a frame, and so is its answer; the request of a plan goes with them, if there is one.
    fn add(&mut self, asked: &Asked) {
        if asked.requests == 0.0 {
            return;
        }
        let planned = if self.pull.messages > 0.0 { self.request } else { Part::default() };
        self.request = planned.and(asked.requests, asked.request_bytes, 0.0);
        self.pull = self.pull.and(asked.requests, asked.row_bytes, asked.rows);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::Skew;

    fn tables(rows: u64, batch: usize) -> Tables {
        Tables { tables: 3, rows, dim: 16, batch, skew: Skew::Uniform }
    }

    #[test]
    fn every_row_is_asked_for_once_wherever_it_is() {
        let lookups = Lookups::new(vec![tables(1_000, 500), Tables { tables: 1, ..tables(4, 500) }]);
        let rows = |ps: usize| lookups.over(ps).iter().map(|asked| asked.rows).sum::<f64>();
        assert!((rows(1) - rows(7)).abs() < 1e-6 && rows(1) < 3.0 * 500.0 + 4.0, "{}", rows(1));
        let one = lookups.over(1)[0];
        assert_eq!((one.requests, one.row_bytes), (1.0, one.rows * 64.0));
        assert_eq!(lookups.over(7).iter().map(|asked| asked.requests).sum::<f64>(), 7.0);
        assert_eq!(Lookups::default().over(2), [Asked::default(); 2]);
    }

    #[test]
    fn large_batches_need_several_requests() {
        let of = |table: Tables| Lookups::new(vec![Tables { tables: 1, ..table }]).over(1)[0].requests;
        assert_eq!(of(tables(100_000_000, 10_000)), 5.0, "2,048 rows each");
        assert_eq!(of(Tables { dim: 1 << 14, ..tables(100, 2_000) }), 50.0, "128 KiB of rows each");
    }
}
