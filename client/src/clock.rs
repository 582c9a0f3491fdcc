//! Time for deadlines: milliseconds of the system's coarse monotonic clock, which costs a quarter of the precise one and is read
//! once per call.

use std::time::Duration;

use nix::{
    sys::time::TimeSpec,
    time::{ClockId, clock_gettime},
};
use sealane_transport::shm::NO_TIMEOUT;

/// Most that the clock may lag behind: a kernel's longest tick, at 100 Hz.
pub(crate) const BEHIND_MAX: Duration = Duration::from_millis(10);

/// A point in time, to a few milliseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Tick(u64);

impl Tick {
    /// Later than any other.
    pub(crate) const NEVER: Tick = Tick(u64::MAX);

    #[inline]
    pub(crate) fn now() -> Tick {
        #[cfg(any(test, feature = "fuzzing"))]
        if let Some(now) = by_hand::NOW.get() {
            return now;
        }
        // Every kernel has this clock; without it all times are equal, and only late deadlines are lost.
        let milliseconds = |now: TimeSpec| now.tv_sec() as u64 * 1000 + now.tv_nsec() as u64 / 1_000_000;
        Tick(clock_gettime(ClockId::CLOCK_MONOTONIC_COARSE).map_or(0, milliseconds))
    }

    /// The number of milliseconds since the system's start, the same in all processes of a host.
    pub(crate) fn milliseconds(self) -> u64 {
        self.0
    }

    /// The point in time that [`milliseconds`](Self::milliseconds) gave.
    pub(crate) fn of_milliseconds(milliseconds: u64) -> Tick {
        Tick(milliseconds)
    }

    #[inline]
    pub(crate) fn after(self, timeout: Duration) -> Tick {
        Tick(self.0.saturating_add(u64::try_from(timeout.as_millis()).unwrap_or(u64::MAX)))
    }

    /// So many milliseconds later.
    #[inline]
    pub(crate) fn later(self, milliseconds: u64) -> Tick {
        Tick(self.0.saturating_add(milliseconds))
    }

    /// The deadline of a call submitted now with `timeout_ms`.
    #[inline]
    pub(crate) fn deadline(self, timeout_ms: u32) -> Tick {
        if timeout_ms == NO_TIMEOUT { Tick::NEVER } else { Tick(self.0.saturating_add(timeout_ms.into())) }
    }

    pub(crate) fn before(self, time: Duration) -> Tick {
        Tick(self.0.saturating_sub(u64::try_from(time.as_millis()).unwrap_or(u64::MAX)))
    }

    /// The time from `now` until then, but at least a tick, so that sleeping for it makes progress; `None` if never.
    pub(crate) fn from(self, now: Tick) -> Option<Duration> {
        (self != Tick::NEVER).then(|| Duration::from_millis(self.0.saturating_sub(now.0).max(1)))
    }
}

/// Time set by a test.
#[cfg(any(test, feature = "fuzzing"))]
mod by_hand {
    use std::cell::Cell;

    use super::Tick;

    thread_local! {
        /// The time on this thread, unless it is the system's.
        pub(super) static NOW: Cell<Option<Tick>> = const { Cell::new(None) };
    }
}

/// Sets the time on this thread to so many milliseconds, or back to the system's.
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) fn set_by_hand(milliseconds: Option<u64>) {
    by_hand::NOW.set(milliseconds.map(Tick));
}

/// A timeout as told to the daemon, rounded up; more than 49 days counts as none.
#[inline]
pub(crate) fn timeout_ms(timeout: Duration) -> u32 {
    let whole = timeout.as_millis();
    let partial = u128::from(!timeout.subsec_nanos().is_multiple_of(1_000_000));
    u32::try_from(whole + partial).unwrap_or(NO_TIMEOUT)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timeouts_round_up_and_long_ones_have_no_end() {
        assert_eq!(timeout_ms(Duration::ZERO), 0);
        assert_eq!(timeout_ms(Duration::from_nanos(1)), 1);
        assert_eq!(timeout_ms(Duration::from_micros(1500)), 2);
        assert_eq!(timeout_ms(Duration::from_secs(3)), 3000);
        assert_eq!(timeout_ms(Duration::MAX), NO_TIMEOUT);
        assert_eq!(Tick::now().deadline(NO_TIMEOUT), Tick::NEVER);
        let now = Tick::now();
        assert_eq!(now.deadline(1000), now.after(Duration::from_secs(1)));
    }

    #[test]
    fn what_is_never_is_later_than_anything_and_has_no_distance() {
        let now = Tick::now();
        assert!(now.after(Duration::MAX) <= Tick::NEVER && now < now.after(Duration::from_secs(1)));
        assert_eq!(Tick::NEVER.from(now), None);
        assert_eq!(now.after(Duration::from_secs(2)).from(now), Some(Duration::from_secs(2)));
        assert_eq!(now.from(now), Some(Duration::from_millis(1)));
    }
}
