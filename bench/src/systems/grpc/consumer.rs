//! One round of each measurement through gRPC. Runs on the calling thread.

use std::thread;
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures_util::stream::{FuturesUnordered, StreamExt};
use tokio::runtime::Runtime;
use tokio::time::timeout;
use tonic::transport::Channel;

use super::callers::Caller;
use super::codec::request_for;
use super::connection::spin;
use super::runtime::NAME;
use super::service::PULL;
use super::steps;
use crate::error::BenchError;
use crate::limits::STALL_LIMIT;
use crate::plan::{Bench, Plan};
use crate::sample::Sample;
use crate::stopwatch::{RoundTrips, Tally};

/// Measures one round; a runtime that makes no progress is given up after the round's length and
/// the stall limit.
pub(super) fn measure(
    runtime: &Runtime,
    channel: &Channel,
    plan: &Plan,
    length: Duration,
) -> Result<Sample, BenchError> {
    let largest = plan.step.iter().sum::<usize>().max(plan.size_bytes);
    let caller = Caller::new(channel.clone(), largest);
    let puller = Puller { caller: caller.clone(), request: request_for(0, 0), size_bytes: plan.size_bytes };
    if plan.bench == Bench::Latency && !plan.polling {
        return sleepy_round_trips(runtime, puller, plan, length);
    }
    bounded(runtime, length + STALL_LIMIT, async {
        let _spinner = plan.polling.then(spin);
        match plan.bench {
            Bench::Latency => round_trips(puller, plan, length).await,
            Bench::Rate | Bench::Bandwidth => throughput(puller, plan, length).await,
            Bench::Fuse => steps::measure(caller, plan, length).await,
            none => none.is_measured_elsewhere(),
        }
    })
}

/// Pulls one tensor again and again; a window of them pulls at once.
#[derive(Clone)]
struct Puller {
    caller: Caller,
    request: Bytes,
    size_bytes: usize,
}

impl Puller {
    async fn pull(&mut self) -> Result<(), BenchError> {
        let received = self.caller.call(PULL, self.request.clone()).await?.len();
        if received != self.size_bytes {
            return Err(BenchError::WrongReply { system: NAME, expected: self.size_bytes, received });
        }
        Ok(())
    }
}

fn bounded<T>(
    runtime: &Runtime,
    limit: Duration,
    work: impl Future<Output = Result<T, BenchError>>,
) -> Result<T, BenchError> {
    runtime.block_on(async {
        timeout(limit, work).await.unwrap_or(Err(BenchError::Stalled { system: NAME, waited: limit }))
    })
}

async fn round_trips(mut puller: Puller, plan: &Plan, length: Duration) -> Result<Sample, BenchError> {
    let mut trips = RoundTrips::start(Instant::now(), length);
    loop {
        if let Some(idle) = plan.idle() {
            spin_for(idle).await;
        }
        let asked = Instant::now();
        puller.pull().await?;
        if trips.completed(asked, Instant::now()) {
            return Ok(trips.sample());
        }
    }
}

/// Lets an idle gap pass on a runtime that spins, more exactly than its timer could.
async fn spin_for(idle: Duration) {
    let end = Instant::now() + idle;
    while Instant::now() < end {
        tokio::task::yield_now().await;
    }
}

/// As [`round_trips`], with the thread asleep in the gaps: the runtime's own timer has a
/// granularity of a millisecond, which would make the gap another one than the other systems'.
fn sleepy_round_trips(
    runtime: &Runtime,
    mut puller: Puller,
    plan: &Plan,
    length: Duration,
) -> Result<Sample, BenchError> {
    let mut trips = RoundTrips::start(Instant::now(), length);
    loop {
        if let Some(idle) = plan.idle() {
            thread::sleep(idle);
        }
        let asked = Instant::now();
        bounded(runtime, STALL_LIMIT, puller.pull())?;
        if trips.completed(asked, Instant::now()) {
            return Ok(trips.sample());
        }
    }
}

/// A window of calls in flight on one channel; whichever ends is made again at once.
async fn throughput(puller: Puller, plan: &Plan, length: Duration) -> Result<Sample, BenchError> {
    let pull = |mut puller: Puller| async move {
        let outcome = puller.pull().await;
        (puller, outcome)
    };
    let mut tally = Tally::start(Instant::now(), length);
    let mut calls: FuturesUnordered<_> = (0..plan.window).map(|_| pull(puller.clone())).collect();
    let mut over = false;
    while let Some((puller, outcome)) = calls.next().await {
        outcome?;
        over |= tally.completed(1, Instant::now());
        if !over {
            calls.push(pull(puller));
        }
    }
    Ok(tally.sample(plan))
}
