//! Rates and bandwidths as bars: the median round, with a whisker from the lowest to the highest.

use super::axis::{Linear, short};
use super::svg::{Anchor, Canvas, Style};
use super::{Frame, colour};
use crate::report::{Figures, ResultRow};
use crate::sample::Metric;

/// The share of its place that a bar fills, and the widest bar in pixels.
const BAR_SHARE: f64 = 0.5;
const BAR_WIDTH_MAX: f64 = 140.0;

/// Half the length of a whisker's end.
const WHISKER_END: f64 = 9.0;

struct Bar {
    name: String,
    median: f64,
    min: f64,
    max: f64,
}

pub(super) fn draw(canvas: &mut Canvas, frame: Frame, results: &[ResultRow]) {
    // Bars share an axis, so they are all of one metric: the run's first.
    let metric = results.first().map_or(Metric::TensorsPerSecond, |row| row.metric);
    let bars: Vec<Bar> = results
        .iter()
        .filter(|row| row.metric == metric)
        .filter_map(|row| match row.figures {
            Figures::Value { value, min, max } => {
                let name = format!("{} ({})", row.system, row.variant);
                Some(Bar { name, median: value, min, max })
            }
            Figures::RoundTrips { .. } => None,
        })
        .collect();
    let vertical = Linear::up_to(bars.iter().map(|bar| bar.max).fold(0.0, f64::max));
    frame.draw_y(canvas, &vertical.ticks(), metric.label());
    let place = (frame.right - frame.left) / bars.len().max(1) as f64;
    let width = (place * BAR_SHARE).min(BAR_WIDTH_MAX);
    for (index, bar) in bars.iter().enumerate() {
        let middle = frame.left + place * (index as f64 + 0.5);
        let y = |value| frame.y(vertical.share(value));
        let top = y(bar.median);
        canvas.rectangle((middle - width / 2.0, top), (width, frame.bottom - top), colour(index));
        canvas.line((middle, y(bar.min)), (middle, y(bar.max)), Style::Whisker);
        for end in [bar.min, bar.max] {
            canvas.line((middle - WHISKER_END, y(end)), (middle + WHISKER_END, y(end)), Style::Whisker);
        }
        let value = short(three_digits(bar.median));
        let beside = middle + width / 2.0 + 6.0;
        canvas.text((beside, top + 4.0), Anchor::Start, Style::Label, &value);
        canvas.text((middle, frame.bottom + 20.0), Anchor::Middle, Style::Label, &bar.name);
    }
    frame.draw_base(canvas, "median of the rounds; whiskers from the lowest to the highest round");
}

/// As many digits as a figure deserves.
fn three_digits(value: f64) -> f64 {
    if !value.is_normal() {
        return 0.0;
    }
    let scale = 10_f64.powf(2.0 - value.abs().log10().floor());
    (value * scale).round() / scale
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_keep_three_digits() {
        assert_eq!(three_digits(1_234_567.0), 1_230_000.0);
        assert_eq!(three_digits(8.127), 8.13);
        assert_eq!(three_digits(0.0), 0.0);
    }
}
