//! `--rows` of `bench ps`: which variables of a workload are tables, and what a step moves when rows of them are pulled.

use crate::plan::{Skew, Tables};
use sealane_fusion::DType;

use sealane_cli::Failure;
use sealane_cli::workload::{TensorSpec, Workload};

/// If a workload does not list its tables, a variable with this many times the rows of a batch is one.
const ROWS_OF_BATCH: u64 = 8;
/// Bytes of a row's number that is pushed with its gradient.
const ID_BYTES: usize = 8;

#[derive(Clone, Copy, Debug, clap::Args)]
pub(super) struct RowsFlags {
    /// Pull only the rows of embedding tables that a batch names, and all other variables whole. Tables are those that the
    /// workload lists (table_rows, of which its pulled .../rows are the batches), else every 32-bit float variable with two
    /// dimensions and 8 times as many rows as the batch, of which rows' gradients and numbers are pushed
    #[arg(long)]
    rows: bool,

    /// With --rows: rows that a worker names of each table in a step [default: the workload's batch, else 2048]
    #[arg(long, value_name = "N", requires = "rows")]
    batch: Option<usize>,

    /// With --rows: how popular rows are, uniform or zipf with its exponent
    #[arg(long, value_name = "uniform|zipf:S", requires = "rows", default_value_t = Tables::default().skew)]
    skew: Skew,

    /// With --rows: rows of a table at most; larger ones are cut, as by DLRM's --max-ind-range
    #[arg(long, value_name = "N", requires = "rows", default_value_t = Tables::default().rows)]
    table_rows_max: u64,
}

#[derive(Debug)]
pub(super) struct Step {
    /// Bytes of each variable that is pulled whole.
    pub(super) pull: Vec<usize>,
    pub(super) push: Vec<usize>,
    pub(super) tables: Vec<Tables>,
}

impl RowsFlags {
    pub(super) fn step(&self, workload: &Workload) -> Result<Step, Failure> {
        if !self.rows {
            return Ok(Step { pull: bytes(&workload.pull), push: bytes(&workload.push), tables: Vec::new() });
        }
        let listed = workload.tables.as_ref();
        let batch = self.batch.or(listed.and_then(|tables| tables.batch)).unwrap_or(Tables::default().batch);
        let table = |rows: u64, dim: u64| {
            let (rows, dim) = (rows.min(self.table_rows_max), usize::try_from(dim).unwrap_or(usize::MAX));
            Tables { tables: 1, rows, dim, batch, skew: self.skew }
        };
        if let Some(listed) = listed {
            let pull = workload.pull.iter().filter(|spec| !spec.is_batch_of_rows()).map(bytes_of).collect();
            let tables = listed.rows.iter().map(|&rows| table(rows, listed.dim)).collect();
            return Ok(Step { pull, push: bytes(&workload.push), tables });
        }
        let tables: Vec<Tables> = workload
            .pull
            .iter()
            .filter_map(|spec| rows_and_dim(spec, batch))
            .map(|(rows, dim)| table(rows, dim))
            .collect();
        if tables.is_empty() {
            return Err(Failure::input(format!(
                "--rows finds no table in {}: it lists none, and no 32-bit float variable has two dimensions and {} rows or more, \
                 {ROWS_OF_BATCH} times the batch; give a smaller --batch, or another --workload",
                workload.name,
                ROWS_OF_BATCH.saturating_mul(batch as u64),
            )));
        }
        let pull = workload.pull.iter().filter(|spec| rows_and_dim(spec, batch).is_none()).map(bytes_of).collect();
        let gradients = |spec: &TensorSpec| match rows_and_dim(spec, batch) {
            Some((_, dim)) => {
                let row = usize::try_from(dim).unwrap_or(usize::MAX).saturating_mul(size_of::<f32>());
                vec![batch.saturating_mul(row), batch * ID_BYTES]
            }
            None => vec![bytes_of(spec)],
        };
        Ok(Step { pull, push: workload.push.iter().flat_map(gradients).collect(), tables })
    }
}

fn bytes(specs: &[TensorSpec]) -> Vec<usize> {
    specs.iter().map(bytes_of).collect()
}

fn bytes_of(spec: &TensorSpec) -> usize {
    usize::try_from(spec.bytes()).unwrap_or(usize::MAX)
}

/// Rows and dimension of a variable, if it is a table for batches of that size.
fn rows_and_dim(spec: &TensorSpec, batch: usize) -> Option<(u64, u64)> {
    match spec.meta().shape()[..] {
        [rows, dim] if spec.dtype() == DType::F32 && rows >= ROWS_OF_BATCH.saturating_mul(batch as u64) => {
            Some((rows, dim))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        flags: RowsFlags,
    }

    fn step(line: &str, workload: &str) -> Result<Step, Failure> {
        let workload = Workload::parse(workload, "my.json").unwrap();
        Line::try_parse_from(line.split(' ')).unwrap_or_else(|error| panic!("{error}")).flags.step(&workload)
    }

    const MINE: &str = r#"{"tensors":[{"name":"users","shape":[1000,16]},{"name":"kernel","shape":[64,32]},{"name":"bias","shape":[5000]},
        {"name":"ids","shape":[9000,2],"dtype":"i64"}]}"#;

    #[test]
    fn variables_with_many_rows_are_tables() {
        let found = step("ps --rows --batch 100 --skew uniform", MINE).unwrap();
        assert_eq!((found.pull, found.push), (vec![8_192, 20_000, 144_000], vec![6_400, 800, 8_192, 20_000, 144_000]));
        assert_eq!(found.tables, [Tables { tables: 1, rows: 1_000, dim: 16, batch: 100, skew: Skew::Uniform }]);
        assert_eq!(step("ps --rows --batch 8 --table-rows-max 10", MINE).unwrap().tables.len(), 2);
        let refused = step("ps --rows", MINE).unwrap_err().to_string();
        assert!(
            refused.starts_with("--rows finds no table in my: it lists none, and no 32-bit float")
                && refused.contains("16384 rows")
        );
        let whole = step("ps", MINE).unwrap();
        assert_eq!((whole.pull.len(), whole.push.len(), whole.tables.len()), (4, 4, 0));
        assert!(Line::try_parse_from(["ps", "--batch", "3"]).is_err());
    }

    #[test]
    fn listed_tables_take_the_place_of_their_batches() {
        let text = Workload::text("dlrm_kaggle").unwrap();
        let found = step("ps --rows", &text).unwrap();
        assert_eq!((found.pull.len(), found.push.len(), found.tables.len()), (14, 66, 26));
        assert_eq!((found.tables[0].rows, found.tables[2].rows), (1_460, 100_000));
        assert!(found.tables.iter().all(|table| (table.batch, table.dim) == (128, 16)));
        let found = step("ps --rows --batch 2048 --table-rows-max 20000000", &text).unwrap();
        assert_eq!((found.tables[2].rows, found.tables[2].batch), (10_131_227, 2_048));
    }
}
