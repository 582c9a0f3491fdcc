//! A moment as people read it.

use std::time::SystemTime;

use time::OffsetDateTime;

/// The date and the time, to the second, wherever the reader is: `2025-11-20 20:03:11 UTC`.
pub fn utc(moment: SystemTime) -> String {
    let moment = OffsetDateTime::from(moment);
    let (date, (hour, minute, second)) = (moment.date(), moment.to_hms());
    let (year, month, day) = (date.year(), u8::from(date.month()), date.day());
    format!("{year:04}-{month:02}-{day:02} {hour:02}:{minute:02}:{second:02} UTC")
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, UNIX_EPOCH};

    use super::*;

    #[test]
    fn a_moment_has_its_date_and_time() {
        assert_eq!(utc(UNIX_EPOCH), "1970-01-01 00:00:00 UTC");
        assert_eq!(utc(UNIX_EPOCH + Duration::from_secs(951_782_399)), "2000-02-28 23:59:59 UTC");
    }
}
