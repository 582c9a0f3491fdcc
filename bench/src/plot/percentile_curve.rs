//! Times as curves of percentiles: the further right, the rarer; both axes logarithmic, so that the median and the tail can be
//! read from one picture.

use hdrhistogram::Histogram;

use super::axis::{Logarithmic, Tail};
use super::frame::{Frame, Sheet, draw_legend};
use super::svg::Canvas;
use crate::table::{Column, Table};

/// Points of a curve: more than one for every three pixels would not be seen.
const POINTS: u32 = 280;

/// Nines on the axis, at least and at most; beyond what was counted there is nothing to draw.
const NINES: (u32, u32) = (2, 6);

/// Times are shown in milliseconds where all medians are at least this long.
const MILLISECONDS_FROM_NS: u64 = 1_000_000;

/// Times of which percentiles are shown.
#[derive(Clone, Debug)]
pub struct Percentiles {
    /// What took that time, as in "round trip".
    pub(crate) what: String,
    /// What was counted, as in "round trips".
    pub(crate) counted: String,
    /// Names and times, in nanoseconds.
    pub(crate) curves: Vec<(String, Histogram<u64>)>,
}

impl Percentiles {
    /// The unit, and how many nanoseconds it has.
    fn unit(&self) -> (&'static str, f64) {
        let lowest = self.curves.iter().map(|(_, all)| all.value_at_quantile(0.5)).min().unwrap_or(0);
        if lowest >= MILLISECONDS_FROM_NS { ("ms", 1e6) } else { ("µs", 1e3) }
    }

    pub(super) fn draw(&self, canvas: &mut Canvas, sheet: Sheet) -> f64 {
        let (unit, nanoseconds) = self.unit();
        let of = |value: u64| value as f64 / nanoseconds;
        let curves = &self.curves;
        let most = curves.iter().map(|(_, all)| all.len()).max().unwrap_or(1);
        let tail = Tail::to_nines(most.max(1).ilog10().clamp(NINES.0, NINES.1));
        let lowest = curves.iter().map(|(_, all)| all.min()).min().unwrap_or(1);
        let highest = curves.iter().map(|(_, all)| all.value_at_quantile(tail.quantile(1.0))).max().unwrap_or(1);
        let vertical = Logarithmic::over(of(lowest), of(highest));

        let names: Vec<&str> = curves.iter().map(|(name, _)| name.as_str()).collect();
        let top = draw_legend(canvas, sheet.top, &names, |canvas, index, (x, y)| {
            canvas.curve(&[(x, y), (x + 28.0, y)], index);
        });
        let frame = Frame::new(canvas, 56.0, top, sheet.height);
        frame.draw_y(canvas, vertical.ticks(), &format!("{}, {unit}", self.what));
        let name = format!("percentile of {}, each further nine at the same distance", self.counted);
        let bottom = frame.draw_x(canvas, tail.ticks(), &name);
        for (index, (_, all)) in curves.iter().enumerate() {
            // A percentile that fewer than one of them lies beyond says nothing.
            let end = tail.share(1.0 - 1.0 / all.len().max(2) as f64).min(1.0);
            let points: Vec<(f64, f64)> = (0..=POINTS)
                .map(|point| end * f64::from(point) / f64::from(POINTS))
                .map(|share| {
                    let value = of(all.value_at_quantile(tail.quantile(share)));
                    (frame.x(share), frame.y(vertical.share(value)))
                })
                .collect();
            canvas.curve(&points, index);
        }
        bottom
    }

    pub(super) fn numbers(&self) -> Table {
        let (unit, nanoseconds) = self.unit();
        let heads = ["min", "p50", "p90", "p99", "p99.9", "max"].map(|head| Column::number(&format!("{head} {unit}")));
        let columns = [&[Column::text("of")], &heads[..], &[Column::number("count")]].concat();
        let row = |(name, all): &(String, Histogram<u64>)| {
            let at = |quantile| all.value_at_quantile(quantile);
            let times = [all.min(), at(0.5), at(0.9), at(0.99), at(0.999), all.max()];
            let times = times.map(|time| format!("{:.3}", time as f64 / nanoseconds));
            [name.clone()].into_iter().chain(times).chain([all.len().to_string()]).collect()
        };
        Table::new(columns, self.curves.iter().map(row))
    }
}
