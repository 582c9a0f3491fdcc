//! What a run of `growth` found out: the JSON that scripts rely on, and the report as people read it.

use std::fmt::{self, Write};

use serde::Serialize;

use super::calibration::Prediction;
use super::plan::GrowthPlan;
use super::scene::{Costs, EndCosts};
use super::simulation::Shares;
use crate::byte_count::format_bytes;
use crate::limits::PEERS_MAX;
use crate::plan::{Size, in_words};
use crate::table::{Column, Table};

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
    /// Bytes that a worker pulls in a step, without rows.
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
    /// What pulls of rows are for its parameter servers; `None` without.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rows: Option<RowsOfSize>,
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

/// Pulls of rows, as the ps that has most of them sees them.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct RowsOfSize {
    /// Rows that a worker is sent in a step, by all ps together.
    pub rows_per_step: f64,
    /// Requests that it makes for them.
    pub requests_per_step: f64,
    /// Requests that reach each shard of a ps in a second.
    pub requests_per_s_and_shard: f64,
    /// Bytes of requests that reach a ps in a second.
    pub request_bytes_per_s: f64,
    /// Bytes of rows that leave it in a second.
    pub row_bytes_per_s: f64,
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

impl GrowthReport {
    /// A heading, what costs are assumed and how well they explain measurements, and a table of the sizes.
    pub fn to_table(&self) -> String {
        let mut text = self.heading();
        text.push_str("\n\n");
        text.push_str(&self.costs().to_text());
        text.push_str(&self.provenance());
        text.push('\n');
        if !self.costs.inputs.is_empty() {
            text.push_str(&self.predictions().to_text());
            text.push('\n');
        }
        text.push_str(&self.growth().to_text());
        text.push('\n');
        if !self.parameters.plan.lookups.tables().is_empty() {
            text.push_str(&self.rows().to_text());
            text.push('\n');
        }
        text.push_str(&self.notes());
        text
    }

    /// One line that says what was simulated.
    pub(crate) fn heading(&self) -> String {
        let settings = &self.parameters.plan;
        let count = settings.slices.map_or(String::new(), |count| format!(" in {count} slices"));
        let slices = settings.slice_bytes.map_or(count, |bytes| {
            format!(" in slices of at most {}", format_bytes(usize::try_from(bytes).unwrap_or(usize::MAX)))
        });
        let compute = match settings.course.straggler_sigma {
            _ if settings.course.compute_us == 0.0 => String::new(),
            0.0 => format!(", {} µs of compute time", settings.course.compute_us),
            sigma => format!(", {} µs of compute time (sigma {sigma})", settings.course.compute_us),
        };
        let stripes = match settings.stripes {
            1 => String::new(),
            stripes => format!(", pulls in {stripes} stripes"),
        };
        let rows = match settings.lookups.tables() {
            [] => String::new(),
            tables => format!(" and rows of {}", in_words(tables)),
        };
        format!(
            "growth on virtual time, {}, {}{slices}{rows}: {} workers a host, {} and {} shards a worker host and ps{stripes}, NICs of {} Gbit/s, \
             {} µs between them{compute}",
            settings.course.mode,
            settings.workload,
            settings.workers_per_host,
            settings.worker_shards,
            settings.ps_shards,
            settings.nic_gbit_per_s,
            settings.propagation_us,
        )
    }

    fn costs(&self) -> Table {
        let heads = ["ns a write", "ns a message", "ns a byte", "ns a row"].map(Column::number);
        let ends = [("a worker's shard", self.costs.costs.worker), ("a ps's shard", self.costs.costs.ps)];
        let row = |(name, end): (&str, EndCosts)| {
            vec![
                name.to_owned(),
                format!("{:.0}", end.write_ns),
                format!("{:.0}", end.message_ns),
                format!("{:.3}", end.byte_ns),
                format!("{:.0}", end.row_ns),
            ]
        };
        Table::new([&[Column::text("CPU time")], &heads[..]].concat(), ends.map(row))
    }

    /// Where the costs are from.
    fn provenance(&self) -> String {
        let Some(worst) = self.costs.worst_error_percent else {
            return "These are the program's own costs; --calibrate takes them from reports of `sealane bench ps`.\n"
                .to_owned();
        };
        let (inputs, reports) = (self.costs.inputs.len(), self.costs.calibrated_from.len());
        let halved = match self.costs.ends_measured {
            Some(false) => " The reports do not tell both ends apart: each is taken to have half of the CPU time.",
            _ => "",
        };
        format!(
            "Found from {inputs} measurements in {reports} reports, whose steps/s they foretell with an error of at most {worst:.1} %.{halved}\n"
        )
    }

    fn predictions(&self) -> Table {
        let columns = [
            Column::text("measured"),
            Column::text("variant"),
            Column::number("size"),
            Column::number("steps/s"),
            Column::number("foretold"),
            Column::number("error, %"),
            Column::number("of CPU time, %"),
        ];
        let rows = self.costs.inputs.iter().map(|input| {
            vec![
                input.report.clone(),
                input.variant.clone(),
                input.size.to_string(),
                format!("{:.0}", input.measured_steps_per_s),
                format!("{:.0}", input.predicted_steps_per_s),
                format!("{:+.1}", input.error_percent),
                format!("{:+.1}", input.cpu_error_percent),
            ]
        });
        Table::new(columns, rows)
    }

    /// One row a size.
    pub(super) fn growth(&self) -> Table {
        let numbers =
            ["workers", "ps", "steps/s", "p50, ms", "p99, ms", "ps CPU", "ps NIC", "worker CPU", "worker NIC"];
        let texts = ["first limit", "moved by", "factor"];
        let columns: Vec<Column> = numbers
            .map(Column::number)
            .into_iter()
            .chain([Column::number("efficiency")])
            .chain(texts.map(Column::text))
            .collect();
        Table::new(columns, self.sizes.iter().map(row))
    }

    /// One row a size: what pulls of rows are for the ps that has most of them.
    fn rows(&self) -> Table {
        let heads = ["rows a step", "requests a step", "requests/s a shard", "requests, MB/s a ps", "rows, MB/s a ps"];
        let columns: Vec<Column> = ["workers", "ps"].into_iter().chain(heads).map(Column::number).collect();
        let row = |size: &SizeRow| {
            let rows = size.rows.as_ref()?;
            let counts = [rows.rows_per_step, rows.requests_per_step, rows.requests_per_s_and_shard];
            let rates = [rows.request_bytes_per_s, rows.row_bytes_per_s].map(|bytes| format!("{:.2}", bytes / 1e6));
            let sizes = [size.size.workers, size.size.ps].map(|count| count.to_string());
            Some(sizes.into_iter().chain(counts.map(|count| format!("{count:.0}"))).chain(rates).collect())
        };
        Table::new(columns, self.sizes.iter().filter_map(row))
    }

    fn notes(&self) -> String {
        let mut text = "Utilisation is that of the busiest of its kind. Efficiency is steps/s and worker in those of the first size.\n".to_owned();
        let most = self.sizes.iter().map(|size| size.size.workers).max().unwrap_or(0);
        let costs = self.costs.costs;
        if !self.parameters.plan.lookups.tables().is_empty() && costs.worker.row_ns + costs.ps.row_ns == 0.0 {
            text.push_str(
                "A row costs no more here than its bytes: --calibrate finds what it does in a report of `sealane bench rows` over tcp.\n",
            );
        }
        if most > PEERS_MAX {
            writeln!(
                text,
                "A ps of {most} workers has as many sessions: raise transport.links_max there, which is {PEERS_MAX} by default."
            )
            .expect("a string takes everything");
        }
        if let Some(last) = self.sizes.last() {
            let megabytes = |bytes: u64| bytes as f64 / 1e6;
            writeln!(
                text,
                "Sessions of {} hold {:.0} MB in a ps and {:.0} MB in a worker host.",
                last.size,
                megabytes(last.session_bytes.ps),
                megabytes(last.session_bytes.worker_host)
            )
            .expect("a string takes everything");
        }
        text
    }
}

fn row(size: &SizeRow) -> Vec<String> {
    let Shares { ps_cpu, ps_nic, worker_cpu, worker_nic } = size.utilisation;
    let shares = [ps_cpu, ps_nic, worker_cpu, worker_nic].map(|share| format!("{:.0} %", share * 100.0));
    let (what, factor) = size.moved_by.as_ref().map_or(("nothing tried".to_owned(), String::new()), |moved| {
        (moved.what.clone(), format!("{:.2}", moved.factor))
    });
    let head = [
        size.size.workers.to_string(),
        size.size.ps.to_string(),
        format!("{:.0}", size.steps_per_s),
        format!("{:.3}", size.step_ms.p50),
        format!("{:.3}", size.step_ms.p99),
    ];
    let tail = [format!("{:.2}", size.efficiency), size.first_limit.to_string(), what, factor];
    head.into_iter().chain(shares).chain(tail).collect()
}
