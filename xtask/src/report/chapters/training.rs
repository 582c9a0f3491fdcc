//! A training run over Sealane and over gRPC: the same code, the same losses.

use sealane_bench::{Column, Line, Picture, Section, Spread, Table, brief};
use serde_json::Value;

use super::Chapter;
use crate::report::experiment::{Program, other};
use crate::report::figure::{self, cell, quotient};
use crate::report::results::{Results, Run, spread};

/// The exchange alone, and with the model's own computation.
const RUNS: [(&str, &str); 2] = [("exchange alone", "training_exchange"), ("with computation", "training")];

pub(super) const TRAINING: Chapter = Chapter {
    name: "training",
    heading: "A training run",
    question: "Does it matter to somebody who trains? The numpy DLRM example with a ps and 4 workers, each a process, synchronous: the same training \
               code over Sealane and over gRPC (grpcio), once without computing anything, so that the exchange is all there is, and once in full.",
    experiments: &[
        other("training_exchange", Program::Python, "python/examples/dlrm_compare.py --workers 4 --compute-us 0"),
        other("training", Program::Python, "python/examples/dlrm_compare.py --workers 4"),
    ],
    answer: training,
};

fn training(results: &Results, section: Section) -> Section {
    let runs: Vec<_> = RUNS.iter().filter_map(|(name, experiment)| Some((*name, results.get(experiment)?))).collect();
    let rows = runs.iter().flat_map(|(name, run)| systems(run).map(move |system| row(name, run, system)));
    let heads = ["steps a second", "Sealane / it"].map(Column::number);
    let table = Table::new([&["", "system"].map(Column::text)[..], &heads].concat(), rows.collect::<Vec<_>>());
    let section = section.table(table);
    let Some(run) = results.get("training").or_else(|| results.get("training_exchange")) else { return section };
    let section = section.illustration(losses(run)).note(match run.report["losses_equal"].as_bool() {
        Some(true) => "The losses of all systems are equal to the last bit.",
        _ => "The losses of the systems are not equal.",
    });
    section.note("A worker's losses are drawn as the program wrote them, one a step.")
}

fn systems(run: &Run) -> impl Iterator<Item = &Value> {
    run.report["systems"].as_array().into_iter().flatten()
}

fn row(name: &str, run: &Run, system: &Value) -> Vec<String> {
    let of = system["name"].as_str().unwrap_or_default();
    let steps = spread(&system["steps_per_s"], "median").map(|steps| figure::with_spread("steps_per_s", steps));
    let ratio = run.ratio(&format!("sealane/{of}"), "steps_per_s");
    vec![name.to_owned(), of.to_owned(), cell(steps), cell(ratio.map(quotient))]
}

/// Sealane's steps a second by gRPC's, without computation.
pub(in crate::report) fn by_grpc(results: &Results) -> Option<Spread> {
    results.get("training_exchange")?.ratio("sealane/grpc", "steps_per_s")
}

fn losses(run: &Run) -> Picture {
    let line = |(series, system): (usize, &Value)| {
        let losses = system["losses"].as_array().into_iter().flatten().filter_map(Value::as_f64);
        let points: Vec<(f64, f64)> = losses.enumerate().map(|(step, loss)| (step as f64, loss)).collect();
        let rate = spread(&system["steps_per_s"], "median")
            .map_or_else(String::new, |steps| format!(", {} steps/s", brief(steps.median)));
        let name = format!("{}{rate}", system["name"].as_str().unwrap_or_default());
        // Equal curves lie on each other: dashes let the first be seen below the second.
        Line { name, series, is_dashed: series > 0, parts: vec![points] }
    };
    Picture::curves("loss", "step", systems(run).enumerate().map(line).collect())
}
