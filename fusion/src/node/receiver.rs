//! Passes what a session receives to the parts concerned, while the session is lent to its link.

use std::time::Instant;

use sealane_runtime::Buffer;
use sealane_transport::session::{CameAhead, CameTogether, KeyOf, PeerRequest, Sink, TakenTogether, Untaken};
use sealane_transport::tensor::TensorBatch;
use sealane_transport::trace::Moment;
use sealane_transport::wire::{Fate, WireError};
use sealane_transport::{Handle, Payload, Tensor};

use super::cells::RecvWaiter;
use super::exchange::{Exchange, Requester, traced_ahead};
use super::outcomes::unheard;
use super::pairs::{Pairs, STRANGER};
use super::peers::PeerSession;
use super::pushes::Arrivals;
use super::reporter::Reporter;
use crate::metrics::{Run, Way};
use crate::presence::Presence;

/// The receiving side of a node; see the module.
pub(super) struct Rx<'a> {
    pub(super) exchange: &'a mut Exchange,
    pub(super) pairs: &'a mut Pairs,
    pub(super) reporter: &'a mut Reporter,
    /// The session and its peer, as the origin of requests.
    pub(super) requester: Requester<'a>,
    pub(super) presence: &'a Presence,
    pub(super) is_draining: bool,
    /// The way that the received tensors have come.
    pub(super) way: Way,
    pub(super) now: Instant,
    pub(super) recvs: Run,
    pub(super) sends: Run,
    pub(super) arrivals: Arrivals<'a>,
}

impl Rx<'_> {
    /// Everything is received: records the latencies of the calls that have ended.
    pub(super) fn record_latencies(&mut self) {
        let to = (&self.reporter.metrics.latencies, self.way, self.now);
        self.recvs.record(to);
        self.sends.record(to);
    }
}

impl Rx<'_> {
    /// The pair that a key belongs to; `None` for a task that the map does not name.
    fn pair_of(&mut self, of: KeyOf<'_>) -> Option<u32> {
        (of.producer != STRANGER).then(|| self.pairs.pair_of(of.consumer, of.producer))
    }
}

impl Sink<RecvWaiter, Handle> for Rx<'_> {
    #[inline]
    fn requested(&mut self, session: &mut PeerSession, request: &PeerRequest, key: &[u8]) -> Result<(), WireError> {
        let Rx { exchange, pairs, reporter, requester, presence, is_draining, .. } = self;
        exchange.requested(session, (request, key), requester, (pairs, reporter), (presence, *is_draining))
    }

    #[inline]
    fn arrived(&mut self, waiter: RecvWaiter, since: Instant, meta: &[u8], buffer: Buffer) -> bool {
        let waiter = match waiter {
            RecvWaiter::Remote(recv) => match self.exchange.remote().answered(self.now, recv, Some(buffer.len())) {
                Some(waiter) => waiter,
                None => return false,
            },
            waiter => waiter,
        };
        if !self.reporter.outcomes.listens(&waiter) {
            // A fused receive to which nobody listens ends with its last recv, like any other.
            self.reporter.outcomes.finish_recv(waiter, Err(unheard().into()));
            return false;
        }
        self.reporter.count_received(1, buffer.len());
        self.recvs.ended(since, (&self.reporter.metrics.latencies, self.way, self.now));
        let outcome = self.reporter.outcomes.tensor_of(meta, buffer);
        self.reporter.outcomes.finish_recv(waiter, outcome);
        true
    }

    #[inline]
    fn taken(&mut self, pending: Handle, payload: Payload) {
        self.reporter.count_sent(1, payload.len());
        self.reporter.trace(pending, || Moment::SendReleased);
        if let Some(sender) = self.exchange.table().release_taken(pending, payload) {
            self.sends.ended(sender.since, (&self.reporter.metrics.latencies, self.way, self.now));
            self.reporter.outcomes.finish_send(sender.waiter, Ok(()));
        }
    }

    #[inline]
    fn came_ahead(&mut self, session: &mut PeerSession, tensor: &CameAhead<'_>) -> Result<Option<Fate>, WireError> {
        let Rx { exchange, pairs, reporter, requester, arrivals, .. } = self;
        let from = (requester.session, session, &mut *requester.last_pair);
        let (fate, since) = exchange.came_ahead(from, tensor, (pairs, reporter, arrivals.memory))?;
        if let Some(since) = since {
            self.recvs.ended(since, (&self.reporter.metrics.latencies, self.way, self.now));
        }
        Ok(fate)
    }

    #[inline]
    fn looks_at_frames(&self) -> bool {
        // A trace names each tensor.
        self.reporter.recorder.is_none() && self.exchange.looks_at_frames()
    }

    #[inline]
    fn came_together(&mut self, frame: &CameTogether<'_>) -> TakenTogether {
        let Rx { exchange, pairs, reporter, requester, .. } = self;
        let from = (requester.session, &mut *requester.last_pair);
        let Some((taken, since)) = exchange.came_together(from, frame, (pairs, reporter)) else {
            return TakenTogether::default();
        };
        if let Some(since) = since {
            self.recvs.ended_together(since, taken.count, (&self.reporter.metrics.latencies, self.way, self.now));
        }
        taken
    }

    fn revoked(&mut self, number: u64, of: KeyOf<'_>) -> Option<usize> {
        let pair = self.pair_of(of)?;
        self.exchange.remote().revoked(self.requester.session, number, pair, of)
    }

    fn held(&mut self, of: KeyOf<'_>) {
        if let Some(pair) = self.pair_of(of) {
            self.exchange.remote().held(pair, of, &mut self.reporter.outcomes.batches);
        }
    }

    #[inline]
    fn taken_ahead(&mut self, pending: Handle, count: u32) {
        let Some((sender, bytes)) = self.exchange.ahead().ended(pending, count) else { return };
        self.reporter.count_sent(count, bytes);
        self.reporter.trace(traced_ahead(pending), || Moment::SendReleased);
        self.sends.ended_together(sender.since, count, (&self.reporter.metrics.latencies, self.way, self.now));
        self.reporter.outcomes.finish_sends(sender.waiter, count, Ok(()));
    }

    #[inline]
    fn pushed(&mut self, stream: Handle, tensor: Tensor) -> Result<(), Untaken> {
        self.arrivals.take(stream, tensor)
    }

    #[inline]
    fn takes_together(&mut self, stream: Handle) -> bool {
        self.arrivals.takes_together(stream)
    }

    #[inline]
    fn pushed_together(&mut self, stream: Handle, tensors: TensorBatch) {
        self.arrivals.take_together(stream, tensors);
    }
}
