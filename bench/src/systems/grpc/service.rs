//! The producer: a method that answers with a tensor, and one that answers with all. No router is around them.

use std::convert::Infallible;
use std::future::{Ready, ready};
use std::sync::Arc;

use bytes::Bytes;
use futures_util::stream::{self, StreamExt};
use tokio::io::{AsyncRead, AsyncWrite};
use tonic::body::Body;
use tonic::codegen::{BoxFuture, Context, Poll, Service, http};
use tonic::server::{Grpc, UnaryService};
use tonic::transport::Server;
use tonic::transport::server::Connected;
use tonic::{Request, Response, Status};

use super::codec::{BytesCodec, number_in};
use super::failed;
use super::repeated::{RepeatedCodec, message_bytes};
use crate::error::BenchError;
use crate::limits::{FILL, GRPC_FRAME_BYTES, GRPC_WINDOW_BYTES};

/// Answers with one tensor: the one of the number that is the request's first bytes.
pub(super) const PULL: &str = "/sealane.bench.Tensors/Pull";

/// Answers with all tensors in one message.
pub(super) const PULL_ALL: &str = "/sealane.bench.Tensors/PullAll";

/// Serves one connection until its task ends; returns at once, the runtime carries on.
pub(super) async fn serve<C>(connection: C, sizes: &[usize]) -> Result<(), BenchError>
where
    C: AsyncRead + AsyncWrite + Connected + Unpin + Send + 'static,
{
    let service = Tensors(sizes.iter().map(|&bytes| Bytes::from(vec![FILL; bytes])).collect());
    let connections = stream::once(ready(Ok::<_, Infallible>(connection))).chain(stream::pending());
    Server::builder()
        .initial_stream_window_size(GRPC_WINDOW_BYTES)
        .initial_connection_window_size(GRPC_WINDOW_BYTES)
        .http2_adaptive_window(Some(false))
        .max_frame_size(GRPC_FRAME_BYTES)
        .serve_with_incoming(service, connections)
        .await
        .map_err(failed("serve"))
}

#[derive(Clone, Debug)]
struct Tensors(Arc<[Bytes]>);

impl UnaryService<Bytes> for Tensors {
    type Response = Bytes;
    type Future = Ready<Result<Response<Bytes>, Status>>;

    fn call(&mut self, request: Request<Bytes>) -> Self::Future {
        let tensor = number_in(request.get_ref()).and_then(|number| self.0.get(number));
        ready(tensor.map(|tensor| Response::new(tensor.clone())).ok_or_else(|| Status::not_found("no such tensor")))
    }
}

/// The other method.
#[derive(Clone, Debug)]
struct All(Tensors);

impl UnaryService<Bytes> for All {
    type Response = Arc<[Bytes]>;
    type Future = Ready<Result<Response<Arc<[Bytes]>>, Status>>;

    fn call(&mut self, _request: Request<Bytes>) -> Self::Future {
        ready(Ok(Response::new(self.0.0.clone())))
    }
}

impl Service<http::Request<Body>> for Tensors {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = BoxFuture<Self::Response, Infallible>;

    fn poll_ready(&mut self, _context: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        let service = self.clone();
        Box::pin(async move {
            if request.uri().path() == PULL_ALL {
                let codec = RepeatedCodec { message_bytes: message_bytes(&service.0) };
                return Ok(Grpc::new(codec).unary(All(service), request).await);
            }
            let codec = BytesCodec { message_bytes: service.0.first().map_or(0, Bytes::len) };
            Ok(Grpc::new(codec).unary(service, request).await)
        })
    }
}
