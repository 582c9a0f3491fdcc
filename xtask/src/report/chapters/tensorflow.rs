//! A TensorFlow job whose one word was changed: its steps over gRPC and over Sealane.

use sealane_bench::{Column, Section, Table};

use super::Chapter;
use crate::report::experiment::{Program, other};
use crate::report::figure::{self, NOT_MEASURED, cell, quotient};
use crate::report::results::Run;

/// What a job does.
struct Job {
    what: &'static str,
    metric: &'static str,
    cpu: &'static str,
    /// How many times as fast as gRPC it was to be, through one daemon and through two.
    aims: [f64; 2],
}

const fn job(what: &'static str, metric: &'static str, cpu: &'static str, aims: [f64; 2]) -> Job {
    Job { what, metric, cpu, aims }
}

const JOBS: [Job; 7] = [
    job("pull 1000 x 64 B", "pull_small_ms", "pull_small_cpu_ms", [10.0, 6.0]),
    job("push 1000 x 64 B", "push_small_ms", "push_small_cpu_ms", [10.0, 6.0]),
    job("pull ResNet-50", "pull_resnet50_ms", "pull_resnet50_cpu_ms", [3.0, 2.0]),
    job("push ResNet-50", "push_resnet50_ms", "push_resnet50_cpu_ms", [3.0, 2.0]),
    job("pull one variable of 64 B", "pull_one_ms", "pull_one_cpu_ms", [1.0, 1.0]),
    job("ParameterServerStrategy, 20 x 1 MB", "strategy_ms", "strategy_cpu_ms", [3.0, 2.0]),
    job("wide & deep, 4 workers + 2 ps", "wide_deep_steps_per_s", "wide_deep_cpu_ms", [2.0, 1.5]),
];

/// Sealane through one daemon, and through two.
const WAYS: [(&str, &str); 2] = [("sealane", "one daemon"), ("sealane-tcp", "two daemons")];

pub(super) const TENSORFLOW: Chapter = Chapter {
    name: "tensorflow",
    heading: "A TensorFlow job",
    question: "What does a job of the stock TensorFlow gain from the protocol grpc+sealane? The median step of one ps and one worker, each a process, \
               and the steps a second of an example that trains; through one daemon, and through two with TCP between them.",
    experiments: &[other("tensorflow", Program::TensorFlow, "python/tensorflow/bench/steps.py")],
    answer: |results, section| answer(results.get("tensorflow"), section),
};

fn answer(run: Option<&Run>, section: Section) -> Section {
    let figure = |system: &str, metric: &str| run.and_then(|run| run.figure(system, None, metric));
    let ratio = |system: &str, metric: &str| run.and_then(|run| run.ratio(&format!("{system}/grpc"), metric));
    let shown = |system, metric| figure(system, metric).map(|spread| figure::with_spread(metric, spread));

    let steps = JOBS.map(|Job { what, metric, aims, .. }| {
        let ours = WAYS.iter().zip(aims).flat_map(|((system, _), aim)| {
            let speed = ratio(system, metric).map(|ratio| quotient(figure::speed(metric, ratio)));
            [cell(shown(system, metric)), cell(speed), aim.to_string()]
        });
        let grpc = shown("grpc", metric).unwrap_or_else(|| NOT_MEASURED.to_owned());
        [what.to_owned(), grpc].into_iter().chain(ours).collect::<Vec<_>>()
    });
    let heads = WAYS.iter().flat_map(|(_, way)| [(*way).to_owned(), "speed, gRPC = 1".to_owned(), "aim".to_owned()]);
    let columns = [Column::text("a step"), Column::number("gRPC")].into_iter();
    let columns: Vec<Column> = columns.chain(heads.map(|head| Column::number(&head))).collect();

    let cpu = JOBS.map(|Job { what, cpu, .. }| {
        let ours = WAYS.map(|(system, _)| [cell(shown(system, cpu)), cell(ratio(system, cpu).map(quotient))]);
        let grpc = shown("grpc", cpu).unwrap_or_else(|| NOT_MEASURED.to_owned());
        [what.to_owned(), grpc].into_iter().chain(ours.into_iter().flatten()).collect::<Vec<_>>()
    });
    let heads = WAYS.iter().flat_map(|(_, way)| [(*way).to_owned(), "gRPC = 1".to_owned()]);
    let cpu_columns = [Column::text("CPU time of a step, of all processes"), Column::number("gRPC")].into_iter();
    let cpu_columns: Vec<Column> = cpu_columns.chain(heads.map(|head| Column::number(&head))).collect();

    let section = section.table(Table::new(columns, steps)).table(Table::new(cpu_columns, cpu).titled("CPU"));
    match run.and_then(|run| run.report["least_share"].as_f64()) {
        Some(share) => section.note(format!("At least {:.2} % of the tensors' bytes went by Sealane.", 100.0 * share)),
        None => section,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::fixtures;
    use crate::report::results::Results;

    #[test]
    fn speeds_stand_beside_their_aims() {
        let page = |results: &Results| fixtures::page_of(TENSORFLOW.section(results)).to_markdown(|_| String::new());
        let measured = page(&fixtures::results());
        assert!(measured.contains("| pull 1000 x 64 B | 40 ms | 5 ms | 8 | 10 | 10 ms | 4 | 6 |"), "{measured}");
        assert!(
            measured.contains("| wide & deep, 4 workers + 2 ps | 40/s | 100/s | 2.5 | 2 | 60/s | 1.5 | 1.5 |"),
            "{measured}"
        );
        assert!(measured.contains("| pull one variable of 64 B | 40 ms | 5 ms | 0.125 | 10 ms | 0.25 |"), "{measured}");
        assert!(measured.contains("At least 99.50 % of the tensors' bytes went by Sealane."), "{measured}");
        let nothing = page(&Results::default());
        assert!(nothing.contains("| pull 1000 x 64 B | not measured |  |  | 10 |  |  | 6 |"), "{nothing}");
    }
}
