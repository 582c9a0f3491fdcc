//! The consumer's side of one connection: unary calls, each of which pulls a tensor or all tensors of a step at once, or one stream
//! of requests and tensors, with many in a frame if many are ready. With `--fuse push` nothing is requested on the stream, and
//! tensors come one way.

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
use crate::limits::{GRPC_CALLS_MAX, STALL_LIMIT, STEP_TENSORS_MAX};
use crate::plan::{Bench, Fuse, Plan};
use crate::system::Client;
use crate::systems::client::{self, check_arrival, check_length, pass_gap};
use crate::systems::training::Moved;

/// Measures one round, by one stream or by calls; fails if the runtime makes no progress beyond the round's length and the stall
/// limit.
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
        check_arrival(NAME, calls.pair.pulled.iter().map(Vec::as_slice)).map(|()| sample)
    })
}

/// Waits for something, with a time limit.
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
/// thread sleeps, since that timer has a granularity of a millisecond, and the gap would differ from that of the other systems.
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

/// Pulls one tensor after another; a window of these pulls at the same time.
#[derive(Clone)]
struct Puller {
    caller: Caller,
    request: Message,
    size_bytes: usize,
}

impl Puller {
    async fn pull(&mut self) -> Result<(), BenchError> {
        let received = self.caller.call(PULL, self.request.clone()).await?.len();
        check_length(NAME, self.size_bytes, received)
    }
}

/// A consumer by calls, with the idle callers and the calls in flight.
struct Calls<P, F> {
    idle: Vec<Puller>,
    pull: P,
    in_flight: FuturesUnordered<F>,
    /// For steps.
    pair: Pair,
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
            pair: Pair::new(caller, GRPC_CALLS_MAX, &plan.step, Arc::default(), plan.fuse == Fuse::Receive),
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
        self.messages += MESSAGES_A_CALL * self.pair.calls();
        self.pair.pull(0).await
    }

    async fn moved(&mut self) -> Result<Option<Moved>, BenchError> {
        Ok(Moved::messages(self.messages))
    }
}

#[derive(Clone)]
pub(super) struct Caller(Grpc<Channel>);

impl Caller {
    /// The largest answer is a bit more than twice `largest`, to leave room for what surrounds many tensors.
    pub(super) fn new(channel: Channel, largest: usize) -> Self {
        Self(Grpc::new(channel).max_decoding_message_size(2 * largest + STEP_TENSORS_MAX))
    }

    pub(super) async fn call(&mut self, method: &'static str, request: Message) -> Result<Bytes, BenchError> {
        self.0.ready().await.map_err(failed("get ready for a call"))?;
        let (path, codec) = (PathAndQuery::from_static(method), MessageCodec::new(request.bytes()));
        let response = self.0.unary(Request::new(request), path, codec).await.map_err(failed("call"))?;
        Ok(response.into_inner())
    }
}

/// A worker and a ps, and where the worker puts what it pulls.
pub(super) struct Pair {
    /// Idle callers: as many as may have a call in flight at the same time.
    pub(super) callers: Vec<Caller>,
    pub(super) pulled: Vec<Vec<u8>>,
    gradients: Arc<[Bytes]>,
    /// True to make one call, whose message has all tensors, instead of a call for each tensor.
    fused: bool,
}

impl Pair {
    /// With at most that many calls in flight.
    pub(super) fn new(
        caller: Caller,
        in_flight_max: usize,
        pulled: &[usize],
        gradients: Arc<[Bytes]>,
        fused: bool,
    ) -> Self {
        let in_flight = in_flight_max.min(pulled.len().max(gradients.len())).max(1);
        let pulled = pulled.iter().map(|&bytes| vec![0; bytes]).collect();
        Self { callers: vec![caller; in_flight], pulled, gradients, fused }
    }

    pub(super) fn calls(&self) -> u64 {
        let calls = |tensors: usize| if self.fused { tensors.min(1) } else { tensors };
        (calls(self.pulled.len()) + calls(self.gradients.len())) as u64
    }

    /// Pulls all tensors of a step, in this version or a later one.
    pub(super) async fn pull(&mut self, version: i64) -> Result<(), BenchError> {
        if self.pulled.is_empty() {
            return Ok(());
        }
        if self.fused {
            let message = self.callers[0].call(PULL_ALL, request_for(0, version)).await?;
            let others = || BenchError::failed(NAME, "send what was asked for")("the message has other tensors");
            return copy_out(&message, &mut self.pulled).ok_or_else(others);
        }
        let requests = (0..self.pulled.len()).map(|number| request_for(number, version));
        call_each(&mut self.callers, PULL, requests, |number, answer| {
            let target = &mut self.pulled[number];
            check_length(NAME, target.len(), answer.len())?;
            target.copy_from_slice(&answer);
            Ok(())
        })
        .await
    }

    pub(super) async fn push(&mut self) -> Result<(), BenchError> {
        if self.gradients.is_empty() {
            return Ok(());
        }
        if self.fused {
            return self.callers[0].call(PUSH_ALL, Message::Tensors(self.gradients.clone())).await.map(drop);
        }
        let requests = self.gradients.iter().cloned().map(Message::Bytes);
        call_each(&mut self.callers, PUSH, requests, |_, _| Ok(())).await
    }
}

/// Keeps as many calls in flight as there are callers, all of which are idle again at the end.
async fn call_each(
    idle: &mut Vec<Caller>,
    method: &'static str,
    requests: impl Iterator<Item = Message>,
    mut answered: impl FnMut(usize, Bytes) -> Result<(), BenchError>,
) -> Result<(), BenchError> {
    let call = async |mut caller: Caller, (number, request)| {
        let answer = caller.call(method, request).await;
        (caller, number, answer)
    };
    let mut requests = requests.enumerate();
    let mut calls = FuturesUnordered::new();
    while !idle.is_empty()
        && let Some(request) = requests.next()
        && let Some(caller) = idle.pop()
    {
        calls.push(call(caller, request));
    }
    while let Some((caller, number, answer)) = calls.next().await {
        answered(number, answer?)?;
        match requests.next() {
            Some(request) => calls.push(call(caller, request)),
            None => idle.push(caller),
        }
    }
    Ok(())
}

/// Requests that were made but not yet taken to be written.
#[derive(Debug, Default)]
struct Asked {
    count: AtomicUsize,
    writer: AtomicWaker,
}

/// The same request, as often as it was made.
struct Requests {
    asked: Arc<Asked>,
    /// Requests taken, but not written yet.
    left: usize,
    request: Message,
}

impl Stream for Requests {
    type Item = Message;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Message>> {
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

/// A consumer by one stream. Everything that arrived together is taken, and requested again, together.
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
        let codec = MessageCodec::STREAM;
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
            // Relaxed: only the count is passed.
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
