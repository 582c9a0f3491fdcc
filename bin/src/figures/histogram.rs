//! Durations as they go into JSON, and come out of it.

use sealane_runtime::HistogramSnapshot;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Durations, by how long they were.
#[derive(Serialize, Deserialize)]
struct Shown {
    count: u64,
    sum_ns: u64,
    /// Upper bound in nanoseconds, and how many are in that bucket alone; without the empty ones. A bound of 2^64-1 is none.
    buckets: Vec<(u64, u64)>,
    /// The middle one, in nanoseconds; 0 of none.
    p50_ns: u64,
    /// That which one in a hundred exceeds.
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
