//! The consumer's numbered log of releases: kept until the producer acknowledges them, sent again on a new link.

use std::collections::VecDeque;

use crate::arena::Handle;
use crate::limits::{AHEAD_RELEASES_PER_FRAME, RELEASE_LOG_MAX, RELEASES_PER_FRAME};
use crate::outbox::Outbox;
use crate::wire::{AheadEnd, Fate};

#[derive(Clone, Copy)]
enum Entry {
    /// A requested tensor, and whether it was taken.
    Response(Handle, bool),
    /// Tensors that were sent ahead.
    Ahead(AheadEnd),
}

impl Entry {
    fn response(&self) -> Option<(Handle, bool)> {
        match *self {
            Entry::Response(token, taken) => Some((token, taken)),
            Entry::Ahead(_) => None,
        }
    }

    fn ahead(&self) -> Option<AheadEnd> {
        match *self {
            Entry::Ahead(end) => Some(end),
            Entry::Response(..) => None,
        }
    }
}

#[derive(Default)]
pub(super) struct ReleaseLog {
    entries: VecDeque<Entry>,
    /// Number of the first entry.
    first: u64,
    /// Number of entries at the front that were sent on this link.
    sent: usize,
    /// Number behind the last entry sent on any link: the producer may acknowledge what it saw on earlier links.
    told: u64,
}

impl ReleaseLog {
    pub(super) fn push(&mut self, token: Handle, taken: bool) {
        self.entries.push_back(Entry::Response(token, taken));
    }

    /// Logs `count` tensors that were sent ahead: usually they follow the last ones logged.
    #[inline]
    pub(super) fn push_ahead(&mut self, first: u64, count: u32, fate: Fate) {
        if self.has_unsent()
            && let Some(Entry::Ahead(last)) = self.entries.back_mut()
            && (last.first + u64::from(last.count), last.fate) == (first, fate)
            && last.count < u32::MAX - count
        {
            last.count += count;
            return;
        }
        self.entries.push_back(Entry::Ahead(AheadEnd { first, count, fate }));
    }

    pub(super) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    pub(super) fn is_full(&self) -> bool {
        self.entries.len() >= RELEASE_LOG_MAX
    }

    /// True if the log holds more than honest answers can have put there; at most `requests` of them may be unrequested.
    pub(super) fn is_flooded(&self, requests: usize) -> bool {
        self.entries.len() >= RELEASE_LOG_MAX + requests
    }

    pub(super) fn has_unsent(&self) -> bool {
        self.sent < self.entries.len()
    }

    /// Stages one frame of releases, all of one kind.
    pub(super) fn stage(&mut self, outbox: &mut Outbox) {
        let sequence = self.first + self.sent as u64;
        let unsent = self.entries.range(self.sent..);
        self.sent += match unsent.clone().next() {
            Some(Entry::Ahead(_)) => {
                let ends = unsent.take(AHEAD_RELEASES_PER_FRAME).map_while(Entry::ahead);
                let count = ends.clone().count();
                outbox.stage(|writer| writer.ahead_release(sequence, ends));
                count
            }
            _ => {
                let entries = unsent.take(RELEASES_PER_FRAME).map_while(Entry::response);
                let count = entries.clone().count();
                outbox.stage(|writer| writer.release(sequence, entries));
                count
            }
        };
        self.told = self.told.max(self.first + self.sent as u64);
    }

    /// The producer has seen all releases before `sequence`; false if that is impossible.
    pub(super) fn acknowledge(&mut self, sequence: u64) -> bool {
        let Some(count) = sequence.checked_sub(self.first) else { return true };
        if sequence > self.told {
            return false;
        }
        self.entries.drain(..count as usize);
        self.first = sequence;
        self.sent = self.sent.saturating_sub(count as usize);
        true
    }

    /// The link is gone: all that was not acknowledged is sent again.
    pub(super) fn rewind(&mut self) {
        self.sent = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_an_earlier_link_brought_may_be_acknowledged_before_it_has_gone_out_on_this_one() {
        let (mut log, mut outbox) = (ReleaseLog::default(), Outbox::default());
        // The two kinds are sent in frames of their own; this link takes only the first frame.
        for number in 0..4 {
            log.push(Handle::from_bits(number), true);
            log.push_ahead(number, 1, Fate::Taken);
        }
        (0..8).for_each(|_| log.stage(&mut outbox));
        log.rewind();
        log.stage(&mut outbox);
        assert!(log.acknowledge(6), "the producer saw them on the link before");
        assert_eq!((log.first, log.sent, log.entries.len()), (6, 0, 2));
        assert!(!log.acknowledge(9), "what was never sent cannot have been seen");
        log.push(Handle::from_bits(9), true);
        log.stage(&mut outbox);
        assert!(!log.acknowledge(9) && log.acknowledge(7));
        (0..2).for_each(|_| log.stage(&mut outbox));
        assert!(log.acknowledge(9) && log.is_empty());
    }
}
