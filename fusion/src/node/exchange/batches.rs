//! Fused receives: many recvs of one step that are requested together, and end individually.

use std::collections::VecDeque;
use std::task::{Poll, Waker};
use std::time::Instant;

use sealane_transport::wire::AheadRecords;
use sealane_transport::{Arena, Handle, RecvOutcome};

use super::received::{Brought, ReceivedBatch};
use crate::node::cells::Ticket;

/// Many recvs, as a task of this shard requests them.
#[derive(Debug)]
pub struct FusedRequest<K, D> {
    /// The pair, from [`Node::pair`](crate::node::Node::pair).
    pub pair: u32,
    /// The step.
    pub step: i64,
    /// The tensors' names within the step.
    pub keys: K,
    /// The caller's memory for the first of them, in order, if it brings any.
    pub destinations: D,
    /// When those that have not arrived end with DeadlineExceeded.
    pub deadline: Instant,
    /// Who gets the outcomes.
    pub waiter: BatchWaiter,
}

/// Who waits for the outcomes of a fused receive.
#[derive(Debug)]
pub enum BatchWaiter {
    /// A future on this shard, with its waker once it was polled.
    Future(Option<Waker>),
    /// A future on this shard that reads the tensors in place: it brings no memory.
    Views(Option<Waker>),
}

/// The outcomes of a batch so far.
enum Come {
    Each(Vec<Option<RecvOutcome>>),
    Views(ReceivedBatch),
}

struct Batch {
    outcomes: Come,
    /// Recvs that have ended and were not taken one by one.
    arrived: VecDeque<u32>,
    tickets: Vec<Option<Ticket>>,
    left: usize,
    waiter: BatchWaiter,
}

impl Batch {
    fn take_all(&mut self) -> Vec<RecvOutcome> {
        match &mut self.outcomes {
            Come::Each(outcomes) => outcomes.drain(..).flatten().collect(),
            Come::Views(_) => unreachable!("its future takes views"),
        }
    }

    /// `count` more recvs have ended.
    fn ended(&mut self, count: usize, wakers: &mut Vec<Waker>) {
        self.left -= count;
        match &mut self.waiter {
            BatchWaiter::Future(waker) => wakers.extend(waker.take()),
            BatchWaiter::Views(waker) if self.left == 0 => wakers.extend(waker.take()),
            BatchWaiter::Views(_) => {}
        }
    }
}

/// Fused receives in flight.
pub(in crate::node) struct Batches(Arena<Batch>);

impl Default for Batches {
    fn default() -> Self {
        Batches(Arena::new(usize::MAX))
    }
}

impl Batches {
    /// Opens a batch of `count` recvs that are about to be requested.
    pub(in crate::node) fn open(&mut self, count: usize, waiter: BatchWaiter) -> Handle {
        let outcomes = match waiter {
            BatchWaiter::Views(_) => Come::Views(ReceivedBatch::waiting(count)),
            BatchWaiter::Future(_) => Come::Each(std::iter::repeat_with(|| None).take(count).collect()),
        };
        let batch = Batch { outcomes, arrived: VecDeque::new(), tickets: vec![None; count], left: count, waiter };
        let Ok(batch) = self.0.insert(batch) else { unreachable!("2^32 batches do not fit in memory") };
        batch
    }

    /// True if a batch is to be read by views.
    pub(in crate::node) fn is_read_in_place(&self, handle: Handle) -> bool {
        self.0.get(handle).is_some_and(|batch| matches!(batch.outcomes, Come::Views(_)))
    }

    /// Sets what came before such a batch was made; nothing else has come for it yet.
    pub(in crate::node) fn begin_with(&mut self, handle: Handle, come: ReceivedBatch) {
        let Some(batch) = self.0.get_mut(handle) else { return };
        batch.left = (0..come.len()).filter(|&index| come.waits(index)).count();
        batch.outcomes = Come::Views(come);
    }

    /// A recv of a batch was requested; the ticket cancels it, unless it has ended.
    pub(in crate::node) fn set_ticket(&mut self, handle: Handle, index: usize, ticket: Option<Ticket>) {
        let Some(batch) = self.0.get_mut(handle) else { return };
        let waits = match &batch.outcomes {
            Come::Each(outcomes) => outcomes[index].is_none(),
            Come::Views(views) => views.waits(index),
        };
        if waits {
            batch.tickets[index] = ticket;
        }
    }

    /// False if nobody waits for the batch any more.
    #[inline]
    pub(in crate::node) fn listens(&self, handle: Handle) -> bool {
        self.0.get(handle).is_some()
    }

    /// A frame came for a batch that is read by views: see [`ReceivedBatch::take`].
    pub(in crate::node) fn take_frame(
        &mut self,
        handle: Handle,
        records: AheadRecords<'_>,
        wakers: &mut Vec<Waker>,
        expects: impl FnMut(&[u8]) -> Option<usize>,
    ) -> Option<Brought> {
        let batch = self.0.get_mut(handle)?;
        let Come::Views(views) = &mut batch.outcomes else { return None };
        let brought = views.take(records, expects)?;
        batch.ended(brought.count, wakers);
        Some(brought)
    }

    /// A recv of a batch has ended.
    pub(in crate::node) fn finish_one(
        &mut self,
        handle: Handle,
        index: u32,
        outcome: RecvOutcome,
        wakers: &mut Vec<Waker>,
    ) {
        let Some(batch) = self.0.get_mut(handle) else { return };
        let number = index as usize;
        match &mut batch.outcomes {
            Come::Each(outcomes) => {
                debug_assert!(outcomes[number].is_none(), "a recv would end twice, and another never");
                outcomes[number] = Some(outcome);
            }
            Come::Views(views) => views.end(number, outcome),
        }
        batch.tickets[number] = None;
        if let BatchWaiter::Future(_) = &batch.waiter {
            batch.arrived.push_back(index);
        }
        batch.ended(1, wakers);
    }

    /// All outcomes, in the order of the keys, once all have come; this closes the batch.
    pub(in crate::node) fn poll(&mut self, handle: Handle, waker: &Waker) -> Poll<Vec<RecvOutcome>> {
        let batch = self.0.get_mut(handle).expect("a future is polled after it was ready");
        debug_assert!(matches!(batch.outcomes, Come::Each(_)), "it is read by views");
        if batch.left > 0 {
            batch.waiter = BatchWaiter::Future(Some(waker.clone()));
            return Poll::Pending;
        }
        let outcomes = batch.take_all();
        self.0.remove(handle);
        Poll::Ready(outcomes)
    }

    /// Like [`poll`](Self::poll), for a batch that is read by views.
    pub(in crate::node) fn poll_views(&mut self, handle: Handle, waker: &Waker) -> Poll<ReceivedBatch> {
        let batch = self.0.get_mut(handle).expect("a future is polled after it was ready");
        debug_assert!(matches!(batch.outcomes, Come::Views(_)), "it is not read by views");
        if batch.left > 0 {
            batch.waiter = BatchWaiter::Views(Some(waker.clone()));
            return Poll::Pending;
        }
        match self.0.remove(handle).map(|batch| batch.outcomes) {
            Some(Come::Views(views)) => Poll::Ready(views),
            _ => unreachable!("its future takes outcomes"),
        }
    }

    /// The next outcome that has come, with its index; `None` when all were taken.
    pub(in crate::node) fn poll_next(&mut self, handle: Handle, waker: &Waker) -> Poll<Option<(usize, RecvOutcome)>> {
        let Some(batch) = self.0.get_mut(handle) else { return Poll::Ready(None) };
        if let Some(index) = batch.arrived.pop_front() {
            let Come::Each(outcomes) = &mut batch.outcomes else { unreachable!("its future takes views") };
            let outcome = outcomes[index as usize].take().expect("it has arrived once");
            return Poll::Ready(Some((index as usize, outcome)));
        }
        if batch.left == 0 {
            return Poll::Ready(None);
        }
        batch.waiter = BatchWaiter::Future(Some(waker.clone()));
        Poll::Pending
    }

    /// Closes a batch; returns the tickets of the recvs that have not ended.
    pub(in crate::node) fn close(&mut self, handle: Handle) -> impl Iterator<Item = Ticket> + use<> {
        self.0.remove(handle).into_iter().flat_map(|batch| batch.tickets.into_iter().flatten())
    }

    /// Panics unless the counts of unfinished recvs are right.
    #[cfg(any(test, feature = "fuzzing"))]
    pub(in crate::node) fn check_invariants(&self) {
        for (_, batch) in self.0.iter() {
            assert!(batch.left <= batch.tickets.len(), "a batch would never end");
            let tickets = batch.tickets.iter().flatten().count();
            assert!(tickets <= batch.left, "a recv would be given up that has ended, and may be another's by now");
        }
    }
}
