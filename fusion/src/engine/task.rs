//! A task for any thread: calls cross to the shard that serves the pair, and outcomes return through a one-shot channel.

use std::future::{Future, IntoFuture};
use std::os::fd::OwnedFd;
use std::pin::Pin;
use std::sync::{Arc, MutexGuard, OnceLock, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use sealane_runtime::{Buffer, Job, Shard, ShardRef};
use sealane_transport::endpoint_map::TaskName;
use sealane_transport::{Error, PullOptions, RecvOptions, RecvOutcome, SendOptions, SendOutcome, Unreceived};

use super::shard::ShardEngine;
use super::{Engine, deadline};
use crate::node::{Node, PullRowsRequest, RecvRequest, RecvWaiter, SendWaiter, Ticket};
use sealane_transport::named_rows::NamedRowsBuf;
use sealane_transport::tensor::Tensor;

/// A task of an [`Engine`], for any thread. Cheap to clone; keeps the engine running.
#[derive(Clone)]
pub struct Task {
    engine: Engine,
    name: TaskName,
    /// Its index among the engine's tasks.
    place: u16,
}

impl Task {
    pub(super) fn new(engine: Engine, name: &str) -> Result<Task, Error> {
        let tasks = engine.tasks();
        let place = tasks.iter().position(|task| task.as_str() == name);
        let place = place.ok_or_else(|| Error::NotFound {
            task: name.into(),
            reason: "this engine was not started with it".into(),
        })?;
        Ok(Task { engine, name: tasks[place].clone(), place: place as u16 })
    }

    pub fn name(&self) -> &str {
        self.name.as_str()
    }

    /// [`Engine::connect_for_stream`] of this task.
    ///
    /// # Errors
    /// Those of [`Engine::connect_for_stream`].
    pub fn connect_for_stream(&self, peer: &str) -> Result<(u64, OwnedFd), Error> {
        self.engine.connect_for_stream(self.name(), peer)
    }

    /// [`Engine::stream_connection`] of this task.
    ///
    /// # Errors
    /// Those of [`Engine::stream_connection`].
    pub fn stream_connection(&self, peer: &str, number: u64) -> Result<OwnedFd, Error> {
        self.engine.stream_connection(self.name(), peer, number)
    }

    /// Sends a tensor to `to`, which may request it before or after. The returned future (or [`wait`](Sending::wait)) completes
    /// when the consumer has released it; if it is dropped, the send continues unobserved.
    pub fn send(&self, to: &str, step: i64, key: &str, tensor: Tensor) -> Sending {
        self.send_with(to, step, key, tensor, SendOptions::default())
    }

    pub fn send_with(&self, to: &str, step: i64, key: &str, tensor: Tensor, options: SendOptions) -> Sending {
        let timeout = options.timeout.unwrap_or(self.engine.0.settings.request_timeout);
        let (sender, receiver) = oneshot::channel();
        let (local, peer, key) = (self.place, to.to_owned(), key.to_owned());
        let submitted = self.submit(to, move |node, now| {
            let waiter = SendWaiter::Channel(sender);
            match node.pair(local, &peer) {
                Ok(pair) => node.send(pair, step, &key, tensor, deadline(now, timeout), waiter),
                Err(error) => node.finish_send(waiter, Err(error)),
            }
        });
        Sending(Outcome::of(submitted, receiver))
    }

    /// Requests a tensor from `from`, which may be sent before or after. The returned future (or [`wait`](Receiving::wait))
    /// completes with the tensor or an error, at the latest at its deadline.
    pub fn recv(&self, from: &str, step: i64, key: &str) -> Receiving {
        self.recv_with(from, step, key, RecvOptions::default())
    }

    /// [`recv`](Self::recv) into the caller's own memory, which is returned with the outcome: in the tensor, or in the error.
    pub fn recv_into(&self, from: &str, step: i64, key: &str, destination: Buffer) -> Receiving {
        self.recv_with(from, step, key, RecvOptions { destination: Some(destination.into()), ..RecvOptions::default() })
    }

    pub fn recv_with(&self, from: &str, step: i64, key: &str, options: RecvOptions) -> Receiving {
        let timeout = options.timeout.unwrap_or(self.engine.0.settings.request_timeout);
        let (sender, receiver) = oneshot::channel();
        let (local, peer, key) = (self.place, from.to_owned(), key.to_owned());
        let (recall, tag) = self.recall(from);
        let submitted = self.submit(from, move |node, now| {
            let RecvOptions { destination, fail_if_gone, .. } = options;
            let waiter = RecvWaiter::Channel(sender);
            match node.pair(local, &peer) {
                Ok(pair) => {
                    let deadline = deadline(now, timeout);
                    let (key, fused) = (&*key, false);
                    let request = RecvRequest { pair, step, key, deadline, destination, waiter, fused, fail_if_gone };
                    write_on(&tag, node.recv(now, request));
                }
                Err(error) => node.finish_recv(waiter, Err(Unreceived::returning(error, destination))),
            }
        });
        Receiving { outcome: Outcome::of(submitted, receiver), recall }
    }

    /// Receives many tensors of a step from `from` at once, each with its own options and outcome. Tensors that do not come ahead within 1
    /// ms are requested together, not a window's worth at a time.
    pub fn recv_all<K: AsRef<str>>(
        &self,
        from: &str,
        step: i64,
        wanted: impl IntoIterator<Item = (K, RecvOptions)>,
    ) -> Vec<Receiving> {
        let usual = self.request_timeout();
        let (mut receivers, mut asks) = (Vec::new(), Vec::new());
        for (key, options) in wanted {
            let (sender, receiver) = oneshot::channel();
            let (recall, tag) = self.recall(from);
            receivers.push((receiver, recall));
            asks.push((Box::<str>::from(key.as_ref()), options, RecvWaiter::Channel(sender), tag));
        }
        let (local, peer) = (self.place, from.to_owned());
        let submitted = self.submit(from, move |node, now| {
            let pair = node.pair(local, &peer);
            for (key, RecvOptions { timeout, destination, fail_if_gone }, waiter, tag) in asks {
                match &pair {
                    &Ok(pair) => {
                        let (key, deadline) = (&*key, deadline(now, timeout.unwrap_or(usual)));
                        let fused = true;
                        let request =
                            RecvRequest { pair, step, key, deadline, destination, waiter, fused, fail_if_gone };
                        write_on(&tag, node.recv(now, request));
                    }
                    Err(error) => {
                        node.finish_recv(waiter, Err(Unreceived::returning(error.clone(), destination)));
                    }
                }
            }
        });
        let receiving = |(receiver, recall)| Receiving { outcome: Outcome::of(submitted.clone(), receiver), recall };
        receivers.into_iter().map(receiving).collect()
    }

    /// Requests rows of tables that `from` has published or will publish at `min_version` or newer, one request for each element of
    /// `wanted`: see [`NamedRows`](sealane_transport::named_rows::NamedRows). Each result is [one
    /// tensor](sealane_transport::gathered_rows). The first request goes over the shard that is `stripe` after the one that serves the
    /// pair, and each further one over the next, wrapping around.
    ///
    /// # Panics
    /// If a request names no table.
    pub fn pull_rows(
        &self,
        (from, stripe): (&str, usize),
        min_version: i64,
        PullOptions { timeout, fail_if_gone }: PullOptions,
        wanted: Vec<NamedRowsBuf>,
    ) -> Vec<Receiving> {
        let timeout = timeout.unwrap_or(self.engine.0.settings.request_timeout);
        let (shards, first) = (self.shards(), self.serving(from) + stripe);
        let mut asks: Vec<Vec<_>> = (0..shards).map(|_| Vec::new()).collect();
        let (mut receivers, mut submitted) = (Vec::new(), vec![Ok(()); shards]);
        for (shard, rows) in (first..).map(|shard| shard % shards).zip(wanted) {
            assert!(!rows.is_empty(), "a request names a table");
            let (sender, receiver) = oneshot::channel();
            let (recall, tag) = self.recall_at(shard);
            receivers.push((receiver, recall, shard));
            asks[shard].push((rows, RecvWaiter::Channel(sender), tag));
        }
        for (shard, asks) in asks.into_iter().enumerate().filter(|(_, asks)| !asks.is_empty()) {
            let (local, peer) = (self.place, from.to_owned());
            submitted[shard] = self.submit_to(shard, move |node, now| {
                let pair = node.pulling_pair(local, &peer);
                for (rows, waiter, tag) in asks {
                    match &pair {
                        &Ok(pair) => {
                            let (rows, deadline, views) = (rows.as_rows(), deadline(now, timeout), false);
                            let request =
                                PullRowsRequest { pair, rows, min_version, deadline, views, fail_if_gone, waiter };
                            write_on(&tag, node.pull_rows(now, request));
                        }
                        Err(error) => node.finish_recv(waiter, Err(Unreceived::from(error.clone()))),
                    }
                }
            });
        }
        let receiving = |(receiver, recall, shard): (_, _, usize)| Receiving {
            outcome: Outcome::of(submitted[shard].clone(), receiver),
            recall,
        };
        receivers.into_iter().map(receiving).collect()
    }

    /// The handle to cancel a recv of this task from `peer`, and the tag that the shard writes the recv's ticket to.
    fn recall(&self, peer: &str) -> (Recall, Tag) {
        self.recall_at(self.serving(peer))
    }

    fn recall_at(&self, shard: usize) -> (Recall, Tag) {
        let tag = Tag::default();
        (Recall { shard: self.shard(shard), tag: tag.clone() }, tag)
    }

    /// Ends `step` of this task, here and at its peers: every waiting recv of it ends with Aborted and `reason`,
    /// waiting tensors are freed, and later calls get the same error until [`cleanup`](Self::cleanup).
    ///
    /// # Errors
    /// ResourceExhausted if a shard's mailbox is full, Unavailable if the engine has stopped.
    pub fn abort(&self, step: i64, reason: &str) -> Result<(), Error> {
        self.on_all(|task| {
            let reason = reason.to_owned();
            move |node, _| node.abort(task, step, &reason)
        })
    }

    /// Frees everything left of `step` of this task: waiting tensors, waiting requests, and the record of an abort. The step's number may
    /// be used again. A small tensor of it may have been sent already: a recv that the other side makes before it learns of the cleanup
    /// gets that tensor.
    ///
    /// # Errors
    /// ResourceExhausted if a shard's mailbox is full, Unavailable if the engine has stopped.
    pub fn cleanup(&self, step: i64) -> Result<(), Error> {
        self.on_all(|task| move |node, _| node.cleanup(task, step))
    }

    fn on_all<F>(&self, make: impl Fn(u16) -> F) -> Result<(), Error>
    where
        F: FnOnce(&mut Node, Instant) + Send + 'static,
    {
        (0..self.shards()).try_for_each(|shard| self.submit_to(shard, make(self.place)))
    }

    pub(super) fn place(&self) -> u16 {
        self.place
    }

    pub fn shards(&self) -> usize {
        self.engine.0.runtime.shards()
    }

    pub(super) fn shard(&self, index: usize) -> ShardRef {
        self.engine.0.runtime.shard(index)
    }

    /// Memory of each shard for tensors that arrive without a destination, in bytes.
    pub fn slab_receive_bytes(&self) -> usize {
        self.engine.0.settings.slab_receive_bytes
    }

    pub(super) fn request_timeout(&self) -> Duration {
        self.engine.0.settings.request_timeout
    }

    pub(super) fn submit_to(
        &self,
        shard: usize,
        job: impl FnOnce(&mut Node, Instant) + Send + 'static,
    ) -> Result<(), Error> {
        submit(&self.shard(shard), job)
    }

    pub(super) fn submit(
        &self,
        peer: &str,
        job: impl FnOnce(&mut Node, Instant) + Send + 'static,
    ) -> Result<(), Error> {
        self.submit_to(self.serving(peer), job)
    }

    /// Held while each shard is given a publication, and no longer.
    pub(super) fn publishing_turn(&self) -> MutexGuard<'_, ()> {
        self.engine.0.publishing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The number of the shard that serves this task and a peer.
    pub(super) fn serving(&self, peer: &str) -> usize {
        self.engine.shard_of(self.name(), peer)
    }
}

/// Where a shard writes the ticket of a recv that waits.
type Tag = Arc<OnceLock<Ticket>>;

fn write_on(tag: &Tag, ticket: Option<Ticket>) {
    if let Some(ticket) = ticket {
        let _ = tag.set(ticket);
    }
}

/// How to cancel a recv: a job on the shard that serves it. One small allocation per call.
struct Recall {
    shard: ShardRef,
    tag: Tag,
}

impl Recall {
    /// Cancels a submitted recv; no effect if it has ended. Drop the receiver first, so that a tensor that arrives meanwhile is returned.
    fn give_up(&self) {
        let tag = self.tag.clone();
        // Jobs run in the order in which they were submitted: the tag is set by then, if the recv still waits.
        submit_always(&self.shard, move |node, _| {
            if let Some(&ticket) = tag.get() {
                node.cancel(ticket);
            }
        });
    }
}

fn on_node(job: impl FnOnce(&mut Node, Instant) + Send + 'static) -> Job {
    Box::new(move |_: &Shard| {
        if let Some(engine) = ShardEngine::current() {
            engine.with_node(job);
        }
    })
}

/// [`submit`] for jobs that close or wake something that an earlier job has opened, and so must not be lost: at most one at a time for each
/// such thing. A shard that has stopped has closed it.
pub(super) fn submit_always(shard: &ShardRef, job: impl FnOnce(&mut Node, Instant) + Send + 'static) {
    shard.submit_always(on_node(job));
}

pub(super) fn submit(shard: &ShardRef, job: impl FnOnce(&mut Node, Instant) + Send + 'static) -> Result<(), Error> {
    shard.submit(on_node(job)).map_err(|full| match full.stopped {
        true => Error::unavailable("this engine", "it has stopped"),
        false => Error::full("runtime.mailbox_slots", full.to_string()),
    })
}

/// An outcome on its way from a shard, or one known at once.
pub(super) enum Outcome<T> {
    Coming(oneshot::Receiver<T>),
    Awaited(oneshot::AsyncReceiver<T>),
    Here(T),
    Over,
}

impl<T, E: From<Error>> Outcome<Result<T, E>> {
    pub(super) fn of(submitted: Result<(), Error>, receiver: oneshot::Receiver<Result<T, E>>) -> Self {
        match submitted {
            Ok(()) => Outcome::Coming(receiver),
            Err(error) => Outcome::Here(Err(error.into())),
        }
    }

    pub(super) fn wait(self) -> Result<T, E> {
        match self {
            Outcome::Coming(receiver) => receiver.recv().unwrap_or_else(|_| Err(gone())),
            Outcome::Here(outcome) => outcome,
            Outcome::Awaited(_) | Outcome::Over => panic!("waited for after it was polled"),
        }
    }

    pub(super) fn poll(&mut self, context: &mut Context<'_>) -> Poll<Result<T, E>> {
        loop {
            match std::mem::replace(self, Outcome::Over) {
                Outcome::Coming(receiver) => *self = Outcome::Awaited(receiver.into_future()),
                Outcome::Awaited(mut receiver) => {
                    let poll = Pin::new(&mut receiver).poll(context);
                    if poll.is_pending() {
                        *self = Outcome::Awaited(receiver);
                    }
                    return Poll::Ready(ready!(poll).unwrap_or_else(|_| Err(gone())));
                }
                Outcome::Here(outcome) => return Poll::Ready(outcome),
                Outcome::Over => panic!("polled after it was ready"),
            }
        }
    }
}

impl<T> Outcome<T> {
    /// Drops the receiving end; true if the outcome had not been taken from it.
    pub(super) fn hang_up(&mut self) -> bool {
        matches!(std::mem::replace(self, Outcome::Over), Outcome::Coming(_) | Outcome::Awaited(_))
    }

    /// Takes the outcome, so that dropping its former owner no longer cancels the call.
    pub(super) fn take(&mut self) -> Self {
        std::mem::replace(self, Outcome::Over)
    }
}

fn gone<E: From<Error>>() -> E {
    Error::unavailable("this engine", "it stopped before the call ended").into()
}

/// A send, a push or a publication in progress: await it, or [`wait`](Self::wait).
#[must_use = "await it to know that the tensor arrived, or drop it explicitly"]
pub struct Sending(Outcome<SendOutcome>);

impl Sending {
    pub(super) fn of(outcome: Outcome<SendOutcome>) -> Sending {
        Sending(outcome)
    }

    /// Blocks until the consumer has released the tensor, its queue has taken it, or all peers can see it, or the call has failed: at the
    /// latest at its deadline. Not for code on a shard.
    ///
    /// # Errors
    /// As [`Error`] says; DeadlineExceeded if nobody requested it in time, or if the tensor was in transit then:
    /// `delivery_unknown` says which. The engine keeps a tensor in transit until its consumer has released it.
    pub fn wait(self) -> SendOutcome {
        self.0.wait()
    }
}

impl Future for Sending {
    type Output = SendOutcome;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<SendOutcome> {
        self.0.poll(context)
    }
}

/// A recv in progress: await it, or [`wait`](Self::wait).
///
/// Dropping it cancels the recv, here and at the producer: the tensor stays there, or is returned if it is in transit. A tensor
/// that had already arrived was released, and is lost.
#[must_use = "dropping it cancels the recv"]
pub struct Receiving {
    outcome: Outcome<RecvOutcome>,
    recall: Recall,
}

impl Receiving {
    /// Blocks until the tensor has arrived, or the recv has failed: at the latest at its deadline. Not for code on a
    /// shard.
    ///
    /// # Errors
    /// As [`Error`] says; [`Unreceived`] returns the destination.
    pub fn wait(mut self) -> RecvOutcome {
        self.outcome.take().wait()
    }
}

impl Future for Receiving {
    type Output = RecvOutcome;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<RecvOutcome> {
        self.outcome.poll(context)
    }
}

impl Drop for Receiving {
    fn drop(&mut self) {
        if self.outcome.hang_up() {
            self.recall.give_up();
        }
    }
}
