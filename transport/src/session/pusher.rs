//! The pushing half of a session: streams of tensors into the peer's queues. Every push is numbered and kept until the peer has
//! taken it.

mod batch;
#[cfg(feature = "fuzzing")]
mod invariants;
mod stream;

use std::collections::VecDeque;
use std::time::Instant;

use hashbrown::HashMap;
use sealane_runtime::Sweep;

use super::control::{Control, ControlQueue};
use super::{Awaited, Event, Roster, Session};
use crate::arena::{Arena, Handle};
use crate::error::{Code, Error, Late, Operation};
use crate::limits::{BATCHED_TENSOR_BYTES, KEY_BYTES_MAX, STREAMS_MAX, SessionLimits};
use crate::outbox::{Outbox, Unreadable};
use crate::payload::Meta;
use crate::payload::Payload;
use crate::tensor::{IntoTensor, Tensor};
use crate::wire::{PushFailure, PushGrant, PushRecordsBuf, WireError};
use batch::Batch;
use stream::{Entry, Stream, What};

/// A push: what to push, and until when.
#[derive(Debug)]
pub struct PushParams<D> {
    /// The stream, from [`Session::stream`].
    pub stream: Handle,
    /// The tensor's metadata.
    pub meta: Meta,
    /// Its bytes.
    pub payload: Payload,
    /// When it ends with DeadlineExceeded if it has not been taken.
    pub deadline: Instant,
    /// Returned when the push ends.
    pub pending: D,
}

/// Streams whose end is told again on the next link although it was told on this one: far more than can end within the data
/// that a link can lose.
const TOLD_AGAIN_MAX: usize = 1024;

pub(super) struct Pusher<D> {
    streams: Arena<Stream<D>>,
    names: HashMap<(u16, u32, Box<str>), Handle>,
    to_send: VecDeque<Handle>,
    /// Streams whose next push leaves in chunks while too many already do: the others pass them.
    held_back: VecDeque<Handle>,
    /// Streams whose next push is in device memory, and waits for host memory to be copied to.
    starved: VecDeque<Handle>,
    /// Ended streams that the peer knew. Their end is told again on the next link, since a link may lose what was sent last; of
    /// those told on the current link, only [`TOLD_AGAIN_MAX`] are kept.
    closed: VecDeque<Handle>,
    linked: bool,
    /// Number of pushes of all streams.
    pushes: usize,
    pushes_max: usize,
    deadlines: Sweep,
    /// Memory for the next pushes made together.
    spare: Option<Vec<u8>>,
}

#[derive(Hash)]
struct QueueName<'a>(u16, u32, &'a str);

impl hashbrown::Equivalent<(u16, u32, Box<str>)> for QueueName<'_> {
    fn equivalent(&self, key: &(u16, u32, Box<str>)) -> bool {
        (self.0, self.1, self.2) == (key.0, key.1, &*key.2)
    }
}

/// Where the ends of pushes are reported.
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
            deadlines: Sweep::default(),
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
        self.deadlines.next()
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
                        if let Some(pending) = stream.drop_next().pending {
                            events.push_back(Event::PushEnded { pending, count: 1, outcome: Err(error) });
                        }
                        continue;
                    }
                }
                // Now it is the next stream's turn.
                self.to_send.rotate_left(1);
                return true;
            }
            stream.queued = false;
            self.to_send.pop_front();
        }
        false
    }

    /// The link is done with a payload.
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

    /// Takes in how much the peer has taken; an error if that is impossible.
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
                (Some((pending, count)), Some((next, more))) if *pending == next => *count += more,
                (last, Some(next)) => {
                    if let Some((pending, count)) = last.replace(next) {
                        events.push_back(Event::PushEnded { pending, count, outcome: Ok(()) });
                    }
                }
                (_, None) => {}
            }
        }
        if let Some((pending, count)) = taken {
            events.push_back(Event::PushEnded { pending, count, outcome: Ok(()) });
        }
        stream.next = stream.next.max(stream.first);
        self.pushes -= count as usize;
        if self.pushes == 0 {
            self.deadlines.clear();
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
            // The peer has not taken in the stream and knows nothing of it: the next push opens it again.
            (stream.told, stream.known) = (false, false);
            self.pushes -= stream.entries.len();
            for pending in stream.entries.drain(..).filter_map(|entry| entry.pending) {
                events.push_back(Event::PushEnded { pending, count: 1, outcome: Err(error.clone()) });
            }
            return Ok(());
        }
        if let Some(stream) = self.streams.get_mut(failure.stream).filter(|stream| failure.number < stream.left) {
            if stream.tried_entry(failure.number).is_some_and(|entry| matches!(entry.what, What::Many(_))) {
                stream.unpack();
            }
            if let Some((pending, count)) = stream.tried_entry(failure.number).and_then(Entry::end) {
                events.push_back(Event::PushEnded { pending, count, outcome: Err(error) });
            }
        }
        Ok(())
    }

    /// Nobody accepts from a queue any more: pushes before `number` were taken, and all from there on are sent again when there
    /// is a grant.
    fn rewind<W>(&mut self, handle: Handle, number: u64, events: Ends<'_, W, D>) -> Result<(), WireError> {
        self.granted(&PushGrant { stream: handle, taken: number, messages: 0, bytes: 0 }, events)?;
        if let Some(stream) = self.streams.get_mut(handle).filter(|stream| stream.first == number) {
            (stream.paused, stream.wanted_bytes) = (true, 0);
            // A peer may say so repeatedly; what was not sent needs no restart.
            if stream.tried > 0 {
                stream.unpack();
                stream.begin_again();
                self.pushes -= stream.count_tried_anew();
            }
        }
        Ok(())
    }

    /// The link is gone: what was not taken is sent again. The outbox has given back every payload.
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

    /// A link is up: tells the peer of streams that have ended, and of those that have something to push.
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

    /// Ends the pushes that were never sent and that are too large for the peer: it would give no credit for them.
    fn end_too_large<W>(&mut self, limit: u64, events: Ends<'_, W, D>) {
        for (_, stream) in self.streams.iter_mut() {
            let (mut index, before) = (0, stream.entries.len());
            stream.entries.retain_mut(|entry| {
                index += 1;
                let stays = index <= stream.tried || entry.bytes <= limit;
                if !stays && let Some(pending) = entry.pending.take() {
                    let outcome = Err(too_large(entry.bytes, limit));
                    events.push_back(Event::PushEnded { pending, count: 1, outcome });
                }
                stays
            });
            self.pushes -= before - stream.entries.len();
        }
    }

    /// The peer knows nothing of the streams any more: pushes that it may have taken end with `error`.
    pub(super) fn end_tried<W>(&mut self, error: &Error, control: &mut ControlQueue, events: Ends<'_, W, D>) {
        self.closed.clear();
        for (_, stream) in self.streams.iter_mut() {
            stream.known = false;
            debug_assert_eq!(stream.fresh - stream.first, stream.tried as u64, "there is no link: each is by itself");
            let tried = std::mem::take(&mut stream.tried);
            self.pushes -= tried;
            for pending in stream.entries.drain(..tried).filter_map(|entry| entry.pending) {
                events.push_back(Event::PushEnded { pending, count: 1, outcome: Err(error.clone()) });
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
            for (pending, count) in stream.entries.iter_mut().filter_map(Entry::end) {
                events.push_back(Event::PushEnded { pending, count, outcome: Err(error.clone()) });
            }
            self.pushes -= stream.entries.len() - stream.tried;
            stream.entries.truncate(stream.tried);
        }
    }

    /// Ends a task's pushes, or those of all tasks without one, and its streams once nothing of them is in flight.
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

    /// Closes a stream whose task is gone, once nothing of it is in flight.
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
        if !self.deadlines.is_due(now) {
            return;
        }
        let entries: usize = self.streams.iter().map(|(_, stream)| stream.entries.len()).sum();
        self.deadlines = Sweep::after(now, entries + self.streams.slots());
        let mut changed = Vec::new();
        for (handle, stream) in self.streams.iter_mut() {
            let (tried, to, queue) = (stream.tried, stream.to, &stream.queue);
            let mut index = 0;
            let mut dropped = 0;
            stream.entries.retain_mut(|entry| {
                index += 1;
                if entry.deadline > now {
                    if entry.pending.is_some() {
                        self.deadlines.enter(entry.deadline);
                    }
                    return true;
                }
                let stays = index <= tried;
                if let Some((pending, count)) = entry.end() {
                    let waited = entry.deadline.saturating_duration_since(entry.since);
                    let missing = match stays {
                        true => "but it has not said that it took the tensor",
                        false => "but its queue had no room: nobody takes from it, or others were first",
                    };
                    let (operation, step, key, delivery_unknown) = (Operation::Push, 0, queue.clone(), stays);
                    let awaited = awaited.of(to, missing).into();
                    let late = Late { operation, step, key, waited, delivery_unknown, awaited };
                    let outcome = Err(late.into());
                    events.push_back(Event::PushEnded { pending, count, outcome });
                }
                dropped += usize::from(!stays);
                stays
            });
            self.pushes -= dropped;
            if dropped > 0 {
                changed.push(handle);
            }
        }
        // The push that is now next may have the credit that the one before it waited for.
        if self.linked {
            changed.into_iter().for_each(|handle| self.queue(handle));
        }
    }

    /// Removes and returns the streams that `pick` (from, to) chooses and that nobody was told of.
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

impl<W, D: PartialEq + Clone> Session<W, D> {
    /// The stream from a task of this side into a queue of the peer's task; created if there is none.
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

    /// Pushes a tensor; its end is reported as [`Event::PushEnded`].
    ///
    /// # Errors
    /// ResourceExhausted if `fusion.queued_requests_max` pushes wait. The pending send comes back.
    pub fn push(&mut self, now: Instant, push: PushParams<D>) -> Result<(), (Error, D)> {
        let PushParams { stream: handle, meta, payload, deadline, pending } = push;
        let pusher = &mut self.pusher;
        let Some(stream) = pusher.streams.get_mut(handle) else {
            return Err((Error::invalid("there is no such stream"), pending));
        };
        if pusher.pushes >= pusher.pushes_max {
            let reason = format!("{} pushes to {} are already waiting", pusher.pushes, self.peer);
            return Err((Error::full("fusion.queued_requests_max", reason), pending));
        }
        let bytes = payload.len() as u64;
        if let Some(attached) = &self.attached
            && bytes > attached.tensor_bytes_max
        {
            let limit = attached.tensor_bytes_max;
            return Err((too_large(bytes, limit), pending));
        }
        stream.entries.push_back(Entry {
            number: u64::MAX,
            what: What::One(meta, Some(payload)),
            bytes,
            since: now,
            deadline,
            pending: Some(pending),
        });
        pusher.pushes += 1;
        pusher.deadlines.enter(deadline);
        if self.attached.is_some() {
            pusher.queue(handle);
        }
        Ok(())
    }

    /// Pushes the first of `tensors` together, as long as they are small and the peer has given credit: they are copied now.
    /// Their ends are reported as [`Event::PushEnded`]. Returns the first tensor that has to be [pushed](Self::push) by itself;
    /// `None` if none is left.
    pub fn push_together<T: IntoTensor>(
        &mut self,
        now: Instant,
        (handle, deadline, pending): (Handle, Instant, &D),
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
            // Within credit means: a push may be sent if it begins within the credit for bytes.
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
                // Lent memory must stay with the push until it has ended.
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
            let (number, pending) = (stream.fresh, Some(pending.clone()));
            let what = What::Many(Batch::new(records, count));
            stream.entries.push_back(Entry { number, what, bytes, since: now, deadline, pending });
            (stream.tried, stream.fresh) = (stream.tried + 1, number + u64::from(count));
            stream.bytes_ready += bytes;
            pusher.pushes += count as usize;
            room -= count as usize;
            pusher.deadlines.enter(deadline);
            if !stream.queued {
                stream.queued = true;
                pusher.to_send.push_back(handle);
            }
            left = Some(next?);
        }
    }

    /// Removes and returns the pushes that `pick` (from, to) chooses and that were not sent: see
    /// [`take_requests`](Self::take_requests).
    pub fn take_pushes(
        &mut self,
        pick: impl FnMut(u16, u32) -> bool,
        mut each: impl FnMut((u16, u32, &str), Meta, Payload, Instant, D),
    ) {
        debug_assert!(self.attached.is_none(), "pushes move before a link is attached");
        for stream in self.pusher.take(pick) {
            for entry in stream.entries {
                if let (What::One(meta, Some(payload)), Some(pending)) = (entry.what, entry.pending) {
                    each((stream.from, stream.to, &stream.queue), meta, payload, entry.deadline, pending);
                }
            }
        }
    }
}
