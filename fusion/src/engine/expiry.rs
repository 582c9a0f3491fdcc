//! Expiry of this side's certificate, and when to log it.

use std::time::{Duration, SystemTime};

const DAY: Duration = Duration::from_secs(86_400);
/// The log warns when less than this is left: enough time to renew certificates by hand.
const WARNING: Duration = DAY.saturating_mul(7);

/// The time until `end`; zero if it has passed.
pub(super) fn left(end: SystemTime) -> Duration {
    end.duration_since(SystemTime::now()).unwrap_or_default()
}

/// Days until `end`; negative if it has passed.
pub(super) fn days_left(end: SystemTime) -> f64 {
    let days = |span: Duration| (span.as_secs_f64() / DAY.as_secs_f64() * 10.0).round() / 10.0;
    match end.duration_since(SystemTime::now()) {
        Ok(left) => days(left),
        Err(since) => -days(since.duration()),
    }
}

/// Logs that the certificate expires soon, or has expired.
pub(super) fn warn(left: Duration) {
    if left.is_zero() {
        tracing::error!(
            "the certificate has expired: no link can be made until its files are replaced (sealane keys --help)"
        );
    } else if left <= WARNING {
        let days = format!("{:.1}", left.as_secs_f64() / DAY.as_secs_f64());
        tracing::warn!(days, "the certificate or its authority expires soon: replace its files (sealane keys --help)");
    }
}

/// When to check again: once a day, and when the time to warn begins.
pub(super) fn look_again(left: Duration) -> Duration {
    match left.checked_sub(WARNING) {
        Some(until) if !until.is_zero() => until.min(DAY),
        _ => DAY,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_log_warns_once_a_day_from_a_week_before_the_end() {
        assert_eq!(look_again(WARNING * 9), DAY, "clocks may be set");
        let soon = Duration::from_secs(5);
        assert_eq!(look_again(WARNING + soon), soon, "not before it is time");
        for left in [WARNING, WARNING - soon, soon, Duration::ZERO] {
            assert_eq!(look_again(left), DAY);
        }
        assert_eq!(left(SystemTime::now() - DAY), Duration::ZERO);
        assert!(left(SystemTime::now() + DAY) > DAY / 2);
        assert_eq!([days_left(SystemTime::now() + DAY), days_left(SystemTime::now() - DAY)], [1.0, -1.0]);
    }
}
