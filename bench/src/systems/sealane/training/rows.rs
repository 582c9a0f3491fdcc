//! Rows of tables through the crate `sealane`: what every ps publishes of each table, and what a worker pulls.

use sealane::{
    Buffer, DType, Error, RowsOptions, RowsWanted, ShardedTable, Sharding, Table, TableOptions, Task, Tensor,
    TensorMeta,
};

use super::super::engine::{NAME, key_of, ps_of, room_bytes};
use crate::error::BenchError;
use crate::plan::{Bench, Plan, Tables};
use crate::systems::rows::{Wanted, bytes_of_each, each, fill};
use crate::systems::training;

/// Memory for the locks of a table.
const LOCKS_BYTES: usize = 16 << 10;

fn sharding(plan: &Plan, table: &Tables) -> Result<Sharding, Error> {
    Sharding::modulo(table.rows, training::of(plan).size.ps)
}

/// Keys of tables are numbered after those of the variables.
fn table_key(plan: &Plan, number: usize) -> String {
    key_of(plan.step.len() + number)
}

/// Memory for a ps's part of all tables, with their locks.
pub(super) fn room_for_part(plan: &Plan) -> u64 {
    let rows = |table: &Tables| table.rows.div_ceil(training::of(plan).size.ps as u64) as usize;
    let parts = each(plan).into_iter().flat_map(|table| [rows(&table) * table.row_bytes(), LOCKS_BYTES]);
    room_bytes(&parts.collect::<Vec<_>>()) as u64
}

/// Every ps publishes its part of each table, through a task of its own. Tables next to variables have no locks, since nobody
/// writes them.
pub(super) fn publish(plan: &Plan, task: impl Fn(usize) -> Result<Task, Error>) -> Result<Vec<Table>, BenchError> {
    let tasks = (0..training::of(plan).size.ps).map(task).collect::<Result<Vec<_>, _>>();
    let tasks = tasks.map_err(BenchError::sealane("start a ps"))?;
    let options = TableOptions { torn: plan.bench == Bench::Ps, ..TableOptions::default() };
    let one = |(ps, (number, table)): (usize, (usize, Tables))| {
        let (task, sharding) = (&tasks[ps], sharding(plan, &table)?);
        let rows = sharding.rows_of(ps);
        let mut memory = task.alloc(rows as usize * table.row_bytes())?;
        fill(&mut memory, &table, number, (0..rows).map(|local| sharding.row(ps, local)));
        let part = Tensor::new(TensorMeta::new(DType::F32, &[rows, table.dim as u64])?, memory)?;
        task.publish_table(&table_key(plan, number), part, options)
    };
    let tables =
        (0..training::of(plan).size.ps).flat_map(|ps| each(plan).into_iter().enumerate().map(move |of| (ps, of)));
    tables
        .filter(|(ps, (_, table))| table.rows > *ps as u64)
        .map(one)
        .collect::<Result<_, Error>>()
        .map_err(BenchError::sealane("publish tables"))
}

/// The rows that a worker pulls, step after step.
pub(super) struct Rows {
    wanted: Wanted,
    tables: Vec<ShardedTable>,
    /// Destinations of the rows of each table; `None` after a failed step.
    rows: Vec<Option<Buffer>>,
}

impl Rows {
    pub(super) fn new(plan: &Plan, worker: usize) -> Result<Self, Error> {
        let ps: Vec<String> = (0..training::of(plan).size.ps).map(|ps| ps_of(plan, ps)).collect();
        let of = |(number, table)| ShardedTable::new(&table_key(plan, number), &ps, sharding(plan, &table)?);
        Ok(Self {
            wanted: Wanted::new(plan, worker),
            tables: each(plan).into_iter().enumerate().map(of).collect::<Result<_, _>>()?,
            rows: bytes_of_each(plan).into_iter().map(|bytes| Some(Buffer::from_vec(vec![0; bytes]))).collect(),
        })
    }

    pub(super) fn pull(&mut self, task: &Task) -> Result<(), Error> {
        let ids = self.wanted.advance();
        let tables = self.tables.iter().zip(ids).zip(&mut self.rows);
        let wanted = tables.map(|((table, ids), rows)| RowsWanted { table, ids, out: rows.take().map(Into::into) });
        let pulled = task.pull_all_rows(wanted, &RowsOptions::default()).wait()?;
        self.rows = pulled.into_iter().map(|pulled| Some(pulled.rows.into_buffer())).collect();
        Ok(())
    }

    /// Checks that the last step's rows are those that were named.
    pub(super) fn check(&self) -> Result<(), BenchError> {
        let mut rows = self.rows.iter().enumerate();
        rows.try_for_each(|(table, rows)| self.wanted.check(NAME, table, rows.as_deref().unwrap_or_default()))
    }
}
