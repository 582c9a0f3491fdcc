//! `sealane bench sweep`: round trips and bandwidth of every size in one table.

use itertools::Itertools;
use sealane_cli::output_file::ReportOutput;
use sealane_cli::settings::show_bytes;
use sealane_cli::table::{Column, Table};
use sealane_cli::{Context, Failure};

use super::{Common, program};
use crate::byte_count::Sizes;
use crate::figures::Metric;
use crate::plan::{Bench, Plan, SystemName};
use crate::report::{Figures, Report};
use crate::run::{Progress, run};

/// Bytes of tensors in flight for bandwidth: as many as keep a link busy.
const IN_FLIGHT_BYTES: usize = 8 << 20;
/// Fewest and most tensors in flight.
const WINDOW: (usize, usize) = (2, 256);

/// Round trips and bandwidth of tensors of many sizes: one row per size, next to the bare link
///
/// For each size, measures round trips of one tensor at a time, as `latency` does; then bandwidth, as `bandwidth` does, with 8 MiB of tensors
/// in flight, but at least 2 and at most 256 tensors. CPU is the CPU time of each side's process for 10^9 bytes of tensors. A side that polls
/// uses its CPU all the time. Without --baseline, raw is measured as well.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  sealane bench sweep --rounds 1 --seconds 0.2\n  \
                  sealane bench sweep --connect 10.0.0.2 --secret-file bench.secret")]
pub(super) struct Args {
    #[command(flatten)]
    common: Common,

    /// Bytes of a tensor, as in 64, or a range, 64..4MiB: every other power of two
    #[arg(long, value_name = "BYTES", default_value = "64..4MiB")]
    size: Sizes,
}

/// Measures all sizes.
///
/// # Errors
/// As `latency` and `bandwidth`.
pub(super) fn measure(Args { common, size }: &Args, context: &Context) -> Result<(), Failure> {
    if common.plot.is_some() {
        return Err(Failure::input("--plot is of one benchmark; use it with latency or bandwidth"));
    }
    let output = ReportOutput::to(common.json.as_ref())?;
    let mut wanted = common.plan.clone();
    if wanted.baselines.is_empty() {
        wanted.baselines = vec![SystemName::Raw];
    }
    let plans: Vec<[Plan; 2]> = size.every_other().map(|size_bytes| plans(&wanted, size_bytes)).collect();
    let program = program(plans.as_flattened(), common)?;
    let mut reports = Vec::new();
    for plan in plans.as_flattened() {
        reports.push(run(plan, &program, Progress::Shown)?.report);
    }
    let json = reports.iter().map(Report::to_json).join(",");
    output.write(context, &format!("[{}]\n", json.trim_end()), &table(&reports))
}

/// The plans of one size: round trips, and bandwidth.
fn plans(wanted: &Plan, size_bytes: usize) -> [Plan; 2] {
    let window = (IN_FLIGHT_BYTES / size_bytes).clamp(WINDOW.0, WINDOW.1);
    let latency = Plan { size_bytes, ..wanted.clone().of(Bench::Latency) };
    [latency, Plan { size_bytes, window, ..wanted.clone().of(Bench::Bandwidth) }]
}

/// A row for each pair of reports.
fn table(reports: &[Report]) -> String {
    let systems: Vec<&str> = reports[0].results.iter().map(|row| row.system).unique().collect();
    let heads = |system: &&str| match *system {
        "sealane" => ["p50 µs", "p99 µs", "GB/s", "CPU here s/GB", "CPU there s/GB"].map(str::to_owned).to_vec(),
        baseline => ["p50 µs", "GB/s"].map(|head| format!("{baseline} {head}")).to_vec(),
    };
    let columns = std::iter::once("size".to_owned()).chain(systems.iter().flat_map(heads));
    let rows = reports.as_chunks().0.iter().map(|pair: &[Report; 2]| {
        let size = show_bytes(pair[0].parameters["size_bytes"].as_u64().unwrap_or_default());
        std::iter::once(size).chain(systems.iter().flat_map(|system| cells(pair, system))).collect()
    });
    let table = Table::new(columns.map(|head| Column::number(&head)).collect::<Vec<_>>(), rows);
    let warnings = reports.iter().flat_map(|report| &report.warnings).unique_by(|warning| warning.split(':').next());
    let warnings: String = warnings.map(|warning| format!("\nwarning: {warning}\n")).collect();
    format!("{}\n\n{}{warnings}", reports[0].heading, table.to_text())
}

fn cells([latency, bandwidth]: &[Report; 2], system: &str) -> Vec<String> {
    let value = |metric: Metric| {
        let figures = bandwidth.figures(system, metric);
        figures.map_or_else(String::new, |figures| match *figures {
            Figures::Value { value, .. } => metric.written(value),
            Figures::RoundTrips { .. } => String::new(),
        })
    };
    let trips = match latency.figures(system, Metric::RoundTrip) {
        Some(&Figures::RoundTrips { p50, p99, .. }) => [p50, p99].map(|time| Metric::RoundTrip.written(time)),
        _ => Default::default(),
    };
    let [p50, p99] = trips;
    let rate = value(Metric::GigabytesPerSecond);
    match system {
        "sealane" => vec![p50, p99, rate, value(Metric::CpuPerGigabyte), value(Metric::ProducerCpuPerGigabyte)],
        _ => vec![p50, rate],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plans_keep_the_link_busy_at_every_size() {
        for (size_bytes, window) in [(64, 256), (64 << 10, 128), (4 << 20, 2), (64 << 20, 2)] {
            let [latency, bandwidth] = plans(&Plan::new(Bench::Latency), size_bytes);
            assert_eq!((latency.bench, latency.window, latency.size_bytes), (Bench::Latency, 1, size_bytes));
            assert_eq!(
                (bandwidth.bench, bandwidth.window, bandwidth.size_bytes),
                (Bench::Bandwidth, window, size_bytes)
            );
        }
    }
}
