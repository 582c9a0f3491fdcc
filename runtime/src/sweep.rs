//! When a table must be searched for entries past their deadlines.

use std::time::{Duration, Instant};

/// How long a table is left alone after a search, for each of its slots: a search takes at most a tenth of that.
const REST_PER_SLOT: Duration = Duration::from_nanos(256);

/// The earliest deadline in a table, and when the table may be searched again. Adding a deadline costs a comparison, removing one
/// nothing, and searches take a bounded share of a shard's time, whatever deadlines its clients choose. An expiry is noticed late
/// by at most 256 ns for each slot of the table: 17 ms in one of 65,536.
#[derive(Clone, Copy, Debug, Default)]
pub struct Sweep {
    /// No deadline in the table is earlier; the entry that had it may be gone.
    earliest: Option<Instant>,
    rests_until: Option<Instant>,
}

impl Sweep {
    /// The state after a search of a table with that many slots; the deadlines left there must still be entered.
    pub fn after(now: Instant, slots: usize) -> Self {
        let rest = REST_PER_SLOT.saturating_mul(u32::try_from(slots).unwrap_or(u32::MAX));
        Self { earliest: None, rests_until: Some(now + rest) }
    }

    /// Enters the deadline of an entry of the table.
    #[inline(always)]
    pub fn enter(&mut self, deadline: Instant) {
        if self.earliest.is_none_or(|earliest| deadline < earliest) {
            self.earliest = Some(deadline);
        }
    }

    /// Says that no entry of the table has a deadline any more.
    #[inline(always)]
    pub fn clear(&mut self) {
        self.earliest = None;
    }

    /// When the table must be searched next; `None` if no entry has a deadline.
    #[inline]
    pub fn next(&self) -> Option<Instant> {
        let earliest = self.earliest?;
        Some(self.rests_until.map_or(earliest, |until| earliest.max(until)))
    }

    /// True if the table must be searched now.
    #[inline]
    pub fn is_due(&self, now: Instant) -> bool {
        self.next().is_some_and(|at| at <= now)
    }

    /// True if a search will notice the deadline in time: it, or an earlier one, was entered.
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
