//! What the report says, in its order: each chapter asks a question, names the experiments that answer it, and makes a table and
//! mostly a picture of their results.

mod many;
mod one;
mod ps;
mod scale;
mod tensorflow;
mod training;
mod verbs;

use sealane_bench::Section;

use super::experiment::Experiment;
use super::results::Results;

pub(super) use many::LINES as MANY;
pub(super) use one::{HOST, LINES as ONE};
pub(super) use ps::LINES as PS;
pub(super) use scale::kept;
pub(super) use training::{by_grpc, exchange};
pub(super) use verbs::lab;

/// A part of the report.
pub(super) struct Chapter {
    /// Names its picture's file.
    pub(super) name: &'static str,
    pub(super) heading: &'static str,
    /// What a reader wants to know, and how it is found out.
    pub(super) question: &'static str,
    pub(super) experiments: &'static [Experiment],
    /// Adds what was found out.
    pub(super) answer: fn(&Results, Section) -> Section,
}

/// All of them.
pub(super) const CHAPTERS: &[Chapter] = &[
    ps::BUFFERS,
    ps::FUSION,
    ps::POLLING,
    ps::COPIES,
    ps::SYNC,
    ps::IMAGES,
    scale::GROWTH,
    scale::VIRTUAL,
    training::TRAINING,
    tensorflow::TENSORFLOW,
    one::TENSORS,
    one::ONE_HOST,
    many::STEPS,
    many::PEERS,
    many::RESTART,
    one::SECURITY,
    verbs::LAB,
    verbs::PS,
];

/// Every experiment, in the order of the chapters.
pub(super) fn experiments() -> impl Iterator<Item = &'static Experiment> {
    CHAPTERS.iter().flat_map(|chapter| chapter.experiments)
}

impl Chapter {
    /// The chapter with what there is of its results.
    pub(super) fn section(&self, results: &Results) -> Section {
        // What was run, and where nothing was, what is to be.
        let commands = self.experiments.iter().map(|experiment| {
            results.get(experiment.name).map_or_else(|| experiment.command(), |run| run.provenance.command.clone())
        });
        let commands = commands.collect();
        let section = (self.answer)(results, Section::new(self.heading, self.question).commands(commands));
        let missing = self.experiments.iter().filter(|experiment| results.get(experiment.name).is_none());
        let missing: Vec<&str> = missing.map(|experiment| experiment.name).collect();
        let section = match missing.as_slice() {
            [] => section,
            names => section.note(format!("Not measured: {}.", names.join(", "))),
        };
        let is_other = |experiment: &&Experiment| {
            results.get(experiment.name).is_some_and(|run| run.provenance.command != experiment.command())
        };
        let others: Vec<&str> = self.experiments.iter().filter(is_other).map(|experiment| experiment.name).collect();
        match others.as_slice() {
            [] => section,
            names => {
                section.note(format!("Measured by another command than the report has today: {}.", names.join(", ")))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_experiment_has_a_name_of_its_own() {
        let names: Vec<_> = experiments().map(|experiment| experiment.name).collect();
        for (at, name) in names.iter().enumerate() {
            assert!(!names[..at].contains(name), "{name}");
            assert!(
                name.chars().all(|letter| letter.is_ascii_lowercase() || letter.is_ascii_digit() || letter == '_'),
                "{name}"
            );
        }
    }
}
