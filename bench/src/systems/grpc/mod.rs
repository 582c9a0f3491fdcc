//! The baseline `grpc`: unary calls through tonic, with the settings that served it best here. A step of many tensors is
//! measured twice: a call a tensor, and one call whose answer is one message with all.
//!
//! Tensors pass as bytes without a protobuf message around them, the service is mounted without a
//! router, HTTP/2's windows and frames are as large as they may be, and each side runs a
//! current-thread runtime on its pinned CPU which, with polling on, never sleeps.

mod codec;
mod connection;
mod consumer;
mod service;
pub(super) mod training;

use std::future::{pending, ready};
use std::io;
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::Arc;
use std::time::Duration;

use futures_util::stream::{self, Stream, StreamExt};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::runtime::Runtime;
use tonic::transport::Channel;
use tonic::transport::server::Connected;

use crate::error::BenchError;
use crate::limits::DUPLEX_BYTES;
use crate::peer::{Peer, PeerJob, PeerProgram, announce};
use crate::plan::{Bench, Fuse, Link, Plan};
use crate::sample::Sample;
use crate::system::{Rounds, System};
use crate::systems::sockets::{self, Meeting};
use connection::{NAME, runtime};
use service::Ps;

/// Unary calls to a producer.
struct Unary {
    plan: Plan,
    channel: Channel,
    /// After the channel, whose tasks it runs.
    runtime: Runtime,
}

/// A producer in a process of its own, over TCP.
pub(super) fn over_tcp(job: &PeerJob, program: &PeerProgram) -> Result<System, BenchError> {
    let peer = Peer::start(program, job)?;
    let stream = sockets::connect(peer.ready().port, job.plan.congestion.as_deref())?;
    let congestion = sockets::congestion(&stream)?;
    Ok(system(&job.plan, peer, || connection::adopt(stream))?.with_congestion(congestion))
}

/// The same over a Unix socket: what gRPC has for two processes of one host.
pub(super) fn over_unix(job: &PeerJob, program: &PeerProgram) -> Result<System, BenchError> {
    let meeting = Meeting::arrange()?;
    let job = PeerJob { meeting_place: Some(meeting.socket()), ..job.clone() };
    let peer = Peer::start(program, &job)?;
    let stream = UnixStream::connect(meeting.socket()).map_err(BenchError::io("connect to the producer"))?;
    system(&job.plan, peer, || connection::adopt_unix(stream))
}

/// A producer in this thread.
pub(super) fn in_memory(plan: &Plan) -> Result<System, BenchError> {
    let runtime = runtime()?;
    let (near, far) = tokio::io::duplex(DUPLEX_BYTES);
    runtime.spawn(service::serve(ps(plan), one(far)));
    let channel = runtime.block_on(connection::open(near))?;
    Ok(System::new(NAME, variant(plan), Unary { plan: plan.clone(), channel, runtime }))
}

/// Calls a producer's process over what `adopt` makes a connection of the runtime that it is called in.
fn system<C>(plan: &Plan, mut peer: Peer, adopt: impl FnOnce() -> Result<C, BenchError>) -> Result<System, BenchError>
where
    C: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let runtime = runtime()?;
    let opened = runtime.block_on(async { connection::open(adopt()?).await });
    let channel = opened.map_err(|failure| peer.blame(failure))?;
    peer.rest()?;
    Ok(System::new(NAME, variant(plan), Unary { plan: plan.clone(), channel, runtime }).with_peer(peer))
}

impl Rounds for Unary {
    fn round(&mut self, length: Duration) -> Result<Sample, BenchError> {
        consumer::measure(&self.runtime, &self.channel, &self.plan, length)
    }
}

fn variant(plan: &Plan) -> &'static str {
    match plan.link {
        _ if plan.bench == Bench::Fuse && plan.fuse == Fuse::Receive => "one message",
        Link::Shm => "unary, Unix socket",
        Link::Tcp | Link::Loopback => "unary",
        Link::Verbs => "unary, TCP",
    }
}

/// The producer's side over TCP: serves one consumer until the process is ended.
pub(super) fn serve(plan: &Plan) -> Result<(), BenchError> {
    let listener = sockets::listen(plan.congestion.as_deref())?;
    announce(sockets::port(&listener)?)?;
    let stream = sockets::accept(&listener)?;
    serve_connection(plan, || connection::adopt(stream))
}

/// The producer's side over a Unix socket: serves one consumer until the process is ended.
pub(super) fn serve_unix(job: &PeerJob) -> Result<(), BenchError> {
    let listener = UnixListener::bind(job.meeting_place()?).map_err(BenchError::io("listen at a Unix socket"))?;
    announce(0)?;
    let (stream, _) = listener.accept().map_err(BenchError::io("accept the consumer"))?;
    serve_connection(&job.plan, || connection::adopt_unix(stream))
}

/// Serves what `adopt` makes a connection of the runtime that it is called in.
fn serve_connection<C>(plan: &Plan, adopt: impl FnOnce() -> Result<C, BenchError>) -> Result<(), BenchError>
where
    C: AsyncRead + AsyncWrite + Connected + Unpin + Send + 'static,
{
    runtime()?.block_on(async {
        let _spinner = plan.polling.then(connection::spin);
        service::serve(ps(plan), one(adopt()?)).await?;
        pending().await
    })
}

/// One connection, and no end of waiting for others.
fn one<C>(connection: C) -> impl Stream<Item = io::Result<C>> {
    stream::once(ready(Ok(connection))).chain(stream::pending())
}

/// The only ps of a measurement of one consumer.
fn ps(plan: &Plan) -> Arc<Ps> {
    let sizes = if plan.step.is_empty() { std::slice::from_ref(&plan.size_bytes) } else { &plan.step };
    Ps::new(sizes.iter().copied(), &[], 1)
}
