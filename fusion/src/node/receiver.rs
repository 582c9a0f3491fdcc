//! What a session receives, taken in by the parts that it is for while the session is lent to its link.

use std::time::Instant;

use sealane_runtime::Buffer;
use sealane_transport::session::{Sink, Untaken};
use sealane_transport::trace::Moment;
use sealane_transport::{Handle, Payload, Tensor};

use super::cells::{RecvWaiter, Sender};
use super::outcomes::unheard;
use super::pushes::Arrivals;
use super::reporter::Reporter;
use crate::metrics::{Run, Way};
use crate::rendezvous::Table;

/// See the module.
pub(super) struct Rx<'a> {
    pub(super) table: &'a mut Table<Sender>,
    pub(super) reporter: &'a mut Reporter,
    /// The way that what is received has come.
    pub(super) way: Way,
    pub(super) now: Instant,
    pub(super) recvs: Run,
    pub(super) sends: Run,
    pub(super) arrivals: Arrivals<'a>,
}

impl Rx<'_> {
    /// All is received: records how long the calls took that have ended.
    pub(super) fn record_latencies(&mut self) {
        let to = (&self.reporter.metrics.latencies, self.way, self.now);
        self.recvs.record(to);
        self.sends.record(to);
    }
}

impl Sink<RecvWaiter, Handle> for Rx<'_> {
    #[inline]
    fn arrived(&mut self, waiter: RecvWaiter, since: Instant, meta: &[u8], buffer: Buffer) -> bool {
        if !self.reporter.outcomes.listens(&waiter) {
            // A fused receive to which nobody listens ends with its last, as any does.
            self.reporter.outcomes.finish_recv(waiter, Err(unheard().into()));
            return false;
        }
        self.reporter.count_received(buffer.len());
        self.recvs.ended(since, (&self.reporter.metrics.latencies, self.way, self.now));
        let outcome = self.reporter.outcomes.tensor_of(meta, buffer);
        self.reporter.outcomes.finish_recv(waiter, outcome);
        true
    }

    #[inline]
    fn taken(&mut self, deposit: Handle, payload: Payload) {
        self.reporter.count_sent(payload.len());
        self.reporter.trace(deposit, || Moment::SendReleased);
        if let Some(sender) = self.table.settle_taken(deposit, payload) {
            self.sends.ended(sender.since, (&self.reporter.metrics.latencies, self.way, self.now));
            self.reporter.outcomes.finish_send(sender.waiter, Ok(()));
        }
    }

    #[inline]
    fn pushed(&mut self, stream: Handle, tensor: Tensor) -> Result<(), Untaken> {
        self.arrivals.take(stream, tensor)
    }
}
