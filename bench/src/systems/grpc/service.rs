//! The producer: one method that answers any request with the tensor.

use std::convert::Infallible;
use std::future::{Ready, ready};

use bytes::Bytes;
use futures_util::stream::{self, StreamExt};
use tokio::io::{AsyncRead, AsyncWrite};
use tonic::body::Body;
use tonic::codegen::{BoxFuture, Context, Poll, Service, http};
use tonic::server::{Grpc, UnaryService};
use tonic::transport::Server;
use tonic::transport::server::Connected;
use tonic::{Request, Response, Status};

use super::codec::BytesCodec;
use super::failed;
use crate::error::BenchError;
use crate::limits::{GRPC_FRAME_BYTES, GRPC_WINDOW_BYTES};

/// Where the method is mounted; the service does not look, as there is no other.
pub(super) const METHOD: &str = "/sealane.bench.Tensors/Pull";

/// Serves one connection until its task ends; returns at once, the runtime carries on.
pub(super) async fn serve<C>(connection: C, size_bytes: usize) -> Result<(), BenchError>
where
    C: AsyncRead + AsyncWrite + Connected + Unpin + Send + 'static,
{
    let service = Tensors { tensor: Bytes::from(vec![0; size_bytes]) };
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
struct Tensors {
    tensor: Bytes,
}

impl UnaryService<Bytes> for Tensors {
    type Response = Bytes;
    type Future = Ready<Result<Response<Bytes>, Status>>;

    fn call(&mut self, _request: Request<Bytes>) -> Self::Future {
        ready(Ok(Response::new(self.tensor.clone())))
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
            let codec = BytesCodec { message_bytes: service.tensor.len() };
            Ok(Grpc::new(codec).unary(service, request).await)
        })
    }
}
