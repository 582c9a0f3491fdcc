//! Growth on virtual time: the parameter-server experiment at sizes that no machine here can run, by simulation. Owns its plan,
//! its cost model, and what comes of them; one thread, no sockets, and the same outcome for the same input.
//!
//! # The model
//!
//! Its manner is that of LogGP (Alexandrov, Ionescu, Schauser, Scheiman 1995), whose letters are in brackets: what a message
//! costs is a sum of few constants, and everything else is waiting. W workers live on hosts with some workers each, M ps on hosts
//! of their own. A host has shards and a NIC. **A step** of a worker is four messages to and from each ps: a request, the answer with
//! that ps's variables; then, after some compute time, a push of their gradients and the word that they were taken. It sends
//! its requests to all ps at once and its pushes to all ps at once. Asynchronous workers begin again as soon as all were taken.
//! Of synchronous ones, a request waits at its ps until all workers' gradients of the step before are in there.
//!
//! | cost | unit | of | from |
//! |---|---|---|---|
//! | write \[o\] | ns | what leaves a shard, or reaches one, at once | [`Costs`]: measured, or `--calibrate` |
//! | message \[o\] | ns | each frame in it; as many as Sealane sends (8 KiB of small variables, 4 KiB of small gradients, or a chunk of 4 MiB) | the same |
//! | byte \[G of the shard\] | ns | each byte in it | the same |
//! | row | ns | each row that is gathered or put into its place, besides its bytes | reports of `bench rows` by `--calibrate`, else 0 |
//! | NIC \[G of the network\] | Gbit/s | each byte, at both NICs, which send and receive at the same time | `--nic-gbit` |
//! | propagation \[L\] | µs | from NIC to NIC | `--propagation-us` |
//! | compute | µs | between the last answer and the first push; lognormal around its mean | `--compute-us`, `--straggler-sigma` |
//! | session | bytes | each worker and ps, at both ends | what an idle peer was measured to hold |
//!
//! Every shard and each direction of a NIC works one message after the other in the order in which they come. A NIC passes bytes on as they
//! come, so an idle path costs one G, not two; a shard begins when it has the whole message. A worker and a ps have a shard on each side,
//! drawn at random as their lane is; with `--stripes` as many of the worker host's shards have an equal part in each pull, as
//! with variables that each ps publishes in so many slices.
//! Of that alone come incast (many workers' gradients meet at a ps's NIC and shard), the cores of both ends, the imbalance of variables
//! over ps (whole variables, or slices, the largest first, each to the ps that has least), and that the slowest ps and worker decide.
//!
//! With `--rows`, the request and the answer are also those for rows of tables: what each ps is asked for is drawn as `bench rows` draws
//! it and encoded as a client does, a request for each table and ps that has rows of the batch, a frame each way for each. That a row is
//! sent once however often it is named is in it, and so is that popular rows of all tables meet at some ps. A client's share of that
//! work, which is the training process's own, counts as its host's shard's, and how much of a pull may be in flight is left out.
//!
//! What it leaves out: the fabric between NICs (no switch is ever the limit), lost segments and congestion control, the memory
//! bandwidth that the shards of a host share, what the training process does with a core of its own, and that a shard with many
//! sessions finds less of them in its caches than the one that was calibrated. Each session is a worker's own: a daemon whose
//! workers share one has fewer writes.
//!
//! # The first limit
//!
//! A resource whose busiest piece works for nine tenths of the time is the limit. Where none does, each is doubled in turn; the
//! one that brings most is the limit if it brings a fifth, else the step is made of latency, or of compute time. What moves a limit is
//! found in the same way, by simulating it.

mod calibration;
mod fit;
mod limit;
mod lookups;
mod plan;
mod report;
mod scene;
mod simulation;
mod station;
#[cfg(test)]
mod tests;

use crate::error::BenchError;
use crate::progress::Progress;
use crate::sample::{Metric, Sample};
use crate::spread::rounded;

pub use calibration::{Calibration, Prediction, REPORTS_MAX};
pub use lookups::Lookups;
pub use plan::{Course, GrowthPlan, PAIRS_MAX, PS_MAX, SIZES, SIZES_MAX, SLICES_MAX, WORKERS_MAX};
pub use report::{
    CostsRow, FirstLimit, GrowthParameters, GrowthReport, MovedBy, RowsOfSize, SCHEMA, SessionBytes, SizeRow, StepTimes,
};
pub use scene::{Costs, EndCosts, Variables};
pub use simulation::Shares;

/// Simulates every size of a plan.
///
/// # Errors
/// [`BenchError::Setting`]: the plan is outside its limits.
pub fn grow(plan: &GrowthPlan, progress: &mut Progress) -> Result<GrowthReport, BenchError> {
    plan.check()?;
    progress.begin(plan.sizes.len() as u32, 1);
    let mut sizes: Vec<SizeRow> = Vec::with_capacity(plan.sizes.len());
    for (round, size) in (0..).zip(&plan.sizes) {
        let first = sizes.first().map(|first| first.steps_per_s / first.size.workers as f64);
        let row = limit::measure(plan, *size, first);
        progress.measured(round, &size.to_string(), &Sample::figure(Metric::StepsPerSecond, row.steps_per_s));
        sizes.push(row);
    }
    progress.end();
    let calibration = plan.calibration.as_ref();
    Ok(GrowthReport {
        schema: SCHEMA.to_owned(),
        parameters: GrowthParameters {
            plan: plan.clone(),
            pull_bytes: plan.variables.pull.iter().sum(),
            push_bytes: plan.variables.push.iter().sum(),
        },
        costs: CostsRow {
            costs: plan.costs(),
            session_bytes: limit::SESSION_BYTES,
            calibrated_from: calibration.map_or(Vec::new(), |calibration| calibration.from.clone()),
            ends_measured: calibration.map(|calibration| calibration.ends_measured),
            worst_error_percent: calibration.map(|calibration| rounded(calibration.worst_error_percent())),
            inputs: calibration.map_or(Vec::new(), |calibration| calibration.inputs.clone()),
        },
        sizes,
    })
}
