//! The ps of many workers, on a shard of its engine: each worker finds its next tensors deposited, as many as its window
//! and as many again, from the moment at which it has asked for the first. One task a worker, which is woken once a
//! window, so that what is measured is the engine. For workers with plans a window's tensors are published, once for
//! all. Bounded by the plan's peers and window.

use std::rc::Rc;

use bytes::Bytes;
use sealane_fusion::{DType, Engine, Error, LocalPair, LocalSending, Tensor, TensorMeta};

use super::super::PS;
use super::super::consumer::key_of;
use super::super::peers::greeting::task;
use super::super::producer::is_the_end;
use super::BEGIN;
use crate::error::BenchError;
use crate::limits::FILL;
use crate::plan::{Fuse, Plan};

/// Publishes what all pull, or starts a task on the shard for each worker; they run until the engine stops.
pub(in crate::systems::sealane) fn start(engine: &Engine, plan: &Plan) -> Result<(), BenchError> {
    let (peers, lanes, size_bytes, fuse) = (plan.peers, plan.window, plan.size_bytes, plan.fuse);
    let started = engine.on_shard(0, async move |shard| {
        let parameter = Parameter {
            keys: (0..lanes).map(key_of).collect(),
            meta: TensorMeta::new(DType::U8, &[size_bytes as u64])?,
            bytes: Bytes::from(vec![FILL; size_bytes]),
        };
        let ps = shard.task(PS)?;
        if fuse == Fuse::Plan {
            let tensors = parameter.keys.iter().map(|_| parameter.tensor()).collect::<Result<Vec<_>, Error>>()?;
            return ps.publish_many(0, parameter.keys.iter().map(String::as_str).zip(tensors));
        }
        for worker in 0..peers {
            drop(shard.shard().spawn(serve(ps.pair(&task(worker))?, parameter.clone(), worker)));
        }
        Ok::<(), Error>(())
    });
    let failed = |reason: String| BenchError::Sealane { operation: "start its producers", reason };
    started.wait().map_err(|error| failed(error.to_string()))?.map_err(|error| failed(error.to_string()))
}

/// What all workers pull, under a key for each request that one may have in flight.
#[derive(Clone)]
struct Parameter {
    keys: Rc<[String]>,
    meta: TensorMeta,
    bytes: Bytes,
}

impl Parameter {
    fn tensor(&self) -> Result<Tensor, Error> {
        Tensor::new(self.meta.clone(), self.bytes.clone())
    }

    /// Deposits a step's tensors for a worker. The future ends when the last of them was released: the others are then
    /// about to be.
    fn deposit(&self, pair: &LocalPair, step: i64) -> Result<LocalSending, Error> {
        let (last, others) = self.keys.split_last().expect("a window is at least one request");
        for key in others {
            drop(pair.send(step, key, self.tensor()?));
        }
        Ok(pair.send(step, last, self.tensor()?))
    }
}

async fn serve(pair: LocalPair, parameter: Parameter, worker: usize) {
    if let Err(error) = serve_steps(&pair, &parameter).await
        && !is_the_end(&error)
    {
        eprintln!("worker {worker} is no longer served: {error}");
    }
}

/// Serves one worker, once it has begun: until then it costs what an idle peer costs.
async fn serve_steps(pair: &LocalPair, parameter: &Parameter) -> Result<(), Error> {
    pair.send(0, BEGIN, parameter.tensor()?).await?;
    let mut released = parameter.deposit(pair, 0)?;
    for next in 1.. {
        let ahead = parameter.deposit(pair, next)?;
        released.await?;
        released = ahead;
    }
    Ok(())
}
