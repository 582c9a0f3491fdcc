//! Median, lowest and highest of a few rounds.

use serde::{Deserialize, Serialize};

/// Digits that figures keep after the point: more than any of them deserves.
const KEPT: f64 = 1e4;

/// The spread of one figure over the rounds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Spread {
    /// The median; of an even number of rounds the mean of the middle two.
    pub median: f64,
    /// The lowest.
    pub min: f64,
    /// The highest.
    pub max: f64,
}

impl Spread {
    /// The spread of `values`; `None` when there are none.
    pub(crate) fn of(values: &[f64]) -> Option<Self> {
        let mut sorted = values.to_vec();
        sorted.sort_by(f64::total_cmp);
        let (min, max) = (*sorted.first()?, *sorted.last()?);
        let middle = sorted.len() / 2;
        let median = if sorted.len().is_multiple_of(2) {
            f64::midpoint(sorted[middle - 1], sorted[middle])
        } else {
            sorted[middle]
        };
        Some(Self { median: rounded(median), min: rounded(min), max: rounded(max) })
    }
}

/// Cuts off digits that only noise fills.
pub(crate) fn rounded(value: f64) -> f64 {
    (value * KEPT).round() / KEPT
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_is_in_the_middle() {
        assert_eq!(Spread::of(&[]), None);
        let odd = Spread::of(&[3.0, 1.0, 2.0]).expect("three");
        assert_eq!(odd, Spread { median: 2.0, min: 1.0, max: 3.0 });
        let even = Spread::of(&[4.0, 1.0, 2.0, 3.0]).expect("four");
        assert_eq!(even, Spread { median: 2.5, min: 1.0, max: 4.0 });
    }

    #[test]
    fn noise_is_cut_off() {
        assert_eq!(rounded(1.160_049), 1.16);
        assert_eq!(rounded(0.000_05), 0.000_1);
    }
}
