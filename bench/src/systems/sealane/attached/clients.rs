//! Both clients, on the calling thread.
//!
//! - *latency*: the worker's recv is in place; timed is from the ps's call of `send` until the worker has the tensor.
//! - *rate* and *bandwidth*: batches of a window in flight, each asked for and sent; rate fuses the calls of a batch if turns are
//!   fused. Or the ps pushes batches and the worker takes out of its queue what has come; counted is what it has taken.
//! - *fuse*: a step is timed from the call until the worker has every tensor. By plan, the ps has published all of them once, each
//!   from its own memory, and the worker's plan pulls them into its own; else the ps sends all in one `send_all`, and the worker asks
//!   for all in one `recv_all`.

use std::collections::VecDeque;
use std::ops::Range;
use std::time::Instant;

use bytes::Bytes;
use sealane::{
    AcceptOptions, Acceptor, Buffer, DType, Error, Keys, Plan as PullPlan, Pushing, Receiving, RecvOptions, Sending,
    Task, Tensor, TensorMeta,
};
use sealane_transport::shm::limits::INLINE_BYTES_MAX;

use super::super::engine::{NAME, PS, QUEUE, WORKER, key_of, lanes};
use crate::error::BenchError;
use crate::limits::{FILL, STALL_LIMIT};
use crate::plan::{Bench, Fuse, Plan};
use crate::system::Client;
use crate::systems::client::{check_arrival, check_length, pass_gap};
use crate::systems::sockets::Meeting;

/// Batches of a window: while one is waited for, the daemon works on the others.
pub(in super::super) const BATCHES: usize = 4;

/// One of the tensors in flight at the same time.
struct Slot {
    key: String,
    /// What is sent repeatedly: one parameter that is pulled in each step.
    meta: TensorMeta,
    bytes: Bytes,
    /// Where it arrives, if neither in the ring nor in the daemon's area; every recv returns it.
    destination: Option<Buffer>,
}

impl Slot {
    fn options(&mut self) -> RecvOptions {
        RecvOptions { destination: self.destination.take().map(Into::into), ..RecvOptions::default() }
    }

    fn tensor(&self) -> Result<Tensor, Error> {
        Tensor::new(self.meta.clone(), self.bytes.clone())
    }

    fn received(&mut self, tensor: Tensor) -> Result<(), BenchError> {
        let (buffer, expected) = (tensor.into_buffer(), self.bytes.len());
        check_length(NAME, expected, buffer.len())?;
        self.destination = (expected > INLINE_BYTES_MAX).then_some(buffer);
        Ok(())
    }
}

/// Calls in flight for some of the slots.
struct Batch {
    slots: Range<usize>,
    receivings: Vec<Receiving>,
    sendings: Vec<Sending>,
    pushing: Option<Pushing>,
}

/// Both clients, and what they reuse from round to round.
pub(super) struct Clients {
    ps: Task,
    worker: Task,
    slots: Vec<Slot>,
    idle: VecDeque<Range<usize>>,
    under_way: VecDeque<Batch>,
    /// Whether a batch is one call in each direction.
    fused: bool,
    /// For pushes: the worker's queue, and how many tensors were taken out of it for batches still in progress.
    queue: Option<Acceptor>,
    came: usize,
    /// The next step; no step is used twice.
    step: i64,
    /// For steps: the plan that pulls them, or what the next one sends.
    plan: Option<PullPlan>,
    tensors: Vec<(String, Tensor)>,
    /// The daemon's socket, where the clients ask for their lanes.
    _meeting: Option<Meeting>,
}

impl Clients {
    /// Keeps the daemon's socket.
    pub(super) fn with(self, meeting: Meeting) -> Self {
        Self { _meeting: Some(meeting), ..self }
    }

    /// Takes the two tasks, and allocates memory for the tensors.
    pub(super) fn new(plan: &Plan, ps: Task, worker: Task) -> Result<Self, Error> {
        let (is_step, is_push) = (plan.bench == Bench::Fuse, plan.fuse == Fuse::Push);
        let slot = |(index, bytes): (usize, usize)| {
            let large = bytes > INLINE_BYTES_MAX;
            // Tensors that travel in the ring come from the heap.
            let mut memory = if large || is_step { ps.alloc(bytes)? } else { Buffer::from_vec(vec![0; bytes]) };
            memory.fill(FILL);
            let destination = (large && !is_step && !is_push).then(|| worker.alloc(bytes)).transpose()?;
            let meta = TensorMeta::new(DType::U8, &[bytes as u64])?;
            Ok(Slot { key: key_of(index), meta, bytes: Bytes::from_owner(memory), destination })
        };
        let slots = lanes(plan).into_iter().enumerate().map(slot).collect::<Result<Vec<_>, Error>>()?;
        let (idle, under_way) = (batches(slots.len()).collect(), VecDeque::with_capacity(BATCHES));
        let fused = plan.fuse == Fuse::Turn && plan.bench == Bench::Rate;
        let (mut room, tensors) = (AcceptOptions::default(), Vec::new());
        room.tensors_max = room.tensors_max.max(plan.window);
        room.bytes_max = room.bytes_max.max(plan.window * plan.size_bytes);
        let queue = is_push.then(|| worker.acceptor(QUEUE, room));
        let mut clients = Self {
            ps,
            worker,
            slots,
            idle,
            under_way,
            fused,
            queue,
            came: 0,
            step: 0,
            plan: None,
            tensors,
            _meeting: None,
        };
        if is_step && plan.fuse == Fuse::Plan {
            clients.ps.publish_many(0, clients.tensors()?).wait()?;
            let keys = clients.slots.iter().map(|slot| slot.key.as_str());
            clients.plan = Some(clients.worker.plan(PS, Keys::new(keys)?));
        }
        Ok(clients)
    }

    fn tensors(&self) -> Result<Vec<(String, Tensor)>, Error> {
        self.slots.iter().map(|slot| Ok((slot.key.clone(), slot.tensor()?))).collect()
    }

    fn begin(&mut self, slots: Range<usize>) -> Result<Batch, Error> {
        let Self { ps, worker, slots: all, step, .. } = self;
        let (at, begun) = (*step, &mut all[slots.clone()]);
        *step += 1;
        if self.queue.is_some() {
            let tensors = begun.iter().map(Slot::tensor).collect::<Result<Vec<_>, Error>>()?;
            let pushing = Some(ps.push_all(WORKER, QUEUE, tensors));
            return Ok(Batch { slots, receivings: Vec::new(), sendings: Vec::new(), pushing });
        }
        if self.fused {
            let wanted = begun.iter_mut().map(|slot| (slot.options(), slot.key.as_str()));
            let receivings = worker.recv_all(PS, at, wanted.map(|(options, key)| (key, options)));
            let tensors = begun.iter().map(|slot| Ok((slot.key.as_str(), slot.tensor()?)));
            let sendings = ps.send_all(WORKER, at, tensors.collect::<Result<Vec<_>, Error>>()?);
            return Ok(Batch { slots, receivings, sendings, pushing: None });
        }
        let (receivings, sendings) = (Vec::with_capacity(slots.len()), Vec::with_capacity(slots.len()));
        let mut batch = Batch { receivings, sendings, slots, pushing: None };
        for slot in begun {
            let options = slot.options();
            batch.receivings.push(worker.recv_with(PS, at, &slot.key, options));
            batch.sendings.push(ps.send(WORKER, at, &slot.key, slot.tensor()?));
        }
        Ok(batch)
    }

    /// Takes `count` more out of the queue, or uses those that came before.
    fn accept(&mut self, count: usize) -> Result<(), BenchError> {
        let Some(queue) = &self.queue else { return Ok(()) };
        while self.came < count {
            let accepted = queue.accept_many(self.slots.len()).wait_within(STALL_LIMIT).map_err(unmoved)?;
            if accepted.is_empty() {
                return Err(BenchError::Stalled { system: NAME, waited: STALL_LIMIT });
            }
            let expected = self.slots[0].bytes.len();
            accepted.iter().try_for_each(|came| check_length(NAME, expected, came.tensor.len()))?;
            self.came += accepted.len();
        }
        self.came -= count;
        Ok(())
    }

    fn exchange_all(&mut self) -> Result<(), Error> {
        let wanted = self.slots.iter().map(|slot| (slot.key.as_str(), RecvOptions::default()));
        let receivings = self.worker.recv_all(PS, self.step, wanted);
        let sendings = self.ps.send_all(WORKER, self.step, std::mem::take(&mut self.tensors));
        self.step += 1;
        let arrived = Receiving::wait_all(receivings).into_iter().map(|arrived| arrived.map_err(Error::from));
        arrived.collect::<Result<Vec<_>, _>>()?;
        Sending::wait_all(sendings).into_iter().collect()
    }
}

/// The window's slots, divided into batches.
pub(in super::super) fn batches(window: usize) -> impl Iterator<Item = Range<usize>> {
    let size = window.div_ceil(BATCHES);
    (0..window).step_by(size).map(move |start| start..window.min(start + size))
}

pub(in super::super) fn unmoved(error: impl ToString) -> BenchError {
    BenchError::sealane("move tensors")(error)
}

impl Client for Clients {
    fn ask(&mut self, count: usize) -> Result<(), BenchError> {
        let mut left = count;
        while left > 0
            && let Some(slots) = self.idle.pop_front()
        {
            left = left.saturating_sub(slots.len());
            let batch = self.begin(slots).map_err(unmoved)?;
            self.under_way.push_back(batch);
        }
        Ok(())
    }

    /// Waits until all of a batch's tensors have arrived and their sends have ended.
    async fn take(&mut self) -> Result<usize, BenchError> {
        let Batch { slots, receivings, sendings, pushing } =
            self.under_way.pop_front().expect("something was asked for");
        if let Some(pushing) = pushing {
            self.accept(slots.len())?;
            pushing.wait().map_err(unmoved)?;
        }
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
        let tensor = slot.tensor().map_err(unmoved)?;
        let asked = Instant::now();
        let sending = ps.send(WORKER, *step, &slot.key, tensor);
        let tensor = receiving.wait().map_err(unmoved)?;
        let answered = Instant::now();
        sending.wait().map_err(unmoved)?;
        slot.received(tensor)?;
        *step += 1;
        Ok((asked, answered))
    }

    fn prepare(&mut self) -> Result<(), BenchError> {
        if self.plan.is_none() {
            self.tensors = self.tensors().map_err(unmoved)?;
        }
        Ok(())
    }

    async fn step(&mut self) -> Result<(), BenchError> {
        match &mut self.plan {
            Some(plan) => plan.pull(0).wait().map_err(unmoved),
            None => self.exchange_all().map_err(unmoved),
        }
    }

    /// Checks that the plan has pulled what was published.
    fn check(&self) -> Result<(), BenchError> {
        let sizes = self.slots.iter().map(|slot| slot.bytes.len());
        self.plan.as_ref().map_or(Ok(()), |plan| check_pulled(plan, sizes))
    }
}

/// Checks that a plan has pulled the published tensors, which have these sizes.
pub(in super::super) fn check_pulled(
    plan: &PullPlan,
    sizes: impl ExactSizeIterator<Item = usize>,
) -> Result<(), BenchError> {
    let pulled = (0..sizes.len()).map(|tensor| plan.get(tensor).map(Tensor::bytes));
    let pulled = pulled.collect::<Result<Vec<_>, _>>().map_err(unmoved)?;
    sizes.zip(&pulled).try_for_each(|(expected, bytes)| check_length(NAME, expected, bytes.len()))?;
    check_arrival(NAME, pulled.into_iter())
}
