//! Where the outcomes of calls go: to futures on this shard, to other threads, to clients, and into batches.

use std::collections::VecDeque;
use std::task::Waker;
use std::time::Instant;

use sealane_runtime::Buffer;
use sealane_transport::session::{Sink, Untaken};
use sealane_transport::trace::Moment;
use sealane_transport::{Error, Handle, Payload, RecvOutcome, SendOutcome, Tensor, TensorMeta, Tray, Unreceived};

use super::cells::{Cells, ClientCall, ClientOutcome, PullWaiter, RecvWaiter, SendWaiter, Sender};
use super::exchange::Batches;
use super::pushes::Arrivals;
use super::reporter::Reporter;
use crate::metrics::{Run, Way};
use crate::rendezvous::Table;

/// See the module.
#[derive(Default)]
pub(super) struct Outcomes {
    pub(super) recv_cells: Cells<RecvOutcome>,
    pub(super) send_cells: Cells<SendOutcome>,
    pub(super) pull_cells: Cells<Tray>,
    pub(super) batches: Batches,
    pub(super) wakers: Vec<Waker>,
    pub(super) clients: VecDeque<(ClientCall, ClientOutcome)>,
    /// Metadata and length of the last tensor that came: the next is most often of the same kind, and known to be sound.
    last_kind: Option<(TensorMeta, usize)>,
}

impl Outcomes {
    /// A tensor of a kind that the last was not of.
    fn check(&mut self, meta: &[u8], buffer: Buffer) -> RecvOutcome {
        let bad = |error| Unreceived::from(Error::unavailable("the peer", format!("it sent a bad tensor: {error}")));
        let tensor = Tensor::from_wire(meta, buffer).map_err(bad)?;
        self.last_kind = Some((tensor.meta().clone(), tensor.len()));
        Ok(tensor)
    }

    /// False if a waiter has hung up: nobody is to get its tensor.
    #[inline]
    pub(super) fn listens(&self, waiter: &RecvWaiter) -> bool {
        match waiter {
            RecvWaiter::Channel(sender) => !sender.is_closed(),
            RecvWaiter::Batch { batch, .. } => self.batches.listens(*batch),
            // Whoever gives up one of these takes it out of the session as well.
            RecvWaiter::Cell(_) | RecvWaiter::Client(_) | RecvWaiter::Pull(_) => true,
        }
    }

    /// Tells a waiter how its recv ended.
    #[inline]
    pub(super) fn finish_recv(&mut self, waiter: RecvWaiter, outcome: RecvOutcome) {
        match waiter {
            RecvWaiter::Cell(cell) => self.recv_cells.finish(cell, outcome, &mut self.wakers),
            // A caller that no longer listens has dropped its end.
            RecvWaiter::Channel(sender) => drop(sender.send(outcome)),
            RecvWaiter::Client(call) => self.clients.push_back((call, ClientOutcome::Received(outcome))),
            RecvWaiter::Batch { batch, index } => self.batches.finish_one(batch, index, outcome, &mut self.wakers),
            RecvWaiter::Pull(_) => unreachable!("pulls end with a tray"),
        }
    }

    /// Tells a waiter how its send ended.
    #[inline]
    pub(super) fn finish_send(&mut self, waiter: SendWaiter, outcome: SendOutcome) {
        match waiter {
            SendWaiter::Nobody => {}
            SendWaiter::Cell(cell) => self.send_cells.finish(cell, outcome, &mut self.wakers),
            SendWaiter::Channel(sender) => drop(sender.send(outcome)),
            SendWaiter::Client(call) => self.clients.push_back((call, ClientOutcome::Sent(outcome))),
            SendWaiter::LateClient(call) => self.clients.push_back((call, ClientOutcome::Returned)),
        }
    }

    /// Tells a waiter that the deadline of its send has passed while the tensor was on its way. Its end is told to nobody any
    /// more, but a client hears when its memory is back.
    pub(super) fn send_is_late(&mut self, sender: &mut Sender, error: Error) {
        match std::mem::replace(&mut sender.waiter, SendWaiter::Nobody) {
            SendWaiter::Client(call) => {
                sender.waiter = SendWaiter::LateClient(call);
                self.clients.push_back((call, ClientOutcome::Late(error)));
            }
            waiter => self.finish_send(waiter, Err(error)),
        }
    }

    /// Gives a waiter the tray of its pull.
    pub(super) fn finish_pull(&mut self, waiter: PullWaiter, tray: Tray) {
        match waiter {
            PullWaiter::Cell(cell) => self.pull_cells.finish(cell, tray, &mut self.wakers),
            PullWaiter::Channel(sender) => drop(sender.send(Ok(tray))),
            PullWaiter::Client(call) => self.clients.push_back((call, ClientOutcome::Pulled(tray))),
        }
    }
}

/// What a recv ends with whose caller has hung up.
pub(super) fn unheard() -> Error {
    Error::Aborted { step: 0, reason: "its caller gave it up".into() }
}

/// A node that takes in what a session hears, while the session is lent to its link.
pub(super) struct Ear<'a> {
    pub(super) table: &'a mut Table<Sender>,
    pub(super) reporter: &'a mut Reporter,
    /// The way that what is heard has come.
    pub(super) way: Way,
    pub(super) now: Instant,
    pub(super) recvs: Run,
    pub(super) sends: Run,
    pub(super) arrivals: Arrivals<'a>,
}

impl Ear<'_> {
    /// All is heard: records how long the calls took that have ended.
    pub(super) fn record_latencies(&mut self) {
        let to = (&self.reporter.metrics.latencies, self.way, self.now);
        self.recvs.record(to);
        self.sends.record(to);
    }
}

impl Sink<RecvWaiter, Handle> for Ear<'_> {
    #[inline]
    fn arrived(&mut self, waiter: RecvWaiter, since: Instant, meta: &[u8], buffer: Buffer) -> bool {
        if !self.reporter.outcomes.listens(&waiter) {
            // A fused receive to which nobody listens ends with its last, as any does.
            self.reporter.outcomes.finish_recv(waiter, Err(unheard().into()));
            return false;
        }
        self.reporter.count_received(buffer.len());
        self.recvs.ended(since, (&self.reporter.metrics.latencies, self.way, self.now));
        let outcome = match &self.reporter.outcomes.last_kind {
            Some((last, bytes)) if last.as_wire() == meta && *bytes == buffer.len() => {
                Ok(Tensor::from_parts(last.clone(), buffer))
            }
            _ => self.reporter.outcomes.check(meta, buffer),
        };
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
