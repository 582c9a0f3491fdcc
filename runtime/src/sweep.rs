//! When a table is walked for what has waited past its deadline.

use std::time::{Duration, Instant};

/// How long a table is left alone after a walk, for each of its slots: a walk takes a tenth of that, or less.
const REST_PER_SLOT: Duration = Duration::from_nanos(256);

/// The earliest deadline in a table, and when the table may be walked again: entering a deadline costs a comparison, taking one out
/// nothing, and walks take a bounded share of a shard's time, whatever deadlines its clients choose. What expires is told late by 256 ns
/// for each slot of the table at most: 17 ms in one of 65,536.
#[derive(Clone, Copy, Debug, Default)]
pub struct Sweep {
    /// None in the table is earlier; it may have left since.
    earliest: Option<Instant>,
    rests_until: Option<Instant>,
}

impl Sweep {
    /// After a walk over a table of so many slots; what is left there is yet to be entered.
    pub fn after(now: Instant, slots: usize) -> Self {
        let rest = REST_PER_SLOT.saturating_mul(u32::try_from(slots).unwrap_or(u32::MAX));
        Self { earliest: None, rests_until: Some(now + rest) }
    }

    /// Enters the deadline of something in the table.
    #[inline(always)]
    pub fn enter(&mut self, deadline: Instant) {
        if self.earliest.is_none_or(|earliest| deadline < earliest) {
            self.earliest = Some(deadline);
        }
    }

    /// Nothing in the table has a deadline any more.
    #[inline(always)]
    pub fn clear(&mut self) {
        self.earliest = None;
    }

    /// When the table is to be walked; `None` if nothing has a deadline.
    #[inline]
    pub fn next(&self) -> Option<Instant> {
        let earliest = self.earliest?;
        Some(self.rests_until.map_or(earliest, |until| earliest.max(until)))
    }

    /// True if the table is to be walked now.
    #[inline]
    pub fn is_due(&self, now: Instant) -> bool {
        self.next().is_some_and(|at| at <= now)
    }

    /// True if a deadline will be looked at in time: it, or an earlier one, was entered.
    pub fn covers(&self, deadline: Instant) -> bool {
        self.earliest.is_some_and(|earliest| earliest <= deadline)
    }
}

impl Extend<Instant> for Sweep {
    fn extend<I: IntoIterator<Item = Instant>>(&mut self, deadlines: I) {
        deadlines.into_iter().for_each(|deadline| self.enter(deadline));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_is_walked_at_its_earliest_deadline_but_for_a_tenth_of_the_time_at_most() {
        let (now, soon) = (Instant::now(), Duration::from_micros(1));
        let mut sweep = Sweep::default();
        assert_eq!(sweep.next(), None);
        sweep.extend([now + soon * 2, now + soon, now + soon * 3]);
        assert_eq!(sweep.next(), Some(now + soon));
        assert!(!sweep.is_due(now) && sweep.is_due(now + soon));
        assert!(sweep.covers(now + soon) && !sweep.covers(now));
        sweep = Sweep::after(now + soon, 100_000);
        assert_eq!(sweep.next(), None, "nothing is left");
        sweep.extend([now + soon * 3, now + soon * 2]);
        let rested = now + soon + REST_PER_SLOT * 100_000;
        assert_eq!(sweep.next(), Some(rested));
        assert!(sweep.is_due(rested) && !sweep.is_due(rested - soon));
        sweep.clear();
        assert_eq!(sweep.next(), None);
    }
}
