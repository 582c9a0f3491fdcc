//! A round of steps through gRPC: a unary call for each tensor, some of them in flight at once, or one for all.

use std::time::{Duration, Instant};

use super::callers::{Caller, Callers};
use super::runtime::NAME;
use crate::error::BenchError;
use crate::limits::GRPC_CALLS_MAX;
use crate::plan::{Fuse, Plan};
use crate::sample::Sample;
use crate::step_tally::StepTally;
use crate::systems::arrival;

/// A call's request and its answer.
const MESSAGES_A_CALL: f64 = 2.0;

pub(super) async fn measure(caller: Caller, plan: &Plan, length: Duration) -> Result<Sample, BenchError> {
    let mut targets: Vec<Vec<u8>> = plan.step.iter().map(|&bytes| vec![0; bytes]).collect();
    let mut callers = Callers::new(caller, GRPC_CALLS_MAX.min(targets.len()));
    let all_at_once = plan.fuse == Fuse::Receive;
    let calls = if all_at_once { 1 } else { targets.len() };
    let mut tally = StepTally::start(Instant::now(), length);
    loop {
        let began = Instant::now();
        if all_at_once {
            callers.pull_all(0, &mut targets).await?;
        } else {
            callers.pull_each(0, &mut targets).await?;
        }
        if tally.completed(began, Instant::now()) {
            break;
        }
    }
    arrival::check(NAME, targets.iter().map(Vec::as_slice))?;
    Ok(tally.sample(plan, Some(MESSAGES_A_CALL * calls as f64)))
}
