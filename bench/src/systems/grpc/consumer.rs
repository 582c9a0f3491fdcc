//! One round of each measurement through gRPC. Runs on the calling thread.

use std::thread;
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures_util::stream::{FuturesUnordered, StreamExt};
use tokio::runtime::Runtime;
use tokio::time::timeout;
use tonic::Request;
use tonic::client::Grpc;
use tonic::codec::Codec;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::transport::Channel;

use super::codec::{BytesCodec, request_for};
use super::connection::spin;
use super::service::PULL;
use super::{NAME, failed, steps};
use crate::error::BenchError;
use crate::limits::{REQUEST_BYTES, STALL_LIMIT, STEP_TENSORS_MAX};
use crate::plan::{Bench, Plan};
use crate::sample::{Sample, record_round_trip, round_trip_histogram};
use crate::stopwatch::{RoundClock, Tally};

/// Measures one round; a runtime that makes no progress is given up after the round's length and
/// the stall limit.
pub(super) fn measure(
    runtime: &Runtime,
    channel: &Channel,
    plan: &Plan,
    length: Duration,
) -> Result<Sample, BenchError> {
    let largest = plan.step.iter().sum::<usize>().max(plan.size_bytes);
    let caller = Caller::new(channel.clone(), plan.size_bytes, largest);
    if plan.bench == Bench::Latency && !plan.polling {
        return sleepy_round_trips(runtime, caller, plan, length);
    }
    bounded(runtime, length + STALL_LIMIT, async {
        let _spinner = plan.polling.then(spin);
        match plan.bench {
            Bench::Latency => round_trips(caller, plan, length).await,
            Bench::Rate | Bench::Bandwidth => throughput(caller, plan, length).await,
            Bench::Fuse => steps::measure(caller, plan, length).await,
            none => none.is_measured_elsewhere(),
        }
    })
}

/// Makes one call at a time; a window of them makes calls at once.
#[derive(Clone)]
pub(super) struct Caller {
    client: Grpc<Channel>,
    request: Bytes,
    size_bytes: usize,
}

impl Caller {
    /// Asks for tensors of so many bytes; the largest answer is twice `largest` and some, for what is around many.
    pub(super) fn new(channel: Channel, size_bytes: usize, largest: usize) -> Self {
        let client = Grpc::new(channel).max_decoding_message_size(2 * largest + STEP_TENSORS_MAX);
        Self { client, request: request_for(0), size_bytes }
    }

    /// Calls a method, and gives the message that it answers with.
    pub(super) async fn call(&mut self, method: &'static str, request: Bytes) -> Result<Bytes, BenchError> {
        self.call_with(method, BytesCodec { message_bytes: REQUEST_BYTES }, request).await
    }

    /// As [`call`](Self::call), with a request that `codec` writes.
    pub(super) async fn call_with<C>(
        &mut self,
        method: &'static str,
        codec: C,
        request: C::Encode,
    ) -> Result<Bytes, BenchError>
    where
        C: Codec<Encode: Sync, Decode = Bytes>,
    {
        self.client.ready().await.map_err(failed("get ready for a call"))?;
        let path = PathAndQuery::from_static(method);
        let response = self.client.unary(Request::new(request), path, codec).await.map_err(failed("call"))?;
        Ok(response.into_inner())
    }

    async fn pull(&mut self) -> Result<(), BenchError> {
        let received = self.call(PULL, self.request.clone()).await?.len();
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

async fn round_trips(mut caller: Caller, plan: &Plan, length: Duration) -> Result<Sample, BenchError> {
    let mut histogram = round_trip_histogram();
    let clock = RoundClock::start(Instant::now(), length);
    loop {
        if let Some(idle) = plan.idle() {
            spin_for(idle).await;
        }
        let asked = Instant::now();
        caller.pull().await?;
        let answered = Instant::now();
        if clock.counts(asked) {
            record_round_trip(&mut histogram, answered - asked);
            if clock.is_over(answered) {
                return Ok(Sample::round_trips(histogram));
            }
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
    mut caller: Caller,
    plan: &Plan,
    length: Duration,
) -> Result<Sample, BenchError> {
    let mut histogram = round_trip_histogram();
    let clock = RoundClock::start(Instant::now(), length);
    loop {
        if let Some(idle) = plan.idle() {
            thread::sleep(idle);
        }
        let asked = Instant::now();
        bounded(runtime, STALL_LIMIT, caller.pull())?;
        let answered = Instant::now();
        if clock.counts(asked) {
            record_round_trip(&mut histogram, answered - asked);
            if clock.is_over(answered) {
                return Ok(Sample::round_trips(histogram));
            }
        }
    }
}

/// A window of calls in flight on one channel; whichever ends is made again at once.
async fn throughput(caller: Caller, plan: &Plan, length: Duration) -> Result<Sample, BenchError> {
    let pull = |mut caller: Caller| async move {
        let outcome = caller.pull().await;
        (caller, outcome)
    };
    let mut tally = Tally::start(Instant::now(), length);
    let mut calls: FuturesUnordered<_> = (0..plan.window).map(|_| pull(caller.clone())).collect();
    let mut over = false;
    while let Some((caller, outcome)) = calls.next().await {
        outcome?;
        over |= tally.completed(1, Instant::now());
        if !over {
            calls.push(pull(caller));
        }
    }
    Ok(tally.sample(plan))
}
