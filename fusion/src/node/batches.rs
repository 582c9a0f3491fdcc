//! Fused receives: many recvs of one step that are asked for together and end together, each in its own way.

use std::collections::VecDeque;
use std::task::{Poll, Waker};
use std::time::Instant;

use sealane_runtime::Buffer;
use sealane_transport::{Error, Handle, RecvOutcome};

use super::Node;
use super::calls::{RecvRequest, Ticket};
use super::cells::RecvWaiter;
use super::outcomes::Batches;

/// Many recvs, as a task of this shard asks them.
#[derive(Debug)]
pub struct FusedRequest<K, D> {
    /// The pair, from [`Node::pair`].
    pub pair: u32,
    /// The step.
    pub step: i64,
    /// The tensors' names within the step.
    pub keys: K,
    /// The caller's memory for each in turn, as far as it brings any.
    pub destinations: D,
    /// When those that are not there end with DeadlineExceeded.
    pub deadline: Instant,
    /// Who is told.
    pub waiter: BatchWaiter,
}

/// Who waits for the outcomes of a fused receive.
#[derive(Debug)]
pub enum BatchWaiter {
    /// A future on this shard, with its waker once it was polled.
    Future(Option<Waker>),
    /// A caller on any thread.
    Channel(oneshot::Sender<Result<Vec<RecvOutcome>, Error>>),
}

pub(super) struct Batch {
    outcomes: Vec<Option<RecvOutcome>>,
    /// Those that ended and were not taken one by one.
    arrived: VecDeque<u32>,
    tickets: Vec<Option<Ticket>>,
    left: usize,
    waiter: BatchWaiter,
}

impl Batch {
    fn take_all(&mut self) -> Vec<RecvOutcome> {
        self.outcomes.drain(..).flatten().collect()
    }
}

impl Batches {
    /// False if nobody waits for the batch any more.
    #[inline]
    pub(super) fn listens(&self, handle: Handle) -> bool {
        self.0.get(handle).is_some_and(|batch| match &batch.waiter {
            BatchWaiter::Channel(sender) => !sender.is_closed(),
            BatchWaiter::Future(_) => true,
        })
    }

    /// One of a batch has ended.
    pub(super) fn finish_one(&mut self, handle: Handle, index: u32, outcome: RecvOutcome, wakers: &mut Vec<Waker>) {
        let Some(batch) = self.0.get_mut(handle) else { return };
        batch.outcomes[index as usize] = Some(outcome);
        batch.tickets[index as usize] = None;
        batch.left -= 1;
        if let BatchWaiter::Future(waker) = &mut batch.waiter {
            batch.arrived.push_back(index);
            wakers.extend(waker.take());
        }
        if batch.left == 0 {
            self.end(handle);
        }
    }

    /// All have ended: who is not on this shard is told.
    fn end(&mut self, handle: Handle) {
        let is_here = |batch: &Batch| matches!(batch.waiter, BatchWaiter::Future(_));
        if self.0.get(handle).is_none_or(is_here) {
            return;
        }
        let mut batch = self.0.remove(handle).expect("just looked at");
        let outcomes = batch.take_all();
        if let BatchWaiter::Channel(sender) = batch.waiter {
            // A caller that no longer listens has dropped its end.
            drop(sender.send(Ok(outcomes)));
        }
    }
}

impl Node {
    /// Asks for many tensors of one step at once; they do not wait for the window. Its name, for the future that waits and
    /// for giving it up.
    pub fn recv_fused<'k, K, D>(&mut self, now: Instant, request: FusedRequest<K, D>) -> Handle
    where
        K: Iterator<Item = &'k str> + Clone,
        D: IntoIterator<Item = Buffer>,
    {
        let FusedRequest { pair, step, keys, destinations, deadline, waiter } = request;
        let count = keys.clone().count();
        let none = std::iter::repeat_with(|| None).take(count).collect();
        let batch = Batch { outcomes: none, arrived: VecDeque::new(), tickets: vec![None; count], left: count, waiter };
        let Ok(batch) = self.context.reporter.outcomes.batches.0.insert(batch) else {
            unreachable!("2^32 batches do not fit in memory")
        };
        let mut destinations = destinations.into_iter();
        for (index, key) in keys.enumerate() {
            let waiter = RecvWaiter::Batch { batch, index: index as u32 };
            let destination = destinations.next();
            let ticket = self.recv(now, RecvRequest { pair, step, key, deadline, destination, waiter, fused: true });
            if let Some(batch) = self.context.reporter.outcomes.batches.0.get_mut(batch)
                && batch.outcomes[index].is_none()
            {
                batch.tickets[index] = ticket;
            }
        }
        if count == 0 {
            self.context.reporter.outcomes.batches.end(batch);
        }
        batch
    }

    /// All outcomes, in the order of the keys, once there are all; the batch is closed.
    pub fn poll_batch(&mut self, handle: Handle, waker: &Waker) -> Poll<Vec<RecvOutcome>> {
        let batch =
            self.context.reporter.outcomes.batches.0.get_mut(handle).expect("a future is polled after it was ready");
        if batch.left > 0 {
            batch.waiter = BatchWaiter::Future(Some(waker.clone()));
            return Poll::Pending;
        }
        let outcomes = batch.take_all();
        self.context.reporter.outcomes.batches.0.remove(handle);
        Poll::Ready(outcomes)
    }

    /// The next outcome that has come, with its number; `None` when all were taken.
    pub fn poll_next_of(&mut self, handle: Handle, waker: &Waker) -> Poll<Option<(usize, RecvOutcome)>> {
        let Some(batch) = self.context.reporter.outcomes.batches.0.get_mut(handle) else { return Poll::Ready(None) };
        if let Some(index) = batch.arrived.pop_front() {
            let outcome = batch.outcomes[index as usize].take().expect("it has arrived once");
            return Poll::Ready(Some((index as usize, outcome)));
        }
        if batch.left == 0 {
            return Poll::Ready(None);
        }
        batch.waiter = BatchWaiter::Future(Some(waker.clone()));
        Poll::Pending
    }

    /// The future is dropped: recvs of it that have not ended are given up.
    pub fn close_batch(&mut self, handle: Handle) {
        let Some(batch) = self.context.reporter.outcomes.batches.0.remove(handle) else { return };
        for ticket in batch.tickets.into_iter().flatten() {
            self.cancel(ticket);
        }
    }
}
