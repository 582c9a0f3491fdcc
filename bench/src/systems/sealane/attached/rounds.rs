//! Tensors through the daemon, on the calling thread, which is both clients.
//!
//! - *latency*: the worker's recv is in place; timed is from the ps's call of `send` until the worker has the tensor.
//! - *rate* and *bandwidth*: batches of a window in flight, each asked for and sent; rate fuses the calls of a batch if turns are
//!   fused.

use std::collections::VecDeque;
use std::ops::Range;
use std::time::Instant;

use bytes::Bytes;
use sealane::{Buffer, Receiving, RecvOptions, Sending, Task, Tensor, TensorMeta};
use sealane_transport::shm::limits::INLINE_BYTES_MAX;

use super::super::engine::{NAME, PS, WORKER, key_of};
use super::{SLACK_BYTES, block_bytes, kept, unmoved};
use crate::error::BenchError;
use crate::plan::{Bench, Fuse, Plan};
use crate::systems::client::{Client, check_length, pass_gap};

/// Batches of a window: while one is waited for, the daemon works on the others.
const BATCHES: usize = 4;

/// The size of each client's arena: room for the window's tensors, unless they travel in the ring, and are in no arena.
pub(super) fn arena_bytes(plan: &Plan) -> u64 {
    if plan.size_bytes <= INLINE_BYTES_MAX {
        return SLACK_BYTES as u64;
    }
    let block = block_bytes(plan.size_bytes);
    (block * plan.window + block / 4 + SLACK_BYTES) as u64
}

/// One of the tensors that are in flight at once.
struct Slot {
    key: String,
    /// What is sent, again and again: one parameter that is pulled each step.
    source: (TensorMeta, Bytes),
    /// Where it arrives, if that is not in the ring; given back by every recv.
    destination: Option<Buffer>,
}

impl Slot {
    fn options(&mut self) -> RecvOptions {
        RecvOptions { destination: self.destination.take(), ..RecvOptions::default() }
    }

    fn tensor(&self) -> Result<Tensor, BenchError> {
        let (meta, bytes) = &self.source;
        Tensor::new(meta.clone(), bytes.clone()).map_err(unmoved)
    }

    /// Takes a recv's tensor.
    fn received(&mut self, tensor: Tensor) -> Result<(), BenchError> {
        let (buffer, expected) = (tensor.into_buffer(), self.source.1.len());
        check_length(NAME, expected, buffer.len())?;
        self.destination = (expected > INLINE_BYTES_MAX).then_some(buffer);
        Ok(())
    }
}

/// The window's slots, divided.
fn batches(window: usize) -> impl Iterator<Item = Range<usize>> {
    let size = window.div_ceil(BATCHES);
    (0..window).step_by(size).map(move |start| start..window.min(start + size))
}

/// Calls in flight for some of the slots.
struct Batch {
    slots: Range<usize>,
    receivings: Vec<Receiving>,
    sendings: Vec<Sending>,
}

/// Both clients, and what they use again from round to round.
pub(super) struct Clients {
    ps: Task,
    worker: Task,
    slots: Vec<Slot>,
    idle: VecDeque<Range<usize>>,
    under_way: VecDeque<Batch>,
    /// Whether a batch is one call each way.
    fused: bool,
    /// The next step; no step is used twice.
    step: i64,
}

impl Clients {
    /// Takes the two tasks, and memory for a window of tensors.
    pub(super) fn new(plan: &Plan, ps: Task, worker: Task) -> Result<Self, sealane::Error> {
        let slot = |index| {
            let large = plan.size_bytes > INLINE_BYTES_MAX;
            let destination = large.then(|| worker.alloc(plan.size_bytes)).transpose()?;
            Ok(Slot { key: key_of(index), source: kept(&ps, plan.size_bytes, large)?, destination })
        };
        let slots = (0..plan.window).map(slot).collect::<Result<_, sealane::Error>>()?;
        let (idle, under_way) = (batches(plan.window).collect(), VecDeque::with_capacity(BATCHES));
        let fused = plan.fuse == Fuse::Turn && plan.bench == Bench::Rate;
        Ok(Self { ps, worker, slots, idle, under_way, fused, step: 0 })
    }
}

impl Client for Clients {
    fn ask(&mut self, count: usize) -> Result<(), BenchError> {
        let Self { ps, worker, slots, step, .. } = self;
        let mut left = count;
        while left > 0
            && let Some(range) = self.idle.pop_front()
        {
            let slots = &mut slots[range.clone()];
            let at = *step;
            *step += 1;
            left = left.saturating_sub(slots.len());
            let (receivings, sendings) = if self.fused {
                let wanted = slots.iter_mut().map(|slot| (slot.options(), slot.key.as_str()));
                let receivings = worker.recv_all(PS, at, wanted.map(|(options, key)| (key, options)));
                let tensors = slots.iter().map(|slot| Ok((slot.key.as_str(), slot.tensor()?)));
                let tensors = tensors.collect::<Result<Vec<_>, BenchError>>()?;
                (receivings, ps.send_all(WORKER, at, tensors))
            } else {
                let mut begun = (Vec::with_capacity(slots.len()), Vec::with_capacity(slots.len()));
                for slot in slots {
                    let options = slot.options();
                    begun.0.push(worker.recv_with(PS, at, &slot.key, options));
                    begun.1.push(ps.send(WORKER, at, &slot.key, slot.tensor()?));
                }
                begun
            };
            self.under_way.push_back(Batch { slots: range, receivings, sendings });
        }
        Ok(())
    }

    /// Waits until all of a batch's tensors have arrived and their sends have ended.
    async fn take(&mut self) -> Result<usize, BenchError> {
        let Batch { slots, receivings, sendings } = self.under_way.pop_front().expect("something was asked for");
        let arrived = Receiving::wait_all(receivings);
        for (slot, tensor) in self.slots[slots.clone()].iter_mut().zip(arrived) {
            slot.received(tensor.map_err(unmoved)?)?;
        }
        Sending::wait_all(sendings).into_iter().collect::<Result<(), _>>().map_err(unmoved)?;
        let count = slots.len();
        self.idle.push_back(slots);
        Ok(count)
    }

    async fn exchange(&mut self, plan: &Plan) -> Result<(Instant, Instant), BenchError> {
        let Self { ps, worker, slots, step, .. } = self;
        let slot = &mut slots[0];
        let options = slot.options();
        let receiving = worker.recv_with(PS, *step, &slot.key, options);
        if let Some(idle) = plan.idle() {
            pass_gap(idle, plan.polling);
        }
        let tensor = slot.tensor()?;
        let asked = Instant::now();
        let sending = ps.send(WORKER, *step, &slot.key, tensor);
        let tensor = receiving.wait().map_err(unmoved)?;
        let answered = Instant::now();
        sending.wait().map_err(unmoved)?;
        slot.received(tensor)?;
        *step += 1;
        Ok((asked, answered))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn batches_are_the_window() {
        for window in 1..20 {
            let divided: Vec<_> = batches(window).collect();
            assert!(divided.len() <= BATCHES && divided.iter().all(|batch| !batch.is_empty()), "{divided:?}");
            assert!(divided.into_iter().flatten().eq(0..window), "{window}");
        }
    }

    #[test]
    fn an_arena_has_room_for_the_window() {
        assert_eq!(arena_bytes(&Plan::new(Bench::Rate)), SLACK_BYTES as u64, "small tensors need none");
        for (size_bytes, window) in [(INLINE_BYTES_MAX + 1, 65_536), (65_537, 7), (4 << 20, 8), (1 << 30, 1)] {
            let plan = Plan { size_bytes, window, ..Plan::new(Bench::Bandwidth) };
            assert!(arena_bytes(&plan) as usize >= size_bytes * window + SLACK_BYTES, "{size_bytes}");
        }
    }
}
