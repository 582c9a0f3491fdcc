//! Sealane's streams of bytes, in the loops of the bare link: two embedded engines over tcp or verbs, or two clients of one daemon over shm.
//!
//! Both ends are threads that block, as programs with sockets have them. Each shares its CPU with a shard or another thread, so none
//! of them spins but the daemon's shard.

use std::io::{self, Read, Write};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use ::sealane::{Stream, StreamOptions, Streams, Task};
use sealane_fusion::Engine;

use super::engine::{Measured, PS};
use crate::error::BenchError;
use crate::figures::Sample;
use crate::limits::STALL_LIMIT;
use crate::peer::PeerJob;
use crate::plan::{Bench, Plan, SystemName};
use crate::system::{Rounds, System};
use crate::systems::client;
use crate::systems::raw::{self, Channel, RawConsumer};

/// What the producer listens by.
const LISTENER: &str = "bench";

/// One end of a stream.
struct StreamChannel {
    stream: Stream,
    /// A read waits for something to come.
    waits: bool,
}

impl Channel for StreamChannel {
    fn send(&mut self, source: &[u8]) -> io::Result<usize> {
        self.stream.write(source)
    }

    fn receive(&mut self, target: &mut [u8]) -> io::Result<usize> {
        let received = if self.waits {
            self.stream.read(target)?
        } else {
            match self.stream.poll_read(target, &mut Context::from_waker(Waker::noop())) {
                Poll::Ready(received) => received.map_err(io::Error::other)?,
                Poll::Pending => return Ok(0),
            }
        };
        if received == 0 { Err(io::ErrorKind::UnexpectedEof.into()) } else { Ok(received) }
    }
}

/// The consumer's end, and the engine under it where that is in this process.
struct Consumer {
    raw: client::Consumer<RawConsumer<StreamChannel>>,
    measured: Option<Measured>,
}

impl Rounds for Consumer {
    fn round(&mut self, length: Duration) -> Result<Sample, BenchError> {
        self.raw.round(length)
    }

    fn resume(&mut self) {
        self.measured.iter_mut().for_each(Measured::resume);
    }

    fn rest(&mut self) {
        self.measured.iter_mut().for_each(Measured::rest);
    }
}

/// The plan of a job's engines: those of streams sleep, beside the threads that share their CPUs.
pub(super) fn rested(job: &PeerJob) -> Plan {
    Plan { polling: job.plan.polling && job.system != SystemName::Stream, ..job.plan.clone() }
}

fn options() -> StreamOptions {
    StreamOptions { timeout: Some(STALL_LIMIT), ..StreamOptions::default() }
}

pub(super) fn dial(plan: &Plan, task: &Task, engine: Option<Engine>) -> Result<System, BenchError> {
    let stream = Streams::of(task).connect(PS, LISTENER, options()).wait();
    let channel = StreamChannel { stream: stream.map_err(BenchError::sealane("dial a stream"))?, waits: true };
    let consumer = Consumer { raw: raw::over(plan, channel), measured: engine.map(Measured::new) };
    Ok(System::new(SystemName::Stream.as_str(), "blocking", consumer))
}

/// Answers the consumer's stream until it ends.
pub(super) fn serve_dialer(plan: &Plan, task: &Task) -> Result<(), BenchError> {
    let listener = Streams::of(task).listen(LISTENER, StreamOptions { timeout: None, ..options() });
    let stream =
        listener.and_then(|listener| listener.accept().wait()).map_err(BenchError::sealane("accept a stream"))?;
    // A producer that streams looks now and then whether it is to end.
    raw::serve_channel(plan, StreamChannel { stream, waits: plan.bench != Bench::Bandwidth })
}

/// Both ends, which are clients in this process.
pub(super) fn between(plan: &Plan, ps: Task, worker: &Task) -> Result<System, BenchError> {
    let served = plan.clone();
    std::thread::spawn(move || {
        if let Err(failure) = serve_dialer(&served, &ps) {
            eprintln!("the producer of the streams ended: {failure}");
        }
    });
    dial(plan, worker, None)
}
