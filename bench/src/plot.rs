//! Pictures of figures, and the numbers behind them: percentile curves, bars with whiskers, quotients, and figures in the course
//! of time or over another quantity.

mod draw;

use hdrhistogram::Histogram;

use crate::growth::GrowthReport;
use crate::run::Outcome;
use crate::spread::Spread;
use crate::table::{Column, Table};
use draw::{Axis, Sheet};

/// A file of its own is so large, in pixels; its height is that of the curves.
const FILE: (u32, u32) = (960, 480);
/// The same of an element of a page, for wide and for narrow screens.
const WIDE: (u32, u32) = (880, 360);
const NARROW: (u32, u32) = (360, 320);

/// Points of a percentile curve: more than one for every three pixels would not be seen.
const POINTS: u32 = 280;
/// Nines on its axis, at least and at most; beyond what was counted there is nothing to draw.
const NINES: (u32, u32) = (2, 6);
/// Times are shown in milliseconds where all medians are at least this long.
const MILLISECONDS_FROM_NS: u64 = 1_000_000;
/// Most points of a line that are shown as such; of more, only the line is.
const POINTS_SHOWN_MAX: usize = 120;

const _: () = assert!(POINTS as usize > POINTS_SHOWN_MAX, "a curve of percentiles is a line");

/// Something to look at, and the numbers behind it.
#[derive(Clone, Debug)]
pub enum Picture {
    /// Times in nanoseconds, each with its name, as curves of percentiles.
    Percentiles {
        /// What took that time, as in "round trip".
        what: String,
        /// What was counted, as in "round trips".
        counted: String,
        /// Names and times.
        curves: Vec<(String, Histogram<u64>)>,
    },
    /// Figures as bars.
    Bars {
        /// Which figures, and their unit.
        label: String,
        /// The figures.
        rows: Vec<Row>,
    },
    /// Quotients as points beside the line of 1.
    Quotients {
        /// Of what.
        label: String,
        /// The quotients.
        rows: Vec<Row>,
    },
    /// Figures in the course of time, or over another quantity, as points that are joined.
    Course {
        /// Which figures, and their unit.
        label: String,
        /// What is across, and its unit; `seconds since ...` is never logarithmic.
        across: String,
        /// The figures.
        lines: Vec<Line>,
    },
}

/// A figure.
#[derive(Clone, Debug, PartialEq)]
pub struct Row {
    /// Whose it is.
    pub name: String,
    /// The figure in the median round, the lowest and the highest.
    pub spread: Spread,
}

/// Figures that are joined.
#[derive(Clone, Debug, PartialEq)]
pub struct Line {
    /// Whose they are.
    pub name: String,
    /// Lines of one series have its colour.
    pub series: usize,
    /// Whether it is dashed, to tell it from another of its series.
    pub is_dashed: bool,
    /// Seconds, or what else is across, and values. Points of one part are joined: of systems that take turns, each round is one.
    pub parts: Vec<Vec<(f64, f64)>>,
}

impl Picture {
    /// The numbers that are shown.
    pub fn numbers(&self) -> Table {
        match self {
            Picture::Percentiles { curves, .. } => {
                let (unit, nanoseconds) = unit(curves);
                let heads = ["min", "p50", "p90", "p99", "p99.9", "max"].map(|head| format!("{head} {unit}"));
                let columns = [Column::text("of")].into_iter().chain(heads.iter().map(|head| Column::number(head)));
                let row = |(name, all): &(String, Histogram<u64>)| {
                    let at = |quantile| all.value_at_quantile(quantile);
                    let times = [all.min(), at(0.5), at(0.9), at(0.99), at(0.999), all.max()];
                    let times = times.map(|time| format!("{:.3}", time as f64 / nanoseconds));
                    [name.clone()].into_iter().chain(times).chain([all.len().to_string()]).collect()
                };
                Table::new(columns.chain([Column::number("count")]).collect::<Vec<_>>(), curves.iter().map(row))
            }
            Picture::Bars { rows, .. } | Picture::Quotients { rows, .. } => {
                let columns =
                    [Column::text("of")].into_iter().chain(["median", "lowest", "highest"].map(Column::number));
                let digits = decimals(rows.iter().map(|row| row.spread.max).fold(0.0, f64::max));
                let row = |Row { name, spread: Spread { median, min, max } }: &Row| {
                    let figures = [median, min, max].map(|value| format!("{value:.digits$}"));
                    [name.clone()].into_iter().chain(figures).collect()
                };
                Table::new(columns.collect::<Vec<_>>(), rows.iter().map(row))
            }
            Picture::Course { label, across, lines } => {
                let (head, decimals_across) = if is_time(across) { ("s", 3) } else { (across.as_str(), 0) };
                let columns = [Column::text("of"), Column::number(head), Column::number(label)];
                let digits = decimals(lines.iter().flat_map(Line::points).map(|(_, value)| value).fold(0.0, f64::max));
                let row = |name: &str, (at, value): (f64, f64)| {
                    vec![name.to_owned(), format!("{at:.decimals_across$}"), format!("{value:.digits$}")]
                };
                let rows = lines.iter().flat_map(|line| line.points().map(|point| row(&line.name, point)));
                Table::new(columns, rows.collect::<Vec<_>>())
            }
        }
    }

    /// The picture as a file of its own: the title, which may be a command line, says what was run; the subtitle how and where.
    pub fn to_svg(&self, title: &str, subtitle: &str) -> String {
        let mut sheet = Sheet::new(self.size(FILE), Some((title, subtitle)));
        self.draw(&mut sheet);
        sheet.into_svg()
    }

    /// The elements of a page for wide and for narrow screens; `name` is for those who cannot see them.
    pub(crate) fn elements(&self, name: &str) -> [String; 2] {
        [(WIDE, "wide"), (NARROW, "narrow")].map(|(size, class)| {
            let mut sheet = Sheet::new(self.size(size), None);
            self.draw(&mut sheet);
            sheet.into_element(class, name)
        })
    }

    fn size(&self, (width, height): (u32, u32)) -> (u32, u32) {
        match self {
            Picture::Bars { rows, .. } | Picture::Quotients { rows, .. } => (width, draw::rows_height(rows.len())),
            _ => (width, height),
        }
    }

    fn draw(&self, sheet: &mut Sheet) {
        match self {
            Picture::Percentiles { what, counted, curves } => draw_percentiles(sheet, what, counted, curves),
            Picture::Bars { label, rows } => {
                let ends = rows.iter().flat_map(|row| [row.spread.min, row.spread.max]);
                let axis = Axis::fitting(ends, &format!("{label} (median, lowest and highest round)"));
                sheet.rows(&axis, rows);
            }
            Picture::Quotients { label, rows } => {
                // 1 is always shown, somewhat away from the edge.
                let ends = rows.iter().flat_map(|row| [row.spread.min, row.spread.max]).filter(|value| *value > 0.0);
                let (low, high) = ends.fold((0.9, 1.1), |(low, high), end| (f64::min(low, end), f64::max(high, end)));
                sheet.rows(&Axis::logarithmic(low, high, label), rows);
            }
            Picture::Course { label, across, lines } => {
                let points = || lines.iter().flat_map(Line::points);
                let horizontal = match is_time(across) {
                    true => Axis::linear(points().map(|(at, _)| at).fold(0.0, f64::max), across),
                    false => Axis::fitting(points().map(|(at, _)| at), across),
                };
                let vertical = Axis::fitting(points().map(|(_, value)| value), label);
                sheet.lines(&horizontal, &vertical, lines);
            }
        }
    }
}

impl Line {
    fn points(&self) -> impl Iterator<Item = (f64, f64)> {
        self.parts.iter().flatten().copied()
    }

    /// Whether its points are shown as such.
    fn has_points(&self) -> bool {
        self.points().count() <= POINTS_SHOWN_MAX
    }
}

/// The unit of times, and how many nanoseconds it has.
fn unit(curves: &[(String, Histogram<u64>)]) -> (&'static str, f64) {
    let lowest = curves.iter().map(|(_, all)| all.value_at_quantile(0.5)).min().unwrap_or(0);
    if lowest >= MILLISECONDS_FROM_NS { ("ms", 1e6) } else { ("µs", 1e3) }
}

/// The further right, the rarer; both axes logarithmic, so that the median and the tail can be read from one picture.
fn draw_percentiles(sheet: &mut Sheet, what: &str, counted: &str, curves: &[(String, Histogram<u64>)]) {
    let (unit, nanoseconds) = unit(curves);
    let of = |value: u64| value as f64 / nanoseconds;
    let most = curves.iter().map(|(_, all)| all.len()).max().unwrap_or(1);
    let nines = most.max(1).ilog10().clamp(NINES.0, NINES.1);
    let quantile = |nines: f64| 1.0 - 10_f64.powf(-nines);
    let lowest = curves.iter().map(|(_, all)| all.min()).min().unwrap_or(1);
    let highest = curves.iter().map(|(_, all)| all.value_at_quantile(quantile(f64::from(nines)))).max().unwrap_or(1);
    let curve = |(series, (name, all)): (usize, &(String, Histogram<u64>))| {
        // A percentile that fewer than one of them lies beyond says nothing.
        let end = (all.len().max(2) as f64).log10().min(f64::from(nines));
        let points = (0..=POINTS).map(|point| end * f64::from(point) / f64::from(POINTS));
        let points = points.map(|nines| (nines, of(all.value_at_quantile(quantile(nines)))));
        // Curves also differ by being dashed or not, so that a print in grey can be read.
        Line { name: name.clone(), series, is_dashed: series % 2 == 1, parts: vec![points.collect()] }
    };
    let lines: Vec<Line> = curves.iter().enumerate().map(curve).collect();
    let vertical = Axis::logarithmic(of(lowest), of(highest), &format!("{what}, {unit}"));
    sheet.lines(&Axis::nines(nines, &format!("percentile of {counted}")), &vertical, &lines);
}

fn is_time(across: &str) -> bool {
    across.starts_with("seconds since ")
}

/// Digits after the point of figures in a table, of which this is the highest.
fn decimals(highest: f64) -> usize {
    if highest >= 1_000.0 { 0 } else { 4 }
}

/// A short number with three digits, which are as many as a figure deserves: `1.23 M`, `8.13`, `0.0123`.
pub fn brief(value: f64) -> String {
    if !value.is_normal() {
        return "0".to_owned();
    }
    let scale = 10_f64.powf(2.0 - value.abs().log10().floor());
    short((value * scale).round() / scale)
}

/// A number as short as it can be read: `2.5 M`, `400 k`, `0.5`.
fn short(value: f64) -> String {
    let (scaled, unit) = match value.abs() {
        large if large >= 1e9 => (value / 1e9, " G"),
        large if large >= 1e6 => (value / 1e6, " M"),
        large if large >= 1e4 => (value / 1e3, " k"),
        _ => (value, ""),
    };
    let digits = if scaled.abs() < 1.0 { format!("{scaled:.6}") } else { format!("{scaled:.3}") };
    format!("{}{unit}", digits.trim_end_matches('0').trim_end_matches('.'))
}

impl Outcome {
    /// Draws the run's main figure; `command` is the command line that made it, as the title.
    pub fn to_svg(&self, command: &str) -> String {
        let machine = &self.report.machine;
        let subtitle = format!("{}; {}, Linux {}", self.report.heading(), machine.cpu_model, machine.kernel);
        self.main_figure().to_svg(command, &subtitle)
    }
}

impl GrowthReport {
    /// Draws steps a second against workers, beside what perfect growth from the first size would be; `command` is the command
    /// line that made them, as the title.
    pub fn to_svg(&self, command: &str) -> String {
        let mut points: Vec<_> = self.sizes.iter().map(|size| (size.size.workers as f64, size.steps_per_s)).collect();
        let of_each = points.first().map_or(0.0, |(workers, steps)| steps / workers);
        points.sort_by(|(one, _), (other, _)| one.total_cmp(other));
        let perfect = points.iter().map(|(workers, _)| (*workers, workers * of_each)).collect();
        let line = |name: &str, series, points| Line {
            name: name.to_owned(),
            series,
            is_dashed: series > 0,
            parts: vec![points],
        };
        let lines = vec![line("simulated", 0, points), line("perfect growth from the first size", 1, perfect)];
        let label = "steps/s of all workers".to_owned();
        Picture::Course { label, across: "workers".to_owned(), lines }.to_svg(command, &self.heading())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::growth::{GrowthPlan, Variables, grow};
    use crate::machine::Machine;
    use crate::plan::{Bench, Plan};
    use crate::progress::Progress;
    use crate::report::{Carrier, Report};
    use crate::run::Measured;
    use crate::sample::{Metric, Sample, round_trip_histogram};

    fn outcome(bench: Bench, measured: Vec<Measured>) -> Outcome {
        let machine = Machine {
            cpus: 2,
            cpu_model: "Abacus <9> & \"co\"".to_owned(),
            kernel: "6.18".to_owned(),
            pinned: vec![0, 1],
        };
        let report = Report::new(&Plan::new(bench), machine, Carrier::default(), &measured);
        Outcome { report, measured }
    }

    fn trips(system: &'static str, from: u64) -> Measured {
        let mut histogram = round_trip_histogram();
        for step in 0..1_000 {
            histogram.saturating_record(from + step * step);
        }
        Measured { system, variant: "polling".to_owned(), samples: vec![Sample::round_trips(histogram)] }
    }

    fn texts(svg: &str) -> Vec<String> {
        let document = roxmltree::Document::parse(svg).unwrap_or_else(|error| panic!("{error}\n{svg}"));
        assert_eq!(document.root_element().tag_name().name(), "svg");
        document.descendants().filter_map(|node| node.text().map(|text| text.trim().to_owned())).collect()
    }

    fn assert_has(texts: &[String], expected: &[&str]) {
        for expected in expected {
            assert!(texts.iter().any(|text| text.starts_with(expected)), "{expected} in {texts:?}");
        }
    }

    #[test]
    fn a_latency_plot_has_a_named_curve_for_each_system() {
        let svg = outcome(Bench::Latency, vec![trips("raw", 6_400), trips("grpc", 24_000)])
            .to_svg("sealane bench latency --baseline raw --json <a&b>\u{7}");
        let command = "sealane bench latency --baseline raw --json <a&b>";
        assert_has(&texts(&svg), &[command, "raw (polling)", "grpc (polling)", "round trip, µs", "99 %", "99.9 %"]);
    }

    #[test]
    fn other_plots_have_a_bar_with_its_spread_for_each_system() {
        for (bench, metric) in [(Bench::Rate, Metric::TensorsPerSecond), (Bench::Fuse, Metric::StepTime)] {
            let systems = ["sealane", "raw", "grpc"].map(|system| Measured {
                system,
                variant: "v".to_owned(),
                samples: [1.0, 2.0, 3.0].map(|value| Sample::figure(metric, value)).to_vec(),
            });
            let texts = texts(&outcome(bench, systems.to_vec()).to_svg("sealane bench"));
            assert_has(&texts, &[metric.label(), "sealane", "raw", "grpc", "2 (1 to 3)"]);
        }
    }

    #[test]
    fn growth_is_drawn_beside_perfect_growth() {
        let variables = Variables { pull: vec![1_000; 4], push: vec![1_000; 4] };
        let sizes = ["10+1", "50+2"].map(|size| size.parse().expect("a size")).to_vec();
        let plan = GrowthPlan { sizes, ..GrowthPlan::new("made_up", variables) };
        let svg = grow(&plan, &mut Progress::silent()).expect("a plan within limits").to_svg("sealane bench growth");
        assert_has(
            &texts(&svg),
            &["sealane bench growth", "simulated", "perfect growth from the first size", "workers"],
        );
    }

    #[test]
    fn a_run_that_moved_nothing_can_be_drawn() {
        let empty = |system| Measured { system, variant: String::new(), samples: Vec::new() };
        texts(&outcome(Bench::Latency, vec![empty("raw")]).to_svg(""));
        texts(&outcome(Bench::Rate, vec![empty("raw")]).to_svg(""));
        let none = Picture::Course { label: String::new(), across: "workers".to_owned(), lines: Vec::new() };
        texts(&none.to_svg("", ""));
    }

    #[test]
    fn every_point_is_in_the_table() {
        let parts = vec![vec![(1.0, 4.0)], vec![(2.0, 5.0)]];
        let line = Line { name: "sealane".to_owned(), series: 0, is_dashed: false, parts };
        let across = "seconds since the first round".to_owned();
        let course = Picture::Course { label: "GB/s".to_owned(), across, lines: vec![line] };
        assert_eq!(course.numbers().rows, [["sealane", "1.000", "4.0000"], ["sealane", "2.000", "5.0000"]]);
    }

    #[test]
    fn numbers_are_as_short_as_they_can_be_read() {
        let shown = [0.0, 0.012_345, 8.126, 1234.5, 12_345.0, 1_234_567.0, 2e10].map(brief);
        assert_eq!(shown, ["0", "0.0123", "8.13", "1230", "12.3 k", "1.23 M", "20 G"]);
    }
}
