//! The earliest of several times, of which each may be none.

use std::time::Instant;

/// The earliest of the `times` that are set; `None` if none is. Takes a few instructions for each, since shards call it every turn.
#[inline]
pub fn earliest<const COUNT: usize>(times: [Option<Instant>; COUNT]) -> Option<Instant> {
    let mut earliest = None;
    for time in times {
        earliest = match (earliest, time) {
            (Some(one), Some(other)) => Some(std::cmp::min(one, other)),
            (one, other) => one.or(other),
        };
    }
    earliest
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn none_is_later_than_any() {
        let now = Instant::now();
        let later = now + Duration::from_secs(1);
        assert_eq!(earliest([None, Some(later), None, Some(now), Some(later)]), Some(now));
        assert_eq!(earliest([None, None]), None);
    }
}
