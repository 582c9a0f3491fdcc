//! Durations as JSON: written and read.

use sealane_runtime::HistogramSnapshot;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Durations, sorted into buckets.
#[derive(Serialize, Deserialize)]
struct Shown {
    count: u64,
    sum_ns: u64,
    /// Each non-empty bucket's upper bound in nanoseconds and its count alone. A bound of 2^64-1 means none.
    buckets: Vec<(u64, u64)>,
    /// The median, in nanoseconds; 0 if there are no durations.
    p50_ns: u64,
    /// The duration that one in a hundred exceeds.
    p99_ns: u64,
}

pub(super) fn serialize<S: Serializer>(of: &HistogramSnapshot, serializer: S) -> Result<S::Ok, S::Error> {
    let [p50_ns, p99_ns] = [0.5, 0.99].map(|share| of.quantile(share).unwrap_or(0));
    let buckets = of.buckets().filter(|(_, count)| *count > 0).collect();
    Shown { count: of.count(), sum_ns: of.sum(), buckets, p50_ns, p99_ns }.serialize(serializer)
}

pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<HistogramSnapshot, D::Error> {
    Shown::deserialize(deserializer).map(|shown| HistogramSnapshot::of(shown.sum_ns, shown.buckets))
}
