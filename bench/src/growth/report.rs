//! What a run of `growth` found out, as the JSON that scripts rely on.

use std::fmt;

use serde::Serialize;

use super::calibration::Prediction;
use super::costs::Costs;
use super::plan::GrowthPlan;
use super::simulation::Shares;
use super::size::Size;

/// Names the JSON's shape; another shape gets another number.
pub const SCHEMA: &str = "sealane-growth/1";

/// Everything that a run found out.
#[derive(Clone, Debug, Serialize)]
pub struct GrowthReport {
    /// Always [`SCHEMA`].
    pub schema: String,
    /// The machines.
    pub parameters: GrowthParameters,
    /// What messages cost on them.
    pub costs: CostsRow,
    /// One row a size.
    pub sizes: Vec<SizeRow>,
}

/// What was simulated.
#[derive(Clone, Debug, Serialize)]
pub struct GrowthParameters {
    /// The machines.
    #[serde(flatten)]
    pub plan: GrowthPlan,
    /// Bytes that a worker pulls in a step.
    pub pull_bytes: u64,
    /// Bytes that it pushes.
    pub push_bytes: u64,
}

/// The costs, and where they are from.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct CostsRow {
    /// CPU times, in nanoseconds.
    #[serde(flatten)]
    pub costs: Costs,
    /// What a session holds at each of its ends.
    pub session_bytes: u64,
    /// Reports that they were found from; none: the program's own.
    pub calibrated_from: Vec<String>,
    /// Whether each end's CPU time was measured, or the sum of both halved; `None` without reports.
    pub ends_measured: Option<bool>,
    /// The largest error of the steps a second that they foretell; `None` without reports.
    pub worst_error_percent: Option<f64>,
    /// What was measured, and what they foretell.
    pub inputs: Vec<Prediction>,
}

/// One size.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct SizeRow {
    /// Workers and parameter servers.
    #[serde(flatten)]
    pub size: Size,
    /// Steps a second of all workers together.
    pub steps_per_s: f64,
    /// How long a step takes a worker.
    pub step_ms: StepTimes,
    /// Share of the time in which the busiest of its kind works, 0 to 1.
    pub utilisation: Shares,
    /// The same of the mean of its kind.
    pub mean_utilisation: Shares,
    /// Steps a second and worker, in those of the first size.
    pub efficiency: f64,
    /// Bytes of the ps that has most, in those that each would have of an equal share.
    pub imbalance: f64,
    /// Bytes that sessions hold in a ps, and in a worker host.
    pub session_bytes: SessionBytes,
    /// What keeps it from more.
    pub first_limit: FirstLimit,
    /// What helps most of what was tried; `None` where nothing was.
    pub moved_by: Option<MovedBy>,
    /// All that was tried.
    pub tried: Vec<MovedBy>,
}

/// Times in milliseconds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct StepTimes {
    /// Half take at most so long.
    pub p50: f64,
    /// 99 % do.
    pub p99: f64,
}

/// Bytes for each end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct SessionBytes {
    /// One ps.
    pub ps: u64,
    /// One worker host.
    pub worker_host: u64,
}

/// What limits the steps a second.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum FirstLimit {
    /// The shards of a ps.
    PsCpu,
    /// Its NIC.
    PsNic,
    /// The shards of a worker host.
    WorkerCpu,
    /// Its NIC.
    WorkerNic,
    /// None of them by itself: a message waits for the one before it.
    Latency,
    /// The compute time of the workers.
    Compute,
}

/// As the JSON calls it.
impl fmt::Display for FirstLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.serialize(f)
    }
}

/// A change, and what comes of it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct MovedBy {
    /// The change.
    pub what: String,
    /// The steps a second with it, in those without.
    pub factor: f64,
}

impl GrowthReport {
    /// The JSON text, with a line break at its end.
    pub fn to_json(&self) -> String {
        let mut text = serde_json::to_string_pretty(self).expect("a report has only named fields and finite numbers");
        text.push('\n');
        text
    }
}
