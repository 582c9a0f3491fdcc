//! Costs by measurement: reports of `sealane bench ps` are read, the costs that explain their CPU time best are found, and the
//! same simulation that is to foretell large sizes has to foretell the steps a second that were measured. Pure; as many inputs
//! as the user gives, up to a limit.

#[cfg(test)]
mod tests;

use serde::{Deserialize, Serialize};

use super::fit::{COEFFICIENTS, Equation, cost, fit};
use super::lookups::Lookups;
use super::plan::{Course, PS_MAX, WORKERS_MAX};
use super::scene::{Costs, EndCosts, Load, Machines, Part, Scene};
use super::simulation::simulate;
use crate::error::BenchError;
use crate::plan::{Mode, Size, Tables, check_tables};
use crate::report::SCHEMA;
use crate::spread::rounded;

/// Most reports.
pub const REPORTS_MAX: usize = 256;
/// Fewest inputs: with one, writes, messages and bytes cannot be told apart.
const INPUTS_MIN: usize = 2;
/// Writes that an end makes or takes for a step and ps: request, answer, push, taken.
const WRITES_A_PS: f64 = 4.0;
/// Messages that carry no tensor for a step and ps: request and taken.
const CONTROLS_A_PS: f64 = 2.0;
/// What a variant says of itself where a step is no plan: how often such a step writes is not in a report.
const OTHER_FUSIONS: [&str; 4] = ["off", "turn", "receive", "receive-wait-all"];

/// Costs, and how well they explain what they were found from.
#[derive(Clone, Debug, PartialEq)]
pub struct Calibration {
    /// The costs.
    pub costs: Costs,
    /// The reports' names.
    pub from: Vec<String>,
    /// What was measured, and what the costs say.
    pub inputs: Vec<Prediction>,
    /// Whether each end's CPU time was measured; else each is taken to have half.
    pub ends_measured: bool,
    /// Variants that were left out, since they do not pull by plan.
    pub left_out: usize,
}

/// A measurement, and what a simulation of it says.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Prediction {
    /// The report's name.
    pub report: String,
    /// The variant in it.
    pub variant: String,
    /// What was pulled and pushed; `None` where the report does not say.
    pub workload: Option<String>,
    /// Workers and parameter servers.
    #[serde(flatten)]
    pub size: Size,
    /// Steps a second of all workers together, as measured.
    pub measured_steps_per_s: f64,
    /// The same, as simulated.
    pub predicted_steps_per_s: f64,
    /// How much that is more, in percent of what was measured.
    pub error_percent: f64,
    /// How much more CPU time the costs give a step than was measured, in percent.
    pub cpu_error_percent: f64,
}

impl Calibration {
    /// The costs that explain reports best; each comes with its name.
    ///
    /// # Errors
    /// [`BenchError::Calibration`]: one cannot be read, lacks a figure, or all together are too few.
    pub fn of(reports: &[(String, String)]) -> Result<Calibration, BenchError> {
        let together = || names(reports);
        if reports.is_empty() || reports.len() > REPORTS_MAX {
            return Err(wrong(&together(), format!("there are {} reports; give 1 to {REPORTS_MAX}", reports.len())));
        }
        let (mut inputs, mut rows, mut left_out) = (Vec::new(), Vec::new(), 0);
        for (name, text) in reports {
            left_out += read(name, text, &mut inputs, &mut rows)?;
        }
        if inputs.len() < INPUTS_MIN {
            let found = inputs.len();
            return Err(wrong(
                &together(),
                format!(
                    "they have {found} measurements of sealane pulling by plan; give {INPUTS_MIN} or more, of workloads of unlike size"
                ),
            ));
        }
        let ends_measured = inputs.iter().all(|input| input.ends_ns.is_some());
        let end = |worker: bool| {
            let equations: Vec<Equation> = inputs
                .iter()
                .map(|input| {
                    let half = input.cpu_ns / 2.0;
                    let (of_worker, of_ps) = input.ends_ns.filter(|_| ends_measured).unwrap_or((half, half));
                    Equation { counts: input.counts(), cost: if worker { of_worker } else { of_ps } }
                })
                .collect();
            fit(&equations).ok_or_else(|| {
                wrong(&together(), "no costs explain them; give reports of workloads of unlike size".to_owned())
            })
        };
        let (worker, ps) = (end(true)?, end(false)?);
        let costs = Costs {
            worker: of_coefficients(worker, row_ns(&rows, 0, &worker)),
            ps: of_coefficients(ps, row_ns(&rows, 1, &ps)),
        };
        let inputs = inputs.iter().map(|input| input.predicted(&costs, &[worker, ps])).collect();
        let from = reports.iter().map(|(name, _)| name.clone()).collect();
        Ok(Calibration { costs, from, inputs, ends_measured, left_out })
    }

    /// The largest error of steps a second, in percent.
    pub fn worst_error_percent(&self) -> f64 {
        self.inputs.iter().map(|input| input.error_percent.abs()).fold(0.0, f64::max)
    }
}

/// A measurement that a report has.
#[derive(Clone, Debug)]
struct Input {
    report: String,
    variant: String,
    workload: Option<String>,
    size: Size,
    mode: Mode,
    compute_us: f64,
    steps_per_s: f64,
    messages: f64,
    bytes: f64,
    /// CPU time of a step at both ends.
    cpu_ns: f64,
    /// The same of the worker and of the ps.
    ends_ns: Option<(f64, f64)>,
}

impl Input {
    fn counts(&self) -> [f64; COEFFICIENTS] {
        [self.size.ps as f64 * WRITES_A_PS, self.messages, self.bytes]
    }

    fn predicted(&self, costs: &Costs, ends: &[[f64; COEFFICIENTS]; 2]) -> Prediction {
        let predicted = self.simulated(costs);
        let cpu_ns: f64 = ends.iter().map(|coefficients| cost(&self.counts(), coefficients)).sum();
        let percent = |predicted: f64, measured: f64| rounded((predicted / measured - 1.0) * 100.0);
        Prediction {
            report: self.report.clone(),
            variant: self.variant.clone(),
            workload: self.workload.clone(),
            size: self.size,
            measured_steps_per_s: self.steps_per_s,
            predicted_steps_per_s: rounded(predicted),
            error_percent: percent(predicted, self.steps_per_s),
            cpu_error_percent: percent(cpu_ns, self.cpu_ns),
        }
    }

    /// Steps a second of the measurement's own machines: all workers share one shard, all ps another, and between them is a
    /// loopback without delay. What a step moves is the same for each ps.
    fn simulated(&self, costs: &Costs) -> f64 {
        let machines = Machines {
            size: self.size,
            workers_per_host: self.size.workers,
            ps_per_host: self.size.ps,
            worker_shards: 1,
            ps_shards: 1,
            stripes: 1,
            worker_nic_gbit: f64::INFINITY,
            ps_nic_gbit: f64::INFINITY,
            propagation_us: 0.0,
        };
        let course = Course { mode: self.mode, compute_us: self.compute_us, straggler_sigma: 0.0, seed: 0 };
        let ps = self.size.ps as f64;
        let tensors = (self.messages / ps - CONTROLS_A_PS).max(CONTROLS_A_PS);
        let part = Part { bytes: (self.bytes / ps / 2.0).round() as u64, messages: tensors / 2.0, rows: 0.0 };
        let loads = vec![Load { request: Part::CONTROL, pull: part, push: part }; self.size.ps];
        simulate(&Scene::new(machines, course, costs, &loads)).steps_per_second()
    }
}

fn of_coefficients([write_ns, message_ns, byte_ns]: [f64; COEFFICIENTS], row_ns: f64) -> EndCosts {
    EndCosts { write_ns, message_ns, byte_ns, row_ns }
}

/// A measurement of `bench rows`: pulls without pushes.
#[derive(Clone, Copy, Debug)]
struct RowsInput {
    counts: [f64; COEFFICIENTS],
    /// Rows that moved in a step.
    rows: f64,
    /// CPU time of a step, of the worker and of the ps.
    ends_ns: [f64; 2],
}

/// What a row costs an end besides messages and bytes, on average; 0 where nothing was measured.
fn row_ns(inputs: &[RowsInput], end: usize, coefficients: &[f64; COEFFICIENTS]) -> f64 {
    let rest = |input: &RowsInput| ((input.ends_ns[end] - cost(&input.counts, coefficients)) / input.rows).max(0.0);
    inputs.iter().map(rest).sum::<f64>() / inputs.len().max(1) as f64
}

/// The part of a report that matters here. Others may have more.
#[derive(Deserialize)]
struct Report {
    schema: String,
    bench: String,
    parameters: Parameters,
    results: Vec<Row>,
}

#[derive(Deserialize)]
struct Parameters {
    workers: Option<usize>,
    ps: Option<usize>,
    workload: Option<String>,
    mode: Option<Mode>,
    compute_us: Option<f64>,
    #[serde(default)]
    tables: Vec<Tables>,
}

#[derive(Deserialize)]
struct Row {
    system: String,
    variant: String,
    metric: String,
    /// Percentiles have none.
    value: Option<f64>,
}

/// Adds the measurements of a report, and tells how many variants of Sealane it left out.
fn read(name: &str, text: &str, inputs: &mut Vec<Input>, of_rows: &mut Vec<RowsInput>) -> Result<usize, BenchError> {
    let report: Report = serde_json::from_str(text)
        .map_err(|error| wrong(name, format!("{error}; name a report that `sealane bench ps --json FILE` wrote")))?;
    if report.schema != SCHEMA || !["ps", "rows"].contains(&&*report.bench) {
        let problem = format!(
            "it is a report of {} in {}; name one of ps or rows in {SCHEMA}, as `sealane bench ps --json FILE` writes it",
            report.bench, report.schema
        );
        return Err(wrong(name, problem));
    }
    let Parameters { workers, ps, workload, mode, compute_us, tables } = report.parameters;
    let counted = |what: &str, count: Option<usize>, most: usize| {
        count
            .filter(|count| (1..=most).contains(count))
            .ok_or_else(|| wrong(name, format!("parameters.{what} is not 1 to {most}; measure again")))
    };
    let size = Size { workers: counted("workers", workers, WORKERS_MAX)?, ps: counted("ps", ps, PS_MAX)? };
    check_tables(&tables).map_err(|error| wrong(name, format!("parameters.tables: {error}; measure again")))?;
    if report.bench == "ps" && !tables.is_empty() {
        return Err(wrong(name, "it is of ps with --rows; name one without, or one of rows".to_owned()));
    }
    let lookups = Lookups::new(tables);
    let mut variants: Vec<&str> = Vec::new();
    for row in report.results.iter().filter(|row| row.system == "sealane") {
        if !variants.contains(&row.variant.as_str()) {
            variants.push(&row.variant);
        }
    }
    let is_plan = |variant: &&str| variant.split(", ").all(|word| !OTHER_FUSIONS.contains(&word));
    let all = variants.len();
    variants.retain(is_plan);
    let left_out = all - variants.len();
    for variant in variants {
        let of_variant = |metric: &str| {
            let mut rows = report.results.iter().filter(|row| row.system == "sealane" && row.variant == variant);
            rows.find(|row| row.metric == metric)?.value.filter(|value| value.is_finite() && *value > 0.0)
        };
        let needed = |metric: &str| {
            of_variant(metric).ok_or_else(|| {
                wrong(name, format!("variant {variant:?} of sealane has no {metric} above 0; measure again"))
            })
        };
        let ends = of_variant("worker_cpu_ms_per_step").zip(of_variant("ps_cpu_ms_per_step"));
        let ends_ns = ends.map(|(worker, ps)| (worker * 1e6, ps * 1e6));
        if report.bench == "rows" {
            let [worker, ps] = [needed("worker_cpu_ms_per_step")?, needed("ps_cpu_ms_per_step")?];
            let writes = WRITES_A_PS / 2.0 * size.ps as f64;
            of_rows.push(RowsInput {
                counts: [writes, needed("messages_per_step")?, needed("bytes_per_step")?],
                rows: lookups.over(size.ps).iter().map(|asked| asked.rows).sum::<f64>().max(1.0),
                ends_ns: [worker * 1e6, ps * 1e6],
            });
            continue;
        }
        let cpu_ns = match ends_ns {
            Some((worker, ps)) => worker + ps,
            None => needed("cpu_ms_per_step")? * 1e6,
        };
        let is_sync = variant.split(", ").any(|word| word == "sync");
        inputs.push(Input {
            report: name.to_owned(),
            variant: variant.to_owned(),
            workload: workload.clone(),
            size,
            mode: if is_sync { Mode::Sync } else { mode.unwrap_or_default() },
            compute_us: compute_us.unwrap_or(0.0),
            steps_per_s: needed("steps_per_s")?,
            messages: needed("messages_per_step")?,
            bytes: needed("bytes_per_step")?,
            cpu_ns,
            ends_ns,
        });
    }
    Ok(left_out)
}

fn names(reports: &[(String, String)]) -> String {
    reports.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>().join(", ")
}

fn wrong(place: &str, problem: String) -> BenchError {
    BenchError::Calibration { place: place.to_owned(), problem }
}
