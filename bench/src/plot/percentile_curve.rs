//! Round trips as curves of percentiles: the further right, the rarer; both axes logarithmic, so
//! that the median and the tail can be read from one picture.

use hdrhistogram::Histogram;

use super::axis::{Logarithmic, Tail};
use super::svg::{Anchor, Canvas, Style};
use super::{Frame, colour};
use crate::sample::Metric;
use crate::turns::Measured;

/// Points of a curve: more than one for every three pixels would not be seen.
const POINTS: u32 = 280;

/// Nines on the axis, at least and at most; beyond what was counted there is nothing to draw.
const NINES: (u32, u32) = (2, 6);

pub(super) fn draw(canvas: &mut Canvas, frame: Frame, measured: &[Measured]) {
    let curves: Vec<(String, Histogram<u64>)> = measured
        .iter()
        .filter_map(|one| Some((format!("{} ({})", one.system, one.variant), one.all_round_trips()?)))
        .collect();
    let most = curves.iter().map(|(_, all)| all.len()).max().unwrap_or(1);
    let tail = Tail::to_nines(most.max(1).ilog10().clamp(NINES.0, NINES.1));
    let lowest = curves.iter().map(|(_, all)| all.min()).min().unwrap_or(1);
    let highest = curves.iter().map(|(_, all)| all.value_at_quantile(tail.quantile(1.0))).max().unwrap_or(1);
    let vertical = Logarithmic::over(microseconds(lowest), microseconds(highest));

    frame.draw_y(canvas, &vertical.ticks(), Metric::RoundTrip.label());
    for tick in tail.ticks() {
        let x = frame.x(tick.share);
        canvas.line((x, frame.top), (x, frame.bottom), Style::Grid);
        canvas.text((x, frame.bottom + 20.0), Anchor::Middle, Style::Small, &tick.label);
    }
    frame.draw_base(canvas, "percentile of round trips, each further nine at the same distance");

    for (index, (name, all)) in curves.iter().enumerate() {
        // A percentile that fewer than one round trip lies beyond says nothing.
        let end = tail.share(1.0 - 1.0 / all.len().max(2) as f64).min(1.0);
        let points: Vec<(f64, f64)> = (0..=POINTS)
            .map(|point| end * f64::from(point) / f64::from(POINTS))
            .map(|share| {
                let value = microseconds(all.value_at_quantile(tail.quantile(share)));
                (frame.x(share), frame.y(vertical.share(value)))
            })
            .collect();
        canvas.curve(&points, colour(index));
        let y = frame.top + 18.0 + 20.0 * index as f64;
        canvas.rectangle((frame.left + 16.0, y - 5.0), (24.0, 4.0), colour(index));
        canvas.text((frame.left + 48.0, y), Anchor::Start, Style::Label, name);
    }
}

fn microseconds(nanoseconds: u64) -> f64 {
    nanoseconds as f64 / 1_000.0
}
