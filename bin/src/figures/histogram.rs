//! Durations by how long they were, as they go into JSON, and what came between two looks at them.

use std::collections::BTreeMap;
use std::ops::AddAssign;

use sealane_runtime::HistogramSnapshot;
use serde::{Deserialize, Serialize};

/// Durations, by how long they were.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Histogram {
    pub(crate) count: u64,
    pub(crate) sum_ns: u64,
    /// Upper bound in nanoseconds, and how many are in that bucket alone; without the empty ones. A bound of 2^64-1 is none.
    pub(crate) buckets: Vec<(u64, u64)>,
    /// The middle one, in nanoseconds; 0 of none.
    pub(crate) p50_ns: u64,
    /// That which one in a hundred exceeds.
    pub(crate) p99_ns: u64,
}

impl From<&HistogramSnapshot> for Histogram {
    fn from(shown: &HistogramSnapshot) -> Histogram {
        Histogram::of(shown.sum(), shown.buckets().filter(|(_, count)| *count > 0).collect())
    }
}

impl Histogram {
    fn of(sum_ns: u64, buckets: Vec<(u64, u64)>) -> Histogram {
        let count = buckets.iter().map(|(_, count)| count).sum();
        let mut histogram = Histogram { count, sum_ns, buckets, ..Histogram::default() };
        (histogram.p50_ns, histogram.p99_ns) = (histogram.quantile(0.5), histogram.quantile(0.99));
        histogram
    }

    /// The value that a share `q` of the durations does not exceed, as if they lay evenly in their bucket; 0 of none.
    fn quantile(&self, q: f64) -> u64 {
        let rank = (self.count as f64 * q).max(1.0);
        let mut below = 0;
        for (bound, count) in &self.buckets {
            if (below + count) as f64 >= rank {
                let lower = lower_bound(*bound);
                let share = (rank - below as f64) / *count as f64;
                return lower + (bound.saturating_sub(lower) as f64 * share) as u64;
            }
            below += count;
        }
        0
    }

    /// What came after `earlier`, a look at the same durations.
    pub(crate) fn since(&self, earlier: &Histogram) -> Histogram {
        let then: BTreeMap<u64, u64> = earlier.buckets.iter().copied().collect();
        let left = |(bound, count): &(u64, u64)| {
            let count = count.saturating_sub(then.get(bound).copied().unwrap_or(0));
            (count > 0).then_some((*bound, count))
        };
        Histogram::of(self.sum_ns.saturating_sub(earlier.sum_ns), self.buckets.iter().filter_map(left).collect())
    }
}

impl AddAssign<&Histogram> for Histogram {
    fn add_assign(&mut self, other: &Histogram) {
        let mut all: BTreeMap<u64, u64> = self.buckets.iter().copied().collect();
        for (bound, count) in &other.buckets {
            *all.entry(*bound).or_default() += count;
        }
        *self = Histogram::of(self.sum_ns + other.sum_ns, all.into_iter().collect());
    }
}

/// Where the bucket of that upper bound begins: bounds are powers of two and the middles between them, from 64 on.
fn lower_bound(bound: u64) -> u64 {
    match bound {
        0..=64 => 0,
        // No bound at all: what is there is given as the largest that there is.
        u64::MAX => u64::MAX,
        _ if bound.is_power_of_two() => bound / 4 * 3,
        _ => bound / 3 * 2,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(values: &[u64]) -> Histogram {
        let histogram = sealane_runtime::Histogram::new();
        values.iter().for_each(|value| histogram.record(*value));
        Histogram::from(&histogram.snapshot())
    }

    #[test]
    fn quantiles_are_those_of_the_engine() {
        let values: Vec<u64> = (1..=1000).map(|value| value * 97).collect();
        let histogram = sealane_runtime::Histogram::new();
        values.iter().for_each(|value| histogram.record(*value));
        let (shown, snapshot) = (of(&values), histogram.snapshot());
        assert_eq!(Some(shown.p50_ns), snapshot.quantile(0.5));
        assert_eq!(Some(shown.p99_ns), snapshot.quantile(0.99));
        assert_eq!((shown.count, shown.sum_ns), (1000, values.iter().sum()));
        assert_eq!((of(&[]).p50_ns, of(&[]).count), (0, 0));
    }

    #[test]
    fn what_came_between_two_looks_is_their_difference() {
        let (early, late) = (of(&[100, 5000]), of(&[100, 5000, 5000, 70_000]));
        assert_eq!(late.since(&early), of(&[5000, 70_000]));
        assert_eq!(early.since(&early), of(&[]));
        let mut sum = early.clone();
        sum += &of(&[5000, 70_000]);
        assert_eq!(sum, late);
    }
}
