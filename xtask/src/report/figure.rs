//! Figures as texts: a number with three digits, its unit, and from where to where it went. Pure.

use sealane_bench::{Spread, brief};

use super::results::inverse;

/// What stands where nothing was measured.
pub(super) const NOT_MEASURED: &str = "not measured";

/// From so many on, a time has the next unit.
const LARGE: f64 = 1_000.0;

/// The unit of a metric, by its name in the JSON.
fn unit(metric: &str) -> &'static str {
    let name = metric.split('.').next().unwrap_or_default();
    match name {
        "gigabytes_per_s" => " GB/s",
        "cpu_percent" => " %",
        "rss_bytes_per_peer" | "bytes_per_step" => " B",
        _ if name.ends_with("_us") => " µs",
        _ if name.ends_with("_ms") || name.ends_with("_ms_per_step") => " ms",
        _ if name.ends_with("_mib") => " MiB",
        _ if name.ends_with("_per_s") => "/s",
        _ => "",
    }
}

/// Whether less is better.
pub(super) fn is_cost(metric: &str) -> bool {
    !(metric.contains("_per_s") && !metric.contains("_per_step") || metric.ends_with("_share"))
}

/// A unit that suits a figure: a thousand of the smaller are one of the next.
fn suited(metric: &str, value: f64) -> (f64, &'static str) {
    match unit(metric) {
        " µs" if value >= LARGE => (value / LARGE, " ms"),
        " ms" if value >= LARGE => (value / LARGE, " s"),
        unit => (value, unit),
    }
}

/// A median with its unit: `8.3 µs`, `4.12 M/s`.
pub(super) fn median(metric: &str, spread: Spread) -> String {
    let (value, unit) = suited(metric, spread.median);
    number(value, unit)
}

/// The same with the lowest and the highest round, where they are not one: `8.3 µs (8.1 to 9)`.
pub(super) fn with_spread(metric: &str, spread: Spread) -> String {
    let (value, _) = suited(metric, spread.median);
    // The ends have the unit of the median.
    let scale = if value == spread.median { 1.0 } else { 1.0 / LARGE };
    let (min, max) = (spread.min * scale, spread.max * scale);
    format!("{}{}", median(metric, spread), range(Spread { median: value, min, max }))
}

/// A quotient: `1.21 (1.18 to 1.22)`.
pub(super) fn quotient(spread: Spread) -> String {
    format!("{}{}", brief(spread.median), range(spread))
}

/// How many times as fast something is, from a quotient of two figures of a metric.
pub(super) fn speed(metric: &str, ratio: Spread) -> Spread {
    if is_cost(metric) { inverse(ratio) } else { ratio }
}

/// A cell of a table.
pub(super) fn cell(text: Option<String>) -> String {
    text.unwrap_or_default()
}

fn range(Spread { min, max, .. }: Spread) -> String {
    let (min, max) = (brief(min), brief(max));
    if min == max { String::new() } else { format!(" ({min} to {max})") }
}

/// A prefix of a thousand goes to the unit: `14 kB`.
fn number(value: f64, unit: &str) -> String {
    let text = brief(value);
    let has_prefix = text.ends_with(char::is_alphabetic);
    format!("{text}{}", if has_prefix { unit.trim_start() } else { unit })
}

#[cfg(test)]
mod tests {
    use super::super::results::certain;
    use super::*;

    #[test]
    fn figures_have_their_units() {
        for (metric, value, text) in [
            ("rtt_us.p50", 8.123, "8.12 µs"),
            ("rtt_us.p99", 36_200.0, "36.2 ms"),
            ("step_ms", 1_320.0, "1.32 s"),
            ("tensors_per_s", 4_123_456.0, "4.12 M/s"),
            ("steps_per_s", 950.4, "950/s"),
            ("gigabytes_per_s", 11.04, "11 GB/s"),
            ("step_p99_ms", 0.0283, "0.0283 ms"),
            ("cpu_ms_per_step", 1.5, "1.5 ms"),
            ("rss_bytes_per_peer", 14_123.0, "14.1 kB"),
            ("cpu_percent", 0.0, "0 %"),
            ("messages_per_step", 9.0, "9"),
        ] {
            assert_eq!(median(metric, certain(value)), text);
            assert_eq!(with_spread(metric, certain(value)), text);
        }
        let spread = Spread { median: 1_000.0, min: 500.0, max: 2_000.0 };
        assert_eq!(with_spread("step_ms", spread), "1 s (0.5 to 2)");
        let spread = Spread { median: 2e6, min: 1e6, max: 3e6 };
        assert_eq!(with_spread("tensors_per_s", spread), "2 M/s (1 M to 3 M)");
        assert_eq!(quotient(Spread { median: 1.21, min: 1.18, max: 1.22 }), "1.21 (1.18 to 1.22)");
    }

    #[test]
    fn of_a_time_half_is_twice_as_fast() {
        let half = Spread { median: 0.5, min: 0.25, max: 1.0 };
        assert_eq!(speed("rtt_us.p50", half), Spread { median: 2.0, min: 1.0, max: 4.0 });
        assert_eq!(speed("steps_per_s", half), half);
        for metric in ["step_ms", "messages_per_step", "cpu_ms_per_step", "rss_bytes_per_peer", "gap_ms"] {
            assert!(is_cost(metric), "{metric}");
        }
        for metric in ["steps_per_s", "gigabytes_per_s", "slowest_share"] {
            assert!(!is_cost(metric), "{metric}");
        }
    }
}
