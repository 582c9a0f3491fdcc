//! A round of steps through gRPC: a unary call for each tensor, some of them in flight at once, or one for all. Every
//! tensor goes to its own buffer.

use std::time::{Duration, Instant};

use futures_util::stream::{FuturesUnordered, StreamExt};

use super::NAME;
use super::codec::request_for;
use super::consumer::Caller;
use super::repeated::copy_out;
use super::service::{PULL, PULL_ALL};
use crate::error::BenchError;
use crate::limits::GRPC_CALLS_MAX;
use crate::plan::{Fuse, Plan};
use crate::sample::Sample;
use crate::step_tally::StepTally;
use crate::systems::arrival;

/// A call's request and its answer.
const MESSAGES_A_CALL: f64 = 2.0;

pub(super) async fn measure(mut caller: Caller, plan: &Plan, length: Duration) -> Result<Sample, BenchError> {
    let mut targets: Vec<Vec<u8>> = plan.step.iter().map(|&bytes| vec![0; bytes]).collect();
    let mut idle = vec![caller.clone(); GRPC_CALLS_MAX.min(targets.len())];
    let all_at_once = plan.fuse == Fuse::Receive;
    let calls = if all_at_once { 1 } else { targets.len() };
    let mut tally = StepTally::start(Instant::now(), length);
    loop {
        let began = Instant::now();
        if all_at_once {
            in_one_message(&mut caller, &mut targets).await?;
        } else {
            one_by_one(&mut idle, &mut targets).await?;
        }
        if tally.completed(began, Instant::now()) {
            break;
        }
    }
    arrival::check(NAME, targets.iter().map(Vec::as_slice))?;
    Ok(tally.sample(plan, Some(MESSAGES_A_CALL * calls as f64)))
}

async fn in_one_message(caller: &mut Caller, targets: &mut [Vec<u8>]) -> Result<(), BenchError> {
    let message = caller.call(PULL_ALL, request_for(0)).await?;
    copy_out(&message, targets).ok_or_else(|| BenchError::WrongReply {
        system: NAME,
        expected: targets.iter().map(Vec::len).sum(),
        received: message.len(),
    })
}

/// As many calls in flight as there are idle callers, all of which are idle again at the end.
async fn one_by_one(idle: &mut Vec<Caller>, targets: &mut [Vec<u8>]) -> Result<(), BenchError> {
    let pull = |mut caller: Caller, number: usize| async move {
        let answer = caller.call(PULL, request_for(number)).await;
        (caller, number, answer)
    };
    let mut numbers = 0..targets.len();
    let mut calls = FuturesUnordered::new();
    while !idle.is_empty()
        && let Some(number) = numbers.next()
        && let Some(caller) = idle.pop()
    {
        calls.push(pull(caller, number));
    }
    while let Some((caller, number, answer)) = calls.next().await {
        let (answer, target) = (answer?, &mut targets[number]);
        if answer.len() != target.len() {
            return Err(BenchError::WrongReply { system: NAME, expected: target.len(), received: answer.len() });
        }
        target.copy_from_slice(&answer);
        match numbers.next() {
            Some(number) => calls.push(pull(caller, number)),
            None => idle.push(caller),
        }
    }
    Ok(())
}
