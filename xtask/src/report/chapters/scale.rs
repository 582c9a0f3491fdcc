//! Growth: measured on this machine as far as it goes, and computed on virtual time beyond.

use sealane_bench::{Column, Line, Picture, Section, Spread, Table, brief};
use serde_json::Value;

use super::Chapter;
use crate::report::comparison::variants;
use crate::report::experiment::{Program, bench, other};
use crate::report::figure::{self, cell, quotient};
use crate::report::results::{Results, Run, certain};

/// What is measured at each number of workers.
const SIZES: [(f64, &str); 7] = [
    (10.0, "ps_growth_10"),
    (50.0, "ps_growth_50"),
    (200.0, "ps_growth_200"),
    (500.0, "ps_growth_500"),
    (1_000.0, "ps_growth_1000"),
    (1_500.0, "ps_growth_1500"),
    (2_000.0, "ps_growth_2000"),
];

/// The columns, which are left out where no program told.
const METRICS: &[(&str, &str)] = &[
    ("steps a second", "steps_per_s"),
    ("step, p50", "step_ms"),
    ("p99", "step_p99_ms"),
    ("slowest worker's share", "slowest_share"),
    ("memory of the ps", "ps_rss_mib"),
    ("memory of the workers", "worker_rss_mib"),
    ("memory a connection", "rss_bytes_per_peer"),
    ("open files of the ps", "ps_open_files"),
];

pub(super) const GROWTH: Chapter = Chapter {
    name: "ps_growth",
    heading: "Growth, measured",
    question: "Does the whole keep its speed when workers come? Eight ps and 10 to 2000 workers, each with a connection to each ps, on the two CPUs \
               of one machine: total steps a second can at best stay as they are, and a worker's step takes as many times longer as there are \
               more workers.",
    experiments: &[
        bench("ps_growth_kept", "ps --workload wide_deep_400 --workers 50,200 --ps 5,10"),
        bench("ps_growth_10", "ps --workload dlrm_kaggle --workers 10 --ps 8"),
        bench("ps_growth_50", "ps --workload dlrm_kaggle --workers 50 --ps 8"),
        bench("ps_growth_200", "ps --workload dlrm_kaggle --workers 200 --ps 8"),
        bench("ps_growth_500", "ps --workload dlrm_kaggle --workers 500 --ps 8").rounds(5, 1.0),
        bench("ps_growth_1000", "ps --workload dlrm_kaggle --workers 1000 --ps 8").rounds(5, 1.0),
        bench("ps_growth_1500", "ps --workload dlrm_kaggle --workers 1500 --ps 8").rounds(5, 2.0),
        bench("ps_growth_2000", "ps --workload dlrm_kaggle --workers 2000 --ps 8").rounds(5, 2.0),
    ],
    answer: growth,
};

/// Each size with what was measured of it.
fn measured(results: &Results) -> Vec<(f64, &Run)> {
    SIZES.iter().filter_map(|(workers, experiment)| Some((*workers, results.get(experiment)?))).collect()
}

fn growth(results: &Results, section: Section) -> Section {
    let runs = measured(results);
    if runs.is_empty() {
        return section;
    }
    let has = |metric: &str| runs.iter().any(|(_, run)| run.figure("sealane", None, metric).is_some());
    let metrics: Vec<_> = METRICS.iter().filter(|(_, metric)| has(metric)).collect();
    let rows = runs.iter().map(|(workers, run)| {
        let figure = |(_, metric): &&(&str, &str)| {
            cell(run.figure("sealane", None, metric).map(|spread| figure::with_spread(metric, spread)))
        };
        [brief(*workers)].into_iter().chain(metrics.iter().map(figure)).collect()
    });
    let heads: Vec<Column> = metrics.iter().map(|(head, _)| Column::number(head)).collect();
    let table = Table::new([&[Column::number("workers")], &heads[..]].concat(), rows.collect::<Vec<_>>());
    let points =
        runs.iter().filter_map(|(workers, run)| Some((*workers, run.figure("sealane", None, "steps_per_s")?.median)));
    let line =
        Line { name: "all workers together".to_owned(), series: 0, is_dashed: false, parts: vec![points.collect()] };
    let section = section
        .illustration(Picture::curves("steps/s", "workers", vec![line]))
        .table(table.titled("Each size by itself"));
    match results.get("ps_growth_kept") {
        Some(run) => section.table(variants(run, METRICS).titled("Two sizes in turn")),
        None => section,
    }
}

/// Steps a second with 200 workers and 10 ps by those with 50 and 5, round by round.
pub(in crate::report) fn kept(results: &Results) -> Option<Spread> {
    let run = results.get("ps_growth_kept")?;
    run.to_first(run.variants("sealane").get(1)?, "steps_per_s")
}

pub(super) const VIRTUAL: Chapter = Chapter {
    name: "growth",
    heading: "Growth, computed",
    question: "Where does the first limit lie on machines that are not here? A simulation on virtual time of up to 10,000 workers and 500 ps, each \
               host with one core for Sealane and a network card of 100 Gbit/s, whose costs of a message and of a byte are fitted to the \
               measurements above. It is a model: it knows no packet loss, no congestion but queues, and no other traffic.",
    experiments: &[other(
        "growth",
        Program::Growth(&["ps_grpc", "ps_images", "ps_growth_50", "ps_growth_200"]),
        "growth",
    )],
    answer: |results, section| match results.get("growth") {
        Some(run) => simulated(run, section),
        None => section,
    },
};

fn simulated(run: &Run, section: Section) -> Section {
    let number = |value: &Value| cell(value.as_f64().map(brief));
    let sizes = || run.report["sizes"].as_array().into_iter().flatten();
    let rows = sizes().map(|size| {
        let used = ["ps_cpu", "ps_nic", "worker_cpu", "worker_nic"].map(|what| number(&size["utilisation"][what]));
        let moved = size["moved_by"]["factor"].as_f64().map(|factor| quotient(certain(factor)));
        let moved_by = size["moved_by"]["what"].as_str().map(|what| format!("{what}: {}", cell(moved)));
        let milliseconds =
            |at: &str| cell(size["step_ms"][at].as_f64().map(|value| figure::median("step_ms", certain(value))));
        let name = format!("{} + {}", number(&size["workers"]), number(&size["ps"]));
        let first = [name, number(&size["steps_per_s"]), milliseconds("p50"), milliseconds("p99")];
        let last =
            [number(&size["efficiency"]), size["first_limit"].as_str().unwrap_or_default().to_owned(), cell(moved_by)];
        first.into_iter().chain(used).chain(last).collect()
    });
    let numbers =
        ["steps a second", "step, p50", "p99", "busy: ps CPU", "ps NIC", "worker CPU", "worker NIC", "efficiency"];
    let texts = ["first limit", "what moves it, by what factor"].map(Column::text);
    let columns = [&[Column::text("workers + ps")], &numbers.map(Column::number)[..], &texts].concat();
    let table = Table::new(columns, rows.collect::<Vec<_>>());
    let points = |of: &dyn Fn(&Value) -> Option<f64>| {
        vec![sizes().filter_map(|size| Some((size["workers"].as_f64()?, of(size)?))).collect::<Vec<_>>()]
    };
    let steps = points(&|size| size["steps_per_s"].as_f64());
    let perfect = points(&|size| Some(size["steps_per_s"].as_f64()? / size["efficiency"].as_f64()?));
    let line = |name: &str, series, is_dashed, parts| Line { name: name.to_owned(), series, is_dashed, parts };
    let lines = vec![line("computed", 0, false, steps), line("perfect growth", 1, true, perfect)];
    let section = section.illustration(Picture::curves("steps/s", "workers", lines)).table(table.titled("Sizes"));
    section.table(costs(run)).table(predictions(run)).note(fit(run))
}

/// The costs of the model, of both ends; their units are in their names.
fn costs(run: &Run) -> Table {
    let rows = ["worker", "ps"].into_iter().flat_map(|end| {
        let costs = run.report["costs"][end].as_object().into_iter().flatten();
        costs.filter_map(move |(name, value)| Some(vec![format!("{end}: {name}"), brief(value.as_f64()?)]))
    });
    Table::new([Column::text("cost"), Column::number("value")], rows).titled("The model's costs")
}

/// What the model makes of what was measured.
fn predictions(run: &Run) -> Table {
    let row = |input: &Value| {
        let text = |name: &str| input[name].as_str().unwrap_or_default().to_owned();
        let number = |name: &str| cell(input[name].as_f64().map(brief));
        let size = format!("{} + {}", number("workers"), number("ps"));
        let figures = ["measured_steps_per_s", "predicted_steps_per_s", "error_percent"].map(number);
        [text("workload"), size, text("variant")].into_iter().chain(figures).collect()
    };
    let texts = ["workload", "workers + ps", "variant"].map(Column::text);
    let numbers = ["measured steps a second", "computed", "error, %"].map(Column::number);
    let inputs = run.report["costs"]["inputs"].as_array().into_iter().flatten();
    Table::new([&texts[..], &numbers].concat(), inputs.map(row)).titled("Measured and computed")
}

fn fit(run: &Run) -> String {
    let costs = &run.report["costs"];
    let inputs = costs["calibrated_from"].as_array().map_or(0, Vec::len);
    match (inputs, costs["worst_error_percent"].as_f64()) {
        (0, _) | (_, None) => {
            "The costs are the program's own; they were not fitted to measurements of this report.".to_owned()
        }
        (_, Some(error)) => format!(
            "Fitted to {inputs} measured results; of what was measured, the model is off by at most {} %.",
            brief(error)
        ),
    }
}
