//! Pushes into queues, and acceptors: for any thread, and for code on a shard.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use sealane_runtime::ShardRef;
use sealane_transport::tensor::IntoTensor;
use sealane_transport::{Error, Tensor};

use super::deadline;
use super::local::{LocalPair, LocalSending, LocalTask};
use super::task::{Outcome, Sending, Task, submit, submit_always};
use crate::node::{Node, PushRequest, SendWaiter};
use crate::queue::{AcceptOptions, AcceptQueue, Accepted, AcceptedBatch, AcceptingAll, AcceptingMany};

impl Task {
    /// Pushes a tensor into a queue of `to`. Completes when the queue has taken it: while the queue is full, or nobody
    /// [accepts](Self::acceptor) from it, the push waits. Tensors of one task in one queue stay in order.
    ///
    /// # Errors
    /// The future's: DeadlineExceeded if it was not taken in time (it may still arrive), ResourceExhausted if `fusion.queued_requests_max`
    /// pushes already wait, Unavailable if the peer is gone.
    pub fn push(&self, to: &str, queue: &str, tensor: Tensor) -> Sending {
        self.push_many(to, queue, vec![tensor], None)
    }

    /// Pushes many, in order; completes when the queue has taken all of them. `timeout` defaults to the engine's
    /// `request_timeout`.
    ///
    /// # Errors
    /// The first of [`push`](Self::push)'s, once all have ended.
    pub fn push_many(&self, to: &str, queue: &str, tensors: Vec<Tensor>, timeout: Option<Duration>) -> Sending {
        let timeout = timeout.unwrap_or(self.request_timeout());
        let (sender, receiver) = oneshot::channel();
        let (local, peer, queue) = (self.place(), to.to_owned(), queue.to_owned());
        let submitted = self.submit(to, move |node, now| {
            let waiter = SendWaiter::Channel(sender);
            match node.pair(local, &peer) {
                Ok(pair) => {
                    let (deadline, queue, tensors) = (deadline(now, timeout), queue.as_str(), tensors.into_iter());
                    node.push(now, PushRequest { pair, queue, tensors, deadline, waiter });
                }
                Err(error) => node.finish_send(waiter, Err(error)),
            }
        });
        Sending::of(Outcome::of(submitted, receiver))
    }

    /// Accepts tensors that any peer pushes into `queue` of this task, until the acceptor is dropped; then pushers wait for the next one,
    /// which first gets the tensors that the queue had taken but nobody accepted.
    pub fn acceptor(&self, queue: &str, options: AcceptOptions) -> Acceptor {
        let shards = (0..self.shards()).map(|shard| self.shard(shard)).collect();
        Acceptor::open(shards, self.place(), queue, options)
    }
}

impl LocalPair {
    /// Pushes a tensor into a queue of the peer: see [`Task::push`].
    pub fn push(&self, queue: &str, tensor: Tensor) -> LocalSending {
        self.push_many(queue, std::iter::once(tensor))
    }

    /// Pushes many, in order; completes when the queue has taken all of them, with the first error if there was any. Small ones are copied,
    /// and may be passed by reference.
    pub fn push_many<T>(&self, queue: &str, tensors: T) -> LocalSending
    where
        T: IntoIterator<Item: IntoTensor>,
        T::IntoIter: ExactSizeIterator,
    {
        self.push_within(self.engine.settings.request_timeout, queue, tensors.into_iter())
    }

    /// Like [`push_many`](Self::push_many), with a time limit.
    pub(super) fn push_within<T>(&self, timeout: Duration, queue: &str, tensors: T) -> LocalSending
    where
        T: ExactSizeIterator<Item: IntoTensor>,
    {
        let pair = self.pair;
        let cell = self.engine.with_node(|node, now| {
            let cell = node.open_send();
            let (deadline, waiter) = (deadline(now, timeout), SendWaiter::Cell(cell));
            node.push(now, PushRequest { pair, queue, tensors, deadline, waiter });
            cell
        });
        LocalSending::new(self.engine.clone(), cell)
    }
}

impl LocalTask {
    /// Accepts pushes into `queue` of this task from the peers that this shard serves.
    pub fn acceptor(&self, queue: &str, options: AcceptOptions) -> Acceptor {
        Acceptor::open(vec![self.engine.shard.shard_ref(self.engine.shard.index())], self.local, queue, options)
    }
}

/// The receiving end of a queue, for any thread. Bounded: pushers wait while it is full.
///
/// A push succeeds when the queue has taken it. So tensors in the queue are not lost when the acceptor is dropped: the queue's
/// next acceptor gets them first, in order. Until then they stay in memory, which is freed when the engine stops.
pub struct Acceptor {
    queue: Arc<AcceptQueue>,
    /// The shards where it is open.
    shards: Vec<ShardRef>,
    task: u16,
    name: Arc<str>,
}

/// A shard that fills a queue, as seen by the acceptor, which makes room.
struct Filler {
    shard: ShardRef,
    /// The shard need not be told of room: a job that checks for it is on its way, or the queue is not open there yet.
    is_told: AtomicBool,
}

/// A queue on its way to a shard. If the shard has stopped, the queue does not arrive, and the acceptor must be told.
struct Opening(Option<Arc<AcceptQueue>>);

impl Opening {
    fn arrive(mut self, node: &mut Node, task: u16, name: &str) {
        let Some(queue) = self.0.take() else { return };
        if let Err(error) = node.open_queue(task, name, queue.clone()) {
            queue.close(error);
        }
    }
}

impl Drop for Opening {
    fn drop(&mut self) {
        if let Some(queue) = &self.0 {
            queue.close(Error::unavailable("this engine", "it has stopped"));
        }
    }
}

impl Acceptor {
    fn open(shards: Vec<ShardRef>, task: u16, name: &str, options: AcceptOptions) -> Acceptor {
        let name: Arc<str> = name.into();
        let filler = |shard| Filler { shard, is_told: AtomicBool::new(true) };
        let fillers: Arc<[Filler]> = shards.into_iter().map(filler).collect();
        let (told, room_in) = (fillers.clone(), name.clone());
        let on_room = Box::new(move || {
            for (index, Filler { shard, is_told }) in told.iter().enumerate() {
                if !is_told.swap(true, Ordering::AcqRel) {
                    let (told, name) = (told.clone(), room_in.clone());
                    submit_always(shard, move |node, _| {
                        told[index].is_told.store(false, Ordering::Release);
                        node.replenish_named(task, &name);
                    });
                }
            }
        });
        let queue = Arc::new(AcceptQueue::new(options, on_room));
        let open = |&index: &usize| {
            let (opening, told, name) = (Opening(Some(queue.clone())), fillers.clone(), name.clone());
            let opened = submit(&fillers[index].shard, move |node, _| {
                told[index].is_told.store(false, Ordering::Release);
                opening.arrive(node, task, &name);
            });
            opened.map_err(|error| queue.refuse(error)).is_ok()
        };
        let opened = (0..fillers.len()).filter(open).map(|index| fillers[index].shard.clone()).collect();
        Acceptor { queue, shards: opened, task, name }
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    /// The next tensors, at most `most`: immediately if there are any, else when the first arrives.
    ///
    /// # Errors
    /// The future's: InvalidArgument if another acceptor has the queue, Unavailable if the engine has stopped.
    pub fn accept_many(&self, most: usize) -> AcceptingMany<'_> {
        AcceptingMany { queue: &self.queue, most }
    }

    /// All tensors that are there, grouped as they arrived; if there are none, waits for the first. Best for many small ones, which are
    /// read in the memory of their frame.
    ///
    /// # Errors
    /// Those of [`accept_many`](Self::accept_many).
    pub fn accept_all(&self) -> AcceptingAll<'_> {
        AcceptingAll { queue: &self.queue }
    }

    /// Adds all tensors that are there to `into`, grouped as they arrived, and returns how many.
    ///
    /// # Errors
    /// Those of [`accept_many`](Self::accept_many).
    pub fn try_accept_all(&self, into: &mut Vec<AcceptedBatch>) -> Result<usize, Error> {
        self.queue.take_all(into)
    }

    /// The next tensor.
    ///
    /// # Errors
    /// Those of [`accept_many`](Self::accept_many).
    pub async fn accept(&self) -> Result<Accepted, Error> {
        Ok(self.accept_many(1).await?.pop().expect("one at least"))
    }

    /// Blocks until there is a tensor, and takes at most `most`. Empty if `timeout` passes; without a timeout it waits without limit. Not
    /// for code on a shard.
    ///
    /// # Errors
    /// Those of [`accept_many`](Self::accept_many).
    pub fn wait_many(&self, most: usize, timeout: Option<Duration>) -> Result<Vec<Accepted>, Error> {
        let mut items = Vec::new();
        let deadline = timeout.map(|timeout| deadline(Instant::now(), timeout));
        self.queue.wait(most, deadline, &mut items)?;
        Ok(items)
    }

    /// Adds the available tensors to `into`, at most `most`, and returns how many.
    ///
    /// # Errors
    /// Those of [`accept_many`](Self::accept_many).
    pub fn try_accept(&self, most: usize, into: &mut Vec<Accepted>) -> Result<usize, Error> {
        self.queue.take(most, into)
    }
}

impl Drop for Acceptor {
    fn drop(&mut self) {
        for shard in &self.shards {
            let (task, name, queue) = (self.task, self.name.clone(), self.queue.clone());
            submit_always(shard, move |node, _| node.close_queue(task, &name, &queue));
        }
    }
}
