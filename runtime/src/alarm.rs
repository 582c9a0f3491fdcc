//! Wakes a sleeping shard at its next deadline: one timer descriptor per shard, set before the shard sleeps.

use std::{
    os::fd::{AsFd, BorrowedFd},
    time::Instant,
};

use nix::sys::{
    time::TimeSpec,
    timerfd::{ClockId, Expiration, TimerFd, TimerFlags, TimerSetTimeFlags},
};

use crate::{error::RuntimeError, limits::PARK_MAX};

pub(crate) struct Alarm {
    timer: TimerFd,
    /// When the timer rings: earlier than the deadline if that is further off than `PARK_MAX`.
    rings_at: Option<Instant>,
}

impl Alarm {
    pub(crate) fn new() -> Result<Self, RuntimeError> {
        let flags = TimerFlags::TFD_CLOEXEC | TimerFlags::TFD_NONBLOCK;
        let timer =
            TimerFd::new(ClockId::CLOCK_MONOTONIC, flags).map_err(RuntimeError::system("making a shard's alarm"))?;
        Ok(Self { timer, rings_at: None })
    }

    /// Sets the timer to `due`, or to the longest allowed sleep if that ends earlier. False if `due` has passed or the kernel
    /// refuses.
    pub(crate) fn set(&mut self, now: Instant, due: Instant) -> bool {
        if due <= now {
            return false;
        }
        let after = (due - now).min(PARK_MAX);
        let at = now + after;
        if self.rings_at == Some(at) {
            return true;
        }
        let after = Expiration::OneShot(TimeSpec::from_duration(after));
        let set = self.timer.set(after, TimerSetTimeFlags::empty()).is_ok();
        self.rings_at = set.then_some(at);
        set
    }

    /// To be called when the shard wakes: an alarm that has rung must be set again, even for the same deadline.
    pub(crate) fn awake(&mut self, now: Instant) {
        if self.rings_at.is_some_and(|at| at <= now) {
            self.rings_at = None;
        }
    }
}

impl AsFd for Alarm {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.timer.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_deadline_beyond_the_longest_sleep_is_slept_for_in_parts() {
        let (mut alarm, start) = (Alarm::new().unwrap(), Instant::now());
        let due = start + PARK_MAX * 2 + Duration::from_secs(1);
        for parts in 0..2 {
            let now = start + PARK_MAX * parts;
            assert!(alarm.set(now, due));
            assert_eq!(alarm.rings_at, Some(now + PARK_MAX));
            alarm.awake(now + PARK_MAX);
            assert_eq!(alarm.rings_at, None, "the next part needs an alarm of its own");
        }
        assert!(alarm.set(start + PARK_MAX * 2, due));
        assert_eq!(alarm.rings_at, Some(due));
    }

    #[test]
    fn an_alarm_stays_set_until_it_rings_and_is_not_set_for_the_past() {
        let (mut alarm, start) = (Alarm::new().unwrap(), Instant::now());
        let due = start + Duration::from_secs(3600);
        assert!(!alarm.set(start, start));
        assert!(alarm.set(start, due));
        assert!(alarm.timer.get().unwrap().is_some());
        // If the alarm used the timer again, it would be set again.
        alarm.timer.unset().unwrap();
        assert!(alarm.set(start + Duration::from_secs(1), due));
        assert!(alarm.timer.get().unwrap().is_none(), "no second system call for the same deadline");
        alarm.awake(due);
        assert!(!alarm.set(due, due));
    }
}
