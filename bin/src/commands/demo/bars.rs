//! A latency histogram as text: a bar for each power of two, and the percentiles below.

use std::fmt::Write;

use hdrhistogram::Histogram;

/// Longest bar, in characters.
const BAR_WIDTH: u64 = 40;
/// Nanoseconds of the first bucket's end; each bucket ends at twice the one before.
const FIRST_END_NS: u64 = 1_000;

/// Draws a histogram of nanoseconds; nothing where it is empty.
pub(super) fn draw(histogram: &Histogram<u64>) -> String {
    let buckets = buckets(histogram);
    let most = buckets.iter().map(|bucket| bucket.count).max().unwrap_or(0);
    let mut text = String::new();
    for Bucket { start_ns, end_ns, count } in &buckets {
        // A bucket that is not empty has a bar that can be seen.
        let width = (count * BAR_WIDTH / most).max(u64::from(*count > 0)) as usize;
        let (start, end) = (shown(*start_ns), shown(*end_ns));
        writeln!(text, "  {start:>8} - {end:>8}  {:<40}  {count}", "█".repeat(width)).expect("a string takes all");
    }
    if !buckets.is_empty() {
        let at = |quantile| shown(histogram.value_at_quantile(quantile));
        let (p50, p90, p99, max) = (at(0.5), at(0.9), at(0.99), shown(histogram.max()));
        writeln!(text, "  p50 {p50}, p90 {p90}, p99 {p99}, max {max}").expect("a string takes all");
    }
    text
}

struct Bucket {
    start_ns: u64,
    end_ns: u64,
    count: u64,
}

/// From the first bucket that is not empty to the last.
fn buckets(histogram: &Histogram<u64>) -> Vec<Bucket> {
    let (mut start_ns, mut end_ns) = (0, FIRST_END_NS);
    let mut buckets = Vec::new();
    let mut below = 0;
    while below < histogram.len() {
        let up_to_end = histogram.count_between(0, end_ns - 1);
        let count = up_to_end.saturating_sub(below);
        if count > 0 || !buckets.is_empty() {
            buckets.push(Bucket { start_ns, end_ns, count });
        }
        below = below.max(up_to_end);
        (start_ns, end_ns) = (end_ns, end_ns * 2);
    }
    buckets
}

/// A time with three digits and its unit.
fn shown(nanoseconds: u64) -> String {
    let (value, unit) = match nanoseconds as f64 {
        ns if ns < 1e6 => (ns / 1e3, "µs"),
        ns if ns < 1e9 => (ns / 1e6, "ms"),
        ns => (ns / 1e9, "s"),
    };
    let digits = match value {
        value if value < 10.0 => 2,
        value if value < 100.0 => 1,
        _ => 0,
    };
    format!("{value:.digits$} {unit}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn histogram(values: &[u64]) -> Histogram<u64> {
        let mut histogram = Histogram::new_with_bounds(1, 120_000_000_000, 3).unwrap();
        values.iter().for_each(|value| histogram.record(*value).unwrap());
        histogram
    }

    #[test]
    fn buckets_double_and_none_is_lost() {
        let values = [1_500, 1_600, 3_000, 3_999, 17_000, 60_000_000_000];
        let buckets = buckets(&histogram(&values));
        assert_eq!((buckets[0].start_ns, buckets[0].end_ns, buckets[0].count), (1_000, 2_000, 2));
        assert_eq!(buckets.iter().map(|bucket| bucket.count).sum::<u64>(), values.len() as u64);
        assert!(buckets.windows(2).all(|pair| pair[0].end_ns == pair[1].start_ns));
    }

    #[test]
    fn the_fullest_bucket_has_the_longest_bar_and_every_value_a_bar() {
        let mut values = vec![1_500; 1000];
        values.extend([3_000, 20_000]);
        let text = draw(&histogram(&values));
        let bars: Vec<_> = text.lines().map(|line| line.matches('█').count()).collect();
        assert_eq!(bars, [40, 1, 0, 0, 1, 0], "{text}");
        assert!(text.contains("p50 1.50 µs, p90 1.50 µs, p99 1.50 µs, max 20.0 µs"), "{text}");
        assert_eq!(draw(&histogram(&[])), "");
    }

    #[test]
    fn times_have_their_unit() {
        let cases = [
            (1, "0.00 µs"),
            (9_990, "9.99 µs"),
            (123_400, "123 µs"),
            (1_234_000, "1.23 ms"),
            (2_000_000_000, "2.00 s"),
        ];
        for (nanoseconds, expected) in cases {
            assert_eq!(shown(nanoseconds), expected);
        }
    }
}
