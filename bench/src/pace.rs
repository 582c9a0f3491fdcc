//! How fast completions came in the course of a round. Pure: the time is an argument. Memory: [`STRETCHES_MAX`] entries,
//! taken when the round starts; a completion costs an addition and a comparison.

use std::time::{Duration, Instant};

use crate::limits::STRETCHES_A_ROUND;

/// Most stretches that are kept: those of a round, and what comes after its end.
const STRETCHES_MAX: usize = STRETCHES_A_ROUND as usize + 1;

/// A part of a round, from one completion to another.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Stretch {
    /// When it began, since the start of the round's warm-up.
    pub from: Duration,
    /// When it ended.
    pub to: Duration,
    /// Completions after its beginning, up to its end.
    pub count: u64,
}

impl Stretch {
    /// Completions a second.
    pub fn per_second(&self) -> f64 {
        self.count as f64 / (self.to - self.from).as_secs_f64()
    }
}

/// The stretches of a round that is in progress.
///
/// A stretch ends with the first completion after its share of the round has passed. So it has at least one completion,
/// however slow the system, and both its ends are exact.
#[derive(Clone, Debug)]
pub(crate) struct Pace {
    start: Instant,
    length: Duration,
    /// When the stretch in progress began, and when it is long enough; `None` before the count begins.
    under_way: Option<(Instant, Instant)>,
    count: u64,
    stretches: Vec<Stretch>,
}

impl Pace {
    /// The pace of a round that starts now and counts for `length`.
    pub(crate) fn start(now: Instant, length: Duration) -> Self {
        let stretches = Vec::with_capacity(STRETCHES_MAX);
        Self { start: now, length: length / STRETCHES_A_ROUND, under_way: None, count: 0, stretches }
    }

    /// The count begins, with a completion that is not counted itself.
    pub(crate) fn begin(&mut self, now: Instant) {
        self.under_way = Some((now, now + self.length));
    }

    /// Notes that `count` more are complete.
    pub(crate) fn completed(&mut self, count: u64, now: Instant) {
        self.count += count;
        if let Some((from, enough)) = self.under_way
            && now >= enough
            && now > from
            && self.stretches.len() < STRETCHES_MAX
        {
            let (from, to) = (from - self.start, now - self.start);
            self.stretches.push(Stretch { from, to, count: self.count });
            self.count = 0;
            self.begin(now);
        }
    }

    /// The stretches that are complete.
    pub(crate) fn stretches(&self) -> &[Stretch] {
        &self.stretches
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LENGTH: Duration = Duration::from_secs(2);
    const SHARE: Duration = Duration::from_millis(100);

    #[test]
    fn a_stretch_lasts_from_completion_to_completion() {
        let start = Instant::now();
        let at = |ms| start + Duration::from_millis(ms);
        let mut pace = Pace::start(start, LENGTH);
        pace.completed(99, at(20));
        assert!(pace.stretches().is_empty(), "not counted yet");
        pace = Pace::start(start, LENGTH);
        pace.begin(at(50));
        pace.completed(3, at(100));
        pace.completed(7, at(160));
        pace.completed(5, at(170));
        pace.completed(1, at(500));
        let ms = Duration::from_millis;
        let expected = [
            Stretch { from: ms(50), to: ms(160), count: 10 },
            // Nothing came for a while: the stretch is longer, and none is empty.
            Stretch { from: ms(160), to: ms(500), count: 6 },
        ];
        assert_eq!(pace.stretches(), expected);
        assert!((expected[0].per_second() - 90.9).abs() < 0.1);
    }

    #[test]
    fn a_round_that_does_not_end_is_kept_up_to_a_bound() {
        let start = Instant::now();
        let mut pace = Pace::start(start, LENGTH);
        pace.begin(start);
        for share in 1..1_000 {
            pace.completed(1, start + SHARE * share);
        }
        assert_eq!(pace.stretches().len(), STRETCHES_MAX);
        assert_eq!(pace.stretches.capacity(), STRETCHES_MAX);
    }
}
