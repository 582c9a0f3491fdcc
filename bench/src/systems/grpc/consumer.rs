//! One round of each measurement through gRPC's unary calls, on the calling thread: callers of one connection's methods, each of
//! which pulls a tensor to its own buffer, or all of a step at once.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures_util::stream::{FuturesUnordered, StreamExt};
use tokio::runtime::Runtime;
use tokio::time::timeout;
use tonic::Request;
use tonic::client::Grpc;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::transport::Channel;

use super::codec::{Message, MessageCodec, copy_out, request_for};
use super::service::{PULL, PULL_ALL, PUSH, PUSH_ALL};
use super::{NAME, failed, spin};
use crate::error::BenchError;
use crate::limits::{GRPC_CALLS_MAX, STALL_LIMIT, STEP_TENSORS_MAX};
use crate::plan::{Bench, Fuse, Plan};
use crate::sample::Sample;
use crate::stopwatch::{RoundTrips, StepTally, Tally};
use crate::systems;

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
    if plan.bench == Bench::Latency {
        return round_trips(runtime, puller, plan, length);
    }
    bounded(runtime, length + STALL_LIMIT, async {
        let _spinner = plan.polling.then(spin);
        match plan.bench {
            Bench::Rate | Bench::Bandwidth => throughput(puller, plan, length).await,
            Bench::Fuse => steps(caller, plan, length).await,
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

impl Pull for Puller {
    async fn pull(&mut self) -> Result<(), BenchError> {
        let received = self.caller.call(PULL, self.request.clone()).await?.len();
        if received != self.size_bytes {
            return Err(wrong_reply(self.size_bytes, received));
        }
        Ok(())
    }
}

/// Something that pulls one tensor at a time.
pub(super) trait Pull {
    /// Pulls it, and looks at its length.
    async fn pull(&mut self) -> Result<(), BenchError>;
}

/// Waits for something at most so long.
pub(super) fn bounded<T>(
    runtime: &Runtime,
    limit: Duration,
    work: impl Future<Output = Result<T, BenchError>>,
) -> Result<T, BenchError> {
    runtime.block_on(async {
        timeout(limit, work).await.unwrap_or(Err(BenchError::Stalled { system: NAME, waited: limit }))
    })
}

/// A round of pulls one after another.
pub(super) fn round_trips(
    runtime: &Runtime,
    mut puller: impl Pull,
    plan: &Plan,
    length: Duration,
) -> Result<Sample, BenchError> {
    if !plan.polling {
        // With the thread asleep in the gaps: the runtime's own timer has a granularity of a millisecond, which would make the
        // gap another one than the other systems'.
        return systems::round_trips(plan, length, || bounded(runtime, STALL_LIMIT, puller.pull()));
    }
    bounded(runtime, length + STALL_LIMIT, async {
        let _spinner = spin();
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
    })
}

/// Lets an idle gap pass on a runtime that spins, more exactly than its timer could.
async fn spin_for(idle: Duration) {
    let end = Instant::now() + idle;
    while Instant::now() < end {
        tokio::task::yield_now().await;
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

/// Makes one call at a time.
#[derive(Clone)]
pub(super) struct Caller(Grpc<Channel>);

impl Caller {
    /// The largest answer is twice `largest` and some, for what is around many tensors.
    pub(super) fn new(channel: Channel, largest: usize) -> Self {
        Self(Grpc::new(channel).max_decoding_message_size(2 * largest + STEP_TENSORS_MAX))
    }

    /// Calls a method, and gives the message that it answers with.
    pub(super) async fn call(&mut self, method: &'static str, request: impl Message) -> Result<Bytes, BenchError> {
        self.0.ready().await.map_err(failed("get ready for a call"))?;
        let (path, codec) = (PathAndQuery::from_static(method), MessageCodec::new(request.bytes()));
        let response = self.0.unary(Request::new(request), path, codec).await.map_err(failed("call"))?;
        Ok(response.into_inner())
    }
}

/// Callers that are idle between steps: as many as may have a call in flight at once.
pub(super) struct Callers(Vec<Caller>);

impl Callers {
    /// So many, one at least.
    pub(super) fn new(caller: Caller, count: usize) -> Self {
        Self(vec![caller; count.max(1)])
    }

    /// One call, whose answer is one message with all tensors.
    pub(super) async fn pull_all(&mut self, version: i64, targets: &mut [Vec<u8>]) -> Result<(), BenchError> {
        let message = self.0[0].call(PULL_ALL, request_for(0, version)).await?;
        copy_out(&message, targets).ok_or_else(|| wrong_reply(targets.iter().map(Vec::len).sum(), message.len()))
    }

    /// A call a tensor.
    pub(super) async fn pull_each(&mut self, version: i64, targets: &mut [Vec<u8>]) -> Result<(), BenchError> {
        let numbers = 0..targets.len();
        self.call_each(PULL, numbers.map(|number| request_for(number, version)), |number, answer| {
            let target = &mut targets[number];
            if answer.len() != target.len() {
                return Err(wrong_reply(target.len(), answer.len()));
            }
            target.copy_from_slice(&answer);
            Ok(())
        })
        .await
    }

    /// One call, with one message of all gradients.
    pub(super) async fn push_all(&mut self, gradients: &Arc<[Bytes]>) -> Result<(), BenchError> {
        self.0[0].call(PUSH_ALL, gradients.clone()).await.map(drop)
    }

    /// A call a gradient.
    pub(super) async fn push_each(&mut self, gradients: &[Bytes]) -> Result<(), BenchError> {
        self.call_each(PUSH, gradients.iter().cloned(), |_, _| Ok(())).await
    }

    /// As many calls in flight as there are callers, all of which are idle again at the end.
    async fn call_each(
        &mut self,
        method: &'static str,
        requests: impl Iterator<Item = Bytes>,
        mut answered: impl FnMut(usize, Bytes) -> Result<(), BenchError>,
    ) -> Result<(), BenchError> {
        let call = async |mut caller: Caller, (number, request): (usize, Bytes)| {
            let answer = caller.call(method, request).await;
            (caller, number, answer)
        };
        let mut requests = requests.enumerate();
        let mut calls = FuturesUnordered::new();
        while !self.0.is_empty()
            && let Some(request) = requests.next()
            && let Some(caller) = self.0.pop()
        {
            calls.push(call(caller, request));
        }
        while let Some((caller, number, answer)) = calls.next().await {
            answered(number, answer?)?;
            match requests.next() {
                Some(request) => calls.push(call(caller, request)),
                None => self.0.push(caller),
            }
        }
        Ok(())
    }
}

/// A tensor has another length than was asked for.
pub(super) fn wrong_reply(expected: usize, received: usize) -> BenchError {
    BenchError::WrongReply { system: NAME, expected, received }
}

/// A call's request and its answer.
const MESSAGES_A_CALL: f64 = 2.0;

pub(super) async fn steps(caller: Caller, plan: &Plan, length: Duration) -> Result<Sample, BenchError> {
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
    systems::check_arrival(NAME, targets.iter().map(Vec::as_slice))?;
    Ok(tally.sample(plan, Some(MESSAGES_A_CALL * calls as f64)))
}
