//! One way: the worker pushes small tensors into a queue of the ps, which accepts them. One task on each shard.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use sealane_fusion::{AcceptOptions, Buffer, DType, Error, LocalEngine, Tensor, TensorMeta};

use super::names::{PS, QUEUE, WORKER};
use crate::limits::FILL;
use crate::plan::Plan;
use crate::sample::Sample;
use crate::stopwatch::Tally;

/// Batches that the window is divided into, so that the next is in flight when one has been taken.
const BATCHES: usize = 4;

/// Tensors accepted at once at most.
const ACCEPTED_MAX: usize = 4096;

/// The ps: takes what comes, until the engine stops.
pub(super) fn accept(shard: &LocalEngine) -> Result<(), Error> {
    let acceptor = shard.task(PS)?.acceptor(QUEUE, AcceptOptions::default());
    drop(shard.shard().spawn(async move { while acceptor.accept_many(ACCEPTED_MAX).await.is_ok() {} }));
    Ok(())
}

/// The worker: a window of pushes in flight until the round is over. What counts is what the queue has taken.
pub(super) async fn round(shard: &LocalEngine, plan: &Plan, length: Duration) -> Result<Sample, Error> {
    let pair = shard.task(WORKER)?.pair(PS)?;
    let meta = TensorMeta::new(DType::U8, &[plan.size_bytes as u64])?;
    let bytes = vec![FILL; plan.size_bytes];
    let batch = (plan.window / BATCHES).max(1);
    let mut under_way = VecDeque::new();
    let mut tally = Tally::start(Instant::now(), length);
    let mut over = false;
    loop {
        while !over && under_way.len() < BATCHES.min(plan.window) {
            let tensor = |_| Tensor::from_parts(meta.clone(), Buffer::copy_of(&bytes));
            under_way.push_back(pair.push_many(QUEUE, (0..batch).map(tensor)));
        }
        let Some(pushed) = under_way.pop_front() else { break };
        pushed.await?;
        over |= tally.completed(batch as u64, shard.shard().now());
    }
    Ok(tally.sample(plan))
}
