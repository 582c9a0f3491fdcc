//! What a demo found out, for people as a table and for scripts as JSON (schema `sealane-demo/1`).

use std::fmt::Write;

use sealane_bench::{Column, Machine, Table};
use serde::Serialize;

use super::bars;
use super::figures::{Figures, Traffic};
use super::peers::PeerLink;
use super::protocol::{Part, task_name};
use super::setup::Setup;
use crate::links::Links;

/// Names the JSON's fields and their meaning; another number means other fields.
const SCHEMA: &str = "sealane-demo/1";

/// A demo that is done, with all that its reader must know.
pub(super) struct Outcome {
    pub(super) workload: String,
    pub(super) setup: Setup,
    /// What joined two engines.
    pub(super) network: &'static str,
    /// Links between engines at the end.
    pub(super) links: Links,
    /// The same one by one.
    pub(super) peers: Vec<PeerLink>,
    pub(super) parameters: Parameters,
    pub(super) machine: Machine,
    pub(super) figures: Figures,
    /// The whole demo, with starting, making and comparing bytes.
    pub(super) seconds: f64,
}

/// What was asked for.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Parameters {
    pub(super) workers: usize,
    pub(super) ps: usize,
    pub(super) steps: u64,
    /// Steps before those that count; verified like them.
    pub(super) warmup_steps: u64,
    pub(super) window: usize,
    /// Of a worker in a step.
    pub(super) pull_tensors: usize,
    pub(super) push_tensors: usize,
    pub(super) pull_bytes: u64,
    pub(super) push_bytes: u64,
    pub(super) congestion: String,
}

#[derive(Serialize)]
struct Report<'a> {
    schema: &'static str,
    workload: &'a str,
    mode: &'static str,
    link: &'static str,
    links: Links,
    peers: &'a [PeerLink],
    path: String,
    parameters: &'a Parameters,
    machine: &'a Machine,
    workers: Vec<Row>,
    total: Row,
    pull_latency_us: Latency,
    verified: Verified,
    seconds: f64,
}

#[derive(Serialize)]
struct Row {
    task: String,
    tensors: u64,
    bytes: u64,
    pull_gigabytes_per_s: f64,
    push_gigabytes_per_s: f64,
    step_ms: f64,
}

#[derive(Serialize)]
struct Latency {
    p50: f64,
    p90: f64,
    p99: f64,
    max: f64,
    count: u64,
}

#[derive(Serialize)]
struct Verified {
    tensors: u64,
    bytes: u64,
}

impl Outcome {
    /// The outcome as JSON on many lines, with a line's end.
    pub(super) fn to_json(&self) -> String {
        let Outcome { workload, setup, network, links, peers, parameters, machine, figures, seconds } = self;
        let us = |nanoseconds: u64| nanoseconds as f64 / 1e3;
        let at = |quantile| us(figures.latencies.value_at_quantile(quantile));
        let report = Report {
            schema: SCHEMA,
            workload,
            mode: setup.mode(),
            link: setup.link(network),
            links: *links,
            peers,
            path: setup.path(network),
            parameters,
            machine,
            workers: self.workers(),
            total: self.row("total".to_owned(), &figures.total),
            pull_latency_us: Latency {
                p50: at(0.5),
                p90: at(0.9),
                p99: at(0.99),
                max: us(figures.latencies.max()),
                count: figures.latencies.len(),
            },
            verified: Verified { tensors: figures.tensors_verified, bytes: figures.bytes_verified },
            seconds: *seconds,
        };
        let json = serde_json::to_string_pretty(&report).expect("texts and numbers are JSON");
        json + "\n"
    }

    /// The outcome as people read it.
    pub(super) fn to_text(&self) -> String {
        let Outcome { workload, setup, network, links, parameters, figures, seconds, .. } = self;
        let Parameters { workers, ps, steps, window, congestion, .. } = parameters;
        let (pulls, pushes) = (parameters.pull_tensors, parameters.push_tensors);
        let (pull, push) = (shown_bytes(parameters.pull_bytes), shown_bytes(parameters.push_bytes));
        let (link, path) = (setup.link(network), setup.path(network));
        let mut text = format!(
            "{workload}: {workers} workers and {ps} ps over {link}, {steps} steps; \
             in each a worker pulls {pulls} tensors ({pull}) and pushes {pushes} ({push})\n\
             a tensor's way: {path}\n\
             links between engines: {links}\n\
             window {window}, congestion control {congestion}\n\n"
        );
        text.push_str(&self.tasks().to_text());
        text.push_str("\ntime from the request of a pull to its arrival\n");
        text.push_str(&bars::draw(&figures.latencies));
        let (tensors, bytes) = (figures.tensors_verified, shown_bytes(figures.bytes_verified));
        writeln!(text, "\nevery byte of {tensors} tensors verified ({bytes}); {seconds:.1} s in all")
            .expect("a string takes everything");
        text
    }

    /// What each worker moved, and all.
    pub(super) fn tasks(&self) -> Table {
        let numbers = ["tensors", "bytes", "pull GB/s", "push GB/s", "step ms"].map(Column::number);
        let rows = self.workers().into_iter().chain([self.row("total".to_owned(), &self.figures.total)]);
        let rows = rows.map(|row| {
            vec![
                row.task,
                row.tensors.to_string(),
                shown_bytes(row.bytes),
                format!("{:.2}", row.pull_gigabytes_per_s),
                format!("{:.2}", row.push_gigabytes_per_s),
                format!("{:.2}", row.step_ms),
            ]
        });
        Table::new([&[Column::text("task")], &numbers[..]].concat(), rows)
    }

    fn workers(&self) -> Vec<Row> {
        let numbered = self.figures.workers.iter().enumerate();
        numbered.map(|(index, traffic)| self.row(task_name(Part::Worker, index), traffic)).collect()
    }

    fn row(&self, task: String, traffic: &Traffic) -> Row {
        Row {
            task,
            tensors: traffic.tensors(),
            bytes: traffic.bytes(),
            pull_gigabytes_per_s: traffic.pull.gigabytes_per_s(),
            push_gigabytes_per_s: traffic.push.gigabytes_per_s(),
            step_ms: traffic.step_ms(self.figures.steps),
        }
    }
}

/// A byte count with three digits or more and a decimal unit.
pub(super) fn shown_bytes(bytes: u64) -> String {
    const UNITS: [(f64, &str); 3] = [(1e9, "GB"), (1e6, "MB"), (1e3, "kB")];
    match UNITS.iter().find(|(unit, _)| bytes as f64 >= *unit) {
        Some((unit, name)) => format!("{:.2} {name}", bytes as f64 / unit),
        None => format!("{bytes} B"),
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::commands::demo::protocol::Fetched;

    pub(in super::super) fn outcome() -> Outcome {
        let mut figures = Figures::new(1, 1);
        let fetched = |bytes, elapsed_ns| {
            vec![vec![Fetched { peer: 0, tensors: 2, bytes, elapsed_ns, latencies_ns: vec![elapsed_ns; 2] }]]
        };
        let step = std::time::Duration::from_millis(20);
        figures.add_step(&fetched(4_000_000, 2_000_000), &fetched(6_000_000, 2_000_000), step);
        figures.add_verified(4, 10_000_000);
        Outcome {
            workload: "tiny".to_owned(),
            setup: Setup::TwoDaemons,
            network: "verbs",
            links: Links { tcp: 0, verbs: 2 },
            peers: vec![PeerLink {
                engine: "worker-daemon".to_owned(),
                peer: "ps-daemon".to_owned(),
                link: "verbs".to_owned(),
                reason: "a test says so".to_owned(),
                tensors: 12,
                messages: 4,
                writes: 3,
            }],
            parameters: Parameters {
                workers: 1,
                ps: 1,
                steps: 1,
                warmup_steps: 1,
                window: 40,
                pull_tensors: 2,
                push_tensors: 2,
                pull_bytes: 4_000_000,
                push_bytes: 6_000_000,
                congestion: "cubic".to_owned(),
            },
            machine: Machine { cpus: 2, cpu_model: "x".to_owned(), kernel: "y".to_owned(), pinned: Vec::new() },
            figures,
            seconds: 1.25,
        }
    }

    #[test]
    fn the_table_has_every_worker_and_the_total() {
        let text = outcome().to_text();
        assert!(text.starts_with("tiny: 1 workers and 1 ps over verbs, 1 steps; "), "{text}");
        assert!(text.contains("\na tensor's way: task --shm--> daemon --verbs--> daemon --shm--> task\n"), "{text}");
        assert!(text.contains("\nlinks between engines: 2 verbs, 0 tcp\n"), "{text}");
        assert!(text.contains("\nworker0:2222        4  10.00 MB       2.00       3.00     4.00\n"), "{text}");
        assert!(text.contains("\ntotal               4  10.00 MB       2.00       3.00     4.00\n"), "{text}");
        assert!(text.contains("p50 2.00 ms, "), "{text}");
        assert!(text.ends_with("\nevery byte of 4 tensors verified (10.00 MB); 1.2 s in all\n"), "{text}");
    }

    #[test]
    fn the_json_has_what_the_table_has() {
        let json: serde_json::Value = serde_json::from_str(&outcome().to_json()).unwrap();
        assert_eq!(json["schema"], SCHEMA);
        assert_eq!((&json["mode"], &json["link"]), (&"daemons".into(), &"verbs".into()));
        assert_eq!(json["path"], Setup::TwoDaemons.path("verbs"));
        assert_eq!((&json["links"]["verbs"], &json["links"]["tcp"]), (&2.into(), &0.into()));
        assert_eq!((&json["peers"][0]["peer"], &json["peers"][0]["messages"]), (&"ps-daemon".into(), &4.into()));
        assert_eq!(json["workers"][0]["task"], "worker0:2222");
        assert_eq!(json["total"]["push_gigabytes_per_s"], 3.0);
        assert_eq!(json["verified"]["tensors"], 4);
        assert_eq!(json["pull_latency_us"]["count"], 2);
        assert_eq!(json["parameters"]["window"], 40);
        assert_eq!(json["machine"]["cpus"], 2);
    }

    #[test]
    fn bytes_have_their_unit() {
        let cases =
            [(0, "0 B"), (999, "999 B"), (1_000, "1.00 kB"), (102_334_368, "102.33 MB"), (1 << 40, "1099.51 GB")];
        for (bytes, expected) in cases {
            assert_eq!(shown_bytes(bytes), expected);
        }
    }
}
