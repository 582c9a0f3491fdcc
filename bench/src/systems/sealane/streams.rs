//! Sealane's streams of bytes, in the loops of the bare link: two embedded engines over tcp or verbs, or two clients of one daemon
//! over shm. Over shm they use a direct lane, over tcp a connection of their own unless that is encrypted.
//!
//! Both ends are threads that wait for one call, as in programs with sockets. They spin for a while if the plan says so and their
//! bytes bypass the shards; otherwise they share their CPUs with the shards, and block.

use std::io::{self, Read, Write};
use std::time::Instant;

use ::sealane::{Stream, StreamOptions, Streams, Task};
use sealane_fusion::{Code, Engine};
use sealane_runtime::Polling;

use super::engine::{Measured, PS};
use crate::error::BenchError;
use crate::limits::STALL_LIMIT;
use crate::peer::PeerJob;
use crate::plan::{Link, Plan, Security, SystemName};
use crate::system::System;
use crate::systems::raw::{self, Channel};

const LISTENER: &str = "bench";

/// One end of a stream, and the engine under it if that rests with it. A read waits for data.
struct StreamChannel {
    stream: Stream,
    measured: Option<Measured>,
}

impl Channel for StreamChannel {
    fn send(&mut self, source: &[u8]) -> io::Result<usize> {
        self.stream.write(source)
    }

    fn receive(&mut self, target: &mut [u8]) -> io::Result<usize> {
        match self.stream.read(target)? {
            0 => Err(io::ErrorKind::UnexpectedEof.into()),
            received => Ok(received),
        }
    }

    fn resume(&mut self) {
        self.measured.iter_mut().for_each(Measured::resume);
    }

    fn rest(&mut self) {
        self.measured.iter_mut().for_each(Measured::rest);
    }
}

/// The plan of a job's engines: those of streams and of direct lanes sleep, since they share their CPUs with threads.
pub(super) fn rested(job: &PeerJob) -> Plan {
    let sleeps = matches!(job.system, SystemName::Stream | SystemName::GrpcConnector | SystemName::Direct);
    Plan { polling: job.plan.polling && !sleeps, ..job.plan.clone() }
}

/// Whether bytes bypass the shards.
fn is_direct(plan: &Plan) -> bool {
    plan.link == Link::Shm || plan.link == Link::Tcp && plan.security != Security::Tls
}

fn options(plan: &Plan) -> StreamOptions {
    let polling = if plan.polling { Polling::Spin } else { Polling::Park };
    StreamOptions { timeout: Some(STALL_LIMIT), polling: Some(polling), ..StreamOptions::default() }
}

pub(super) fn dial(plan: &Plan, task: &Task, engine: Option<Engine>) -> Result<System, BenchError> {
    let stream = connect(plan, task)?;
    let variant = if is_direct(plan) && plan.polling { "spinning" } else { "blocking" };
    let channel = StreamChannel { stream, measured: engine.map(Measured::new) };
    Ok(raw::system(SystemName::Stream.as_str(), variant, plan, channel))
}

/// Answers the consumer's stream until it ends.
pub(super) fn serve_dialer(plan: &Plan, task: &Task) -> Result<(), BenchError> {
    raw::serve_channel(plan, StreamChannel { stream: accept(plan, task)?, measured: None })
}

/// A stream to the producer, which bypasses the daemon if possible.
pub(in super::super) fn connect(plan: &Plan, task: &Task) -> Result<Stream, BenchError> {
    let (streams, begun) = (Streams::of(task), Instant::now());
    let mut stream = loop {
        match streams.connect(PS, LISTENER, options(plan)).wait() {
            // The producer supports streams by now, and is about to listen.
            Err(error) if error.code() == Code::NotFound && begun.elapsed() < STALL_LIMIT => std::thread::yield_now(),
            stream => break stream.map_err(BenchError::sealane("dial a stream"))?,
        }
    };
    if is_direct(plan) {
        until_direct(&mut stream).map_err(BenchError::io("wait until the stream goes past the daemon"))?;
    }
    Ok(stream)
}

/// The producer's end of the stream.
pub(in super::super) fn accept(plan: &Plan, task: &Task) -> Result<Stream, BenchError> {
    let listener = Streams::of(task).listen(LISTENER, StreamOptions { timeout: None, ..options(plan) });
    let mut stream =
        listener.and_then(|listener| listener.accept().wait()).map_err(BenchError::sealane("accept a stream"))?;
    if is_direct(plan) {
        answer_until_direct(&mut stream).map_err(BenchError::io("wait until the stream goes past the daemon"))?;
    }
    Ok(stream)
}

/// Sends bytes back and forth until both directions are direct.
fn until_direct(stream: &mut Stream) -> io::Result<()> {
    let (mut answer, begun) = ([0], Instant::now());
    while !(stream.is_direct() && answer == [1]) {
        if begun.elapsed() > STALL_LIMIT {
            return Err(io::Error::new(
                io::ErrorKind::TimedOut,
                format!("the daemon has given none in {STALL_LIMIT:?}"),
            ));
        }
        stream.write_all(&[0])?;
        stream.read_exact(&mut answer)?;
    }
    stream.write_all(&[1])
}

/// The other end's part of [`until_direct`].
fn answer_until_direct(stream: &mut Stream) -> io::Result<()> {
    let mut asked = [0];
    loop {
        stream.read_exact(&mut asked)?;
        if asked == [1] {
            return Ok(());
        }
        let is_direct = stream.is_direct();
        stream.write_all(&[is_direct.into()])?;
    }
}
