//! The engine's interface for code on one of its shards: no thread crossings, no allocation per tensor.

use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use sealane_runtime::{Buffer, Shard};
use sealane_transport::{Error, Handle, RecvOptions, RecvOutcome, SendOptions, SendOutcome};

use super::deadline;
use super::shard::ShardEngine;

use crate::node::{Counters, Node, RecvRequest, RecvWaiter, SendWaiter, Ticket};
use sealane_transport::tensor::IntoTensor;

/// The engine on the shard that runs this code; from [`Engine::on_shard`](super::Engine::on_shard). `!Send`, like everything
/// that belongs to a shard:
///
/// ```compile_fail
/// fn needs_send<T: Send>() {}
/// needs_send::<sealane_fusion::LocalEngine>();
/// ```
#[derive(Clone)]
pub struct LocalEngine(Rc<ShardEngine>);

impl LocalEngine {
    pub(super) fn current() -> Option<LocalEngine> {
        ShardEngine::current().map(LocalEngine)
    }

    /// The shard, for spawning tasks, sleeping and reading the clock.
    pub fn shard(&self) -> &Shard {
        &self.0.shard
    }

    /// A task of this engine.
    ///
    /// # Errors
    /// NotFound if it is not served here.
    pub fn task(&self, name: &str) -> Result<LocalTask, Error> {
        let local = self.0.borrow_node(|node| node.local_task(name))?;
        Ok(LocalTask { engine: self.0.clone(), local })
    }

    /// Memory of the send slab: a tensor in it is sent without a copy, and the memory returns automatically once the consumer
    /// has released the tensor.
    ///
    /// # Errors
    /// ResourceExhausted if the slab has no room.
    pub fn allocate(&self, len: usize) -> Result<Buffer, Error> {
        let allocated = self.0.borrow_node(|node| node.send_slab().allocate(len));
        allocated.map_err(|full| Error::full("runtime.slab_send_bytes", full.to_string()))
    }

    pub fn counters(&self) -> Counters {
        self.0.counters()
    }

    /// Says goodbye, and waits until the goodbyes have left or `deadline` has passed.
    pub(super) async fn shut_down(&self, reason: &str, deadline: Instant) {
        self.0.with_node(|node, now| node.shut_down(now, reason));
        let has_more = |node: &mut Node| node.has_work() || !node.blocked().is_empty() || node.has_client_outcomes();
        while self.0.borrow_node(has_more) && Instant::now() < deadline {
            self.0.shard.sleep(Duration::from_millis(1)).await;
        }
        // The last metrics that other threads see of this shard.
        self.0.show();
    }
}

/// A task of this engine, on one shard.
#[derive(Clone)]
pub struct LocalTask {
    pub(super) engine: Rc<ShardEngine>,
    pub(super) local: u16,
}

impl LocalTask {
    /// This task and a peer, ready for sends and recvs.
    ///
    /// # Errors
    /// NotFound if the peer is not in the endpoint map, InvalidArgument if another shard serves the pair (see
    /// [`Engine::shard_of`](super::Engine::shard_of)).
    pub fn pair(&self, peer: &str) -> Result<LocalPair, Error> {
        let pair = self.engine.borrow_node(|node| node.pair(self.local, peer))?;
        Ok(LocalPair { engine: self.engine.clone(), pair })
    }

    /// Ends a step of this task on this shard: see [`Task::abort`](super::Task::abort), which does so on all.
    pub fn abort(&self, step: i64, reason: &str) {
        self.engine.with_node(|node, _| node.abort(self.local, step, reason));
    }

    /// Frees everything left of a step on this shard: see [`Task::cleanup`](super::Task::cleanup), which does so on all.
    pub fn cleanup(&self, step: i64) {
        self.engine.with_node(|node, _| node.cleanup(self.local, step));
    }
}

/// A task of this engine and a peer, on the shard that serves the pair.
#[derive(Clone)]
pub struct LocalPair {
    pub(super) engine: Rc<ShardEngine>,
    pub(super) pair: u32,
}

impl LocalPair {
    /// Sends a tensor to the peer. It may be passed by reference: small ones are copied. The future completes when the peer has released
    /// it; if it is dropped, the send continues unobserved.
    pub fn send(&self, step: i64, key: &str, tensor: impl IntoTensor) -> LocalSending {
        self.send_with(step, key, tensor, SendOptions::default())
    }

    pub fn send_with(&self, step: i64, key: &str, tensor: impl IntoTensor, options: SendOptions) -> LocalSending {
        let timeout = options.timeout.unwrap_or(self.engine.settings.request_timeout);
        let cell = self.engine.with_node(|node, now| {
            let cell = node.open_send();
            node.send(self.pair, step, key, tensor, deadline(now, timeout), SendWaiter::Cell(cell));
            cell
        });
        LocalSending::new(self.engine.clone(), cell)
    }

    /// Sends many tensors of a step, by key, at a fraction of the cost of single sends. The future completes when the peer has released all
    /// of them, with the first error if there was any. They may be passed by reference: small ones are copied. The iterator must not call
    /// the engine.
    pub fn send_many<K: AsRef<str>, T: IntoTensor>(
        &self,
        step: i64,
        tensors: impl IntoIterator<Item = (K, T), IntoIter: ExactSizeIterator>,
        options: SendOptions,
    ) -> LocalSending {
        let (timeout, tensors) = (options.timeout.unwrap_or(self.engine.settings.request_timeout), tensors.into_iter());
        let cell = self.engine.with_node(|node, now| {
            let cell = node.open_send();
            node.send_many((self.pair, step), tensors, deadline(now, timeout), SendWaiter::Cell(cell));
            cell
        });
        LocalSending::new(self.engine.clone(), cell)
    }

    /// Requests a tensor from the peer, which arrives in the receive slab. Dropping the future cancels the recv.
    pub fn recv(&self, step: i64, key: &str) -> LocalReceiving {
        self.recv_with(step, key, RecvOptions::default())
    }

    /// [`recv`](Self::recv) into the caller's own memory, which is returned with the outcome: in the tensor, or in the error.
    pub fn recv_into(&self, step: i64, key: &str, destination: Buffer) -> LocalReceiving {
        self.recv_with(step, key, RecvOptions { destination: Some(destination.into()), ..RecvOptions::default() })
    }

    pub fn recv_with(&self, step: i64, key: &str, options: RecvOptions) -> LocalReceiving {
        let timeout = options.timeout.unwrap_or(self.engine.settings.request_timeout);
        let (cell, ticket) = self.engine.with_node(|node, now| {
            let cell = node.open_recv();
            let ticket = node.recv(
                now,
                RecvRequest {
                    pair: self.pair,
                    step,
                    key,
                    deadline: deadline(now, timeout),
                    destination: options.destination,
                    waiter: RecvWaiter::Cell(cell),
                    fused: false,
                    fail_if_gone: options.fail_if_gone,
                },
            );
            (cell, ticket)
        });
        LocalReceiving { engine: self.engine.clone(), cell: Some(cell), ticket }
    }
}

/// A send or push in progress on this shard.
#[must_use = "await it to know that the tensor arrived, or drop it explicitly"]
pub struct LocalSending {
    engine: Rc<ShardEngine>,
    cell: Option<Handle>,
}

impl LocalSending {
    pub(super) fn new(engine: Rc<ShardEngine>, cell: Handle) -> LocalSending {
        LocalSending { engine, cell: Some(cell) }
    }
}

impl Future for LocalSending {
    type Output = SendOutcome;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<SendOutcome> {
        let cell = self.cell.expect("polled after it was ready");
        let outcome = ready!(self.engine.borrow_node(|node| node.poll_send(cell, context.waker())));
        self.cell = None;
        Poll::Ready(outcome)
    }
}

impl Drop for LocalSending {
    fn drop(&mut self) {
        if let Some(cell) = self.cell {
            self.engine.borrow_node(|node| node.close_send(cell));
        }
    }
}

/// A recv in progress on this shard.
#[must_use = "dropping it cancels the recv"]
pub struct LocalReceiving {
    engine: Rc<ShardEngine>,
    cell: Option<Handle>,
    ticket: Option<Ticket>,
}

impl Future for LocalReceiving {
    type Output = RecvOutcome;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<RecvOutcome> {
        let cell = self.cell.expect("polled after it was ready");
        let outcome = ready!(self.engine.borrow_node(|node| node.poll_recv(cell, context.waker())));
        self.cell = None;
        Poll::Ready(outcome)
    }
}

impl Drop for LocalReceiving {
    fn drop(&mut self) {
        if let Some(cell) = self.cell {
            let ticket = self.ticket;
            self.engine.with_node(|node, _| node.close_recv(cell, ticket));
        }
    }
}
