//! One stream of pushes into a queue of the peer: its pushes in order, which of them were sent, and the credit from the
//! peer.

use std::collections::VecDeque;
use std::time::Instant;

use super::batch::Batch;
use crate::arena::Handle;
use crate::limits::INLINE_PAYLOAD_BYTES;
use crate::outbox::{Outbox, Owner, Unreadable};
use crate::payload::{Meta, Payload};
use crate::wire::{Push, PushOpen, PushWant};

/// How many pushes are looked at to tell the peer how much credit a stream wants.
const WANTED_PUSHES_MAX: usize = 64;

/// The owner's value with the number of its pushes that were taken, and memory that is free now.
pub(super) type Taken<D> = (Option<(D, u32)>, Option<Vec<u8>>);

/// One push, or several small ones made together and sent together.
pub(super) struct Entry<D> {
    /// Number of its first push; the largest possible for one never sent on any link.
    pub(super) number: u64,
    pub(super) what: What,
    pub(super) bytes: u64,
    pub(super) since: Instant,
    pub(super) deadline: Instant,
    /// `None` once its end was reported.
    pub(super) pending: Option<D>,
}

pub(super) enum What {
    /// The payload is `None` while the outbox or the link has it.
    One(Meta, Option<Payload>),
    Many(Batch),
}

impl<D> Entry<D> {
    /// Number of pushes in it.
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

    /// Ends it, if it has not ended: returns the owner's value, and the number of pushes.
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
    /// Number of the next push to send on this link.
    pub(super) next: u64,
    /// Number of the first push never sent on any link.
    pub(super) left: u64,
    /// Number of the first push that is not tried.
    pub(super) fresh: u64,
    /// Number of entries at the front that were sent on this link.
    pub(super) sent: usize,
    /// Number of entries at the front that were sent on any link: they may have been taken. A batch counts as tried from the
    /// start.
    pub(super) tried: usize,
    /// Bytes of all pushes before the first entry.
    pub(super) bytes_before: u64,
    /// Bytes of the entries sent on this link.
    pub(super) bytes_sent: u64,
    /// Bytes of the tried entries behind them: on a link these are batches, which are sent next.
    pub(super) bytes_ready: u64,
    pub(super) granted_messages: u64,
    pub(super) granted_bytes: u64,
    /// The credit in bytes that the next push waits for, as last told to the peer on this link.
    pub(super) wanted_bytes: u64,
    /// The peer knows of the stream on this link.
    pub(super) told: bool,
    /// The peer was told of the stream on some link: it keeps the stream until it learns of its end.
    pub(super) known: bool,
    pub(super) queued: bool,
    /// Its task is gone: the stream ends with its last entry.
    pub(super) closing: bool,
    /// Nobody accepts: nothing is sent before the next grant.
    pub(super) paused: bool,
    /// The push that is being sent in chunks: later ones wait until its last chunk was sent, since pushes arrive in order.
    pub(super) overtaken: Option<u64>,
}

impl<D: Clone> Stream<D> {
    /// True if the next push may leave.
    #[inline]
    pub(super) fn may_send(&self) -> bool {
        self.bytes_needed() <= self.granted_bytes && self.is_next_due()
    }

    /// True if the next push may be sent, credit in bytes aside.
    #[inline]
    pub(super) fn is_next_due(&self) -> bool {
        self.next < self.granted_messages && !self.paused && self.overtaken.is_none() && self.has_next()
    }

    /// The credit in bytes that the next push needs, counted from the stream's beginning. For a small push a single byte, since
    /// it is copied on arrival; for a larger one all its bytes, so that the peer has memory for it.
    #[inline]
    pub(super) fn bytes_needed(&self) -> u64 {
        let before = self.bytes_before + self.bytes_sent;
        match self.entries.get(self.sent) {
            Some(Entry { what: What::One(..), bytes, .. }) if *bytes > INLINE_PAYLOAD_BYTES as u64 => before + bytes,
            _ => before + 1,
        }
    }

    /// True if the peer must be told that the next push waits for more credit in bytes than the stream has.
    pub(super) fn wants(&self) -> bool {
        let needed = self.bytes_needed();
        needed > self.granted_bytes && needed != self.wanted_bytes && self.told && self.is_next_due()
    }

    /// True if a push made now, within credit, would be the next to be sent.
    #[inline]
    pub(super) fn is_open(&self) -> bool {
        self.told && !self.paused && self.overtaken.is_none() && self.tried == self.entries.len()
    }

    /// True if there is a push that was not sent, or that must be sent again and has come back from the link.
    #[inline]
    pub(super) fn has_next(&self) -> bool {
        self.entries.get(self.sent).is_some_and(|entry| !entry.is_out())
    }

    /// A stream that has to begin anew had no push taken, so its pushes are treated as never sent. But what the link still has
    /// is found by its number. Returns how many entries were removed because they had already ended.
    pub(super) fn count_tried_anew(&mut self) -> usize {
        let out = self.entries.iter().take(self.tried).rposition(Entry::is_out);
        let were_tried = std::mem::replace(&mut self.tried, out.map_or(0, |last| last + 1));
        self.fresh = self.first + self.tried as u64;
        self.left = self.left.min(self.fresh);
        self.bytes_ready = self.entries.range(self.sent..self.tried).map(|entry| entry.bytes).sum();
        let (tried, before) = (self.tried, self.entries.len());
        // Those behind them stay unchanged.
        let were_tried: Vec<_> = self.entries.drain(..were_tried).collect();
        for (index, mut entry) in were_tried.into_iter().enumerate().rev() {
            if index >= tried {
                entry.number = u64::MAX;
                if let What::One(_, Some(payload)) = &mut entry.what {
                    // The next copy may fail, and its number then goes to another push.
                    payload.drop_host_copy();
                }
            }
            if index < tried || entry.pending.is_some() {
                self.entries.push_front(entry);
            }
        }
        before - self.entries.len()
    }

    /// The entry of a push that was sent, by its number.
    pub(super) fn tried_entry(&mut self, number: u64) -> Option<&mut Entry<D>> {
        let after = self.entries.partition_point(|entry| entry.number <= number);
        let entry = self.entries.get_mut(after.checked_sub(1)?)?;
        (number < entry.number + u64::from(entry.count())).then_some(entry)
    }

    /// What has to be sent again is split into single pushes: the next link, or the next grant, may allow some of them and not
    /// others.
    #[cold]
    pub(super) fn unpack(&mut self) {
        // Batches are tried from the start.
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

    /// Nothing has been sent on this link.
    pub(super) fn begin_again(&mut self) {
        self.bytes_ready += std::mem::take(&mut self.bytes_sent);
        (self.sent, self.next) = (0, self.first);
    }

    /// True if the next push leaves in chunks, and too many already do.
    pub(super) fn is_held_back(&self, outbox: &Outbox) -> bool {
        let next_bytes = self.entries.get(self.sent).map_or(0, |entry| entry.bytes as usize);
        self.told && self.may_send() && outbox.is_overtaken(next_bytes) && !outbox.has_room_for_push()
    }

    pub(super) fn has_output(&self) -> bool {
        (!self.told && !self.entries.is_empty()) || self.may_send() || self.wants()
    }

    /// Stages the stream's next frame, unless the link cannot read the next push.
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

    /// Makes sure that any link can read the next push. A host copy of device memory is kept until the push has ended: when the
    /// push is sent again, on another link, no copy can fail and leave a gap in the numbers.
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

    /// Removes the next push, which was never sent.
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

    /// Removes the first entry, which the peer has taken, or up to `most` of its pushes; `None` if there is none.
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
