//! Many tensors at once through the daemon, on the calling thread, which is both clients. A step is timed from the call until the
//! worker has every tensor:
//!
//! - *plan*: the ps has published all of them once, each from its own memory; the worker's plan pulls them into its own.
//! - *receive*: the ps sends all in one `send_all`, the worker asks for all in one `recv_all`.

use bytes::Bytes;
use sealane::{Error, Keys, Plan as PullPlan, Receiving, RecvOptions, Sending, Task, Tensor, TensorMeta};

use super::super::engine::{NAME, PS, WORKER, key_of};
use super::{kept, unmoved};
use crate::error::BenchError;
use crate::plan::{Fuse, Plan};
use crate::systems::client::Client;

/// Both clients, and the tensors of a step.
pub(super) struct Steps {
    ps: Task,
    worker: Task,
    keys: Vec<String>,
    parameters: Vec<(TensorMeta, Bytes)>,
    plan: Option<PullPlan>,
    /// What the next step sends.
    tensors: Vec<(String, Tensor)>,
    step: i64,
}

impl Steps {
    /// Takes the two tasks, and memory for a step.
    pub(super) fn new(plan: &Plan, ps: Task, worker: Task) -> Result<Self, Error> {
        let keys: Vec<String> = (0..plan.step.len()).map(key_of).collect();
        let parameters = plan.step.iter().map(|&bytes| kept(&ps, bytes, true)).collect::<Result<_, Error>>()?;
        let mut steps = Self { ps, worker, keys, parameters, plan: None, tensors: Vec::new(), step: 0 };
        if plan.fuse == Fuse::Plan {
            steps.ps.publish_many(0, steps.tensors()?).wait()?;
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

    fn exchange_all(&mut self) -> Result<(), Error> {
        let wanted = self.keys.iter().map(|key| (key.as_str(), RecvOptions::default()));
        let receivings = self.worker.recv_all(PS, self.step, wanted);
        let sendings = self.ps.send_all(WORKER, self.step, std::mem::take(&mut self.tensors));
        self.step += 1;
        let arrived = Receiving::wait_all(receivings).into_iter().map(|arrived| arrived.map_err(Error::from));
        arrived.collect::<Result<Vec<_>, _>>()?;
        Sending::wait_all(sendings).into_iter().collect()
    }

    /// What the plan has pulled is what was published.
    pub(super) fn check(&self) -> Result<(), BenchError> {
        let Some(plan) = &self.plan else { return Ok(()) };
        for (tensor, (_, bytes)) in self.parameters.iter().enumerate() {
            if plan.get(tensor).map_err(unmoved)?.bytes() != &bytes[..] {
                return Err(BenchError::WrongBytes { system: NAME, tensor });
            }
        }
        Ok(())
    }
}

impl Client for Steps {
    fn ask(&mut self, _count: usize) -> Result<(), BenchError> {
        unreachable!("a step is all that is asked for")
    }

    async fn take(&mut self) -> Result<usize, BenchError> {
        unreachable!("a step is all that comes")
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
}
