//! How the daemon finishes: it takes nothing new, and waits for what is in progress, but not forever. Pure.

use std::time::{Duration, Instant};

/// How often a draining daemon counts what is in progress. Nothing tells it, so that calls need not; a drain is short, and
/// to a person who waits for it this is at once.
pub(super) const LOOK_EVERY: Duration = Duration::from_millis(10);

/// How long clients are served as ever after they were told of the drain: a client that calls often looks whether the daemon
/// lives every few milliseconds, and hears of it then, so that the calls it makes later wait for the next daemon.
pub(super) const NOTICE: Duration = Duration::from_millis(20);

/// A drain that has begun.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Drain {
    /// Until then clients may not have heard of it; none once the engine takes nothing new.
    noticed: Option<Instant>,
    until: Instant,
}

/// How a drain stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Progress {
    /// Clients may not have heard of it: look again then.
    Notice(Instant),
    /// All have: nothing new is to be taken from now on.
    Close,
    /// Calls are in progress: look again then.
    Wait(Instant),
    /// Over; so many calls are ended by the stop.
    Over {
        /// Calls that have not ended by themselves.
        left: usize,
    },
}

impl Drain {
    /// Begins a drain that takes `timeout` at most, the time included that clients have to hear of it.
    pub(super) fn begin(now: Instant, timeout: Duration) -> Drain {
        Drain { noticed: Some(now + NOTICE.min(timeout)), until: now + timeout }
    }

    /// Where the drain stands with that many calls in progress.
    pub(super) fn look(&mut self, now: Instant, under_way: usize) -> Progress {
        match self.noticed {
            Some(noticed) if now < noticed => return Progress::Notice(noticed),
            Some(_) => {
                self.noticed = None;
                return Progress::Close;
            }
            None => {}
        }
        if under_way == 0 || now >= self.until {
            Progress::Over { left: under_way }
        } else {
            Progress::Wait(self.until.min(now + LOOK_EVERY))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_drain_ends_with_the_last_call_or_with_its_time() {
        let now = Instant::now();
        let mut drain = Drain::begin(now, Duration::from_millis(45));
        let after = |ms| now + Duration::from_millis(ms);
        assert_eq!(drain.look(now, 0), Progress::Notice(now + NOTICE));
        assert_eq!(drain.look(after(20), 3), Progress::Close);
        assert_eq!(drain.look(after(20), 0), Progress::Over { left: 0 });
        assert_eq!(drain.look(after(20), 3), Progress::Wait(after(30)));
        assert_eq!(drain.look(after(40), 3), Progress::Wait(after(45)));
        assert_eq!(drain.look(after(45), 3), Progress::Over { left: 3 });
        assert_eq!(drain.look(after(45), 0), Progress::Over { left: 0 });
        let mut at_once = Drain::begin(now, Duration::ZERO);
        assert_eq!((at_once.look(now, 1), at_once.look(now, 1)), (Progress::Close, Progress::Over { left: 1 }));
    }
}
