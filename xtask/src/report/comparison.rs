//! Tables that set systems, and variants of Sealane, beside each other. Pure.

use sealane_bench::{Column, Picture, Row, Section, Spread, Table};

use super::figure::{self, NOT_MEASURED, cell, quotient};
use super::results::{Results, Run, inverse};

/// A row of a table that compares Sealane with the bare operation and with gRPC.
#[derive(Clone, Copy, Debug)]
pub(super) struct Line {
    /// What was done, in words.
    pub(super) what: &'static str,
    pub(super) experiment: &'static str,
    pub(super) metric: &'static str,
    /// Which quotients say how fast it is in comparison.
    compared_by: &'static str,
    /// Of several ways to use gRPC the one that is meant; else the first.
    grpc: Option<&'static str>,
}

/// A row whose comparison is of the metric itself.
pub(super) const fn line(what: &'static str, experiment: &'static str, metric: &'static str) -> Line {
    Line { what, experiment, metric, compared_by: metric, grpc: None }
}

impl Line {
    /// Compared by another metric, which has more digits.
    pub(super) const fn by(self, compared_by: &'static str) -> Line {
        Line { compared_by, ..self }
    }

    /// Compared with another way to use gRPC.
    pub(super) const fn with_grpc(self, variant: &'static str) -> Line {
        Line { grpc: Some(variant), ..self }
    }

    /// How many times as fast Sealane is as another system.
    pub(super) fn times_as_fast(&self, results: &Results, system: &str) -> Option<Spread> {
        let name = match self.grpc.filter(|_| system == "grpc") {
            Some(variant) => format!("sealane/grpc, {variant}"),
            None => format!("sealane/{system}"),
        };
        let ratio = results.get(self.experiment)?.ratio(&name, self.compared_by)?;
        Some(figure::speed(self.compared_by, ratio))
    }

    /// What, Sealane, bare operation, gRPC, times as fast as either.
    pub(super) fn cells(&self, results: &Results) -> [String; 6] {
        let run = results.get(self.experiment);
        let of = |system, variant| run.and_then(|run: &Run| run.figure(system, variant, self.metric));
        let sealane = of("sealane", None).map(|spread| figure::with_spread(self.metric, spread));
        let median = |spread| figure::median(self.metric, spread);
        let times = |system| cell(self.times_as_fast(results, system).map(quotient));
        [
            self.what.to_owned(),
            sealane.unwrap_or_else(|| NOT_MEASURED.to_owned()),
            cell(of("raw", None).map(median)),
            cell(of("grpc", self.grpc).map(median)),
            times("raw"),
            times("grpc"),
        ]
    }
}

/// The columns of [`Line::cells`].
pub(super) const SYSTEMS: [&str; 6] = ["what", "Sealane", "raw", "gRPC", "speed, raw = 1", "speed, gRPC = 1"];

/// Sealane, the bare operation and gRPC side by side; without a column that nothing was measured of.
pub(super) fn systems(results: &Results, lines: &[Line]) -> Table {
    let rows: Vec<[String; 6]> = lines.iter().map(|line| line.cells(results)).collect();
    let shown: Vec<usize> = (0..SYSTEMS.len()).filter(|at| rows.iter().any(|row| !row[*at].is_empty())).collect();
    let column = |at: &usize| if *at == 0 { Column::text(SYSTEMS[0]) } else { Column::number(SYSTEMS[*at]) };
    let columns: Vec<Column> = shown.iter().map(column).collect();
    Table::new(columns, rows.iter().map(|row| shown.iter().map(|at| row[*at].clone()).collect()))
}

/// With a picture of how many times as fast as gRPC each of these is, where that was measured.
pub(super) fn against_grpc(results: &Results, lines: &[Line], section: Section) -> Section {
    let row = |line: &Line| Some(Row { name: line.what.to_owned(), spread: line.times_as_fast(results, "grpc")? });
    let rows: Vec<Row> = lines.iter().filter_map(row).collect();
    match rows.is_empty() {
        true => section,
        false => section.illustration(Picture::quotients("times as fast as gRPC (logarithmic)", rows)),
    }
}

/// A variant that has only what all have.
const PLAIN: &str = "as it is";

/// The variants of Sealane by what sets them apart: parts of their names that all have are left out.
pub(super) fn names(variants: &[String]) -> Vec<String> {
    let parts: Vec<Vec<&str>> = variants.iter().map(|name| name.split(", ").collect()).collect();
    let is_of_all = |part: &&str| parts.iter().all(|of| of.contains(part));
    let own = |of: &Vec<&str>| match of.iter().filter(|part| !is_of_all(part)).copied().collect::<Vec<_>>().join(", ") {
        nothing if nothing.is_empty() => PLAIN.to_owned(),
        own => own,
    };
    if parts.len() < 2 { variants.to_vec() } else { parts.iter().map(own).collect() }
}

/// Every variant of Sealane and of gRPC: the system, the variant, and what to call it.
fn named(run: &Run) -> Vec<(&'static str, String, String)> {
    let (sealane, grpc) = (run.variants("sealane"), run.variants("grpc"));
    let ours = sealane.iter().zip(names(&sealane)).map(|(variant, name)| ("sealane", variant.clone(), name));
    let theirs =
        grpc.iter().zip(names(&grpc)).map(|(variant, name)| ("grpc", variant.clone(), format!("gRPC, {name}")));
    ours.chain(theirs).collect()
}

/// One row for each variant of Sealane and for each of gRPC: these metrics, and by what factor the first of the metrics
/// differs from that of the first variant. Metrics that nobody has are left out.
pub(super) fn variants(run: &Run, metrics: &[(&str, &str)]) -> Table {
    let has = |metric: &str| run.figure("sealane", None, metric).is_some();
    let metrics: Vec<_> = metrics.iter().filter(|(_, metric)| has(metric)).collect();
    let rows = named(run);
    let ([(_, main), others @ ..], Some((_, _, first))) = (metrics.as_slice(), rows.first()) else {
        return Table::new([Column::text("system")], []);
    };
    let mut columns = vec![Column::text("system"), Column::number(&format!("{first} = 1"))];
    columns.extend(metrics.iter().map(|(head, _)| Column::number(head)));
    let rows = rows.iter().map(|(system, variant, name)| {
        let to_first = match *system {
            "sealane" => run.to_first(variant, main),
            _ => to_grpc(run, variant, main).map(inverse),
        };
        let of = |metric: &str| run.figure(system, Some(variant), metric);
        let main_of = of(main).map(|spread| figure::with_spread(main, spread));
        let others = others.iter().map(|(_, metric)| of(metric).map(|spread| figure::median(metric, spread)));
        let cells = [to_first.map(quotient), main_of].into_iter().chain(others).map(cell);
        [name.clone()].into_iter().chain(cells).collect()
    });
    Table::new(columns, rows.collect::<Vec<_>>())
}

/// The first variant of Sealane by a variant of gRPC.
fn to_grpc(run: &Run, variant: &str, metric: &str) -> Option<Spread> {
    let is_first = run.variants("grpc").first().is_some_and(|first| first == variant);
    let short = is_first.then(|| run.ratio("sealane/grpc", metric)).flatten();
    short.or_else(|| run.ratio(&format!("sealane/grpc, {variant}"), metric))
}

/// A metric of every variant of Sealane, and of gRPC, as bars.
pub(super) fn bars(run: &Run, label: &str, metric: &str) -> Picture {
    let row = |(system, variant, name): (&str, String, String)| {
        Some(Row { name, spread: run.figure(system, Some(&variant), metric)? })
    };
    Picture::bars(label, named(run).into_iter().filter_map(row).collect())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::fixtures::run;
    use super::*;

    #[test]
    fn systems_stand_side_by_side_and_more_is_always_better() {
        let latency = run(json!({
            "results": [
                {"system":"sealane","variant":"polling","metric":"rtt_us","p50":8.0},
                {"system":"raw","variant":"polling","metric":"rtt_us","p50":6.0},
                {"system":"grpc","variant":"unary","metric":"rtt_us","p50":24.0},
                {"system":"grpc","variant":"one message","metric":"rtt_us","p50":30.0},
            ],
            "ratios": [
                {"name":"sealane/raw","of":"rtt_us.p50","median":1.25,"min":1.0,"max":2.0},
                {"name":"sealane/grpc","of":"rtt_us.p50","median":0.25,"min":0.2,"max":0.5},
                {"name":"sealane/grpc, one message","of":"rtt_us.p50","median":0.1,"min":0.1,"max":0.1},
            ],
        }));
        let results = Results::of([("latency", latency)]);
        let lines = [
            line("there and back", "latency", "rtt_us.p50"),
            line("the same", "latency", "rtt_us.p50").with_grpc("one message"),
            line("many", "rate", "tensors_per_s"),
        ];
        let table = systems(&results, &lines).to_markdown();
        let rows: Vec<_> = table.lines().skip(2).collect();
        assert_eq!(
            rows,
            [
                "| there and back | 8 µs | 6 µs | 24 µs | 0.8 (0.5 to 1) | 4 (2 to 5) |",
                "| the same | 8 µs | 6 µs | 30 µs | 0.8 (0.5 to 1) | 10 |",
                "| many | not measured |  |  |  |  |",
            ]
        );
    }

    #[test]
    fn variants_go_by_what_sets_them_apart() {
        let of = |names: &[&str]| super::names(&names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>());
        assert_eq!(of(&["fuse off, 1 buffer, polling", "fuse plan, 1 buffer, polling"]), ["fuse off", "fuse plan"]);
        assert_eq!(of(&["fuse off, polling"]), ["fuse off, polling"]);
        assert_eq!(of(&["polling", "polling, copied"]), ["as it is", "copied"]);
        assert_eq!(of(&[]), Vec::<String>::new());
    }

    #[test]
    fn variants_are_compared_with_the_first_and_so_is_grpc() {
        let row =
            |system, variant, metric, value| json!({"system":system,"variant":variant,"metric":metric,"value":value});
        let run = run(json!({
            "results": [
                row("sealane", "off, polling", "steps_per_s", 10.0), row("sealane", "off, polling", "messages_per_step", 8.0),
                row("sealane", "plan, polling", "steps_per_s", 40.0), row("sealane", "plan, polling", "messages_per_step", 2.0),
                row("grpc", "unary", "steps_per_s", 5.0),
            ],
            "ratios": [
                {"name":"off, polling/plan, polling","of":"steps_per_s","median":0.25,"min":0.25,"max":0.25},
                {"name":"sealane/grpc","of":"steps_per_s","median":2.0,"min":2.0,"max":2.0},
            ],
        }));
        let table =
            variants(&run, &[("steps a second", "steps_per_s"), ("none", "gap_ms"), ("messages", "messages_per_step")]);
        let expected = "| system | off = 1 | steps a second | messages |\n|---|---:|---:|---:|\n| off | 1 | 10/s | 8 |\n\
                        | plan | 4 | 40/s | 2 |\n| gRPC, unary | 0.5 | 5/s |  |\n";
        assert_eq!(table.to_markdown(), expected);
        assert!(variants(&run, &[("none", "gap_ms")]).is_empty());
    }
}
