//! Figures in the course of time, or over another quantity, as points that are joined. Of systems that take turns, each round
//! is a part of its own.

use super::axis::{Linear, Scale, decimals};
use super::frame::{Frame, Sheet, draw_legend};
use super::svg::Canvas;
use crate::table::{Column, Table};

/// Most points of a line that are shown as such; of more, only the line is.
const POINTS_SHOWN_MAX: usize = 120;

/// A figure in the course of time.
#[derive(Clone, Debug, PartialEq)]
pub struct Line {
    /// Whose it is.
    pub name: String,
    /// Lines of one series have its colour and points.
    pub series: usize,
    /// Whether it is dashed, to tell it from another of its series.
    pub is_dashed: bool,
    /// Seconds, or what else is across, and values. Points of one part are joined.
    pub parts: Vec<Vec<(f64, f64)>>,
}

impl Line {
    fn values(&self) -> impl Iterator<Item = f64> {
        self.parts.iter().flatten().map(|(_, value)| *value)
    }
}

/// Lines that share their axes.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Course {
    /// The figure and its unit.
    pub(crate) label: String,
    pub(crate) across: Across,
    pub(crate) lines: Vec<Line>,
}

/// What the horizontal axis is.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Across {
    /// Seconds, and what they count from, as in "the first round".
    SecondsSince(String),
    /// Another quantity and its unit; logarithmic where its values are far apart.
    Quantity(String),
}

impl Across {
    fn scale(&self, values: impl Iterator<Item = f64> + Clone) -> Scale {
        let scale = Scale::of(values.clone());
        match (self, scale) {
            (Across::Quantity(_), Scale::Logarithmic(_)) => scale,
            _ => Scale::Linear(Linear::ending_at(values.fold(0.0, f64::max))),
        }
    }

    fn name(&self, scale: Scale) -> String {
        match self {
            Across::SecondsSince(since) => format!("seconds since {since}"),
            Across::Quantity(name) => format!("{name}{}", scale.remark()),
        }
    }

    /// The heading of its column, and the digits that its values have there.
    fn column(&self) -> (Column, usize) {
        match self {
            Across::SecondsSince(_) => (Column::number("s"), 3),
            Across::Quantity(name) => (Column::number(name), 0),
        }
    }
}

impl Course {
    pub(super) fn draw(&self, canvas: &mut Canvas, sheet: Sheet) -> f64 {
        let places = self.lines.iter().flat_map(|line| line.parts.iter().flatten()).map(|(place, _)| *place);
        let vertical = Scale::of(self.lines.iter().flat_map(Line::values));
        let horizontal = self.across.scale(places);
        let names: Vec<&str> = self.lines.iter().map(|line| line.name.as_str()).collect();
        let top = draw_legend(canvas, sheet.top, &names, |canvas, index, (x, y)| {
            let line = &self.lines[index];
            canvas.joined(&[(x, y), (x + 28.0, y)], line.series, line.is_dashed);
            canvas.point((x + 14.0, y), line.series);
        });
        let frame = Frame::new(canvas, 56.0, top, sheet.height);
        frame.draw_y(canvas, vertical.ticks(), &format!("{}{}", self.label, vertical.remark()));
        let bottom = frame.draw_x(canvas, horizontal.ticks(), &self.across.name(horizontal));
        let place = |(at, value): &(f64, f64)| (frame.x(horizontal.share(*at)), frame.y(vertical.share(*value)));
        for line in &self.lines {
            for part in &line.parts {
                canvas.joined(&part.iter().map(place).collect::<Vec<_>>(), line.series, line.is_dashed);
            }
            if line.values().count() <= POINTS_SHOWN_MAX {
                line.parts.iter().flatten().for_each(|point| canvas.point(place(point), line.series));
            }
        }
        bottom
    }

    pub(super) fn numbers(&self) -> Table {
        let (column, decimals_across) = self.across.column();
        let columns = [Column::text("of"), column, Column::number(&self.label)];
        let digits = decimals(self.lines.iter().flat_map(Line::values).fold(0.0, f64::max));
        let rows = self.lines.iter().flat_map(|line| {
            let points = line.parts.iter().flatten();
            points.map(|(at, value)| {
                vec![line.name.clone(), format!("{at:.decimals_across$}"), format!("{value:.digits$}")]
            })
        });
        Table::new(columns, rows)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn course(values: &[f64]) -> Course {
        let parts = vec![values.iter().map(|value| (1.0, *value)).collect()];
        let line = Line { name: "sealane".to_owned(), series: 0, is_dashed: false, parts };
        Course {
            label: "GB/s".to_owned(),
            across: Across::SecondsSince("the first round".to_owned()),
            lines: vec![line],
        }
    }

    #[test]
    fn what_is_far_apart_across_is_logarithmic_and_time_never_is() {
        let far = || [10.0, 10_000.0].into_iter();
        let (workers, time) = (Across::Quantity("workers".to_owned()), Across::SecondsSince("it began".to_owned()));
        assert_eq!(workers.name(workers.scale(far())), "workers (logarithmic)");
        assert_eq!(workers.name(workers.scale([100.0, 200.0].into_iter())), "workers");
        assert!(matches!(time.scale(far()), Scale::Linear(_)));
    }

    #[test]
    fn every_point_is_in_the_table() {
        assert_eq!(
            course(&[4.0, 5.0]).numbers().rows,
            [["sealane", "1.000", "4.0000"], ["sealane", "1.000", "5.0000"]]
        );
    }
}
