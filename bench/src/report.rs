//! The report of a run: the JSON that scripts rely on, and the text for people.

use itertools::Itertools;
use sealane_cli::machine::Machine;
use sealane_cli::settings::show_bytes;
use sealane_cli::table::{Column, Table};
use serde::Serialize;
use serde_json::{Value, json};

use crate::distance::Distance;
use crate::figures::{Measured, Metric, PERCENTILES, Ratio, Spread, microseconds, ratios, rounded};
use crate::machine::RdmaDevice;
use crate::plan::{Bench, Link, Plan};

/// Names the JSON's structure; another structure gets another number.
const SCHEMA: &str = "sealane-bench/1";

/// As `build.rs` found it.
const PROFILE: &str = env!("SEALANE_PROFILE");

/// Parameters that the heading always names, even with their defaults.
const ALWAYS_TOLD: [&str; 7] = ["tensors", "peers", "workers", "ps", "ranks", "hosts", "congestion"];

/// Metrics left out of the table for people, for lack of room.
const ONLY_IN_JSON: [Metric; 8] = [
    Metric::CpuPerGigabyte,
    Metric::ProducerCpuPerGigabyte,
    Metric::StepTimeP90,
    Metric::WorkerCpuPerStep,
    Metric::PsCpuPerStep,
    Metric::PsResident,
    Metric::WorkerResident,
    Metric::PsOpenFiles,
];

/// Everything that a run found out.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Report {
    schema: &'static str,
    bench: Bench,
    link: Link,
    /// The settings of the run, as far as they can change its figures.
    pub parameters: Value,
    pub(crate) machine: Machine,
    /// The producers' machine, if it is another one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) producer_machine: Option<Machine>,
    /// Least and most nanoseconds in which a cache line went between the two CPUs and back, if both are of this machine.
    #[serde(skip_serializing_if = "Option::is_none")]
    line_ns: Option<[f64; 2]>,
    /// One row a system and metric.
    pub results: Vec<ResultRow>,
    /// Quotients of Sealane's figures and the baselines', taken round by round.
    pub ratios: Vec<Ratio>,
    /// Reasons why the figures may not be those of the systems: other work on the machine, uneven rounds.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) warnings: Vec<String>,
    /// One line that says what was measured, and how.
    #[serde(skip)]
    pub(crate) heading: String,
}

/// What carried the tensors, as the systems report it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Carrier {
    /// The congestion control of every socket; `None` without TCP.
    pub(crate) congestion: Option<String>,
    pub(crate) device: Option<RdmaDevice>,
}

/// The machines of a run.
#[derive(Clone, Debug)]
pub(crate) struct Machines {
    /// The consumer's machine, and the producers' unless they have another one.
    pub(crate) here: Machine,
    pub(crate) producers: Option<Machine>,
}

/// One metric of one system over all rounds.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ResultRow {
    pub system: &'static str,
    pub variant: String,
    pub metric: Metric,
    #[serde(flatten)]
    pub figures: Figures,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(untagged)]
pub enum Figures {
    /// Percentiles of all round trips of all rounds together, in microseconds.
    RoundTrips { p50: f64, p90: f64, p99: f64, p999: f64, max: f64, count: u64 },
    /// Of the rounds' values.
    Value {
        /// The median round.
        value: f64,
        min: f64,
        max: f64,
    },
}

impl Report {
    pub(crate) fn new(plan: &Plan, machines: Machines, carrier: &Carrier, measured: &[Measured]) -> Self {
        let parameters = parameters(plan, carrier);
        Self {
            schema: SCHEMA,
            bench: plan.bench,
            link: plan.link,
            heading: heading(plan, &parameters, &machines),
            parameters,
            machine: machines.here,
            producer_machine: machines.producers,
            line_ns: None,
            results: measured.iter().flat_map(rows).collect(),
            ratios: ratios(measured),
            warnings: Vec::new(),
        }
    }

    /// The same, with how far the CPUs were apart.
    pub(crate) fn at(mut self, distance: &Distance) -> Self {
        self.line_ns = distance.span().map(|span| span.map(f64::round));
        if let Some([least, most]) = self.line_ns {
            self.heading += &match least == most {
                true => format!(" (a cache line there and back: {least} ns)"),
                false => format!(" (a cache line there and back: {least} to {most} ns)"),
            };
        }
        self.warnings.extend(distance.warning());
        self
    }

    /// A metric of a system.
    pub(crate) fn figures(&self, system: &str, metric: Metric) -> Option<&Figures> {
        let row = self.results.iter().find(|row| row.system == system && row.metric == metric)?;
        Some(&row.figures)
    }

    /// The JSON text, with a line break at its end.
    pub fn to_json(&self) -> String {
        let mut text = serde_json::to_string_pretty(self).expect("a report has only named fields and finite numbers");
        text.push('\n');
        text
    }

    /// The text of a report, or of those of one benchmark at several sizes: a heading, a line for each system and, for a single
    /// report, ratios. Warnings about the machine apply to every size, and are printed once.
    ///
    /// # Panics
    /// There is no report.
    pub(crate) fn to_text(reports: &[&Self]) -> String {
        let lines: Vec<_> = reports.iter().flat_map(|report| report.lines()).collect();
        let heads: Vec<&String> = lines.iter().flatten().map(|(head, _)| head).unique().collect();
        let column = |head: &&String| match head.as_str() {
            "system" | "variant" => Column::text(head),
            _ => Column::number(head),
        };
        let cell = |line: &[(String, String)], head: &String| {
            line.iter().find(|(name, _)| name == head).map_or_else(String::new, |(_, cell)| cell.clone())
        };
        let rows = lines.iter().map(|line| heads.iter().map(|head| cell(line, head)).collect());
        let figures = Table::new(heads.iter().map(column).collect::<Vec<_>>(), rows).to_text();
        let quotients = if let [one] = reports { one.quotients() } else { String::new() };
        let warnings =
            reports.iter().flat_map(|report| &report.warnings).unique_by(|warning| warning.split(':').next());
        let warnings: String = warnings.map(|warning| format!("\nwarning: {warning}\n")).collect();
        format!("{}\n\n{figures}{quotients}{warnings}", reports[0].heading)
    }

    /// A line for each system, with the names of its cells: the first figure with its spread over the rounds.
    fn lines(&self) -> impl Iterator<Item = Vec<(String, String)>> {
        let of_one = self.results.chunk_by(|one, next| (one.system, &one.variant) == (next.system, &next.variant));
        of_one.map(|rows| {
            let mut line = vec![("system", rows[0].system.to_owned()), ("variant", rows[0].variant.clone())];
            if let Some(bytes) = self.parameters["size_bytes"].as_u64().filter(|_| has_size(self.bench)) {
                line.push(("size", show_bytes(bytes)));
            }
            for (place, ResultRow { metric, figures, .. }) in rows.iter().enumerate() {
                match *figures {
                    Figures::RoundTrips { p50, p90, p99, p999, max, count } => {
                        let times =
                            [("p50 µs", p50), ("p90 µs", p90), ("p99 µs", p99), ("p99.9 µs", p999), ("max µs", max)];
                        line.extend(times.map(|(name, value)| (name, metric.written(value))));
                        line.push(("count", count.to_string()));
                    }
                    Figures::Value { .. } if ONLY_IN_JSON.contains(metric) => {}
                    Figures::Value { value, min, max } => {
                        line.push((metric.label(), metric.written(value)));
                        if place == 0 {
                            line.extend([("min", metric.written(min)), ("max", metric.written(max))]);
                        }
                    }
                }
            }
            line.into_iter().map(|(head, cell)| (head.to_owned(), cell)).collect()
        })
    }

    fn quotients(&self) -> String {
        // Of an experiment's many figures, only the main one.
        let is_shown = |ratio: &&Ratio| self.bench != Bench::Ps || ratio.of == Metric::StepsPerSecond.to_string();
        let rows = self.ratios.iter().filter(is_shown).map(|Ratio { name, of, spread }| {
            let figures = [spread.median, spread.min, spread.max].map(|value| format!("{value:.3}"));
            [name.clone(), of.clone()].into_iter().chain(figures).collect()
        });
        let columns =
            [["ratio", "of"].map(Column::text).to_vec(), ["median", "min", "max"].map(Column::number).to_vec()];
        let table = Table::new(columns.concat(), rows);
        if table.is_empty() { String::new() } else { format!("\n{}", table.to_text()) }
    }
}

/// Whether all its tensors have one size.
fn has_size(bench: Bench) -> bool {
    matches!(
        bench,
        Bench::Latency | Bench::Rate | Bench::Bandwidth | Bench::FanIn | Bench::Restart | Bench::Collectives
    )
}

fn parameters(plan: &Plan, carrier: &Carrier) -> Value {
    let steps = matches!(plan.bench, Bench::Fuse | Bench::Ps);
    let (transfer, registration) = plan.verbs().unzip();
    let mut parameters = json!({
        "size_bytes": plan.size_bytes,
        "rounds": plan.rounds,
        "seconds": plan.seconds,
        "window": plan.window,
        "fuse": plan.fuse,
        "polling": if plan.polling { "on" } else { "off" },
        "idle_us": plan.idle_us,
        "tensors": steps.then_some(plan.step.len()),
        "step_bytes": steps.then(|| plan.step.iter().sum::<usize>()),
        "workload": plan.workload,
        "peers": matches!(plan.bench, Bench::Connect | Bench::Idle | Bench::FanIn).then_some(plan.peers),
        "security": plan.security,
        "executor": plan.executor,
        "daemon": plan.daemon,
        "congestion": carrier.congestion,
        "transfer": transfer,
        "registration": registration,
        "device": carrier.device,
        "profile": PROFILE,
    });
    if let Some(training) = &plan.training {
        parameters["workers"] = training.size.workers.into();
        parameters["ps"] = training.size.ps.into();
        if steps {
            parameters["mode"] = json!(training.mode);
            parameters["compute_us"] = training.compute_us.into();
        }
    }
    if let Some(collectives) = &plan.collectives {
        parameters["call"] = json!(collectives.call);
        parameters["ranks"] = collectives.ranks.into();
        parameters["hosts"] = collectives.hosts.into();
    }
    if !plan.tables.is_empty() {
        parameters["tables"] = json!(plan.tables);
    }
    parameters
}

/// What was measured, with every parameter that differs from its default, by its name in the JSON.
fn heading(plan: &Plan, told: &Value, machines: &Machines) -> String {
    let usual = parameters(&Plan::new(plan.bench), &Carrier::default());
    let mut text = format!("{} over {}: {} rounds of {} s", plan.bench, plan.link, plan.rounds, plan.seconds);
    for (name, value) in told.as_object().into_iter().flatten() {
        // The table has a column for sizes.
        let is_said = matches!(name.as_str(), "rounds" | "seconds") || name == "size_bytes" && has_size(plan.bench);
        let is_told = ALWAYS_TOLD.contains(&name.as_str()) || *value != usual[name];
        text += &match value {
            _ if is_said || !is_told => continue,
            Value::Null => continue,
            Value::String(word) => format!(", {name} {word}"),
            Value::Array(many) => format!(", {} {name}", many.len()),
            Value::Object(device) => format!(", {name} {}", device.values().join(" ")),
            other => format!(", {name} {other}"),
        };
    }
    match (&machines.here.pinned[..], &machines.producers) {
        (_, Some(producers)) => {
            let [here, there] =
                [&machines.here, producers].map(|machine| machine.pinned.first().copied().unwrap_or_default());
            text + &format!(", between two hosts: CPU {here} here, CPU {there} of {} there", producers.cpu_model)
        }
        ([consumer, producer], None) => text + &format!(", CPUs {consumer} and {producer}"),
        _ => text + ", not pinned",
    }
}

fn rows(measured: &Measured) -> Vec<ResultRow> {
    let row =
        |metric, figures| ResultRow { system: measured.system, variant: measured.variant.clone(), metric, figures };
    let round_trips = measured.all_round_trips().map(|all| {
        let [p50, p90, p99, p999] = PERCENTILES.map(|(_, quantile)| rounded(microseconds(&all, quantile)));
        let (max, count) = (rounded(all.max() as f64 / 1_000.0), all.len());
        row(Metric::RoundTrip, Figures::RoundTrips { p50, p90, p99, p999, max, count })
    });
    let values = measured.values().into_iter().filter_map(|(metric, values)| {
        let Spread { median, min, max } = Spread::of(&values)?;
        Some(row(metric, Figures::Value { value: median, min, max }))
    });
    round_trips.into_iter().chain(values).collect()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::figures::{Sample, round_trip_histogram};
    use crate::plan::Transfer;

    fn report(plan: &Plan, carrier: &Carrier, samples: &[Sample]) -> (Value, String) {
        let machine = Machine { cpus: 2, cpu_model: "Abacus 9".into(), kernel: "6.18".into(), pinned: vec![0, 1] };
        let of = |system| Measured { system, variant: "v".to_owned(), samples: samples.to_vec() };
        let report =
            Report::new(plan, Machines { here: machine, producers: None }, carrier, &["sealane", "raw"].map(of));
        (serde_json::from_str(&report.to_json()).expect("valid JSON"), Report::to_text(&[&report]))
    }

    fn keys(value: &Value) -> BTreeSet<&str> {
        value.as_object().expect("an object").keys().map(String::as_str).collect()
    }

    /// The example in the command line's description, which users base scripts on.
    fn example() -> Value {
        json!({"schema":"sealane-bench/1","bench":"latency","link":"tcp",
            "parameters":{"size_bytes":64,"rounds":5},
            "machine":{"cpus":2,"cpu_model":"...","kernel":"...","pinned":[0,1]},
            "results":[{"system":"sealane","variant":"polling","metric":"rtt_us","p50":8.0,
                "p90":8.2,"p99":9.9,"p999":30.1,"max":412.0,"count":100000}],
            "ratios":[{"name":"sealane/raw","of":"rtt_us.p50","median":1.16,"min":1.12,"max":1.21}]})
    }

    #[test]
    fn latency_has_the_documented_shape() {
        let mut histogram = round_trip_histogram();
        histogram.saturating_record(6_400);
        let bbr = Carrier { congestion: Some("bbr".into()), device: None };
        let (made, text) = report(&Plan::new(Bench::Latency), &bbr, &[Sample::round_trips(histogram)]);
        let documented = example();
        assert_eq!(keys(&made), keys(&documented));
        assert_eq!((&made["schema"], &made["link"]), (&documented["schema"], &documented["link"]));
        assert_eq!(keys(&made["machine"]), keys(&documented["machine"]));
        assert_eq!(keys(&made["results"][0]), keys(&documented["results"][0]));
        assert_eq!(keys(&made["ratios"][0]), keys(&documented["ratios"][0]));
        assert_eq!(
            (&made["ratios"][0]["name"], &made["ratios"][0]["of"]),
            (&"sealane/raw".into(), &"rtt_us.p50".into())
        );
        assert!(keys(&made["parameters"]).is_superset(&keys(&documented["parameters"])));
        for (name, value) in [("congestion", "bbr"), ("polling", "on"), ("fuse", "turn")] {
            assert_eq!(made["parameters"][name], value);
        }
        let profile = made["parameters"]["profile"].as_str().expect("a word");
        assert_eq!(profile == "debug", cfg!(debug_assertions), "{profile}");
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[0], "latency over tcp: 5 rounds of 1 s, congestion bbr, CPUs 0 and 1");
        assert!(lines[2].starts_with("system   variant  size  p50 µs"), "{text}");
        assert!(lines[3].starts_with("sealane  v        64 B    6.40"), "{text}");
        assert!(text.contains("sealane/raw  rtt_us.p50    1.000"), "{text}");
    }

    #[test]
    fn other_metrics_carry_a_value_with_its_spread() {
        let samples = [30.0, 10.0, 20.0].map(|value| Sample::figure(Metric::TensorsPerSecond, value));
        let plan = Plan { window: 7, ..Plan::new(Bench::Rate) };
        let (made, text) = report(&plan, &Carrier::default(), &samples);
        let row = json!({"system":"sealane","variant":"v","metric":"tensors_per_s","value":20.0,"min":10.0,"max":30.0});
        assert_eq!((&made["results"][0], &made["parameters"]["congestion"]), (&row, &Value::Null));
        assert!(text.starts_with("rate over tcp: 5 rounds of 1 s, window 7, CPUs"), "{text}");
        assert!(text.contains("tensors/s  min  max\nsealane  v        64 B         20   10   30"), "{text}");
    }

    #[test]
    fn verbs_are_described_by_their_device_and_how_it_is_used() {
        let device = RdmaDevice { name: "rxe0".into(), port: 1, gid_index: 1, mtu: 1024 };
        let plan = Plan { link: Link::Verbs, transfer: Some(Transfer::Read), ..Plan::new(Bench::Latency) };
        let (made, text) = report(&plan, &Carrier { congestion: None, device: Some(device) }, &[]);
        let parameters = &made["parameters"];
        assert_eq!((&made["link"], &parameters["transfer"]), (&json!("verbs"), &json!("read")));
        assert_eq!(parameters["registration"], "static");
        assert_eq!(parameters["device"], json!({"name":"rxe0","port":1,"gid_index":1,"mtu":1024}));
        assert!(text.contains("rxe0"), "{text}");
    }
}
