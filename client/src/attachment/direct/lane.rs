//! One lane, and what this process remembers of it.

use std::collections::VecDeque;

use sealane_transport::shm::{ClientBell, DirectLane, Moved, Record, limits::LANE_ENTRIES};

use super::steps::Steps;
use crate::{
    attachment::calls::Name,
    clock::Tick,
    limits::{ASK_AFTER, ENTRIES_FOR_ENDS, HINTS_MAX, LANE_PATIENCE, LANES_LOOK},
};

/// See the module.
pub(super) struct Lane {
    pub(super) peer: Box<str>,
    pub(super) ends: DirectLane,
    /// Wakes the other process.
    bell: ClientBell,
    /// By entry, what was sent.
    pub(super) sent: Box<[Sent]>,
    /// By entry, what has come and waits for its recv.
    pub(super) kept: Box<[Option<Kept>]>,
    /// Sends that the other side may not have received, and when they are to go by the daemon.
    pub(super) pending: VecDeque<(Tick, u32)>,
    /// Recvs that wait here, and when the daemon is to be asked.
    pub(super) quiet: VecDeque<(Tick, u32)>,
    /// Entries that say that a tensor goes by the daemon, which of all these it is, and when it is taken back.
    pub(super) hints: VecDeque<(Tick, u16, u32)>,
    hinted: u32,
    /// How many of them have not come back.
    pub(super) hints_away: usize,
    /// Until when this side does not say again that it has no entry.
    passes_until: Option<Tick>,
    /// How often the other side had none, and until when recvs are asked for at once.
    passed_by: u64,
    by_daemon_until: Option<Tick>,
    /// Steps that the other side has ended.
    pub(super) ended: Steps,
    /// What went and came since the daemon was told.
    pub(super) went: Moved,
    pub(super) came: Moved,
    /// What the other side is told of those who wait here.
    awaits: bool,
    /// The other side has a note to read, or an entry that came back.
    pub(super) has_sent: bool,
    /// What wakes nobody who does not wait for it.
    has_hinted: bool,
    pub(super) has_returned: bool,
}

/// What an entry holds that this side has sent.
#[derive(Clone, Copy, Default)]
pub(super) struct Sent {
    pub(super) call: u32,
    pub(super) bytes: u32,
    pub(super) step: i64,
}

impl Sent {
    /// In an entry with the end of a step: no call waits for it.
    pub(super) const NO_TENSOR: Sent = Sent { call: u32::MAX, bytes: 0, step: 0 };

    /// In one that says that a tensor of a step goes by the daemon: which of all these it is, where else there are bytes.
    fn hint(number: u32, step: i64) -> Sent {
        Sent { call: u32::MAX - 1, bytes: number, step }
    }

    pub(super) fn is_hint(&self) -> bool {
        self.call == u32::MAX - 1
    }

    /// Whether a call waits for its end.
    pub(super) fn is_tensor(&self) -> bool {
        self.call < u32::MAX - 1
    }
}

/// A tensor that waits for its recv, or that the daemon has: then it `is_hint`.
#[derive(Clone, Copy)]
pub(super) struct Kept {
    pub(super) name: Name,
    pub(super) step: i64,
    pub(super) is_hint: bool,
}

impl Lane {
    pub(super) fn new(peer: Box<str>, ends: DirectLane, bell: ClientBell) -> Lane {
        Lane {
            peer,
            ends,
            bell,
            sent: vec![Sent::default(); LANE_ENTRIES].into(),
            kept: vec![None; LANE_ENTRIES].into(),
            pending: VecDeque::new(),
            quiet: VecDeque::new(),
            hints: VecDeque::new(),
            hinted: 0,
            hints_away: 0,
            awaits: false,
            passes_until: None,
            passed_by: 0,
            by_daemon_until: None,
            ended: Steps::default(),
            went: Moved::default(),
            came: Moved::default(),
            has_sent: false,
            has_hinted: false,
            has_returned: false,
        }
    }

    /// Wakes the other process if it sleeps and has something to read.
    #[inline]
    pub(super) fn ring(&mut self) {
        let (has_sent, has_returned) = (std::mem::take(&mut self.has_sent), std::mem::take(&mut self.has_returned));
        let has_hinted = std::mem::take(&mut self.has_hinted);
        let has_sent = has_sent || has_hinted && self.ends.other_awaits();
        let sleep = self.ends.other_sleep();
        if has_sent && sleep.must_ring() || has_returned && sleep.must_ring_if_light() {
            self.bell.ring();
        }
    }

    /// This task goes, as the other side hears.
    pub(super) fn leave(&mut self) {
        self.ends.leave();
        self.bell.ring();
    }

    /// This side wants no more of this lane, as the other hears.
    pub(super) fn abandon(&mut self) {
        self.ends.abandon();
        self.bell.ring();
    }

    /// Sends a record; its entry, if there is one for it.
    #[inline]
    pub(super) fn send(&mut self, record: &Record) -> Option<u16> {
        let entry = self.ends.sender.send(record)?;
        self.has_sent = true;
        Some(entry)
    }

    /// True if there is an entry for a tensor; the last ones are none: they are for the ends of steps.
    #[inline]
    pub(super) fn has_entry(&self) -> bool {
        self.ends.sender.away() < LANE_ENTRIES - ENTRIES_FOR_ENDS
    }

    /// Sends a tensor, if there is an entry for it.
    #[inline]
    pub(super) fn send_tensor(&mut self, record: &Record) -> Option<u16> {
        if self.has_entry() { self.send(record) } else { None }
    }

    /// Says, by the record of a recv, that a tensor of a step goes by the daemon. When it is taken back, at the latest.
    pub(super) fn hint(&mut self, record: &Record, step: i64, now: Tick) -> Tick {
        let due = now.later(LANE_PATIENCE);
        while self.hints.len() >= HINTS_MAX || self.hints.front().is_some_and(|hint| !self.is_told(hint)) {
            self.end_hint();
        }
        match self.send_tensor(record) {
            Some(entry) => {
                self.hinted = self.hinted.wrapping_add(1);
                self.sent[usize::from(entry)] = Sent::hint(self.hinted, step);
                self.hints.push_back((due, entry, self.hinted));
                self.has_hinted = true;
                self.hints_away += 1;
                // One who does not look keeps those that were taken back.
                self.has_sent |= self.hints_away > 2 * HINTS_MAX;
            }
            // Of a key so long that no entry has it, nothing is said.
            None if self.has_entry() => {}
            None => self.pass_by(now),
        }
        due
    }

    /// Says that something goes by the daemon, for which there is no entry. Recvs are asked for at once for a while when that is heard.
    fn pass_by(&mut self, now: Tick) {
        if self.passes_until.is_none_or(|until| until <= now) {
            self.passes_until = Some(now.later(LANE_PATIENCE / 2));
            self.ends.pass_by();
            self.has_sent = true;
        }
    }

    fn is_told(&self, (_, entry, number): &(Tick, u16, u32)) -> bool {
        let sent = self.sent[usize::from(*entry)];
        sent.is_hint() && sent.bytes == *number && self.ends.sender.is_away(*entry)
    }

    /// Takes back the hint that was given first.
    fn end_hint(&mut self) {
        if let Some(hint) = self.hints.pop_front()
            && self.is_told(&hint)
        {
            self.ends.sender.withdraw(hint.1);
        }
    }

    /// Takes back those that nobody has needed.
    pub(super) fn end_hints(&mut self, now: Tick) {
        while self.hints.front().is_some_and(|(due, ..)| *due <= now) {
            self.end_hint();
        }
    }

    /// True if the other side has said something.
    #[inline]
    pub(super) fn has_news(&self) -> bool {
        self.ends.has_news() || self.ends.passed_by() != self.passed_by
    }

    /// True if the other side has had no entry for something since this was asked. Recvs are asked for at once for a while then.
    #[inline]
    pub(super) fn was_passed_by(&mut self) -> bool {
        let passed_by = self.ends.passed_by();
        let was = std::mem::replace(&mut self.passed_by, passed_by) != passed_by;
        if was {
            self.by_daemon_until = Some(Tick::now().later(LANE_PATIENCE));
        }
        was
    }

    /// True if a recv is asked for at once, as its tensor may have gone by the daemon.
    #[inline]
    pub(super) fn is_passed_by(&self, now: Tick) -> bool {
        self.by_daemon_until.is_some_and(|until| until > now)
    }

    /// A tensor was sent, and goes by the daemon if it is not received by `due`. Of those that were, the first are forgotten.
    #[inline]
    pub(super) fn has_gone(&mut self, entry: u16, sent: Sent, due: Tick, is_away: impl FnMut(u32) -> bool) {
        self.sent[usize::from(entry)] = sent;
        queue(&mut self.pending, (due, sent.call), is_away);
    }

    /// A recv begins to wait now that must have ended by then. When the daemon is to be asked at the latest.
    #[inline]
    pub(super) fn waits(&mut self, call: u32, now: Tick, deadline: Tick, waits: impl FnMut(u32) -> bool) -> Tick {
        let due = now.later(ASK_AFTER).min(now.halfway(deadline));
        queue(&mut self.quiet, (due, call), waits);
        // Another thread of this process may be asleep.
        self.say_awaits(true);
        due.later(LANES_LOOK).min(now.halfway(deadline))
    }

    /// Tells the other side whether somebody waits here for what it sends.
    #[inline]
    pub(super) fn say_awaits(&mut self, awaits: bool) {
        if std::mem::replace(&mut self.awaits, awaits) != awaits {
            self.ends.say_awaits(awaits);
        }
    }

    /// A tensor of so many bytes has come.
    #[inline]
    pub(super) fn has_come(&mut self, bytes: usize) {
        (self.came.tensors, self.came.bytes) = (self.came.tensors + 1, self.came.bytes + bytes as u64);
    }
}

/// Puts a call where it is due, most often behind all others, and takes out the first that do not wait any more.
#[inline]
fn queue(calls: &mut VecDeque<(Tick, u32)>, call: (Tick, u32), mut waits: impl FnMut(u32) -> bool) {
    while calls.front().is_some_and(|(_, first)| !waits(*first)) {
        calls.pop_front();
    }
    // Where the first waits long, because the daemon does not read: amortised, those behind it cost nothing.
    if calls.len() >= 2 * LANE_ENTRIES && calls.len().is_power_of_two() {
        calls.retain(|(_, call)| waits(*call));
    }
    if calls.back().is_none_or(|(last, _)| *last <= call.0) {
        return calls.push_back(call);
    }
    let place = calls.partition_point(|(due, _)| *due <= call.0);
    calls.insert(place, call);
}
