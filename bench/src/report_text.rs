//! The report as people read it.

use std::fmt::Write;

use crate::byte_count::format_bytes;
use crate::plan::{Bench, Executor, Security, in_words};
use crate::report::{Figures, Report, ResultRow, Switch};
use crate::sample::Metric;
use crate::spread::Ratio;
use sealane_cli::table::{Column, Table};

impl Report {
    /// A heading, a table of the results and, where there are ratios, a table of those.
    pub fn to_table(&self) -> String {
        let mut text = self.heading();
        text.push_str("\n\n");
        text.push_str(&self.round_trips().to_text());
        let values = if self.bench == Bench::Ps { self.variants() } else { self.values() };
        text.push_str(&values.to_text());
        if !self.ratios.is_empty() {
            text.push('\n');
            text.push_str(&self.quotients().to_text());
        }
        text + &self.warnings_text()
    }

    fn warnings_text(&self) -> String {
        self.warnings.iter().map(|warning| format!("\nwarning: {warning}\n")).collect()
    }

    /// The reports of one benchmark at several sizes: one line a size, with the figures of each system.
    ///
    /// # Panics
    /// There is no report.
    pub fn sweep(reports: &[Report]) -> String {
        let figures = |report: &Report| -> Vec<(String, String)> {
            let of_row = |row: &ResultRow| match row.figures {
                Figures::RoundTrips { p50, p99, .. } => [("p50 µs", p50), ("p99 µs", p99)]
                    .map(|(name, value)| (format!("{} {name}", row.system), format!("{value:.2}")))
                    .to_vec(),
                Figures::Value { value, .. } if row.metric == Metric::GigabytesPerSecond => {
                    vec![(format!("{} {}", row.system, row.metric.label()), row.metric.written(value))]
                }
                Figures::Value { .. } => Vec::new(),
            };
            report.results.iter().flat_map(of_row).collect()
        };
        let first = &reports[0];
        let heads: Vec<Column> = figures(first).iter().map(|(head, _)| Column::number(head)).collect();
        let row = |report: &Report| {
            let cells = figures(report).into_iter().map(|(_, cell)| cell);
            [format_bytes(report.parameters.size_bytes)].into_iter().chain(cells).collect()
        };
        let table = Table::new([&[Column::number("size")][..], &heads].concat(), reports.iter().map(row));
        let size = format_bytes(first.parameters.size_bytes);
        let heading = first.heading().replacen(&size, &format!("{} sizes from {size}", reports.len()), 1);
        // What is wrong with the machine is wrong at every size, and said once.
        let mut said: Vec<&str> = Vec::new();
        let mut warnings = String::new();
        for (report, warning) in reports.iter().flat_map(|one| one.warnings.iter().map(move |text| (one, text))) {
            let what = warning.split(':').next().unwrap_or_default();
            if !said.contains(&what) {
                said.push(what);
                let size = format_bytes(report.parameters.size_bytes);
                warnings += &format!("\nwarning: {size}: {warning}\n");
            }
        }
        format!("{heading}\n\n{}{warnings}", table.to_text())
    }

    /// One line that says what was measured, and how.
    pub(crate) fn heading(&self) -> String {
        let settings = &self.parameters;
        let what = match (self.bench, settings.peers, settings.tensors, &settings.workload) {
            (Bench::Ps, ..) => self.experiment(),
            (Bench::Rows, ..) => self.tables(),
            (Bench::FanIn, Some(peers), ..) => format!("{peers} peers, {}", format_bytes(settings.size_bytes)),
            (_, Some(peers), ..) => format!("{peers} peers"),
            (_, _, Some(tensors), Some(name)) => format!("{name}, {tensors} tensors"),
            (_, _, Some(tensors), None) => format!("{tensors} tensors of {}", format_bytes(settings.size_bytes)),
            (_, None, None, _) => format_bytes(settings.size_bytes),
        };
        let mut text = format!("{} over {}: {what}, {} rounds", self.bench, self.link, settings.rounds);
        if self.bench != Bench::Connect {
            write!(text, " of {} s", settings.seconds).expect("a string takes everything");
        }
        let mut add = |part: &str| {
            text.push_str(", ");
            text.push_str(part);
        };
        match self.bench {
            Bench::Latency | Bench::Idle => {
                add(if settings.polling == Switch::On { "polling on" } else { "polling off" });
                if settings.idle_us > 0 {
                    add(&format!("{} µs idle before each request", settings.idle_us));
                }
            }
            Bench::Rate => add(&format!("window {}, fuse {}", settings.window, settings.fuse)),
            Bench::Bandwidth => add(&format!("window {}", settings.window)),
            Bench::FanIn => add(&format!("fuse {}, window {} each", settings.fuse, settings.window)),
            Bench::Fuse if settings.fuse.is_of_many() => add(&format!("fuse {}", settings.fuse)),
            Bench::Fuse => add(&format!("fuse {}, window {}", settings.fuse, settings.window)),
            Bench::Connect | Bench::Restart | Bench::Ps | Bench::Rows => {}
        }
        if settings.security != Security::None {
            add(&format!("security {}", settings.security));
        }
        if settings.executor != Executor::Auto {
            add(&format!("executor {}", settings.executor));
        }
        if let Some(congestion) = &settings.congestion {
            add(&format!("congestion control {congestion}"));
        }
        if let (Some(transfer), Some(registration)) = (settings.transfer, settings.registration)
            && self.bench != Bench::Ps
        {
            add(&format!("{transfer}, {registration}"));
        }
        if let Some(device) = &settings.device {
            add(&format!("{} with MTU {}", device.name, device.mtu));
        }
        match self.machine.pinned.as_slice() {
            [consumer, producer] => add(&format!("CPUs {consumer} and {producer}")),
            _ => add("not pinned"),
        }
        text
    }

    /// Who trains with whom, and what.
    fn experiment(&self) -> String {
        let settings = &self.parameters;
        let number = |count: Option<usize>| count.unwrap_or_default();
        let (workers, ps, tensors) = (number(settings.workers), number(settings.ps), number(settings.tensors));
        let name = settings.workload.as_deref().unwrap_or("a step");
        let mut text = format!("{workers} workers and {ps} ps, {name} of {tensors} tensors");
        if !settings.tables.is_empty() {
            write!(text, " and rows of {}", in_words(&settings.tables)).expect("a string takes everything");
        }
        if let Some(compute_us @ 1..) = settings.compute_us {
            write!(text, ", {compute_us} µs of computing").expect("a string takes everything");
        }
        text
    }

    /// Who pulls rows from whom.
    fn tables(&self) -> String {
        let settings = &self.parameters;
        let [workers, ps] = [settings.workers, settings.ps].map(Option::unwrap_or_default);
        format!("{workers} workers and {ps} ps, {}", in_words(&settings.tables))
    }

    /// The percentiles of each system's round trips.
    fn round_trips(&self) -> Table {
        let columns = [Column::text("system"), Column::text("variant")];
        let numbers = ["p50 µs", "p90 µs", "p99 µs", "p99.9 µs", "max µs", "count"].map(Column::number);
        let rows = self.results.iter().filter_map(|row| match row.figures {
            Figures::RoundTrips { p50, p90, p99, p999, max, count } => {
                let figures = [p50, p90, p99, p999, max].map(|value| format!("{value:.2}"));
                Some(named(row, figures.into_iter().chain([count.to_string()])))
            }
            Figures::Value { .. } => None,
        });
        Table::new([&columns[..], &numbers].concat(), rows)
    }

    /// Every other figure of each system, with its spread over the rounds.
    pub(crate) fn values(&self) -> Table {
        let columns = ["system", "variant", "metric"].map(Column::text);
        let numbers = ["median", "min", "max"].map(Column::number);
        let rows = self.results.iter().filter_map(|row| match row.figures {
            Figures::Value { value, min, max } => {
                let figures = [value, min, max].map(|value| row.metric.written(value));
                Some(named(row, [row.metric.label().to_owned()].into_iter().chain(figures)))
            }
            Figures::RoundTrips { .. } => None,
        });
        Table::new([&columns[..], &numbers].concat(), rows)
    }

    /// A row for each variant of the parameter-server experiment, with the median round's figures.
    fn variants(&self) -> Table {
        let columns = ["system", "variant"].map(Column::text);
        let heads = ["steps/s", "min", "max", "step ms", "p99 ms", "messages", "MB", "CPU ms", "slowest", "fastest"];
        let is_first = |row: &&ResultRow| row.metric == Metric::StepsPerSecond;
        let rows = self.results.iter().filter(is_first).map(|first| {
            let of = |metric: Metric| {
                let is_its = |row: &&ResultRow| {
                    (&row.system, &row.variant, row.metric) == (&first.system, &first.variant, metric)
                };
                match self.results.iter().find(is_its).map(|row| &row.figures) {
                    Some(&Figures::Value { value, min, max }) => [value, min, max],
                    _ => [0.0; 3],
                }
            };
            let [steps, min, max] = of(Metric::StepsPerSecond).map(|value| Metric::StepsPerSecond.written(value));
            let short = |metric: Metric, unit: f64| format!("{:.2}", of(metric)[0] / unit);
            let figures = [
                steps,
                min,
                max,
                short(Metric::StepTime, 1.0),
                short(Metric::StepTimeP99, 1.0),
                format!("{:.0}", of(Metric::MessagesPerStep)[0]),
                short(Metric::BytesPerStep, 1e6),
                short(Metric::CpuPerStep, 1.0),
                short(Metric::SlowestShare, 1.0),
                short(Metric::FastestShare, 1.0),
            ];
            named(first, figures.into_iter())
        });
        Table::new([&columns[..], &heads.map(Column::number)].concat(), rows)
    }

    fn quotients(&self) -> Table {
        let columns = ["ratio", "of"].map(Column::text);
        let numbers = ["median", "min", "max"].map(Column::number);
        // Of the many figures of an experiment, the one that it is about.
        let is_shown = |ratio: &&Ratio| self.bench != Bench::Ps || ratio.of == Metric::StepsPerSecond.to_string();
        let rows = self.ratios.iter().filter(is_shown).map(|ratio| {
            let spread = ratio.spread;
            let figures = [spread.median, spread.min, spread.max];
            let mut row = vec![ratio.name.clone(), ratio.of.clone()];
            row.extend(figures.map(|value| format!("{value:.3}")));
            row
        });
        Table::new([&columns[..], &numbers].concat(), rows)
    }
}

fn named(row: &ResultRow, figures: impl Iterator<Item = String>) -> Vec<String> {
    [row.system.clone(), row.variant.clone()].into_iter().chain(figures).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::Plan;
    use crate::report::Carrier;
    use crate::run::Measured;
    use crate::sample::{Metric, Sample, round_trip_histogram};
    use sealane_cli::machine::Machine;

    fn machine() -> Machine {
        let text = "x".to_owned();
        Machine { cpus: 2, cpu_model: text.clone(), kernel: text, pinned: vec![0, 1] }
    }

    #[test]
    fn latency_shows_percentiles_and_ratios() {
        let measured = [("sealane", 8_000), ("raw", 6_400)].map(|(system, nanoseconds)| {
            let mut histogram = round_trip_histogram();
            histogram.saturating_record(nanoseconds);
            let samples = vec![Sample::round_trips(histogram)];
            Measured { system, variant: "polling".to_owned(), samples }
        });
        let plan = Plan::new(Bench::Latency);
        let carrier = Carrier { congestion: Some("reno".to_owned()), device: None };
        let report = Report::new(&plan, machine(), carrier, &measured);
        let text = report.to_table();
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(
            lines[0],
            "latency over tcp: 64 B, 5 rounds of 1 s, polling on, congestion control reno, \
             CPUs 0 and 1"
        );
        assert!(lines[2].starts_with("system   variant  p50 µs"), "{text}");
        assert!(lines[3].starts_with("sealane  polling    8.00"), "{text}");
        assert!(text.contains("sealane/raw  rtt_us.p50    1.250"), "{text}");
    }

    #[test]
    fn rates_and_bandwidths_show_their_spread() {
        let cases = [
            (Bench::Rate, Metric::TensorsPerSecond, "tensors/s    1235", "window 256, fuse turn"),
            (Bench::Bandwidth, Metric::GigabytesPerSecond, "GB/s    1234.57", "4 MiB"),
            (Bench::Connect, Metric::ConnectAll, "connect all, ms  1234.57", "64 peers, 5 rounds, CPUs"),
            (Bench::Idle, Metric::CpuPercent, "CPU, %  1234.57", "64 peers, 5 rounds of 1 s, polling off, CPUs"),
            (
                Bench::FanIn,
                Metric::SlowestShare,
                "slowest's share  1234.57",
                "64 peers, 64 B, 5 rounds of 1 s, fuse turn, window 16",
            ),
            (Bench::Fuse, Metric::StepTime, "step, ms  1234.5670", "1000 tensors of 64 B, 5 rounds of 1 s, fuse plan"),
        ];
        for (bench, metric, row, heading) in cases {
            let samples = vec![Sample::figure(metric, 1_234.567)];
            let measured = Measured { system: "raw", variant: "v".to_owned(), samples };
            let report = Report::new(&Plan::new(bench), machine(), Carrier::default(), &[measured]);
            let text = report.to_table();
            assert!(text.contains(heading), "{text}");
            assert!(text.contains(row), "{text}");
            assert!(!text.contains("ratio"), "{text}");
        }
    }
}
