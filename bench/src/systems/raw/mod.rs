//! The baseline `raw`: the bare operation on the same work, with nothing around it.
//!
//! Over TCP: two processes and one connection; both sides spin on non-blocking sockets, or block
//! when polling is off. Over shm: see `shared`. Over verbs: see `verbs`. Over loopback: two rings of bytes in one thread, so that every byte is
//! copied in and out once and nothing else happens.

mod channel;
mod consumer;
pub(super) mod fanin;
mod pieces;
mod producer;
pub(super) mod rows;
mod shared;
mod verbs;

use std::io;
use std::time::Duration;

use crate::error::BenchError;
use crate::limits::STALL_LIMIT;
use crate::peer::{PeerJob, PeerProgram, announce};
use crate::plan::{Bench, Fuse, Plan};
use crate::sample::Sample;
use crate::system::{Rounds, System};
use crate::systems::{self, sockets};
use channel::{MemoryChannel, NAME, TcpChannel, explained};
use pieces::Pieces;

pub(super) use channel::Channel;
pub(super) use fanin::{Zeros, serve as serve_many};
pub(super) use producer::RawProducer;
pub(super) use shared::{serve as serve_shm, start as over_shm};
pub(super) use verbs::start as over_verbs;

/// The bare operation over a channel.
struct Raw<C> {
    plan: Plan,
    channel: C,
}

/// Raw sockets, the producer in a process of its own.
pub(super) fn over_tcp(job: &PeerJob, program: &PeerProgram) -> Result<System, BenchError> {
    let plan = job.plan.clone();
    System::with_peer(job, program, |peer| {
        let stream = sockets::connect(peer.ready().port, plan.congestion.as_deref())?;
        let congestion = sockets::congestion(&stream)?;
        let channel = TcpChannel::new(stream, plan.polling, Some(STALL_LIMIT))?;
        Ok(System::new(NAME, variant(&plan), Raw { plan, channel }).with_congestion(congestion))
    })
}

/// Rings of bytes, both sides in the calling thread.
pub(super) fn in_memory(plan: &Plan) -> System {
    System::new(NAME, "memory", Raw { plan: plan.clone(), channel: MemoryChannel::new(RawProducer::new(plan)) })
}

impl<C: Channel> Rounds for Raw<C> {
    fn round(&mut self, length: Duration) -> Result<Sample, BenchError> {
        measure(&mut self.channel, &self.plan, length)
    }
}

/// The producer's side over TCP: serves one consumer until that closes the connection.
pub(super) fn serve(plan: &Plan) -> Result<(), BenchError> {
    let listener = sockets::listen(plan.congestion.as_deref())?;
    announce(sockets::port(&listener)?)?;
    let mut channel = TcpChannel::new(sockets::accept(&listener)?, plan.polling, None)?;
    let mut producer = RawProducer::new(plan);
    loop {
        match producer.turn(&mut channel) {
            Ok(_) => {}
            Err(gone) if is_end(&gone) => return Ok(()),
            Err(failure) => return Err(BenchError::io("serve the consumer")(failure)),
        }
    }
}

fn is_end(error: &io::Error) -> bool {
    use io::ErrorKind::{BrokenPipe, ConnectionReset, UnexpectedEof};
    matches!(error.kind(), UnexpectedEof | BrokenPipe | ConnectionReset)
}

/// A round of what the plan measures, over any channel.
pub(super) fn measure(channel: &mut impl Channel, plan: &Plan, length: Duration) -> Result<Sample, BenchError> {
    if plan.bench == Bench::Fuse {
        let mut pieces = Pieces::new(&plan.step, 0);
        let sample = consumer::steps(channel, plan, &mut pieces, length).map_err(explained)?;
        return systems::check_arrival(NAME, pieces.tensors()).map(|()| sample);
    }
    let sample = match plan.bench {
        Bench::Latency => consumer::round_trips(channel, plan, length),
        Bench::Rate => consumer::rate(channel, plan, length),
        Bench::Bandwidth => consumer::bandwidth(channel, plan, length),
        none => none.is_measured_elsewhere(),
    };
    sample.map_err(explained)
}

fn variant(plan: &Plan) -> String {
    let waiting = if plan.polling { "polling" } else { "blocking" };
    match (plan.bench, plan.fuse) {
        (Bench::Latency, _) => waiting.to_owned(),
        (Bench::Rate, Fuse::Off) => format!("{waiting}, a write each"),
        (Bench::Rate, Fuse::Turn | Fuse::Receive | Fuse::Plan | Fuse::Push) => format!("{waiting}, fused writes"),
        (Bench::Bandwidth, _) => format!("{waiting}, one stream"),
        (Bench::Fuse, _) => format!("{waiting}, one request"),
        (none, _) => none.is_measured_elsewhere(),
    }
}
