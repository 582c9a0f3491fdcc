//! A session taking in bytes: every frame of the peer ends here.

use std::time::Instant;

use sealane_runtime::{Buffer, Slab};

use super::control::Control;
use super::{Asked, Event, Session};
use crate::error::Error;
use crate::link::{Frames, Landing, Receiver};
use crate::wire::{self, Frame, Request, Response, WireError};

/// Memory for tensors that come without a place of their own.
pub trait ReceiveMemory {
    /// Exactly `len` bytes for a tensor that `consumer`, a task by its place in this side's greeting, has asked for.
    ///
    /// # Errors
    /// ResourceExhausted, which the consumer hears; the tensor stays with its producer.
    fn allocate(&self, consumer: u16, len: usize) -> Result<Buffer, Error>;
}

/// One slab for all tasks.
impl ReceiveMemory for Slab {
    fn allocate(&self, _consumer: u16, len: usize) -> Result<Buffer, Error> {
        Slab::allocate(self, len).map_err(|full| Error::full("runtime.slab_receive_bytes", full.to_string()))
    }
}

/// A session listening: lent to a link for one call of [`Link::receive`](crate::link::Link::receive).
pub struct Inbound<'a, W, D> {
    session: &'a mut Session<W, D>,
    memory: &'a dyn ReceiveMemory,
    now: Instant,
}

impl<W, D> Session<W, D> {
    /// Lends the session to a link. Tensors without a destination of their own land in `memory`.
    pub fn inbound<'a>(&'a mut self, now: Instant, memory: &'a dyn ReceiveMemory) -> Inbound<'a, W, D> {
        if self.events.is_empty() {
            self.event_keys.clear();
        }
        Inbound { session: self, memory, now }
    }

    /// Bytes came in: the peer lives.
    pub fn heard(&mut self, now: Instant) {
        if let Some(attached) = &mut self.attached {
            attached.heard = now;
            attached.pinged = None;
        }
    }

    fn handle_request(&mut self, request: &Request<'_>) -> Result<(), WireError> {
        let Some(attached) = &self.attached else { return Ok(()) };
        let Some(&consumer) = attached.roster.numbers.get(usize::from(request.consumer)) else {
            return Err(WireError::BadValue { what: "request's consumer", found: u64::from(request.consumer) });
        };
        if request.producer >= self.tasks {
            return Err(WireError::BadValue { what: "request's producer", found: u64::from(request.producer) });
        }
        if self.producer.answer_again(request.id) {
            return Ok(());
        }
        if let Some(limit) = self.producer.full(self.undecided) {
            let reason = format!("{limit} requests of this peer are parked or unreleased");
            self.refuse(request.id, &Error::full("fusion.parked_requests_max", reason));
            return Ok(());
        }
        self.undecided += 1;
        let start = self.event_keys.len();
        self.event_keys.push_str(request.key);
        self.events.push_back(Event::Asked(Asked {
            id: request.id,
            consumer,
            producer: request.producer,
            step: request.step,
            key: start..self.event_keys.len(),
        }));
        Ok(())
    }

    /// Every kind but the response, which brings bytes of its own.
    fn handle_frame(&mut self, now: Instant, frame: Frame<'_>) -> Result<(), WireError> {
        match frame {
            Frame::Request(request) => self.handle_request(&request)?,
            Frame::Response(_) => unreachable!("the caller lands responses"),
            Frame::Failure(failure) => {
                self.consumer.failed(failure.id, failure.code, &self.peer, failure.reason, &mut self.events);
            }
            Frame::Parked { id } => self.consumer.parked(id),
            Frame::Cancel { id } => self.events.push_back(Event::Withdrawn(id)),
            Frame::Release(release) => {
                let entries = release.entries.iter();
                match self.producer.release(release.sequence, entries, &mut self.events) {
                    Some(false) => {}
                    Some(true) => self.control.push_answer(Control::Released(self.producer.release_seen())),
                    None => return Err(WireError::BadValue { what: "release number", found: release.sequence }),
                }
            }
            Frame::Released { sequence } => {
                if !self.consumer.acknowledge(sequence) {
                    return Err(WireError::BadValue { what: "acknowledged release number", found: sequence });
                }
            }
            Frame::Resumed => self.producer.take_back_stale(&mut self.events),
            Frame::Abort(abort) => {
                let Some(attached) = &self.attached else { return Ok(()) };
                let Some(&peer_task) = attached.roster.numbers.get(usize::from(abort.task)) else {
                    return Err(WireError::BadValue { what: "abort's task", found: u64::from(abort.task) });
                };
                self.events.push_back(Event::Aborted { step: abort.step, peer_task, reason: abort.reason.into() });
            }
            Frame::Ping { nonce } => self.control.push_answer(Control::Pong(nonce)),
            Frame::Pong { .. } => self.heard(now),
            Frame::GoAway(away) => self.going_away = Some(away.reason.into()),
        }
        Ok(())
    }

    /// The peer's farewell, if it said one.
    pub fn farewell(&self) -> Option<&str> {
        self.going_away.as_deref()
    }
}

impl<W, D> Inbound<'_, W, D> {
    #[inline]
    fn land(&mut self, response: &Response<'_>) -> Result<Landing, WireError> {
        let session = &mut *self.session;
        session.consumer.land(response, self.memory, &mut session.events)
    }
}

impl<W, D> Receiver for Inbound<'_, W, D> {
    fn frames(&mut self, bytes: &[u8]) -> Result<Frames, WireError> {
        let mut consumed = 0;
        while let Some((frame, length)) = wire::parse(&bytes[consumed..])? {
            consumed += length;
            let Frame::Response(response) = frame else {
                self.session.handle_frame(self.now, frame)?;
                continue;
            };
            let mut landing = self.land(&response)?;
            consumed += landing.take(&bytes[consumed..]);
            if !landing.is_complete() {
                return Ok(Frames { consumed, landing: Some(landing) });
            }
            self.landed(landing);
        }
        Ok(Frames { consumed, landing: None })
    }

    #[inline]
    fn landed(&mut self, landing: Landing) {
        let session = &mut *self.session;
        session.consumer.landed(landing, &mut session.events);
    }
}
