//! The receive path of a session: every frame of the peer is handled here.

use std::time::Instant;

use sealane_runtime::{Buffer, Slab};

use super::control::Control;
use super::{Awaited, CameAhead, CameTogether, Event, PeerRequest, PeerRowRequest, Session, TakenTogether};
use crate::arena::Handle;
use crate::error::Error;
use crate::if_gone::IfGone;
use crate::link::{Frames, Landing, LandingOf, Place, Receiver};
use crate::payload::Payload;
use crate::tensor::{Tensor, TensorBatch};
use crate::wire::{
    self, Ahead, AheadFrame, AheadRecord, AheadRecords, AheadRelease, Ends, Fate, Frame, PullFrame, PushFrame, Release,
    Request, Response, RowRequest, WireError,
};

/// Provides memory for tensors that come without a destination of their own.
pub trait ReceiveMemory {
    /// Exactly `len` bytes for a tensor that `consumer` requested; `consumer` is a task's index in this side's task list.
    ///
    /// # Errors
    /// ResourceExhausted, which the consumer gets; the tensor stays with its producer.
    fn allocate(&self, consumer: u16, len: usize) -> Result<Buffer, Error>;

    /// As [`allocate`](Self::allocate), for a tensor of a pull, which stays there until the next pull overwrites it.
    ///
    /// # Errors
    /// As [`allocate`](Self::allocate).
    fn allocate_to_stay(&self, consumer: u16, len: usize) -> Result<Buffer, Error> {
        self.allocate(consumer, len)
    }
}

/// How often a sink may take nothing of a frame before the rest of its tensors come one by one: offering costs it more than
/// a tensor.
const LOOKS_IN_VAIN: u32 = 4;

/// An owner that takes requests, tensors and releases as they arrive, instead of as events afterwards.
pub trait Sink<W, D> {
    /// The peer requests a tensor, and no event waits: [respond](Session::respond), [park](Session::park) or
    /// [refuse](Session::refuse) it. The key is as received, unchecked.
    ///
    /// # Errors
    /// The key must be kept, and is not valid text.
    fn requested(&mut self, session: &mut Session<W, D>, request: &PeerRequest, key: &[u8]) -> Result<(), WireError>;

    /// The tensor of a request made at `since` arrived; false if its waiter no longer listens, so that the tensor goes back to
    /// its producer.
    fn arrived(&mut self, waiter: W, since: Instant, meta: &[u8], buffer: Buffer) -> bool;

    /// A tensor of this side was taken by its consumer.
    fn taken(&mut self, pending: D, payload: Payload);

    /// A small tensor came ahead of its request. Returns its fate, or `None` if it is kept and
    /// [released](Session::release_ahead) later.
    ///
    /// # Errors
    /// The key must be kept, and is not valid text.
    fn came_ahead(&mut self, _session: &mut Session<W, D>, _tensor: &CameAhead<'_>) -> Result<Option<Fate>, WireError> {
        Ok(Some(Fate::Returned))
    }

    /// True if [`came_together`](Self::came_together) may take any.
    fn looks_at_frames(&self) -> bool {
        false
    }

    /// Small tensors came ahead of their requests in one frame, and this side [looks at frames](Self::looks_at_frames). Returns
    /// how many of the first are all taken or all kept; it is called again for the rest. If it takes none, the first is passed
    /// to [`came_ahead`](Self::came_ahead) and this is called again, a few times per frame.
    fn came_together(&mut self, _frame: &CameTogether<'_>) -> TakenTogether {
        TakenTogether::default()
    }

    /// The peer wants a tensor that it sent ahead back: returns its cost if it was kept, and is kept no longer.
    fn revoked(&mut self, _number: u64, _of: KeyOf<'_>) -> Option<usize> {
        None
    }

    /// A tensor of the peer with this key waits to be requested.
    fn held(&mut self, _of: KeyOf<'_>) {}

    /// `_count` tensors that were [sent ahead](Session::send_ahead) for this pending send were taken.
    fn taken_ahead(&mut self, _pending: D, _count: u32) {
        unreachable!("none was sent")
    }

    /// A push came, within the credit of its stream.
    ///
    /// # Errors
    /// Why it is not taken after all.
    fn pushed(&mut self, stream: Handle, tensor: Tensor) -> Result<(), Untaken>;

    /// True if small pushes of a stream that came together should be passed to [`pushed_together`](Self::pushed_together).
    fn takes_together(&mut self, _stream: Handle) -> bool {
        false
    }

    /// Small pushes came together, within the credit of their stream; [`takes_together`](Self::takes_together) has just said
    /// yes.
    fn pushed_together(&mut self, _stream: Handle, _tensors: TensorBatch) {
        unreachable!("each comes by itself")
    }
}

/// A key and the tasks that it belongs to.
#[derive(Debug, Clone, Copy)]
pub struct KeyOf<'a> {
    /// The peer's task, by the owner's number for it.
    pub producer: u32,
    /// The task of this side, by its index in this side's list.
    pub consumer: u16,
    /// The step.
    pub step: i64,
    /// The key.
    pub key: &'a str,
}

/// Why a push was not taken.
#[derive(Debug, Clone, PartialEq)]
pub enum Untaken {
    /// The push fails with this error.
    Refused(Error),
    /// Nobody accepts from the queue: it is sent again when somebody does, after a [grant](super::Session::grant).
    Unaccepted,
}

/// One slab for all tasks.
impl ReceiveMemory for Slab {
    fn allocate(&self, _consumer: u16, len: usize) -> Result<Buffer, Error> {
        if len <= Buffer::OWN_BYTES {
            return Ok(Buffer::of_len(len));
        }
        Slab::allocate(self, len).map_err(|full| Error::full("runtime.slab_receive_bytes", full.to_string()))
    }
}

/// A session that is receiving: lent to a link for one call of [`Link::receive`](crate::link::Link::receive).
pub struct Inbound<'a, W, D> {
    session: &'a mut Session<W, D>,
    memory: &'a dyn ReceiveMemory,
    sink: Option<&'a mut dyn Sink<W, D>>,
    now: Instant,
}

impl<W, D: PartialEq + Clone> Session<W, D> {
    /// Lends the session to a link. Tensors without a destination of their own land in `memory`.
    pub fn inbound<'a>(&'a mut self, now: Instant, memory: &'a dyn ReceiveMemory) -> Inbound<'a, W, D> {
        if self.events.is_empty() {
            self.event_keys.clear();
        }
        Inbound { session: self, memory, sink: None, now }
    }

    /// As [`inbound`](Self::inbound), for an owner that takes tensors and releases as they come.
    pub fn inbound_to<'a>(
        &'a mut self,
        now: Instant,
        memory: &'a dyn ReceiveMemory,
        sink: &'a mut dyn Sink<W, D>,
    ) -> Inbound<'a, W, D> {
        Inbound { sink: Some(sink), ..self.inbound(now, memory) }
    }

    /// Bytes came in: the peer is alive.
    pub fn heard(&mut self, now: Instant) {
        if let Some(attached) = &mut self.attached {
            attached.heard = now;
            attached.pinged = None;
        }
    }

    /// The peer's requesting task, by the owner's number for it; checks that the requested task exists here.
    pub(super) fn requester(&self, consumer: u16, producer: u16) -> Result<Option<u32>, WireError> {
        let Some(attached) = &self.attached else { return Ok(None) };
        let Some(&number) = attached.roster.numbers.get(usize::from(consumer)) else {
            return Err(WireError::BadValue { what: "request's consumer", found: u64::from(consumer) });
        };
        if producer >= self.tasks {
            return Err(WireError::BadValue { what: "request's producer", found: u64::from(producer) });
        }
        Ok(Some(number))
    }

    /// The peer's sending task, by the owner's number for it; checks that the task of this side exists. `None` without a link.
    fn sending(&self, ends: Ends) -> Result<Option<u32>, WireError> {
        let Some(attached) = &self.attached else { return Ok(None) };
        let Some(&number) = attached.roster.numbers.get(usize::from(ends.producer)) else {
            return Err(WireError::BadValue { what: "sending task", found: u64::from(ends.producer) });
        };
        if ends.consumer >= self.tasks {
            return Err(WireError::BadValue { what: "task of a tensor sent ahead", found: u64::from(ends.consumer) });
        }
        Ok(Some(number))
    }

    /// False if the request was already answered, either on an earlier link or because the peer has too many.
    #[inline]
    fn admit(&mut self, id: Handle) -> bool {
        if self.producer.respond_again(id) {
            return false;
        }
        let Some(limit) = self.producer.full(self.undecided) else { return true };
        self.refuse_past(limit, id);
        false
    }

    #[cold]
    fn refuse_past(&mut self, limit: usize, id: Handle) {
        let reason = format!("{limit} requests of this peer are parked or unreleased");
        self.refuse(id, &Error::full("fusion.parked_requests_max", reason));
    }

    /// Queues a request as an event: the owner has no [`Sink`], or other events to handle first.
    fn keep_request(&mut self, mut request: PeerRequest, key: &str) {
        self.undecided += 1;
        let start = self.event_keys.len();
        self.event_keys.push_str(key);
        request.key = start..self.event_keys.len();
        self.events.push_back(Event::Requested(request));
    }

    /// Handles all kinds of frames except those with tensors, requests or releases.
    fn handle_frame(&mut self, now: Instant, frame: Frame<'_>) -> Result<(), WireError> {
        match frame {
            Frame::Request(_) | Frame::Requests(_) | Frame::Rows(_) => unreachable!("the caller takes these in"),
            Frame::Response(_) | Frame::Responses(_) | Frame::Chunk(_) => unreachable!("the caller lands these"),
            Frame::Ahead(_) => unreachable!("the caller takes these in"),
            Frame::Push(frame) => self.handle_push_frame(frame)?,
            Frame::Pull(frame) => self.handle_pull_frame(now, frame)?,
            Frame::Failure(failure) => {
                // If this process was stopped for a while, the peer may have failed a request whose deadline should have ended
                // it here first.
                let standing = self.standing();
                let awaited = Awaited { standing: &|_| standing.clone(), is_attached: true };
                self.consumer.expire(now, &awaited, &mut self.control, &mut self.events);
                self.consumer.failed(failure.id, failure.code, &self.peer, failure.reason, &mut self.events);
            }
            Frame::Parked { id, attachment } => self.consumer.parked(id, attachment),
            Frame::Cancel { id } => self.events.push_back(Event::Cancelled(id)),
            Frame::Release(_) => unreachable!("the caller takes these in"),
            Frame::Released { sequence } => {
                if !self.consumer.acknowledge(sequence) {
                    return Err(WireError::BadValue { what: "acknowledged release number", found: sequence });
                }
            }
            Frame::Resumed => {
                self.producer.take_back_stale(&mut self.events);
                self.ahead.take_back_stale(&mut self.events);
            }
            Frame::Abort(abort) => {
                let Some(attached) = &self.attached else { return Ok(()) };
                let Some(&peer_task) = attached.roster.numbers.get(usize::from(abort.task)) else {
                    return Err(WireError::BadValue { what: "abort's task", found: u64::from(abort.task) });
                };
                self.aborts += 1;
                self.events.push_back(Event::Aborted { step: abort.step, peer_task, reason: abort.reason.into() });
            }
            Frame::Ping { nonce } => self.control.push_answer(Control::Pong(nonce)),
            Frame::Pong { .. } => self.heard(now),
            Frame::GoAway(away) => self.going_away = Some(away.reason.into()),
        }
        Ok(())
    }

    fn handle_pull_frame(&mut self, now: Instant, frame: PullFrame<'_>) -> Result<(), WireError> {
        match frame {
            PullFrame::Part(_) | PullFrame::Parts(_) => unreachable!("the caller lands these"),
            PullFrame::KeySet(named) => self.set_named(&named)?,
            PullFrame::Forget { set } => self.set_forgotten(set),
            PullFrame::Pull(pull) => self.pull_requested(&pull),
            PullFrame::Metas(metas) => self.puller.learn(&metas)?,
            PullFrame::Failure(failure) => {
                let standing = self.standing();
                let awaited = Awaited { standing: &|_| standing.clone(), is_attached: true };
                self.puller.expire(now, &awaited, &mut self.control, &mut self.events);
                self.puller.failed(&failure, &self.peer, &mut self.control, &mut self.events);
            }
            PullFrame::Cancel { id } => self.server.cancel(id),
        }
        Ok(())
    }

    fn handle_push_frame(&mut self, frame: PushFrame<'_>) -> Result<(), WireError> {
        match frame {
            PushFrame::Push(_) | PushFrame::Pushes(_) => unreachable!("the caller lands these"),
            PushFrame::Open(open) => self.stream_opened(&open)?,
            PushFrame::Close { stream } => self.stream_closed(stream),
            PushFrame::Want(want) => self.push_wanted(&want)?,
            PushFrame::Grant(grant) => {
                self.pusher.granted(&grant, &mut self.events)?;
                self.pusher.close_if_done(grant.stream, &mut self.control);
            }
            PushFrame::Failure(failure) => {
                self.pusher.failed(&failure, &self.peer, &mut self.events)?;
                self.pusher.close_if_done(failure.stream, &mut self.control);
            }
        }
        Ok(())
    }

    /// The reason of the peer's goodbye, if it said one.
    pub fn farewell(&self) -> Option<&str> {
        self.going_away.as_deref()
    }
}

impl<W, D: PartialEq + Clone> Inbound<'_, W, D> {
    #[inline]
    fn land(&mut self, response: &Response<'_>, is_aside: bool) -> Result<Landing, WireError> {
        let session = &mut *self.session;
        let outbox = Some(&mut session.outbox).filter(|_| is_aside);
        session.consumer.land(response, outbox, self.memory, &mut session.events)
    }

    /// Takes in a request; the fields common to its frame are separate.
    #[inline]
    fn requested<'k>(
        &mut self,
        (consumer, producer, timeout_ms, if_gone): (u16, u16, u32, IfGone),
        requests: impl Iterator<Item = Result<(Handle, i64, &'k [u8]), WireError>>,
    ) -> Result<(), WireError> {
        let session = &mut *self.session;
        let Some(consumer) = session.requester(consumer, producer)? else { return Ok(()) };
        for request in requests {
            let (id, step, key) = request?;
            if !session.admit(id) {
                continue;
            }
            let request = PeerRequest { id, consumer, producer, step, timeout_ms, if_gone, key: 0..0 };
            match &mut self.sink {
                // Not before earlier events: a request may replace a cancelled one, and must come behind its cancellation.
                Some(sink) if session.events.is_empty() => sink.requested(session, &request, key)?,
                _ => session.keep_request(request, wire::text("key", key)?),
            }
        }
        Ok(())
    }

    /// Takes in a request for rows.
    fn rows_requested(&mut self, request: &RowRequest<'_>) -> Result<(), WireError> {
        let RowRequest { id, min_version, timeout_ms, consumer, producer, fail_if_gone, rows } = *request;
        let session = &mut *self.session;
        if let Some(consumer) = session.requester(consumer, producer)?
            && session.admit(id)
        {
            session.undecided += 1;
            let rows = rows.into();
            let request = PeerRowRequest { id, consumer, producer, min_version, timeout_ms, fail_if_gone, rows };
            session.events.push_back(Event::RowsRequested(Box::new(request)));
        }
        Ok(())
    }

    fn released(&mut self, release: &Release<'_>) -> Result<(), WireError> {
        let Session { producer, events, control, .. } = &mut *self.session;
        let seen_before = producer.seen_before(release.sequence)?;
        for entry in release.entries.iter().skip(seen_before) {
            producer.count_release();
            producer.release(entry, &mut self.sink, events);
        }
        control.extend_answers(producer.acknowledgement().map(Control::Released));
        Ok(())
    }

    /// Like `released`, for tensors that were sent ahead.
    fn released_ahead(&mut self, release: &AheadRelease<'_>) -> Result<(), WireError> {
        let Session { producer, ahead, events, control, .. } = &mut *self.session;
        let seen_before = producer.seen_before(release.sequence)?;
        for entry in release.iter().skip(seen_before) {
            producer.count_release();
            ahead.ended(entry?, &mut self.sink, events)?;
        }
        control.extend_answers(producer.acknowledgement().map(Control::Released));
        Ok(())
    }

    /// Takes in a frame about tensors that are sent ahead.
    #[inline]
    fn ahead(&mut self, frame: AheadFrame<'_>) -> Result<(), WireError> {
        match frame {
            AheadFrame::Tensors(ahead) => self.came_ahead(&ahead),
            AheadFrame::Release(release) => self.released_ahead(&release),
            AheadFrame::Revoke { number, ends, key } => {
                let Some(of) = self.key_of(ends, key)? else { return Ok(()) };
                if let Some(cost) = self.sink.as_mut().and_then(|sink| sink.revoked(number, of)) {
                    self.session.release_ahead((number, 1), cost, Fate::Returned);
                }
                Ok(())
            }
            AheadFrame::Held { ends, key } => {
                if let Some(of) = self.key_of(ends, key)?
                    && let Some(sink) = &mut self.sink
                {
                    sink.held(of);
                }
                Ok(())
            }
        }
    }

    /// A key with its tasks; `None` without a link.
    fn key_of<'k>(&self, ends: Ends, key: &'k str) -> Result<Option<KeyOf<'k>>, WireError> {
        let producer = self.session.sending(ends)?;
        Ok(producer.map(|producer| KeyOf { producer, consumer: ends.consumer, step: ends.step, key }))
    }

    #[inline]
    fn came_ahead(&mut self, ahead: &Ahead<'_>) -> Result<(), WireError> {
        let session = &mut *self.session;
        let Some(producer) = session.sending(ahead.ends)? else { return Ok(()) };
        // Counting on from numbers that no sender reaches would overflow.
        if ahead.first < session.ahead_next || ahead.first >> 63 != 0 {
            return Err(WireError::BadValue { what: "number of a tensor sent ahead", found: ahead.first });
        }
        session.consumer.check_flood(ahead.first)?;
        let Ends { step, consumer, .. } = ahead.ends;
        let (mut number, mut records, mut in_vain) = (ahead.first, ahead.records, 0);
        // A tensor that comes behind the abort of a step must not reach a recv that the abort ends: the owner has not handled
        // it yet.
        let mut no_sink = None;
        let sink = if session.aborts == 0 { &mut self.sink } else { &mut no_sink };
        while !records.is_empty() {
            let mut together = sink.as_mut().filter(|sink| in_vain < LOOKS_IN_VAIN && sink.looks_at_frames());
            if let Some(sink) = &mut together {
                let taken = sink.came_together(&CameTogether { first: number, producer, consumer, step, records });
                if taken.count > 0 {
                    match taken.kept {
                        Some(cost) => session.keep_ahead(cost)?,
                        None => session.consumer.release_ahead(number, taken.count, Fate::Taken),
                    }
                    number += u64::from(taken.count);
                    records = match taken.is_all {
                        true => AheadRecords::default(),
                        false => records.after(taken.count as usize)?,
                    };
                    continue;
                }
            }
            in_vain += 1;
            let (singles, mut meta): (_, &[u8]) = (if together.is_some() { 1 } else { usize::MAX }, &[]);
            for record in records.iter().take(singles) {
                let AheadRecord { key, meta: own, payload } = record?;
                meta = own.unwrap_or(meta);
                let came = CameAhead { number, producer, consumer, step, key, meta, payload };
                let fate = match &mut *sink {
                    Some(sink) => sink.came_ahead(session, &came)?,
                    None => Some(Fate::Returned),
                };
                match fate {
                    Some(fate) => session.consumer.release_ahead(number, 1, fate),
                    None => session.keep_ahead(came.cost())?,
                }
                number += 1;
            }
            records = if singles == 1 { records.after(1)? } else { AheadRecords::default() };
        }
        session.came.tensors += number - ahead.first;
        session.ahead_next = number;
        Ok(())
    }
}

impl<W, D: PartialEq + Clone> Receiver for Inbound<'_, W, D> {
    fn frames(&mut self, bytes: &[u8]) -> Result<Frames, WireError> {
        let mut consumed = 0;
        while let Some((frame, length)) = wire::parse(&bytes[consumed..])? {
            consumed += length;
            self.session.came.messages += 1;
            // If the link moves a payload by itself, none of its bytes are among the frames.
            let is_aside = |transfer| transfer == 0 && consumed == bytes.len();
            let mut landing = match frame {
                Frame::Response(response) => {
                    self.session.landings.check(response.transfer, response.payload_bytes)?;
                    self.land(&response, is_aside(response.transfer))?
                }
                Frame::Pull(PullFrame::Parts(parts)) => {
                    let session = &mut *self.session;
                    session.came.tensors += session.puller.take(&parts, self.memory, &mut session.events)?;
                    continue;
                }
                Frame::Push(PushFrame::Pushes(pushes)) => {
                    self.session.pushes_came(&pushes, self.memory, &mut self.sink)?;
                    continue;
                }
                Frame::Push(PushFrame::Push(push)) => {
                    self.session.landings.check(push.transfer, push.payload_bytes)?;
                    self.session.push_lands(&push, self.memory)?
                }
                Frame::Pull(PullFrame::Part(part)) => {
                    let session = &mut *self.session;
                    session.landings.check(part.transfer, part.payload_bytes)?;
                    let outbox = Some(&mut session.outbox).filter(|_| is_aside(part.transfer));
                    session.puller.land(&part, outbox, self.memory, &mut session.events)?
                }
                Frame::Chunk(chunk) => self.session.landings.resume(chunk)?,
                Frame::Responses(responses) => {
                    let session = &mut *self.session;
                    let announces = session.outbox.announces();
                    for small in responses.iter() {
                        session.came.tensors += 1;
                        session.consumer.take(&small?, announces, self.memory, &mut self.sink, &mut session.events)?;
                    }
                    continue;
                }
                Frame::Release(release) => {
                    self.released(&release)?;
                    continue;
                }
                Frame::Ahead(frame) => {
                    self.ahead(frame)?;
                    continue;
                }
                Frame::Request(Request { id, step, timeout_ms, consumer, producer, if_gone, key }) => {
                    let request = std::iter::once(Ok((id, step, key.as_bytes())));
                    self.requested((consumer, producer, timeout_ms, if_gone), request)?;
                    continue;
                }
                Frame::Rows(rows) => {
                    self.rows_requested(&rows)?;
                    continue;
                }
                Frame::Requests(requests) => {
                    let if_gone = IfGone::new(requests.fail_if_gone);
                    let common = (requests.consumer, requests.producer, requests.timeout_ms, if_gone);
                    self.requested(common, requests.iter())?;
                    continue;
                }
                frame => {
                    self.session.handle_frame(self.now, frame)?;
                    continue;
                }
            };
            self.session.landings.admit(&landing)?;
            consumed += landing.take(&bytes[consumed..]);
            if !landing.is_complete() {
                self.session.landings.begin_filling(&landing);
                return Ok(Frames { consumed, landing: Some(landing) });
            }
            self.landed(landing);
        }
        Ok(Frames { consumed, landing: None })
    }

    #[inline]
    fn landed(&mut self, landing: Landing) {
        let session = &mut *self.session;
        session.landings.end_filling(&landing);
        if landing.filled < landing.total {
            return session.landings.keep(landing);
        }
        session.came.tensors += 1;
        match (landing.of, landing.place) {
            (LandingOf::Part { index, version, known }, Place::Buffer(memory)) => {
                session.puller.landed(landing.request, (index, version, &known), memory, &mut session.events);
            }
            (LandingOf::Push { number }, Place::Buffer(memory)) => {
                session.push_landed(landing.request, number, (&landing.meta, memory), &mut self.sink);
            }
            // A pull buffer keeps its device memory itself, and pushes arrive in host memory.
            (LandingOf::Part { .. } | LandingOf::Push { .. }, Place::Nowhere | Place::Bounce(_))
            | (LandingOf::GivenUp, _) => {}
            (of @ LandingOf::Response, place) => {
                let (landing, announces) = (Landing { of, place, ..landing }, session.outbox.announces());
                session.consumer.landed(landing, announces, &mut self.sink, &mut session.events);
            }
        }
    }
}
