//! The responding half of a session: the peer's requests, and every tensor of a response, kept until its release.

use std::collections::VecDeque;
use std::rc::Rc;

use hashbrown::HashMap;

use super::control::Control;
use super::quota::{Charges, Held, PeerQuota, Share};
use super::{Event, Session, Sink, failure_of};
use crate::arena::{Arena, Handle};
use crate::error::Error;
use crate::limits::{GROUP_BYTES, INLINE_PAYLOAD_BYTES, RELEASE_ACK_EVERY, SessionLimits};
use crate::outbox::{Outbox, Owner, Unreadable};
use crate::payload::Meta;
use crate::payload::Payload;
use crate::trace::{self, Moment, Recorder};
use crate::transfers::leaves_in_chunks;
use crate::wire::{Failure, RESPONSE_ENTRY_BYTES, Response, WireError};

/// A response that was not released yet, from [`Session::respond`] on.
struct Unreleased<D> {
    /// The peer's id of the request.
    request: Handle,
    meta: Meta,
    /// `None` while the outbox or the link has it.
    payload: Option<Payload>,
    /// Taken with the release.
    pending: Option<D>,
    /// It was handed to the current link, and counts as bytes in flight.
    in_flight: bool,
    /// True for taken, if its release came while the link still had the payload.
    early_release: Option<bool>,
    /// Its memory was allocated for this response alone, and is charged as such.
    is_gathered: bool,
}

/// Bytes of tensors handed to the link and not released, against the peer's credit.
struct Flight {
    bytes: usize,
    bytes_max: usize,
}

impl Flight {
    /// True if the peer has credit for this many more bytes; a single tensor of any size may always go.
    #[inline]
    fn has_room(&self, bytes: usize) -> bool {
        self.bytes == 0 || self.bytes + bytes <= self.bytes_max
    }
}

pub(super) struct Producer<D> {
    unreleased: Arena<Unreleased<D>>,
    to_send: VecDeque<Handle>,
    /// Like `to_send`, for tensors that leave in chunks; the others pass them.
    to_send_in_chunks: VecDeque<Handle>,
    in_flight: Flight,
    in_flight_in_chunks: Flight,
    chunk_bytes: usize,
    /// Tensors handed out on an earlier link and not yet requested on this one, by the peer's id.
    stale: HashMap<Handle, Handle>,
    /// Charges for requests of the peer that the owner has parked.
    share: Share,
    parked_max: usize,
    /// Number of the next release.
    release_seen: u64,
    release_acknowledged: u64,
    /// The consumer may not have received the last acknowledgement: the next releases are acknowledged at once.
    acknowledge_next: bool,
    pub(super) recorder: Option<Recorder>,
}

impl<D> Producer<D> {
    pub(super) fn new(limits: &SessionLimits, quota: &Rc<PeerQuota>) -> Self {
        Self {
            unreleased: Arena::new(limits.parked_requests_max),
            to_send: VecDeque::new(),
            to_send_in_chunks: VecDeque::new(),
            in_flight: Flight { bytes: 0, bytes_max: limits.in_flight_bytes_max },
            in_flight_in_chunks: Flight { bytes: 0, bytes_max: limits.in_flight_bytes_max },
            chunk_bytes: limits.chunk_bytes,
            stale: HashMap::new(),
            share: Share::of(quota),
            parked_max: limits.parked_requests_max,
            release_seen: 0,
            release_acknowledged: 0,
            acknowledge_next: false,
            recorder: None,
        }
    }

    /// What is charged to the peer.
    pub(super) fn counted(&self) -> Charges {
        self.share.mine()
    }

    pub(super) fn unreleased(&self) -> usize {
        self.unreleased.len()
    }

    /// True if no response waits to be sent.
    #[inline]
    pub(super) fn is_idle(&self) -> bool {
        self.to_send.is_empty() && self.to_send_in_chunks.is_empty()
    }

    /// True if there is a response that the peer has credit for and that does not wait for memory.
    pub(super) fn has_responses(&self, outbox: &Outbox) -> bool {
        let may_leave = |queue: &VecDeque<Handle>, flight: &Flight| {
            let Some(&next) = queue.front() else { return false };
            flight.has_room(self.length_of(next).unwrap_or(0)) && !(outbox.awaits_copies() && self.is_on_device(next))
        };
        may_leave(&self.to_send, &self.in_flight) || may_leave(&self.to_send_in_chunks, &self.in_flight_in_chunks)
    }

    fn is_on_device(&self, token: Handle) -> bool {
        let payload = self.unreleased.get(token).and_then(|response| response.payload.as_ref());
        payload.is_some_and(|payload| payload.host_bytes().is_none())
    }

    /// Queues a response of `bytes` bytes.
    #[inline]
    fn queue(&mut self, token: Handle, bytes: usize) {
        let in_chunks = leaves_in_chunks(bytes, self.chunk_bytes);
        let queue = if in_chunks { &mut self.to_send_in_chunks } else { &mut self.to_send };
        queue.push_back(token);
        self.unreleased.prune(queue);
    }

    /// A tensor of `bytes` bytes that was handed to the link was released.
    #[inline]
    fn count_landed(&mut self, bytes: usize) {
        let in_chunks = leaves_in_chunks(bytes, self.chunk_bytes);
        let flight = if in_chunks { &mut self.in_flight_in_chunks } else { &mut self.in_flight };
        flight.bytes -= bytes;
    }

    /// The limit from the settings, if the peer has reached it with parked requests, `undecided` ones included, or unreleased
    /// tensors.
    #[inline]
    pub(super) fn full(&self, undecided: usize) -> Option<usize> {
        let most = self.share.used(Held::Parked).max(self.unreleased.len()) + undecided;
        (most >= self.parked_max).then_some(self.parked_max)
    }

    pub(super) fn unpark(&mut self) {
        if self.share.mine()[Held::Parked as usize] > 0 {
            self.share.give_back(Held::Parked, 1);
        }
    }

    /// Responds again with the same tensor to a request that this side has responded to on an earlier link; false if it has
    /// not.
    #[inline]
    pub(super) fn respond_again(&mut self, request: Handle) -> bool {
        if self.stale.is_empty() {
            return false;
        }
        let Some(token) = self.stale.remove(&request) else { return false };
        let bytes = self.length_of(token).unwrap_or(0);
        self.queue(token, bytes);
        true
    }

    /// Makes sure that the link can read the next tensor; `None` if it has to wait for that. False if it cannot be read: the
    /// request fails, and the tensor goes back.
    fn make_readable<W>(
        &mut self,
        token: Handle,
        outbox: &mut Outbox,
        events: &mut VecDeque<Event<W, D>>,
    ) -> Option<bool> {
        let payload =
            self.unreleased.get_mut(token).and_then(|response| response.payload.as_mut()).expect("just looked at");
        match outbox.make_readable(payload) {
            Ok(()) => Some(true),
            Err(Unreadable::Waits) => None,
            Err(Unreadable::Fails(error)) => {
                let (id, (code, reason)) = (self.unreleased.get(token)?.request, failure_of(&error));
                outbox.stage(|writer| writer.failure(&Failure { id, code, reason: &reason }));
                self.complete(token, false, events);
                Some(false)
            }
        }
    }

    /// Begins to send the next tensor that leaves in chunks; false if there is none, or too many are on their way.
    fn begin_transfer<W>(&mut self, outbox: &mut Outbox, events: &mut VecDeque<Event<W, D>>) -> bool {
        while let Some(&token) = self.to_send_in_chunks.front() {
            let Some(payload_bytes) = self.length_of(token) else {
                self.to_send_in_chunks.pop_front();
                continue;
            };
            if !outbox.has_room_for_answer() || !self.in_flight_in_chunks.has_room(payload_bytes) {
                return false;
            }
            let Some(is_readable) = self.make_readable(token, outbox, events) else { return false };
            self.to_send_in_chunks.pop_front();
            if is_readable {
                self.in_flight_in_chunks.bytes += payload_bytes;
                self.post(token, outbox);
            }
            return true;
        }
        false
    }

    /// Sends one tensor in a frame of its own.
    #[inline]
    fn post(&mut self, token: Handle, outbox: &mut Outbox) {
        trace::tell(self.recorder.as_ref(), token, || Moment::ResponseOnTheWire);
        let response = self.unreleased.get_mut(token).expect("just looked at");
        response.in_flight = true;
        let payload = response.payload.take().expect("just looked at");
        let (id, payload_bytes, meta) = (response.request, payload.len() as u64, &response.meta);
        response.payload = outbox.post((Owner::Response(token), id), payload, |writer, transfer| {
            writer.response(&Response { id, token, payload_bytes, transfer, meta });
        });
    }

    /// Stages the next responses: one large tensor, or small ones that share a frame; with `alone`, never more than one.
    /// False if there is none.
    #[inline]
    pub(super) fn stage_responses<W>(
        &mut self,
        outbox: &mut Outbox,
        alone: bool,
        events: &mut VecDeque<Event<W, D>>,
    ) -> bool {
        if !self.to_send_in_chunks.is_empty() && self.begin_transfer(outbox, events) {
            return true;
        }
        let mut failed = false;
        while let Some(&token) = self.to_send.front() {
            let Some(payload) = self.unreleased.get(token).and_then(|response| response.payload.as_ref()) else {
                self.to_send.pop_front();
                continue;
            };
            let payload_bytes = payload.len();
            if !self.in_flight.has_room(payload_bytes) {
                break;
            }
            if payload_bytes <= INLINE_PAYLOAD_BYTES && payload.host_bytes().is_some() {
                self.stage_group(outbox, if alone { 1 } else { usize::MAX });
                return true;
            }
            let Some(is_readable) = self.make_readable(token, outbox, events) else { break };
            self.to_send.pop_front();
            if is_readable {
                self.in_flight.bytes += payload_bytes;
                self.post(token, outbox);
                return true;
            }
            failed = true;
        }
        failed
    }

    /// Stages small tensors that share a frame: at least one, and at most `most`.
    #[inline]
    fn stage_group(&mut self, outbox: &mut Outbox, most: usize) {
        let Self { unreleased, to_send, in_flight, recorder, .. } = self;
        let mut count = 0;
        outbox.stage(|writer| {
            let mut frame = writer.responses();
            let mut bytes = 0;
            while count < most
                && bytes < GROUP_BYTES
                && let Some(&token) = to_send.front()
            {
                if let Some(response) = unreleased.get_mut(token)
                    && let Some(payload) = &mut response.payload
                {
                    let Some(host_bytes) = payload.host_bytes() else { break };
                    let payload_bytes = host_bytes.len();
                    if payload_bytes > INLINE_PAYLOAD_BYTES || !in_flight.has_room(payload_bytes) {
                        break;
                    }
                    frame.push(response.request, token, &response.meta, host_bytes);
                    payload.drop_host_copy();
                    response.in_flight = true;
                    in_flight.bytes += payload_bytes;
                    bytes += RESPONSE_ENTRY_BYTES + response.meta.len() + payload_bytes;
                    count += 1;
                    trace::tell(recorder.as_ref(), token, || Moment::ResponseOnTheWire);
                }
                to_send.pop_front();
            }
            frame.end();
        });
        outbox.count_small(count as u64);
    }

    /// Bytes of a tensor that waits to be sent.
    #[inline]
    fn length_of(&self, token: Handle) -> Option<usize> {
        Some(self.unreleased.get(token)?.payload.as_ref()?.len())
    }

    /// The link is done with a payload and gives it back.
    #[inline]
    pub(super) fn written<W>(&mut self, token: Handle, mut payload: Payload, events: &mut VecDeque<Event<W, D>>) {
        payload.drop_host_copy();
        let Some(response) = self.unreleased.get_mut(token) else { return };
        response.payload = Some(payload);
        if let Some(taken) = response.early_release {
            self.complete(token, taken, events);
        }
    }

    /// How many of the releases from this number on were seen before.
    ///
    /// # Errors
    /// The number is impossible.
    #[inline]
    pub(super) fn seen_before(&self, sequence: u64) -> Result<usize, WireError> {
        let seen = self.release_seen.checked_sub(sequence);
        seen.map(|seen| seen as usize).ok_or(WireError::BadValue { what: "release number", found: sequence })
    }

    #[cfg(test)]
    pub(super) fn release_seen(&self) -> u64 {
        self.release_seen
    }

    #[inline]
    pub(super) fn count_release(&mut self) {
        self.release_seen += 1;
    }

    #[inline]
    pub(super) fn release<W>(
        &mut self,
        (token, taken): (Handle, bool),
        sink: &mut Option<&mut dyn Sink<W, D>>,
        events: &mut VecDeque<Event<W, D>>,
    ) {
        match sink {
            Some(sink) if taken => self.take(token, *sink, events),
            _ => self.complete(token, taken, events),
        }
    }

    /// The number before which all releases were seen, if the peer should be told now.
    #[inline]
    pub(super) fn acknowledgement(&mut self) -> Option<u64> {
        let is_due = self.acknowledge_next || self.release_seen - self.release_acknowledged >= RELEASE_ACK_EVERY;
        is_due.then(|| {
            self.acknowledge_next = false;
            self.release_acknowledged = self.release_seen;
            self.release_seen
        })
    }

    /// A tensor was taken: tells its owner at once, unless the link still has the payload.
    #[inline]
    fn take<W>(&mut self, token: Handle, sink: &mut dyn Sink<W, D>, events: &mut VecDeque<Event<W, D>>) {
        if self.unreleased.get(token).is_none_or(|response| response.payload.is_none()) || !self.stale.is_empty() {
            return self.complete(token, true, events);
        }
        let taken = self.unreleased.retire(token, |response| {
            if response.meta.spilled() {
                response.meta = Meta::new();
            }
            let payload = response.payload.take().unwrap_or_default();
            (response.pending.take(), payload, response.in_flight, response.is_gathered)
        });
        let Some((pending, payload, in_flight, is_gathered)) = taken else { return };
        if in_flight {
            self.count_landed(payload.len());
        }
        if is_gathered {
            self.rows_released(payload.len());
        }
        if let Some(pending) = pending {
            sink.taken(pending, payload);
        }
    }

    /// Gathered rows of `bytes` bytes are no longer charged to the peer.
    fn rows_released(&self, bytes: usize) {
        let unreleased = self.share.unreleased_rows();
        unreleased.set(unreleased.get() - bytes);
    }

    /// Ends a response, once the link has given its payload back: the owner hears whether the tensor was taken.
    #[inline]
    fn complete<W>(&mut self, token: Handle, taken: bool, events: &mut VecDeque<Event<W, D>>) {
        let Some(response) = self.unreleased.get_mut(token) else { return };
        if response.payload.is_none() {
            response.early_release = Some(taken);
            return;
        }
        let response = self.unreleased.remove(token).expect("just found");
        let bytes = response.payload.as_ref().map_or(0, Payload::len);
        if response.in_flight {
            self.count_landed(bytes);
        }
        if response.is_gathered {
            self.rows_released(bytes);
        }
        if !self.stale.is_empty() {
            self.stale.remove(&response.request);
        }
        let tensor = Box::new((response.meta, response.payload.expect("just looked at")));
        if let Some(pending) = response.pending {
            events.push_back(Event::Released { pending, tensor, taken });
        }
    }

    /// The link is gone; the outbox has given back every payload.
    pub(super) fn suspend(&mut self) {
        self.to_send.clear();
        self.to_send_in_chunks.clear();
        (self.in_flight.bytes, self.in_flight_in_chunks.bytes) = (0, 0);
        self.unreleased.iter_mut().for_each(|(_, response)| response.in_flight = false);
        self.share.give_all_back();
        self.stale = self.unreleased.iter().map(|(token, response)| (response.request, token)).collect();
    }

    /// An acknowledgement may have been lost with the former link, and the consumer repeats the releases that it has none for.
    /// These must be acknowledged: otherwise short-lived links would let its log grow until it may request nothing more.
    pub(super) fn resume(&mut self) {
        self.acknowledge_next = self.release_seen > 0;
    }

    /// The consumer has repeated every request that it still wants: the rest was given up while there was no link.
    pub(super) fn take_back_stale<W>(&mut self, events: &mut VecDeque<Event<W, D>>) {
        let mut left: Vec<_> = std::mem::take(&mut self.stale).into_values().collect();
        // A hash map has no stable order, but the same history must have the same outcome.
        left.sort_unstable();
        for token in left {
            self.complete(token, false, events);
        }
    }

    pub(super) fn take_back_all<W>(&mut self, events: &mut VecDeque<Event<W, D>>) {
        for token in self.unreleased.select(|_| true) {
            self.complete(token, false, events);
        }
        self.release_seen = 0;
        self.release_acknowledged = 0;
    }
}

impl<W, D: PartialEq + Clone> Session<W, D> {
    /// Responds to the peer's request with a tensor. It stays here until its release, reported as [`Event::Released`] with
    /// `pending`.
    ///
    /// # Errors
    /// The tensor comes back if `fusion.parked_requests_max` tensors are unreleased; the request is refused.
    #[inline]
    pub fn respond(
        &mut self,
        id: Handle,
        meta: Meta,
        payload: Payload,
        pending: D,
    ) -> Result<Handle, (Meta, Payload, D)> {
        let (bytes, limit) = (payload.len(), self.attached.as_ref().map_or(u64::MAX, |it| it.tensor_bytes_max));
        if bytes as u64 > limit {
            let reason = format!("the tensor has {bytes} bytes, the consumer accepts {limit}");
            self.refuse(id, &Error::full("transport.tensor_bytes_max", reason));
            return Err((meta, payload, pending));
        }
        if self.producer.unreleased.is_full() {
            let reason = format!("{} tensors are unreleased", self.limits.parked_requests_max);
            self.refuse(id, &Error::full("fusion.parked_requests_max", reason));
            return Err((meta, payload, pending));
        }
        let nothing = || Unreleased {
            request: Handle::NONE,
            meta: Meta::new(),
            payload: None,
            pending: None,
            in_flight: false,
            early_release: None,
            is_gathered: false,
        };
        let (token, response) = self.producer.unreleased.renew(nothing).expect("just looked");
        response.request = id;
        response.meta = meta;
        response.payload = Some(payload);
        response.pending = Some(pending);
        (response.in_flight, response.early_release, response.is_gathered) = (false, None, false);
        self.producer.queue(token, bytes);
        Ok(token)
    }

    /// [`respond`](Self::respond) with rows in memory allocated for this response: it counts against the
    /// [peer's](PeerQuota::rows) quota until they are released.
    ///
    /// # Errors
    /// As [`respond`](Self::respond).
    pub fn respond_gathered(
        &mut self,
        id: Handle,
        meta: Meta,
        payload: Payload,
        pending: D,
    ) -> Result<Handle, (Meta, Payload, D)> {
        let bytes = payload.len();
        let token = self.respond(id, meta, payload, pending)?;
        self.producer.unreleased.get_mut(token).expect("just entered").is_gathered = true;
        let unreleased = self.producer.share.unreleased_rows();
        unreleased.set(unreleased.get() + bytes);
        Ok(token)
    }

    /// A tensor was not used for a response after all: reports it as [`Event::Released`], as if the consumer had returned
    /// it.
    pub fn give_back(&mut self, meta: Meta, payload: Payload, pending: D) {
        self.events.push_back(Event::Released { pending, tensor: Box::new((meta, payload)), taken: false });
    }

    /// The owner keeps the request until its tensor is there: the peer is told, and may request more beyond its window.
    pub fn park(&mut self, id: Handle) {
        self.park_for(id, 0);
    }

    /// As [`park`](Self::park), for a request that [fails](crate::if_gone::IfGone) when this attachment of its task ends; 0 if
    /// it has none yet.
    pub fn park_for(&mut self, id: Handle, attachment: u32) {
        self.producer.share.count(Held::Parked, 1);
        self.control.push_answer(Control::Parked(id, attachment));
    }

    /// The task that a parked request waits for has attached.
    pub fn tell_attachment(&mut self, id: Handle, attachment: u32) {
        self.control.push(Control::Parked(id, attachment));
    }

    /// The owner no longer keeps a request that it had parked; call this before answering it.
    pub fn unpark(&mut self) {
        self.producer.unpark();
    }

    /// Answers with an error a request that the peer has just made.
    pub fn refuse(&mut self, id: Handle, error: &Error) {
        let failure = failure(id, error);
        self.control.push_answer(failure);
    }

    /// Answers with an error a request that was parked: this side has ended it.
    pub fn end_parked(&mut self, id: Handle, error: &Error) {
        self.unpark();
        self.control.push(failure(id, error));
    }
}

fn failure(id: Handle, error: &Error) -> Control {
    let (code, reason) = failure_of(error);
    Control::Failure { id, code, reason }
}
