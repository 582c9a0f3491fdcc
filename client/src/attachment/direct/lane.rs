//! One lane, and what this process remembers of it.

use sealane_transport::shm::{ClientBell, DirectLane, LaneRecord, Moved, limits::LANE_ENTRIES};

use super::{due::Due, hints::Hints, rings::Rings, steps::Steps};
use crate::{
    attachment::calls::{Calls, Name},
    clock::Tick,
    limits::ENTRIES_FOR_ENDS,
};

pub(super) struct Lane {
    pub(super) peer: Box<str>,
    pub(super) ends: DirectLane,
    /// Rings for the other process.
    pub(super) bell: ClientBell,
    /// What was sent, by entry.
    pub(super) sent: Box<[Sent]>,
    /// What has come and waits for its recv, by entry.
    pub(super) kept: Box<[Option<Kept>]>,
    /// Sends that the other side may not have received, and when they are to go through the daemon.
    pub(super) pending: Due,
    /// Recvs that wait here, and when to ask the daemon for them.
    pub(super) quiet: Due,
    pub(super) hints: Hints,
    pub(super) rings: Rings,
    /// Steps that the other side has ended.
    pub(super) ended: Steps,
    /// Tensors and bytes in each direction since the daemon was told.
    pub(super) went: Moved,
    pub(super) came: Moved,
    /// The other side has a note to read, or a returned entry.
    pub(super) has_sent: bool,
    pub(super) has_returned: bool,
}

/// What this side has sent in an entry.
#[derive(Clone, Copy, Default)]
pub(super) struct Sent {
    pub(super) call: u32,
    pub(super) bytes: u32,
    pub(super) step: i64,
}

impl Sent {
    /// Stands for the end of a step: no call waits for it.
    pub(super) const NO_TENSOR: Sent = Sent { call: u32::MAX, bytes: 0, step: 0 };

    /// A hint that a tensor of a step goes through the daemon; `number` counts hints, and takes the place of the bytes.
    pub(super) fn hint(number: u32, step: i64) -> Sent {
        Sent { call: u32::MAX - 1, bytes: number, step }
    }

    pub(super) fn is_hint(&self) -> bool {
        self.call == u32::MAX - 1
    }

    /// True if a call waits for its end.
    pub(super) fn is_tensor(&self) -> bool {
        self.call < u32::MAX - 1
    }
}

/// A tensor that waits for its recv, or, if it `is_hint`, one that goes through the daemon.
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
            pending: Due::default(),
            quiet: Due::default(),
            hints: Hints::default(),
            rings: Rings::default(),
            ended: Steps::default(),
            went: Moved::default(),
            came: Moved::default(),
            has_sent: false,
            has_returned: false,
        }
    }

    /// Publishes what was sent and settled since the last call, and wakes the other process if it sleeps and has something to read.
    #[inline]
    pub(super) fn ring(&mut self) {
        self.ends.sender.publish();
        self.ends.receiver.publish();
        let (has_sent, has_returned) = (std::mem::take(&mut self.has_sent), std::mem::take(&mut self.has_returned));
        let has_sent = has_sent | self.hints.take_wanted(&self.ends);
        let sleep = self.ends.other_sleep();
        let must_ring = match has_sent {
            true => sleep.must_ring(),
            false => has_returned && sleep.must_ring_if_light(),
        };
        if must_ring {
            self.bell.ring();
        }
    }

    /// Leaves the lane because this task goes, and tells the other side.
    pub(super) fn leave(&mut self) {
        self.ends.leave();
        self.bell.ring();
    }

    /// Gives this lane up, and tells the other side.
    pub(super) fn abandon(&mut self) {
        self.ends.abandon();
        self.bell.ring();
    }

    /// Sends a record; its entry, if one was free.
    #[inline]
    pub(super) fn send(&mut self, record: &LaneRecord<'_>) -> Option<u16> {
        let entry = self.ends.sender.send(record)?;
        self.has_sent = true;
        Some(entry)
    }

    /// True if an entry is free for a tensor; the last ones are reserved for the ends of steps.
    #[inline]
    pub(super) fn has_entry(&self) -> bool {
        self.ends.sender.away() < LANE_ENTRIES - ENTRIES_FOR_ENDS
    }

    /// Sends a tensor, if an entry is free for it.
    #[inline]
    pub(super) fn send_tensor(&mut self, record: &LaneRecord<'_>) -> Option<u16> {
        if self.has_entry() { self.send(record) } else { None }
    }

    /// True if the other side has sent something.
    #[inline]
    pub(super) fn has_news(&self) -> bool {
        self.ends.has_news() || self.hints.are_passed_by(&self.ends)
    }

    /// Notes a sent tensor, which goes through the daemon if it is not received by `due`.
    ///
    /// Inline: else `sent` is spilled in parts and loaded as a whole, a failed store-to-load forward, which waits for the stores into the
    /// lane.
    #[inline(always)]
    pub(super) fn has_gone(&mut self, entry: u16, sent: Sent, due: Tick) {
        self.sent[usize::from(entry)] = sent;
        self.pending.push(due, sent.call);
    }

    /// The first send that is to go through the daemon: when, and its entry.
    pub(super) fn first_pending(&mut self, lane: u16, calls: &mut Calls) -> Option<(Tick, u16)> {
        while let Some((due, call)) = self.pending.first() {
            match calls.sent_by(call) {
                Some((of, entry)) if of == lane => return Some((due, entry)),
                _ => self.pending.pop(),
            }
        }
        None
    }

    /// Counts a tensor of so many bytes that has come.
    #[inline]
    pub(super) fn has_come(&mut self, bytes: usize) {
        (self.came.tensors, self.came.bytes) = (self.came.tensors + 1, self.came.bytes + bytes as u64);
    }
}
