//! What gRPC runs on, and the consumer's connection, made of a socket that the harness opened itself.

use std::error::Error;
use std::os::unix;
use std::{io, net};

use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, UnixStream};
use tokio::runtime::{Builder, Runtime};
use tokio::task::{JoinHandle, yield_now};
use tonic::transport::{Channel, Endpoint};
use tower::service_fn;

use crate::error::BenchError;
use crate::limits::{GRPC_FRAME_BYTES, GRPC_WINDOW_BYTES, WINDOW_MAX};

/// What a request names as its host; nothing looks it up.
const ORIGIN: &str = "http://producer";

/// A standard socket for the runtime that this is called in.
pub(super) fn adopt(stream: net::TcpStream) -> Result<TcpStream, BenchError> {
    stream
        .set_nonblocking(true)
        .and_then(|()| TcpStream::from_std(stream))
        .map_err(BenchError::io("hand a socket to gRPC"))
}

/// As [`adopt`], for a Unix socket.
pub(super) fn adopt_unix(stream: unix::net::UnixStream) -> Result<UnixStream, BenchError> {
    stream
        .set_nonblocking(true)
        .and_then(|()| UnixStream::from_std(stream))
        .map_err(BenchError::io("hand a socket to gRPC"))
}

/// A channel over one connection; when that is lost, so is the channel.
pub(super) async fn open<C>(connection: C) -> Result<Channel, BenchError>
where
    C: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let mut connection = Some(TokioIo::new(connection));
    let connector = service_fn(move |_uri| {
        let taken = connection.take();
        async move { taken.ok_or_else(|| io::Error::from(io::ErrorKind::NotConnected)) }
    });
    Endpoint::from_static(ORIGIN)
        .buffer_size(WINDOW_MAX)
        .initial_stream_window_size(GRPC_WINDOW_BYTES)
        .initial_connection_window_size(GRPC_WINDOW_BYTES)
        .http2_adaptive_window(false)
        .max_frame_size(GRPC_FRAME_BYTES)
        .connect_with_connector(connector)
        .await
        .map_err(failed("connect"))
}

/// Keeps the runtime from sleeping while it lives.
pub(super) struct Spinner(JoinHandle<()>);

/// Starts to spin: a task that always yields makes the runtime look at its sockets without waiting.
pub(super) fn spin() -> Spinner {
    Spinner(tokio::spawn(async {
        loop {
            yield_now().await;
        }
    }))
}

impl Drop for Spinner {
    fn drop(&mut self) {
        self.0.abort();
    }
}

pub(super) const NAME: &str = "grpc";

/// A runtime of one thread: the caller's.
pub(super) fn runtime() -> Result<Runtime, BenchError> {
    Builder::new_current_thread().enable_all().build().map_err(BenchError::io("start a runtime for gRPC"))
}

/// Says what gRPC's library said, with the causes that its errors hide.
pub(super) fn failed<E: Error>(operation: &'static str) -> impl FnOnce(E) -> BenchError {
    move |error| {
        let mut reason = error.to_string();
        let mut cause = error.source();
        while let Some(error) = cause {
            reason.push_str(": ");
            reason.push_str(&error.to_string());
            cause = error.source();
        }
        BenchError::Failed { system: "gRPC", operation, reason }
    }
}
