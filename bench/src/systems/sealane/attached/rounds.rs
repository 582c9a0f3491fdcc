//! What is measured through the daemon, on the calling thread, which is both clients:
//!
//! - *latency*: the worker's recv of the next step is asked for first, and, if there is a gap, the gap passes. Timed is
//!   then from the call of `send` on the ps until `wait` on that recv has returned the tensor. Making the tensor's handle
//!   before and the wait for the end of the send afterwards are not.
//! - *rate*: the window is a few batches. The worker asks for a batch, the ps sends it; the oldest batch is waited for, and
//!   asked for and sent again. Counted are tensors that the worker has got. With `--fuse turn` a batch is one `recv_all`
//!   and one `send_all`, else a `recv` and a `send` for each tensor.
//! - *bandwidth*: the same with `recv_into`; each of the window's tensors has memory in the ps's arena, from which it is
//!   sent again and again, and memory in the worker's, where it arrives again and again.
//!
//! Steps through the daemon, on the calling thread, which is both clients. Timed is from the call until the worker has every
//! tensor of the step:
//!
//! - *plan*: the ps has published all of them once, each from its own memory; the worker's plan pulls them into its own.
//! - *receive*: the ps sends all in one `send_all`, the worker asks for all in one `recv_all`.

use std::collections::VecDeque;
use std::ops::Range;
use std::time::{Duration, Instant};

use bytes::Bytes;
use sealane::{
    Buffer, DType, Error, Keys, Plan as PullPlan, Receiving, RecvOptions, Sending, Task, Tensor, TensorMeta,
};
use sealane_transport::shm::limits::INLINE_BYTES_MAX;

use super::super::engine::{NAME, PS, WORKER, key_of};
use super::{SLACK_BYTES, block_bytes};
use crate::limits::FILL;
use crate::plan::{Bench, Fuse, Plan};
use crate::sample::Sample;
use crate::stopwatch::{RoundTrips, StepTally, Tally};
use crate::systems::pass_gap;

/// Batches of a window: while one is waited for, the daemon works on the others.
pub(super) const BATCHES: usize = 4;

/// Tensors up to this size travel in the ring, and are in no arena on either side.
pub(super) fn is_in_ring(plan: &Plan) -> bool {
    plan.size_bytes <= INLINE_BYTES_MAX
}

/// The size of each client's arena: room for the window's tensors.
pub(super) fn arena_bytes(plan: &Plan) -> u64 {
    if is_in_ring(plan) {
        return SLACK_BYTES as u64;
    }
    let block = block_bytes(plan.size_bytes);
    (block * plan.window + block / 4 + SLACK_BYTES) as u64
}

/// One of the tensors that are in flight at once.
struct Slot {
    key: String,
    /// What is sent, again and again: one parameter that is pulled each step.
    source: Bytes,
    /// Where it arrives, if that is not in the ring; given back by every recv.
    destination: Option<Buffer>,
}

impl Slot {
    fn options(&mut self) -> RecvOptions {
        RecvOptions { destination: self.destination.take(), ..RecvOptions::default() }
    }

    /// Takes a recv's tensor.
    fn received(&mut self, tensor: Tensor, plan: &Plan) -> Result<(), Error> {
        let buffer = tensor.into_buffer();
        if buffer.len() != plan.size_bytes {
            let reason = format!("{NAME} answered {} bytes to a request for {}", buffer.len(), plan.size_bytes);
            return Err(Error::InvalidArgument { reason: reason.into() });
        }
        if !is_in_ring(plan) {
            self.destination = Some(buffer);
        }
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
    meta: TensorMeta,
    slots: Vec<Slot>,
    /// The next step; no step is used twice.
    step: i64,
}

impl Clients {
    /// Takes the two tasks, and memory for a window of tensors.
    pub(super) fn new(plan: &Plan, ps: Task, worker: Task) -> Result<Self, Error> {
        let slot = |index| {
            let (source, destination) = if is_in_ring(plan) {
                (Bytes::from(vec![FILL; plan.size_bytes]), None)
            } else {
                let mut source = ps.alloc(plan.size_bytes)?;
                source.fill(0);
                (Bytes::from_owner(source), Some(worker.alloc(plan.size_bytes)?))
            };
            Ok(Slot { key: key_of(index), source, destination })
        };
        let slots = (0..plan.window).map(slot).collect::<Result<_, Error>>()?;
        let meta = TensorMeta::new(DType::U8, &[plan.size_bytes as u64])?;
        Ok(Self { ps, worker, meta, slots, step: 0 })
    }

    /// One tensor at a time.
    pub(super) fn round_trips(&mut self, plan: &Plan, length: Duration) -> Result<Sample, Error> {
        let Self { ps, worker, meta, slots, step } = self;
        let slot = &mut slots[0];
        let mut trips = RoundTrips::start(Instant::now(), length);
        loop {
            let options = slot.options();
            let receiving = worker.recv_with(PS, *step, &slot.key, options);
            if let Some(idle) = plan.idle() {
                pass_gap(idle, plan.polling);
            }
            let tensor = Tensor::new(meta.clone(), slot.source.clone())?;
            let asked = Instant::now();
            let sending = ps.send(WORKER, *step, &slot.key, tensor);
            let tensor = receiving.wait()?;
            let answered = Instant::now();
            sending.wait()?;
            slot.received(tensor, plan)?;
            *step += 1;
            if trips.completed(asked, answered) {
                return Ok(trips.sample());
            }
        }
    }

    /// A window of tensors.
    pub(super) fn throughput(&mut self, plan: &Plan, length: Duration) -> Result<Sample, Error> {
        let mut tally = Tally::start(Instant::now(), length);
        let mut under_way = VecDeque::with_capacity(BATCHES);
        for slots in batches(self.slots.len()) {
            under_way.push_back(self.begin(plan, slots)?);
        }
        let mut over = false;
        while let Some(batch) = under_way.pop_front() {
            let slots = self.finish(plan, batch)?;
            over |= tally.completed(slots.len() as u64, Instant::now());
            if !over {
                under_way.push_back(self.begin(plan, slots)?);
            }
        }
        Ok(tally.sample(plan))
    }

    /// Asks for the tensors of some slots and sends them.
    fn begin(&mut self, plan: &Plan, range: Range<usize>) -> Result<Batch, Error> {
        let Self { ps, worker, meta, slots, step } = self;
        let slots = &mut slots[range.clone()];
        let tensor = |slot: &Slot| Tensor::new(meta.clone(), slot.source.clone());
        let at = *step;
        *step += 1;
        let (receivings, sendings) = match plan.fuse {
            Fuse::Turn if plan.bench == Bench::Rate => {
                let wanted = slots.iter_mut().map(|slot| (slot.options(), slot.key.as_str()));
                let receivings = worker.recv_all(PS, at, wanted.map(|(options, key)| (key, options)));
                let tensors = slots.iter().map(|slot| Ok((slot.key.as_str(), tensor(slot)?)));
                let tensors = tensors.collect::<Result<Vec<_>, Error>>()?;
                (receivings, ps.send_all(WORKER, at, tensors))
            }
            _ => {
                let mut begun = (Vec::with_capacity(slots.len()), Vec::with_capacity(slots.len()));
                for slot in slots {
                    let options = slot.options();
                    begun.0.push(worker.recv_with(PS, at, &slot.key, options));
                    begun.1.push(ps.send(WORKER, at, &slot.key, tensor(slot)?));
                }
                begun
            }
        };
        Ok(Batch { slots: range, receivings, sendings })
    }

    /// Waits until all of a batch's tensors have arrived and their sends have ended.
    fn finish(&mut self, plan: &Plan, batch: Batch) -> Result<Range<usize>, Error> {
        let Batch { slots, receivings, sendings } = batch;
        let arrived = Receiving::wait_all(receivings);
        for (slot, tensor) in self.slots[slots.clone()].iter_mut().zip(arrived) {
            slot.received(tensor?, plan)?;
        }
        Sending::wait_all(sendings).into_iter().collect::<Result<(), Error>>()?;
        Ok(slots)
    }
}

/// Both clients, and the tensors of a step.
pub(super) struct Steps {
    ps: Task,
    worker: Task,
    keys: Vec<String>,
    parameters: Vec<(TensorMeta, Bytes)>,
    plan: Option<PullPlan>,
    step: i64,
}

impl Steps {
    /// Takes the two tasks, and memory for a step.
    pub(super) fn new(plan: &Plan, ps: Task, worker: Task) -> Result<Self, Error> {
        let keys: Vec<String> = (0..plan.step.len()).map(key_of).collect();
        let parameter = |&bytes: &usize| {
            let mut memory = ps.alloc(bytes)?;
            memory.fill(FILL);
            Ok((TensorMeta::new(DType::U8, &[bytes as u64])?, Bytes::from_owner(memory)))
        };
        let parameters = plan.step.iter().map(parameter).collect::<Result<Vec<_>, Error>>()?;
        let mut steps = Self { ps, worker, keys, parameters, plan: None, step: 0 };
        if plan.fuse == Fuse::Plan {
            let tensors = steps.tensors()?;
            steps.ps.publish_many(0, tensors).wait()?;
            steps.plan = Some(steps.worker.plan(PS, Keys::new(&steps.keys)?));
        }
        Ok(steps)
    }

    fn tensors(&self) -> Result<Vec<(String, Tensor)>, Error> {
        let tensor = |(key, (meta, bytes)): (&String, &(TensorMeta, Bytes))| {
            Ok((key.clone(), Tensor::new(meta.clone(), bytes.clone())?))
        };
        self.keys.iter().zip(&self.parameters).map(tensor).collect()
    }

    /// Step after step until the round is over; the last one is looked at.
    pub(super) fn round(&mut self, plan: &Plan, length: Duration) -> Result<Sample, Error> {
        let mut tally = StepTally::start(Instant::now(), length);
        loop {
            let tensors = if self.plan.is_none() { self.tensors()? } else { Vec::new() };
            let began = Instant::now();
            match &mut self.plan {
                Some(plan) => plan.pull(0).wait()?,
                None => {
                    let wanted = self.keys.iter().map(|key| (key.as_str(), RecvOptions::default()));
                    let receivings = self.worker.recv_all(PS, self.step, wanted);
                    let sendings = self.ps.send_all(WORKER, self.step, tensors);
                    self.step += 1;
                    let arrived =
                        Receiving::wait_all(receivings).into_iter().map(|arrived| arrived.map_err(Error::from));
                    arrived.collect::<Result<Vec<_>, _>>()?;
                    Sending::wait_all(sendings).into_iter().collect::<Result<(), Error>>()?;
                }
            }
            if tally.completed(began, Instant::now()) {
                break;
            }
        }
        self.check()?;
        Ok(tally.sample(plan, None))
    }

    /// What the plan has pulled is what was published.
    fn check(&self) -> Result<(), Error> {
        let Some(plan) = &self.plan else { return Ok(()) };
        for index in 0..self.keys.len() {
            if plan.get(index)?.bytes() != &self.parameters[index].1[..] {
                let reason = format!("tensor {index} arrived with other bytes than it left with");
                return Err(Error::InvalidArgument { reason: reason.into() });
            }
        }
        Ok(())
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
    fn small_tensors_need_no_arena() {
        let plan = Plan::new(Bench::Rate);
        assert!(is_in_ring(&plan));
        assert_eq!(arena_bytes(&plan), SLACK_BYTES as u64);
    }

    #[test]
    fn an_arena_has_room_for_the_window() {
        for (size_bytes, window) in [(INLINE_BYTES_MAX + 1, 65_536), (65_537, 7), (4 << 20, 8), (1 << 30, 1)] {
            let plan = Plan { size_bytes, window, ..Plan::new(Bench::Bandwidth) };
            assert!(arena_bytes(&plan) as usize >= size_bytes * window + SLACK_BYTES, "{size_bytes}");
        }
    }
}
