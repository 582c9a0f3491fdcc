//! Draws with plotters, whose axes are made of values that are placed and labelled here. A page that is dark replaces the
//! colours by its own: `templates/report.css`.

use std::ops::Range;

use plotters::coord::Shift;
use plotters::coord::ranged1d::{KeyPointHint, NoDefaultFormatting, ValueFormatter};
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use super::{Line, Row, brief, short};
use crate::spread::Spread;

/// Okabe and Ito's colours, which people with any colour vision can tell apart; further series look like the first again.
const SERIES: [RGBColor; 6] = [
    RGBColor(0x00, 0x72, 0xb2),
    RGBColor(0xd5, 0x5e, 0x00),
    RGBColor(0x00, 0x9e, 0x73),
    RGBColor(0xcc, 0x79, 0xa7),
    RGBColor(0xb0, 0x7d, 0x00),
    RGBColor(0x3d, 0x9b, 0xd1),
];
const INK: RGBColor = RGBColor(0x22, 0x22, 0x22);
const GRID: RGBColor = RGBColor(0xdd, 0xdd, 0xdd);

/// What a character takes, in pixels, on average; the height of a line; and of a row with its name above its bar.
const CHARACTER: f64 = 7.2;
const LINE: i32 = 20;
const ROW: u32 = 46;
/// Sizes of letters, of which plotters writes four fifths.
const TEXT: i32 = 16;
const SMALL: i32 = 15;

/// Where one figure is so many times another, both are seen on a logarithmic axis alone.
const LINEAR_QUOTIENT_MAX: f64 = 25.0;
/// Ticks that an axis has about.
const TICKS: f64 = 6.0;
/// How far a logarithmic axis goes beyond what is on it, and from which quotient of its ends on it has powers of ten alone.
const BEYOND: f64 = 1.12;
const FAR: f64 = 1000.0;

/// The height of a sheet for so many rows, without titles.
pub(super) fn rows_height(rows: usize) -> u32 {
    ROW * u32::try_from(rows.max(1)).unwrap_or(u32::MAX / ROW / 2) + 70
}

/// An axis: from where to where it goes, where its ticks are, and what they say.
#[derive(Clone)]
pub(super) struct Axis {
    name: String,
    is_logarithmic: bool,
    range: Range<f64>,
    ticks: Vec<f64>,
    label: fn(f64) -> String,
}

impl Axis {
    /// The axis that suits figures: linear from 0, unless they are far apart.
    pub(super) fn fitting(values: impl Iterator<Item = f64>, name: &str) -> Axis {
        let (lowest, highest) = values
            .filter(|value| *value > 0.0)
            .fold((f64::INFINITY, 0.0), |(low, high), value| (f64::min(low, value), f64::max(high, value)));
        match highest > lowest * LINEAR_QUOTIENT_MAX {
            true => Axis::logarithmic(lowest, highest, &format!("{name} (logarithmic)")),
            false => Axis::linear(highest, name),
        }
    }

    /// From 0, with ticks at round numbers.
    pub(super) fn linear(highest: f64, name: &str) -> Axis {
        let end = if highest.is_finite() && highest > 0.0 { highest } else { 1.0 };
        let scale = 10_f64.powf((end / TICKS).log10().floor());
        let factor = [1.0, 2.0, 5.0, 10.0].into_iter().find(|factor| factor * scale >= end / TICKS).unwrap_or(10.0);
        let step = factor * scale;
        let ticks = (0..=(end / step + 1e-9) as u32).map(|tick| step * f64::from(tick)).collect();
        Axis { name: name.to_owned(), is_logarithmic: false, range: 0.0..end * 1.02, ticks, label: short }
    }

    /// Over these two and somewhat beyond, with ticks at 1, 2 and 5 times powers of ten, or at these alone.
    pub(super) fn logarithmic(lowest: f64, highest: f64, name: &str) -> Axis {
        let lowest = if lowest.is_finite() && lowest > 0.0 { lowest } else { 1.0 };
        let highest = if highest.is_finite() && highest > lowest { highest } else { lowest * 2.0 };
        let range = lowest / BEYOND..highest * BEYOND;
        let powers = range.start.log10().floor() as i32..=range.end.log10().ceil() as i32;
        let factors: &[f64] = if highest / lowest > FAR { &[1.0] } else { &[1.0, 2.0, 5.0] };
        let marks = powers.flat_map(|power| factors.iter().map(move |factor| factor * 10_f64.powi(power)));
        let ticks = marks.filter(|mark| range.contains(mark)).collect();
        Axis { name: name.to_owned(), is_logarithmic: true, range, ticks, label: brief }
    }

    /// Percentiles, which gives each further nine the same room: 0 %, 90 %, 99 %, 99.9 %...
    pub(super) fn nines(nines: u32, name: &str) -> Axis {
        let label = |nines: f64| {
            let decimals = (nines.round() as usize).saturating_sub(2);
            format!("{:.decimals$} %", 100.0 - 10_f64.powf(2.0 - nines))
        };
        let half = 2_f64.log10();
        let ticks = [0.0, half].into_iter().chain((1..=nines).map(f64::from)).collect();
        Axis { name: name.to_owned(), is_logarithmic: false, range: 0.0..f64::from(nines), ticks, label }
    }

    /// The share of the axis that is before a value.
    fn share(&self, value: f64) -> f64 {
        let Range { start, end } = self.range;
        let share = match self.is_logarithmic {
            true => (value / start).ln() / (end / start).ln(),
            false => (value - start) / (end - start),
        };
        if share.is_nan() { 0.0 } else { share.clamp(0.0, 1.0) }
    }
}

impl Ranged for Axis {
    type FormatOption = NoDefaultFormatting;
    type ValueType = f64;

    fn map(&self, value: &f64, (from, to): (i32, i32)) -> i32 {
        from + (f64::from(to - from) * self.share(*value)).round() as i32
    }

    fn key_points<Hint: KeyPointHint>(&self, _: Hint) -> Vec<f64> {
        self.ticks.clone()
    }

    fn range(&self) -> Range<f64> {
        self.range.clone()
    }
}

impl ValueFormatter<f64> for Axis {
    fn format_ext(&self, value: &f64) -> String {
        (self.label)(*value)
    }
}

/// A picture that is being drawn.
pub(super) struct Sheet {
    size: (u32, u32),
    /// What stands above it, in lines.
    title: Vec<(String, i32)>,
    svg: String,
}

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;
type Failure = DrawingAreaErrorKind<std::io::Error>;

impl Sheet {
    pub(super) fn new((width, height): (u32, u32), title: Option<(&str, &str)>) -> Sheet {
        let columns = (f64::from(width) / CHARACTER) as usize;
        let title = title.into_iter().flat_map(|(title, subtitle)| {
            let lines = |text, size| wrapped(text, columns).into_iter().map(move |line| (line, size));
            lines(title, TEXT).chain(lines(subtitle, SMALL)).collect::<Vec<_>>()
        });
        let title: Vec<_> = title.collect();
        let height = height + LINE as u32 * u32::try_from(title.len()).unwrap_or(0);
        Sheet { size: (width, height), title, svg: String::new() }
    }

    /// Draws lines below their legend.
    pub(super) fn lines(&mut self, x: &Axis, y: &Axis, lines: &[Line]) {
        self.drawn(|area| {
            let area = legend(area, lines)?;
            let mut chart = ChartBuilder::on(&area)
                .margin_right(16)
                .margin_top(8)
                .x_label_area_size(42)
                .y_label_area_size(64)
                .build_cartesian_2d(x.clone(), y.clone())?;
            let mut mesh = chart.configure_mesh();
            mesh.x_desc(&x.name).y_desc(&y.name).axis_style(INK).bold_line_style(GRID).light_line_style(TRANSPARENT);
            mesh.label_style(("sans-serif", SMALL).into_font().color(&INK)).draw()?;
            for line in lines {
                let (colour, has_points) = (colour(line.series), line.has_points());
                for part in &line.parts {
                    let (points, style) = (part.iter().copied(), colour.stroke_width(2));
                    if has_points {
                        chart.draw_series(part.iter().map(|at| Circle::new(*at, 3, colour.filled())))?;
                    }
                    if line.is_dashed {
                        chart.draw_series(DashedLineSeries::new(points, 5, 4, style))?;
                    } else {
                        chart.draw_series(LineSeries::new(points, style))?;
                    }
                }
            }
            Ok(())
        });
    }

    /// Draws each figure as a row: a bar from zero, or a point where the axis has none, with a whisker; beside the line of 1, if
    /// that is on the axis.
    pub(super) fn rows(&mut self, x: &Axis, rows: &[Row]) {
        self.drawn(|area| {
            let count = rows.len().max(1) as f64;
            let mut chart = ChartBuilder::on(&area)
                .margin_right(16)
                .margin_left(8)
                .x_label_area_size(42)
                .build_cartesian_2d(x.clone(), 0.0..count)?;
            let mut mesh = chart.configure_mesh();
            mesh.x_desc(&x.name).disable_y_mesh().disable_y_axis().axis_style(INK).bold_line_style(GRID);
            mesh.light_line_style(TRANSPARENT).label_style(("sans-serif", SMALL).into_font().color(&INK)).draw()?;
            if x.is_logarithmic && x.range.contains(&1.0) {
                chart.draw_series(LineSeries::new([(1.0, 0.0), (1.0, count)], INK))?;
            }
            for (index, Row { name, spread }) in rows.iter().enumerate() {
                let (top, colour) = (count - index as f64, colour(index));
                let Range { start, end } = x.range;
                let (text, bar) = (top - 0.25, top - 0.7);
                for (at, side, words) in [(start, HPos::Left, name.clone()), (end, HPos::Right, shown(spread))] {
                    let style = ("sans-serif", TEXT).into_font().color(&INK).pos(Pos::new(side, VPos::Center));
                    chart.draw_series([Text::new(plain(&words), (at, text), style)])?;
                }
                let Spread { median, min: low, max: high } = *spread;
                if x.is_logarithmic {
                    chart.draw_series([Circle::new((median, bar), 4, colour.filled())])?;
                } else {
                    let corners = [(start, bar - 0.16), (median, bar + 0.16)];
                    chart.draw_series([Rectangle::new(corners, colour.filled())])?;
                }
                let [first, last] = [low, high].map(|at| vec![(at, bar - 0.1), (at, bar + 0.1)]);
                let whisker = [vec![(low, bar), (high, bar)], first, last];
                chart.draw_series(whisker.map(|line| PathElement::new(line, INK)))?;
            }
            Ok(())
        });
    }

    fn drawn(&mut self, draw: impl FnOnce(Area<'_>) -> Result<(), Failure>) {
        let Sheet { size, title, svg } = self;
        let area = SVGBackend::with_string(svg, *size).into_drawing_area();
        let drawn = || {
            for (at, (line, size)) in (0..).zip(title.iter()) {
                area.draw_text(&plain(line), &("sans-serif", *size).into_font().color(&INK), (12, 6 + LINE * at))?;
            }
            let (_, below) = area.split_vertically(LINE * i32::try_from(title.len()).unwrap_or(0));
            draw(below)?;
            area.present()
        };
        drawn().expect("a string takes everything");
    }

    /// A file of its own, on white.
    pub(super) fn into_svg(self) -> String {
        let ground = "<rect width=\"100%\" height=\"100%\" fill=\"#FFFFFF\"/>";
        let (open, rest) = self.svg.split_once('>').expect("an SVG begins with its element");
        format!("{open}>\n{ground}{rest}")
    }

    /// An element of a page; `name` is for those who cannot see it.
    pub(super) fn into_element(self, class: &str, name: &str) -> String {
        let ((width, height), name) = (self.size, escaped(&plain(name)));
        let (_, rest) = self.svg.split_once('>').expect("an SVG begins with its element");
        format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" class=\"plot {class}\" viewBox=\"0 0 {width} {height}\" role=\"img\">\n\
             <title>{name}</title>{rest}"
        )
    }
}

fn colour(series: usize) -> RGBColor {
    SERIES[series % SERIES.len()]
}

/// Says which look is whose, in as many lines as that takes. Gives what is left below.
fn legend<'a>(area: Area<'a>, lines: &[Line]) -> Result<Area<'a>, Failure> {
    let width = f64::from(area.dim_in_pixel().0);
    let (mut x, mut y) = (12.0, 12);
    for line in lines {
        let taken = 44.0 + CHARACTER * line.name.chars().count() as f64;
        if x > 12.0 && x + taken > width {
            (x, y) = (12.0, y + LINE);
        }
        let at = x as i32;
        let gap = if line.is_dashed { 6 } else { 0 };
        for (from, to) in [(at, at + 14 - gap), (at + 14, at + 28 - gap)] {
            area.draw(&PathElement::new(vec![(from, y), (to, y)], colour(line.series).stroke_width(2)))?;
        }
        let style = ("sans-serif", SMALL).into_font().color(&INK).pos(Pos::new(HPos::Left, VPos::Center));
        area.draw_text(&plain(&line.name), &style, (at + 32, y))?;
        x += taken;
    }
    Ok(area.split_vertically(y + LINE / 2).1)
}

/// The median, and from where to where it goes, with three digits each.
fn shown(spread: &Spread) -> String {
    let [median, min, max] = [spread.median, spread.min, spread.max].map(brief);
    if min == max { median } else { format!("{median} ({min} to {max})") }
}

/// A text in lines of at most so many characters, broken at spaces where it can be.
fn wrapped(text: &str, columns: usize) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in text.split_whitespace() {
        match lines.last_mut() {
            Some(line) if line.chars().count() + 1 + word.chars().count() <= columns => *line += &format!(" {word}"),
            _ => lines.push(word.to_owned()),
        }
    }
    lines
}

/// Without what XML has no place for.
fn plain(text: &str) -> String {
    text.chars().filter(|character| !character.is_control() && !matches!(character, '\u{fffe}' | '\u{ffff}')).collect()
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_far_apart_is_logarithmic() {
        let far = Axis::fitting([10.0, 10_000.0].into_iter(), "workers");
        assert_eq!((far.name.as_str(), far.is_logarithmic), ("workers (logarithmic)", true));
        let near = Axis::fitting([100.0, 200.0].into_iter(), "workers");
        assert_eq!((near.name.as_str(), near.ticks.first(), near.ticks.last()), ("workers", Some(&0.0), Some(&200.0)));
    }

    #[test]
    fn long_titles_are_broken_at_spaces() {
        assert_eq!(wrapped("one two three", 7), ["one two", "three"]);
        assert_eq!(wrapped("incomprehensible", 7), ["incomprehensible"]);
    }
}
