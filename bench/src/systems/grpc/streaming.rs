//! One round of each measurement through one stream of gRPC, on the calling thread: requests go out and tensors come back as
//! messages of one call, many in a frame where many are ready. With `--fuse push` nobody asks, and tensors come one way.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures_util::stream::{Stream, StreamExt};
use futures_util::task::{AtomicWaker, Context, Poll};
use tokio::runtime::Runtime;
use tonic::client::Grpc;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::transport::Channel;
use tonic::{Request, Streaming};

use super::codec::{MessageCodec, request_for};
use super::consumer::{Pull, bounded, round_trips, wrong_reply};
use super::service::{REPEAT, STREAM};
use super::{failed, spin};
use crate::error::BenchError;
use crate::limits::{REQUEST_BYTES, STALL_LIMIT};
use crate::plan::{Bench, Fuse, Plan};
use crate::sample::Sample;
use crate::stopwatch::Tally;

/// Measures one round on a stream of its own; a runtime that makes no progress is given up after the round's length and the
/// stall limit.
pub(super) fn measure(
    runtime: &Runtime,
    channel: &Channel,
    plan: &Plan,
    length: Duration,
) -> Result<Sample, BenchError> {
    let is_push = plan.fuse == Fuse::Push;
    let tensors = bounded(runtime, STALL_LIMIT, Tensors::open(channel.clone(), plan.size_bytes, is_push))?;
    match plan.bench {
        Bench::Latency => round_trips(runtime, tensors, plan, length),
        Bench::Rate | Bench::Bandwidth => bounded(runtime, length + STALL_LIMIT, async {
            let _spinner = spin();
            throughput(tensors, plan, length).await
        }),
        none => none.is_measured_elsewhere(),
    }
}

/// Requests that were made but not yet taken to be written.
#[derive(Debug, Default)]
struct Asked {
    count: AtomicUsize,
    writer: AtomicWaker,
}

impl Asked {
    /// Makes so many.
    fn ask(&self, count: usize) {
        // Relaxed: nothing but the count is handed over.
        self.count.fetch_add(count, Ordering::Relaxed);
        self.writer.wake();
    }
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

/// Tensors of one size that come by one stream.
struct Tensors {
    answers: Streaming<Bytes>,
    asked: Arc<Asked>,
    size_bytes: usize,
}

impl Tensors {
    async fn open(channel: Channel, size_bytes: usize, is_push: bool) -> Result<Self, BenchError> {
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
        let answers = opened.map_err(failed("open a stream"))?.into_inner();
        Ok(Self { answers, asked, size_bytes })
    }
}

impl Pull for Tensors {
    async fn pull(&mut self) -> Result<(), BenchError> {
        self.asked.ask(1);
        let tensor = self.answers.message().await.map_err(failed("receive"))?;
        checked(tensor.map_or(0, |tensor| tensor.len()), self.size_bytes)
    }
}

fn checked(received: usize, expected: usize) -> Result<(), BenchError> {
    if received == expected { Ok(()) } else { Err(wrong_reply(expected, received)) }
}

/// A window of requests in flight, or none where tensors are pushed. The clock is looked at once for all that came together, which
/// are also asked for again together.
async fn throughput(tensors: Tensors, plan: &Plan, length: Duration) -> Result<Sample, BenchError> {
    let Tensors { answers, asked, size_bytes } = tensors;
    let is_push = plan.fuse == Fuse::Push;
    let mut in_flight = if is_push { 0 } else { plan.window };
    asked.ask(in_flight);
    let mut tally = Tally::start(Instant::now(), length);
    let mut batches = answers.ready_chunks(plan.window);
    let mut over = false;
    while !over || in_flight > 0 {
        let Some(batch) = batches.next().await else {
            return Err(wrong_reply(size_bytes, 0));
        };
        let count = batch.len();
        for tensor in batch {
            checked(tensor.map_err(failed("receive"))?.len(), size_bytes)?;
        }
        over |= tally.completed(count as u64, Instant::now());
        if over {
            in_flight = in_flight.saturating_sub(count);
        } else if !is_push {
            asked.ask(count);
        }
    }
    Ok(tally.sample(plan))
}
