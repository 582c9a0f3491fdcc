//! A single-writer histogram that any thread can read: 504 bytes, fixed, wait-free.
//!
//! Two buckets for each power of two, from 64 to 2^36. In nanoseconds that is 64 ns to 69 s: no turn or delivery takes less
//! than 64 ns, and anything over 69 s is counted, but has hit a deadline. A bucket's width is at most half its lower bound, so
//! an interpolated quantile is less than half, and usually a tenth, off the true one. Finer buckets would make every scrape
//! longer, and no alert better.

use std::{array, ops::AddAssign};

use crate::counter::Counter;

/// The first bucket ends at 2^6.
const FIRST_POWER: u32 = 6;
/// The last bucket but the overflow ends at 2^36.
const LAST_POWER: u32 = 36;
/// One up to the first power, two for each power from there to the last, one for what is larger.
const BUCKETS: usize = 1 + 2 * (LAST_POWER - FIRST_POWER) as usize + 1;
const OVERFLOW: usize = BUCKETS - 1;

/// A histogram of values. One thread records, any thread takes snapshots.
///
/// Recording costs two additions to a [`Counter`], about 2 ns, and no locked instruction.
#[derive(Debug)]
pub struct Histogram {
    counts: [Counter; BUCKETS],
    sum: Counter,
}

impl Histogram {
    pub const fn new() -> Self {
        Self { counts: [const { Counter::new() }; BUCKETS], sum: Counter::new() }
    }

    /// Writer: counts one value.
    #[inline]
    pub fn record(&self, value: u64) {
        self.record_many(value, 1);
    }

    /// Writer: counts one value `count` times.
    #[inline]
    pub fn record_many(&self, value: u64, count: u64) {
        self.counts[bucket(value)].add(count);
        self.sum.add(value.wrapping_mul(count));
    }

    /// The values recorded so far. A value recorded concurrently may be in the counts but not yet in the sum.
    pub fn snapshot(&self) -> HistogramSnapshot {
        HistogramSnapshot { counts: array::from_fn(|index| self.counts[index].get()), sum: self.sum.get() }
    }
}

impl Default for Histogram {
    fn default() -> Self {
        Self::new()
    }
}

/// The state of a [`Histogram`] at one moment; those of several shards can be added up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HistogramSnapshot {
    counts: [u64; BUCKETS],
    sum: u64,
}

impl HistogramSnapshot {
    /// A snapshot with this sum and these buckets, each given by its upper bound and its count.
    pub fn of(sum: u64, buckets: impl IntoIterator<Item = (u64, u64)>) -> Self {
        let mut snapshot = Self { sum, ..Self::default() };
        buckets.into_iter().for_each(|(bound, count)| snapshot.counts[bucket(bound)] += count);
        snapshot
    }

    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }

    pub fn sum(&self) -> u64 {
        self.sum
    }

    /// Each bucket's inclusive upper bound, and the number of values in it. The last bucket's bound is
    /// `u64::MAX`.
    pub fn buckets(&self) -> impl ExactSizeIterator<Item = (u64, u64)> {
        self.counts.iter().enumerate().map(|(index, count)| (upper_bound(index), *count))
    }

    /// The `q` quantile (0 to 1), assuming that values are spread evenly within their bucket; none if there are no values. At
    /// most the last bound, 2^36.
    pub fn quantile(&self, q: f64) -> Option<u64> {
        let count = self.count();
        if count == 0 {
            return None;
        }
        let rank = (q.clamp(0.0, 1.0) * count as f64).max(1.0);
        let mut below = 0;
        for (index, count) in self.counts[..OVERFLOW].iter().enumerate() {
            if *count > 0 && (below + count) as f64 >= rank {
                let lower = if index == 0 { 0 } else { upper_bound(index - 1) };
                let share = (rank - below as f64) / *count as f64;
                return Some(lower + ((upper_bound(index) - lower) as f64 * share) as u64);
            }
            below += count;
        }
        Some(1 << LAST_POWER)
    }

    /// The values recorded since `earlier`, a snapshot of the same histograms.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        Self {
            counts: array::from_fn(|index| self.counts[index].saturating_sub(earlier.counts[index])),
            sum: self.sum.wrapping_sub(earlier.sum),
        }
    }
}

impl Default for HistogramSnapshot {
    fn default() -> Self {
        Self { counts: [0; BUCKETS], sum: 0 }
    }
}

impl AddAssign<&Self> for HistogramSnapshot {
    fn add_assign(&mut self, other: &Self) {
        for (count, more) in self.counts.iter_mut().zip(other.counts) {
            *count += more;
        }
        self.sum = self.sum.wrapping_add(other.sum);
    }
}

#[inline]
fn bucket(value: u64) -> usize {
    // A bound belongs to the bucket below it, so look up the place of the value minus one.
    let value = value.saturating_sub(1);
    let power = (value | 1).ilog2();
    if power < FIRST_POWER {
        return 0;
    }
    if power >= LAST_POWER {
        return OVERFLOW;
    }
    let half = (value >> (power - 1)) & 1;
    1 + 2 * (power - FIRST_POWER) as usize + half as usize
}

fn upper_bound(bucket: usize) -> u64 {
    match bucket {
        0 => 1 << FIRST_POWER,
        OVERFLOW => u64::MAX,
        _ => {
            let (power, half) = (FIRST_POWER + (bucket as u32 - 1) / 2, (bucket as u64 - 1) % 2);
            (1 << power) + ((half + 1) << (power - 1))
        }
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use proptest::prelude::*;

    use super::*;

    fn filled(values: impl IntoIterator<Item = u64>) -> HistogramSnapshot {
        let histogram = Histogram::new();
        values.into_iter().for_each(|value| histogram.record(value));
        histogram.snapshot()
    }

    /// The bound of the bucket that holds this value.
    fn bound_of(value: u64) -> u64 {
        let snapshot = filled([value]);
        snapshot.buckets().find(|(_, count)| *count == 1).unwrap().0
    }

    #[test]
    fn two_buckets_for_each_power_of_two_and_bounds_belong_to_the_bucket_below() {
        for (value, bound) in [
            (0, 64),
            (64, 64),
            (65, 96),
            (96, 96),
            (97, 128),
            (128, 128),
            (129, 192),
            (1000, 1024),
            (1 << 36, 1 << 36),
            ((1 << 36) + 1, u64::MAX),
            (u64::MAX, u64::MAX),
        ] {
            assert_eq!(bound_of(value), bound, "{value}");
        }
        let bounds: Vec<u64> = HistogramSnapshot::default().buckets().map(|(bound, _)| bound).collect();
        assert!(bounds.is_sorted_by(|lower, upper| lower < upper));
        assert_eq!(bounds.len(), BUCKETS);
        let many = filled(bounds.iter().copied().chain([7, 1000]));
        assert_eq!(HistogramSnapshot::of(many.sum(), many.buckets()), many);
        assert_eq!(size_of::<Histogram>(), 504, "the module's first line says so");
    }

    #[test]
    fn a_quantile_is_read_off_within_its_bucket() {
        assert_eq!(HistogramSnapshot::default().quantile(0.5), None);
        let snapshot = filled((1..=100).map(|value| value * 1000));
        assert_eq!((snapshot.count(), snapshot.sum()), (100, 5_050_000));
        for (q, exact) in [(0.01, 1000.0), (0.5, 50_000.0), (0.9, 90_000.0), (0.99, 99_000.0)] {
            let read = snapshot.quantile(q).unwrap() as f64;
            assert!((0.8..1.2).contains(&(read / exact)), "{q}: {read}");
        }
        assert_eq!(filled([1 << 40]).quantile(0.5), Some(1 << 36), "no more is known than that");
        let both = filled([100, 1 << 40]);
        assert_eq!((both.quantile(0.5), both.quantile(1.0)), (Some(128), Some(1 << 36)));
    }

    #[test]
    fn snapshots_are_added_and_subtracted() {
        let (early, late) = (filled([100, 200]), filled([100, 200, 5000]));
        assert_eq!(late.since(&early), filled([5000]));
        let mut both = HistogramSnapshot::default();
        both += &early;
        both += &late;
        assert_eq!(both, filled([100, 200, 100, 200, 5000]));
    }

    #[test]
    fn a_reader_sees_what_another_thread_records() {
        let histogram = Histogram::default();
        thread::scope(|scope| {
            scope.spawn(|| (0..50_000).for_each(|value| histogram.record(value)));
            let mut last = 0;
            while last < 50_000 {
                let seen = histogram.snapshot().count();
                assert!(seen >= last);
                last = seen;
            }
        });
        assert_eq!(histogram.snapshot(), filled(0..50_000));
    }

    proptest! {
        #[test]
        fn a_value_lies_between_the_bounds_of_its_bucket(power in 0_u32..64, below in any::<u64>()) {
            let value = below >> (63 - power);
            let index = bucket(value);
            prop_assert!(value <= upper_bound(index));
            prop_assert!(index == 0 || value > upper_bound(index - 1));
        }

        #[test]
        fn quantiles_grow_and_stay_within_a_bucket_of_the_truth(
            mut values in proptest::collection::vec(64_u64..1 << 36, 1..200), q in 0.0..1.0_f64,
        ) {
            let snapshot = filled(values.iter().copied());
            values.sort_unstable();
            let rank = ((q * values.len() as f64).ceil() as usize).max(1);
            let exact = values[rank - 1] as f64;
            let read = snapshot.quantile(q).unwrap();
            prop_assert!((0.6..=1.51).contains(&(read as f64 / exact)), "{read} for {exact}");
            prop_assert!(snapshot.quantile(q * 0.9).unwrap() <= read);
        }
    }
}
