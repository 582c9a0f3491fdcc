//! `--plot`: a run's main figure as a picture, drawn by plotters: round trips as percentile curves, everything else as bars with
//! the median round, the lowest and the highest.

use hdrhistogram::Histogram;
use plotters::coord::Shift;
use plotters::prelude::*;
use plotters::style::FontStyle;

use crate::figures::{Measured, Metric, Spread};
use crate::run::Outcome;

/// Width and height in pixels; for bars, the height is that of each bar, not counting title and axis.
const WIDTH: u32 = 960;
const CURVES_HEIGHT: u32 = 480;
const BAR_HEIGHT: u32 = 48;
const AROUND_BARS: u32 = 110;
/// Room for the names of bars.
const NAMES_WIDTH: u32 = 330;
const POINTS: u32 = 280;
/// Most nines on the percentile axis; beyond what was counted there is nothing to draw.
const NINES_MAX: f64 = 6.0;
/// Distinguishable on white, though not by everybody: curves are named as well.
const COLOURS: [RGBColor; 6] = [
    RGBColor(11, 98, 164),
    RGBColor(194, 87, 26),
    RGBColor(61, 127, 55),
    RGBColor(122, 75, 157),
    RGBColor(138, 109, 29),
    RGBColor(74, 85, 96),
];

type Sheet<'a> = DrawingArea<SVGBackend<'a>, Shift>;
type Drawn = Result<(), Box<dyn std::error::Error>>;

impl Outcome {
    /// The run's main figure as SVG; `command`, the command line that made it, is the title.
    pub fn to_svg(&self, command: &str) -> String {
        let curves: Vec<_> =
            self.measured.iter().filter_map(|one| Some((one.name(), one.all_round_trips()?))).collect();
        let main = |one: &Measured| one.values().into_iter().next();
        let metric = self.measured.first().and_then(main).map(|(metric, _)| metric);
        let bar = |one: &Measured| Some((one.name(), Spread::of(&main(one)?.1)?));
        let bars: Vec<_> = self.measured.iter().filter_map(bar).collect();
        let height = if curves.is_empty() { AROUND_BARS + BAR_HEIGHT * bars.len() as u32 } else { CURVES_HEIGHT };
        let mut svg = String::new();
        let sheet = SVGBackend::with_string(&mut svg, (WIDTH, height)).into_drawing_area();
        // XML has no way to write control characters.
        let title: String = command.chars().filter(|character| !character.is_control()).collect();
        let drawn = sheet.fill(&WHITE).map_err(Into::into).and_then(|()| {
            let machine = &self.report.machine;
            let subtitle = format!("{}; {}, Linux {}", self.report.heading, machine.cpu_model, machine.kernel);
            let sheet = sheet.titled(&title, ("sans-serif", 15, FontStyle::Bold).into_font())?;
            let sheet = sheet.titled(&subtitle, ("sans-serif", 12).into_font())?;
            match metric {
                _ if !curves.is_empty() => draw_percentiles(&sheet, &curves),
                Some(metric) => draw_bars(&sheet, metric, &bars),
                None => Ok(()),
            }
        });
        drawn.expect("a string takes every drawing");
        drop(sheet);
        svg
    }
}

impl Measured {
    fn name(&self) -> String {
        format!("{} ({})", self.system, self.variant)
    }
}

/// Rarer round trips are further right; both axes are logarithmic, so that the median and the tail can be read from one picture.
fn draw_percentiles(sheet: &Sheet<'_>, curves: &[(String, Histogram<u64>)]) -> Drawn {
    let micros = |nanoseconds: u64| nanoseconds.max(1) as f64 / 1e3;
    let nines_of = |all: &Histogram<u64>| (all.len().max(2) as f64).log10().min(NINES_MAX);
    let at = |all: &Histogram<u64>, nines: f64| micros(all.value_at_quantile(1.0 - 10_f64.powf(-nines)));
    let nines = curves.iter().map(|(_, all)| nines_of(all)).fold(1.0, f64::max);
    let low = curves.iter().map(|(_, all)| micros(all.min())).fold(f64::INFINITY, f64::min);
    let high = curves.iter().map(|(_, all)| at(all, nines_of(all))).fold(low * 2.0, f64::max);
    let mut chart = ChartBuilder::on(sheet)
        .margin(10)
        .x_label_area_size(40)
        .y_label_area_size(70)
        .build_cartesian_2d(0.0..nines, (low * 0.9..high * 1.2).log_scale())?;
    let percentile = |nines: &f64| match *nines {
        0.0 => "min".to_owned(),
        nines => format!("{} %", (100.0 * (1.0 - 10_f64.powf(-nines)) * 1e4).round() / 1e4),
    };
    let (x, y) = ("percentile of round trips", "round trip, µs");
    chart.configure_mesh().x_labels(7).x_label_formatter(&percentile).x_desc(x).y_desc(y).draw()?;
    for ((name, all), colour) in curves.iter().zip(COLOURS.iter().cycle()) {
        // A percentile beyond which there is less than one round trip means nothing.
        let points = (0..=POINTS).map(|point| nines_of(all) * f64::from(point) / f64::from(POINTS));
        let line = LineSeries::new(points.map(|nines| (nines, at(all, nines))), colour.stroke_width(2));
        let key = |(x, y)| PathElement::new([(x, y), (x + 16, y)], colour.stroke_width(2));
        chart.draw_series(line)?.label(name).legend(key);
    }
    chart.configure_series_labels().position(SeriesLabelPosition::UpperLeft).background_style(WHITE).draw()?;
    Ok(())
}

/// Draws the first one on top.
fn draw_bars(sheet: &Sheet<'_>, metric: Metric, bars: &[(String, Spread)]) -> Drawn {
    let high = bars.iter().map(|(_, spread)| spread.max).fold(f64::MIN_POSITIVE, f64::max);
    let mut chart = ChartBuilder::on(sheet)
        .margin(10)
        .x_label_area_size(40)
        .y_label_area_size(NAMES_WIDTH)
        .build_cartesian_2d(0.0..high * 1.05, (0..bars.len()).into_segmented())?;
    let place = |bar: usize| bars.len() - 1 - bar;
    let name = |segment: &SegmentValue<usize>| match *segment {
        SegmentValue::CenterOf(segment) if segment < bars.len() => bars[place(segment)].0.clone(),
        _ => String::new(),
    };
    let label = format!("{} (median, lowest and highest round)", metric.label());
    chart
        .configure_mesh()
        .disable_y_mesh()
        .y_labels(bars.len())
        .y_label_formatter(&name)
        .x_label_formatter(&|value| metric.written(*value))
        .x_desc(label)
        .draw()?;
    for (bar, (_, spread)) in bars.iter().enumerate() {
        let (centre, from, to) = {
            let segment = place(bar);
            (SegmentValue::CenterOf(segment), SegmentValue::Exact(segment), SegmentValue::Exact(segment + 1))
        };
        let mut box_of_bar = Rectangle::new([(0.0, from), (spread.median, to)], COLOURS[bar % COLOURS.len()].filled());
        box_of_bar.set_margin(10, 10, 0, 0);
        chart.draw_series([box_of_bar])?;
        let whisker = PathElement::new([(spread.min, centre.clone()), (spread.max, centre)], BLACK.stroke_width(2));
        chart.draw_series([whisker])?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use sealane_cli::machine::Machine;

    use super::*;
    use crate::figures::Sample;
    use crate::plan::{Bench, Plan};
    use crate::report::{Carrier, Machines, Report};

    #[test]
    fn figures_are_bars_with_their_spread_and_text_is_escaped() {
        let samples = [1.0, 2.0, 3.0].map(|value| Sample::figure(Metric::StepTime, value)).to_vec();
        for samples in [samples, Vec::new()] {
            let system = |system| Measured { system, variant: "v".to_owned(), samples: samples.clone() };
            let measured = ["sealane", "raw", "grpc"].map(system).to_vec();
            let text = "Abacus <9> & \"co\"".to_owned();
            let machine = Machine { cpus: 2, cpu_model: text.clone(), kernel: text, pinned: vec![0, 1] };
            let report = Report::new(
                &Plan::new(Bench::Fuse),
                Machines { here: machine, producers: None },
                &Carrier::default(),
                &measured,
            );
            let svg = Outcome { report, measured }.to_svg("sealane bench --json <a&b>\u{7}");
            let document = roxmltree::Document::parse(&svg).unwrap_or_else(|error| panic!("{error}\n{svg}"));
            let texts: Vec<_> = document.descendants().filter_map(|node| node.text().map(str::trim)).collect();
            let names = ["sealane (v)", "raw (v)", "grpc (v)", "step, ms (median"];
            for expected in ["sealane bench --json <a&b>"].iter().chain(names.iter().filter(|_| !samples.is_empty())) {
                assert!(texts.iter().any(|text| text.starts_with(expected)), "{expected} in {texts:?}");
            }
        }
    }
}
