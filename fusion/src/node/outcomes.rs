//! Where the outcomes of calls go: to futures on this shard, to other threads, to clients, and into batches.

use std::collections::VecDeque;
use std::task::Waker;

use sealane_runtime::Buffer;
use sealane_transport::tensor::LastKind;
use sealane_transport::{Error, RecvOutcome, SendOutcome, Tray};

use super::cells::{Cells, ClientCall, ClientOutcome, PullWaiter, RecvWaiter, SendWaiter, Sender};
use super::exchange::batches::Batches;

/// See the module.
#[derive(Default)]
pub(super) struct Outcomes {
    pub(super) recv_cells: Cells<RecvOutcome>,
    pub(super) send_cells: Cells<SendOutcome>,
    pub(super) pull_cells: Cells<Tray>,
    pub(super) batches: Batches,
    pub(super) wakers: Vec<Waker>,
    pub(super) clients: VecDeque<(ClientCall, ClientOutcome)>,
    kinds: LastKind,
}

impl Outcomes {
    /// A tensor that came over the wire.
    #[inline]
    pub(super) fn tensor_of(&mut self, meta: &[u8], buffer: Buffer) -> RecvOutcome {
        let bad = |error| Error::unavailable("the peer", format!("it sent an invalid tensor: {error}")).into();
        self.kinds.tensor(meta, buffer).map_err(bad)
    }

    /// False if the waiter was dropped; its tensor goes back to the producer.
    #[inline]
    pub(super) fn listens(&self, waiter: &RecvWaiter) -> bool {
        match waiter {
            RecvWaiter::Channel(sender) => !sender.is_closed(),
            RecvWaiter::Batch { batch, .. } => self.batches.listens(*batch),
            // Cancelling one of these takes it out of the session as well.
            RecvWaiter::Cell(_) | RecvWaiter::Client(_) | RecvWaiter::Pull(_) | RecvWaiter::Asked(_) => true,
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
            RecvWaiter::Asked(_) => unreachable!("it is told as the recv that has asked"),
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

    /// Gives a waiter the pull buffer of its pull.
    pub(super) fn finish_pull(&mut self, waiter: PullWaiter, tray: Tray) {
        match waiter {
            PullWaiter::Cell(cell) => self.pull_cells.finish(cell, tray, &mut self.wakers),
            PullWaiter::Channel(sender) => drop(sender.send(Ok(tray))),
            PullWaiter::Client(call) => self.clients.push_back((call, ClientOutcome::Pulled(tray))),
        }
    }
}

/// The error of a recv whose caller was dropped.
pub(super) fn unheard() -> Error {
    Error::Aborted { step: 0, reason: "its caller cancelled it".into() }
}
