//! What a demo found out, for people as a table and for scripts as JSON (schema `sealane-demo/1`).

use std::fmt::Write;

use hdrhistogram::Histogram;
use sealane_bench::{Column, Machine, Table};
use serde::Serialize;

use super::daemons::Setup;
use super::figures::{Figures, PeerLink, Traffic};
use super::protocol::{Part, task_name};
use crate::links::Links;
use crate::wording::scaled;

/// Names the JSON's fields and their meaning; another number means other fields.
const SCHEMA: &str = "sealane-demo/1";

/// Longest bar, in characters.
const BAR_WIDTH: u64 = 40;
/// Nanoseconds of the first bucket's end; each bucket ends at twice the one before.
const FIRST_END_NS: u64 = 1_000;

/// A demo that is done, with all that its reader must know.
pub(super) struct Outcome {
    pub(super) workload: String,
    pub(super) setup: Setup,
    /// What joins two engines, as far as that is known.
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
        text.push_str(&bars(&figures.latencies));
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

/// Draws a histogram of nanoseconds; nothing where it is empty.
fn bars(histogram: &Histogram<u64>) -> String {
    let buckets = buckets(histogram);
    let most = buckets.iter().map(|bucket| bucket.count).max().unwrap_or(0);
    let mut text = String::new();
    for Bucket { start_ns, end_ns, count } in &buckets {
        // A bucket that is not empty has a bar that can be seen.
        let width = (count * BAR_WIDTH / most).max(u64::from(*count > 0)) as usize;
        let (start, end) = (shown(*start_ns), shown(*end_ns));
        writeln!(text, "  {start:>8} - {end:>8}  {:<40}  {count}", "█".repeat(width)).expect("a string takes all");
    }
    if !buckets.is_empty() {
        let at = |quantile| shown(histogram.value_at_quantile(quantile));
        let (p50, p90, p99, max) = (at(0.5), at(0.9), at(0.99), shown(histogram.max()));
        writeln!(text, "  p50 {p50}, p90 {p90}, p99 {p99}, max {max}").expect("a string takes all");
    }
    text
}

struct Bucket {
    start_ns: u64,
    end_ns: u64,
    count: u64,
}

/// From the first bucket that is not empty to the last.
fn buckets(histogram: &Histogram<u64>) -> Vec<Bucket> {
    let (mut start_ns, mut end_ns) = (0, FIRST_END_NS);
    let mut buckets = Vec::new();
    let mut below = 0;
    while below < histogram.len() {
        let up_to_end = histogram.count_between(0, end_ns - 1);
        let count = up_to_end.saturating_sub(below);
        if count > 0 || !buckets.is_empty() {
            buckets.push(Bucket { start_ns, end_ns, count });
        }
        below = below.max(up_to_end);
        (start_ns, end_ns) = (end_ns, end_ns * 2);
    }
    buckets
}

/// A time with three digits and its unit.
fn shown(nanoseconds: u64) -> String {
    scaled(nanoseconds as f64, &[(1e9, " s"), (1e6, " ms"), (1e3, " µs")], " ns")
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

    fn histogram(values: &[u64]) -> Histogram<u64> {
        let mut histogram = Histogram::new_with_bounds(1, 120_000_000_000, 3).unwrap();
        values.iter().for_each(|value| histogram.record(*value).unwrap());
        histogram
    }

    #[test]
    fn buckets_double_and_none_is_lost() {
        let values = [1_500, 1_600, 3_000, 3_999, 17_000, 60_000_000_000];
        let buckets = buckets(&histogram(&values));
        assert_eq!((buckets[0].start_ns, buckets[0].end_ns, buckets[0].count), (1_000, 2_000, 2));
        assert_eq!(buckets.iter().map(|bucket| bucket.count).sum::<u64>(), values.len() as u64);
        assert!(buckets.windows(2).all(|pair| pair[0].end_ns == pair[1].start_ns));
    }

    #[test]
    fn the_fullest_bucket_has_the_longest_bar_and_every_value_a_bar() {
        let mut values = vec![1_500; 1000];
        values.extend([3_000, 20_000]);
        let text = bars(&histogram(&values));
        let lengths: Vec<_> = text.lines().map(|line| line.matches('█').count()).collect();
        assert_eq!(lengths, [40, 1, 0, 0, 1, 0], "{text}");
        assert!(text.contains("p50 1.50 µs, p90 1.50 µs, p99 1.50 µs, max 20.0 µs"), "{text}");
        assert_eq!(bars(&histogram(&[])), "");
    }

    #[test]
    fn times_have_their_unit() {
        let cases =
            [(1, "1 ns"), (9_990, "9.99 µs"), (123_400, "123 µs"), (1_234_000, "1.23 ms"), (2_000_000_000, "2.00 s")];
        for (nanoseconds, expected) in cases {
            assert_eq!(shown(nanoseconds), expected);
        }
    }
}
