//! One stream of pushes into a queue of the peer: its pushes in order, what of them has left, and what the peer has given credit for.

use std::collections::VecDeque;
use std::time::Instant;

use super::batch::Batch;
use crate::arena::Handle;
use crate::limits::INLINE_PAYLOAD_BYTES;
use crate::outbox::{Outbox, Owner, Unreadable};
use crate::payload::{Meta, Payload};
use crate::wire::{Push, PushOpen, PushWant};

/// Pushes that are looked at to tell the peer how much a stream wants.
const WANTED_PUSHES_MAX: usize = 64;

/// Who waits for how many pushes that were taken, and memory that is free.
pub(super) type Taken<D> = (Option<(D, u32)>, Option<Vec<u8>>);

/// One push, or several small ones that were made together and leave together.
pub(super) struct Entry<D> {
    /// Number of the first of them; of what went out on no link the largest there is.
    pub(super) number: u64,
    pub(super) what: What,
    pub(super) bytes: u64,
    pub(super) since: Instant,
    pub(super) deadline: Instant,
    /// `None` once its end was told.
    pub(super) pending: Option<D>,
}

pub(super) enum What {
    /// The payload is `None` while the outbox or the link has it.
    One(Meta, Option<Payload>),
    Many(Batch),
}

impl<D> Entry<D> {
    /// How many pushes it is.
    #[inline]
    pub(super) fn count(&self) -> u32 {
        match &self.what {
            What::One(..) => 1,
            What::Many(batch) => batch.count(),
        }
    }

    /// True while the outbox or the link has the payload.
    #[inline]
    pub(super) fn is_out(&self) -> bool {
        matches!(self.what, What::One(_, None))
    }

    /// Ends it, if it has not ended: who waits, and for how many pushes.
    #[inline]
    pub(super) fn end(&mut self) -> Option<(D, u32)> {
        let count = self.count();
        self.pending.take().map(|pending| (pending, count))
    }
}

pub(super) struct Stream<D> {
    pub(super) from: u16,
    pub(super) to: u32,
    pub(super) queue: Box<str>,
    pub(super) entries: VecDeque<Entry<D>>,
    /// Number of the first push that was not taken.
    pub(super) first: u64,
    /// Number of the next push to leave on this link.
    pub(super) next: u64,
    /// Number of the first push that went out on no link.
    pub(super) left: u64,
    /// Number of the first push that is not tried.
    pub(super) fresh: u64,
    /// Entries at the front that went out on this link.
    pub(super) sent: usize,
    /// Entries at the front that went out on any link: they may have been taken. Several in one are such from the start.
    pub(super) tried: usize,
    /// Bytes of all pushes before the first entry.
    pub(super) bytes_before: u64,
    /// Bytes of the entries that went out on this link.
    pub(super) bytes_sent: u64,
    /// Bytes of those behind them that are tried: on a link they are several in one, which leave next.
    pub(super) bytes_ready: u64,
    pub(super) granted_messages: u64,
    pub(super) granted_bytes: u64,
    /// How much credit in bytes the peer was last told on this link that the next push waits for.
    pub(super) wanted_bytes: u64,
    /// The peer knows of it on this link.
    pub(super) told: bool,
    /// The peer was told of it on some link: it keeps it until it hears of its end.
    pub(super) known: bool,
    pub(super) queued: bool,
    /// Its task is gone: it ends with its last entry.
    pub(super) closing: bool,
    /// Nobody accepts: nothing leaves before the next grant.
    pub(super) paused: bool,
    /// The push that leaves in chunks: those behind it wait until the last has left, since pushes arrive in order.
    pub(super) overtaken: Option<u64>,
}

impl<D: Clone> Stream<D> {
    /// True if the next push may leave.
    #[inline]
    pub(super) fn may_send(&self) -> bool {
        self.bytes_needed() <= self.granted_bytes && self.is_next_due()
    }

    /// True if the next push may leave but for its bytes.
    #[inline]
    pub(super) fn is_next_due(&self) -> bool {
        self.next < self.granted_messages && !self.paused && self.overtaken.is_none() && self.has_next()
    }

    /// How much credit in bytes the next push needs, since the stream began: of a small one a single byte, since it is copied where
    /// it arrives, of a larger one all, so that the peer has memory for it.
    #[inline]
    pub(super) fn bytes_needed(&self) -> u64 {
        let before = self.bytes_before + self.bytes_sent;
        match self.entries.get(self.sent) {
            Some(Entry { what: What::One(..), bytes, .. }) if *bytes > INLINE_PAYLOAD_BYTES as u64 => before + bytes,
            _ => before + 1,
        }
    }

    /// True if the peer is to be told that the next push waits for more credit in bytes than the stream has.
    pub(super) fn wants(&self) -> bool {
        let needed = self.bytes_needed();
        needed > self.granted_bytes && needed != self.wanted_bytes && self.told && self.is_next_due()
    }

    /// True if a push that is made now, and is in credit, would be the next to leave.
    #[inline]
    pub(super) fn is_open(&self) -> bool {
        self.told && !self.paused && self.overtaken.is_none() && self.tried == self.entries.len()
    }

    /// True if there is a push that has not left, or that is to leave again and has come back from the link.
    #[inline]
    pub(super) fn has_next(&self) -> bool {
        self.entries.get(self.sent).is_some_and(|entry| !entry.is_out())
    }

    /// Nothing of a stream that has to begin anew was taken, so that its pushes end as those that never left. But what the link
    /// still has is found by its number. How many are gone, since they had ended before.
    pub(super) fn count_tried_anew(&mut self) -> usize {
        let out = self.entries.iter().take(self.tried).rposition(Entry::is_out);
        let were_tried = std::mem::replace(&mut self.tried, out.map_or(0, |last| last + 1));
        self.fresh = self.first + self.tried as u64;
        self.left = self.left.min(self.fresh);
        self.bytes_ready = self.entries.range(self.sent..self.tried).map(|entry| entry.bytes).sum();
        let (tried, before) = (self.tried, self.entries.len());
        // Those behind them are as they were made.
        let were_tried: Vec<_> = self.entries.drain(..were_tried).collect();
        for (index, mut entry) in were_tried.into_iter().enumerate().rev() {
            if index >= tried {
                entry.number = u64::MAX;
                if let What::One(_, Some(payload)) = &mut entry.what {
                    // Its next copy may fail: its number is another's then.
                    payload.drop_host_copy();
                }
            }
            if index < tried || entry.pending.is_some() {
                self.entries.push_front(entry);
            }
        }
        before - self.entries.len()
    }

    /// The entry of a push that went out, by its number.
    pub(super) fn tried_entry(&mut self, number: u64) -> Option<&mut Entry<D>> {
        let after = self.entries.partition_point(|entry| entry.number <= number);
        let entry = self.entries.get_mut(after.checked_sub(1)?)?;
        (number < entry.number + u64::from(entry.count())).then_some(entry)
    }

    /// What has to leave again goes each by itself: the next link, or the next grant, may let some of them go and others not.
    #[cold]
    pub(super) fn unpack(&mut self) {
        // Several in one are tried from the start.
        if !self.entries.range(..self.tried).any(|entry| matches!(entry.what, What::Many(_))) {
            return;
        }
        let mut number = self.first;
        let mut single = Vec::with_capacity((self.fresh - self.first) as usize);
        for entry in self.entries.drain(..self.tried) {
            match &entry.what {
                What::One(..) => single.push(entry),
                What::Many(batch) => single.extend(batch.unpack(&entry)),
            }
        }
        single.into_iter().rev().for_each(|entry| self.entries.push_front(entry));
        (self.sent, self.tried) = ((self.next - self.first) as usize, (self.fresh - self.first) as usize);
        for entry in self.entries.iter_mut().take(self.tried) {
            entry.number = number;
            number += 1;
        }
    }

    /// Nothing has left on this link.
    pub(super) fn begin_again(&mut self) {
        self.bytes_ready += std::mem::take(&mut self.bytes_sent);
        (self.sent, self.next) = (0, self.first);
    }

    /// True if the next push leaves in chunks, and too many do.
    pub(super) fn is_held_back(&self, outbox: &Outbox) -> bool {
        let next_bytes = self.entries.get(self.sent).map_or(0, |entry| entry.bytes as usize);
        self.told && self.may_send() && outbox.is_overtaken(next_bytes) && !outbox.has_room_for_push()
    }

    pub(super) fn has_output(&self) -> bool {
        (!self.told && !self.entries.is_empty()) || self.may_send() || self.wants()
    }

    /// Stages the stream's next frame, unless the link cannot read the push that is next.
    pub(super) fn stage(
        &mut self,
        handle: Handle,
        to: u16,
        outbox: &mut Outbox,
        alone: bool,
    ) -> Result<(), Unreadable> {
        if !self.told {
            (self.told, self.known) = (true, true);
            let open = PushOpen { stream: handle, first: self.first, from: self.from, to, queue: &self.queue };
            outbox.stage(|writer| writer.push_open(&open));
            return Ok(());
        }
        if !self.may_send() {
            let least = self.bytes_needed();
            let following = self.entries.iter().skip(self.sent + 1).take(WANTED_PUSHES_MAX);
            let all = least + following.map(|entry| entry.bytes).sum::<u64>();
            self.wanted_bytes = least;
            outbox.stage(|writer| writer.push_want(&PushWant { stream: handle, least, all }));
            return Ok(());
        }
        let number = self.next;
        if alone && matches!(self.entries[self.sent].what, What::Many(_)) {
            self.unpack();
        }
        self.make_readable(outbox)?;
        let entry = &mut self.entries[self.sent];
        if let What::One(meta, place) = &mut entry.what
            && entry.bytes as usize > INLINE_PAYLOAD_BYTES
        {
            let payload_bytes = entry.bytes;
            let payload = place.take().expect("it is sent once a link, and comes back between");
            self.overtaken = outbox.is_overtaken(payload.len()).then_some(number);
            outbox.post((Owner::Push { stream: handle, number }, Handle::NONE), payload, |writer, transfer| {
                writer.push(&Push { stream: handle, number, payload_bytes, transfer, meta });
            });
            self.count_sent();
            return Ok(());
        }
        let before = self.next;
        outbox.stage(|writer| {
            let mut group = writer.pushes(handle, number);
            let mut first = true;
            while self.may_send() {
                let fits = match &self.entries[self.sent].what {
                    What::One(meta, payload) => {
                        let payload = payload.as_ref().expect("small payloads stay");
                        let Some(payload) = payload.host_bytes() else { break };
                        let fits = payload.len() <= INLINE_PAYLOAD_BYTES && !group.is_full(meta.len() + payload.len());
                        if first || fits && !alone {
                            group.push(meta, payload);
                        }
                        fits && !alone
                    }
                    What::Many(batch) => {
                        let records = batch.records();
                        let fits = !group.is_full(records.as_bytes().len());
                        if first || fits {
                            group.extend(records);
                        }
                        fits
                    }
                };
                if !first && !fits {
                    break;
                }
                first = false;
                self.count_sent();
            }
            group.end();
        });
        outbox.count_small(self.next - before);
        Ok(())
    }

    /// Makes sure that any link can read the next push. What is read in place of a device's memory stays until the push has ended:
    /// when the push leaves again, on another link, no copy can fail that leaves a gap in the numbers.
    #[inline]
    pub(super) fn make_readable(&mut self, outbox: &mut Outbox) -> Result<(), Unreadable> {
        let What::One(_, payload) = &mut self.entries[self.sent].what else { return Ok(()) };
        let payload = payload.as_mut().expect("it is sent once a link, and comes back between");
        if payload.host_bytes().is_some() {
            return Ok(());
        }
        debug_assert_eq!(self.sent, self.tried, "a copy was dropped too early");
        outbox.copy_to_host(payload)
    }

    /// Takes out the push that is next, which has never left.
    #[cold]
    pub(super) fn drop_next(&mut self) -> Entry<D> {
        debug_assert_eq!(self.sent, self.tried, "the peer would wait for its number");
        self.entries.remove(self.sent).expect("it is next")
    }

    pub(super) fn count_sent(&mut self) {
        let entry = &mut self.entries[self.sent];
        let (count, bytes) = (u64::from(entry.count()), entry.bytes);
        if self.sent == self.tried {
            entry.number = self.next;
            (self.tried, self.fresh) = (self.tried + 1, self.fresh + count);
        } else {
            self.bytes_ready -= bytes;
        }
        (self.sent, self.next, self.bytes_sent) = (self.sent + 1, self.next + count, self.bytes_sent + bytes);
        self.left = self.left.max(self.next);
    }

    /// Takes the first entry out, which the peer has taken, or up to `most` of its pushes: who waits for how many of them, and memory that
    /// is free. `None` if there is none.
    #[inline]
    pub(super) fn take_front(&mut self, most: u64) -> Option<Taken<D>> {
        if u64::from(self.entries.front()?.count()) > most {
            self.unpack();
        }
        let mut entry = self.entries.pop_front()?;
        let of = if self.sent > 0 { &mut self.bytes_sent } else { &mut self.bytes_ready };
        *of -= entry.bytes;
        (self.first, self.bytes_before) = (self.first + u64::from(entry.count()), self.bytes_before + entry.bytes);
        (self.sent, self.tried) = (self.sent.saturating_sub(1), self.tried - 1);
        let ended = entry.end();
        match entry.what {
            What::Many(batch) => Some((ended, Some(batch.into_memory()))),
            What::One(..) => Some((ended, None)),
        }
    }
}
