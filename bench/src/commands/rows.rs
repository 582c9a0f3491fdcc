//! `sealane bench rows`: workers that pull rows of embedding tables.

use crate::{Bench, Plan, Size, Skew, Tables, Training};

use super::{Common, plan};

/// Rows of embedding tables by their numbers: workers pull a batch of every table, from all ps at once
///
/// All tables have the same size, are sharded over the ps by modulo, and have 32-bit floats. In each step a worker names --batch rows
/// of every table and waits until all are in its memory. Over tcp, all ps are tasks of one engine and the workers of another; over shm
/// all are clients of one engine, which has a process to itself together with the ps. Every worker has a thread; several share a CPU,
/// so they sleep whenever they wait. rows_per_s counts rows as often as they were named; step_ms is one worker's step; CPU times are
/// per step. Rows that a step names twice are asked for once by Sealane, and gathered twice by the others.
///
/// raw over tcp: a gather in one process, and one message with all rows; over shm: a gather in the process that wants the rows, as by
/// numpy.take. grpc: one tonic call per ps, whose request has the numbers and whose answer has the rows. whole: Sealane pulls
/// all tables as a whole, by a plan.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  sealane bench rows --baseline raw --baseline grpc\n  \
                  sealane bench rows --link shm --baseline raw\n  \
                  sealane bench rows --rows 10000000 --tables 4 --skew uniform --baseline raw\n  \
                  sealane bench rows --workers 4 --ps 2 --baseline grpc")]
pub(super) struct Args {
    #[command(flatten)]
    pub(super) common: Common,

    /// Tables
    #[arg(long, value_name = "N", default_value_t = Tables::default().tables)]
    tables: usize,

    /// Rows of each table
    #[arg(long, value_name = "N", default_value_t = Tables::default().rows)]
    rows: u64,

    /// Elements of a row, of 4 bytes each
    #[arg(long, value_name = "N", default_value_t = Tables::default().dim)]
    dim: usize,

    /// Rows that a worker names of each table in a step
    #[arg(long, value_name = "N", default_value_t = Tables::default().batch)]
    batch: usize,

    /// How popular rows are: uniform, or zipf with its exponent
    #[arg(long, value_name = "uniform|zipf:S", default_value_t = Tables::default().skew)]
    skew: Skew,

    /// Workers
    #[arg(long, value_name = "N", default_value_t = 1)]
    workers: usize,

    /// Parameter servers
    #[arg(long, value_name = "N", default_value_t = 1)]
    ps: usize,
}

impl Args {
    /// What the flags describe.
    pub(super) fn plan(&self) -> Plan {
        let &Self { tables, rows, dim, batch, skew, workers, ps, .. } = self;
        let plan = plan(Bench::Rows, &self.common);
        let training = plan.training.clone().map(|training| Training { size: Size { workers, ps }, ..training });
        Plan { training, tables: vec![Tables { tables, rows, dim, batch, skew }], ..plan }
    }
}
