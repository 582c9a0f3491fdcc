//! Publishing, plans and fused receives for code on a shard.

use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use sealane_runtime::Buffer;
use sealane_transport::tensor::IntoTensor;
use sealane_transport::{Error, Handle, Keys, PullBuffer, Pulled, RecvOutcome};

use super::deadline;
use super::local::{LocalPair, LocalTask};
use super::shard::ShardEngine;
use crate::node::{BatchWaiter, FusedRequest, Node, PullRequest, PullWaiter, ReceivedBatch};

impl LocalTask {
    /// Publishes a tensor to the peers that this shard serves, replacing the previous version: see [`Task::publish`](super::Task::publish),
    /// which does so on all shards. A small one is copied, and may be passed by reference.
    ///
    /// # Errors
    /// InvalidArgument if a newer version is published, ResourceExhausted if `fusion.published_tensors_max` are, or this
    /// task has its share of them.
    pub fn publish(&self, key: &str, version: i64, tensor: impl IntoTensor) -> Result<(), Error> {
        self.engine.with_node(|node, _| node.publish(self.local, key, version, tensor))
    }

    /// Publishes many tensors of one version, so that a pull finds all of them new or none.
    ///
    /// # Errors
    /// Those of [`publish`](Self::publish): the first. The others are published.
    pub fn publish_many<'k, T: IntoTensor>(
        &self,
        version: i64,
        tensors: impl IntoIterator<Item = (&'k str, T)>,
    ) -> Result<(), Error> {
        self.engine.with_node(|node, _| node.publish_all(self.local, version, tensors))
    }

    /// Withdraws a published tensor; false if it was not published. Pulls of it wait for the next publication.
    pub fn withdraw(&self, key: &str) -> bool {
        self.engine.with_node(|node, _| node.withdraw(self.local, key))
    }
}

impl LocalPair {
    /// Receives many tensors of a step from the peer at once. Tensors that do not come ahead within 1 ms are requested together, not a
    /// window's worth at a time. Await it for all outcomes in the order of the keys, or take them [as they
    /// arrive](LocalReceivingMany::next). Only tensors that have not arrived by the deadline end with DeadlineExceeded. Dropping it cancels
    /// the outstanding ones.
    pub fn recv_fused<'k, K>(&self, step: i64, keys: K) -> LocalReceivingMany
    where
        K: IntoIterator<Item = &'k str>,
        K::IntoIter: Clone,
    {
        self.recv_fused_with(step, keys, [], None)
    }

    /// [`recv_fused`](Self::recv_fused) into the caller's memory, one buffer per key for the first keys; `timeout` defaults to
    /// the engine's `request_timeout`.
    pub fn recv_fused_with<'k, K>(
        &self,
        step: i64,
        keys: K,
        destinations: impl IntoIterator<Item = Buffer>,
        timeout: Option<Duration>,
    ) -> LocalReceivingMany
    where
        K: IntoIterator<Item = &'k str>,
        K::IntoIter: Clone,
    {
        LocalReceivingMany(self.recv_batch(step, keys.into_iter(), destinations, timeout, BatchWaiter::Future(None)))
    }

    /// Requests many tensors of a step from the peer at once, to be read where they lie: small ones that come together cost a fraction of a
    /// single recv each. They lie on the heap until the batch is dropped, not limited by `runtime.slab_receive_bytes`. `timeout` defaults
    /// to the engine's `request_timeout`. Dropping the future cancels the recvs.
    pub fn recv_many<'k, K>(&self, step: i64, keys: K, timeout: Option<Duration>) -> LocalReceivingBatch
    where
        K: IntoIterator<Item = &'k str>,
        K::IntoIter: Clone,
    {
        LocalReceivingBatch(self.recv_batch(step, keys.into_iter(), [], timeout, BatchWaiter::Views(None)))
    }

    fn recv_batch<'k>(
        &self,
        step: i64,
        keys: impl Iterator<Item = &'k str> + Clone,
        destinations: impl IntoIterator<Item = Buffer>,
        timeout: Option<Duration>,
        waiter: BatchWaiter,
    ) -> OpenBatch {
        let timeout = timeout.unwrap_or(self.engine.settings.request_timeout);
        let batch = self.engine.with_node(|node, now| {
            let (pair, deadline) = (self.pair, deadline(now, timeout));
            node.recv_fused(now, FusedRequest { pair, step, keys, destinations, deadline, waiter })
        });
        OpenBatch { engine: self.engine.clone(), batch: Some(batch) }
    }

    /// Pulls many published tensors once, each at `min_version` or newer: the outcomes in the order of the keys. To pull the
    /// same keys repeatedly, a [plan](Self::plan) is cheaper.
    pub async fn pull_many(&self, keys: Keys, min_version: i64) -> Vec<Result<Pulled, Error>> {
        let mut plan = self.plan(keys);
        // Each key's error is in its place.
        let _ = plan.pull(min_version).await;
        let pull_buffer = plan.pull_buffer_mut();
        (0..pull_buffer.len()).map(|index| pull_buffer.take_pulled(index)).collect()
    }

    /// A plan: keys that the peer publishes, to be pulled together. They are sent once per link.
    pub fn plan(&self, keys: Keys) -> LocalPlan {
        let pull_buffer = PullBuffer::new(keys.len());
        let keys = Arc::new(keys);
        let plan = self.engine.with_node(|node, _| node.open_plan(self.pair, keys.clone()));
        LocalPlan { engine: self.engine.clone(), plan, keys, pull_buffer }
    }
}

/// The recvs of one call, cancelled when this is dropped.
struct OpenBatch {
    engine: Rc<ShardEngine>,
    /// `None` once all outcomes were taken.
    batch: Option<Handle>,
}

impl OpenBatch {
    /// Polls the node with `poll`; a ready result means that it has closed the batch.
    fn poll<T>(&mut self, poll: impl FnOnce(&mut Node, Handle) -> Poll<T>) -> Poll<T> {
        let batch = self.batch.expect("polled after it was ready");
        let outcomes = ready!(self.engine.borrow_node(|node| poll(node, batch)));
        self.batch = None;
        Poll::Ready(outcomes)
    }
}

impl Drop for OpenBatch {
    fn drop(&mut self) {
        if let Some(batch) = self.batch {
            self.engine.with_node(|node, _| node.close_batch(batch));
        }
    }
}

/// Many recvs in progress on this shard.
#[must_use = "dropping it cancels the recvs"]
pub struct LocalReceivingMany(OpenBatch);

impl LocalReceivingMany {
    /// The next outcome, with its index; `None` when all were taken.
    pub async fn next(&mut self) -> Option<(usize, RecvOutcome)> {
        let OpenBatch { engine, batch } = &self.0;
        let batch = (*batch)?;
        std::future::poll_fn(|context| engine.borrow_node(|node| node.poll_next_of(batch, context.waker()))).await
    }
}

impl Future for LocalReceivingMany {
    /// In the order of the keys, without those already taken one by one.
    type Output = Vec<RecvOutcome>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Vec<RecvOutcome>> {
        self.0.poll(|node, batch| node.poll_batch(batch, context.waker()))
    }
}

/// Many recvs in progress on this shard, whose tensors are read where they lie.
#[must_use = "dropping it cancels the recvs"]
pub struct LocalReceivingBatch(OpenBatch);

impl Future for LocalReceivingBatch {
    type Output = ReceivedBatch;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<ReceivedBatch> {
        self.0.poll(|node, batch| node.poll_views(batch, context.waker()))
    }
}

/// Keys that are pulled together, and the memory they are pulled into.
pub struct LocalPlan {
    engine: Rc<ShardEngine>,
    plan: Handle,
    keys: Arc<Keys>,
    pull_buffer: PullBuffer,
}

impl LocalPlan {
    /// Pulls every tensor of the plan at `min_version` or newer; waits for older ones. Tensors that have not arrived by the deadline fail
    /// individually: check each in the [pull buffer](Self::pull_buffer). Dropping the future cancels the pull.
    pub fn pull(&mut self, min_version: i64) -> LocalPulling<'_> {
        let timeout = self.engine.settings.request_timeout;
        self.pull_within(min_version, timeout)
    }

    /// [`pull`](Self::pull) with its own timeout; `Duration::MAX` for none.
    pub fn pull_within(&mut self, min_version: i64, timeout: Duration) -> LocalPulling<'_> {
        let (plan, pull_buffer) = (self.plan, std::mem::take(&mut self.pull_buffer));
        let (cell, pull) = self.engine.with_node(|node, now| {
            let cell = node.open_pull();
            let (deadline, waiter) = (deadline(now, timeout), PullWaiter::Cell(cell));
            let (views, fail_if_gone) = (false, false);
            (
                cell,
                node.pull(now, PullRequest { plan, min_version, deadline, pull_buffer, views, fail_if_gone, waiter }),
            )
        });
        LocalPulling { plan: self, cell: Some(cell), pull }
    }

    pub fn keys(&self) -> &Keys {
        &self.keys
    }

    /// The results of the last pull.
    pub fn pull_buffer(&self) -> &PullBuffer {
        &self.pull_buffer
    }

    /// The results of the last pull, for taking tensors out or providing memory.
    pub fn pull_buffer_mut(&mut self) -> &mut PullBuffer {
        &mut self.pull_buffer
    }
}

impl Drop for LocalPlan {
    fn drop(&mut self) {
        self.engine.with_node(|node, _| node.close_plan(self.plan));
    }
}

/// A pull in progress on this shard.
#[must_use = "dropping it cancels the pull"]
pub struct LocalPulling<'a> {
    plan: &'a mut LocalPlan,
    cell: Option<Handle>,
    pull: Option<Handle>,
}

impl Future for LocalPulling<'_> {
    /// The first error, if any tensor did not come; the pull buffer has each one's.
    type Output = Result<(), Error>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<(), Error>> {
        let cell = self.cell.expect("polled after it was ready");
        let engine = &self.plan.engine;
        let pull_buffer = ready!(engine.borrow_node(|node| node.poll_pull(cell, context.waker())));
        self.cell = None;
        let error = pull_buffer.first_error().map(|(_, error)| error.clone());
        self.plan.pull_buffer = pull_buffer;
        Poll::Ready(error.map_or(Ok(()), Err))
    }
}

impl Drop for LocalPulling<'_> {
    fn drop(&mut self) {
        let Some(cell) = self.cell else { return };
        let pull = self.pull;
        let pull_buffer = self.plan.engine.with_node(|node, _| node.close_pull(cell, pull));
        self.plan.pull_buffer = pull_buffer.unwrap_or_else(|| PullBuffer::new(self.plan.keys.len()));
    }
}
