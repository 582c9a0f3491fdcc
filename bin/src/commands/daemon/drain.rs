//! How the daemon drains: it takes nothing new, and waits for what is in progress, but not forever. Pure.

use std::time::{Duration, Instant};

/// How often a draining daemon checks its state at first. It polls, so that calls need not notify it.
const LOOK_EVERY_MIN: Duration = Duration::from_millis(1);

/// How often at last: most drains end at once, and the others may end a little later.
const LOOK_EVERY_MAX: Duration = Duration::from_millis(10);

/// How long clients are served as usual after they were told of the drain, unless all of them read it sooner: a client that calls
/// or waits reads it at once, so that its later calls wait for the next daemon.
const NOTICE: Duration = Duration::from_millis(20);

/// How long after the first a second signal counts as the same request: `timeout`, a terminal and a supervisor signal both a
/// process and its group.
const SAME_REQUEST: Duration = Duration::from_millis(500);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Drain {
    phase: Phase,
    begun: Instant,
    until: Instant,
}

/// What the engine still accepts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// Everything; until then clients may not have heard of the drain.
    Noticing(Instant),
    /// Nothing new from clients; from peers what they are already allowed to send.
    Closed,
    /// Nothing from anyone: all that is left is known.
    Deaf,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Progress {
    /// Clients may not have heard of it: check again at this time.
    Notice(Instant),
    /// All clients have heard: accept nothing new from now on.
    Close,
    /// Calls are in progress: check again at this time.
    Wait(Instant),
    /// All known calls have ended: stop reading from peers.
    StopReading,
    /// Over: the stop cancels that many calls and loses tensors in queues.
    Over {
        /// Calls that have not ended by themselves, and tensors that nobody has accepted.
        left: usize,
    },
}

impl Drain {
    /// Begins a drain that takes at most `timeout`, including the time that clients have to hear of it.
    pub(super) fn begin(now: Instant, timeout: Duration) -> Drain {
        Drain { phase: Phase::Noticing(now + NOTICE.min(timeout)), begun: now, until: now + timeout }
    }

    /// True if a signal now asks for more than the drain in progress, or than the `first` signal if that came later.
    pub(super) fn is_not_enough(&self, first: Option<Instant>, now: Instant) -> bool {
        now.saturating_duration_since(first.unwrap_or(self.begun)) > SAME_REQUEST
    }

    /// The state of the drain, given the calls in progress and whether all clients are `aware` of it.
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
            // Something may have arrived since the count.
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
