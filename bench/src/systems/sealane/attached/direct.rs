//! Measures a direct lane: the worker is in this process, the ps in the other one, next to the engine that gives them the lane and
//! then sleeps.

use std::time::Duration;

use sealane::Task;

use super::super::asking::{Asker, Batches};
use super::super::engine::{PS, WORKER};
use crate::error::BenchError;
use crate::figures::Sample;
use crate::plan::{Bench, Fuse, Plan, SystemName};
use crate::system::{Client, System};
use crate::systems::client::measure_now;

const NAME: &str = SystemName::Direct.as_str();

pub(super) fn system(plan: &Plan, worker: Task) -> Result<System, BenchError> {
    let asker = Asker::new(NAME, plan, worker, Batches::new(plan, [WORKER, PS]))?.until_direct()?;
    Ok(System::new(NAME, variant(plan), plan, Direct(asker)))
}

struct Direct(Asker);

impl Client for Direct {
    fn round(&mut self, plan: &Plan, length: Duration) -> Result<Sample, BenchError> {
        let sample = measure_now(&mut self.0, plan, length)?;
        // Everything has used the lane if it still exists.
        match self.0.is_direct() {
            true => Ok(sample),
            false => Err(BenchError::failed(NAME, "keep its direct lane")("it has none any more")),
        }
    }
}

fn variant(plan: &Plan) -> String {
    match (plan.bench, plan.fuse) {
        (Bench::Latency, _) if plan.polling => "polling, there and back",
        (Bench::Latency, _) => "parking, there and back",
        (_, Fuse::Off) => "polling, a call each",
        _ => "polling, batched calls",
    }
    .to_owned()
}
