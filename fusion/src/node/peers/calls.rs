//! The dials of a session without a link: since when it tries, how often that failed, and why.

use std::time::{Duration, Instant};

use crate::limits::{OUTAGE_TIME_MIN, REDIAL_WAIT_MAX, REDIAL_WAIT_MIN};

/// The dials of one session; see the module.
#[derive(Default)]
pub(super) struct Calls {
    /// Since when a link is wanted and missing.
    wanted_since: Option<Instant>,
    /// Dials that have failed since then.
    failed: u32,
    /// The dial waits for the lookup of the peer's host name.
    pub(super) resolving: bool,
    /// Since when every dial has failed, whether a link was wanted or not.
    pub(super) failing_since: Option<Instant>,
    /// Since when the peer has refused every dial, whether a link was wanted or not.
    refused_since: Option<Instant>,
    /// Why there is no link: how the last dial failed, or how the last link was lost.
    pub(super) last_error: String,
}

impl Calls {
    /// Something waits for a link; the wait counts from the first call of this.
    pub(super) fn want(&mut self, now: Instant) {
        self.wanted_since.get_or_insert(now);
    }

    /// Nothing waits for a link any more.
    pub(super) fn stop(&mut self) {
        (self.wanted_since, self.failed, self.resolving) = (None, 0, false);
    }

    /// When something has waited for a link for this long.
    pub(super) fn wanted_for(&self, time: Duration) -> Option<Instant> {
        Some(self.wanted_since? + time)
    }

    /// A dial has failed; returns since when all have.
    pub(super) fn fail(&mut self, now: Instant, reason: String, is_refused: bool) -> Instant {
        (self.last_error, self.resolving) = (reason, false);
        self.refused_since = is_refused.then(|| self.refused_since.unwrap_or(now));
        *self.failing_since.get_or_insert(now)
    }

    /// True if the peer has refused all dials for [`OUTAGE_TIME_MIN`], and the last one just now.
    pub(super) fn are_refused(&self, now: Instant) -> bool {
        self.refused_since.is_some_and(|since| since + OUTAGE_TIME_MIN <= now)
    }

    /// There is a link now.
    pub(super) fn succeed(&mut self) {
        self.stop();
        (self.failing_since, self.refused_since) = (None, None);
    }

    /// The wait before the next dial: doubled each time, and spread by up to a half so that a thousand workers do not dial a restarted ps
    /// in step. `seed` is the process's own.
    pub(super) fn backoff(&mut self, seed: u64, lane: u32) -> Duration {
        let doubled = REDIAL_WAIT_MIN * (1 << self.failed.min(7));
        self.failed += 1;
        let drawn = mix(seed ^ (u64::from(lane) << 32 | u64::from(self.failed)));
        let spread = (drawn >> 32) as f64 / (1_u64 << 33) as f64;
        doubled.min(REDIAL_WAIT_MAX).mul_f64(1.0 - spread)
    }

    /// Why there is no link, for the errors of calls whose deadline has passed.
    pub(super) fn standing(&self, now: Instant) -> String {
        let Self { wanted_since, failed, resolving, last_error, .. } = self;
        let elapsed = wanted_since.map(|since| now.saturating_duration_since(since));
        match (elapsed, last_error.as_str()) {
            (None, "") => "not connected".into(),
            (None, reason) => format!("not connected since: {reason}"),
            (Some(elapsed), "") if *resolving => format!("its host name is being looked up, for {elapsed:.1?} by now"),
            (Some(elapsed), "") => format!("no answer to the call for {elapsed:.1?}"),
            (Some(elapsed), reason) if *failed > 0 => {
                let tries = if *failed == 1 { "try" } else { "tries" };
                format!("{reason}, {failed} {tries} in {elapsed:.1?}")
            }
            (Some(elapsed), reason) => format!("{reason}; no answer to the next call for {elapsed:.1?}"),
        }
    }
}

/// Each bit of the result depends on all bits of the number (the finalizer of SplitMix64).
fn mix(number: u64) -> u64 {
    let number = (number ^ number >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let number = (number ^ number >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    number ^ number >> 31
}

#[cfg(test)]
mod tests {
    use super::*;

    fn waits(seed: u64) -> Vec<Duration> {
        let mut calls = Calls::default();
        (0..20).map(|_| calls.backoff(seed, 7)).collect()
    }

    #[test]
    fn waits_grow_up_to_a_bound_and_no_two_processes_wait_alike() {
        let (one, other) = (waits(1), waits(2));
        assert_eq!(one, waits(1), "drawn from the seed");
        assert!(one.iter().zip(&other).all(|(one, other)| one != other));
        assert!((REDIAL_WAIT_MIN / 2..=REDIAL_WAIT_MIN).contains(&one[0]));
        assert!(one[8..].iter().all(|wait| (REDIAL_WAIT_MAX / 2..=REDIAL_WAIT_MAX).contains(wait)));
    }
}
