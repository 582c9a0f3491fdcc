//! The polling policy: pure code that says, after each turn, whether the shard looks again or sleeps.
//!
//! Spinning is cheap if nobody else wants the CPU, but must not keep a training thread waiting. So in each spin the shard yields
//! the CPU once. If another thread takes it, the shard sleeps at once for the next idle periods.

use std::time::{Duration, Instant};

use crate::Polling;

/// If the next turn begins this long after the yield, another thread took the CPU; otherwise it begins within a few microseconds.
const TAKEN: Duration = Duration::from_micros(100);

/// Time into a spin at which the CPU is yielded: most awaited events have arrived by then.
const OFFERED_AFTER: Duration = Duration::from_micros(20);

/// Idle periods in which the shard sleeps at once, before it tries to spin again.
const SPINS_SKIPPED: u32 = 1024;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Next {
    Spin,
    /// Look again, but let other threads that want the CPU run first.
    Yield,
    Park,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Idle {
    Spins,
    /// It spins, and has already yielded the CPU to others.
    HasYielded,
    Sleeps,
}

#[derive(Debug)]
pub(crate) struct Idleness {
    polling: Polling,
    /// Since when the shard has been idle, and how.
    since: Option<(Instant, Idle)>,
    /// When the CPU was yielded, if that was in the last turn.
    offered: Option<Instant>,
    /// Spins still to be skipped.
    skips: u32,
}

impl Idleness {
    pub(crate) fn new(polling: Polling) -> Self {
        Self { polling, since: None, offered: None, skips: 0 }
    }

    /// Decides what follows a turn that took place at `now` and did work or not.
    pub(crate) fn after_turn(&mut self, worked: bool, now: Instant) -> Next {
        if self.offered.take().is_some_and(|offered| now.saturating_duration_since(offered) >= TAKEN) {
            (self.skips, self.since) = (SPINS_SKIPPED, Some((now, Idle::Sleeps)));
        }
        if worked {
            self.since = None;
            return Next::Spin;
        }
        let idle_spin = match self.polling {
            Polling::Spin => return Next::Spin,
            Polling::Park => return Next::Park,
            Polling::SpinThenPark { idle_spin } => idle_spin,
        };
        let (since, idle) = self.since.get_or_insert_with(|| {
            let idle = if self.skips == 0 { Idle::Spins } else { Idle::Sleeps };
            self.skips = self.skips.saturating_sub(1);
            (now, idle)
        });
        let spun = now.saturating_duration_since(*since);
        if *idle == Idle::Sleeps || spun >= idle_spin {
            return Next::Park;
        }
        if *idle == Idle::HasYielded || spun < OFFERED_AFTER {
            return Next::Spin;
        }
        (*idle, self.offered) = (Idle::HasYielded, Some(now));
        Next::Yield
    }
}

#[cfg(test)]
mod tests {
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
        for start in [0, 400].map(|micros| start + micros * MICROSECOND) {
            let yields = |micros| micros == 20;
            for micros in 0..200 {
                let expected = if yields(micros) { Next::Yield } else { Next::Spin };
                assert_eq!(idleness.after_turn(false, start + micros * MICROSECOND), expected);
            }
            assert_eq!(idleness.after_turn(false, start + 200 * MICROSECOND), Next::Park);
            assert_eq!(idleness.after_turn(true, start + 300 * MICROSECOND), Next::Spin);
        }
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
    fn where_another_thread_takes_the_cpu_the_shard_sleeps_at_once_for_a_while() {
        for found in [false, true] {
            let mut now = Instant::now();
            let mut idleness = Idleness::new(Polling::default());
            assert_eq!(idleness.after_turn(false, now), Next::Spin);
            // A long turn by itself does not count, since the CPU was not offered to other threads.
            now += TAKEN;
            assert_eq!(idleness.after_turn(false, now), Next::Yield);
            now += TAKEN;
            // Whether or not there is work by now.
            assert_eq!(idleness.after_turn(found, now), if found { Next::Spin } else { Next::Park });
            let mut sleeps = 0;
            while idleness.after_turn(false, now) == Next::Park {
                sleeps += 1;
                // It wakes and finds nothing.
                now += 10 * TAKEN;
                assert_eq!(idleness.after_turn(false, now), Next::Park);
                assert_eq!(idleness.after_turn(true, now), Next::Spin);
            }
            assert!((SPINS_SKIPPED..=SPINS_SKIPPED + 1).contains(&sleeps), "{sleeps}");
            now += OFFERED_AFTER;
            assert_eq!(idleness.after_turn(false, now), Next::Yield, "it is tried again");
            assert_eq!(idleness.after_turn(false, now + TAKEN / 2), Next::Spin, "and nobody wants the CPU");
        }
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
