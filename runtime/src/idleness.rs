//! The polling policy: pure code that says, after each turn, whether the shard looks again or sleeps.

use std::time::Instant;

use crate::Polling;

/// What the shard does next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Next {
    Spin,
    Park,
}

/// The policy with its one piece of memory: since when the shard has been idle.
#[derive(Debug)]
pub(crate) struct Idleness {
    polling: Polling,
    since: Option<Instant>,
}

impl Idleness {
    pub(crate) fn new(polling: Polling) -> Self {
        Self { polling, since: None }
    }

    /// Judges a turn that took place at `now` and did work or not.
    pub(crate) fn after_turn(&mut self, worked: bool, now: Instant) -> Next {
        if worked {
            self.since = None;
            return Next::Spin;
        }
        match self.polling {
            Polling::Spin => Next::Spin,
            Polling::Park => Next::Park,
            Polling::SpinThenPark { idle_spin } => {
                let since = *self.since.get_or_insert(now);
                if now.saturating_duration_since(since) >= idle_spin { Next::Park } else { Next::Spin }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const MICROSECOND: Duration = Duration::from_micros(1);

    #[test]
    fn spin_never_parks() {
        let start = Instant::now();
        let mut idleness = Idleness::new(Polling::Spin);
        for hours in 0..10 {
            assert_eq!(idleness.after_turn(false, start + Duration::from_secs(3600 * hours)), Next::Spin);
        }
    }

    #[test]
    fn park_parks_at_the_first_idle_turn() {
        let now = Instant::now();
        let mut idleness = Idleness::new(Polling::Park);
        assert_eq!(idleness.after_turn(true, now), Next::Spin);
        assert_eq!(idleness.after_turn(false, now), Next::Park);
    }

    #[test]
    fn the_idle_time_counts_from_the_first_idle_turn() {
        let start = Instant::now();
        let mut idleness = Idleness::new(Polling::SpinThenPark { idle_spin: 200 * MICROSECOND });
        assert_eq!(idleness.after_turn(false, start), Next::Spin);
        assert_eq!(idleness.after_turn(false, start + 199 * MICROSECOND), Next::Spin);
        assert_eq!(idleness.after_turn(false, start + 200 * MICROSECOND), Next::Park);
        assert_eq!(idleness.after_turn(true, start + 300 * MICROSECOND), Next::Spin);
        assert_eq!(idleness.after_turn(false, start + 400 * MICROSECOND), Next::Spin);
        assert_eq!(idleness.after_turn(false, start + 599 * MICROSECOND), Next::Spin);
        assert_eq!(idleness.after_turn(false, start + 600 * MICROSECOND), Next::Park);
    }

    #[test]
    fn a_spurious_wake_does_not_restart_the_spin() {
        let start = Instant::now();
        let mut idleness = Idleness::new(Polling::default());
        assert_eq!(idleness.after_turn(false, start), Next::Spin);
        assert_eq!(idleness.after_turn(false, start + 500 * MICROSECOND), Next::Park);
        assert_eq!(idleness.after_turn(false, start + 900 * MICROSECOND), Next::Park);
    }

    #[test]
    fn a_zero_spin_parks_at_once_and_a_clock_that_steps_back_is_harmless() {
        let start = Instant::now() + Duration::from_secs(1);
        let mut zero = Idleness::new(Polling::SpinThenPark { idle_spin: Duration::ZERO });
        assert_eq!(zero.after_turn(false, start), Next::Park);
        let mut stepped = Idleness::new(Polling::default());
        assert_eq!(stepped.after_turn(false, start), Next::Spin);
        assert_eq!(stepped.after_turn(false, start - Duration::from_millis(1)), Next::Spin);
    }
}
