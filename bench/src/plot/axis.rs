//! Scales and their ticks. Pure arithmetic: a value becomes a share of the axis.

/// A mark on an axis.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Tick {
    /// Where it is, from 0 to 1.
    pub(super) share: f64,
    /// What it says.
    pub(super) label: String,
}

/// Ticks that a linear axis has about.
const TICKS: f64 = 6.0;

/// Where one figure is so many times another, both are seen on a logarithmic axis alone.
const LINEAR_QUOTIENT_MAX: f64 = 25.0;

/// An axis of figures.
#[derive(Clone, Copy, Debug)]
pub(super) enum Scale {
    Linear(Linear),
    Logarithmic(Logarithmic),
}

impl Scale {
    /// The axis that suits figures: linear from 0, unless they are far apart.
    pub(super) fn of(values: impl Iterator<Item = f64>) -> Self {
        let ends = (f64::INFINITY, 0.0);
        let (lowest, highest) = values
            .filter(|value| *value > 0.0)
            .fold(ends, |(lowest, highest), value| (f64::min(lowest, value), f64::max(highest, value)));
        if highest > lowest * LINEAR_QUOTIENT_MAX {
            Self::Logarithmic(Logarithmic::over(lowest, highest))
        } else {
            Self::Linear(Linear::up_to(highest))
        }
    }

    pub(super) fn share(self, value: f64) -> f64 {
        match self {
            Self::Linear(scale) => scale.share(value),
            Self::Logarithmic(scale) => scale.share(value),
        }
    }

    pub(super) fn ticks(self) -> Vec<Tick> {
        match self {
            Self::Linear(scale) => scale.ticks(),
            Self::Logarithmic(scale) => scale.ticks(),
        }
    }

    /// What the name of the axis adds.
    pub(super) fn remark(self) -> &'static str {
        match self {
            Self::Linear(_) => "",
            Self::Logarithmic(_) => " (logarithmic)",
        }
    }
}

/// Leaves only the labels that have room on an axis of `length` pixels, each of which takes `room`; the last one first, since
/// it says how far the axis reaches. The marks of the others stay.
pub(super) fn spaced(mut ticks: Vec<Tick>, length: f64, room: impl Fn(&str) -> f64) -> Vec<Tick> {
    let mut free_up_to = f64::INFINITY;
    for tick in ticks.iter_mut().rev() {
        let (middle, half) = (tick.share * length, room(&tick.label) / 2.0);
        if middle + half > free_up_to {
            tick.label.clear();
        } else {
            free_up_to = middle - half;
        }
    }
    ticks
}

/// A linear axis from 0.
#[derive(Clone, Copy, Debug)]
pub(super) struct Linear {
    step: f64,
    end: f64,
}

impl Linear {
    /// An axis that ends at the first tick from `max` on.
    pub(super) fn up_to(max: f64) -> Self {
        let Self { step, end } = Self::ending_at(max);
        // What is nearly a multiple is one.
        Self { step, end: step * (end / step - 1e-9).ceil() }
    }

    /// An axis that ends at `max`, with ticks at round numbers.
    pub(super) fn ending_at(max: f64) -> Self {
        let max = if max.is_finite() && max > 0.0 { max } else { 1.0 };
        let rough = max / TICKS;
        let scale = 10_f64.powf(rough.log10().floor());
        let step = [1.0, 2.0, 5.0, 10.0]
            .map(|factor| factor * scale)
            .into_iter()
            .find(|step| *step >= rough)
            .unwrap_or(10.0 * scale);
        Self { step, end: max }
    }

    pub(super) fn share(self, value: f64) -> f64 {
        value / self.end
    }

    pub(super) fn ticks(self) -> Vec<Tick> {
        let tick = |index| {
            let value = self.step * f64::from(index);
            Tick { share: self.share(value), label: short(value) }
        };
        (0..=(self.end / self.step + 1e-9) as u32).map(tick).collect()
    }
}

/// A logarithmic axis.
#[derive(Clone, Copy, Debug)]
pub(super) struct Logarithmic {
    min: f64,
    max: f64,
}

impl Logarithmic {
    /// An axis over `min` to `max`, both widened to 1, 2 or 5 times a power of ten.
    pub(super) fn over(min: f64, max: f64) -> Self {
        let min = if min.is_finite() && min > 0.0 { min } else { 1.0 };
        let max = if max.is_finite() && max > min { max } else { min };
        let marks = marks(min, max);
        let below = marks.iter().rev().find(|mark| **mark <= min).copied().unwrap_or(min);
        let above = marks.iter().find(|mark| **mark > max).copied().unwrap_or(max * 2.0);
        Self { min: below, max: above }
    }

    pub(super) fn share(self, value: f64) -> f64 {
        let share = (value / self.min).log10() / (self.max / self.min).log10();
        share.clamp(0.0, 1.0)
    }

    pub(super) fn ticks(self) -> Vec<Tick> {
        let tolerance = 1e-9;
        marks(self.min, self.max)
            .into_iter()
            .filter(|mark| *mark >= self.min * (1.0 - tolerance))
            .filter(|mark| *mark <= self.max * (1.0 + tolerance))
            .map(|mark| Tick { share: self.share(mark), label: short(mark) })
            .collect()
    }
}

/// 1, 2 and 5 times every power of ten from below `min` to above `max`.
fn marks(min: f64, max: f64) -> Vec<f64> {
    let powers = min.log10().floor() as i32..=max.log10().floor() as i32 + 1;
    powers.flat_map(|power| [1.0, 2.0, 5.0].map(|factor| factor * 10_f64.powi(power))).collect()
}

/// The axis of percentiles that gives each further nine the same room: 0 %, 90 %, 99 %, 99.9 %...
#[derive(Clone, Copy, Debug)]
pub(super) struct Tail {
    nines: u32,
}

impl Tail {
    /// An axis that ends at this many nines.
    pub(super) fn to_nines(nines: u32) -> Self {
        Self { nines: nines.max(1) }
    }

    /// The quantile at a share of the axis.
    pub(super) fn quantile(self, share: f64) -> f64 {
        1.0 - 10_f64.powf(-share * f64::from(self.nines))
    }

    pub(super) fn share(self, quantile: f64) -> f64 {
        -(1.0 - quantile).log10() / f64::from(self.nines)
    }

    pub(super) fn ticks(self) -> Vec<Tick> {
        let nines = (1..=self.nines).map(|nines| {
            let decimals = nines.saturating_sub(2) as usize;
            let percent = 100.0 - 10_f64.powi(2 - nines as i32);
            Tick { share: f64::from(nines) / f64::from(self.nines), label: format!("{percent:.decimals$} %") }
        });
        let start = Tick { share: 0.0, label: "0 %".to_owned() };
        let half = Tick { share: self.share(0.5), label: "50 %".to_owned() };
        [start, half].into_iter().chain(nines).collect()
    }
}

/// A number as short as it can be read: `2.5 M`, `400 k`, `0.5`.
pub(super) fn short(value: f64) -> String {
    let (scaled, unit) = match value.abs() {
        large if large >= 1e9 => (value / 1e9, " G"),
        large if large >= 1e6 => (value / 1e6, " M"),
        large if large >= 1e4 => (value / 1e3, " k"),
        _ => (value, ""),
    };
    let digits = if scaled.abs() < 1.0 { format!("{scaled:.6}") } else { format!("{scaled:.3}") };
    let digits = digits.trim_end_matches('0').trim_end_matches('.');
    format!("{digits}{unit}")
}

/// Digits after the point of figures in a table, of which this is the highest.
pub(super) fn decimals(highest: f64) -> usize {
    if highest >= 1_000.0 { 0 } else { 4 }
}

/// A short number with three digits, which are as many as a figure deserves: `1.23 M`, `8.13`, `0.0123`.
pub fn brief(value: f64) -> String {
    if !value.is_normal() {
        return short(0.0);
    }
    let scale = 10_f64.powf(2.0 - value.abs().log10().floor());
    short((value * scale).round() / scale)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn labels(ticks: &[Tick]) -> Vec<&str> {
        ticks.iter().map(|tick| tick.label.as_str()).collect()
    }

    #[test]
    fn linear_ticks_are_round_and_reach_the_maximum() {
        let axis = Linear::up_to(2_400_000.0);
        assert_eq!(labels(&axis.ticks()), ["0", "500 k", "1 M", "1.5 M", "2 M", "2.5 M"]);
        assert!((axis.share(1_250_000.0) - 0.5).abs() < 1e-9);
        let axis = Linear::ending_at(6.3);
        assert_eq!(labels(&axis.ticks()), ["0", "2", "4", "6"]);
        assert!((axis.share(6.3) - 1.0).abs() < 1e-9);
        assert_eq!(labels(&Linear::up_to(0.6).ticks()), ["0", "0.1", "0.2", "0.3", "0.4", "0.5", "0.6"]);
        for strange in [0.0, -1.0, f64::NAN, f64::INFINITY] {
            assert!(Linear::up_to(strange).ticks().len() > 1);
        }
    }

    #[test]
    fn logarithmic_ticks_enclose_what_is_shown() {
        let axis = Logarithmic::over(6.4, 42.0);
        assert_eq!(labels(&axis.ticks()), ["5", "10", "20", "50"]);
        assert_eq!(axis.share(5.0), 0.0);
        assert!((axis.share(50.0) - 1.0).abs() < 1e-9);
        assert!(Logarithmic::over(f64::NAN, 0.0).ticks().len() > 1);
        assert!(Logarithmic::over(3.0, 3.0).ticks().len() > 1);
    }

    #[test]
    fn figures_that_are_far_apart_have_a_logarithmic_axis() {
        let scale = |values: &[f64]| Scale::of(values.iter().copied());
        assert!(matches!(scale(&[4.0, 5.0, 0.0]), Scale::Linear(_)));
        assert!(matches!(scale(&[4.0, 500.0]), Scale::Logarithmic(_)));
        assert!(matches!(scale(&[]), Scale::Linear(_)));
    }

    #[test]
    fn every_nine_gets_the_same_room() {
        let axis = Tail::to_nines(4);
        assert_eq!(labels(&axis.ticks()), ["0 %", "50 %", "90 %", "99 %", "99.9 %", "99.99 %"]);
        assert!((axis.share(0.99) - 0.5).abs() < 1e-9);
        assert!((axis.quantile(0.5) - 0.99).abs() < 1e-9);
    }

    #[test]
    fn labels_without_room_are_left_out() {
        let ticks = || Tail::to_nines(4).ticks();
        let room = |label: &str| 8.0 * label.len() as f64;
        assert_eq!(labels(&spaced(ticks(), 800.0, room)), labels(&ticks()));
        assert_eq!(labels(&spaced(ticks(), 260.0, room)), ["", "50 %", "90 %", "99 %", "99.9 %", "99.99 %"]);
    }

    #[test]
    fn numbers_are_short() {
        let cases = [(0.0, "0"), (0.5, "0.5"), (5_000.0, "5000"), (25_000.0, "25 k"), (3e9, "3 G")];
        for (value, text) in cases {
            assert_eq!(short(value), text);
        }
        for (value, text) in
            [(1_234_567.0, "1.23 M"), (8.127, "8.13"), (0.0, "0"), (0.012_345, "0.0123"), (0.002_9, "0.0029")]
        {
            assert_eq!(brief(value), text);
        }
    }
}
