//! The plot of a run, an SVG that is drawn by hand: percentile curves of a latency run, bars with
//! whiskers of any other.

mod axis;
mod bars;
mod percentile_curve;
mod svg;

use crate::plan::Bench;
use crate::run::Outcome;
use svg::{Anchor, Canvas, Style};

/// The picture's size, in pixels of an unscaled SVG.
const WIDTH: f64 = 960.0;
const HEIGHT: f64 = 560.0;

/// Longest line of the title, in characters of its monospaced face.
const TITLE_COLUMNS: usize = 104;

/// Longest line of the subtitle, whose face is proportional and smaller.
const SUBTITLE_COLUMNS: usize = 140;

/// Colours that people with any colour vision can tell apart, one a system.
const COLOURS: [&str; 6] = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9"];

impl Outcome {
    /// Draws the run; `command` is the command line that made it, as the title.
    pub fn to_svg(&self, command: &str) -> String {
        let mut canvas = Canvas::new(WIDTH, HEIGHT);
        let mut below = 28.0;
        for line in wrapped(command, TITLE_COLUMNS) {
            canvas.text((24.0, below), Anchor::Start, Style::Title, &line);
            below += 18.0;
        }
        let machine = &self.report.machine;
        let subtitle = format!("{}; {}, Linux {}", self.report.heading(), machine.cpu_model, machine.kernel);
        for line in wrapped(&subtitle, SUBTITLE_COLUMNS) {
            canvas.text((24.0, below), Anchor::Start, Style::Small, &line);
            below += 16.0;
        }
        let frame = Frame { left: 88.0, right: WIDTH - 32.0, top: below + 16.0, bottom: HEIGHT - 64.0 };
        match self.report.bench {
            Bench::Latency => percentile_curve::draw(&mut canvas, frame, &self.measured),
            Bench::Rate | Bench::Bandwidth | Bench::Connect | Bench::Idle | Bench::FanIn | Bench::Fuse => {
                bars::draw(&mut canvas, frame, &self.report.results)
            }
        }
        canvas.finish()
    }
}

/// Where the axes are.
#[derive(Clone, Copy, Debug)]
struct Frame {
    left: f64,
    right: f64,
    top: f64,
    bottom: f64,
}

impl Frame {
    /// The place of a share of the width, from the left.
    fn x(self, share: f64) -> f64 {
        self.left + (self.right - self.left) * share
    }

    /// The place of a share of the height, from the bottom.
    fn y(self, share: f64) -> f64 {
        self.bottom - (self.bottom - self.top) * share
    }

    /// Draws the grid line and the label of each tick of the vertical axis, and its name.
    fn draw_y(self, canvas: &mut Canvas, ticks: &[axis::Tick], name: &str) {
        for tick in ticks {
            let y = self.y(tick.share);
            canvas.line((self.left, y), (self.right, y), Style::Grid);
            canvas.text((self.left - 8.0, y + 4.0), Anchor::End, Style::Small, &tick.label);
        }
        canvas.line((self.left, self.top), (self.left, self.bottom), Style::Axis);
        canvas.upright_text((24.0, self.y(0.5)), name);
    }

    /// Draws the base line and the horizontal axis's name.
    fn draw_base(self, canvas: &mut Canvas, name: &str) {
        canvas.line((self.left, self.bottom), (self.right, self.bottom), Style::Axis);
        canvas.text((self.x(0.5), self.bottom + 44.0), Anchor::Middle, Style::Label, name);
    }
}

fn colour(index: usize) -> &'static str {
    COLOURS[index % COLOURS.len()]
}

/// Breaks a text at spaces into lines of at most `columns` characters, if its words allow it.
fn wrapped(text: &str, columns: usize) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in text.split_whitespace() {
        match lines.last_mut() {
            Some(line) if line.chars().count() + 1 + word.chars().count() <= columns => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(word.to_owned()),
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::Machine;
    use crate::plan::Plan;
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
        assert_eq!(svg.matches("<polyline").count(), 2);
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
            assert!(texts.iter().any(|text| text == metric.label()), "{texts:?}");
            for system in ["sealane", "raw", "grpc"] {
                assert!(texts.iter().any(|text| text.starts_with(system)), "{texts:?}");
            }
        }
    }

    #[test]
    fn a_run_that_moved_nothing_can_be_drawn() {
        let empty = |system| Measured { system, variant: String::new(), samples: Vec::new() };
        texts(&outcome(Bench::Latency, vec![empty("raw")]).to_svg(""));
        texts(&outcome(Bench::Rate, vec![empty("raw")]).to_svg(""));
    }

    #[test]
    fn long_titles_are_wrapped() {
        let lines = wrapped("one two three four", 9);
        assert_eq!(lines, ["one two", "three", "four"]);
        assert_eq!(wrapped("unbreakable", 4), ["unbreakable"]);
    }
}
