//! What `rows` measures: workers that pull rows of tables, step after step. This is what all systems share: which rows a worker
//! names, their contents, and the check of what came.

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use rand_distr::Zipf;
use sealane::Sharding;

use crate::error::BenchError;
use crate::plan::{Plan, Skew, Tables};
use crate::systems::client::other_bytes;

/// Steps whose rows a worker draws before the first round; it repeats them.
const STEPS: usize = 8;

/// The tables of a plan of rows, which all have one size.
pub(super) fn tables(plan: &Plan) -> Tables {
    plan.tables[0]
}

pub(super) fn each(plan: &Plan) -> Vec<Tables> {
    plan.tables.iter().flat_map(Tables::each).collect()
}

/// Bytes that a worker pulls of each table in a step.
pub(super) fn bytes_of_each(plan: &Plan) -> Vec<usize> {
    each(plan).iter().map(Tables::step_bytes).collect()
}

/// The rows that a worker names in its steps, table by table.
pub(crate) struct Wanted {
    tables: Vec<Tables>,
    steps: Vec<Vec<Vec<u64>>>,
    next: usize,
}

impl Wanted {
    /// For the worker with this number; the same in every run.
    pub(super) fn new(plan: &Plan, worker: usize) -> Self {
        Self::of(each(plan), worker)
    }

    /// Like [`new`](Self::new), for these tables, each by itself.
    pub(crate) fn of(tables: Vec<Tables>, worker: usize) -> Self {
        let mut random = SmallRng::seed_from_u64(worker as u64);
        let mut step = || tables.iter().map(|table| draw(table, &mut random)).collect();
        Self { steps: (0..STEPS).map(|_| step()).collect(), tables, next: 0 }
    }

    /// The rows that the next step names in each table.
    pub(super) fn advance(&mut self) -> &[Vec<u64>] {
        self.next += 1;
        &self.steps[(self.next - 1) % STEPS]
    }

    /// Checks that these are the rows that the last step has named, one table after the other.
    pub(super) fn check_all(&self, system: &'static str, rows: &[u8]) -> Result<(), BenchError> {
        let mut tables = rows.chunks_exact(rows.len() / self.tables.len()).enumerate();
        tables.try_for_each(|(table, rows)| self.check(system, table, rows))
    }

    /// Checks that these are the rows of one table that the last step has named.
    pub(super) fn check(&self, system: &'static str, table: usize, rows: &[u8]) -> Result<(), BenchError> {
        let named = &self.steps[(self.next - 1) % STEPS][table];
        let row_bytes = self.tables[table].row_bytes();
        let mut pairs = named.iter().zip(rows.chunks_exact(row_bytes));
        let right = pairs
            .all(|(&row, bytes)| bytes.as_chunks().0.iter().all(|of| f32::from_ne_bytes(*of) == element(table, row)));
        match right && rows.len() == named.len() * row_bytes {
            true => Ok(()),
            false => Err(other_bytes(system, table)),
        }
    }
}

/// Draws the rows of a batch. Popular rows are spread over the table.
fn draw(tables: &Tables, random: &mut SmallRng) -> Vec<u64> {
    let rows = tables.rows;
    let rank = |random: &mut SmallRng| match tables.skew {
        Skew::Uniform => random.random_range(0..rows),
        Skew::Zipf(exponent) => {
            let zipf = Zipf::new(rows as f64, exponent).expect("the plan was checked");
            (random.sample(zipf) as u64).clamp(1, rows) - 1
        }
    };
    let scattered = Sharding::hash(rows, 1).expect("the plan was checked");
    (0..tables.batch).map(|_| scattered.place(rank(random)).1).collect()
}

/// The value of each element of a row.
pub(super) fn element(table: usize, row: u64) -> f32 {
    ((table as u64 * 7_919 + row) & 0xf_ffff) as f32
}

/// Writes the contents of rows of a table, by their numbers.
pub(super) fn fill(memory: &mut [u8], tables: &Tables, table: usize, rows: impl Iterator<Item = u64>) {
    for (target, row) in memory.chunks_exact_mut(tables.row_bytes()).zip(rows) {
        target.as_chunks_mut().0.fill(element(table, row).to_ne_bytes());
    }
}

/// All tables, in this process's own memory.
pub(super) struct Memory {
    tables: Tables,
    contents: Vec<Vec<u8>>,
}

impl Memory {
    /// Holds those rows of each table that `rows` yields.
    pub(super) fn new<R: Iterator<Item = u64>>(plan: &Plan, rows: impl Fn() -> R) -> Self {
        let tables = tables(plan);
        let table = |table| {
            let mut memory = vec![0; rows().count() * tables.row_bytes()];
            fill(&mut memory, &tables, table, rows());
            memory
        };
        Self { tables, contents: (0..tables.tables).map(table).collect() }
    }

    pub(super) fn tables(&self) -> usize {
        self.contents.len()
    }

    pub(super) fn row_bytes(&self) -> usize {
        self.tables.row_bytes()
    }

    /// Copies rows of one table one after the other, as fast as compiled code can.
    pub(super) fn gather(&self, table: usize, ids: impl Iterator<Item = u64>, target: &mut [u8]) {
        /// Rows whose size is known to the compiler are copied without a call.
        fn of<const N: usize>(contents: &[u8], ids: impl Iterator<Item = u64>, target: &mut [u8]) {
            let rows = contents.as_chunks::<N>().0;
            target.as_chunks_mut().0.iter_mut().zip(ids).for_each(|(target, id)| *target = rows[id as usize]);
        }
        let contents = &self.contents[table];
        match self.tables.row_bytes() {
            64 => of::<64>(contents, ids, target),
            128 => of::<128>(contents, ids, target),
            256 => of::<256>(contents, ids, target),
            bytes => {
                let rows = ids.map(|id| &contents[id as usize * bytes..][..bytes]);
                target.chunks_exact_mut(bytes).zip(rows).for_each(|(target, row)| target.copy_from_slice(row));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn few_rows_are_popular_with_zipf_and_none_is_without() {
        let distinct = |skew| {
            let tables = Tables { tables: 1, rows: 100_000, dim: 1, batch: 10_000, skew };
            let mut rows = draw(&tables, &mut SmallRng::seed_from_u64(1));
            assert!(rows.iter().all(|&row| row < 100_000));
            rows.sort_unstable();
            rows.dedup();
            rows.len()
        };
        // Two ranks never map to the same row.
        let small = Tables { tables: 1, rows: 100, dim: 1, batch: 10_000, skew: Skew::Uniform };
        let rows: BTreeSet<u64> = draw(&small, &mut SmallRng::seed_from_u64(1)).into_iter().collect();
        assert_eq!(rows.len(), 100);
        let (zipf, uniform) = (distinct(Skew::Zipf(1.05)), distinct(Skew::Uniform));
        assert!(zipf < 6_000 && uniform > 9_000, "{zipf} {uniform}");
    }
}
