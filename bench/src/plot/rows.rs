//! Figures with their spread, each a row: bars from zero, points where they are too far apart for that, and of quotients
//! points beside the line of 1.

use super::axis::{Logarithmic, Scale, brief, decimals};
use super::frame::{Frame, Sheet};
use super::svg::{Anchor, Canvas, Style};
use crate::spread::Spread;
use crate::table::{Column, Table};

/// Height of a row: its name, and below it the bar.
const ROW: f64 = 46.0;
/// Where the name and the bar are in it, from its top.
const NAME_AT: f64 = 18.0;
const BAR_AT: f64 = 24.0;
const BAR: f64 = 15.0;

/// Half the length of a whisker's end.
const WHISKER_END: f64 = 5.0;

/// A figure.
#[derive(Clone, Debug, PartialEq)]
pub struct Row {
    /// Whose it is.
    pub name: String,
    /// The figure in the median round, the lowest and the highest.
    pub spread: Spread,
}

/// Figures of one kind.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Rows {
    /// The figure and its unit.
    pub(crate) label: String,
    pub(crate) rows: Vec<Row>,
}

impl Rows {
    pub(super) fn draw_bars(&self, canvas: &mut Canvas, sheet: Sheet) -> f64 {
        let frame = self.frame(canvas, sheet);
        let scale = Scale::of(self.rows.iter().flat_map(|row| [row.spread.min, row.spread.max]));
        let name = format!("{}{}; whiskers from the lowest to the highest round", self.label, scale.remark());
        let bottom = frame.draw_x(canvas, scale.ticks(), &name);
        for (index, row) in self.rows.iter().enumerate() {
            let x = |value| frame.x(scale.share(value));
            let bar = frame.top + ROW * index as f64 + BAR_AT;
            let end = x(row.spread.median);
            if let Scale::Linear(_) = scale {
                canvas.rectangle((frame.left, bar), (end - frame.left, BAR), index);
            }
            row.draw(canvas, frame, index, x, &row.spread.to_text());
            if let Scale::Logarithmic(_) = scale {
                canvas.point((end, bar + BAR / 2.0), index);
            }
        }
        bottom
    }

    pub(super) fn draw_quotients(&self, canvas: &mut Canvas, sheet: Sheet) -> f64 {
        let frame = self.frame(canvas, sheet);
        let ends = |start: f64, pick: fn(&Spread) -> f64, of: fn(f64, f64) -> f64| {
            self.rows.iter().map(|row| pick(&row.spread)).filter(|value| *value > 0.0).fold(start, of)
        };
        // 1 is always shown, somewhat away from the edge.
        let scale = Logarithmic::over(ends(0.9, |s| s.min, f64::min), ends(1.1, |s| s.max, f64::max));
        let x = |value| frame.x(scale.share(value));
        let bottom = frame.draw_x(canvas, scale.ticks(), &self.label);
        canvas.line((x(1.0), frame.top), (x(1.0), frame.bottom), Style::Axis);
        for (index, row) in self.rows.iter().enumerate() {
            row.draw(canvas, frame, index, x, &row.spread.to_text());
            let middle = frame.top + ROW * index as f64 + BAR_AT + BAR / 2.0;
            canvas.point((x(row.spread.median), middle), 0);
        }
        bottom
    }

    fn frame(&self, canvas: &Canvas, sheet: Sheet) -> Frame {
        Frame::new(canvas, 20.0, sheet.top + 6.0, ROW * self.rows.len().max(1) as f64 + 6.0)
    }

    pub(super) fn numbers(&self) -> Table {
        let numbers = ["median", "lowest", "highest"].map(Column::number);
        let digits = decimals(self.rows.iter().map(|row| row.spread.max).fold(0.0, f64::max));
        let row = |row: &Row| {
            let Spread { median, min, max } = row.spread;
            [row.name.clone()].into_iter().chain([median, min, max].map(|value| format!("{value:.digits$}"))).collect()
        };
        Table::new([&[Column::text("of")], &numbers[..]].concat(), self.rows.iter().map(row))
    }
}

impl Row {
    /// Its name, its figure and its whisker.
    fn draw(&self, canvas: &mut Canvas, frame: Frame, index: usize, x: impl Fn(f64) -> f64, figure: &str) {
        let top = frame.top + ROW * index as f64;
        canvas.text((frame.left + 4.0, top + NAME_AT), Anchor::Start, Style::Label, &self.name);
        canvas.text((frame.right, top + NAME_AT), Anchor::End, Style::Label, figure);
        let (low, high, middle) = (x(self.spread.min), x(self.spread.max), top + BAR_AT + BAR / 2.0);
        canvas.line((low, middle), (high, middle), Style::Whisker);
        for end in [low, high] {
            canvas.line((end, middle - WHISKER_END), (end, middle + WHISKER_END), Style::Whisker);
        }
    }
}

impl Spread {
    /// The median, and from where to where it goes, with three digits each.
    fn to_text(self) -> String {
        let [median, min, max] = [self.median, self.min, self.max].map(brief);
        if min == max { median } else { format!("{median} ({min} to {max})") }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_spread_is_shown_where_there_is_one() {
        let spread = Spread { median: 4_123_456.0, min: 3_999_999.0, max: 4_200_000.0 };
        assert_eq!(spread.to_text(), "4.12 M (4 M to 4.2 M)");
        assert_eq!(Spread { median: 2.0, min: 2.0, max: 2.0 }.to_text(), "2");
    }
}
