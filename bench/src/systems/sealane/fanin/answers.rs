//! The ps of many workers, on a shard of its engine: each worker finds its next tensors deposited, as many as its window
//! and as many again, from the moment at which it has asked for the first. One task a worker, which is woken once a
//! window, so that what is measured is the engine. For workers with plans a window's tensors are published, once for
//! all. Bounded by the plan's peers and window.

use std::rc::Rc;

use bytes::Bytes;
use sealane_fusion::{Engine, Error, LocalPair};

use super::super::engine::on_shard;
use super::super::names::PS;
use super::super::parameters::{Parameter, deposit_ahead, publish, told};
use super::super::peers::greeting::task;
use crate::error::BenchError;
use crate::limits::FILL;
use crate::plan::{Fuse, Plan};

/// The key of the tensor that each worker asks for first, so that the ps begins to serve it.
pub(super) const BEGIN: &str = "begin";

/// Publishes what all pull, or starts a task on the shard for each worker; they run until the engine stops.
pub(in crate::systems::sealane) fn start(engine: &Engine, plan: &Plan) -> Result<(), BenchError> {
    let (peers, lanes, size_bytes, fuse) = (plan.peers, plan.window, plan.size_bytes, plan.fuse);
    on_shard(engine, "start its producers", async move |shard| {
        // What all workers pull, under a key for each request that one may have in flight.
        let bytes = Bytes::from(vec![FILL; size_bytes]);
        let parameters = (0..lanes).map(|lane| Parameter::kept(lane, bytes.clone()));
        let parameters: Rc<[Parameter]> = parameters.collect::<Result<_, Error>>()?;
        let ps = shard.task(PS)?;
        if fuse == Fuse::Plan {
            return publish(&ps, 0, &parameters);
        }
        for worker in 0..peers {
            let serving = serve(ps.pair(&task(worker))?, parameters.clone());
            drop(shard.shard().spawn(told(format!("worker {worker} is no longer served"), serving)));
        }
        Ok(())
    })
}

/// Serves one worker, once it has begun: until then it costs what an idle peer costs.
async fn serve(pair: LocalPair, parameters: Rc<[Parameter]>) -> Result<(), Error> {
    pair.send(0, BEGIN, parameters[0].tensor()?).await?;
    deposit_ahead(&pair, &parameters, async |_| {}).await
}
