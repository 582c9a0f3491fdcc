//! Decides whether a waiting thread spins first, if the user has set nothing: pure code, which learns from earlier spins.
//!
//! A spin pays if the answer comes before the thread would have slept. It does not pay if answers take longer, or if other
//! threads want the CPU, such as the daemon's, which is to answer. Spins that do not pay are made less and less often, but not given up,
//! so that it is noticed when they pay again.

use std::time::Duration;

use crate::{
    Attach,
    limits::{FUTILE_SPINS_MAX, SPINS_SKIPPED_MAX},
};

/// Weight of an interrupted spin, which kept another thread waiting.
const INTERRUPTED: u32 = FUTILE_SPINS_MAX;

/// How many futile spins one that pays makes up for.
const PAID: u32 = 2;

#[derive(Debug)]
pub(crate) struct Patience {
    /// Spins that did not pay, less those made up for.
    futile: u32,
    /// Waits that are still to begin without a spin.
    skips: u32,
    /// CPUs that this process may use.
    cpus: usize,
}

impl Patience {
    pub(crate) fn new(cpus: usize) -> Self {
        Self { futile: 0, skips: 0, cpus }
    }

    /// Whether the wait that begins now begins with a spin.
    pub(crate) fn may_spin(&mut self) -> bool {
        let may = self.cpus > 1 && self.skips == 0;
        self.skips = self.skips.saturating_sub(1);
        may
    }

    /// Notes the end of a spin that was to last for [`Attach::IDLE_SPIN`], with or without an answer.
    pub(crate) fn has_spun(&mut self, answered: bool, took: Duration) {
        let worst = FUTILE_SPINS_MAX + SPINS_SKIPPED_MAX.ilog2();
        self.futile = match answered {
            // The thread cannot have polled all that time.
            _ if took >= 2 * Attach::IDLE_SPIN => (self.futile + INTERRUPTED).min(worst),
            true => self.futile.saturating_sub(PAID),
            false => (self.futile + 1).min(worst),
        };
        self.skips = self.futile.checked_sub(FUTILE_SPINS_MAX).map_or(0, |beyond| 1 << beyond);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SPIN: Duration = Attach::IDLE_SPIN;

    /// Waits `waits` times; the number of waits that began with a spin. `spin` gives each spin's outcome and duration.
    fn spins(patience: &mut Patience, waits: u32, mut spin: impl FnMut(u32) -> (bool, Duration)) -> u32 {
        let mut count = 0;
        for wait in 0..waits {
            if patience.may_spin() {
                count += 1;
                let (answered, took) = spin(wait);
                patience.has_spun(answered, took);
            }
        }
        count
    }

    #[test]
    fn as_long_as_spins_pay_every_wait_begins_with_one() {
        let mut patience = Patience::new(2);
        assert_eq!(spins(&mut patience, 1000, |_| (true, SPIN / 10)), 1000);
        assert_eq!(spins(&mut patience, 1000, |wait| (wait % 2 == 0, SPIN)), 1000, "a long wait after each short one");
    }

    #[test]
    fn where_answers_take_long_few_waits_begin_with_a_spin() {
        let mut patience = Patience::new(2);
        let waits = 100 * SPINS_SKIPPED_MAX;
        let futile = spins(&mut patience, waits, |_| (false, SPIN));
        assert!((100..120).contains(&futile), "{futile}");
    }

    #[test]
    fn where_others_want_the_cpu_an_answer_does_not_count() {
        let mut patience = Patience::new(2);
        let waits = 100 * SPINS_SKIPPED_MAX;
        let interrupted = spins(&mut patience, waits, |_| (true, 2 * SPIN));
        assert!((100..120).contains(&interrupted), "{interrupted}");
        assert_eq!(spins(&mut Patience::new(2), 2, |_| (true, 2 * SPIN)), 1, "the first is enough");
    }

    #[test]
    fn when_spins_pay_again_it_is_noticed() {
        let mut patience = Patience::new(2);
        spins(&mut patience, 10_000, |_| (false, SPIN));
        spins(&mut patience, 2 * SPINS_SKIPPED_MAX, |_| (true, SPIN / 10));
        assert_eq!(spins(&mut patience, 100, |_| (true, SPIN / 10)), 100);
    }

    #[test]
    fn on_one_cpu_nobody_answers_a_spin() {
        assert_eq!(spins(&mut Patience::new(1), 100, |_| unreachable!("there was no spin")), 0);
    }
}
