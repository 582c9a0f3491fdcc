//! What the page of a benchmark says.

use std::time::SystemTime;

use serde::Deserialize;
use serde::de::value::{Error, StrDeserializer};
use serde_json::Value;

use super::{Highlight, Page, Section};
use crate::machine::Machine;
use crate::plan::Bench;
use crate::plot::{Line, Picture, Row, brief};
use crate::report::{Figures, Report, ResultRow};
use crate::run::{Measured, Outcome};
use crate::sample::Metric;
use crate::spread::{Ratio, Spread};

/// Most rounds whose insides are shown; of more, each is one point.
const ROUNDS_SHOWN_INSIDE_MAX: usize = 20;

/// Most figures of the first glance.
const HIGHLIGHTS_MAX: usize = 4;

impl Outcome {
    /// The run as a page; `command` is the command line that made it.
    pub fn to_page(&self, command: &str, made: SystemTime) -> Page {
        let report = &self.report;
        Page {
            kind: "Sealane benchmark".to_owned(),
            title: format!("{} over {}", capitalised(&report.bench.to_string()), report.link),
            result: report.result(),
            failure: None,
            command: command.to_owned(),
            made,
            highlights: report.highlights(),
            sections: self.sections(),
        }
    }

    /// The picture of what the benchmark is about.
    pub(crate) fn main_figure(&self) -> Picture {
        if self.report.bench == Bench::Latency {
            let curve = |one: &Measured| Some((one.label(), one.all_round_trips()?));
            return Picture::Percentiles {
                what: "round trip".to_owned(),
                counted: "round trips".to_owned(),
                curves: self.measured.iter().filter_map(curve).collect(),
            };
        }
        // Bars share an axis, so they are all of one metric: the run's first.
        let metric = self.report.main_metric();
        let row = |one: &Measured| Spread::of(&one.values(metric)).map(|spread| Row { name: one.label(), spread });
        Picture::Bars { label: metric.label().to_owned(), rows: self.measured.iter().filter_map(row).collect() }
    }

    fn sections(&self) -> Vec<Section> {
        let Report { bench, parameters, machine, .. } = &self.report;
        let main =
            Section::new(&capitalised(self.report.main_metric().label_and_unit().0), "").picture(&self.main_figure());
        let mut sections = vec![main, self.over_time()];
        if let (Bench::Fuse, Some(tensors)) = (bench, parameters.tensors) {
            sections.extend(self.fusion(tensors as f64));
        }
        if !self.report.ratios.is_empty() {
            sections.push(self.report.comparison());
        }
        if self.report.results.iter().any(|row| row.metric != self.report.main_metric()) {
            let text = "The median round, the lowest and the highest.";
            sections.push(Section::new("All figures", text).table(self.report.values()));
        }
        sections.push(Section::new("Parameters", self.report.heading()).facts(self.report.parameters()));
        sections.push(Section::machine(machine, []));
        sections.retain(|section| !section.is_empty());
        sections
    }

    /// The main figure in the course of the run.
    fn over_time(&self) -> Section {
        let metric = self.report.main_metric();
        let courses = || self.measured.iter().flat_map(|one| &one.samples).map(|sample| sample.course.as_ref());
        let inside = (self.measured.iter().all(|one| one.samples.len() <= ROUNDS_SHOWN_INSIDE_MAX))
            .then(|| courses().next().flatten().map(|course| course.metric))
            .flatten()
            .filter(|_| courses().all(|course| course.is_some()));
        let (label, lines, text) = match (self.report.bench, inside) {
            (Bench::Latency, _) => {
                let lines = self.measured.iter().enumerate().flat_map(|(series, one)| {
                    [("p50", 0.5), ("p99", 0.99)]
                        .map(|(name, quantile)| one.percentile_by_round(series, name, quantile))
                });
                (
                    metric,
                    lines.collect(),
                    "The median and the 99th percentile of each round; systems are measured in turn.",
                )
            }
            (_, Some(metric)) => {
                let lines = self.measured.iter().enumerate().map(|(series, one)| one.inside_rounds(series));
                (metric, lines.collect(), "Each round in twenty parts; systems are measured in turn.")
            }
            (_, None) => {
                let lines = self.measured.iter().enumerate().map(|(series, one)| one.by_round(series, metric));
                (metric, lines.collect(), "Each round; systems are measured in turn.")
            }
        };
        Section::new("In the course of the run", text).picture(&Picture::Course {
            label: label.label().to_owned(),
            across: "seconds since the first round".to_owned(),
            lines,
        })
    }

    /// Tensors a message, where messages were counted.
    fn fusion(&self, tensors: f64) -> Option<Section> {
        let row = |one: &Measured| {
            let messages = one.values(Metric::MessagesPerStep).into_iter().filter(|messages| *messages > 0.0);
            let ratios: Vec<f64> = messages.map(|messages| tensors / messages).collect();
            Spread::of(&ratios).map(|spread| Row { name: one.label(), spread })
        };
        let rows: Vec<Row> = self.measured.iter().filter_map(row).collect();
        let text =
            "Tensors of a step, by the messages that it took, both ways; requests and releases are messages as well.";
        (!rows.is_empty()).then(|| {
            Section::new("Fusion", text).picture(&Picture::Bars { label: "tensors a message".to_owned(), rows })
        })
    }
}

impl Measured {
    fn label(&self) -> String {
        format!("{} ({})", self.system, self.variant)
    }

    fn line(&self, series: usize, parts: Vec<Vec<(f64, f64)>>) -> Line {
        Line { name: self.label(), series, is_dashed: false, parts }
    }

    fn percentile_by_round(&self, series: usize, name: &str, quantile: f64) -> Line {
        let point = |sample: &crate::sample::Sample| {
            let all = sample.round_trips.as_ref()?;
            Some((sample.began.as_secs_f64(), all.value_at_quantile(quantile) as f64 / 1e3))
        };
        let line = self.line(series, vec![self.samples.iter().filter_map(point).collect()]);
        Line { name: format!("{}, {name}", self.label()), is_dashed: name != "p50", ..line }
    }

    fn inside_rounds(&self, series: usize) -> Line {
        let part = |sample: &crate::sample::Sample| {
            let points = sample.course.iter().flat_map(|course| &course.points);
            points.map(|point| ((sample.began + point.at).as_secs_f64(), point.value)).collect()
        };
        self.line(series, self.samples.iter().map(part).collect())
    }

    fn by_round(&self, series: usize, metric: Metric) -> Line {
        let began = self.samples.iter().map(|sample| sample.began.as_secs_f64());
        self.line(series, vec![began.zip(self.values(metric)).collect()])
    }
}

impl Report {
    /// The metric that the benchmark is about.
    fn main_metric(&self) -> Metric {
        self.results.first().map_or(Metric::TensorsPerSecond, |row| row.metric)
    }

    /// One sentence with the main figure, and how it compares.
    fn result(&self) -> String {
        let Some(row) = self.results.first() else { return "Nothing was measured.".to_owned() };
        let system = format!("{} ({})", row.system, row.variant);
        let figure = match row.figures {
            Figures::RoundTrips { p50, p99, .. } => {
                let (p50, p99) = (brief(p50), brief(p99));
                format!("half of the round trips took at most {p50}\u{a0}µs, 99\u{a0}% at most {p99}\u{a0}µs")
            }
            Figures::Value { value, .. } => {
                let (label, unit) = row.metric.label_and_unit();
                let unit = if unit.is_empty() { unit.to_owned() } else { format!("\u{a0}{unit}") };
                format!("{label} {}{unit} in the median round", brief(value))
            }
        };
        let compared = self.ratios_of_main().map(|ratio| {
            let Spread { median, min, max } = ratio.spread;
            format!("; {} is {} ({} to {})", ratio.name, brief(median), brief(min), brief(max))
        });
        format!("{system}: {figure}{}.", compared.collect::<String>())
    }

    /// How the main figure compares: of round trips, their median.
    fn ratios_of_main(&self) -> impl Iterator<Item = &Ratio> {
        let metric = self.main_metric();
        let of = if metric == Metric::RoundTrip { format!("{metric}.p50") } else { metric.to_string() };
        self.ratios.iter().filter(move |ratio| ratio.of == of)
    }

    fn highlights(&self) -> Vec<Highlight> {
        let Some(first) = self.results.first() else { return Vec::new() };
        let of_first = |row: &&ResultRow| (&row.system, &row.variant) == (&first.system, &first.variant);
        let figures = self.results.iter().filter(of_first).flat_map(|row| match row.figures {
            Figures::RoundTrips { p50, p90, p99, p999, .. } => {
                [("p50", p50), ("p90", p90), ("p99", p99), ("p99.9", p999)]
                    .map(|(name, value)| Highlight::new(&format!("round trip, {name}"), brief(value), "µs"))
                    .to_vec()
            }
            Figures::Value { value, .. } => {
                let (label, unit) = row.metric.label_and_unit();
                vec![Highlight::new(label, brief(value), unit)]
            }
        });
        let ratio = |ratio: &Ratio| Highlight::new(&ratio.name, brief(ratio.spread.median), "times");
        figures.chain(self.ratios_of_main().map(ratio)).take(HIGHLIGHTS_MAX).collect()
    }

    fn comparison(&self) -> Section {
        let row = |ratio: &Ratio| Row { name: format!("{}, {}", ratio.name, spelled(&ratio.of)), spread: ratio.spread };
        let text = "Quotients of two systems' figures, taken round by round. Of a time, a quotient below 1 means that Sealane \
                    takes less; of a rate, one above 1 means that it is faster.";
        let picture = Picture::Quotients {
            label: "quotient (logarithmic)".to_owned(),
            rows: self.ratios.iter().map(row).collect(),
        };
        Section::new("Systems compared", text).picture(&picture)
    }

    /// What the JSON has under that name.
    fn parameters(&self) -> Vec<(String, String)> {
        let Ok(Value::Object(parameters)) = serde_json::to_value(&self.parameters) else { return Vec::new() };
        let given = parameters.into_iter().filter(|(_, value)| !value.is_null());
        given.map(|(name, value)| (name, value.as_str().map_or_else(|| value.to_string(), str::to_owned))).collect()
    }
}

impl Section {
    /// What a report says of the machine, and of the program.
    pub fn machine<'a>(machine: &Machine, more: impl IntoIterator<Item = (&'a str, String)>) -> Section {
        let pinned = match machine.pinned.as_slice() {
            [] => "none".to_owned(),
            cpus => cpus.iter().map(usize::to_string).collect::<Vec<_>>().join(", "),
        };
        let facts = [
            ("CPU", machine.cpu_model.clone()),
            ("CPUs that this process may use", machine.cpus.to_string()),
            ("CPUs that are pinned to", pinned),
            ("kernel", format!("Linux {}", machine.kernel)),
            ("sealane", env!("CARGO_PKG_VERSION").to_owned()),
        ];
        Section::new("Machine", "").facts(facts.into_iter().chain(more))
    }
}

/// `round trip, p50` for `rtt_us.p50`.
fn spelled(of: &str) -> String {
    let (name, percentile) = of.split_once('.').map_or((of, None), |(name, percentile)| (name, Some(percentile)));
    let metric = Metric::deserialize(StrDeserializer::<Error>::new(name));
    let label = metric.map_or(name, |metric| metric.label_and_unit().0);
    match percentile {
        Some("p999") => format!("{label} p99.9"),
        Some(percentile) => format!("{label} {percentile}"),
        None => label.to_owned(),
    }
}

fn capitalised(text: &str) -> String {
    let mut characters = text.chars();
    characters.next().map_or_else(String::new, |first| first.to_uppercase().chain(characters).collect())
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, UNIX_EPOCH};

    use super::*;
    use crate::plan::Plan;
    use crate::report::Carrier;
    use crate::report_page::tests::{parsed, text_of};
    use crate::sample::{Course, Point, Sample, round_trip_histogram};

    fn outcome(bench: Bench, measured: Vec<Measured>) -> Outcome {
        let machine =
            Machine { cpus: 2, cpu_model: "Abacus <9>".to_owned(), kernel: "6.18".to_owned(), pinned: vec![0, 1] };
        let report = Report::new(&Plan::new(bench), machine, Carrier::default(), &measured);
        Outcome { report, measured }
    }

    fn measured(system: &'static str, samples: Vec<Sample>) -> Measured {
        let at = |(round, sample)| Sample { began: Duration::from_secs(round), ..sample };
        let samples = (0..).zip(samples).map(at).collect();
        Measured { system, variant: "v".to_owned(), samples }
    }

    fn html(outcome: &Outcome) -> String {
        outcome.to_page("sealane bench --json 'a b'", UNIX_EPOCH).to_html()
    }

    #[test]
    fn latency_has_percentiles_rounds_and_quotients() {
        let trips = |nanoseconds| {
            let mut histogram = round_trip_histogram();
            histogram.saturating_record(nanoseconds);
            Sample::round_trips(histogram)
        };
        let sealane = measured("sealane", vec![trips(8_000), trips(9_000)]);
        let outcome = outcome(Bench::Latency, vec![sealane, measured("raw", vec![trips(4_000), trips(6_000)])]);
        let html = html(&outcome);
        let text = text_of(&parsed(&html));
        for expected in [
            "Latency over tcp",
            "sealane (v): half of the round trips took at most 8 µs, 99 % at most 9.01 µs; sealane/raw is 1.75 (1.5 to 2).",
            "sealane bench --json 'a b'",
            "round trip, µs",
            "percentile of round trips",
            "sealane (v), p99",
            "seconds since the first round",
            "sealane/raw, round trip p99.9",
            "Abacus <9>",
            "size_bytes 64",
        ] {
            assert!(text.contains(expected), "{expected} in {text}");
        }
    }

    #[test]
    fn a_rate_is_shown_inside_its_rounds_where_they_are_few() {
        let rate = |value| {
            let points = [0.2, 0.6].map(|at| Point { at: Duration::from_secs_f64(at), value });
            let course = Course { metric: Metric::TensorsPerSecond, points: points.to_vec() };
            Sample { course: Some(course), ..Sample::figure(Metric::TensorsPerSecond, value) }
        };
        let few = outcome(Bench::Rate, vec![measured("sealane", vec![rate(1_000.0), rate(3_000.0)])]);
        let shown = text_of(&parsed(&html(&few)));
        assert!(shown.contains("sealane (v): tensors/s 2000 in the median round."), "{shown}");
        assert!(shown.contains("sealane (v) 0.200 1000 sealane (v) 0.600 1000 sealane (v) 1.200 3000"), "{shown}");
        let many = measured("sealane", vec![rate(1_000.0); ROUNDS_SHOWN_INSIDE_MAX + 1]);
        let shown = text_of(&parsed(&html(&outcome(Bench::Rate, vec![many]))));
        assert!(shown.contains("sealane (v) 0.000 1000 sealane (v) 1.000 1000"), "{shown}");
    }

    #[test]
    fn steps_show_how_many_tensors_a_message_had() {
        let step =
            Sample { figures: vec![(Metric::StepTime, 0.03), (Metric::MessagesPerStep, 8.0)], ..Sample::default() };
        let shown = text_of(&parsed(&html(&outcome(Bench::Fuse, vec![measured("sealane", vec![step])]))));
        assert!(shown.contains("Fusion") && shown.contains("sealane (v) 125.0000 125.0000 125.0000"), "{shown}");
    }

    #[test]
    fn every_kind_has_a_page_and_a_run_that_moved_nothing_too() {
        for bench in [Bench::Latency, Bench::Rate, Bench::Connect, Bench::Idle, Bench::FanIn, Bench::Fuse] {
            parsed(&html(&outcome(bench, Vec::new())));
            parsed(&html(&outcome(bench, vec![measured("raw", Vec::new())])));
            let connect = Sample::figure(Metric::ConnectAll, 3.0);
            parsed(&html(&outcome(bench, vec![measured("raw", vec![connect.clone(), connect])])));
        }
    }

    #[test]
    fn quotients_are_spelled_out() {
        assert_eq!(spelled("rtt_us.p999"), "round trip p99.9");
        assert_eq!(spelled("step_ms"), "step");
        assert_eq!(spelled("unknown.x"), "unknown x");
    }
}
