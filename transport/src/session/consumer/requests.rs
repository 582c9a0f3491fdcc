//! The owner's operations on requests: create, cancel, end and move.

use std::time::{Duration, Instant};

use super::{HAS_WAITER, PendingRequest, RequestOptions, RequestParams, State, not_served};
use crate::arena::Handle;
use crate::call::Unreceived;
use crate::destination::Destination;
use crate::error::Error;
use crate::if_gone::IfGone;
use crate::limits::KEY_BYTES_MAX;
use crate::named_rows::{NamedRows, NamedRowsBuf};
use crate::session::Session;
use crate::session::control::Control;
use crate::trace::{self, Moment};

impl<W, D: PartialEq + Clone> Session<W, D> {
    /// Requests a tensor from the peer; the answer comes as [`Event::RequestEnded`](crate::session::Event::RequestEnded).
    ///
    /// # Errors
    /// ResourceExhausted if `fusion.queued_requests_max` requests exist, InvalidArgument if the key is too long,
    /// NotFound if the attached peer does not serve the task, Unavailable if the peer is going away. Each returns the waiter
    /// and the destination.
    #[inline]
    pub fn request(&mut self, now: Instant, params: RequestParams<'_, W>) -> Result<Handle, (Unreceived, W)> {
        self.request_as(now, params, RequestOptions::default())
    }

    /// As [`request`](Self::request), for one of many requested together: it does not count against the window.
    ///
    /// # Errors
    /// As [`request`](Self::request).
    #[inline]
    pub fn request_fused(&mut self, now: Instant, params: RequestParams<'_, W>) -> Result<Handle, (Unreceived, W)> {
        self.request_as(now, params, RequestOptions { fused: true, ..RequestOptions::default() })
    }

    /// Requests rows of tables that the peer has published. The key is a name for messages, the step the oldest version that
    /// will do. Ends as for [`request_fused`](Self::request_fused).
    ///
    /// # Errors
    /// As [`request`](Self::request).
    pub fn request_rows(
        &mut self,
        now: Instant,
        params: RequestParams<'_, W>,
        rows: NamedRows<'_>,
        fail_if_gone: bool,
    ) -> Result<Handle, (Unreceived, W)> {
        let handle = self.request_as(now, params, RequestOptions { fused: true, fail_if_gone })?;
        self.consumer.requests.get_mut(handle).expect("just asked for").rows = Some(rows.into());
        Ok(handle)
    }

    /// [`request`](Self::request) or [`request_fused`](Self::request_fused), according to `options`.
    ///
    /// # Errors
    /// As [`request`](Self::request).
    #[inline]
    pub fn request_as(
        &mut self,
        now: Instant,
        params: RequestParams<'_, W>,
        options: RequestOptions,
    ) -> Result<Handle, (Unreceived, W)> {
        if let Some(error) = self.refusal(&params) {
            return Err((Unreceived::returning(error, params.destination), params.waiter));
        }
        let (consumer, RequestOptions { fused, fail_if_gone }) = (&mut self.consumer, options);
        let (handle, request) = consumer.requests.renew(PendingRequest::nothing).expect("there is room");
        (request.consumer, request.producer, request.step) = (params.consumer, params.producer, params.step);
        request.key.push_str(params.key);
        (request.since, request.deadline, request.state) = (now, params.deadline, State::Queued);
        (request.was_sent, request.announced, request.fused) = (false, false, fused);
        request.if_gone = IfGone::new(fail_if_gone);
        request.brought = params.destination.is_some();
        let (destination, meta) = params.destination.map(Destination::into_parts).unzip();
        (request.destination, request.meta) = (destination, meta.flatten());
        request.waiter = Some(params.waiter);
        debug_assert!(!request.is_of_rows(), "the tensor would be asked for as rows");
        let (step, key) = (params.step, params.key);
        trace::tell(consumer.recorder.as_ref(), handle, || Moment::RecvQueued { step, key: key.into() });
        consumer.steps.add(handle, (u32::from(params.consumer), params.step));
        consumer.queue(handle, fused);
        consumer.deadlines.enter(params.deadline);
        Ok(handle)
    }

    /// Why a request cannot be made; `None` if it can.
    #[inline]
    fn refusal(&mut self, params: &RequestParams<'_, W>) -> Option<Error> {
        if params.key.len() > KEY_BYTES_MAX {
            let reason = format!("the key has {} bytes, at most {KEY_BYTES_MAX} are accepted", params.key.len());
            return Some(Error::invalid(reason));
        }
        if let Some(reason) = &self.going_away {
            return Some(Error::unavailable(&self.peer, reason.clone()));
        }
        if let Some(attached) = &self.attached
            && attached.roster.place_of(params.producer).is_none()
        {
            return Some(not_served(&self.peer));
        }
        let consumer = &mut self.consumer;
        consumer.requests.prune(&mut consumer.queued);
        consumer.requests.prune(&mut consumer.queued_fused);
        consumer.requests.is_full().then(|| {
            let reason = format!("{} requests to {} are already waiting", self.limits.queued_requests_max, self.peer);
            Error::full("fusion.queued_requests_max", reason)
        })
    }

    /// Cancels a request: no answer is reported for it. Returns its waiter, and its destination unless the tensor is being
    /// written to it right now; `None` if the request has already ended.
    pub fn cancel(&mut self, handle: Handle) -> Option<(W, Option<Destination>)> {
        let known = self.consumer.requests.get(handle)?.state != State::Queued;
        let request = self.consumer.remove(handle)?;
        if known && self.attached.is_some() {
            self.control.push(Control::Cancel(handle));
        }
        let destination = request.destination.map(|memory| Destination::from_parts(memory, request.meta));
        Some((request.waiter?, destination))
    }

    /// Cancels a request whose tensor is not arriving right now, and returns its destination. `None` if it may be arriving, or
    /// if the request has ended.
    pub fn cancel_unanswered(&mut self, handle: Handle) -> Option<Option<Destination>> {
        let request = self.consumer.requests.get(handle)?;
        if request.announced || (request.brought && request.destination.is_none()) {
            return None;
        }
        self.cancel(handle).map(|(_, destination)| destination)
    }

    /// True until this request has ended or was taken out.
    pub fn is_waiting(&self, handle: Handle) -> bool {
        self.consumer.requests.get(handle).is_some()
    }

    /// Ends this side's requests of `step` between `consumer` and `producer` with `error`.
    pub fn end_requests(&mut self, step: i64, consumer: u16, producer: Option<u32>, error: &Error) {
        for handle in self.consumer.end_step((consumer, step), producer, error, &mut self.events) {
            if self.attached.is_some() {
                self.control.push(Control::Cancel(handle));
            }
        }
    }

    /// Ends every request, pull and push of `consumer` with `error`.
    pub fn end_requests_of(&mut self, consumer: u16, error: &Error) {
        for handle in self.consumer.end_those(|request| request.consumer == consumer, error, &mut self.events) {
            if self.attached.is_some() {
                self.control.push(Control::Cancel(handle));
            }
        }
        self.puller.end_those(Some(consumer), error, &mut self.control, &mut self.events);
        self.pusher.end_of(Some(consumer), error, &mut self.control, &mut self.events);
    }

    /// Ends every request, pull and push with `error`: no link could be established.
    pub fn end_all_requests(&mut self, error: &Error) {
        for handle in self.consumer.end_those(|_| true, error, &mut self.events) {
            if self.attached.is_some() {
                self.control.push(Control::Cancel(handle));
            }
        }
        self.puller.end_those(None, error, &mut self.control, &mut self.events);
        self.pusher.end_of(None, error, &mut self.control, &mut self.events);
    }

    /// Removes the requests that `pick` (consumer, producer) chooses and that were not sent, to move them to another session:
    /// their pair turned out to live on another of the peer's shards. Each comes with its options, and with its
    /// [rows](Self::request_rows) if it is for rows.
    pub fn take_requests(
        &mut self,
        mut pick: impl FnMut(u16, u32) -> bool,
        mut each: impl FnMut(Handle, RequestParams<'_, W>, RequestOptions, Option<NamedRowsBuf>),
    ) {
        debug_assert!(self.attached.is_none(), "requests move before a link is attached");
        for handle in self.consumer.requests.select(|request| pick(request.consumer, request.producer)) {
            let mut request = self.consumer.requests.remove(handle).expect("just selected");
            self.consumer.steps.remove(handle);
            let key = std::mem::take(&mut request.key);
            let params = RequestParams {
                consumer: request.consumer,
                producer: request.producer,
                step: request.step,
                key: &key,
                deadline: request.deadline,
                destination: request.destination.map(|memory| Destination::from_parts(memory, request.meta)),
                waiter: request.waiter.expect(HAS_WAITER),
            };
            each(
                handle,
                params,
                RequestOptions { fused: request.fused, fail_if_gone: request.if_gone.fails() },
                request.rows,
            );
        }
    }

    /// The longest time that a request has waited at `now`; zero without requests.
    pub fn oldest_wait(&self, now: Instant) -> Duration {
        let since = self.consumer.requests.iter().map(|(_, request)| request.since).min();
        since.map_or(Duration::ZERO, |since| now.saturating_duration_since(since))
    }
}
