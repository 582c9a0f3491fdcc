//! What moves a task's tensors: the host's daemon, or an engine in the task's process. Either way by a client's calls on the
//! task's main thread, which also looks for the answers. A window bounds the recvs in flight.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use sealane::{Attach, Engine, EngineSettings, Receiving, Sending, Task};
use sealane_fusion::{Buffer, Error, RecvOutcome, Tensor};

use super::peers::EngineLinks;
use crate::Failure;
use crate::figures::Shard;

/// A tensor for a peer.
pub(super) struct Offer {
    pub(super) key: Arc<str>,
    pub(super) tensor: Tensor,
}

/// A tensor from a peer, and the memory that is to take it.
pub(super) struct Wanted {
    pub(super) key: Arc<str>,
    pub(super) destination: Buffer,
}

/// What goes to one peer, or is to come from it.
pub(super) struct With<T> {
    pub(super) peer: String,
    pub(super) tensors: Vec<T>,
}

/// What came from a peer.
pub(super) struct Arrived {
    /// In the order in which they were wanted.
    pub(super) tensors: Vec<Tensor>,
    /// From the request to the arrival, in the order of arrival.
    pub(super) latencies: Vec<Duration>,
    /// From the first request to the last arrival.
    pub(super) elapsed: Duration,
}

/// Moves the tensors of one task.
pub(super) struct Mover {
    task: Task,
    /// The engine in this process; `None` if the task is attached to a daemon.
    engine: Option<Engine>,
    window: usize,
    /// What was offered and may not have been released.
    offered: Vec<Sending>,
}

impl Mover {
    /// Attaches to a daemon; `window` bounds the recvs in flight from each peer.
    pub(super) fn attached(how: Attach, window: usize) -> Result<Mover, Failure> {
        let task = how.attach().map_err(Failure::work)?;
        Ok(Mover { task, engine: None, window, offered: Vec::new() })
    }

    /// Starts an engine.
    pub(super) fn embedded(task: &str, settings: EngineSettings) -> Result<Mover, Failure> {
        let window = settings.session.window;
        let engine = Engine::start(settings).map_err(Failure::work)?;
        let task = engine.task(task).map_err(Failure::work)?.into();
        Ok(Mover { task, engine: Some(engine), window, offered: Vec::new() })
    }

    /// Memory for a tensor, from which and into which it moves without another copy in this process.
    pub(super) fn alloc(&self, bytes: usize) -> Result<Buffer, Error> {
        self.task.alloc(bytes)
    }

    /// Offers tensors to peers.
    pub(super) fn offer(&mut self, step: i64, offers: Vec<With<Offer>>) {
        for With { peer, tensors } in offers {
            let tensors = tensors.into_iter().map(|offer| (offer.key, offer.tensor));
            self.offered.extend(self.task.send_all(&peer, step, tensors));
        }
    }

    /// Waits until the peers have all that was offered: then its memory is free to be used again.
    pub(super) fn settle(&mut self) -> Result<(), Error> {
        self.offered.drain(..).try_for_each(Sending::wait)
    }

    /// Receives tensors from all peers at once into their memory, a window of requests to each.
    pub(super) fn fetch(&mut self, step: i64, wanted: Vec<With<Wanted>>) -> Result<Vec<Arrived>, Error> {
        let mut flows: Vec<Flow> = wanted.into_iter().map(Flow::new).collect();
        let mut flying = VecDeque::new();
        // In turn, so that none waits for all requests to another.
        for _ in 0..self.window {
            for (number, flow) in flows.iter_mut().enumerate() {
                flying.extend(flow.ask_next(&self.task, step, number));
            }
        }
        // Answers come in the order of the requests, or nearly so.
        while let Some(Flight { flow: number, index, asked, receiving }) = flying.pop_front() {
            let flow = &mut flows[number];
            flow.landed(index, asked, receiving.wait())?;
            flying.extend(flow.ask_next(&self.task, step, number));
        }
        Ok(flows.into_iter().map(Flow::finish).collect())
    }

    /// The CPUs that shards in this process are pinned to.
    pub(super) fn cpus(&self) -> Vec<usize> {
        self.engine.iter().flat_map(Engine::cpus).flatten().collect()
    }

    /// The links of an engine in this process to others.
    pub(super) fn links(&self) -> EngineLinks {
        let shards = self.engine.iter().flat_map(Engine::figures);
        EngineLinks::of(self.task.name(), shards.map(Shard::from).collect())
    }

    /// Ends it in good order.
    pub(super) fn finish(mut self) -> Result<(), Error> {
        // A daemon that still waits for releases would drain until its time is over.
        self.settle()?;
        let stopped = self.engine.map_or(Ok(()), |engine| engine.stop());
        stopped.map_err(|error| Error::unavailable("this engine", error.to_string()))
    }
}

/// A request that was made.
struct Flight {
    flow: usize,
    index: usize,
    asked: Instant,
    receiving: Receiving,
}

/// What comes from one peer.
struct Flow {
    peer: String,
    waiting: std::iter::Enumerate<std::vec::IntoIter<Wanted>>,
    tensors: Vec<Option<Tensor>>,
    latencies: Vec<Duration>,
    start: Instant,
    last_arrival: Instant,
}

impl Flow {
    fn new(With { peer, tensors: wanted }: With<Wanted>) -> Flow {
        let now = Instant::now();
        Flow {
            peer,
            tensors: wanted.iter().map(|_| None).collect(),
            latencies: Vec::with_capacity(wanted.len()),
            waiting: wanted.into_iter().enumerate(),
            start: now,
            last_arrival: now,
        }
    }

    fn ask_next(&mut self, task: &Task, step: i64, flow: usize) -> Option<Flight> {
        let (index, Wanted { key, destination }) = self.waiting.next()?;
        let asked = Instant::now();
        Some(Flight { flow, index, asked, receiving: task.recv_into(&self.peer, step, &key, destination) })
    }

    fn landed(&mut self, index: usize, asked: Instant, outcome: RecvOutcome) -> Result<(), Error> {
        self.tensors[index] = Some(outcome?);
        self.last_arrival = Instant::now();
        self.latencies.push(self.last_arrival - asked);
        Ok(())
    }

    fn finish(self) -> Arrived {
        let tensors = self.tensors.into_iter().map(|tensor| tensor.expect("every recv has ended")).collect();
        Arrived { tensors, latencies: self.latencies, elapsed: self.last_arrival - self.start }
    }
}
