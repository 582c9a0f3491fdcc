//! The baseline `raw`: the bare operation for the same work, with nothing around it.
//!
//! Over TCP: two processes and one connection; both sides spin on non-blocking sockets, or block if polling is off. Over shm: see
//! `shm`. Over verbs: see `verbs`. Over loopback: two queues of bytes in one thread, so that every byte is copied in and out once
//! and nothing else happens.

mod channel;
mod many;
mod pieces;
mod producer;
pub(super) mod rows;
pub(super) mod shm;
pub(super) mod verbs;

use std::io;

use crate::error::BenchError;
use crate::limits::STALL_LIMIT;
use crate::peer::{PeerJob, PeerProgram, announce};
use crate::plan::{Bench, Fuse, Plan};
use crate::system::System;
use crate::systems::sockets;
use channel::{MemoryChannel, NAME, TcpChannel};
use producer::{RawConsumer, RawProducer};

/// Bytes of large tensors that are requested ahead, and their number: since all requests fit into a socket's buffer, the two sides
/// never both wait for the other to read.
const AHEAD_BYTES: usize = 8 << 20;
const AHEAD_MAX: usize = 256;

pub(super) use channel::Channel;
pub(super) use many::{ZEROS, fan_in, serve_many};

/// The bare operation over a channel. Large tensors are requested so far ahead that there is always something to send, as in a
/// one-way stream.
pub(super) fn system(
    name: &'static str,
    variant: impl Into<String>,
    plan: &Plan,
    channel: impl Channel + 'static,
) -> System {
    let ahead = if plan.bench == Bench::Bandwidth { (AHEAD_BYTES / plan.size_bytes).min(AHEAD_MAX) } else { 1 };
    let ahead = Plan { window: plan.window.max(ahead), ..plan.clone() };
    System::new(name, variant, &ahead, RawConsumer::new(channel, plan))
}

/// Raw sockets, the producer in a process of its own.
pub(super) fn over_tcp(job: &PeerJob, program: &PeerProgram) -> Result<System, BenchError> {
    let plan = &job.plan;
    System::with_peer(job, program, |peer| {
        let stream = sockets::connect(peer.address(), plan.congestion.as_deref())?;
        let congestion = sockets::congestion(&stream)?;
        let channel = TcpChannel::new(stream, plan.polling, Some(STALL_LIMIT))?;
        Ok(system(NAME, variant(plan), plan, channel).with_congestion(congestion))
    })
}

/// Queues of bytes, with both sides in the calling thread.
pub(super) fn in_memory(plan: &Plan) -> System {
    system(NAME, "memory", plan, MemoryChannel::new(RawProducer::new(plan)))
}

/// The producer's side over TCP: serves one consumer until that closes the connection.
pub(super) fn serve(job: &PeerJob) -> Result<(), BenchError> {
    let plan = &job.plan;
    let listener = sockets::listen(job.hosts.producer, plan.congestion.as_deref())?;
    announce(&[sockets::port(&listener)?])?;
    serve_channel(plan, TcpChannel::new(sockets::accept(&listener, job.hosts)?, plan.polling, None)?)
}

/// Like [`serve`], over any channel.
pub(super) fn serve_channel(plan: &Plan, mut channel: impl Channel) -> Result<(), BenchError> {
    let mut producer = RawProducer::new(plan);
    loop {
        match producer.turn(&mut channel) {
            Ok(()) => {}
            Err(gone) if is_end(&gone) => return Ok(()),
            Err(failure) => return Err(BenchError::io("serve the consumer")(failure)),
        }
    }
}

/// Whether the error means that the other side has gone, which ends a producer.
fn is_end(error: &io::Error) -> bool {
    use io::ErrorKind::{BrokenPipe, ConnectionReset, UnexpectedEof};
    matches!(error.kind(), UnexpectedEof | BrokenPipe | ConnectionReset)
}

fn variant(plan: &Plan) -> String {
    let waiting = if plan.polling { "polling" } else { "blocking" };
    match (plan.bench, plan.fuse) {
        (Bench::Rate, Fuse::Off) => format!("{waiting}, a write each"),
        (Bench::Rate, _) => format!("{waiting}, fused writes"),
        (Bench::Bandwidth, _) => format!("{waiting}, one stream"),
        (Bench::Fuse, _) => format!("{waiting}, one request"),
        _ => waiting.to_owned(),
    }
}
