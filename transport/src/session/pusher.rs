//! The pushing half of a session: streams of tensors into the peer's queues. Every push is numbered and kept until the peer has
//! taken it.

mod batch;
#[cfg(feature = "fuzzing")]
mod invariants;

use std::collections::VecDeque;
use std::time::Instant;

use hashbrown::HashMap;

use super::control::{Control, ControlQueue};
use super::{Awaited, Event, Roster, Session};
use crate::arena::{Arena, Handle};
use crate::error::{Code, Error, Late, Operation};
use crate::limits::{BATCHED_TENSOR_BYTES, INLINE_PAYLOAD_BYTES, KEY_BYTES_MAX, STREAMS_MAX, SessionLimits};
use crate::outbox::{Outbox, Owner, Unreadable};
use crate::payload::Meta;
use crate::payload::Payload;
use crate::tensor::{Pushable, Tensor};
use crate::wire::{Push, PushFailure, PushGrant, PushOpen, PushRecordsBuf, PushWant, WireError};
use batch::Batch;

/// A push: what, and until when.
#[derive(Debug)]
pub struct PushAsk<D> {
    /// The stream, from [`Session::stream`].
    pub stream: Handle,
    /// The tensor's metadata.
    pub meta: Meta,
    /// Its bytes.
    pub payload: Payload,
    /// When it ends with DeadlineExceeded, if it has not been taken.
    pub deadline: Instant,
    /// Comes back with the end.
    pub deposit: D,
}

/// Streams whose end is told again on the next link, although it was told on the last: far more than end within what a link may
/// hold that never arrives.
const TOLD_AGAIN_MAX: usize = 1024;

/// Pushes that are looked at to tell the peer how much a stream wants.
const WANTED_PUSHES_MAX: usize = 64;

/// One push, or several small ones that were made together and leave together.
struct Entry<D> {
    /// Number of the first of them; of what went out on no link the largest there is.
    number: u64,
    what: What,
    bytes: u64,
    since: Instant,
    deadline: Instant,
    /// `None` once its end was told.
    deposit: Option<D>,
}

enum What {
    /// The payload is `None` while the outbox or the link has it.
    One(Meta, Option<Payload>),
    Many(Batch),
}

impl<D> Entry<D> {
    /// How many pushes it is.
    #[inline]
    fn count(&self) -> u32 {
        match &self.what {
            What::One(..) => 1,
            What::Many(batch) => batch.count(),
        }
    }

    /// True while the outbox or the link has the payload.
    #[inline]
    fn is_out(&self) -> bool {
        matches!(self.what, What::One(_, None))
    }

    /// Ends it, if it has not ended: who waits, and for how many pushes.
    #[inline]
    fn end(&mut self) -> Option<(D, u32)> {
        let count = self.count();
        self.deposit.take().map(|deposit| (deposit, count))
    }
}

struct Stream<D> {
    from: u16,
    to: u32,
    queue: Box<str>,
    entries: VecDeque<Entry<D>>,
    /// Number of the first push that was not taken.
    first: u64,
    /// Number of the next push to leave on this link.
    next: u64,
    /// Number of the first push that went out on no link.
    left: u64,
    /// Number of the first push that is not tried.
    fresh: u64,
    /// Entries at the front that went out on this link.
    sent: usize,
    /// Entries at the front that went out on any link: they may have been taken. Several in one are such from the start.
    tried: usize,
    /// Bytes of all pushes before the first entry.
    bytes_before: u64,
    /// Bytes of the entries that went out on this link.
    bytes_sent: u64,
    /// Bytes of those behind them that are tried: on a link they are several in one, which leave next.
    bytes_ready: u64,
    granted_messages: u64,
    granted_bytes: u64,
    /// How much credit in bytes the peer was last told on this link that the next push waits for.
    wanted_bytes: u64,
    /// The peer knows of it on this link.
    told: bool,
    /// The peer was told of it on some link: it keeps it until it hears of its end.
    known: bool,
    queued: bool,
    /// Its task is gone: it ends with its last entry.
    closing: bool,
    /// Nobody accepts: nothing leaves before the next grant.
    paused: bool,
    /// The push that leaves in chunks: those behind it wait until the last has left, since pushes arrive in order.
    overtaken: Option<u64>,
}

impl<D: Clone> Stream<D> {
    /// True if the next push may leave.
    #[inline]
    fn may_send(&self) -> bool {
        self.bytes_needed() <= self.granted_bytes && self.is_next_due()
    }

    /// True if the next push may leave but for its bytes.
    #[inline]
    fn is_next_due(&self) -> bool {
        self.next < self.granted_messages && !self.paused && self.overtaken.is_none() && self.has_next()
    }

    /// How much credit in bytes the next push needs, since the stream began: of a small one a single byte, since it is copied where
    /// it arrives, of a larger one all, so that the peer has memory for it.
    #[inline]
    fn bytes_needed(&self) -> u64 {
        let before = self.bytes_before + self.bytes_sent;
        match self.entries.get(self.sent) {
            Some(Entry { what: What::One(..), bytes, .. }) if *bytes > INLINE_PAYLOAD_BYTES as u64 => before + bytes,
            _ => before + 1,
        }
    }

    /// True if the peer is to be told that the next push waits for more credit in bytes than the stream has.
    fn wants(&self) -> bool {
        let needed = self.bytes_needed();
        needed > self.granted_bytes && needed != self.wanted_bytes && self.told && self.is_next_due()
    }

    /// True if a push that is made now, and is in credit, would be the next to leave.
    #[inline]
    fn is_open(&self) -> bool {
        self.told && !self.paused && self.overtaken.is_none() && self.tried == self.entries.len()
    }

    /// True if there is a push that has not left, or that is to leave again and has come back from the link.
    #[inline]
    fn has_next(&self) -> bool {
        self.entries.get(self.sent).is_some_and(|entry| !entry.is_out())
    }

    /// Nothing of a stream that has to begin anew was taken, so that its pushes end as those that never left. But what the link
    /// still has is found by its number. How many are gone, since they had ended before.
    fn count_tried_anew(&mut self) -> usize {
        let out = self.entries.iter().take(self.tried).rposition(Entry::is_out);
        self.tried = out.map_or(0, |last| last + 1);
        self.fresh = self.first + self.tried as u64;
        self.left = self.left.min(self.fresh);
        self.bytes_ready = self.entries.range(self.sent..self.tried).map(|entry| entry.bytes).sum();
        let (tried, before, mut index) = (self.tried, self.entries.len(), 0);
        self.entries.retain_mut(|entry| {
            index += 1;
            if index > tried {
                entry.number = u64::MAX;
                if let What::One(_, Some(payload)) = &mut entry.what {
                    // Its next copy may fail: its number is another's then.
                    payload.drop_host_copy();
                }
            }
            index <= tried || entry.deposit.is_some()
        });
        before - self.entries.len()
    }

    /// The entry of a push that went out, by its number.
    fn tried_entry(&mut self, number: u64) -> Option<&mut Entry<D>> {
        let after = self.entries.partition_point(|entry| entry.number <= number);
        let entry = self.entries.get_mut(after.checked_sub(1)?)?;
        (number < entry.number + u64::from(entry.count())).then_some(entry)
    }

    /// What has to leave again goes each by itself: the next link, or the next grant, may let some of them go and others not.
    #[cold]
    fn unpack(&mut self) {
        if !self.entries.iter().any(|entry| matches!(entry.what, What::Many(_))) {
            return;
        }
        let mut number = self.first;
        for entry in std::mem::take(&mut self.entries) {
            match &entry.what {
                What::One(..) => self.entries.push_back(entry),
                What::Many(batch) => self.entries.extend(batch.unpack(&entry)),
            }
        }
        (self.sent, self.tried) = ((self.next - self.first) as usize, (self.fresh - self.first) as usize);
        for entry in self.entries.iter_mut().take(self.tried) {
            entry.number = number;
            number += 1;
        }
    }

    /// Nothing has left on this link.
    fn begin_again(&mut self) {
        self.bytes_ready += std::mem::take(&mut self.bytes_sent);
        (self.sent, self.next) = (0, self.first);
    }

    /// True if the next push leaves in chunks, and too many do.
    fn is_held_back(&self, outbox: &Outbox) -> bool {
        let next_bytes = self.entries.get(self.sent).map_or(0, |entry| entry.bytes as usize);
        self.told && self.may_send() && outbox.is_overtaken(next_bytes) && !outbox.has_room_for_push()
    }

    fn has_output(&self) -> bool {
        (!self.told && !self.entries.is_empty()) || self.may_send() || self.wants()
    }
}

/// Who waits for how many pushes that were taken, and memory that is free.
type Taken<D> = (Option<(D, u32)>, Option<Vec<u8>>);

pub(super) struct Pusher<D> {
    streams: Arena<Stream<D>>,
    names: HashMap<(u16, u32, Box<str>), Handle>,
    to_send: VecDeque<Handle>,
    /// Those whose next push leaves in chunks, while too many do: the others pass them.
    held_back: VecDeque<Handle>,
    /// Those whose next push is in the memory of a device, and waits for memory to be copied to.
    starved: VecDeque<Handle>,
    /// Streams that have ended and that the peer knew. It is told again on the next link, since a link may take with it what
    /// was said last: of those that it was told on the current link, [`TOLD_AGAIN_MAX`].
    closed: VecDeque<Handle>,
    linked: bool,
    /// Pushes of all streams.
    pushes: usize,
    pushes_max: usize,
    earliest: Option<Instant>,
    /// Memory for the next pushes that are made together.
    spare: Option<Vec<u8>>,
}

/// The key of a stream, borrowed.
#[derive(Hash)]
struct QueueName<'a>(u16, u32, &'a str);

impl hashbrown::Equivalent<(u16, u32, Box<str>)> for QueueName<'_> {
    fn equivalent(&self, key: &(u16, u32, Box<str>)) -> bool {
        (self.0, self.1, self.2) == (key.0, key.1, &*key.2)
    }
}

/// How pushes that were made for one owner ended.
type Ends<'a, W, D> = &'a mut VecDeque<Event<W, D>>;

impl<D: PartialEq + Clone> Pusher<D> {
    pub(super) fn new(limits: &SessionLimits) -> Self {
        Self {
            streams: Arena::new(STREAMS_MAX),
            names: HashMap::new(),
            to_send: VecDeque::new(),
            held_back: VecDeque::new(),
            starved: VecDeque::new(),
            closed: VecDeque::new(),
            linked: false,
            pushes: 0,
            pushes_max: limits.queued_requests_max,
            earliest: None,
            spare: None,
        }
    }

    pub(super) fn pushes(&self) -> usize {
        self.pushes
    }

    /// True if no stream waits for its turn.
    #[inline]
    pub(super) fn is_idle(&self) -> bool {
        self.to_send.is_empty() && self.held_back.is_empty() && self.starved.is_empty()
    }

    pub(super) fn has_output(&self, outbox: &Outbox) -> bool {
        let is_fed = !self.starved.is_empty() && !outbox.awaits_copies();
        !self.to_send.is_empty() || !self.held_back.is_empty() || is_fed
    }

    pub(super) fn next_deadline(&self) -> Option<Instant> {
        self.earliest
    }

    fn queue(&mut self, handle: Handle) {
        if let Some(stream) = self.streams.get_mut(handle)
            && !stream.queued
            && stream.has_output()
        {
            stream.queued = true;
            self.to_send.push_back(handle);
        }
    }

    /// Stages the next frame of pushes; false if none may leave.
    pub(super) fn stage<W>(
        &mut self,
        roster: &Roster,
        outbox: &mut Outbox,
        alone: bool,
        events: Ends<'_, W, D>,
    ) -> bool {
        if !self.held_back.is_empty() && outbox.has_room_for_push() {
            self.to_send.extend(self.held_back.pop_front());
            self.to_send.rotate_right(1);
        }
        if !self.starved.is_empty() && !outbox.awaits_copies() {
            self.to_send.append(&mut self.starved);
        }
        while let Some(&handle) = self.to_send.front() {
            let stream = self.streams.get_mut(handle).expect("streams in the queue stand");
            let place = roster.place_of(stream.to);
            if let Some(to) = place
                && stream.has_output()
            {
                if stream.is_held_back(outbox) {
                    self.to_send.pop_front();
                    self.held_back.push_back(handle);
                    continue;
                }
                match stream.stage(handle, to, outbox, alone) {
                    Ok(()) => {}
                    Err(Unreadable::Waits) => {
                        self.to_send.pop_front();
                        self.starved.push_back(handle);
                        continue;
                    }
                    Err(Unreadable::Fails(error)) => {
                        self.pushes -= 1;
                        if let Some(deposit) = stream.drop_next().deposit {
                            events.push_back(Event::PushEnded { deposit, count: 1, outcome: Err(error) });
                        }
                        continue;
                    }
                }
                // The next stream's turn.
                self.to_send.rotate_left(1);
                return true;
            }
            stream.queued = false;
            self.to_send.pop_front();
        }
        false
    }

    /// A payload that the link is done with.
    pub(super) fn written(&mut self, handle: Handle, number: u64, payload: Payload) {
        let Some(stream) = self.streams.get_mut(handle) else { return };
        if let Some(Entry { what: What::One(_, place), .. }) = stream.tried_entry(number) {
            *place = Some(payload);
        }
        if stream.overtaken == Some(number) {
            stream.overtaken = None;
        }
        if stream.paused {
            self.pushes -= stream.count_tried_anew();
        }
        self.queue(handle);
    }

    /// Takes in what the peer has taken; an error if it cannot have.
    pub(super) fn granted<W>(&mut self, grant: &PushGrant, events: Ends<'_, W, D>) -> Result<(), WireError> {
        let Some(stream) = self.streams.get_mut(grant.stream) else { return Ok(()) };
        let count = grant.taken.saturating_sub(stream.first);
        if count > stream.left - stream.first {
            return Err(WireError::BadValue { what: "number of the pushes taken", found: grant.taken });
        }
        stream.paused = false;
        stream.granted_messages = stream.granted_messages.max(grant.messages);
        stream.granted_bytes = stream.granted_bytes.max(grant.bytes);
        let mut taken: Option<(D, u32)> = None;
        while stream.first < grant.taken {
            let Some((ended, memory)) = stream.take_front(grant.taken - stream.first) else { break };
            self.spare = memory.or(self.spare.take());
            match (&mut taken, ended) {
                (Some((deposit, count)), Some((next, more))) if *deposit == next => *count += more,
                (last, Some(next)) => {
                    if let Some((deposit, count)) = last.replace(next) {
                        events.push_back(Event::PushEnded { deposit, count, outcome: Ok(()) });
                    }
                }
                (_, None) => {}
            }
        }
        if let Some((deposit, count)) = taken {
            events.push_back(Event::PushEnded { deposit, count, outcome: Ok(()) });
        }
        stream.next = stream.next.max(stream.first);
        self.pushes -= count as usize;
        if self.pushes == 0 {
            self.earliest = None;
        }
        self.queue(grant.stream);
        Ok(())
    }

    pub(super) fn failed<W>(
        &mut self,
        failure: &PushFailure<'_>,
        peer: &str,
        events: Ends<'_, W, D>,
    ) -> Result<(), WireError> {
        if failure.code == Code::Unavailable as u8 {
            return self.rewind(failure.stream, failure.number, events);
        }
        let error = Error::from_wire(failure.code, peer, 0, failure.reason);
        if let Some(stream) = self.streams.get_mut(failure.stream)
            && failure.number == stream.first
            && stream.tried == 0
        {
            // The peer has not taken the stream in, and knows nothing of it: the next push opens it again.
            (stream.told, stream.known) = (false, false);
            self.pushes -= stream.entries.len();
            for deposit in stream.entries.drain(..).filter_map(|entry| entry.deposit) {
                events.push_back(Event::PushEnded { deposit, count: 1, outcome: Err(error.clone()) });
            }
            return Ok(());
        }
        if let Some(stream) = self.streams.get_mut(failure.stream).filter(|stream| failure.number < stream.left) {
            stream.unpack();
            if let Some((deposit, count)) = stream.tried_entry(failure.number).and_then(Entry::end) {
                events.push_back(Event::PushEnded { deposit, count, outcome: Err(error) });
            }
        }
        Ok(())
    }

    /// Nobody accepts from a queue any more: what came before `number` was taken, and all from there on goes again when there
    /// is a grant.
    fn rewind<W>(&mut self, handle: Handle, number: u64, events: Ends<'_, W, D>) -> Result<(), WireError> {
        self.granted(&PushGrant { stream: handle, taken: number, messages: 0, bytes: 0 }, events)?;
        if let Some(stream) = self.streams.get_mut(handle).filter(|stream| stream.first == number) {
            stream.unpack();
            stream.begin_again();
            (stream.paused, stream.wanted_bytes) = (true, 0);
            self.pushes -= stream.count_tried_anew();
        }
        Ok(())
    }

    /// The link is gone: what was not taken goes out again. The outbox has given every payload back.
    pub(super) fn suspend(&mut self) {
        self.linked = false;
        self.to_send.clear();
        self.held_back.clear();
        self.starved.clear();
        for (_, stream) in self.streams.iter_mut() {
            stream.unpack();
            stream.begin_again();
            (stream.told, stream.queued) = (false, false);
            (stream.overtaken, stream.paused, stream.wanted_bytes) = (None, false, 0);
        }
    }

    /// A link is up: the peer is told of streams that have ended, and of those that have something to push.
    pub(super) fn resume<W>(
        &mut self,
        (roster, tensor_bytes_max): (&Roster, u64),
        error: &Error,
        control: &mut ControlQueue,
        events: Ends<'_, W, D>,
    ) {
        self.linked = true;
        self.end_too_large(tensor_bytes_max, events);
        self.closed.iter().for_each(|stream| control.push(Control::PushClose(*stream)));
        self.end_those(|stream| roster.place_of(stream.to).is_none(), error, events);
        for handle in self.streams.select(|stream| !stream.entries.is_empty()) {
            self.queue(handle);
        }
    }

    /// Ends the pushes that have never left and that the peer would refuse: it would give no credit for them.
    fn end_too_large<W>(&mut self, limit: u64, events: Ends<'_, W, D>) {
        for (_, stream) in self.streams.iter_mut() {
            let (mut index, before) = (0, stream.entries.len());
            stream.entries.retain_mut(|entry| {
                index += 1;
                let stays = index <= stream.tried || entry.bytes <= limit;
                if !stays && let Some(deposit) = entry.deposit.take() {
                    let outcome = Err(too_large(entry.bytes, limit));
                    events.push_back(Event::PushEnded { deposit, count: 1, outcome });
                }
                stays
            });
            self.pushes -= before - stream.entries.len();
        }
    }

    /// The peer knows nothing of the streams any more: what it may have taken ends with `error`.
    pub(super) fn end_tried<W>(&mut self, error: &Error, control: &mut ControlQueue, events: Ends<'_, W, D>) {
        self.closed.clear();
        for (_, stream) in self.streams.iter_mut() {
            stream.known = false;
            debug_assert_eq!(stream.fresh - stream.first, stream.tried as u64, "there is no link: each is by itself");
            let tried = std::mem::take(&mut stream.tried);
            self.pushes -= tried;
            for deposit in stream.entries.drain(..tried).filter_map(|entry| entry.deposit) {
                events.push_back(Event::PushEnded { deposit, count: 1, outcome: Err(error.clone()) });
            }
            (stream.first, stream.next, stream.left, stream.fresh) = (0, 0, 0, 0);
            (stream.bytes_before, stream.bytes_ready) = (0, 0);
            (stream.granted_messages, stream.granted_bytes) = (0, 0);
            (stream.paused, stream.wanted_bytes) = (false, 0);
        }
        for handle in self.streams.select(|stream| stream.closing) {
            self.close_if_done(handle, control);
        }
    }

    fn end_those<W>(&mut self, mut pick: impl FnMut(&Stream<D>) -> bool, error: &Error, events: Ends<'_, W, D>) {
        for (_, stream) in self.streams.iter_mut() {
            if !pick(stream) {
                continue;
            }
            // What was sent keeps its number until the peer says that it was taken.
            for (deposit, count) in stream.entries.iter_mut().filter_map(Entry::end) {
                events.push_back(Event::PushEnded { deposit, count, outcome: Err(error.clone()) });
            }
            self.pushes -= stream.entries.len() - stream.tried;
            stream.entries.truncate(stream.tried);
        }
    }

    /// Ends the pushes of a task, of all tasks without one, and its streams when nothing of them is in flight.
    pub(super) fn end_of<W>(
        &mut self,
        from: Option<u16>,
        error: &Error,
        control: &mut ControlQueue,
        events: Ends<'_, W, D>,
    ) {
        let is_of = |stream: &Stream<D>| from.is_none_or(|from| stream.from == from);
        self.end_those(is_of, error, events);
        for handle in self.streams.select(is_of) {
            self.streams.get_mut(handle).expect("just selected").closing = true;
            self.close_if_done(handle, control);
        }
    }

    /// Ends a stream whose task is gone, once nothing of it is in flight.
    pub(super) fn close_if_done(&mut self, handle: Handle, control: &mut ControlQueue) {
        let is_done = |stream: &Stream<D>| stream.closing && stream.entries.is_empty();
        if !self.streams.get(handle).is_some_and(is_done) {
            return;
        }
        if let Some(stream) = self.streams.remove(handle) {
            self.names.remove(&(stream.from, stream.to, stream.queue));
            self.to_send.retain(|queued| *queued != handle);
            self.held_back.retain(|queued| *queued != handle);
            self.starved.retain(|queued| *queued != handle);
            if stream.known {
                self.closed.push_back(handle);
                if self.linked {
                    control.push(Control::PushClose(handle));
                    let said = self.closed.len().saturating_sub(TOLD_AGAIN_MAX);
                    self.closed.drain(..said);
                }
            }
        }
    }

    pub(super) fn expire<W>(&mut self, now: Instant, awaited: &Awaited<'_>, events: Ends<'_, W, D>) {
        if self.earliest.is_none_or(|earliest| earliest > now) {
            return;
        }
        let mut earliest: Option<Instant> = None;
        let mut changed = Vec::new();
        for (handle, stream) in self.streams.iter_mut() {
            let (tried, to, queue) = (stream.tried, stream.to, &stream.queue);
            let mut index = 0;
            let mut dropped = 0;
            stream.entries.retain_mut(|entry| {
                index += 1;
                if entry.deadline > now {
                    if entry.deposit.is_some() {
                        earliest = Some(earliest.map_or(entry.deadline, |earliest| earliest.min(entry.deadline)));
                    }
                    return true;
                }
                let stays = index <= tried;
                if let Some((deposit, count)) = entry.end() {
                    let waited = entry.deadline.saturating_duration_since(entry.since);
                    let missing = match stays {
                        true => "but it has not said that it took the tensor",
                        false => "but its queue had no room: nobody takes from it, or others were first",
                    };
                    let (operation, step, key, delivery_unknown) = (Operation::Push, 0, queue.clone(), stays);
                    let awaited = awaited.of(to, missing).into();
                    let late = Late { operation, step, key, waited, delivery_unknown, awaited };
                    let outcome = Err(late.into());
                    events.push_back(Event::PushEnded { deposit, count, outcome });
                }
                dropped += usize::from(!stays);
                stays
            });
            self.pushes -= dropped;
            if dropped > 0 {
                changed.push(handle);
            }
        }
        self.earliest = earliest;
        // The push that is next now may have the credit that the one before it waited for.
        if self.linked {
            changed.into_iter().for_each(|handle| self.queue(handle));
        }
    }

    /// Takes out the streams that `pick` (from, to) chooses and that have not been told to anyone.
    fn take(&mut self, mut pick: impl FnMut(u16, u32) -> bool) -> Vec<Stream<D>> {
        let chosen = self.streams.select(|stream| pick(stream.from, stream.to));
        let take = |handle| {
            let stream = self.streams.remove(handle).expect("just selected");
            self.names.remove(&(stream.from, stream.to, stream.queue.clone()));
            self.pushes -= stream.entries.len();
            stream
        };
        chosen.into_iter().map(take).collect()
    }
}

fn too_large(bytes: u64, limit: u64) -> Error {
    Error::full("transport.tensor_bytes_max", format!("the tensor has {bytes} bytes, the consumer accepts {limit}"))
}

impl<D: Clone> Stream<D> {
    /// Stages the stream's next frame, unless the link cannot read the push that is next.
    fn stage(&mut self, handle: Handle, to: u16, outbox: &mut Outbox, alone: bool) -> Result<(), Unreadable> {
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
    fn make_readable(&mut self, outbox: &mut Outbox) -> Result<(), Unreadable> {
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
    fn drop_next(&mut self) -> Entry<D> {
        debug_assert_eq!(self.sent, self.tried, "the peer would wait for its number");
        self.entries.remove(self.sent).expect("it is next")
    }

    fn count_sent(&mut self) {
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
    fn take_front(&mut self, most: u64) -> Option<Taken<D>> {
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

impl<W, D: PartialEq + Clone> Session<W, D> {
    /// The stream of a task of this side into a queue of a task of the peer's; made if there is none.
    ///
    /// # Errors
    /// InvalidArgument if the queue's name is too long, ResourceExhausted if there are [`STREAMS_MAX`] streams,
    /// Unavailable if the peer is going away, NotFound if it does not serve the task.
    pub fn stream(&mut self, from: u16, to: u32, queue: &str) -> Result<Handle, Error> {
        if let Some(reason) = &self.going_away {
            return Err(Error::unavailable(&self.peer, reason.clone()));
        }
        if self.attached.as_ref().is_some_and(|attached| attached.roster.place_of(to).is_none()) {
            return Err(super::consumer::not_served(&self.peer));
        }
        if let Some(&stream) = self.pusher.names.get(&QueueName(from, to, queue)) {
            if let Some(known) = self.pusher.streams.get_mut(stream) {
                known.closing = false;
            }
            return Ok(stream);
        }
        if queue.len() > KEY_BYTES_MAX {
            let bytes = queue.len();
            return Err(Error::invalid(format!(
                "the queue's name has {bytes} bytes, at most {KEY_BYTES_MAX} are accepted"
            )));
        }
        let stream = Stream {
            from,
            to,
            queue: queue.into(),
            entries: VecDeque::new(),
            first: 0,
            next: 0,
            left: 0,
            fresh: 0,
            sent: 0,
            tried: 0,
            bytes_before: 0,
            bytes_sent: 0,
            bytes_ready: 0,
            granted_messages: 0,
            granted_bytes: 0,
            wanted_bytes: 0,
            told: false,
            known: false,
            queued: false,
            closing: false,
            paused: false,
            overtaken: None,
        };
        let full = |_| Error::full("queues of a session", format!("{STREAMS_MAX} queues of {} are in use", self.peer));
        let handle = self.pusher.streams.insert(stream).map_err(full)?;
        self.pusher.names.insert((from, to, queue.into()), handle);
        Ok(handle)
    }

    /// Pushes a tensor; its end comes as [`Event::PushEnded`].
    ///
    /// # Errors
    /// ResourceExhausted if `fusion.queued_requests_max` pushes wait. The deposit comes back.
    pub fn push(&mut self, now: Instant, push: PushAsk<D>) -> Result<(), (Error, D)> {
        let PushAsk { stream: handle, meta, payload, deadline, deposit } = push;
        let pusher = &mut self.pusher;
        let Some(stream) = pusher.streams.get_mut(handle) else {
            return Err((Error::invalid("there is no such stream"), deposit));
        };
        if pusher.pushes >= pusher.pushes_max {
            let reason = format!("{} pushes to {} are already waiting", pusher.pushes, self.peer);
            return Err((Error::full("fusion.queued_requests_max", reason), deposit));
        }
        let bytes = payload.len() as u64;
        if let Some(attached) = &self.attached
            && bytes > attached.tensor_bytes_max
        {
            let limit = attached.tensor_bytes_max;
            return Err((too_large(bytes, limit), deposit));
        }
        stream.entries.push_back(Entry {
            number: u64::MAX,
            what: What::One(meta, Some(payload)),
            bytes,
            since: now,
            deadline,
            deposit: Some(deposit),
        });
        pusher.pushes += 1;
        pusher.earliest = Some(pusher.earliest.map_or(deadline, |earliest| earliest.min(deadline)));
        if self.attached.is_some() {
            pusher.queue(handle);
        }
        Ok(())
    }

    /// Pushes the first of `tensors`, as long as they are small and the peer has given credit for them: they are copied now, and leave
    /// together. Their ends come as [`Event::PushEnded`]. The first that is to be [pushed](Self::push) by itself comes back; `None` if
    /// none is left.
    pub fn push_together<T: Pushable>(
        &mut self,
        now: Instant,
        (handle, deadline, deposit): (Handle, Instant, &D),
        tensors: &mut impl Iterator<Item = T>,
    ) -> Option<T> {
        let limit = self.attached.as_ref().map_or(0, |attached| attached.tensor_bytes_max) as usize;
        let pusher = &mut self.pusher;
        let Some(stream) = pusher.streams.get_mut(handle).filter(|stream| stream.is_open()) else {
            return tensors.next();
        };
        let mut room = pusher.pushes_max.saturating_sub(pusher.pushes);
        let mut left = None;
        loop {
            let mut records = PushRecordsBuf::within(pusher.spare.take().unwrap_or_default());
            // Of those in credit: a push may leave that begins within it.
            let messages = stream.granted_messages.saturating_sub(stream.fresh).min(room as u64) as u32;
            let credit =
                stream.granted_bytes.saturating_sub(stream.bytes_before + stream.bytes_sent + stream.bytes_ready);
            let (mut count, mut bytes) = (0, 0);
            let next = loop {
                let next = match left.take().or_else(|| tensors.next()) {
                    Some(next) if count < messages && bytes < credit => next,
                    next => break next,
                };
                let tensor: &Tensor = next.borrow();
                let (meta, payload) = (tensor.meta().as_wire(), tensor.payload());
                // Lent memory is its owner's again when the push has ended, and no sooner.
                let is_small = payload.len() <= BATCHED_TENSOR_BYTES.min(limit) && !payload.is_lent();
                let fits = is_small && (count == 0 || !records.is_full(meta.len() + payload.len()));
                let Some(payload) = payload.host_bytes().filter(|_| fits) else { break Some(next) };
                records.push(meta, payload);
                (count, bytes) = (count + 1, bytes + payload.len() as u64);
            };
            if count == 0 {
                pusher.spare = Some(records.into_memory());
                return next;
            }
            let (number, deposit) = (stream.fresh, Some(deposit.clone()));
            let what = What::Many(Batch::new(records, count));
            stream.entries.push_back(Entry { number, what, bytes, since: now, deadline, deposit });
            (stream.tried, stream.fresh) = (stream.tried + 1, number + u64::from(count));
            stream.bytes_ready += bytes;
            pusher.pushes += count as usize;
            room -= count as usize;
            if pusher.earliest.is_none_or(|earliest| deadline < earliest) {
                pusher.earliest = Some(deadline);
            }
            if !stream.queued {
                stream.queued = true;
                pusher.to_send.push_back(handle);
            }
            left = Some(next?);
        }
    }

    /// Takes out the pushes that `pick` (from, to) chooses and that have not been sent: see
    /// [`take_requests`](Self::take_requests).
    pub fn take_pushes(
        &mut self,
        pick: impl FnMut(u16, u32) -> bool,
        mut each: impl FnMut((u16, u32, &str), Meta, Payload, Instant, D),
    ) {
        debug_assert!(self.attached.is_none(), "pushes move before a link is attached");
        for stream in self.pusher.take(pick) {
            for entry in stream.entries {
                if let (What::One(meta, Some(payload)), Some(deposit)) = (entry.what, entry.deposit) {
                    each((stream.from, stream.to, &stream.queue), meta, payload, entry.deadline, deposit);
                }
            }
        }
    }
}
