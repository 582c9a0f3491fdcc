//! The baseline `grpc`: unary calls through tonic, with the settings that served it best here. A step of many tensors is
//! measured twice: a call a tensor, and one call whose answer is one message with all.
//!
//! Tensors pass as bytes without a protobuf message around them, the service is mounted without a
//! router, HTTP/2's windows and frames are as large as they may be, and each side runs a
//! current-thread runtime on its pinned CPU which, with polling on, never sleeps.

mod codec;
mod connection;
mod consumer;
mod repeated;
mod service;
mod steps;
pub(super) mod training;

use std::error::Error;
use std::future::pending;
use std::os::unix::net::{UnixListener, UnixStream};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite};
use tokio::runtime::{Builder, Runtime};
use tonic::transport::Channel;
use tonic::transport::server::Connected;

use crate::error::BenchError;
use crate::limits::DUPLEX_BYTES;
use crate::peer::{Peer, PeerJob, PeerProgram, announce};
use crate::plan::{Bench, Fuse, Link, Plan};
use crate::sample::Sample;
use crate::system::System;
use crate::systems::meeting::Meeting;
use crate::systems::sockets;

const NAME: &str = "grpc";

/// Unary calls; the producer in a process of its own over TCP, in this thread in memory.
pub(super) struct Unary {
    plan: Plan,
    congestion: Option<String>,
    channel: Channel,
    /// After the channel, whose tasks it runs.
    runtime: Runtime,
    peer: Option<Peer>,
}

impl Unary {
    pub(super) fn over_tcp(job: &PeerJob, program: &PeerProgram) -> Result<Self, BenchError> {
        let plan = job.plan.clone();
        let mut peer = Peer::start(program, job)?;
        let stream = sockets::connect(peer.ready().port, plan.congestion.as_deref())?;
        let congestion = sockets::congestion(&stream)?;
        let runtime = runtime()?;
        let channel = runtime
            .block_on(async { connection::open(connection::adopt(stream)?).await })
            .map_err(|failure| peer.blame(failure))?;
        peer.rest()?;
        Ok(Self { plan, congestion: Some(congestion), channel, runtime, peer: Some(peer) })
    }

    /// A Unix socket: what gRPC has for two processes of one host.
    pub(super) fn over_unix(job: &PeerJob, program: &PeerProgram) -> Result<Self, BenchError> {
        let meeting = Meeting::arrange()?;
        let job = PeerJob { meeting_place: Some(meeting.socket()), ..job.clone() };
        let mut peer = Peer::start(program, &job)?;
        let stream = UnixStream::connect(meeting.socket()).map_err(BenchError::io("connect to the producer"))?;
        let runtime = runtime()?;
        let channel = runtime
            .block_on(async { connection::open(connection::adopt_unix(stream)?).await })
            .map_err(|failure| peer.blame(failure))?;
        peer.rest()?;
        Ok(Self { plan: job.plan, congestion: None, channel, runtime, peer: Some(peer) })
    }

    pub(super) fn in_memory(plan: &Plan) -> Result<Self, BenchError> {
        let runtime = runtime()?;
        let (near, far) = tokio::io::duplex(DUPLEX_BYTES);
        let sizes = sizes(plan);
        runtime.spawn(async move { service::serve(far, &sizes).await });
        let channel = runtime.block_on(connection::open(near))?;
        Ok(Self { plan: plan.clone(), congestion: None, channel, runtime, peer: None })
    }
}

impl System for Unary {
    fn name(&self) -> &'static str {
        NAME
    }

    fn variant(&self) -> String {
        if self.plan.bench == Bench::Fuse && self.plan.fuse == Fuse::Receive {
            return "one message".to_owned();
        }
        match self.plan.link {
            Link::Shm => "unary, Unix socket".to_owned(),
            Link::Tcp | Link::Loopback => "unary".to_owned(),
            Link::Verbs => "unary, TCP".to_owned(),
        }
    }

    fn congestion(&self) -> Option<&str> {
        self.congestion.as_deref()
    }

    fn resume(&mut self) -> Result<(), BenchError> {
        self.peer.as_mut().map_or(Ok(()), Peer::resume)
    }

    fn round(&mut self, length: Duration) -> Result<Sample, BenchError> {
        consumer::measure(&self.runtime, &self.channel, &self.plan, length).map_err(|failure| match &mut self.peer {
            Some(peer) => peer.blame(failure),
            None => failure,
        })
    }

    fn rest(&mut self) -> Result<(), BenchError> {
        self.peer.as_mut().map_or(Ok(()), Peer::rest)
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
        service::serve(adopt()?, &sizes(plan)).await?;
        pending().await
    })
}

/// Bytes of the tensors that are served.
fn sizes(plan: &Plan) -> Vec<usize> {
    if plan.step.is_empty() { vec![plan.size_bytes] } else { plan.step.clone() }
}

fn runtime() -> Result<Runtime, BenchError> {
    Builder::new_current_thread().enable_all().build().map_err(BenchError::io("start a runtime for gRPC"))
}

/// Says what gRPC's library said, with the causes that its errors hide.
fn failed<E: Error>(operation: &'static str) -> impl FnOnce(E) -> BenchError {
    move |error| {
        let mut reason = error.to_string();
        let mut cause = error.source();
        while let Some(error) = cause {
            reason.push_str(": ");
            reason.push_str(&error.to_string());
            cause = error.source();
        }
        BenchError::Grpc { operation, reason }
    }
}
