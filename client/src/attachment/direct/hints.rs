//! What the two sides of a lane tell each other of tensors that go through the daemon: *hints*, which are records that name one, and a word
//! that says that there was no entry for one. Under the attachment's lock; at most [`HINTS_MAX`] of either side at once.

use std::collections::VecDeque;

use sealane_transport::shm::{DirectLane, LaneRecord};

use super::lane::{Lane, Sent};
use crate::{
    clock::Tick,
    limits::{HINTS_MAX, LANE_PATIENCE},
};

#[derive(Default)]
pub(super) struct Hints {
    /// Hints given: when each is taken back, its entry, and its number.
    given: VecDeque<(Tick, u16, u32)>,
    count: u32,
    /// How many have not come back.
    away: usize,
    /// There is a new one, for which the other side is woken if it waits.
    is_new: bool,
    /// Until when this side does not repeat that it had no entry.
    passes_until: Option<Tick>,
    /// How often the other side had none, and until when recvs are asked for at once.
    passed_by: u64,
    by_daemon_until: Option<Tick>,
    /// Whether the other side was told that somebody waits here.
    awaits: bool,
}

impl Hints {
    /// True if a hint was given since the last call of this, and the other side waits.
    #[inline]
    pub(super) fn take_wanted(&mut self, ends: &DirectLane) -> bool {
        std::mem::take(&mut self.is_new) && ends.other_awaits()
    }

    /// A hint has come back.
    pub(super) fn has_returned(&mut self) {
        self.away -= 1;
    }

    /// When the first is to be taken back.
    pub(super) fn due(&self) -> Option<Tick> {
        self.given.front().map(|(due, ..)| *due)
    }

    /// True if the other side had no entry for something since the last [`was_passed_by`](Self::was_passed_by).
    #[inline]
    pub(super) fn are_passed_by(&self, ends: &DirectLane) -> bool {
        ends.passed_by() != self.passed_by
    }

    /// [`are_passed_by`](Self::are_passed_by), and resets it; if true, recvs are asked for at once for a while.
    #[inline]
    pub(super) fn was_passed_by(&mut self, ends: &DirectLane) -> bool {
        let passed_by = ends.passed_by();
        let was = std::mem::replace(&mut self.passed_by, passed_by) != passed_by;
        if was {
            self.by_daemon_until = Some(Tick::now().later(LANE_PATIENCE));
        }
        was
    }

    /// True if recvs are asked for at once, as their tensors may have gone through the daemon.
    #[inline]
    pub(super) fn is_passed_by(&self, now: Tick) -> bool {
        self.by_daemon_until.is_some_and(|until| until > now)
    }

    /// Tells the other side whether somebody waits here for what it sends.
    #[inline]
    pub(super) fn say_awaits(&mut self, awaits: bool, ends: &DirectLane) {
        if std::mem::replace(&mut self.awaits, awaits) != awaits {
            ends.say_awaits(awaits);
        }
    }
}

impl Lane {
    /// Says that a tensor goes through the daemon. Returns when that is taken back at the latest.
    pub(super) fn hint(&mut self, (step, key): (i64, &str), now: Tick) -> Tick {
        let due = now.later(LANE_PATIENCE);
        while self.hints.given.len() >= HINTS_MAX || self.hints.given.front().is_some_and(|hint| !self.is_told(hint)) {
            self.end_hint();
        }
        if !self.has_entry() {
            self.pass_by(now);
        } else if let Some(entry) = self.ends.sender.send(&LaneRecord::ByDaemon { step, key }) {
            let hints = &mut self.hints;
            (hints.count, hints.away, hints.is_new) = (hints.count.wrapping_add(1), hints.away + 1, true);
            hints.given.push_back((due, entry, hints.count));
            self.sent[usize::from(entry)] = Sent::hint(hints.count, step);
            // A peer that does not poll keeps those that were taken back.
            self.has_sent |= hints.away > 2 * HINTS_MAX;
        }
        // Nothing is said of a key too long for an entry.
        due
    }

    /// Says that something without an entry goes through the daemon. Recvs are then asked for at once for a while.
    fn pass_by(&mut self, now: Tick) {
        if self.hints.passes_until.is_none_or(|until| until <= now) {
            self.hints.passes_until = Some(now.later(LANE_PATIENCE / 2));
            self.ends.pass_by();
            self.has_sent = true;
        }
    }

    fn is_told(&self, (_, entry, number): &(Tick, u16, u32)) -> bool {
        let sent = self.sent[usize::from(*entry)];
        sent.is_hint() && sent.bytes == *number && self.ends.sender.is_away(*entry)
    }

    /// Takes back the oldest hint.
    fn end_hint(&mut self) {
        if let Some(hint) = self.hints.given.pop_front()
            && self.is_told(&hint)
        {
            self.ends.sender.withdraw(hint.1);
        }
    }

    /// Takes back hints that nobody has needed.
    pub(super) fn end_hints(&mut self, now: Tick) {
        while self.hints.due().is_some_and(|due| due <= now) {
            self.end_hint();
        }
    }
}
