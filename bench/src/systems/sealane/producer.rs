//! The producer's side, on its shard. For every lane of the consumer, the next step's large tensor is always sent in advance, and
//! waits for its request. A small tensor, which travels ahead of its request, is sent when the one before it was released, so that
//! a round trip is measured. For plans, every tensor is published once.

use std::collections::VecDeque;
use std::fmt::Display;
use std::time::Duration;

use bytes::Bytes;
use sealane_fusion::{
    Code, DType, Engine, Error, LocalPair, LocalSending, LocalTask, RecvOptions, SendOptions, Tensor, TensorMeta,
};
use sealane_transport::limits::AHEAD_TENSOR_BYTES;

use super::consumer;
use super::engine::{self, ASKED, PS, WORKER, key_of, lanes, on_shard};
use crate::error::BenchError;
use crate::plan::{Bench, Fuse, Plan};

/// Starts the producer's task on the shard; it runs until the engine stops.
pub(super) fn start(engine: &Engine, plan: &Plan) -> Result<(), BenchError> {
    let plan = plan.clone();
    on_shard(engine, "start its producer", async move |shard| {
        if plan.fuse == Fuse::Push {
            return consumer::accept_pushes(&shard);
        }
        // One large parameter that is pulled repeatedly, as the raw baseline sends one.
        let shared = match plan.bench {
            Bench::Bandwidth => Some(engine::filled(&shard, &plan, plan.size_bytes)?),
            _ => None,
        };
        let parameter = |(lane, size_bytes)| match &shared {
            Some(bytes) => Parameter::new(lane, bytes.clone()),
            None => Parameter::new(lane, engine::filled(&shard, &plan, size_bytes)?),
        };
        let parameters = lanes(&plan).into_iter().enumerate().map(parameter).collect::<Result<Vec<_>, Error>>()?;
        let ps = shard.task(PS)?;
        if plan.fuse == Fuse::Plan {
            return publish(&ps, 0, &parameters);
        }
        let by_step = plan.bench == Bench::Fuse;
        let serving = serve(ps.pair(WORKER)?, parameters, consumer::batch(&plan), (by_step, plan.idle().is_some()));
        drop(shard.shard().spawn(told("the producer ended", serving)));
        Ok(())
    })
}

/// Sends the tensors of every lane, as many steps ahead as [`steps_ahead`] says. The next is sent as soon as the oldest one is
/// released; or, if the consumer waits for whole steps and they are small, as soon as the step before is; or else when it is
/// requested. One call sends for several lanes.
async fn serve(
    pair: LocalPair,
    parameters: Vec<Parameter>,
    batch: usize,
    (by_step, when_asked): (bool, bool),
) -> Result<(), Error> {
    let without_end = || RecvOptions { timeout: Some(Duration::MAX), ..RecvOptions::default() };
    let mut sent: VecDeque<LocalSending> = VecDeque::new();
    let (steps, batches) = (steps_ahead(parameters.iter().map(Parameter::bytes)), parameters.len().div_ceil(batch));
    for step in 0.. {
        if by_step && steps == 1 {
            for sending in sent.drain(..) {
                sending.await?;
            }
        }
        for together in parameters.chunks(batch) {
            if sent.len() == steps * batches
                && let Some(first) = sent.pop_front()
            {
                first.await?;
            }
            if when_asked {
                pair.recv_with(step, ASKED, without_end()).await.map_err(|unreceived| unreceived.error)?;
            }
            sent.push_back(match together {
                [alone] => alone.send(&pair, step),
                many => pair.send_many(step, many.iter().map(Parameter::named), SendOptions::default()),
            });
        }
    }
    Ok(())
}

/// Most steps whose tensors were sent: the one that is requested and the next.
pub(super) const AHEAD: usize = 2;

/// Steps whose tensors were sent: for small ones, which travel ahead of their requests, only the one that is received next.
pub(super) fn steps_ahead(mut sizes: impl Iterator<Item = usize>) -> usize {
    if sizes.any(|bytes| bytes <= AHEAD_TENSOR_BYTES) { 1 } else { AHEAD }
}

/// A tensor of a ps, in its own permanent memory; it is sent without a copy if it is large.
pub(super) struct Parameter {
    key: String,
    tensor: Tensor,
}

impl Parameter {
    pub(super) fn new(number: usize, bytes: Bytes) -> Result<Self, Error> {
        let meta = TensorMeta::new(DType::U8, &[bytes.len() as u64])?;
        Ok(Self { key: key_of(number), tensor: Tensor::new(meta, bytes)? })
    }

    fn bytes(&self) -> usize {
        self.tensor.len()
    }

    pub(super) fn named(&self) -> (&str, &Tensor) {
        (&self.key, &self.tensor)
    }

    fn send(&self, pair: &LocalPair, step: i64) -> LocalSending {
        pair.send(step, &self.key, &self.tensor)
    }
}

pub(super) fn publish(ps: &LocalTask, version: i64, parameters: &[Parameter]) -> Result<(), Error> {
    ps.publish_many(version, parameters.iter().map(Parameter::named))
}

/// Sends the tensors of step after step, as many ahead as [`steps_ahead`] says, each when `ready` allows it.
pub(super) async fn send_ahead(
    pair: &LocalPair,
    parameters: &[Parameter],
    mut ready: impl AsyncFnMut(i64),
) -> Result<(), Error> {
    let mut sent = VecDeque::with_capacity(AHEAD);
    let steps = steps_ahead(parameters.iter().map(Parameter::bytes));
    for step in 0.. {
        ready(step).await;
        // When the last tensor of a step was released, the others are about to be.
        let mut last = None;
        for parameter in parameters {
            last = Some(parameter.send(pair, step));
        }
        let Some(last) = last else { return Ok(()) };
        sent.push_back(last);
        if sent.len() == steps
            && let Some(first) = sent.pop_front()
        {
            first.await?;
        }
    }
    Ok(())
}

/// Runs a task of a ps until it ends, and prints what that means and why, unless the engine stops, which ends every run.
pub(super) async fn told(meaning: impl Display, task: impl Future<Output = Result<(), Error>>) {
    if let Err(error) = task.await
        && !matches!(error.code(), Code::Aborted | Code::Unavailable)
    {
        eprintln!("{meaning}: {error}");
    }
}
