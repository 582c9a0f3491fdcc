//! A training run over Sealane and over gRPC: the same code, the same losses.

use sealane_bench::{Column, Line, Picture, Section, Spread, Table, brief};
use serde_json::Value;

use super::Chapter;
use crate::report::experiment::{Program, other};
use crate::report::figure::{self, cell, quotient};
use crate::report::results::{Results, Run, spread};

/// With nothing computed, and in training.
const RATES: [(&str, &str); 2] = [("exchange alone", "steps_per_s"), ("training", "training_steps_per_s")];

pub(super) const TRAINING: Chapter = Chapter {
    name: "training",
    heading: "A training run",
    question: "Does it matter to somebody who trains? The numpy DLRM example with a ps and 4 workers, each a process, synchronous: the same training \
               code over Sealane and over gRPC (grpcio), once without computing anything, so that the exchange is all there is, and once in full. \
               sealane is one daemon for all tasks, sealane-tcp two with TCP between them.",
    experiments: &[other("training", Program::Python, "python/examples/dlrm_compare.py --workers 4")],
    answer: |results, section| match results.get("training") {
        Some(run) => training(run, section),
        None => section,
    },
};

fn training(run: &Run, section: Section) -> Section {
    let row = |system: &Value| {
        let name = system["name"].as_str().unwrap_or_default();
        let cells = RATES.iter().flat_map(|(_, rate)| {
            let steps = spread(&system[*rate], "median").map(|steps| figure::with_spread("steps_per_s", steps));
            [steps, run.ratio(&format!("{name}/grpc"), rate).map(quotient)].map(cell)
        });
        [name.to_owned()].into_iter().chain(cells).collect()
    };
    let heads = RATES.iter().flat_map(|(what, _)| [format!("{what}: steps a second"), "gRPC = 1".to_owned()]);
    let heads: Vec<Column> = heads.map(|head| Column::number(&head)).collect();
    let table = Table::new([&[Column::text("system")], &heads[..]].concat(), systems(run).map(row).collect::<Vec<_>>());
    section.illustration(losses(run)).table(table).note(match run.report["losses_equal"].as_bool() {
        Some(true) => {
            "The losses of all systems are equal to the last bit, and to those of one process that trains alone."
        }
        _ => "The losses of the systems are not equal.",
    })
}

fn systems(run: &Run) -> impl Iterator<Item = &Value> {
    run.report["systems"].as_array().into_iter().flatten()
}

/// A system's steps a second with nothing computed.
pub(in crate::report) fn exchange(results: &Results, name: &str) -> Option<Spread> {
    let system = systems(results.get("training")?).find(|system| system["name"] == name)?;
    spread(&system["steps_per_s"], "median")
}

/// A system's by gRPC's.
pub(in crate::report) fn by_grpc(results: &Results, name: &str) -> Option<Spread> {
    results.get("training")?.ratio(&format!("{name}/grpc"), "steps_per_s")
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
