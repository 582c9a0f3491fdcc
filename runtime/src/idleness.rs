//! The polling policy: pure code that says, after each turn, whether the shard looks again or sleeps.

use std::time::Instant;

use crate::{Polling, crowding::Crowding};

/// What the shard does next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Next {
    Spin,
    Park,
}

/// The policy with its memory: since when the shard has been idle, and whether others want its CPU.
#[derive(Debug)]
pub(crate) struct Idleness {
    polling: Polling,
    since: Option<Instant>,
    crowding: Crowding,
}

impl Idleness {
    pub(crate) fn new(polling: Polling) -> Self {
        Self { polling, since: None, crowding: Crowding::default() }
    }

    /// Judges a turn that took place at `now` and did work or not. `switches` tells how often the kernel has taken the CPU from the
    /// shard so far.
    pub(crate) fn after_turn(&mut self, worked: bool, now: Instant, switches: impl FnOnce() -> u64) -> Next {
        if worked {
            self.since = None;
            return Next::Spin;
        }
        match self.polling {
            Polling::Spin => Next::Spin,
            Polling::Park => Next::Park,
            Polling::SpinThenPark { idle_spin } => {
                let since = *self.since.get_or_insert(now);
                let is_over = now.saturating_duration_since(since) >= idle_spin;
                if self.crowding.is_crowded(now, switches) || is_over { Next::Park } else { Next::Spin }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const MICROSECOND: Duration = Duration::from_micros(1);

    /// Nobody has taken the CPU.
    fn alone() -> u64 {
        0
    }

    #[test]
    fn spin_never_parks() {
        let start = Instant::now();
        let mut idleness = Idleness::new(Polling::Spin);
        for hours in 0..10 {
            assert_eq!(idleness.after_turn(false, start + Duration::from_secs(3600 * hours), alone), Next::Spin);
        }
    }

    #[test]
    fn park_parks_at_the_first_idle_turn() {
        let now = Instant::now();
        let mut idleness = Idleness::new(Polling::Park);
        assert_eq!(idleness.after_turn(true, now, alone), Next::Spin);
        assert_eq!(idleness.after_turn(false, now, alone), Next::Park);
    }

    #[test]
    fn the_idle_time_counts_from_the_first_idle_turn() {
        let start = Instant::now();
        let mut idleness = Idleness::new(Polling::SpinThenPark { idle_spin: 200 * MICROSECOND });
        assert_eq!(idleness.after_turn(false, start, alone), Next::Spin);
        assert_eq!(idleness.after_turn(false, start + 199 * MICROSECOND, alone), Next::Spin);
        assert_eq!(idleness.after_turn(false, start + 200 * MICROSECOND, alone), Next::Park);
        assert_eq!(idleness.after_turn(true, start + 300 * MICROSECOND, alone), Next::Spin);
        assert_eq!(idleness.after_turn(false, start + 400 * MICROSECOND, alone), Next::Spin);
        assert_eq!(idleness.after_turn(false, start + 599 * MICROSECOND, alone), Next::Spin);
        assert_eq!(idleness.after_turn(false, start + 600 * MICROSECOND, alone), Next::Park);
    }

    #[test]
    fn a_spurious_wake_does_not_restart_the_spin() {
        let start = Instant::now();
        let mut idleness = Idleness::new(Polling::default());
        assert_eq!(idleness.after_turn(false, start, alone), Next::Spin);
        assert_eq!(idleness.after_turn(false, start + 500 * MICROSECOND, alone), Next::Park);
        assert_eq!(idleness.after_turn(false, start + 900 * MICROSECOND, alone), Next::Park);
    }

    #[test]
    fn a_zero_spin_parks_at_once_and_a_clock_that_steps_back_is_harmless() {
        let start = Instant::now() + Duration::from_secs(1);
        let mut zero = Idleness::new(Polling::SpinThenPark { idle_spin: Duration::ZERO });
        assert_eq!(zero.after_turn(false, start, alone), Next::Park);
        let mut stepped = Idleness::new(Polling::default());
        assert_eq!(stepped.after_turn(false, start, alone), Next::Spin);
        assert_eq!(stepped.after_turn(false, start - Duration::from_millis(1), alone), Next::Spin);
    }

    #[test]
    fn a_shard_that_was_told_to_spin_or_sleep_does_so_in_any_crowd() {
        for (polling, alone_in, crowded_in) in [
            (Polling::Spin, Next::Spin, Next::Spin),
            (Polling::Park, Next::Park, Next::Park),
            (Polling::default(), Next::Spin, Next::Park),
        ] {
            let start = Instant::now();
            let mut idleness = Idleness::new(polling);
            assert_eq!(idleness.after_turn(false, start, || 1000), alone_in);
            idleness.after_turn(true, start, || 1000);
            assert_eq!(idleness.after_turn(false, start + Duration::from_millis(2), || 1010), crowded_in);
        }
    }
}
