//! The producer's side: for every lane of the consumer, the tensor of the next step is always deposited already.

use std::collections::VecDeque;

use sealane_fusion::{Engine, Error, LocalPair, LocalSending};

use super::engine::on_shard;
use super::names::{PS, WORKER, lanes};
use super::parameters::{AHEAD, Parameter, told};
use super::{memory, messages, published, pushes};
use crate::error::BenchError;
use crate::plan::{Bench, Fuse, Plan};

/// Starts the producer's task on the shard; it runs until the engine stops.
pub(super) fn start(engine: &Engine, plan: &Plan) -> Result<(), BenchError> {
    let plan = plan.clone();
    on_shard(engine, "start its producer", async move |shard| {
        let pair = shard.task(PS)?.pair(WORKER)?;
        if plan.bench == Bench::Fuse {
            drop(shard.shard().spawn(messages::answer(shard.clone(), pair.clone())));
        }
        if plan.fuse == Fuse::Plan {
            return published::start(&shard, &plan);
        }
        if plan.fuse == Fuse::Push {
            return pushes::accept(&shard);
        }
        // One large parameter that is pulled again and again, as the raw baseline sends one.
        let shared = match plan.bench {
            Bench::Bandwidth => Some(memory::filled(&shard, &plan, plan.size_bytes)?),
            _ => None,
        };
        let parameter = |(lane, size_bytes)| match &shared {
            Some(bytes) => Parameter::kept(lane, bytes.clone()),
            // A parameter that has memory of its own, and is not copied to be sent.
            None if plan.bench == Bench::Fuse => Parameter::kept(lane, memory::filled(&shard, &plan, size_bytes)?),
            None => Parameter::made_anew(lane, &shard, size_bytes),
        };
        let parameters = lanes(&plan).into_iter().enumerate().map(parameter).collect::<Result<Vec<_>, Error>>()?;
        drop(shard.shard().spawn(told("the producer ended", serve(pair, parameters))));
        Ok(())
    })
}

/// Deposits the tensors of every lane, `AHEAD` steps ahead: the next as soon as the one that was deposited first is released.
async fn serve(pair: LocalPair, parameters: Vec<Parameter>) -> Result<(), Error> {
    let mut sent: VecDeque<LocalSending> = VecDeque::new();
    for step in 0.. {
        for parameter in &parameters {
            if sent.len() == AHEAD * parameters.len()
                && let Some(first) = sent.pop_front()
            {
                first.await?;
            }
            sent.push_back(parameter.send(&pair, step)?);
        }
    }
    Ok(())
}
