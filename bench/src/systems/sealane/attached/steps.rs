//! Many tensors at once through the daemon, on the calling thread, which is both clients. A step is timed from the call until the
//! worker has every tensor:
//!
//! - *plan*: the ps has published all of them once, each from its own memory; the worker's plan pulls them into its own.
//! - *receive*: the ps sends all in one `send_all`, the worker asks for all in one `recv_all`.
//! - *views*, of bandwidth without a copy by the daemon: the ps copies each tensor of a window into memory of its arena, as a
//!   training process does that computes it there, and publishes them; the worker's plan views them, and looks at the first and the
//!   last byte of each.

use bytes::Bytes;
use sealane::{
    DType, Error, Keys, Payload, Plan as PullPlan, Receiving, RecvOptions, Sending, Task, Tensor, TensorMeta,
};

use super::super::engine::{NAME, PS, WORKER, key_of};
use super::{SLACK_BYTES, block_bytes, kept, unmoved};
use crate::error::BenchError;
use crate::limits::FILL;
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

/// Versions of a window's tensors that have memory at once: those that are viewed, those that come next, and those that the daemon
/// has not given back yet.
const VERSIONS: usize = 4;

/// The size of each client's arena where tensors are viewed.
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

    /// A window of tensors.
    fn view(&mut self) -> Result<(), Error> {
        self.version += 1;
        let tensor = |key| {
            let mut memory = self.ps.alloc(self.bytes.len())?;
            memory.copy_from_slice(&self.bytes);
            Ok((key, Tensor::new(self.meta.clone(), memory)?))
        };
        let tensors = self.keys.iter().map(tensor).collect::<Result<Vec<_>, Error>>()?;
        let publishing = self.ps.publish_many(self.version, tensors);
        self.plan.pull(self.version).wait()?;
        (0..self.keys.len()).try_for_each(|index| self.look_at(index))?;
        publishing.wait()
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

impl Client for Views {
    fn ask(&mut self, _count: usize) -> Result<(), BenchError> {
        Ok(())
    }

    async fn take(&mut self) -> Result<usize, BenchError> {
        self.view().map(|()| self.keys.len()).map_err(unmoved)
    }
}
