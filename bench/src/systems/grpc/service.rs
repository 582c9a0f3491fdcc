//! The producer: a ps whose tensors are pulled one by one or all at once, and that accepts gradients. Its methods have no router
//! around them.

use std::convert::Infallible;
use std::future::{Ready, ready};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::{Bytes, BytesMut};
use futures_util::future::Either;
use futures_util::stream::{self, Stream, StreamExt};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::watch;
use tonic::body::Body;
use tonic::codegen::{BoxFuture, Context, Poll, Service, http};
use tonic::server::Grpc;
use tonic::transport::Server;
use tonic::transport::server::Connected;
use tonic::{Request, Response, Status, Streaming};
use tower::service_fn;

use super::codec::{Message, MessageCodec, number_in, version_in};
use super::failed;
use crate::error::BenchError;
use crate::limits::{FILL, GRPC_FRAME_BYTES, GRPC_WINDOW_BYTES};
use crate::systems::rows::Memory;

/// The methods. One tensor, whose number is in the request's first bytes: by a call of its own, as the answer to one message of a
/// stream, or again and again without being requested; or all of them in one message, in either direction.
pub(super) const PULL: &str = "/sealane.bench.Tensors/Pull";
pub(super) const STREAM: &str = "/sealane.bench.Tensors/Stream";
pub(super) const REPEAT: &str = "/sealane.bench.Tensors/Repeat";
pub(super) const PULL_ALL: &str = "/sealane.bench.Tensors/PullAll";
pub(super) const PUSH: &str = "/sealane.bench.Tensors/Push";
pub(super) const PUSH_ALL: &str = "/sealane.bench.Tensors/PushAll";
/// Rows of all tables, by their numbers.
pub(super) const PULL_ROWS: &str = "/sealane.bench.Tensors/PullRows";

/// Bytes of a row's number in a request.
pub(super) const ID_BYTES: usize = 4;

pub(super) struct Ps {
    tensors: Arc<[Bytes]>,
    /// Gradients that one worker pushes in a step, and the number for all workers.
    pushed: usize,
    gradients: usize,
    /// Gradients that have arrived.
    taken: AtomicUsize,
    version: watch::Sender<i64>,
    /// Its part of all tables, if there are any.
    tables: Option<Memory>,
}

impl Ps {
    /// A ps with tensors of these sizes, to which each of `workers` workers pushes a number of gradients in a step.
    pub(super) fn new(
        sizes: impl Iterator<Item = usize>,
        pushed: usize,
        workers: usize,
        tables: Option<Memory>,
    ) -> Arc<Self> {
        Arc::new(Self {
            tensors: sizes.map(|bytes| Bytes::from(vec![FILL; bytes])).collect(),
            pushed,
            gradients: pushed * workers,
            taken: AtomicUsize::new(0),
            version: watch::Sender::new(0),
            tables,
        })
    }

    /// Accepts a message with `count` gradients; once as many have arrived as all workers push in a step, there is a new version.
    fn take(&self, gradients: &Bytes, count: usize) -> Ready<Result<Response<Message>, Status>> {
        if gradients.last() != Some(&FILL) {
            return ready(Err(Status::data_loss("other bytes")));
        }
        let taken = self.taken.fetch_add(count, Ordering::Relaxed) + count;
        if taken.is_multiple_of(self.gradients) {
            self.version.send_modify(|version| *version += 1);
        }
        ready(Ok(Response::new(Message::Bytes(Bytes::new()))))
    }

    fn tensor(&self, request: &[u8]) -> Result<Message, Status> {
        let tensor = number_in(request).and_then(|number| self.tensors.get(number));
        tensor.cloned().map(Message::Bytes).ok_or_else(|| Status::not_found("no such tensor"))
    }

    /// The rows that a request names: for each table their count, and their numbers.
    fn rows(&self, request: &[u8]) -> Result<Message, Status> {
        let tables = self.tables.as_ref().ok_or_else(|| Status::not_found("no tables"))?;
        let number = |bytes: &[u8; ID_BYTES]| u32::from_le_bytes(*bytes);
        let mut named = request.as_chunks().0;
        let mut rows = BytesMut::zeroed(named.len().saturating_sub(tables.tables()) * tables.row_bytes());
        let mut target = &mut rows[..];
        for table in 0..tables.tables() {
            let (count, rest) = named.split_first().ok_or_else(|| Status::invalid_argument("too few tables"))?;
            let ids = rest.get(..number(count) as usize).ok_or_else(|| Status::invalid_argument("too few rows"))?;
            let room = target.split_off_mut(..ids.len() * tables.row_bytes());
            let room = room.ok_or_else(|| Status::invalid_argument("too many rows"))?;
            tables.gather(table, ids.iter().map(|id| number(id).into()), room);
            named = &rest[ids.len()..];
        }
        Ok(Message::Bytes(rows.freeze()))
    }

    /// Answers a request at once, or as soon as the wanted version exists.
    fn answer(self: &Arc<Self>, request: &Bytes, find: Find) -> Answer {
        let wanted = version_in(request);
        // Without gradients no version follows the first.
        if wanted == 0 || self.gradients == 0 || wanted <= *self.version.borrow() {
            return Either::Left(ready(find(self, request).map(Response::new)));
        }
        let (ps, request) = (self.clone(), request.clone());
        Either::Right(Box::pin(async move {
            // It ends only with the process.
            let _ = ps.version.subscribe().wait_for(|version| *version >= wanted).await;
            find(&ps, &request).map(Response::new)
        }))
    }
}

/// Serves all incoming connections, until the process ends.
pub(super) async fn serve<C>(ps: Arc<Ps>, connections: impl Stream<Item = io::Result<C>>) -> Result<(), BenchError>
where
    C: AsyncRead + AsyncWrite + Connected + Unpin + Send + 'static,
{
    Server::builder()
        .initial_stream_window_size(GRPC_WINDOW_BYTES)
        .initial_connection_window_size(GRPC_WINDOW_BYTES)
        .http2_adaptive_window(Some(false))
        .max_frame_size(GRPC_FRAME_BYTES)
        .serve_with_incoming(Methods(ps), connections)
        .await
        .map_err(failed("serve"))
}

type Answer = Either<Ready<Result<Response<Message>, Status>>, BoxFuture<Response<Message>, Status>>;
type Find = fn(&Ps, &[u8]) -> Result<Message, Status>;

/// A ps as its workers see it.
#[derive(Clone)]
struct Methods(Arc<Ps>);

impl Service<http::Request<Body>> for Methods {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = BoxFuture<Self::Response, Infallible>;

    fn poll_ready(&mut self, _context: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        let Methods(ps) = self.clone();
        Box::pin(async move {
            let (tensor_bytes, all) = (ps.tensors.first().map_or(0, Bytes::len), Message::Tensors(ps.tensors.clone()));
            let grpc = |codec| Grpc::new(codec).max_decoding_message_size(usize::MAX);
            let mut streams = grpc(MessageCodec::STREAM);
            Ok(match request.uri().path() {
                STREAM => {
                    let answer = move |request: Result<Bytes, Status>| ps.tensor(&request?);
                    let pull = |requests: Request<Streaming<Bytes>>| {
                        ready(Ok(Response::new(requests.into_inner().map(answer.clone()))))
                    };
                    streams.streaming(service_fn(pull), request).await
                }
                REPEAT => {
                    let push = |request: Request<Bytes>| {
                        ready(ps.tensor(request.get_ref()).map(|tensor| Response::new(stream::repeat(tensor).map(Ok))))
                    };
                    streams.server_streaming(service_fn(push), request).await
                }
                method @ (PULL | PULL_ALL | PULL_ROWS) => {
                    let (find, bytes): (Find, usize) = match method {
                        PULL => (Ps::tensor, tensor_bytes),
                        PULL_ALL => (|ps, _| Ok(Message::Tensors(ps.tensors.clone())), all.bytes()),
                        _ => (Ps::rows, tensor_bytes),
                    };
                    let pull = |request: Request<Bytes>| ps.answer(request.get_ref(), find);
                    grpc(MessageCodec::new(bytes)).unary(service_fn(pull), request).await
                }
                method @ (PUSH | PUSH_ALL) => {
                    let count = if method == PUSH { 1 } else { ps.pushed };
                    let push = |request: Request<Bytes>| ps.take(request.get_ref(), count);
                    grpc(MessageCodec::new(tensor_bytes)).unary(service_fn(push), request).await
                }
                _ => Status::unimplemented("no such method").into_http(),
            })
        })
    }
}
