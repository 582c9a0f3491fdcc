//! How the daemon finishes: it takes nothing new, and waits for what is in progress, but not forever. Pure.

use std::time::{Duration, Instant};

/// How often a draining daemon looks how things stand, at first. Nothing tells it, so that calls need not.
const LOOK_EVERY_MIN: Duration = Duration::from_millis(1);

/// And at last: most drains end at once, and the others may as well end a little later.
const LOOK_EVERY_MAX: Duration = Duration::from_millis(10);

/// How long clients are served as ever after they were told of the drain, if not all of them read it sooner: one that calls or
/// waits reads it at once, so that the calls it makes later wait for the next daemon.
const NOTICE: Duration = Duration::from_millis(20);

/// How long after the first a second signal is the same request: `timeout`, a terminal and a supervisor signal a process and
/// its group.
const SAME_REQUEST: Duration = Duration::from_millis(500);

/// A drain that has begun.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Drain {
    phase: Phase,
    begun: Instant,
    until: Instant,
}

/// What the engine still takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// Everything. Until then clients may not have heard of the drain.
    Noticing(Instant),
    /// Nothing new of clients; of peers what they may send already.
    Closed,
    /// Nothing of anybody: what is left is known.
    Deaf,
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
    /// All that is known has ended: what comes from peers is not to be read from now on.
    StopReading,
    /// Over; so many calls are ended by the stop, and tensors of queues lost.
    Over {
        /// Calls that have not ended by themselves, and tensors that nobody has accepted.
        left: usize,
    },
}

impl Drain {
    /// Begins a drain that takes `timeout` at most, the time included that clients have to hear of it.
    pub(super) fn begin(now: Instant, timeout: Duration) -> Drain {
        Drain { phase: Phase::Noticing(now + NOTICE.min(timeout)), begun: now, until: now + timeout }
    }

    /// True if a signal that comes now asks for more than the drain that has begun, or than the `first` of them if that was later.
    pub(super) fn is_not_enough(&self, first: Option<Instant>, now: Instant) -> bool {
        now.saturating_duration_since(first.unwrap_or(self.begun)) > SAME_REQUEST
    }

    /// Where the drain stands with that many calls in progress, and all clients `aware` of it or not.
    pub(super) fn look(&mut self, now: Instant, aware: bool, under_way: usize) -> Progress {
        let has_ended = under_way == 0 || now >= self.until;
        match self.phase {
            Phase::Noticing(until) if now < until && !aware => Progress::Notice(until.min(now + LOOK_EVERY_MIN)),
            Phase::Noticing(_) => {
                self.phase = Phase::Closed;
                Progress::Close
            }
            _ if !has_ended => {
                let look = ((now - self.begun) / 4).clamp(LOOK_EVERY_MIN, LOOK_EVERY_MAX);
                Progress::Wait(self.until.min(now + look))
            }
            // Something may have come since it was counted.
            Phase::Closed => {
                self.phase = Phase::Deaf;
                Progress::StopReading
            }
            Phase::Deaf => Progress::Over { left: under_way },
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
        assert_eq!(drain.look(now, false, 0), Progress::Notice(after(1)));
        assert_eq!([0, 500, 501].map(|ms| drain.is_not_enough(None, after(ms))), [false, false, true]);
        assert!(!drain.is_not_enough(Some(after(400)), after(800)), "what comes with the first asks for no more");
        assert_eq!(drain.look(after(20), false, 3), Progress::Close);
        assert_eq!(drain.look(after(20), true, 3), Progress::Wait(after(25)));
        assert_eq!(drain.look(after(40), true, 3), Progress::Wait(after(45)));
        assert_eq!(drain.look(after(45), true, 3), Progress::StopReading);
        assert_eq!(drain.look(after(45), true, 3), Progress::Over { left: 3 });
        assert_eq!(drain.look(after(45), true, 0), Progress::Over { left: 0 });
        let mut at_once = Drain::begin(now, Duration::ZERO);
        let looks = [(); 3].map(|()| at_once.look(now, false, 1));
        assert_eq!(looks, [Progress::Close, Progress::StopReading, Progress::Over { left: 1 }]);
    }

    #[test]
    fn what_came_after_it_was_counted_is_waited_for() {
        let now = Instant::now();
        let mut drain = Drain::begin(now, Duration::from_secs(10));
        let looks = [7, 0, 2, 0].map(|under_way| drain.look(now, true, under_way));
        let wait = Progress::Wait(now + LOOK_EVERY_MIN);
        assert_eq!(looks, [Progress::Close, Progress::StopReading, wait, Progress::Over { left: 0 }]);
    }

    #[test]
    fn clients_that_have_all_heard_of_it_are_not_waited_for() {
        let now = Instant::now();
        let mut drain = Drain::begin(now, Duration::from_secs(10));
        assert_eq!(drain.look(now, true, 0), Progress::Close);
        assert_eq!(drain.look(now, true, 1), Progress::Wait(now + LOOK_EVERY_MIN));
    }
}
