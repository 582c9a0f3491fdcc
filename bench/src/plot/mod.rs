//! Plots, drawn by hand as SVG: percentile curves, bars with whiskers, quotients, and figures in the course of time. Each is
//! drawn as a file of its own or as an element of a page, and there once for wide screens and once for narrow ones, so that its
//! letters have their size on both.

mod axis;
mod course;
mod frame;
mod growth;
mod palette;
mod percentile_curve;
mod rows;
mod svg;

use hdrhistogram::Histogram;

use crate::growth::GrowthReport;
use crate::run::Outcome;
use crate::table::Table;
use course::{Across, Course};
use frame::{Sheet, wrapped};
use growth::Growth;
use percentile_curve::Percentiles;
use rows::Rows;
use svg::{Anchor, Canvas, Style};

pub use axis::brief;
pub use course::Line;
pub(crate) use palette::{DARK, LIGHT};
pub use rows::Row;

/// The width of a file, in pixels of an unscaled SVG, and the height of its axes.
const FILE_WIDTH: f64 = 960.0;
const FILE_AXES_HEIGHT: f64 = 360.0;

/// The same of an element of a page.
const WIDE: (f64, f64) = (880.0, 300.0);
const NARROW: (f64, f64) = (360.0, 240.0);

/// Longest line of a file's title, in characters of its monospaced face.
const TITLE_COLUMNS: usize = 112;

/// Longest line of its subtitle, whose face is proportional and smaller.
const SUBTITLE_COLUMNS: usize = 140;

/// Something to look at, and the numbers behind it.
#[derive(Clone, Debug)]
pub struct Picture {
    kind: Kind,
}

#[derive(Clone, Debug)]
enum Kind {
    Percentiles(Percentiles),
    Bars(Rows),
    Quotients(Rows),
    Course(Course),
    Growth(Growth),
}

impl Picture {
    /// Times in nanoseconds, each with its name, as curves of percentiles. `what` took them, as in "round trip"; and so many
    /// `counted`, as in "round trips", were.
    pub fn percentiles(what: &str, counted: &str, curves: Vec<(String, Histogram<u64>)>) -> Picture {
        Kind::Percentiles(Percentiles { what: what.to_owned(), counted: counted.to_owned(), curves }).into()
    }

    /// Figures as bars; `label` says which, and in what unit.
    pub fn bars(label: &str, rows: Vec<Row>) -> Picture {
        Kind::Bars(Rows { label: label.to_owned(), rows }).into()
    }

    /// Quotients as points beside the line of 1.
    pub fn quotients(label: &str, rows: Vec<Row>) -> Picture {
        Kind::Quotients(Rows { label: label.to_owned(), rows }).into()
    }

    /// Figures in the course of time, whose seconds count from `since`, as in "the first round".
    pub fn course(label: &str, since: &str, lines: Vec<Line>) -> Picture {
        let across = Across::SecondsSince(since.to_owned());
        Kind::Course(Course { label: label.to_owned(), across, lines }).into()
    }

    /// Figures over a quantity, as in "workers"; both labels say their unit.
    pub fn curves(label: &str, across: &str, lines: Vec<Line>) -> Picture {
        Kind::Course(Course { label: label.to_owned(), across: Across::Quantity(across.to_owned()), lines }).into()
    }

    /// The numbers that are shown.
    pub fn numbers(&self) -> Table {
        match &self.kind {
            Kind::Percentiles(percentiles) => percentiles.numbers(),
            Kind::Bars(rows) | Kind::Quotients(rows) => rows.numbers(),
            Kind::Course(course) => course.numbers(),
            Kind::Growth(growth) => growth.numbers(),
        }
    }

    /// The picture as a file of its own: the title, which may be a command line, says what was run; the subtitle how and where.
    pub fn to_svg(&self, title: &str, subtitle: &str) -> String {
        let mut canvas = Canvas::new(FILE_WIDTH);
        let mut below = 28.0;
        for line in wrapped(title, TITLE_COLUMNS) {
            canvas.text((24.0, below), Anchor::Start, Style::Title, &line);
            below += 18.0;
        }
        for line in wrapped(subtitle, SUBTITLE_COLUMNS) {
            canvas.text((24.0, below), Anchor::Start, Style::Small, &line);
            below += 16.0;
        }
        let height = self.draw(&mut canvas, Sheet { top: below, height: FILE_AXES_HEIGHT });
        canvas.into_file(height)
    }

    /// The elements of a page for wide and for narrow screens; `name` is for those who cannot see them.
    pub(crate) fn elements(&self, name: &str) -> [String; 2] {
        [(WIDE, "wide"), (NARROW, "narrow")].map(|((width, height), class)| {
            let mut canvas = Canvas::new(width);
            let height = self.draw(&mut canvas, Sheet { top: 0.0, height });
            canvas.into_element(height, class, name)
        })
    }

    /// Draws it and gives the place below it.
    fn draw(&self, canvas: &mut Canvas, sheet: Sheet) -> f64 {
        match &self.kind {
            Kind::Percentiles(percentiles) => percentiles.draw(canvas, sheet),
            Kind::Bars(rows) => rows.draw_bars(canvas, sheet),
            Kind::Quotients(rows) => rows.draw_quotients(canvas, sheet),
            Kind::Course(course) => course.draw(canvas, sheet),
            Kind::Growth(growth) => growth.draw(canvas, sheet),
        }
    }
}

impl From<Kind> for Picture {
    fn from(kind: Kind) -> Picture {
        Picture { kind }
    }
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
    /// Draws steps a second against workers; `command` is the command line that made them, as the title.
    pub fn to_svg(&self, command: &str) -> String {
        let points = self.sizes.iter().map(|size| (f64::from(size.workers), size.steps_per_s)).collect();
        Picture::from(Kind::Growth(Growth { points })).to_svg(command, &self.heading())
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
    use crate::sample::{Metric, Sample, round_trip_histogram};
    use crate::turns::Measured;

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
        let samples = vec![Sample::round_trips(histogram)];
        Measured { system, variant: "polling".to_owned(), samples }
    }

    fn texts(svg: &str) -> Vec<String> {
        let document = roxmltree::Document::parse(svg).expect("well-formed XML");
        assert_eq!(document.root_element().tag_name().name(), "svg");
        document.descendants().filter_map(|node| node.text().map(str::to_owned)).collect()
    }

    #[test]
    fn a_latency_plot_has_a_named_curve_for_each_system() {
        let svg = outcome(Bench::Latency, vec![trips("raw", 6_400), trips("grpc", 24_000)])
            .to_svg("sealane bench latency --baseline raw --json <a&b>");
        let texts = texts(&svg);
        for expected in [
            "sealane bench latency --baseline raw --json <a&b>",
            "raw (polling)",
            "grpc (polling)",
            "round trip, µs",
            "99 %",
        ] {
            assert!(texts.iter().any(|text| text == expected), "{expected} in {texts:?}");
        }
        // Each is in the legend as well.
        assert_eq!(svg.matches("<polyline").count(), 4);
    }

    #[test]
    fn other_plots_have_a_bar_with_its_spread_for_each_system() {
        for (bench, metric) in [
            (Bench::Rate, Metric::TensorsPerSecond),
            (Bench::Bandwidth, Metric::GigabytesPerSecond),
            (Bench::Connect, Metric::ConnectAll),
            (Bench::Idle, Metric::CpuPercent),
            (Bench::FanIn, Metric::TensorsPerSecond),
            (Bench::Fuse, Metric::StepTime),
        ] {
            let systems = ["sealane", "raw", "grpc"].map(|system| Measured {
                system,
                variant: "v".to_owned(),
                samples: [1.0, 2.0, 3.0].map(|value| Sample::figure(metric, value)).to_vec(),
            });
            let svg = outcome(bench, systems.to_vec()).to_svg("sealane bench");
            let texts = texts(&svg);
            assert!(texts.iter().any(|text| text.starts_with(metric.label())), "{texts:?}");
            for system in ["sealane", "raw", "grpc"] {
                assert!(texts.iter().any(|text| text.starts_with(system)), "{texts:?}");
            }
        }
    }

    #[test]
    fn growth_is_drawn_beside_perfect_growth() {
        let variables = Variables { pull: vec![1_000; 4], push: vec![1_000; 4] };
        let sizes = ["10+1", "50+2"].map(|size| size.parse().expect("a size")).to_vec();
        let plan = GrowthPlan { sizes, ..GrowthPlan::new("made_up", variables) };
        let svg = grow(&plan, &mut Progress::silent()).expect("a plan within limits").to_svg("sealane bench growth");
        let texts = texts(&svg);
        for expected in ["sealane bench growth", "simulated", "perfect growth from the first size", "10", "50"] {
            assert!(texts.iter().any(|text| text == expected), "{expected} in {texts:?}");
        }
        // Both lines, and each in the legend.
        assert_eq!(svg.matches("<polyline").count(), 4);
    }

    #[test]
    fn a_run_that_moved_nothing_can_be_drawn() {
        let empty = |system| Measured { system, variant: String::new(), samples: Vec::new() };
        texts(&outcome(Bench::Latency, vec![empty("raw")]).to_svg(""));
        texts(&outcome(Bench::Rate, vec![empty("raw")]).to_svg(""));
    }
}
