//! The requesting half of a session: requests by id, the window, deadlines, landings.

mod requests;

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;

use sealane_runtime::{Buffer, Sweep};

use super::control::{Control, ControlQueue};
use super::receive::{ReceiveMemory, Sink};
use super::releases::ReleaseLog;
use super::{Arrived, Awaited, Event, Roster};
use crate::arena::{Arena, Handle, reuse_key};
use crate::call::Unreceived;
use crate::chains::Chains;
use crate::destination::{Destination, check_room};
use crate::error::{Error, Operation};
use crate::if_gone::IfGone;
use crate::limits::{GROUP_BYTES, INLINE_PAYLOAD_BYTES, SessionLimits};
use crate::link::{Landing, LandingOf, Place, Spot};
use crate::named_rows::NamedRowsBuf;
use crate::outbox::{Announcement, Kept, Outbox, Revocation};
use crate::payload::Meta;
use crate::tensor::TensorMeta;
use crate::trace::{self, Moment, Recorder};
use crate::wire::{Fate, REQUEST_ENTRY_BYTES, Request, Response, RowRequest, SmallResponse, WireError};

/// A recv to request: which tensor, from whom, until when, and where to put it.
#[derive(Debug)]
pub struct RequestParams<'a, W> {
    /// The asking task, by its index in this side's task list.
    pub consumer: u16,
    /// The peer's task, by the owner's number for it.
    pub producer: u32,
    /// The step.
    pub step: i64,
    /// The tensor's name within the step.
    pub key: &'a str,
    /// When the request fails with DeadlineExceeded.
    pub deadline: Instant,
    /// The consumer's own memory for the tensor, which must [fit](Destination::check). Without it, memory comes from the slab.
    pub destination: Option<Destination>,
    /// Comes back with the answer.
    pub waiter: W,
}

/// How a request is made.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RequestOptions {
    /// One of many requested together: it does not count against the window.
    pub fused: bool,
    /// It fails if the producer has left or leaves: see [`IfGone`].
    pub fail_if_gone: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// In `queued`.
    Queued,
    /// Counts against the window.
    Sent,
    /// The producer has said that it does not have the tensor yet.
    Parked,
}

struct PendingRequest<W> {
    consumer: u16,
    producer: u32,
    /// For rows: the oldest version that will do.
    step: i64,
    key: String,
    /// The requested rows of tables; `None` if a tensor is requested.
    rows: Option<NamedRowsBuf>,
    since: Instant,
    deadline: Instant,
    state: State,
    /// It was sent at least once, on any link.
    was_sent: bool,
    /// One of many requested together: these do not count against the window.
    fused: bool,
    if_gone: IfGone,
    destination: Option<Buffer>,
    /// The only type and shape that the destination takes.
    meta: Option<Arc<TensorMeta>>,
    /// The destination came with the request: unlike memory from the slab, it stays with the request when a link is lost.
    brought: bool,
    /// The peer was told the destination's address, on this link.
    announced: bool,
    /// Taken when the tensor has arrived.
    waiter: Option<W>,
}

impl<W> PendingRequest<W> {
    /// An unused entry.
    #[cold]
    fn nothing() -> Self {
        let now = Instant::now();
        PendingRequest {
            consumer: 0,
            producer: 0,
            step: 0,
            key: String::new(),
            rows: None,
            since: now,
            deadline: now,
            state: State::Queued,
            was_sent: false,
            fused: false,
            if_gone: IfGone::Waits,
            destination: None,
            meta: None,
            brought: false,
            announced: false,
            waiter: None,
        }
    }

    #[inline]
    fn is_of_rows(&self) -> bool {
        self.rows.is_some()
    }

    /// What the peer has not done for this request, for an error message.
    #[cold]
    fn missing(&self) -> &'static str {
        match (self.state, self.is_of_rows()) {
            (State::Queued, _) => "but it has not been asked: as many requests as may be in flight were before",
            (State::Sent, _) => "but no answer has come, or not all of it",
            (State::Parked, false) => "but nobody there has sent it",
            (State::Parked, true) => {
                "but it does not have these rows yet: nobody has published them, or they wait for memory"
            }
        }
    }

    /// Marks the request as sent.
    #[inline]
    fn begin(&mut self) -> &Self {
        (self.state, self.was_sent) = (State::Sent, true);
        self
    }
}

/// What the requests in one frame have in common.
struct Common {
    consumer: u16,
    producer: u32,
    /// The producer's place in the peer's list.
    place: u16,
    deadline: Instant,
    timeout_ms: u32,
    if_gone: IfGone,
}

impl Common {
    /// True if a request may share the frame. Requests made together have the same deadline.
    #[inline]
    fn has<W>(&self, request: &PendingRequest<W>, now: Instant) -> bool {
        (request.consumer, request.producer) == (self.consumer, self.producer)
            && !request.is_of_rows()
            && request.if_gone == self.if_gone
            && (request.deadline == self.deadline || timeout_ms(request.deadline, now) == self.timeout_ms)
    }
}

#[inline]
fn timeout_ms(deadline: Instant, now: Instant) -> u32 {
    deadline.saturating_duration_since(now).as_millis().min(u128::from(u32::MAX)) as u32
}

const HAS_WAITER: &str = "a waiter goes with its request";

pub(super) struct Consumer<W> {
    window: usize,
    requests_max: usize,
    requests: Arena<PendingRequest<W>>,
    /// `requests` by consumer and step, to end a step.
    steps: Chains,
    queued: VecDeque<Handle>,
    /// Like `queued`, for requests that do not count against the window.
    queued_fused: VecDeque<Handle>,
    /// Requests of the frame being staged, if the link or the trace needs to know each of them; kept to reuse its memory.
    group: Vec<Handle>,
    in_flight: usize,
    /// A lower bound of all deadlines: it may be too early, never too late.
    deadlines: Sweep,
    releases: ReleaseLog,
    /// Announced places whose requests have ended, or were answered by another way.
    revoked: Vec<Revocation>,
    tensor_bytes_max: u64,
    pub(super) recorder: Option<Recorder>,
}

impl<W> Consumer<W> {
    pub(super) fn new(limits: &SessionLimits) -> Self {
        Self {
            window: limits.window,
            requests_max: limits.queued_requests_max,
            requests: Arena::new(limits.queued_requests_max),
            steps: Chains::default(),
            queued: VecDeque::new(),
            queued_fused: VecDeque::new(),
            group: Vec::new(),
            in_flight: 0,
            deadlines: Sweep::default(),
            releases: ReleaseLog::default(),
            revoked: Vec::new(),
            tensor_bytes_max: limits.tensor_bytes_max,
            recorder: None,
        }
    }

    pub(super) fn requests(&self) -> usize {
        self.requests.len()
    }

    pub(super) fn has_releases(&self) -> bool {
        !self.releases.is_empty()
    }

    #[inline]
    pub(super) fn has_unsent_releases(&self) -> bool {
        self.releases.has_unsent()
    }

    /// True if no request waits to be sent.
    #[inline]
    pub(super) fn is_idle(&self) -> bool {
        self.queued.is_empty() && self.queued_fused.is_empty()
    }

    #[inline]
    pub(super) fn can_request(&self) -> bool {
        let windowed = !self.queued.is_empty() && self.in_flight < self.window;
        (windowed || !self.queued_fused.is_empty()) && !self.releases.is_full()
    }

    #[cfg(test)]
    pub(super) fn queue_length(&self) -> usize {
        self.queued.len()
    }

    fn queue(&mut self, handle: Handle, fused: bool) {
        if fused { self.queued_fused.push_back(handle) } else { self.queued.push_back(handle) }
    }

    pub(super) fn next_deadline(&self) -> Option<Instant> {
        self.deadlines.next()
    }

    fn remove(&mut self, handle: Handle) -> Option<PendingRequest<W>> {
        let mut request = self.requests.remove(handle)?;
        trace::tell(self.recorder.as_ref(), handle, || Moment::RecvEnded);
        self.steps.remove(handle);
        if request.state == State::Sent && !request.fused {
            self.in_flight -= 1;
        }
        if self.requests.is_empty() {
            self.deadlines.clear();
        }
        if request.announced
            && let Some(memory) = request.destination.take()
        {
            // The peer may be writing there right now, so nobody gets the memory back before the link has closed it. If
            // `destination` is empty, an answer holds the memory; `landed` checks it.
            self.revoked.push(Revocation { request: handle, kept: Kept::Memory(memory) });
        }
        Some(request)
    }

    pub(super) fn has_revoked(&self) -> bool {
        !self.revoked.is_empty()
    }

    #[inline]
    pub(super) fn stage_revoked(&mut self, outbox: &mut Outbox) {
        if !self.revoked.is_empty() {
            outbox.revoked().append(&mut self.revoked);
        }
    }

    /// A tensor that came ahead is done with.
    #[inline]
    pub(super) fn release_ahead(&mut self, first: u64, count: u32, fate: Fate) {
        self.releases.push_ahead(first, count, fate);
    }

    pub(super) fn stage_releases(&mut self, outbox: &mut Outbox) {
        self.releases.stage(outbox);
    }

    /// Stages one frame with the next request and those behind it that may share its frame; with `alone`, only the next
    /// request. False if there is none.
    #[inline]
    pub(super) fn stage_requests(&mut self, now: Instant, roster: &Roster, outbox: &mut Outbox, alone: bool) -> bool {
        if self.releases.is_full() {
            return false;
        }
        // Requests that wait for the window must also get their turn if all requests in the other queue were cancelled.
        let next = match self.next_queued(now, roster, true) {
            Some(next) => Some((next, true, usize::MAX)),
            None if self.in_flight == self.window => None,
            None => self.next_queued(now, roster, false).map(|next| (next, false, self.window - self.in_flight)),
        };
        let Some(((common, id), fused, most)) = next else { return false };
        let is_told = outbox.announces() || self.recorder.is_some();
        let Self { requests, queued, queued_fused, group, .. } = self;
        let queue = if fused { queued_fused } else { queued };
        let mut count = 0;
        // The attachment that a request waits for can only be said in a frame of its own.
        let is_single = common.if_gone.attachment() != 0 || requests.get(id).is_some_and(PendingRequest::is_of_rows);
        if alone || most == 1 || queue.len() == 1 || is_single {
            queue.pop_front();
            let Common { timeout_ms, consumer, place: producer, if_gone, .. } = common;
            let PendingRequest { step, key, rows, .. } = requests.get_mut(id).expect("just looked at").begin();
            if let Some(rows) = rows.as_ref().map(NamedRowsBuf::as_rows) {
                let (min_version, fail_if_gone) = (*step, if_gone.fails());
                let request = RowRequest { id, min_version, timeout_ms, consumer, producer, fail_if_gone, rows };
                outbox.stage(|writer| writer.rows(&request));
            } else {
                let request = Request { id, step: *step, timeout_ms, consumer, producer, if_gone, key };
                outbox.stage(|writer| writer.request(&request));
            }
            group.extend(is_told.then_some(id));
            count = 1;
        } else {
            outbox.stage(|writer| {
                let mut frame =
                    writer.requests(common.timeout_ms, (common.consumer, common.place), common.if_gone.fails());
                let mut bytes = 0;
                while count < most
                    && bytes < GROUP_BYTES
                    && let Some(&id) = queue.front()
                {
                    if let Some(request) = requests.get_mut(id) {
                        if !common.has(request, now) {
                            break;
                        }
                        let PendingRequest { step, key, .. } = request.begin();
                        frame.push(id, *step, key);
                        bytes += REQUEST_ENTRY_BYTES + key.len();
                        count += 1;
                        if is_told {
                            group.push(id);
                        }
                    }
                    queue.pop_front();
                }
                frame.end();
            });
        }
        self.in_flight += if fused { 0 } else { count };
        if is_told {
            self.tell_staged(outbox);
        }
        true
    }

    /// The next request to send, and what others must have in common with it to share its frame.
    #[inline]
    fn next_queued(&mut self, now: Instant, roster: &Roster, fused: bool) -> Option<(Common, Handle)> {
        let queue = if fused { &mut self.queued_fused } else { &mut self.queued };
        while let Some(&id) = queue.front() {
            if let Some(&PendingRequest { consumer, producer, deadline, if_gone, .. }) = self.requests.get(id)
                && let Some(place) = roster.place_of(producer)
            {
                let timeout_ms = timeout_ms(deadline, now);
                return Some((Common { consumer, producer, place, deadline, timeout_ms, if_gone }, id));
            }
            queue.pop_front();
        }
        None
    }

    /// Tells the link where the answers to the requests of a frame are to be written, and the trace that these requests leave.
    fn tell_staged(&mut self, outbox: &mut Outbox) {
        for id in self.group.drain(..) {
            trace::tell(self.recorder.as_ref(), id, || Moment::RecvOnTheWire);
            let request = self.requests.get_mut(id).expect("just looked at");
            if outbox.announces()
                && let Some(destination) = &mut request.destination
                && destination.len() > INLINE_PAYLOAD_BYTES
                && (destination.device().is_none() || outbox.reaches(destination.direct(), destination.len()))
            {
                request.announced = true;
                outbox.announce(Announcement { request: id, spot: Spot::of(destination) });
            }
        }
    }

    /// All open requests will be sent again, in slot order; requests for tasks that the peer does not serve end.
    pub(super) fn resume<D>(&mut self, roster: &Roster, peer: &str, events: &mut VecDeque<Event<W, D>>) {
        let strangers = self.requests.select(|request| roster.place_of(request.producer).is_none());
        for handle in strangers {
            self.end(handle, not_served(peer), events);
        }
    }

    /// Removes a request and tells its waiter why; false if it has already ended.
    fn end<D>(&mut self, handle: Handle, error: Error, events: &mut VecDeque<Event<W, D>>) -> bool {
        let Some(request) = self.remove(handle) else { return false };
        let outcome = Err(Unreceived { error, destination: request.destination });
        if let Some(waiter) = request.waiter {
            events.push_back(Event::RequestEnded { waiter, outcome: Box::new(outcome) });
        }
        true
    }

    /// The link is gone. Memory that a landing has from the consumer goes back to its request, memory from the slab to the
    /// slab.
    pub(super) fn suspend(&mut self, landings: Vec<Landing>) {
        self.releases.rewind();
        self.in_flight = 0;
        self.queued.clear();
        self.queued_fused.clear();
        for landing in landings {
            if let Landing { request, of: LandingOf::Response, place: Place::Buffer(buffer), .. } = landing
                && let Some(request) = self.requests.get_mut(request)
                && request.brought
            {
                request.destination = Some(buffer);
            }
        }
        for (handle, request) in self.requests.iter_mut() {
            (request.state, request.announced) = (State::Queued, false);
            let queue = if request.fused { &mut self.queued_fused } else { &mut self.queued };
            queue.push_back(handle);
        }
    }

    pub(super) fn end_sent<D>(&mut self, error: &Error, events: &mut VecDeque<Event<W, D>>) {
        self.end_those(|request| request.was_sent, error, events);
        self.releases = ReleaseLog::default();
    }

    /// The peer no longer knows any request or release.
    pub(super) fn forget_sent(&mut self) {
        self.requests.iter_mut().for_each(|(_, request)| request.was_sent = false);
        self.releases = ReleaseLog::default();
    }

    fn end_those<D>(
        &mut self,
        mut pick: impl FnMut(&PendingRequest<W>) -> bool,
        error: &Error,
        events: &mut VecDeque<Event<W, D>>,
    ) -> Vec<Handle> {
        let handles = self.requests.select(&mut pick);
        for &handle in &handles {
            self.end(handle, error.clone(), events);
        }
        handles
    }

    /// Ends the requests of `consumer` in `step`, from one producer or from all.
    fn end_step<D>(
        &mut self,
        (consumer, step): (u16, i64),
        producer: Option<u32>,
        error: &Error,
        events: &mut VecDeque<Event<W, D>>,
    ) -> Vec<Handle> {
        let is_meant = |request: &PendingRequest<W>| {
            (request.consumer, request.step) == (consumer, step)
                && !request.is_of_rows()
                && producer.is_none_or(|number| number == request.producer)
        };
        let mut handles = self.steps.of((u32::from(consumer), step));
        handles.retain(|&handle| self.requests.get(handle).is_some_and(is_meant));
        for &handle in &handles {
            self.end(handle, error.clone(), events);
        }
        handles
    }

    pub(super) fn expire<D>(
        &mut self,
        now: Instant,
        awaited: &Awaited<'_>,
        control: &mut ControlQueue,
        events: &mut VecDeque<Event<W, D>>,
    ) {
        if !self.deadlines.is_due(now) {
            return;
        }
        for handle in self.requests.select(|request| request.deadline <= now) {
            let request = self.requests.get(handle).expect("just selected");
            if request.state != State::Queued {
                control.push(Control::Cancel(handle));
            }
            let waited = request.deadline.saturating_duration_since(request.since);
            let operation = if request.is_of_rows() { Operation::Pull } else { Operation::Recv };
            let awaited = awaited.of(request.producer, request.missing());
            let error = Error::late(operation, request.step, request.key.as_str(), waited, awaited);
            self.end(handle, error, events);
        }
        self.deadlines = Sweep::after(now, self.requests.slots());
        self.deadlines.extend(self.requests.iter().map(|(_, request)| request.deadline));
    }

    /// A request waits at the producer, for this attachment of its task; repeated when the task attaches.
    pub(super) fn parked(&mut self, id: Handle, attachment: u32) {
        let Some(request) = self.requests.get_mut(id) else { return };
        request.if_gone.told(attachment);
        if request.state == State::Sent {
            request.state = State::Parked;
            self.in_flight -= usize::from(!request.fused);
        }
    }

    pub(super) fn failed<D>(
        &mut self,
        id: Handle,
        code: u8,
        peer: &str,
        reason: &str,
        events: &mut VecDeque<Event<W, D>>,
    ) {
        let Some(step) = self.requests.get(id).map(|request| request.step) else { return };
        self.end(id, Error::from_wire(code, peer, step, reason), events);
    }

    /// Finds the place for a tensor that begins to arrive. This is device memory only with the outbox of a link that will write
    /// there directly. A tensor that nobody waits for, or that does not fit, is read and returned to its producer.
    ///
    /// # Errors
    /// The peer keeps answering what was not requested; each such answer would leave a release behind.
    pub(super) fn land<D>(
        &mut self,
        response: &Response<'_>,
        outbox: Option<&mut Outbox>,
        memory: &dyn ReceiveMemory,
        events: &mut VecDeque<Event<W, D>>,
    ) -> Result<Landing, WireError> {
        self.check_flood(response.id.to_bits())?;
        let place = self.place(response, outbox, memory, events);
        let what = (LandingOf::Response, Meta::from_slice(response.meta));
        let bytes = (response.payload_bytes, response.transfer);
        Ok(Landing::new((response.id, response.token), what, place, bytes))
    }

    pub(super) fn check_flood(&self, id: u64) -> Result<(), WireError> {
        if self.releases.is_flooded(self.requests_max) {
            return Err(WireError::BadValue { what: "answer past all requests", found: id });
        }
        Ok(())
    }

    #[inline(always)]
    fn place<D>(
        &mut self,
        response: &Response<'_>,
        outbox: Option<&mut Outbox>,
        memory: &dyn ReceiveMemory,
        events: &mut VecDeque<Event<W, D>>,
    ) -> Place {
        let Some(request) = self.requests.get_mut(response.id) else { return Place::Nowhere };
        let bytes = response.payload_bytes;
        // The peer writes to the announced place, whatever has become of the memory since.
        let announced = request.announced && bytes > INLINE_PAYLOAD_BYTES as u64;
        let reaches = |outbox: &mut Outbox, destination: &Buffer| {
            announced || outbox.reaches(destination.direct(), bytes as usize)
        };
        let refusal = if bytes > self.tensor_bytes_max {
            let limit = self.tensor_bytes_max;
            Error::full("transport.tensor_bytes_max", format!("the tensor has {bytes} bytes, the limit is {limit}"))
        } else {
            let fits = match &request.destination {
                Some(destination) => check_room(destination.len(), request.meta.as_deref(), response.meta, bytes),
                None => Ok(()),
            };
            match fits.map(|()| request.destination.take()) {
                // The destination stays with its request, and is written once the whole tensor has arrived.
                Ok(Some(destination))
                    if destination.device().is_some()
                        && !outbox.is_some_and(|outbox| reaches(outbox, &destination)) =>
                {
                    request.destination = Some(destination);
                    match memory.allocate(request.consumer, bytes as usize) {
                        Ok(buffer) => return Place::Bounce(Box::new(buffer)),
                        Err(full) => full,
                    }
                }
                Ok(Some(destination)) => return Place::Buffer(destination),
                Err(misfit) => misfit,
                Ok(None) => match memory.allocate(request.consumer, bytes as usize) {
                    Ok(buffer) => return Place::Buffer(buffer),
                    Err(full) => full,
                },
            }
        };
        self.end(response.id, refusal, events);
        Place::Nowhere
    }

    /// True if the peer may still write to the memory of this answer: the answer did not come to the announced place, or not as
    /// announced. If its request no longer exists, it may have been announced.
    fn is_open(&self, landing: &Landing) -> bool {
        let Place::Buffer(_) = landing.place else { return false };
        !landing.is_closed && self.requests.get(landing.request).is_none_or(|request| request.announced)
    }

    /// Keeps an answer until the link has closed the memory that it lies in and hands it over again.
    fn hold(&mut self, landing: Landing) {
        if let Some(request) = self.requests.get_mut(landing.request) {
            request.announced = false;
        }
        self.revoked.push(Revocation { request: landing.request, kept: Kept::Response(landing) });
    }

    /// A tensor has fully arrived: its waiter gets it, and its producer the release. If places are announced, the peer must
    /// first have lost access to the memory.
    pub(super) fn landed<D>(
        &mut self,
        landing: Landing,
        announces: bool,
        sink: &mut Option<&mut dyn Sink<W, D>>,
        events: &mut VecDeque<Event<W, D>>,
    ) {
        if announces && self.is_open(&landing) {
            return self.hold(landing);
        }
        if announces && matches!(landing.place, Place::Bounce(_)) && self.is_announced(landing.request) {
            return self.hold_on_device(landing, events);
        }
        let is_taken = match landing.place {
            Place::Buffer(buffer) if buffer.device().is_some() => {
                self.land_directly(landing.request, (&landing.meta, landing.total), buffer, sink, events)
            }
            Place::Buffer(mut buffer) => self.finish(landing.request, landing.total).is_some_and(|finished| {
                buffer.truncate(landing.total);
                deliver(finished, &landing.meta, buffer, sink, events)
            }),
            Place::Bounce(bounce) => self.land_on_device(landing.request, &landing.meta, &bounce, sink, events),
            Place::Nowhere => false,
        };
        self.releases.push(landing.token, is_taken);
    }

    fn is_announced(&self, request: Handle) -> bool {
        self.requests.get(request).is_some_and(|request| request.announced)
    }

    /// An answer came into host memory although a place in device memory was announced for it. It is copied there, and held
    /// like any answer that did not come as announced.
    #[cold]
    fn hold_on_device<D>(&mut self, mut landing: Landing, events: &mut VecDeque<Event<W, D>>) {
        let request = self.requests.get_mut(landing.request);
        if let Place::Bounce(bounce) = &landing.place
            && let Some(destination) = request.and_then(|request| request.destination.as_mut())
        {
            if let Err(error) = destination.write(0, bounce.volatile()) {
                self.end(landing.request, error.into(), events);
                self.releases.push(landing.token, false);
                return;
            }
            let request = self.requests.get_mut(landing.request);
            let destination = request.and_then(|request| request.destination.take()).expect("just looked at");
            landing.place = Place::Buffer(destination);
        }
        self.hold(landing);
    }

    /// A tensor has fully arrived in device memory, written there by the link. Returns false as
    /// [`land_on_device`](Self::land_on_device) does.
    #[cold]
    fn land_directly<D>(
        &mut self,
        id: Handle,
        (meta, bytes): (&[u8], usize),
        mut buffer: Buffer,
        sink: &mut Option<&mut dyn Sink<W, D>>,
        events: &mut VecDeque<Event<W, D>>,
    ) -> bool {
        if let Err(error) = buffer.flush() {
            if let Some(request) = self.requests.get_mut(id) {
                (request.destination, request.announced) = (Some(buffer), false);
            }
            self.end(id, error.into(), events);
            return false;
        }
        buffer.truncate(bytes);
        self.finish(id, bytes).is_some_and(|finished| deliver(finished, meta, buffer, sink, events))
    }

    /// A tensor has fully arrived in host memory: copies it to the device memory that came with its request, and tells the
    /// waiter. False if it is not taken: nobody waits, or the copy has failed, which the waiter is told.
    ///
    /// An asynchronous copy would begin here: both memories, waiter and token would then wait for its completion, polled with
    /// the session's other events.
    #[cold]
    fn land_on_device<D>(
        &mut self,
        id: Handle,
        meta: &[u8],
        bounce: &Buffer,
        sink: &mut Option<&mut dyn Sink<W, D>>,
        events: &mut VecDeque<Event<W, D>>,
    ) -> bool {
        let Some(destination) = self.requests.get_mut(id).and_then(|request| request.destination.as_mut()) else {
            return false;
        };
        if let Err(error) = destination.write(0, bounce.volatile()) {
            self.end(id, error.into(), events);
            return false;
        }
        let destination = self.requests.get_mut(id).and_then(|request| request.destination.take());
        let (Some(mut destination), Some(finished)) = (destination, self.finish(id, bounce.len())) else {
            unreachable!("just looked at")
        };
        destination.truncate(bounce.len());
        deliver(finished, meta, destination, sink, events)
    }

    /// Takes in a tensor that came whole within its frame.
    ///
    /// # Errors
    /// As [`land`](Self::land).
    #[inline]
    pub(super) fn take<D>(
        &mut self,
        small: &SmallResponse<'_>,
        announces: bool,
        memory: &dyn ReceiveMemory,
        sink: &mut Option<&mut dyn Sink<W, D>>,
        events: &mut VecDeque<Event<W, D>>,
    ) -> Result<(), WireError> {
        let SmallResponse { id, token, meta, payload } = *small;
        self.check_flood(id.to_bits())?;
        let response = Response { id, token, payload_bytes: payload.len() as u64, transfer: 0, meta };
        let mut buffer = match self.place(&response, None, memory, events) {
            Place::Buffer(buffer) => buffer,
            Place::Bounce(mut bounce) => {
                bounce.volatile_mut().copy_from(payload);
                if announces && self.is_announced(id) {
                    let bytes = (payload.len() as u64, 0);
                    let what = (LandingOf::Response, Meta::from_slice(meta));
                    let mut landing = Landing::new((id, token), what, Place::Bounce(bounce), bytes);
                    landing.advance(payload.len());
                    self.hold_on_device(landing, events);
                    return Ok(());
                }
                let is_taken = self.land_on_device(id, meta, &bounce, sink, events);
                self.releases.push(token, is_taken);
                return Ok(());
            }
            Place::Nowhere => {
                self.releases.push(token, false);
                return Ok(());
            }
        };
        if announces && self.is_announced(id) {
            let bytes = (payload.len() as u64, 0);
            let what = (LandingOf::Response, Meta::from_slice(meta));
            let mut landing = Landing::new((id, token), what, Place::Buffer(buffer), bytes);
            landing.take(payload);
            self.hold(landing);
            return Ok(());
        }
        buffer.truncate(payload.len());
        buffer.volatile_mut().copy_from(payload);
        let finished = self.finish(id, payload.len()).expect("a request that has a place is open");
        let is_taken = deliver(finished, meta, buffer, sink, events);
        self.releases.push(token, is_taken);
        Ok(())
    }

    /// Removes a request whose tensor has arrived, and returns its waiter and when it was made.
    #[inline(always)]
    fn finish(&mut self, handle: Handle, bytes: usize) -> Option<(W, Instant)> {
        let in_flight = &mut self.in_flight;
        let finished = self.requests.retire(handle, |request| {
            *in_flight -= usize::from(request.state == State::Sent && !request.fused);
            reuse_key(&mut request.key);
            request.rows = None;
            (request.destination, request.meta) = (None, None);
            request.waiter.take().map(|waiter| (waiter, request.since))
        })?;
        trace::tell(self.recorder.as_ref(), handle, || Moment::RecvDelivered { bytes: bytes as u64 });
        self.steps.remove(handle);
        if self.requests.is_empty() {
            self.deadlines.clear();
        }
        finished
    }

    pub(super) fn acknowledge(&mut self, sequence: u64) -> bool {
        self.releases.acknowledge(sequence)
    }
}

/// Gives a waiter its tensor, through the sink if the owner has one, else as an event. False if the waiter refuses it.
#[inline(always)]
fn deliver<W, D>(
    (waiter, since): (W, Instant),
    meta: &[u8],
    buffer: Buffer,
    sink: &mut Option<&mut dyn Sink<W, D>>,
    events: &mut VecDeque<Event<W, D>>,
) -> bool {
    match sink {
        Some(sink) => sink.arrived(waiter, since, meta, buffer),
        None => {
            let arrived = Arrived { meta: Meta::from_slice(meta), buffer };
            events.push_back(Event::RequestEnded { waiter, outcome: Box::new(Ok(arrived)) });
            true
        }
    }
}

pub(super) fn not_served(peer: &str) -> Error {
    Error::NotFound {
        task: "asked".into(),
        reason: format!("{peer} answers but does not serve that task; compare the endpoint maps of both hosts").into(),
    }
}
