//! The baselines `grpc` and `grpc-stream`: unary calls, and one bidirectional stream, through tonic with the settings that were
//! fastest here. A step of many tensors is measured twice: with a call for each tensor, and with one call whose answer is one
//! message with all. `grpc-connector` makes the same unary calls over a stream of Sealane's.
//!
//! Tensors pass as bytes without a protobuf message around them, the service is mounted without a
//! router, HTTP/2's windows and frames are as large as they may be, and each side runs a
//! current-thread runtime on its pinned CPU which, with polling on, never sleeps.

mod calls;
mod codec;
mod service;
pub(super) mod training;

use std::error::Error;
use std::future::{pending, ready};
use std::io;
use std::os::fd::AsFd;
use std::os::unix;
use std::os::unix::net::UnixListener;
use std::sync::Arc;
use std::time::Duration;

use ::sealane::Task;
use futures_util::stream::{self, Stream, StreamExt};
use hyper_util::rt::TokioIo;
use socket2::SockRef;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, UnixStream};
use tokio::runtime::{Builder, Handle, Runtime};
use tokio::task::{JoinHandle, yield_now};
use tonic::transport::server::Connected;
use tonic::transport::{Channel, Endpoint};
use tower::service_fn;

use crate::error::BenchError;
use crate::figures::Sample;
use crate::limits::{DUPLEX_BYTES, GRPC_FRAME_BYTES, GRPC_WINDOW_BYTES, WINDOW_MAX};
use crate::peer::{PeerJob, PeerProgram, announce};
use crate::plan::{Bench, Fuse, Link, Plan, SystemName};
use crate::system::{Client, System};
use crate::systems::sealane::{accept, connect};
use crate::systems::sockets::{self, Meeting};
use service::Ps;

struct Called {
    /// Whether all tensors come by one stream, or each by a call of its own.
    is_stream: bool,
    channel: Channel,
    /// Dropped after the channel, whose tasks it runs.
    runtime: Runtime,
}

/// A producer in a process of its own, over TCP.
pub(super) fn over_tcp(job: &PeerJob, program: &PeerProgram) -> Result<System, BenchError> {
    System::with_peer(job, program, |peer| {
        let stream = sockets::connect(peer.address(), job.plan.congestion.as_deref())?;
        let congestion = sockets::congestion(&stream)?;
        Ok(system(job, || adopt(stream, TcpStream::from_std))?.with_congestion(congestion))
    })
}

/// Like [`over_tcp`], over a Unix socket: what gRPC offers for two processes of one host.
pub(super) fn over_unix(job: &PeerJob, program: &PeerProgram) -> Result<System, BenchError> {
    let meeting = Meeting::arrange()?;
    let job = PeerJob { meeting_place: Some(meeting.socket()), ..job.clone() };
    System::with_peer(&job, program, |_| {
        let stream =
            unix::net::UnixStream::connect(meeting.socket()).map_err(BenchError::io("connect to the producer"))?;
        system(&job, || adopt(stream, UnixStream::from_std))
    })
}

/// Like [`over_tcp`], over a stream of a task's.
pub(super) fn over_stream(job: &PeerJob, worker: &Task) -> Result<System, BenchError> {
    let stream = connect(&job.plan, worker)?;
    system(job, || {
        worker.drive_on(&Handle::current());
        Ok(stream)
    })
}

/// A producer in this thread.
pub(super) fn in_memory(job: &PeerJob) -> Result<System, BenchError> {
    system(job, || {
        let (near, far) = tokio::io::duplex(DUPLEX_BYTES);
        tokio::spawn(service::serve(ps(&job.plan), one(far)));
        Ok(near)
    })
}

/// Calls a producer over the connection that `adopt` makes for the runtime that it is called in.
fn system<C>(job: &PeerJob, adopt: impl FnOnce() -> Result<C, BenchError>) -> Result<System, BenchError>
where
    C: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let runtime = runtime()?;
    let channel = runtime.block_on(async { open(adopt()?).await })?;
    let called = Called { is_stream: job.system == SystemName::GrpcStream, channel, runtime };
    Ok(System::new(job.system.as_str(), variant(&job.plan, job.system), &job.plan, called))
}

impl Client for Called {
    fn round(&mut self, plan: &Plan, length: Duration) -> Result<Sample, BenchError> {
        calls::measure(&self.runtime, &self.channel, plan, self.is_stream, length)
    }
}

fn variant(plan: &Plan, system: SystemName) -> String {
    let is_stream = system == SystemName::GrpcStream;
    let way = match plan.fuse {
        Fuse::Receive if plan.bench == Bench::Fuse => return "one message".to_owned(),
        Fuse::Push if is_stream => "stream, one way",
        _ if is_stream => "stream",
        _ => "unary",
    };
    match plan.link {
        Link::Shm if system == SystemName::GrpcConnector => format!("{way}, stream of the daemon's tasks"),
        Link::Shm => format!("{way}, Unix socket"),
        Link::Tcp | Link::Loopback => way.to_owned(),
        Link::Verbs => format!("{way}, TCP"),
    }
}

/// The producer's side over TCP: serves one consumer until the process is ended.
pub(super) fn serve(job: &PeerJob) -> Result<(), BenchError> {
    let plan = &job.plan;
    let listener = sockets::listen(job.hosts.producer, plan.congestion.as_deref())?;
    announce(&[sockets::port(&listener)?])?;
    let stream = sockets::accept(&listener, job.hosts)?;
    serve_connection(plan, || adopt(stream, TcpStream::from_std))
}

/// The producer's side over a Unix socket: serves one consumer until the process is ended.
pub(super) fn serve_unix(job: &PeerJob) -> Result<(), BenchError> {
    let listener = UnixListener::bind(job.meeting_place()?).map_err(BenchError::io("listen at a Unix socket"))?;
    announce(&[])?;
    let (stream, _) = listener.accept().map_err(BenchError::io("accept the consumer"))?;
    serve_connection(&job.plan, || adopt(stream, UnixStream::from_std))
}

/// The producer's side over a stream of a task's: serves one consumer until the process is ended.
pub(super) fn serve_stream(plan: &Plan, ps: &Task) -> Result<(), BenchError> {
    let stream = accept(plan, ps)?;
    serve_connection(plan, || {
        ps.drive_on(&Handle::current());
        Ok(stream)
    })
}

/// Serves the connection that `adopt` makes for the runtime that it is called in.
fn serve_connection<C>(plan: &Plan, adopt: impl FnOnce() -> Result<C, BenchError>) -> Result<(), BenchError>
where
    C: AsyncRead + AsyncWrite + Connected + Unpin + Send + 'static,
{
    runtime()?.block_on(async {
        let _spinner = plan.polling.then(spin);
        service::serve(ps(plan), one(adopt()?)).await?;
        pending().await
    })
}

/// A stream of one connection that never ends.
fn one<C>(connection: C) -> impl Stream<Item = io::Result<C>> {
    stream::once(ready(Ok(connection))).chain(stream::pending())
}

/// The only ps of a measurement of one consumer.
fn ps(plan: &Plan) -> Arc<Ps> {
    let sizes = if plan.step.is_empty() { std::slice::from_ref(&plan.size_bytes) } else { &plan.step };
    Ps::new(sizes.iter().copied(), 0, 1, None)
}

/// What a request names as its host; nothing looks it up.
const ORIGIN: &str = "http://producer";

/// Registers a standard socket, with `from_std`, in the runtime that this is called in.
pub(super) fn adopt<S: AsFd, C>(stream: S, from_std: fn(S) -> io::Result<C>) -> Result<C, BenchError> {
    let adopted = SockRef::from(&stream).set_nonblocking(true).and_then(|()| from_std(stream));
    adopted.map_err(BenchError::io("hand a socket to gRPC"))
}

/// A channel over one connection; if that is lost, so is the channel.
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

/// Starts to spin: a task that always yields makes the runtime check its sockets without waiting.
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

/// The error of gRPC's library, with the causes that its messages hide.
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
