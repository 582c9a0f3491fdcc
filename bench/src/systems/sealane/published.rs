//! The ps's side of plans: it publishes every tensor, each in memory of its own, once, or again for every step that the
//! worker says it wants. Runs on the shard; bounded by the plan's step.

use bytes::Bytes;
use sealane_fusion::{DType, Error, LocalEngine, LocalPair, LocalTask, Tensor, TensorMeta, Unreceived};

use super::consumer::key_of;
use super::producer::is_the_end;
use super::steps::NEXT;
use super::{PS, WORKER, lanes, memory};
use crate::plan::Plan;

/// What is published under one key.
struct Parameter {
    key: String,
    meta: TensorMeta,
    bytes: Bytes,
}

/// Publishes version 0 and, if the plan says so, starts a task that publishes the others.
pub(super) fn start(shard: &LocalEngine, plan: &Plan) -> Result<(), Error> {
    let parameter = |(lane, size_bytes): (usize, usize)| {
        let meta = TensorMeta::new(DType::U8, &[size_bytes as u64])?;
        Ok(Parameter { key: key_of(lane), meta, bytes: memory::filled(shard, plan, size_bytes)? })
    };
    let parameters = lanes(plan).into_iter().enumerate().map(parameter).collect::<Result<Vec<_>, Error>>()?;
    let ps = shard.task(PS)?;
    publish(&ps, 0, &parameters)?;
    if plan.republish {
        let pair = ps.pair(WORKER)?;
        drop(shard.shard().spawn(publish_each(ps, pair, parameters)));
    }
    Ok(())
}

fn publish(ps: &LocalTask, version: i64, parameters: &[Parameter]) -> Result<(), Error> {
    let tensor = |parameter: &Parameter| Tensor::new(parameter.meta.clone(), parameter.bytes.clone());
    let tensors = parameters.iter().map(tensor).collect::<Result<Vec<_>, Error>>()?;
    ps.publish_many(version, parameters.iter().map(|parameter| parameter.key.as_str()).zip(tensors))
}

async fn publish_each(ps: LocalTask, pair: LocalPair, parameters: Vec<Parameter>) {
    for version in 1.. {
        let heard = pair.recv(version, NEXT).await.map_err(|Unreceived { error, .. }| error);
        if let Err(error) = heard.and_then(|_| publish(&ps, version, &parameters)) {
            if !is_the_end(&error) {
                eprintln!("publishing ended at version {version}: {error}");
            }
            return;
        }
    }
}
