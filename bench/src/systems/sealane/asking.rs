//! A worker that requests batches of tensors from a ps by small tensors, as two training processes do that are attached to a daemon: past
//! it by a direct lane, see `attached`, or through the daemons of two hosts, see `daemons`.
//!
//! The ps already has a recv for each request, and the worker has recvs for the batch, so latency is that of two sends.

use std::collections::VecDeque;
use std::ops::Range;
use std::time::Instant;

use sealane::{Buffer, DType, Error, Receiving, RecvOptions, Sending, Task, Tensor, TensorMeta};
use sealane_transport::shm::limits::INLINE_BYTES_MAX;

use super::attached::{BATCHES, batches, unmoved};
use super::engine::{PATIENCE, key_of, lanes};
use crate::error::BenchError;
use crate::limits::{FILL, STALL_LIMIT};
use crate::plan::{Bench, Fuse, Plan};
use crate::system::Client;
use crate::systems::client::check_length;

/// The key of the tensor with which the worker requests a batch.
const ASK: &str = "ask";

/// What both sides know: their tasks, and the batches, one after the other, each with its own step.
pub(super) struct Batches {
    worker: String,
    ps: String,
    keys: Vec<String>,
    ranges: Vec<Range<usize>>,
    /// Whether a batch is one call.
    fused: bool,
}

impl Batches {
    pub(super) fn new(plan: &Plan, [worker, ps]: [&str; 2]) -> Batches {
        let count = lanes(plan).len();
        let fused = plan.bench == Bench::Rate && plan.fuse == Fuse::Turn;
        let keys = (0..count).map(key_of).collect();
        Batches { worker: worker.into(), ps: ps.into(), keys, ranges: batches(count).collect(), fused }
    }

    fn keys_of(&self, step: i64) -> &[String] {
        &self.keys[self.ranges[step as usize % self.ranges.len()].clone()]
    }

    /// Tensors too large for a ring are received into `spare` memory.
    fn recv(&self, task: &Task, step: i64, spare: &mut Vec<Buffer>) -> Vec<Receiving> {
        let keys = self.keys_of(step);
        let mut options = || RecvOptions { destination: spare.pop().map(Into::into), ..RecvOptions::default() };
        match self.fused {
            true => task.recv_all(&self.ps, step, keys.iter().map(|key| (key, options()))),
            false => keys.iter().map(|key| task.recv_with(&self.ps, step, key, options())).collect(),
        }
    }

    fn send(&self, task: &Task, step: i64, tensor: &Tensor) -> Vec<Sending> {
        let keys = self.keys_of(step);
        match self.fused {
            true => task.send_all(&self.worker, step, keys.iter().map(|key| (key, tensor.share()))),
            false => keys.iter().map(|key| task.send(&self.worker, step, key, tensor.share())).collect(),
        }
    }
}

pub(super) struct Asker {
    name: &'static str,
    worker: Task,
    batches: Batches,
    question: Tensor,
    size_bytes: usize,
    /// Memory for large tensors that is not in use.
    spare: Vec<Buffer>,
    /// The next step to request, and those in progress.
    step: i64,
    under_way: VecDeque<(Sending, Vec<Receiving>)>,
}

impl Asker {
    /// # Errors
    /// The worker's arena has no room.
    pub(super) fn new(name: &'static str, plan: &Plan, worker: Task, batches: Batches) -> Result<Asker, BenchError> {
        let (question, size_bytes) = (tensor(&worker, 1).map_err(unmoved)?, plan.size_bytes);
        let large = if size_bytes > INLINE_BYTES_MAX { batches.keys.len() } else { 0 };
        let spare = (0..large).map(|_| worker.alloc(size_bytes)).collect::<Result<_, _>>().map_err(unmoved)?;
        Ok(Asker { name, worker, batches, question, size_bytes, spare, step: 0, under_way: VecDeque::new() })
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

    fn begin(&mut self) -> usize {
        let receivings = self.batches.recv(&self.worker, self.step, &mut self.spare);
        let asked = self.worker.send(&self.batches.ps, self.step, ASK, self.question.share());
        let count = receivings.len();
        self.under_way.push_back((asked, receivings));
        self.step += 1;
        count
    }

    fn end(&mut self) -> Result<usize, BenchError> {
        let (asked, receivings) = self.under_way.pop_front().expect("something was asked for");
        let count = receivings.len();
        for came in Receiving::wait_all(receivings) {
            let tensor = came.map_err(unmoved)?;
            check_length(self.name, self.size_bytes, tensor.len())?;
            if self.size_bytes > INLINE_BYTES_MAX {
                self.spare.push(tensor.into_buffer());
            }
        }
        asked.wait().map_err(unmoved)?;
        Ok(count)
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
}

/// Answers the worker's requests as the ps, until the process ends.
pub(super) fn answer(plan: &Plan, ps: &Task, batches: &Batches) -> Result<(), Error> {
    let tensor = tensor(ps, plan.size_bytes)?;
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
        sent.push_back(batches.send(ps, step - BATCHES as i64, &tensor));
        if sent.len() > BATCHES {
            let sendings = sent.pop_front().expect("there are some");
            Sending::wait_all(sendings).into_iter().collect::<Result<(), _>>()?;
        }
    }
    Ok(())
}

/// A tensor that is sent repeatedly: a large one from the task's arena, without a copy.
fn tensor(task: &Task, bytes: usize) -> Result<Tensor, Error> {
    if bytes <= INLINE_BYTES_MAX {
        return Ok(Tensor::from_elements(&[bytes as u64], &vec![FILL; bytes])?.into_shared());
    }
    let mut memory = task.alloc(bytes)?;
    memory.fill(FILL);
    Ok(Tensor::new(TensorMeta::new(DType::U8, &[bytes as u64])?, memory)?.into_shared())
}
