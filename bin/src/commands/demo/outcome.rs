//! The results of a demo: for people as a table and a page, for scripts as JSON (schema `sealane-demo/1`). Memory does not grow
//! with the steps.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::time::Duration;

use hdrhistogram::Histogram;
use indicatif::DecimalBytes;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::Args;
use super::task::{Fetched, Part};
use crate::machine::Machine;
use crate::table::{Column, Table};
use crate::wording::{counted, scaled};
use crate::workload::Workload;
use crate::{Failure, command_line};

/// Names the JSON's fields and their meaning; another number stands for other fields.
const SCHEMA: &str = "sealane-demo/1";

/// Longest latency that is told apart, in ns: no request of the demo waits longer.
const LATENCY_NS_MAX: u64 = 120_000_000_000;
/// Significant digits of a latency that are kept.
const LATENCY_DIGITS: u8 = 3;
/// Longest bar, in characters.
const BAR_WIDTH: u64 = 40;
const PERCENTILES: [(&str, f64); 4] = [("p50", 0.5), ("p90", 0.9), ("p99", 0.99), ("max", 1.0)];

/// What moved in one direction, and how long that took.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct Flow {
    pub(super) tensors: u64,
    pub(super) bytes: u64,
    pub(super) time: Duration,
}

impl Flow {
    /// In 10^9 bytes a second; 0 if nothing moved.
    pub(super) fn gigabytes_per_s(&self) -> f64 {
        if self.time.is_zero() { 0.0 } else { self.bytes as f64 / self.time.as_secs_f64() / 1e9 }
    }

    /// The sum of two flows that together took `time`, one after the other or at once.
    pub(super) fn with(self, other: Flow, time: Duration) -> Flow {
        Flow { tensors: self.tensors + other.tensors, bytes: self.bytes + other.bytes, time }
    }

    fn beside(self, other: Flow) -> Flow {
        self.with(other, self.time.max(other.time))
    }
}

/// What one worker, or all workers, moved: pulled and pushed.
pub(super) type Traffic = [Flow; 2];

/// A demo's results, with all that a reader must know.
pub(super) struct Outcome<'a> {
    pub(super) args: &'a Args,
    pub(super) workload: Workload,
    /// Most recvs in flight from each peer.
    pub(super) window: usize,
    /// Number of daemons: 0 if each task has its own engine.
    pub(super) daemons: usize,
    /// Links between engines, over verbs and over TCP.
    pub(super) links: [u64; 2],
    /// Each link, by engine, peer, kind and its reason: the tensors, messages and writes that were sent.
    pub(super) peers: BTreeMap<[String; 4], [u64; 3]>,
    pub(super) machine: Machine,
    pub(super) steps_done: u64,
    /// Traffic of each worker, by number.
    per_worker: Vec<Traffic>,
    /// Traffic of all workers, whose transfers take place at the same time.
    total: Traffic,
    /// Latencies of single pulls, in ns.
    latencies: Histogram<u64>,
    /// Tensors and bytes that were compared, including the step that establishes the connections.
    pub(super) verified: (u64, u64),
    /// Duration of the whole demo, including starting, and making and comparing bytes.
    pub(super) seconds: f64,
}

impl Outcome<'_> {
    /// For a demo that has not begun.
    pub(super) fn new(args: &Args, workload: Workload, daemons: usize, window: usize, machine: Machine) -> Outcome<'_> {
        let latencies = Histogram::new_with_bounds(1, LATENCY_NS_MAX, LATENCY_DIGITS);
        Outcome {
            args,
            workload,
            window,
            daemons,
            links: [0, 0],
            peers: BTreeMap::new(),
            machine,
            steps_done: 0,
            per_worker: vec![Traffic::default(); args.workers as usize],
            total: Traffic::default(),
            latencies: latencies.expect("the bounds are constants that make a histogram"),
            verified: (0, 0),
            seconds: 0.0,
        }
    }

    /// Adds a step: what each worker fetched from each ps, and what each ps fetched from each worker. Returns what all workers
    /// moved in it.
    pub(super) fn add_step(&mut self, pulled: &[Vec<Fetched>], pushed: &[Vec<Fetched>]) -> Traffic {
        let flow = |fetched: &Fetched| fetched.flow;
        let mut all = Traffic::default();
        for (worker, sum) in self.per_worker.iter_mut().enumerate() {
            let pull = pulled[worker].iter().map(flow).reduce(Flow::beside).unwrap_or_default();
            let from_worker = pushed.iter().filter_map(|by_ps| by_ps.get(worker));
            let push = from_worker.map(flow).reduce(Flow::beside).unwrap_or_default();
            for (index, moved) in [pull, push].into_iter().enumerate() {
                all[index] = all[index].beside(moved);
                sum[index] = sum[index].with(moved, sum[index].time + moved.time);
            }
        }
        for (sum, moved) in self.total.iter_mut().zip(all) {
            *sum = sum.with(moved, sum.time + moved.time);
        }
        for latency in pulled.iter().flatten().flat_map(|fetched| &fetched.latencies_ns) {
            self.latencies.saturating_record(*latency);
        }
        self.steps_done += 1;
        all
    }

    /// Returns the line that a demo begins with: what will be moved and verified.
    pub(super) fn announcement(&self) -> String {
        let Outcome { args: Args { workers, ps, steps, .. }, workload, machine, .. } = self;
        let bytes = DecimalBytes((workload.pull_bytes() + workload.push_bytes()) * workers * (steps + 1));
        format!(
            "moves {bytes} between {} and {ps} ps on {} of this machine, in a warm-up step and {}, and verifies every byte",
            counted(*workers as usize, "worker"),
            counted(machine.cpus, "CPU"),
            counted(*steps as usize, "measured step"),
        )
    }

    /// Returns how long the measured steps will take if each takes as long as the warm-up step.
    pub(super) fn estimate(&self, warm_up: Duration) -> String {
        let steps = self.args.steps;
        let [warm_up, all] = [warm_up, warm_up * steps as u32].map(|time| shown(time.as_nanos() as u64));
        format!("the warm-up step took {warm_up}; {} take about {all}", counted(steps as usize, "measured step"))
    }

    /// What carries a tensor between the sides of the two parts.
    fn link(&self) -> &'static str {
        match (self.daemons, self.links) {
            (1, _) => "shm",
            (_, [0, 0]) => "nothing yet",
            (_, [0, _]) => "tcp",
            (_, [_, 0]) => "verbs",
            _ => "verbs and tcp",
        }
    }

    /// The path of every tensor, process by process.
    pub(super) fn path(&self) -> String {
        let network = self.link();
        match self.daemons {
            0 => format!("task --{network}--> task"),
            1 => "task --shm--> daemon --shm--> task".to_owned(),
            _ => format!("task --shm--> daemon --{network}--> daemon --shm--> task"),
        }
    }

    /// The outcome as JSON on several lines, with a newline at the end.
    pub(super) fn to_json(&self) -> String {
        let us = |quantile| self.latencies.value_at_quantile(quantile) as f64 / 1e3;
        let mut latency: serde_json::Map<String, Value> =
            PERCENTILES.iter().map(|(name, quantile)| ((*name).to_owned(), us(*quantile).into())).collect();
        latency.insert("count".to_owned(), self.latencies.len().into());
        let rows: Vec<Value> = self.rows().into_iter().map(|row| row.1).collect();
        let (total, workers) = rows.split_last().expect("the total is always there");
        let peer = |([engine, peer, link, reason], [tensors, messages, writes]): (&[String; 4], &[u64; 3])| {
            json!({
                "engine": engine, "peer": peer, "link": link, "reason": reason,
                "tensors": tensors, "messages": messages, "writes": writes,
            })
        };
        let report = json!({
            "schema": SCHEMA,
            "workload": self.workload.name,
            "mode": if self.daemons == 0 { "embedded" } else { "daemons" },
            "link": self.link(),
            "links": { "verbs": self.links[0], "tcp": self.links[1] },
            "peers": self.peers.iter().map(peer).collect::<Vec<_>>(),
            "path": self.path(),
            "parameters": {
                "workers": self.args.workers,
                "ps": self.args.ps,
                "steps": self.args.steps,
                "window": self.window,
                "pull_tensors": self.workload.pull.len(),
                "push_tensors": self.workload.push.len(),
                "pull_bytes": self.workload.pull_bytes(),
                "push_bytes": self.workload.push_bytes(),
            },
            "machine": self.machine,
            "workers": workers,
            "total": total,
            "pull_latency_us": latency,
            "verified": { "tensors": self.verified.0, "bytes": self.verified.1 },
            "seconds": self.seconds,
        });
        format!("{report:#}\n")
    }

    pub(super) fn to_text(&self) -> String {
        let numbers = ["tensors", "bytes", "pull GB/s", "push GB/s", "step ms"].map(Column::number);
        let table =
            Table::new([&[Column::text("task")], &numbers[..]].concat(), self.rows().into_iter().map(|row| row.0));
        let (tensors, bytes) = (self.verified.0, DecimalBytes(self.verified.1));
        let Outcome { args: Args { workers, ps, steps, .. }, workload, window, links: [verbs, tcp], .. } = self;
        let (pull, push) = (DecimalBytes(workload.pull_bytes()), DecimalBytes(workload.push_bytes()));
        let (pulls, pushes) = (workload.pull.len(), workload.push.len());
        format!(
            "{}: {workers} workers and {ps} ps over {}, {steps} steps; in each a worker pulls {pulls} tensors ({pull}) and \
             pushes {pushes} ({push})\n\
             a tensor's way: {}\n\
             links between engines: {verbs} verbs, {tcp} tcp\n\
             window {window}\n\n\
             {}\
             both ends and the verification share {}; the verification runs between the transfers, and no rate includes it\n\n\
             time from the request of a pull to its arrival\n{}\n\
             every byte of {tensors} tensors verified ({bytes}); {:.1} s in all\n",
            workload.name,
            self.link(),
            self.path(),
            table.to_text(),
            counted(self.machine.cpus, "CPU"),
            bars(&self.latencies),
            self.seconds
        )
    }

    /// The outcome as one self-contained page; if the demo failed, with the results up to then.
    pub(super) fn to_html(&self, failure: Option<&Failure>) -> String {
        let (done, tensors, bytes) = (self.steps_done, self.verified.0, DecimalBytes(self.verified.1));
        let result = match failure {
            None => {
                let [pull, push] = self.total.map(|flow| flow.gigabytes_per_s());
                format!(
                    "Every byte of {tensors} tensors ({bytes}) arrived as it was sent. In {done} steps the workers together \
                     pulled {pull:.2} GB/s and pushed {push:.2} GB/s."
                )
            }
            Some(failure) => format!(
                "It failed. {failure}\nUntil then {done} of {} steps were done, and every byte of {tensors} tensors ({bytes}) had \
                 been verified.",
                self.args.steps
            ),
        };
        format!(
            "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"/><title>Sealane demo</title></head>\n\
             <body><h1>Sealane demo</h1>\n<p>{}</p>\n<pre>{}\n{}\n\n{}</pre></body></html>\n",
            escaped(&result),
            escaped(&command_line::this("sealane")),
            escaped(&self.to_text()),
            escaped(&self.to_json()),
        )
    }

    /// What each worker moved, and last the total: for people and as JSON.
    fn rows(&self) -> Vec<(Vec<String>, Value)> {
        let workers = self.per_worker.iter().enumerate().map(|(number, traffic)| (Part::Worker.task(number), traffic));
        let row = |(task, [pull, push]): (String, &Traffic)| {
            let (tensors, bytes) = (pull.tensors + push.tensors, pull.bytes + push.bytes);
            let step_ms = (pull.time + push.time).as_secs_f64() * 1e3 / self.steps_done.max(1) as f64;
            let (pull, push) = (pull.gigabytes_per_s(), push.gigabytes_per_s());
            let numbers = [pull, push, step_ms].map(|number| format!("{number:.2}"));
            let cells = [task.clone(), tensors.to_string(), DecimalBytes(bytes).to_string()].into_iter().chain(numbers);
            let json = json!({
                "task": task, "tensors": tensors, "bytes": bytes,
                "pull_gigabytes_per_s": pull, "push_gigabytes_per_s": push, "step_ms": step_ms,
            });
            (cells.collect(), json)
        };
        workers.chain([("total".to_owned(), &self.total)]).map(row).collect()
    }
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

/// Draws a histogram of nanoseconds in buckets that end at twice the one before, from the first to the last that is not empty.
fn bars(histogram: &Histogram<u64>) -> String {
    let buckets = histogram.iter_log(1_000, 2.0).skip_while(|bucket| bucket.count_since_last_iteration() == 0);
    let buckets: Vec<_> =
        buckets.map(|bucket| (bucket.value_iterated_to(), bucket.count_since_last_iteration())).collect();
    let most = buckets.iter().map(|(_, count)| *count).max().unwrap_or(0);
    let mut text = String::new();
    for (last, count) in buckets {
        // A bucket that is not empty has a visible bar.
        let width = (count * BAR_WIDTH / most).max(u64::from(count > 0)) as usize;
        writeln!(text, "  up to {:>8}  {:<40}  {count}", shown(last + 1), "█".repeat(width))
            .expect("a string takes all");
    }
    let percentile = |(name, quantile)| format!("{name} {}", shown(histogram.value_at_quantile(quantile)));
    text + &format!("  {}\n", PERCENTILES.map(percentile).join(", "))
}

/// A time with three digits and its unit.
fn shown(nanoseconds: u64) -> String {
    scaled(nanoseconds as f64, &[(1e9, " s"), (1e6, " ms"), (1e3, " µs")], " ns")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fetched(bytes: u64, elapsed_ms: u64) -> Fetched {
        let time = Duration::from_millis(elapsed_ms);
        Fetched { flow: Flow { tensors: 1, bytes, time }, latencies_ns: vec![time.as_nanos() as u64] }
    }

    #[derive(clap::Parser)]
    struct Flags {
        #[command(flatten)]
        args: Args,
    }

    fn outcome() -> Outcome<'static> {
        let text = r#"{"name": "<tiny>", "tensors": [{"name": "a", "shape": [250]}]}"#;
        let workload = Workload::parse(text, "test").unwrap();
        let machine = Machine { cpus: 2, cpu_model: "x & y".to_owned(), kernel: "y".to_owned(), pinned: Vec::new() };
        let flags = <Flags as clap::Parser>::parse_from(["demo", "--workers", "2", "--ps", "2", "--steps", "2"]);
        let mut outcome = Outcome::new(Box::leak(Box::new(flags.args)), workload, 2, 40, machine);
        outcome.links = [2, 0];
        // Two ps: each worker pulls from both, and each ps accepts the pushes of both workers.
        let pulled =
            [vec![fetched(1_000_000, 2), fetched(2_000_000, 4)], vec![fetched(1_000_000, 6), fetched(2_000_000, 1)]];
        let pushed = [vec![fetched(100_000, 1), fetched(100_000, 3)], vec![fetched(200_000, 2), fetched(200_000, 5)]];
        let step = outcome.add_step(&pulled, &pushed);
        assert_eq!(step.map(|flow| (flow.tensors, flow.bytes)), [(4, 6_000_000), (4, 600_000)]);
        assert_eq!(step.map(|flow| flow.time.as_millis()), [6, 5]);
        assert_eq!(step[0].gigabytes_per_s(), 1.0);
        outcome.add_step(&pulled, &pushed);
        outcome.verified = (16, 13_200_000);
        outcome
    }

    #[test]
    fn flows_at_once_take_as_long_as_the_longest_and_steps_add_up() {
        let text = outcome().to_text();
        for expected in [
            "<tiny>: 2 workers and 2 ps over verbs, 2 steps; in each a worker pulls 1 tensors (1.00 kB) and pushes 1 (1.00 kB)\n",
            "\na tensor's way: task --shm--> daemon --verbs--> daemon --shm--> task\n",
            "\nlinks between engines: 2 verbs, 0 tcp\n",
            "\nworker0:2222        8   6.60 MB       0.75       0.15     6.00\n",
            "\nworker1:2222        8   6.60 MB       0.50       0.06    11.00\n",
            "\ntotal              16  13.20 MB       1.00       0.12    11.00\n",
            "p50 2.00 ms, p90 6.00 ms, ",
            "\nboth ends and the verification share 2 CPUs; ",
            "\nevery byte of 16 tensors verified (13.20 MB); 0.0 s in all\n",
        ] {
            assert!(text.contains(expected), "{expected} in {text}");
        }
        let json: Value = serde_json::from_str(&outcome().to_json()).unwrap();
        assert_eq!((&json["mode"], &json["link"]), (&"daemons".into(), &"verbs".into()));
        assert_eq!((&json["total"]["bytes"], &json["total"]["step_ms"]), (&13_200_000.into(), &11.0.into()));
        assert_eq!(json["workers"][1]["task"], "worker1:2222");
        assert_eq!(json["pull_latency_us"]["count"], 8);
    }

    #[test]
    fn announcement_and_estimate_count_all_steps() {
        let outcome = outcome();
        let expected = "moves 12.00 kB between 2 workers and 2 ps on 2 CPUs of this machine, in a warm-up step and 2 measured steps, \
                        and verifies every byte";
        assert_eq!(outcome.announcement(), expected);
        let expected = "the warm-up step took 350 ms; 2 measured steps take about 700 ms";
        assert_eq!(outcome.estimate(Duration::from_millis(350)), expected);
    }

    #[test]
    fn a_page_shows_what_came_from_outside_as_text() {
        let failure = Failure::work("ps0:2222 failed in step <1>");
        let html = outcome().to_html(Some(&failure));
        for expected in ["&lt;tiny&gt;: 2 workers", "x &amp; y", "It failed. ps0:2222 failed in step &lt;1&gt;"] {
            assert!(html.contains(expected), "{expected} in {html}");
        }
        assert!(html.contains("Until then 2 of 2 steps were done"), "{html}");
    }

    #[test]
    fn the_fullest_bucket_has_the_longest_bar_and_every_value_a_bar() {
        let mut outcome = outcome();
        outcome.latencies.reset();
        assert_eq!(bars(&outcome.latencies).lines().count(), 1);
        outcome.latencies.record_n(1_500, 1000).unwrap();
        [3_000, 20_000].into_iter().for_each(|value| outcome.latencies.record(value).unwrap());
        let text = bars(&outcome.latencies);
        let lengths: Vec<_> = text.lines().map(|line| line.matches('█').count()).collect();
        assert_eq!(lengths, [40, 1, 0, 0, 1, 0], "{text}");
        assert!(text.contains("p50 1.50 µs, p90 1.50 µs, p99 1.50 µs, max 20.0 µs"), "{text}");
    }
}
