//! Sealane's streams of bytes, in the loops of the bare link: two embedded engines over tcp or verbs, or two clients of one daemon over shm.
//!
//! Both ends are threads that block, as programs with sockets have them. Each shares its CPU with a shard or another thread, so none
//! of them spins but the daemon's shard.

use std::io::{self, Read, Write};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use ::sealane::{Stream, StreamOptions, Streams, Task};
use sealane_fusion::Engine;

use super::attached;
use super::engine::{self, Links, PATIENCE, PS, Resting, WORKER, map};
use crate::error::BenchError;
use crate::limits::STALL_LIMIT;
use crate::peer::{PeerJob, PeerProgram, announce};
use crate::plan::{Bench, Plan};
use crate::sample::Sample;
use crate::system::{Rounds, System};
use crate::systems::raw::{Channel, RawProducer, measure};
use crate::systems::sockets::Meeting;

const NAME: &str = "stream";

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

    fn idle(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The consumer's end, and the engine under it where that is in this process.
struct Consumer {
    plan: Plan,
    channel: StreamChannel,
    engine: Option<Engine>,
    resting: Resting,
}

impl Rounds for Consumer {
    fn round(&mut self, length: Duration) -> Result<Sample, BenchError> {
        measure(&mut self.channel, &self.plan, length)
    }

    fn resume(&mut self) {
        self.resting.end();
    }

    fn rest(&mut self) {
        if let Some(engine) = &self.engine {
            self.resting.begin(engine);
        }
    }
}

impl Drop for Consumer {
    fn drop(&mut self) {
        self.resting.end();
        if let Some(Err(error)) = self.engine.as_ref().map(Engine::stop) {
            eprintln!("the measured engine did not stop cleanly: {error}");
        }
    }
}

fn sleeping(plan: &Plan) -> Plan {
    Plan { polling: false, ..plan.clone() }
}

fn options() -> StreamOptions {
    StreamOptions { timeout: Some(STALL_LIMIT), ..StreamOptions::default() }
}

fn dial(plan: &Plan, task: &Task, engine: Option<Engine>) -> Result<System, BenchError> {
    let stream = Streams::of(task).connect(PS, LISTENER, options()).wait();
    let channel = StreamChannel { stream: stream.map_err(BenchError::sealane("dial a stream"))?, waits: true };
    let mut consumer = Consumer { plan: plan.clone(), channel, engine, resting: Resting::default() };
    consumer.rest();
    Ok(System::new(NAME, "blocking", consumer))
}

/// Answers the consumer's stream until it ends.
fn serve_dialer(plan: &Plan, task: &Task) -> Result<(), BenchError> {
    let listener = Streams::of(task).listen(LISTENER, StreamOptions { timeout: None, ..options() });
    let stream =
        listener.and_then(|listener| listener.accept().wait()).map_err(BenchError::sealane("accept a stream"))?;
    // A producer that streams looks now and then whether it is to end.
    let mut channel = StreamChannel { stream, waits: plan.bench != Bench::Bandwidth };
    let mut producer = RawProducer::new(plan);
    loop {
        if let Err(failure) = producer.turn(&mut channel) {
            return match failure.kind() {
                io::ErrorKind::UnexpectedEof | io::ErrorKind::ConnectionReset => Ok(()),
                _ => Err(BenchError::io("serve the consumer")(failure)),
            };
        }
    }
}

/// Two engines, the producer in a process of its own.
pub(in crate::systems) fn between_processes(job: &PeerJob, program: &PeerProgram) -> Result<System, BenchError> {
    let (listener, port) = engine::listener(&job.plan)?;
    let job = PeerJob { consumer_port: Some(port), ..job.clone() };
    System::with_peer(&job, program, |peer| {
        let (verbs, _) = engine::verbs_settings(&job.plan).unzip();
        let links = Links { listener, verbs, keys: None };
        let plan = sleeping(&job.plan);
        let engine = engine::start_pair(&plan, map(peer.ready().port, port), &[WORKER], links, PATIENCE)?;
        let task = Task::from(engine.task(WORKER).map_err(BenchError::sealane("start"))?);
        dial(&job.plan, &task, Some(engine))
    })
}

/// The producer's process.
pub(in crate::systems) fn serve(job: &PeerJob) -> Result<(), BenchError> {
    let (listener, port) = engine::listener(&job.plan)?;
    let (verbs, _) = engine::verbs_settings(&job.plan).unzip();
    let links = Links { listener, verbs, keys: None };
    let map = map(port, job.consumer_port.unwrap_or(port));
    let engine = engine::start_pair(&sleeping(&job.plan), map, &[PS], links, PATIENCE)?;
    let task = Task::from(engine.task(PS).map_err(BenchError::sealane("start"))?);
    announce(port)?;
    serve_dialer(&job.plan, &task)
}

/// Two clients in this process, of an engine in another.
pub(in crate::systems) fn between_clients(job: &PeerJob, program: &PeerProgram) -> Result<System, BenchError> {
    let meeting = Meeting::arrange()?;
    let job = PeerJob { meeting_place: Some(meeting.socket()), ..job.clone() };
    let plan = sleeping(&job.plan);
    System::with_peer(&job, program, move |_| {
        let attach = |task| attached::attach(&meeting, &plan, task).map_err(BenchError::sealane("attach"));
        let (ps, worker) = (attach(PS)?, attach(WORKER)?);
        let served = plan.clone();
        std::thread::spawn(move || {
            if let Err(failure) = serve_dialer(&served, &ps) {
                eprintln!("the producer of the streams ended: {failure}");
            }
        });
        dial(&plan, &worker, None)
    })
}
