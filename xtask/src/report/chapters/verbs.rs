//! RDMA: what the lab measures, in an emulated machine with a software device.

use sealane_bench::{Column, Table};

use super::Chapter;
use super::ps::of_variants;
use crate::report::experiment::{Program, other};
use crate::report::figure::{self, NOT_MEASURED, cell, quotient};
use crate::report::results::{Results, certain, inverse};

/// What the lab measures, each beside the figure of perftest that it is compared with.
const LINES: [(&str, &str, &str, &str); 7] = [
    ("64 B there and back, bare SENDs", "lab_latency", "raw", "rtt_us.p50"),
    ("64 B there and back, Sealane", "lab_latency", "sealane", "rtt_us.p50"),
    ("1 MiB tensors, window 2, write", "lab_write", "sealane", "gigabytes_per_s"),
    ("1 MiB tensors, window 2, read", "lab_read", "sealane", "gigabytes_per_s"),
    ("1 MiB tensors, window 2, registered for each transfer", "lab_dynamic", "sealane", "gigabytes_per_s"),
    ("1 MiB tensors, window 1", "lab_window_1", "sealane", "gigabytes_per_s"),
    ("1 MiB tensors, window 40", "lab_window_40", "sealane", "gigabytes_per_s"),
];

pub(super) const LAB: Chapter = Chapter {
    name: "lab",
    heading: "RDMA in the lab",
    question: "Is the link over verbs as good as perftest on the same device? The lab boots an emulated machine with Soft-RoCE: ratios within one \
               boot tell something, figures nothing, and neither says what a real card does.",
    experiments: &[
        other("lab_ib_send_lat", Program::Lab("ib_send_lat"), ""),
        other("lab_ib_write_bw", Program::Lab("ib_write_bw"), ""),
        other("lab_latency", Program::Lab("bench_latency"), ""),
        other("lab_write", Program::Lab("bench_write"), ""),
        other("lab_read", Program::Lab("bench_read"), ""),
        other("lab_dynamic", Program::Lab("bench_dynamic"), ""),
        other("lab_window_1", Program::Lab("bench_window_1"), ""),
        other("lab_window_40", Program::Lab("bench_window_40"), ""),
    ],
    answer: |results, section| section.table(lab(results)),
};

/// Perftest's own, and each of ours by it.
pub(in crate::report) fn lab(results: &Results) -> Table {
    let perftest = |metric: &str| {
        let experiment = if figure::is_cost(metric) { "lab_ib_send_lat" } else { "lab_ib_write_bw" };
        results.get(experiment)?.figure("perftest", None, metric)
    };
    let shown = |metric: &str, found: Option<_>| {
        found.map_or_else(|| NOT_MEASURED.to_owned(), |spread| figure::with_spread(metric, spread))
    };
    let own = [
        ("64 B there and back: perftest, twice ib_send_lat", "rtt_us.p50"),
        ("1 MiB: perftest, ib_write_bw", "gigabytes_per_s"),
    ];
    let own = own.map(|(what, metric)| vec![what.to_owned(), shown(metric, perftest(metric)), String::new()]);
    let rows = LINES.map(|(what, experiment, system, metric)| {
        let figure = results.get(experiment).and_then(|run| run.figure(system, None, metric));
        let by = figure.zip(perftest(metric)).map(|(figure, perftest)| certain(figure.median / perftest.median));
        let by = by.map(|by| if figure::is_cost(metric) { inverse(by) } else { by });
        vec![what.to_owned(), shown(metric, figure), cell(by.map(quotient))]
    });
    let columns = [Column::text("what"), Column::number("in this boot"), Column::number("speed: perftest = 1")];
    Table::new(columns, own.into_iter().chain(rows))
}

/// Sizes that fit into the emulated machine.
pub(super) const PS: Chapter = Chapter {
    name: "ps_verbs",
    heading: "Many request buffers and static registration over RDMA",
    question: "The table at the top once more over verbs, in the lab and at a size that fits there: here registration is the device's.",
    experiments: &[other("ps_verbs", Program::Lab("bench_ps"), "")],
    answer: |results, section| {
        let metrics = [
            ("steps a second", "steps_per_s"),
            ("step, p50", "step_ms"),
            ("p99", "step_p99_ms"),
            ("messages a step", "messages_per_step"),
        ];
        of_variants(results, section, "ps_verbs", &metrics)
    },
};
