//! The consumer's side of one connection: unary calls, each of which pulls a tensor or all of a step at once, or one stream of
//! requests and tensors, many in a frame where many are ready. With `--fuse push` nobody asks the stream, and tensors come one way.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures_util::stream::{FuturesUnordered, ReadyChunks, Stream, StreamExt};
use futures_util::task::{AtomicWaker, Context, Poll};
use tokio::runtime::Runtime;
use tokio::time::timeout;
use tonic::client::Grpc;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::transport::Channel;
use tonic::{Request, Streaming};

use super::codec::{Message, MessageCodec, copy_out, request_for};
use super::service::{PULL, PULL_ALL, PUSH, PUSH_ALL, REPEAT, STREAM};
use super::{NAME, failed, spin};
use crate::error::BenchError;
use crate::figures::Sample;
use crate::limits::{GRPC_CALLS_MAX, REQUEST_BYTES, STALL_LIMIT, STEP_TENSORS_MAX};
use crate::plan::{Bench, Fuse, Plan};
use crate::systems::client::{self, Client, check_arrival, check_length, pass_gap};

/// Measures one round, by one stream or by calls; a runtime that makes no progress is given up after the round's length and the
/// stall limit.
pub(super) fn measure(
    runtime: &Runtime,
    channel: &Channel,
    plan: &Plan,
    is_stream: bool,
    length: Duration,
) -> Result<Sample, BenchError> {
    bounded(runtime, length + STALL_LIMIT, async {
        let _spinner = plan.polling.then(spin);
        if is_stream {
            return client::measure(&mut Tensors::open(channel.clone(), plan).await?, plan, length).await;
        }
        let mut calls = Calls::new(channel, plan, async |mut puller: Puller| {
            let outcome = puller.pull().await;
            (puller, outcome)
        });
        let sample = client::measure(&mut calls, plan, length).await?;
        check_arrival(NAME, calls.targets.iter().map(Vec::as_slice)).map(|()| sample)
    })
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

/// Lets the gap before a request pass. A runtime that spins goes on meanwhile, more exactly than its timer could; otherwise the
/// thread sleeps, since that timer has a granularity of a millisecond, which would make the gap another one than the other systems'.
async fn pause(plan: &Plan) {
    let Some(idle) = plan.idle() else { return };
    if !plan.polling {
        return pass_gap(idle, false);
    }
    let end = Instant::now() + idle;
    while Instant::now() < end {
        tokio::task::yield_now().await;
    }
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
        check_length(NAME, self.size_bytes, received)
    }
}

/// A consumer by calls, with the callers that are idle, and the calls that are in flight.
struct Calls<P, F> {
    idle: Vec<Puller>,
    pull: P,
    in_flight: FuturesUnordered<F>,
    /// Of steps: who makes their calls, and where the tensors go.
    callers: Callers,
    targets: Vec<Vec<u8>>,
    all_at_once: bool,
    messages: u64,
}

impl<P: Fn(Puller) -> F, F: Future<Output = (Puller, Result<(), BenchError>)>> Calls<P, F> {
    fn new(channel: &Channel, plan: &Plan, pull: P) -> Self {
        let largest = plan.step.iter().sum::<usize>().max(plan.size_bytes);
        let caller = Caller::new(channel.clone(), largest);
        let puller = Puller { caller: caller.clone(), request: request_for(0, 0), size_bytes: plan.size_bytes };
        Self {
            idle: vec![puller; plan.window],
            pull,
            in_flight: FuturesUnordered::new(),
            callers: Callers::new(caller, GRPC_CALLS_MAX.min(plan.step.len())),
            targets: plan.step.iter().map(|&bytes| vec![0; bytes]).collect(),
            all_at_once: plan.fuse == Fuse::Receive,
            messages: 0,
        }
    }
}

/// A call's request and its answer.
pub(super) const MESSAGES_A_CALL: u64 = 2;

impl<P: Fn(Puller) -> F, F: Future<Output = (Puller, Result<(), BenchError>)>> Client for Calls<P, F> {
    fn ask(&mut self, count: usize) -> Result<(), BenchError> {
        let callers = self.idle.len() - count..;
        self.in_flight.extend(self.idle.drain(callers).map(&self.pull));
        Ok(())
    }

    async fn take(&mut self) -> Result<usize, BenchError> {
        let (puller, outcome) = self.in_flight.next().await.expect("something was asked for");
        self.idle.push(puller);
        outcome.map(|()| 1)
    }

    async fn exchange(&mut self, plan: &Plan) -> Result<(Instant, Instant), BenchError> {
        pause(plan).await;
        let asked = Instant::now();
        self.idle[0].pull().await?;
        Ok((asked, Instant::now()))
    }

    async fn step(&mut self) -> Result<(), BenchError> {
        if self.all_at_once {
            self.messages += MESSAGES_A_CALL;
            return self.callers.pull_all(0, &mut self.targets).await;
        }
        self.messages += MESSAGES_A_CALL * self.targets.len() as u64;
        self.callers.pull_each(0, &mut self.targets).await
    }

    async fn messages(&mut self) -> Result<Option<u64>, BenchError> {
        Ok(Some(self.messages))
    }
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
        copy_out(&message, targets)
            .ok_or_else(|| BenchError::failed(NAME, "send what was asked for")("the message has other tensors"))
    }

    /// A call a tensor.
    pub(super) async fn pull_each(&mut self, version: i64, targets: &mut [Vec<u8>]) -> Result<(), BenchError> {
        let numbers = 0..targets.len();
        self.call_each(PULL, numbers.map(|number| request_for(number, version)), |number, answer| {
            let target = &mut targets[number];
            check_length(NAME, target.len(), answer.len())?;
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

/// Requests that were made but not yet taken to be written.
#[derive(Debug, Default)]
struct Asked {
    count: AtomicUsize,
    writer: AtomicWaker,
}

/// The same request as often as it was made.
struct Requests {
    asked: Arc<Asked>,
    /// Those that were taken and are to be written.
    left: usize,
    request: Bytes,
}

impl Stream for Requests {
    type Item = Bytes;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Bytes>> {
        if self.left == 0 {
            self.asked.writer.register(context.waker());
            self.left = self.asked.count.swap(0, Ordering::Relaxed);
        }
        if self.left == 0 {
            return Poll::Pending;
        }
        self.left -= 1;
        Poll::Ready(Some(self.request.clone()))
    }
}

/// A consumer by one stream. All that came together is taken, and asked for again, together.
struct Tensors {
    answers: ReadyChunks<Streaming<Bytes>>,
    asked: Arc<Asked>,
    size_bytes: usize,
    is_push: bool,
}

impl Tensors {
    async fn open(channel: Channel, plan: &Plan) -> Result<Self, BenchError> {
        let (size_bytes, is_push) = (plan.size_bytes, plan.fuse == Fuse::Push && plan.bench != Bench::Latency);
        let mut grpc = Grpc::new(channel).max_decoding_message_size(size_bytes);
        grpc.ready().await.map_err(failed("get ready for a stream"))?;
        let (asked, request) = (Arc::new(Asked::default()), request_for(0, 0));
        let codec = MessageCodec::<Bytes>::stream(REQUEST_BYTES);
        let opened = if is_push {
            grpc.server_streaming(Request::new(request), PathAndQuery::from_static(REPEAT), codec).await
        } else {
            let requests = Requests { asked: asked.clone(), left: 0, request };
            grpc.streaming(Request::new(requests), PathAndQuery::from_static(STREAM), codec).await
        };
        let answers = opened.map_err(failed("open a stream"))?.into_inner().ready_chunks(plan.window);
        Ok(Self { answers, asked, size_bytes, is_push })
    }
}

impl Client for Tensors {
    fn ask(&mut self, count: usize) -> Result<(), BenchError> {
        if !self.is_push {
            // Relaxed: nothing but the count is handed over.
            self.asked.count.fetch_add(count, Ordering::Relaxed);
            self.asked.writer.wake();
        }
        Ok(())
    }

    async fn take(&mut self) -> Result<usize, BenchError> {
        let batch = self.answers.next().await.unwrap_or_default();
        if batch.is_empty() {
            return check_length(NAME, self.size_bytes, 0).map(|()| 0);
        }
        let count = batch.len();
        for tensor in batch {
            check_length(NAME, self.size_bytes, tensor.map_err(failed("receive"))?.len())?;
        }
        Ok(count)
    }

    fn is_one_way(&self) -> bool {
        self.is_push
    }

    async fn exchange(&mut self, plan: &Plan) -> Result<(Instant, Instant), BenchError> {
        pause(plan).await;
        let asked = Instant::now();
        self.ask(1)?;
        self.take().await?;
        Ok((asked, Instant::now()))
    }
}
