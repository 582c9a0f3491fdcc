//! The host's daemon: a client's calls on the task's main thread, which also looks for the answers. Tensors leave from the
//! arena that is shared with the daemon and land in it. A window bounds the recvs in flight.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use sealane::{Attach, Receiving, Sending, Task};
use sealane_fusion::{Buffer, Error, RecvOutcome, Tensor};

use super::{Arrived, Mover, Offer, Wanted, With};
use crate::commands::demo::peers::PeerLink;
use crate::links::Links;

/// A task that is attached to a daemon.
pub(in crate::commands::demo) struct Attached {
    task: Task,
    window: usize,
    /// What was offered and may not have been released.
    offered: Vec<Sending>,
}

impl Attached {
    /// Attaches; `window` bounds the recvs in flight from each peer.
    pub(in crate::commands::demo) fn attach(how: Attach, window: usize) -> Result<Attached, Error> {
        Ok(Attached { task: how.attach()?, window, offered: Vec::new() })
    }
}

impl Mover for Attached {
    fn alloc(&self, bytes: usize) -> Result<Buffer, Error> {
        self.task.alloc(bytes)
    }

    fn offer(&mut self, step: i64, offers: Vec<With<Offer>>) {
        for With { peer, tensors } in offers {
            let tensors = tensors.into_iter().map(|offer| (offer.key, offer.tensor));
            self.offered.extend(self.task.send_all(&peer, step, tensors));
        }
    }

    fn settle(&mut self) -> Result<(), Error> {
        self.offered.drain(..).try_for_each(Sending::wait)
    }

    fn fetch(&mut self, step: i64, wanted: Vec<With<Wanted>>) -> Result<Vec<Arrived>, Error> {
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

    fn cpus(&self) -> Vec<usize> {
        Vec::new()
    }

    fn links(&self) -> Result<Links, Error> {
        Ok(Links::default())
    }

    fn peers(&self) -> Vec<PeerLink> {
        Vec::new()
    }

    fn finish(mut self: Box<Self>) -> Result<(), Error> {
        // A daemon that still waits for releases would drain until its time is over.
        self.settle()
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
