//! Bandwidth without a copy by the daemon, on the calling thread, which is both clients: the ps copies each tensor of a window into
//! memory of its arena, as a training process does that computes it there, and publishes them; the worker's plan views them, and looks
//! at the first and the last byte of each. Counted are tensors that were looked at.

use std::time::{Duration, Instant};

use sealane::{DType, Error, Keys, Payload, Plan as PullPlan, Task, Tensor, TensorMeta};

use super::super::engine::{NAME, PS, key_of};
use super::{SLACK_BYTES, block_bytes};
use crate::limits::FILL;
use crate::plan::Plan;
use crate::sample::Sample;
use crate::stopwatch::Tally;

/// Versions of a window's tensors that have memory at once: those that are viewed, those that come next, and those that the daemon
/// has not given back yet.
const VERSIONS: usize = 4;

/// The size of each client's arena.
pub(super) fn arena_bytes(plan: &Plan) -> u64 {
    (VERSIONS * block_bytes(plan.size_bytes) * plan.window + SLACK_BYTES) as u64
}

/// Both clients, and what they use again from round to round.
pub(super) struct Views {
    ps: Task,
    /// Whose plan it is.
    _worker: Task,
    plan: PullPlan,
    keys: Vec<String>,
    meta: TensorMeta,
    /// What is copied into each tensor.
    bytes: Vec<u8>,
    version: i64,
}

impl Views {
    /// Takes the two tasks.
    pub(super) fn new(plan: &Plan, ps: Task, worker: Task) -> Result<Self, Error> {
        let keys: Vec<String> = (0..plan.window).map(key_of).collect();
        let meta = TensorMeta::new(DType::U8, &[plan.size_bytes as u64])?;
        let viewing = worker.viewing_plan(PS, Keys::new(&keys)?);
        Ok(Self { ps, _worker: worker, plan: viewing, keys, meta, bytes: vec![FILL; plan.size_bytes], version: 0 })
    }

    /// Window after window until the round is over.
    pub(super) fn throughput(&mut self, plan: &Plan, length: Duration) -> Result<Sample, Error> {
        let mut tally = Tally::start(Instant::now(), length);
        loop {
            self.version += 1;
            let tensors = self.keys.iter().map(|key| Ok((key, self.tensor()?))).collect::<Result<Vec<_>, Error>>()?;
            let publishing = self.ps.publish_many(self.version, tensors);
            self.plan.pull(self.version).wait()?;
            (0..self.keys.len()).try_for_each(|index| self.look_at(index))?;
            publishing.wait()?;
            if tally.completed(self.keys.len() as u64, Instant::now()) {
                return Ok(tally.sample(plan));
            }
        }
    }

    fn tensor(&self) -> Result<Tensor, Error> {
        let mut memory = self.ps.alloc(self.bytes.len())?;
        memory.copy_from_slice(&self.bytes);
        Tensor::new(self.meta.clone(), memory)
    }

    fn look_at(&self, index: usize) -> Result<(), Error> {
        let tensor = self.plan.get(index)?;
        let (is_view, bytes) = (matches!(tensor.payload(), Payload::Bytes(_)), tensor.bytes());
        if is_view && bytes.len() == self.bytes.len() && (bytes.first(), bytes.last()) == (Some(&FILL), Some(&FILL)) {
            return Ok(());
        }
        let reason = format!("{NAME} gave no view of tensor {index}, or of other bytes");
        Err(Error::InvalidArgument { reason: reason.into() })
    }
}
