//! The ps's side of plans: it publishes every tensor, each in memory of its own, once, or again for every step that the
//! worker says it wants. Runs on the shard; bounded by the plan's step.

use sealane_fusion::{Error, LocalEngine, LocalPair, LocalTask, Unreceived};

use super::memory;
use super::names::{PS, WORKER, lanes};
use super::parameters::{Parameter, publish, told};
use super::steps::NEXT;
use crate::plan::Plan;

/// Publishes version 0 and, if the plan says so, starts a task that publishes the others.
pub(super) fn start(shard: &LocalEngine, plan: &Plan) -> Result<(), Error> {
    let parameter = |(lane, size_bytes)| Parameter::kept(lane, memory::filled(shard, plan, size_bytes)?);
    let parameters = lanes(plan).into_iter().enumerate().map(parameter).collect::<Result<Vec<_>, Error>>()?;
    let ps = shard.task(PS)?;
    publish(&ps, 0, &parameters)?;
    if plan.republish {
        let pair = ps.pair(WORKER)?;
        drop(shard.shard().spawn(told("publishing ended", publish_each(ps, pair, parameters))));
    }
    Ok(())
}

async fn publish_each(ps: LocalTask, pair: LocalPair, parameters: Vec<Parameter>) -> Result<(), Error> {
    for version in 1.. {
        pair.recv(version, NEXT).await.map_err(|Unreceived { error, .. }| error)?;
        publish(&ps, version, &parameters)?;
    }
    Ok(())
}
