//! Sealane's streams of bytes, in the loops of the bare link: two embedded engines over tcp or verbs, or two clients of one daemon over shm.
//!
//! Both ends are threads that block, as programs with sockets have them. Each shares its CPU with a shard or another thread, so none
//! of them spins but the daemon's shard.

use std::io::{self, Read, Write};
use std::time::Instant;

use ::sealane::{Stream, StreamOptions, Streams, Task};
use sealane_fusion::{Code, Engine};

use super::engine::{Measured, PS};
use crate::error::BenchError;
use crate::limits::STALL_LIMIT;
use crate::peer::PeerJob;
use crate::plan::{Plan, SystemName};
use crate::system::System;
use crate::systems::raw::{self, Channel};

/// What the producer listens by.
const LISTENER: &str = "bench";

/// One end of a stream, and the engine under it where that rests with it. A read waits for something to come.
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

/// The plan of a job's engines: those of streams and of direct lanes sleep, beside the threads that share their CPUs.
pub(super) fn rested(job: &PeerJob) -> Plan {
    let sleeps = matches!(job.system, SystemName::Stream | SystemName::Direct);
    Plan { polling: job.plan.polling && !sleeps, ..job.plan.clone() }
}

fn options() -> StreamOptions {
    StreamOptions { timeout: Some(STALL_LIMIT), ..StreamOptions::default() }
}

pub(super) fn dial(plan: &Plan, task: &Task, engine: Option<Engine>) -> Result<System, BenchError> {
    let (streams, begun) = (Streams::of(task), Instant::now());
    let stream = loop {
        match streams.connect(PS, LISTENER, options()).wait() {
            // The producer has streams by now, and is about to listen.
            Err(error) if error.code() == Code::NotFound && begun.elapsed() < STALL_LIMIT => std::thread::yield_now(),
            stream => break stream.map_err(BenchError::sealane("dial a stream"))?,
        }
    };
    let channel = StreamChannel { stream, measured: engine.map(Measured::new) };
    Ok(raw::system(SystemName::Stream.as_str(), "blocking", plan, channel))
}

/// Answers the consumer's stream until it ends.
pub(super) fn serve_dialer(plan: &Plan, task: &Task) -> Result<(), BenchError> {
    let listener = Streams::of(task).listen(LISTENER, StreamOptions { timeout: None, ..options() });
    let stream =
        listener.and_then(|listener| listener.accept().wait()).map_err(BenchError::sealane("accept a stream"))?;
    raw::serve_channel(plan, StreamChannel { stream, measured: None })
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
