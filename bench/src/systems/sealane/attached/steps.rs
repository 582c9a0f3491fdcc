//! Steps through the daemon, on the calling thread, which is both clients. Timed is from the call until the worker has every
//! tensor of the step:
//!
//! - *plan*: the ps has published all of them once, each from its own memory; the worker's plan pulls them into its own.
//! - *receive*: the ps sends all in one `send_all`, the worker asks for all in one `recv_all`.

use std::time::{Duration, Instant};

use ::sealane::{DType, Error, Keys, Plan as PullPlan, Receiving, RecvOptions, Sending, Task, Tensor, TensorMeta};
use bytes::Bytes;

use super::super::names::{PS, WORKER, key_of};
use crate::limits::FILL;
use crate::plan::{Fuse, Plan};
use crate::sample::Sample;
use crate::step_tally::StepTally;

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
