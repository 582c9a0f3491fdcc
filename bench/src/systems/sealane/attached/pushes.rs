//! Pushes through the daemon, on the calling thread, which is both clients: the worker keeps a window of pushes in flight, batch
//! by batch, and the ps takes out of its queue what has come. Counted are tensors that the ps has got.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use bytes::Bytes;
use sealane::{AcceptOptions, Accepted, Acceptor, DType, Error, Pushing, Task, Tensor, TensorMeta};

use super::super::engine::{PS, QUEUE};
use super::rounds::{BATCHES, is_in_ring};
use crate::limits::{FILL, STALL_LIMIT};
use crate::plan::Plan;
use crate::sample::Sample;
use crate::stopwatch::Tally;

/// The worker, and the queue of the ps.
pub(super) struct Pushes {
    worker: Task,
    /// The queue is the ps's as long as its task is there.
    _ps: Task,
    acceptor: Acceptor,
    /// What is pushed again and again.
    tensor: (TensorMeta, Bytes),
    accepted: Vec<Accepted>,
}

impl Pushes {
    /// Opens the queue, with room for a window of tensors, and takes memory for one.
    pub(super) fn new(plan: &Plan, ps: Task, worker: Task) -> Result<Self, Error> {
        let defaults = AcceptOptions::default();
        let bytes_max = defaults.bytes_max.max(plan.window * plan.size_bytes);
        let acceptor =
            ps.acceptor(QUEUE, AcceptOptions { tensors_max: defaults.tensors_max.max(plan.window), bytes_max });
        let bytes = if is_in_ring(plan) {
            Bytes::from(vec![FILL; plan.size_bytes])
        } else {
            let mut source = worker.alloc(plan.size_bytes)?;
            source.fill(FILL);
            Bytes::from_owner(source)
        };
        let tensor = (TensorMeta::new(DType::U8, &[plan.size_bytes as u64])?, bytes);
        Ok(Self { worker, _ps: ps, acceptor, tensor, accepted: Vec::with_capacity(plan.window) })
    }

    /// Batches of a window in flight until the round is over, and then those that still are.
    pub(super) fn round(&mut self, plan: &Plan, length: Duration) -> Result<Sample, Error> {
        let batch = (plan.window / BATCHES).max(1);
        let mut tally = Tally::start(Instant::now(), length);
        let mut under_way = VecDeque::with_capacity(BATCHES);
        let (mut over, mut came) = (false, 0);
        loop {
            while !over && under_way.len() < BATCHES.min(plan.window) {
                under_way.push_back(self.push(batch)?);
            }
            if under_way.is_empty() {
                return Ok(tally.sample(plan));
            }
            let count = self.accept(plan)?;
            over |= tally.completed(count as u64, Instant::now());
            came += count;
            while came >= batch
                && let Some(oldest) = under_way.pop_front()
            {
                came -= batch;
                oldest.wait()?;
            }
        }
    }

    fn push(&self, count: usize) -> Result<Pushing, Error> {
        let (meta, bytes) = &self.tensor;
        let tensors = (0..count).map(|_| Tensor::new(meta.clone(), bytes.clone())).collect::<Result<Vec<_>, _>>()?;
        Ok(self.worker.push_all(PS, QUEUE, tensors))
    }

    /// How many came, of the right size.
    fn accept(&mut self, plan: &Plan) -> Result<usize, Error> {
        self.accepted.clear();
        if self.acceptor.try_accept(plan.window, &mut self.accepted)? == 0 {
            self.accepted = self.acceptor.accept_many(plan.window).wait_within(STALL_LIMIT)?;
        }
        if let Some(other) = self.accepted.iter().find(|came| came.tensor.len() != plan.size_bytes) {
            let reason =
                format!("a tensor of {} bytes arrived where {} were pushed", other.tensor.len(), plan.size_bytes);
            return Err(Error::InvalidArgument { reason: reason.into() });
        }
        match self.accepted.len() {
            0 => Err(Error::InvalidArgument { reason: format!("nothing arrived within {STALL_LIMIT:?}").into() }),
            count => Ok(count),
        }
    }
}
