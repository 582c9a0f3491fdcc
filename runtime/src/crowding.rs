//! Whether other threads want a shard's CPU: pure code that is told how often the kernel took it away, and says whether the shard
//! may spin while it has nothing to do.
//!
//! Four workers, a parameter server and two daemons on two CPUs: the shards spent half of them spinning, and were interrupted four
//! to six thousand times a second; a shard that has a CPU to itself is, by the kernel's own threads, a few dozen times.

use std::time::{Duration, Instant};

use crate::limits::{CROWDED_CHECK_EVERY, CROWDED_PAUSE_MAX, CROWDED_PAUSE_MIN, CROWDED_SWITCHES_PER_CHECK};

#[derive(Debug)]
pub(crate) struct Crowding {
    /// When it last looked, and how often the shard had lost its CPU then.
    looked: Option<(Instant, u64)>,
    /// The shard does not spin before then.
    until: Option<Instant>,
    /// How long it will not spin when it is found crowded next.
    pause: Duration,
}

impl Default for Crowding {
    fn default() -> Self {
        Self { looked: None, until: None, pause: CROWDED_PAUSE_MIN }
    }
}

impl Crowding {
    /// Whether the shard, which is idle at `now`, had better sleep. `switches` tells how often the kernel has taken the CPU from it so
    /// far, and is asked now and then.
    pub(crate) fn is_crowded(&mut self, now: Instant, switches: impl FnOnce() -> u64) -> bool {
        let since = self.looked.map(|(looked, _)| now.saturating_duration_since(looked));
        if since.is_none_or(|since| since >= CROWDED_CHECK_EVERY) {
            self.look(now, switches());
        }
        self.until.is_some_and(|until| now < until)
    }

    fn look(&mut self, now: Instant, switches: u64) {
        let Some((looked, before)) = self.looked.replace((now, switches)) else { return };
        let checks = now.saturating_duration_since(looked).div_duration_f64(CROWDED_CHECK_EVERY);
        let is_crowded = switches.saturating_sub(before) as f64 >= checks * CROWDED_SWITCHES_PER_CHECK;
        if is_crowded {
            self.until = Some(now + self.pause);
            self.pause = (2 * self.pause).min(CROWDED_PAUSE_MAX);
        } else if self.until.is_none_or(|until| now >= until) {
            // It has spun since, and nobody minded.
            self.pause = (self.pause / 2).max(CROWDED_PAUSE_MIN);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Looks once a check, with so many switches more each time; how many of the looks said that it is crowded.
    fn crowded(crowding: &mut Crowding, now: &mut Instant, total: &mut u64, looks: u32, each: u64) -> u32 {
        let mut count = 0;
        for _ in 0..looks {
            *now += CROWDED_CHECK_EVERY;
            *total += each;
            count += u32::from(crowding.is_crowded(*now, || *total));
        }
        count
    }

    fn checks(time: Duration) -> u32 {
        time.div_duration_f64(CROWDED_CHECK_EVERY) as u32
    }

    #[test]
    fn a_shard_with_a_cpu_to_itself_may_spin() {
        let (mut crowding, mut now, mut total) = (Crowding::default(), Instant::now(), 1_000_000);
        assert_eq!(crowded(&mut crowding, &mut now, &mut total, 10_000, 0), 0, "what it lost before does not count");
        for _ in 0..100 {
            // A thread of the kernel, now and then.
            assert_eq!(crowded(&mut crowding, &mut now, &mut total, 1, 1), 0);
            assert_eq!(crowded(&mut crowding, &mut now, &mut total, 20, 0), 0);
        }
    }

    #[test]
    fn while_others_want_the_cpu_it_tries_seldom() {
        let (mut crowding, mut now, mut total) = (Crowding::default(), Instant::now(), 0);
        crowded(&mut crowding, &mut now, &mut total, 1, 0);
        let (mut spins, mut sleeps) = (0, 0);
        let end = now + 20 * CROWDED_PAUSE_MAX;
        while now < end {
            // It loses the CPU where it spins alone.
            let spun = crowding.until.is_none_or(|until| now + CROWDED_CHECK_EVERY >= until);
            match crowded(&mut crowding, &mut now, &mut total, 1, if spun { 5 } else { 0 }) {
                0 => spins += 1,
                _ => sleeps += 1,
            }
        }
        assert!(spins * 50 < sleeps, "{spins} of {}", spins + sleeps);
    }

    #[test]
    fn it_spins_again_when_the_others_have_gone() {
        let (mut crowding, mut now, mut total) = (Crowding::default(), Instant::now(), 0);
        crowded(&mut crowding, &mut now, &mut total, 10_000, 7);
        let looks = checks(CROWDED_PAUSE_MAX) + 1;
        crowded(&mut crowding, &mut now, &mut total, looks, 0);
        assert_eq!(crowded(&mut crowding, &mut now, &mut total, 10_000, 0), 0);
        assert_eq!(crowding.pause, CROWDED_PAUSE_MIN, "the first time again costs little");
    }

    #[test]
    fn a_long_sleep_hides_no_crowd_and_makes_none() {
        let (mut crowding, start) = (Crowding::default(), Instant::now());
        assert!(!crowding.is_crowded(start, || 0));
        let hour = start + Duration::from_secs(3600);
        assert!(!crowding.is_crowded(hour, || 100), "100 in an hour");
        assert!(crowding.is_crowded(hour + CROWDED_CHECK_EVERY, || 110), "10 since the last look");
    }

    #[test]
    fn the_kernel_is_asked_now_and_then_and_a_clock_that_steps_back_is_harmless() {
        let (mut crowding, start) = (Crowding::default(), Instant::now() + Duration::from_secs(1));
        let mut asked = 0;
        for step in 0..1000_u32 {
            crowding.is_crowded(start + CROWDED_CHECK_EVERY * step / 100, || {
                asked += 1;
                0
            });
        }
        assert_eq!(asked, 10);
        assert!(!crowding.is_crowded(start - Duration::from_millis(1), || 0));
    }
}
