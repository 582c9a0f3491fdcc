//! A worker that requests batches of tensors from a ps by small tensors, as two training processes do that are attached to a daemon: past
//! it by a direct lane, see `attached`, or through the daemons of two hosts, see `daemons`.
//!
//! The ps already has a recv for each request, and the worker has recvs for the batch, so latency is that of two sends. A step of
//! `fuse` is one batch; with a call for each tensor, the window limits the worker's recvs in flight.

use std::collections::VecDeque;
use std::ops::Range;
use std::time::{Duration, Instant};

use sealane::{
    Buffer, DType, Error, Keys, Plan as PullPlan, Receiving, RecvOptions, Sending, Task, Tensor, TensorMeta,
};
use sealane_transport::shm::limits::INLINE_BYTES_MAX;

use super::attached::{BATCHES, batches, unmoved};
use super::between::request_timeout;
use super::engine::{PATIENCE, key_of, lanes};
use crate::error::BenchError;
use crate::limits::{FILL, STALL_LIMIT};
use crate::plan::{Bench, Fuse, Plan};
use crate::system::Client;
use crate::systems::client::{check_length, other_bytes};

/// The key of the tensor with which the worker requests a batch.
const ASK: &str = "ask";

/// What both sides know: their tasks, and the batches, one after the other, each with its own step.
pub(super) struct Batches {
    worker: String,
    ps: String,
    keys: Vec<String>,
    /// Bytes of the tensor of each key.
    sizes: Vec<usize>,
    ranges: Vec<Range<usize>>,
    /// Whether a batch is one call.
    fused: bool,
    /// How long the worker waits for a tensor.
    timeout: Duration,
}

impl Batches {
    pub(super) fn new(plan: &Plan, [worker, ps]: [&str; 2]) -> Batches {
        let sizes = lanes(plan);
        let ranges = match plan.bench {
            Bench::Fuse => std::iter::once(0..sizes.len()).collect(),
            _ => batches(sizes.len()).collect(),
        };
        let fused = matches!((plan.bench, plan.fuse), (Bench::Rate, Fuse::Turn) | (Bench::Fuse, Fuse::Receive));
        let keys = (0..sizes.len()).map(key_of).collect();
        let timeout = request_timeout(plan);
        Batches { worker: worker.into(), ps: ps.into(), keys, sizes, ranges, fused, timeout }
    }

    fn range(&self, step: i64) -> Range<usize> {
        self.ranges[step as usize % self.ranges.len()].clone()
    }

    fn options(&self, memory: &mut Option<Buffer>) -> RecvOptions {
        RecvOptions {
            destination: memory.take().map(Into::into),
            timeout: Some(self.timeout),
            ..RecvOptions::default()
        }
    }

    /// Tensors too large for a ring are received into their `memory`.
    fn recv(&self, task: &Task, step: i64, memory: &mut [Option<Buffer>]) -> Vec<Receiving> {
        let range = self.range(step);
        let keys = self.keys[range.clone()].iter();
        let wanted = keys.zip(&mut memory[range]).map(|(key, memory)| (key, self.options(memory)));
        match self.fused {
            true => task.recv_all(&self.ps, step, wanted),
            false => wanted.map(|(key, options)| task.recv_with(&self.ps, step, key, options)).collect(),
        }
    }

    fn send(&self, task: &Task, step: i64, tensors: &[Tensor]) -> Vec<Sending> {
        let range = self.range(step);
        let named = self.keys[range.clone()].iter().zip(tensors[range].iter().map(Tensor::share));
        match self.fused {
            true => task.send_all(&self.worker, step, named),
            false => named.map(|(key, tensor)| task.send(&self.worker, step, key, tensor)).collect(),
        }
    }

    /// Makes the plan with which the worker pulls all tensors.
    pub(super) fn plan(&self, worker: &Task) -> Result<PullPlan, Error> {
        Ok(worker.plan(&self.ps, Keys::new(&self.keys)?))
    }

    /// Publishes all tensors once.
    pub(super) fn publish(&self, plan: &Plan, ps: &Task) -> Result<(), Error> {
        ps.publish_many(0, self.keys.iter().zip(tensors(plan, ps)?)).wait()
    }
}

pub(super) struct Asker {
    name: &'static str,
    worker: Task,
    batches: Batches,
    question: Tensor,
    /// Recvs in flight at once, in a step with a call for each tensor.
    window: usize,
    /// Memory of the large tensor of each key, while that is not in flight.
    memory: Vec<Option<Buffer>>,
    /// The next step to request, and those in progress.
    step: i64,
    under_way: VecDeque<(Sending, i64, Vec<Receiving>)>,
}

impl Asker {
    /// # Errors
    /// The worker's arena has no room.
    pub(super) fn new(name: &'static str, plan: &Plan, worker: Task, batches: Batches) -> Result<Asker, BenchError> {
        let (question, window) = (tensor(&worker, 1).map_err(unmoved)?, plan.window);
        let memory = |&bytes: &usize| (bytes > INLINE_BYTES_MAX).then(|| worker.alloc(bytes)).transpose();
        let memory = batches.sizes.iter().map(memory).collect::<Result<_, _>>().map_err(unmoved)?;
        Ok(Asker { name, worker, batches, question, window, memory, step: 0, under_way: VecDeque::new() })
    }

    /// Makes requests until the worker has a direct lane.
    ///
    /// # Errors
    /// There is no lane within [`STALL_LIMIT`].
    pub(super) fn until_direct(mut self) -> Result<Asker, BenchError> {
        let begun = Instant::now();
        while !self.is_direct() {
            if begun.elapsed() > STALL_LIMIT {
                let reason = format!("the daemon has given none in {STALL_LIMIT:?}");
                return Err(BenchError::failed(self.name, "open a direct lane")(reason));
            }
            self.one_batch()?;
        }
        Ok(self)
    }

    /// Requests a batch, and waits for it.
    pub(super) fn one_batch(&mut self) -> Result<(), BenchError> {
        self.begin();
        self.end().map(drop)
    }

    pub(super) fn is_direct(&self) -> bool {
        self.worker.direct_peers() == [&*self.batches.ps]
    }

    fn ask_for(&self, step: i64) -> Sending {
        self.worker.send(&self.batches.ps, step, ASK, self.question.share())
    }

    fn begin(&mut self) -> usize {
        let receivings = self.batches.recv(&self.worker, self.step, &mut self.memory);
        let count = receivings.len();
        self.under_way.push_back((self.ask_for(self.step), self.step, receivings));
        self.step += 1;
        count
    }

    fn end(&mut self) -> Result<usize, BenchError> {
        let (asked, step, receivings) = self.under_way.pop_front().expect("something was asked for");
        let count = receivings.len();
        for (number, came) in self.batches.range(step).zip(Receiving::wait_all(receivings)) {
            self.received(number, came.map_err(unmoved)?)?;
        }
        asked.wait().map_err(unmoved)?;
        Ok(count)
    }

    fn received(&mut self, number: usize, tensor: Tensor) -> Result<(), BenchError> {
        let size_bytes = self.batches.sizes[number];
        check_length(self.name, size_bytes, tensor.len())?;
        if [tensor.bytes().first(), tensor.bytes().last()] != [Some(&FILL); 2] {
            return Err(other_bytes(self.name, number));
        }
        if size_bytes > INLINE_BYTES_MAX {
            self.memory[number] = Some(tensor.into_buffer());
        }
        Ok(())
    }

    /// Receives the tensors of a step by a call each, with a window of calls in flight.
    fn one_by_one(&mut self) -> Result<(), BenchError> {
        let (step, asked) = (self.step, self.ask_for(self.step));
        self.step += 1;
        let mut receivings = VecDeque::with_capacity(self.window);
        for number in 0..self.batches.keys.len() {
            if receivings.len() == self.window {
                self.receive_first(&mut receivings)?;
            }
            let (ps, key) = (&self.batches.ps, &self.batches.keys[number]);
            let options = self.batches.options(&mut self.memory[number]);
            let receiving = self.worker.recv_with(ps, step, key, options);
            receivings.push_back((number, receiving));
        }
        while !receivings.is_empty() {
            self.receive_first(&mut receivings)?;
        }
        asked.wait().map_err(unmoved)
    }

    fn receive_first(&mut self, receivings: &mut VecDeque<(usize, Receiving)>) -> Result<(), BenchError> {
        let (number, first) = receivings.pop_front().expect("the caller has checked");
        self.received(number, first.wait().map_err(unmoved)?)
    }
}

impl Client for Asker {
    fn ask(&mut self, count: usize) -> Result<(), BenchError> {
        let mut left = count;
        while left > 0 && self.under_way.len() < self.batches.ranges.len() {
            left = left.saturating_sub(self.begin());
        }
        Ok(())
    }

    async fn take(&mut self) -> Result<usize, BenchError> {
        self.end()
    }

    async fn step(&mut self) -> Result<(), BenchError> {
        if self.batches.fused { self.one_batch() } else { self.one_by_one() }
    }
}

/// Answers the worker's requests as the ps, until the process ends.
pub(super) fn answer(plan: &Plan, ps: &Task, batches: &Batches) -> Result<(), Error> {
    let tensors = tensors(plan, ps)?;
    // It may be stopped for long between two of them.
    let patient = || RecvOptions { timeout: Some(PATIENCE), ..RecvOptions::default() };
    let mut asked = VecDeque::new();
    let mut sent: VecDeque<Vec<Sending>> = VecDeque::new();
    for step in 0.. {
        asked.push_back(ps.recv_with(&batches.worker, step, ASK, patient()));
        if asked.len() <= BATCHES {
            continue;
        }
        let first = asked.pop_front().expect("there are some");
        first.wait()?;
        sent.push_back(batches.send(ps, step - BATCHES as i64, &tensors));
        if sent.len() > BATCHES {
            let sendings = sent.pop_front().expect("there are some");
            Sending::wait_all(sendings).into_iter().collect::<Result<(), _>>()?;
        }
    }
    Ok(())
}

/// Returns the tensor of each key. Tensors of a step have separate memory; otherwise all keys share one tensor.
fn tensors(plan: &Plan, task: &Task) -> Result<Vec<Tensor>, Error> {
    if !plan.step.is_empty() {
        return plan.step.iter().map(|&bytes| tensor(task, bytes)).collect();
    }
    let shared = tensor(task, plan.size_bytes)?;
    Ok(lanes(plan).iter().map(|_| shared.share()).collect())
}

/// A tensor that is sent repeatedly: a large one from the task's arena, without a copy.
pub(super) fn tensor(task: &Task, bytes: usize) -> Result<Tensor, Error> {
    if bytes <= INLINE_BYTES_MAX {
        return Ok(Tensor::from_elements(&[bytes as u64], &vec![FILL; bytes])?.into_shared());
    }
    let mut memory = task.alloc(bytes)?;
    memory.fill(FILL);
    Ok(Tensor::new(TensorMeta::new(DType::U8, &[bytes as u64])?, memory)?.into_shared())
}
