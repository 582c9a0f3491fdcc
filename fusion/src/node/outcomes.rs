//! Where the outcomes of calls go: to futures on this shard, to other threads, to clients, and into batches.

use std::task::Waker;

use sealane_runtime::Buffer;
use sealane_transport::tensor::LastKind;
use sealane_transport::{Arena, Error, PullBuffer, RecvOutcome, SendOutcome};

use super::cells::{Cells, ClientOutcome, ClientOutcomes, PullWaiter, RecvWaiter, SendGroup, SendWaiter};
use super::exchange::batches::Batches;

/// The outcomes of a node's calls; see the module.
pub(super) struct Outcomes {
    pub(super) recv_cells: Cells<RecvOutcome>,
    pub(super) send_cells: Cells<SendOutcome>,
    pub(super) pull_cells: Cells<PullBuffer>,
    pub(super) batches: Batches,
    /// Groups of sends with one waiter.
    groups: Arena<SendGroup>,
    pub(super) wakers: Vec<Waker>,
    pub(super) clients: ClientOutcomes,
    kinds: LastKind,
}

impl Default for Outcomes {
    fn default() -> Self {
        Outcomes {
            recv_cells: Cells::default(),
            send_cells: Cells::default(),
            pull_cells: Cells::default(),
            batches: Batches::default(),
            groups: Arena::new(usize::MAX),
            wakers: Vec::new(),
            clients: ClientOutcomes::default(),
            kinds: LastKind::default(),
        }
    }
}

impl Outcomes {
    /// Makes the outcome for a tensor that came over the wire.
    #[inline]
    pub(super) fn tensor_of(&mut self, meta: &[u8], buffer: Buffer) -> RecvOutcome {
        let bad = |error| Error::unavailable("the peer", format!("it sent an invalid tensor: {error}")).into();
        self.kinds.tensor(meta, buffer).map_err(bad)
    }

    /// False if the waiter was dropped; then the tensor goes back to its producer.
    #[inline]
    pub(super) fn listens(&self, waiter: &RecvWaiter) -> bool {
        match waiter {
            RecvWaiter::Channel(sender) => !sender.is_closed(),
            RecvWaiter::Batch { batch, .. } => self.batches.listens(*batch),
            // Cancelling one of these also removes it from the session.
            RecvWaiter::Cell(_) | RecvWaiter::Client(_) | RecvWaiter::Pull(_) | RecvWaiter::Remote(_) => true,
        }
    }

    /// Tells a waiter how its recv ended.
    ///
    /// Inline: an outcome that was just put together and is copied at once waits for all stores before it.
    #[inline(always)]
    pub(super) fn finish_recv(&mut self, waiter: RecvWaiter, outcome: RecvOutcome) {
        match waiter {
            RecvWaiter::Client(call) => self.clients.push(call, ClientOutcome::Received(outcome)),
            waiter => self.finish_recv_here(waiter, outcome),
        }
    }

    fn finish_recv_here(&mut self, waiter: RecvWaiter, outcome: RecvOutcome) {
        match waiter {
            RecvWaiter::Cell(cell) => self.recv_cells.finish(cell, outcome, &mut self.wakers),
            // If the caller no longer listens, it has dropped its end.
            RecvWaiter::Channel(sender) => drop(sender.send(outcome)),
            RecvWaiter::Client(_) => unreachable!("clients are told elsewhere"),
            RecvWaiter::Batch { batch, index } => self.batches.finish_one(batch, index, outcome, &mut self.wakers),
            RecvWaiter::Pull(_) => unreachable!("pulls end with a pull_buffer"),
            RecvWaiter::Remote(_) => unreachable!("it is told as the recv that has sent it"),
        }
    }

    /// The waiter of each of `count` sends, when `waiter` waits for all of them.
    pub(super) fn group(&mut self, count: usize, waiter: SendWaiter) -> SendWaiter {
        debug_assert!(
            !matches!(waiter, SendWaiter::Client(_)),
            "it would not hear that memory is still used which it has lent"
        );
        if matches!(waiter, SendWaiter::Nobody) {
            return waiter;
        }
        let group = self.groups.insert_with(|| SendGroup::new(count, waiter));
        SendWaiter::Group(group.expect("2^32 groups do not fit in memory"))
    }

    /// Tells the waiter of `count` sends how they ended; `count` is 1 unless it is a group.
    #[inline]
    pub(super) fn finish_sends(&mut self, waiter: SendWaiter, count: u32, outcome: SendOutcome) {
        let SendWaiter::Group(handle) = waiter else { return self.finish_send(waiter, outcome) };
        if self.groups.get_mut(handle).is_some_and(|group| group.ended(count, outcome)) {
            let group = self.groups.remove(handle).expect("just looked at");
            let (waiter, outcome) = group.into_outcome();
            self.finish_send(waiter, outcome);
        }
    }

    /// Tells a waiter how its send ended.
    #[inline]
    pub(super) fn finish_send(&mut self, waiter: SendWaiter, outcome: SendOutcome) {
        match waiter {
            SendWaiter::Nobody => {}
            SendWaiter::Cell(cell) => self.send_cells.finish(cell, outcome, &mut self.wakers),
            SendWaiter::Channel(sender) => drop(sender.send(outcome)),
            SendWaiter::Client(call) => match outcome {
                Ok(()) => self.clients.sent.push_back(call),
                Err(error) => self.clients.push(call, ClientOutcome::Unsent(error)),
            },
            SendWaiter::LateClient(call) => self.clients.push(call, ClientOutcome::Returned),
            SendWaiter::Group(_) => self.finish_sends(waiter, 1, outcome),
        }
    }

    /// Tells the waiter of `count` sends that their deadline has passed while the tensors were on their way. Their actual end is reported
    /// to nobody, but a client hears when its memory is back.
    pub(super) fn sends_are_late(&mut self, waiter: &mut SendWaiter, count: u32, error: Error) {
        match std::mem::replace(waiter, SendWaiter::Nobody) {
            SendWaiter::Client(call) => {
                *waiter = SendWaiter::LateClient(call);
                self.clients.push(call, ClientOutcome::Late(error));
            }
            told => self.finish_sends(told, count, Err(error)),
        }
    }

    /// Panics unless each group waits for exactly the sends that have it among `waiters`.
    #[cfg(any(test, feature = "fuzzing"))]
    pub(super) fn check_groups<'a>(&self, waiters: impl Iterator<Item = (&'a SendWaiter, u32)>) {
        let mut sends = hashbrown::HashMap::new();
        for (waiter, count) in waiters {
            if let SendWaiter::Group(group) = waiter {
                *sends.entry(*group).or_insert(0) += count as usize;
            }
        }
        for (handle, group) in self.groups.iter() {
            let found = sends.remove(&handle).unwrap_or(0);
            assert_eq!(group.left(), found, "a waiter would hear too early that its sends have ended, or never");
        }
        assert!(sends.is_empty(), "sends would end for a group that has ended");
    }

    /// Gives a waiter the pull buffer of its pull.
    pub(super) fn finish_pull(&mut self, waiter: PullWaiter, pull_buffer: PullBuffer) {
        match waiter {
            PullWaiter::Cell(cell) => self.pull_cells.finish(cell, pull_buffer, &mut self.wakers),
            PullWaiter::Channel(sender) => drop(sender.send(Ok(pull_buffer))),
            PullWaiter::Client(call) => self.clients.push(call, ClientOutcome::Pulled(pull_buffer)),
        }
    }
}

/// The error of a recv whose caller was dropped.
pub(super) fn unheard() -> Error {
    Error::Aborted { step: 0, reason: "its caller cancelled it".into() }
}
