//! The parameter servers: a service each, in one runtime.

use std::convert::Infallible;
use std::future::pending;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use futures_util::stream;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tonic::body::Body;
use tonic::codegen::{BoxFuture, Context, Poll, Service, http};
use tonic::server::{Grpc, UnaryService};
use tonic::transport::Server;
use tonic::{Request, Response, Status};

use super::super::codec::{BytesCodec, number_in, version_in};
use super::super::repeated::{RepeatedCodec, message_bytes};
use super::super::{connection, failed, runtime};
use super::{PULL, PULL_ALL, PUSH, PUSH_ALL};
use crate::error::BenchError;
use crate::limits::{FILL, GRPC_FRAME_BYTES, GRPC_WINDOW_BYTES};
use crate::open_files;
use crate::peer::{PeerJob, PeerReady, announce};
use crate::plan::spread;
use crate::systems::{sockets, training};

/// Serves workers until the process ends.
pub(in crate::systems) fn serve(job: &PeerJob) -> Result<(), BenchError> {
    let plan = &job.plan;
    let training = training::of(plan);
    open_files::allow_for("--workers x --ps", training.pairs(), 1)?;
    runtime()?.block_on(async {
        let _spinner = plan.polling.then(connection::spin);
        let mut ports = Vec::new();
        let shares = spread(&plan.step, training.size.ps).into_iter().zip(spread(&training.push, training.size.ps));
        for (pulled, pushed) in shares {
            let listener = sockets::listen_for_many(plan.congestion.as_deref())?;
            ports.push(sockets::port(&listener)?);
            listener.set_nonblocking(true).map_err(BenchError::io("hand a listener to gRPC"))?;
            let listener = TcpListener::from_std(listener).map_err(BenchError::io("hand a listener to gRPC"))?;
            let tensors = pulled.iter().map(|&number| Bytes::from(vec![FILL; plan.step[number]])).collect();
            let gradients = pushed.len() * training.size.workers;
            let largest = pushed.iter().map(|&number| training.push[number]).sum::<usize>();
            let ps = Arc::new(Ps {
                tensors,
                gradients,
                largest,
                taken: AtomicUsize::new(0),
                version: watch::Sender::new(0),
            });
            tokio::spawn(serve_one(Workers(ps, pushed.len()), listener));
        }
        announce(PeerReady { port: 0, ports })?;
        pending().await
    })
}

async fn serve_one(service: Workers, listener: TcpListener) {
    let connections = stream::unfold(listener, async |listener| {
        let accepted = listener.accept().await.and_then(|(stream, _)| {
            stream.set_nodelay(true)?;
            Ok::<TcpStream, std::io::Error>(stream)
        });
        Some((accepted, listener))
    });
    let served = Server::builder()
        .initial_stream_window_size(GRPC_WINDOW_BYTES)
        .initial_connection_window_size(GRPC_WINDOW_BYTES)
        .http2_adaptive_window(Some(false))
        .max_frame_size(GRPC_FRAME_BYTES)
        .serve_with_incoming(service, Box::pin(connections))
        .await;
    if let Err(error) = served.map_err(failed("serve")) {
        eprintln!("a ps no longer serves: {error}");
    }
}

/// One ps.
#[derive(Debug)]
struct Ps {
    tensors: Arc<[Bytes]>,
    /// Gradients that all workers together push in a step, and bytes of those of one.
    gradients: usize,
    largest: usize,
    /// Gradients of the step that have come.
    taken: AtomicUsize,
    version: watch::Sender<i64>,
}

impl Ps {
    /// Takes gradients; when as many have come as all workers push in a step, there is a new version.
    fn take(&self, count: usize) {
        let taken = self.taken.fetch_add(count, Ordering::Relaxed) + count;
        if taken.is_multiple_of(self.gradients) {
            self.version.send_modify(|version| *version += 1);
        }
    }

    async fn reached(&self, wanted: i64) {
        // Without gradients no version follows the first.
        if wanted > *self.version.borrow() && self.gradients > 0 {
            // It ends with the process alone.
            let _ = self.version.subscribe().wait_for(|version| *version >= wanted).await;
        }
    }
}

/// A ps as its workers see it, and how many gradients each pushes in a step.
#[derive(Clone, Debug)]
struct Workers(Arc<Ps>, usize);

type Answer<T> = BoxFuture<Response<T>, Status>;

struct Pull(Arc<Ps>);

impl UnaryService<Bytes> for Pull {
    type Response = Bytes;
    type Future = Answer<Bytes>;

    fn call(&mut self, request: Request<Bytes>) -> Self::Future {
        let ps = self.0.clone();
        Box::pin(async move {
            ps.reached(version_in(request.get_ref())).await;
            let tensor = number_in(request.get_ref()).and_then(|number| ps.tensors.get(number));
            tensor.map(|tensor| Response::new(tensor.clone())).ok_or_else(|| Status::not_found("no such tensor"))
        })
    }
}

struct PullAll(Arc<Ps>);

impl UnaryService<Bytes> for PullAll {
    type Response = Arc<[Bytes]>;
    type Future = Answer<Arc<[Bytes]>>;

    fn call(&mut self, request: Request<Bytes>) -> Self::Future {
        let ps = self.0.clone();
        Box::pin(async move {
            ps.reached(version_in(request.get_ref())).await;
            Ok(Response::new(ps.tensors.clone()))
        })
    }
}

/// Takes a message with so many gradients.
struct Push(Arc<Ps>, usize);

impl UnaryService<Bytes> for Push {
    type Response = Bytes;
    type Future = Answer<Bytes>;

    fn call(&mut self, request: Request<Bytes>) -> Self::Future {
        let is_whole = request.get_ref().last() == Some(&FILL);
        if is_whole {
            self.0.take(self.1);
        }
        let answer = if is_whole { Ok(Response::new(Bytes::new())) } else { Err(Status::data_loss("other bytes")) };
        Box::pin(async { answer })
    }
}

impl Service<http::Request<Body>> for Workers {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = BoxFuture<Self::Response, Infallible>;

    fn poll_ready(&mut self, _context: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        let Workers(ps, pushed) = self.clone();
        Box::pin(async move {
            let codec = BytesCodec { message_bytes: ps.tensors.first().map_or(0, Bytes::len) };
            // Twice, and some: for what is around many tensors in a message.
            let largest = 2 * ps.largest + (64 << 10);
            let mut grpc = Grpc::new(codec).max_decoding_message_size(largest);
            Ok(match request.uri().path() {
                PULL_ALL => {
                    let codec = RepeatedCodec { message_bytes: message_bytes(&ps.tensors) };
                    Grpc::new(codec).unary(PullAll(ps), request).await
                }
                PUSH_ALL => grpc.unary(Push(ps, pushed), request).await,
                PUSH => grpc.unary(Push(ps, 1), request).await,
                PULL => grpc.unary(Pull(ps), request).await,
                _ => Status::unimplemented("no such method").into_http(),
            })
        })
    }
}
