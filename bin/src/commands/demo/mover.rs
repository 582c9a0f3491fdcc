//! What moves a task's tensors: the host's daemon, or an engine in the task's process. Either way by a client's calls on the
//! task's main thread, which also looks for the answers. A window bounds the recvs in flight.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use sealane::{Attach, Engine, EngineSettings, Sending, Task};
use sealane_fusion::{Buffer, Error, Tensor};

use crate::Failure;
use crate::figures::Shard;

/// A tensor for a peer, under its key.
pub(super) type Offer = (Arc<str>, Tensor);
/// The key of a tensor from a peer, and the memory that is to take it.
pub(super) type Wanted = (Arc<str>, Buffer);

/// What goes to one peer, or is to come from it.
pub(super) struct With<T> {
    pub(super) peer: String,
    pub(super) tensors: Vec<T>,
}

/// What came from a peer.
#[derive(Default)]
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
            self.offered.extend(self.task.send_all(&peer, step, tensors));
        }
    }

    /// Waits until the peers have all that was offered: then its memory is free to be used again.
    pub(super) fn settle(&mut self) -> Result<(), Error> {
        self.offered.drain(..).try_for_each(Sending::wait)
    }

    /// Receives tensors from all peers at once into their memory, a window of requests to each.
    pub(super) fn fetch(&mut self, step: i64, wanted: Vec<With<Wanted>>) -> Result<Vec<Arrived>, Error> {
        let (start, task) = (Instant::now(), &self.task);
        let mut waiting: Vec<_> = wanted.into_iter().map(|with| (with.peer, with.tensors.into_iter())).collect();
        let peers = waiting.len();
        let mut arrived: Vec<Arrived> = waiting.iter().map(|_| Arrived::default()).collect();
        let mut ask_next = |number: usize| {
            let (peer, wanted): &mut (String, std::vec::IntoIter<Wanted>) = &mut waiting[number];
            let (key, destination) = wanted.next()?;
            Some((number, Instant::now(), task.recv_into(peer, step, &key, destination)))
        };
        // In turn, so that none waits for all requests to another.
        let mut in_flight: VecDeque<_> = (0..self.window).flat_map(|_| 0..peers).filter_map(&mut ask_next).collect();
        // Answers come in the order of the requests, or nearly so.
        while let Some((number, asked, receiving)) = in_flight.pop_front() {
            let from = &mut arrived[number];
            from.tensors.push(receiving.wait()?);
            from.latencies.push(asked.elapsed());
            from.elapsed = start.elapsed();
            in_flight.extend(ask_next(number));
        }
        Ok(arrived)
    }

    /// What the shards of an engine in this process show.
    pub(super) fn shards(&self) -> Vec<Shard> {
        self.engine.iter().flat_map(Engine::figures).map(Shard::from).collect()
    }

    /// Ends it in good order.
    pub(super) fn finish(mut self) -> Result<(), Error> {
        // A daemon that still waits for releases would drain until its time is over.
        self.settle()?;
        let stopped = self.engine.map_or(Ok(()), |engine| engine.stop());
        stopped.map_err(|error| Error::unavailable("this engine", error.to_string()))
    }
}
