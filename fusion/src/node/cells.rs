//! Handles of calls in flight, and where their outcomes wait for the caller.

use std::collections::VecDeque;
use std::task::{Poll, Waker};
use std::time::Instant;

use sealane_transport::{Arena, Error, Handle, PullBuffer, RecvOutcome, SendOutcome};

/// Who waits for a tensor.
#[derive(Debug)]
pub enum RecvWaiter {
    /// A future on this shard.
    Cell(Handle),
    /// A caller on any thread.
    Channel(oneshot::Sender<RecvOutcome>),
    /// A client process.
    Client(ClientCall),
    /// One recv of a fused receive of this node.
    Batch {
        /// The batch.
        batch: Handle,
        /// The recv's index in the batch.
        index: u32,
    },
    /// A pull of this node, which ends with a pull buffer instead.
    Pull(Handle),
    /// A recv from a task of another node, which has sent its request, by the node's handle for it.
    Remote(Handle),
}

/// Identifies a request until it ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Ticket {
    /// A request for rows made to a peer.
    Peer {
        /// The session with the peer.
        session: Handle,
        /// The request's id in that session.
        request: Handle,
    },
    /// A recv from a task of this node.
    Local(Handle),
    /// A recv from a task of another node.
    Remote(Handle),
    /// A request for rows of a table of a task of this node.
    Rows(Handle),
}

/// Who waits for the pull buffer of a pull.
#[derive(Debug)]
pub enum PullWaiter {
    /// A future on this shard.
    Cell(Handle),
    /// A caller on any thread.
    Channel(oneshot::Sender<Result<PullBuffer, Error>>),
    /// A client process.
    Client(ClientCall),
}

/// Who waits for a release.
#[derive(Debug)]
pub enum SendWaiter {
    /// Nobody.
    Nobody,
    /// A future on this shard.
    Cell(Handle),
    /// A caller on any thread.
    Channel(oneshot::Sender<SendOutcome>),
    /// A client process.
    Client(ClientCall),
    /// A client process that was told at its deadline: it is told again when its memory is back.
    LateClient(ClientCall),
    /// A caller that waits for several sends of this node together.
    Group(Handle),
}

impl SendWaiter {
    /// The waiter for the next one of several sends.
    #[inline]
    pub(super) fn for_one(&mut self) -> SendWaiter {
        match self {
            SendWaiter::Group(group) => SendWaiter::Group(*group),
            waiter => std::mem::replace(waiter, SendWaiter::Nobody),
        }
    }
}

/// Several sends or pushes with one waiter: once all have ended it hears the first error, if there was any.
pub(super) struct SendGroup {
    left: usize,
    error: Option<Error>,
    waiter: SendWaiter,
}

impl SendGroup {
    pub(super) fn new(count: usize, waiter: SendWaiter) -> SendGroup {
        debug_assert!(count > 0, "nothing would end the group, and its waiter would wait for ever");
        SendGroup { left: count, error: None, waiter }
    }

    /// `count` of them have ended with `outcome`; true if they were the last.
    #[inline]
    pub(super) fn ended(&mut self, count: u32, outcome: SendOutcome) -> bool {
        debug_assert!(count as usize <= self.left, "one would end twice, and the waiter hear of it too early");
        self.left -= count as usize;
        if let Err(error) = outcome {
            self.error.get_or_insert(error);
        }
        self.left == 0
    }

    /// How many have not ended.
    #[cfg(any(test, feature = "fuzzing"))]
    pub(super) fn left(&self) -> usize {
        self.left
    }

    /// The waiter and its outcome.
    pub(super) fn into_outcome(self) -> (SendWaiter, SendOutcome) {
        (self.waiter, self.error.map_or(Ok(()), Err))
    }
}

/// A call of a client process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ClientCall {
    /// The owner's handle of the client.
    pub client: Handle,
    /// The owner's handle of the call.
    pub call: Handle,
}

/// How calls of client processes ended. A send that succeeded has no outcome to be moved, so those are kept by themselves.
#[derive(Debug, Default)]
pub struct ClientOutcomes {
    /// Sends that succeeded.
    pub sent: VecDeque<ClientCall>,
    rest: Vec<(ClientCall, ClientOutcome)>,
    /// How many of `rest` were taken by [`take_next`](Self::take_next). They lie there until it has said that none is left.
    taken: usize,
}

impl ClientOutcomes {
    #[inline]
    pub(super) fn push(&mut self, call: ClientCall, outcome: ClientOutcome) {
        self.rest.push((call, outcome));
    }

    /// The next outcome of another kind, to be used where it lies: moving one costs as much as the rest of an answer. Until this was `None`
    /// there are outcomes, also if the last one was taken: whoever used it may have panicked.
    #[inline]
    pub fn take_next(&mut self) -> Option<(ClientCall, &mut ClientOutcome)> {
        if self.taken == self.rest.len() {
            self.rest.clear();
            self.taken = 0;
            return None;
        }
        let (call, outcome) = &mut self.rest[self.taken];
        self.taken += 1;
        Some((*call, outcome))
    }

    /// True if none is left but sends that succeeded.
    #[inline]
    pub(super) fn has_only_sends(&self) -> bool {
        self.rest.is_empty()
    }

    /// How many are left.
    #[inline]
    pub fn len(&self) -> usize {
        self.sent.len() + self.rest.len() - self.taken
    }

    /// True if none is left, and [`take_next`](Self::take_next) has said so.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.sent.is_empty() && self.has_only_sends()
    }
}

/// How a call of a client process ended, other than with a success of its send.
#[derive(Debug)]
pub enum ClientOutcome {
    /// A send that failed.
    Unsent(Error),
    /// A send whose tensor was on its way at its deadline. `Returned` follows.
    Late(Error),
    /// The memory of such a send is free again.
    Returned,
    /// A recv.
    Received(RecvOutcome),
    /// A pull.
    Pulled(PullBuffer),
}

/// The waiter of a send, and since when it waits.
#[derive(Debug)]
pub struct Sender {
    pub(super) waiter: SendWaiter,
    pub(super) since: Instant,
}

enum Cell<T> {
    Waiting(Option<Waker>),
    Done(T),
}

/// The outcomes of one kind of call that futures on this shard wait for; one cell per future.
pub(super) struct Cells<T>(Arena<Cell<T>>);

impl<T> Default for Cells<T> {
    fn default() -> Self {
        Cells(Arena::new(usize::MAX))
    }
}

impl<T> Cells<T> {
    #[inline]
    pub(super) fn open(&mut self) -> Handle {
        self.0.insert_with(|| Cell::Waiting(None)).expect("2^32 futures do not fit in memory")
    }

    pub(super) fn close(&mut self, cell: Handle) {
        self.0.remove(cell);
    }

    /// Closes the cell; returns its outcome, if there is one.
    pub(super) fn take(&mut self, cell: Handle) -> Option<T> {
        match self.0.remove(cell) {
            Some(Cell::Done(outcome)) => Some(outcome),
            _ => None,
        }
    }

    /// Stores the outcome; the future's waker goes to `wakers`. If the cell is closed, the outcome is dropped.
    pub(super) fn finish(&mut self, cell: Handle, outcome: T, wakers: &mut Vec<Waker>) {
        if let Some(slot) = self.0.get_mut(cell)
            && let Cell::Waiting(waker) = slot
        {
            wakers.extend(waker.take());
            *slot = Cell::Done(outcome);
        }
    }

    /// Returns the outcome and closes the cell, or keeps the waker.
    pub(super) fn poll(&mut self, cell: Handle, waker: &Waker) -> Poll<T> {
        match self.0.get_mut(cell) {
            Some(Cell::Waiting(kept)) => {
                match kept {
                    Some(kept) => kept.clone_from(waker),
                    None => *kept = Some(waker.clone()),
                }
                Poll::Pending
            }
            Some(Cell::Done(_)) => match self.0.remove(cell) {
                Some(Cell::Done(outcome)) => Poll::Ready(outcome),
                _ => unreachable!("just looked at"),
            },
            None => panic!("a future is polled after it was ready"),
        }
    }
}
