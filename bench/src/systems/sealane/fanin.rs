//! Many workers that pull from one ps, whose engine has a process to itself. What a worker costs the engine is measured before
//! the first one asks.
//!
//! The workers are in one thread: for each a session, as an engine has one, over a socket of its own, without the engine around
//! it. All sockets are in one epoll set, which is polled and never waited for.
//!
//! The ps is on a shard of its engine: each worker finds its next tensors deposited, as many as its window and as many again,
//! from the moment at which it has asked for the first. One task a worker, which is woken once a window, so that what is
//! measured is the engine. For workers with plans a window's tensors are published, once for all. Bounded by the plan's peers
//! and window.

use std::net::TcpStream;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use nix::sys::epoll::{EpollFlags, EpollTimeout};
use sealane_fusion::{Buffer, Engine, Error, Keys, LocalPair, Tray};
use sealane_transport::session::{Ask, Event, PullAsk};
use sealane_transport::{Handle, SessionLimits};

use super::engine::{NAME, PATIENCE, PS, key_of, on_shard};
use super::peers::{self, task};
use super::producer::{Parameter, deposit_ahead, publish, told};
use super::wire::{THE_ONE, Wire, broken};
use crate::error::BenchError;
use crate::limits::FILL;
use crate::peer::{PeerJob, PeerProgram};
use crate::plan::{Fuse, Plan};
use crate::process::{self, Growth};
use crate::system::System;
use crate::systems::crowd::Crowd;
use crate::systems::fanin::{self, Askers, drain};
use crate::systems::sockets::Poller;

/// An engine whose peers all want small tensors.
pub(in crate::systems) fn start(job: &PeerJob, program: &PeerProgram) -> Result<System, BenchError> {
    let plan = &job.plan;
    process::allow_open_files("--peers", plan.peers, 1)?;
    System::with_peer(job, program, |peer| {
        let growth = Growth::of(peer.process_id())?;
        let (crowd, _) =
            Crowd::call(NAME, peers::Workers::Silent, 0, plan.peers, peer.ready().port, plan.congestion.as_deref())?;
        let congestion = crowd.congestion()?;
        let resident_bytes_each = growth.bytes_each(plan.peers)?;
        let mut workers = Workers::new(crowd.into_sockets(), plan)?;
        workers.begin()?;
        Ok(fanin::system(NAME, plan.peers, congestion, Some(resident_bytes_each), workers))
    })
}

/// The key of the tensor that each worker asks for first, so that the ps begins to serve it.
const BEGIN: &str = "begin";

/// Publishes what all pull, or starts a task on the shard for each worker; they run until the engine stops.
pub(in crate::systems::sealane) fn start_ps(engine: &Engine, plan: &Plan) -> Result<(), BenchError> {
    let (peers, lanes, size_bytes, fuse) = (plan.peers, plan.window, plan.size_bytes, plan.fuse);
    on_shard(engine, "start its producers", async move |shard| {
        // What all workers pull, under a key for each request that one may have in flight.
        let bytes = Bytes::from(vec![FILL; size_bytes]);
        let parameters = (0..lanes).map(|lane| Parameter::kept(lane, bytes.clone()));
        let parameters: Rc<[Parameter]> = parameters.collect::<Result<_, Error>>()?;
        let ps = shard.task(PS)?;
        if fuse == Fuse::Plan {
            return publish(&ps, 0, &parameters);
        }
        for worker in 0..peers {
            let serving = serve_worker(ps.pair(&task(worker))?, parameters.clone());
            drop(shard.shard().spawn(told(format!("worker {worker} is no longer served"), serving)));
        }
        Ok(())
    })
}

/// Serves one worker, once it has begun: until then it costs what an idle peer costs.
async fn serve_worker(pair: LocalPair, parameters: Rc<[Parameter]>) -> Result<(), Error> {
    pair.send(0, BEGIN, parameters[0].tensor()?).await?;
    deposit_ahead(&pair, &parameters, async |_| {}).await
}

/// Bytes read from one socket at a time, so that all workers get their turns.
const READ_BYTES: usize = 64 << 10;

/// The ps among the tasks of its engine's greeting.
const THE_PS: u32 = 0;

struct Worker {
    wire: Wire,
    /// The next step of each of its requests.
    steps: Vec<i64>,
    /// Its plan, where it has one.
    set: Option<Handle>,
    arrived: u64,
    is_blocked: bool,
}

pub(super) struct Workers {
    poller: Poller,
    workers: Vec<Worker>,
    keys: Vec<String>,
    size_bytes: usize,
    in_flight: usize,
    /// Workers whose socket took less than there was.
    blocked: Vec<usize>,
}

impl Workers {
    /// Takes over sockets that have greeted, each with what was read behind its welcome.
    pub(super) fn new(sockets: impl Iterator<Item = (TcpStream, Vec<u8>)>, plan: &Plan) -> Result<Self, BenchError> {
        let poller = Poller::new()?;
        let limits = SessionLimits { window: plan.window, ..SessionLimits::default() };
        let keys = match plan.fuse {
            Fuse::Plan => Some(Arc::new(Keys::new((0..plan.window).map(key_of)).map_err(broken)?)),
            _ => None,
        };
        let mut workers = Vec::new();
        for (place, socket) in sockets.enumerate() {
            let mut wire = Wire::new(socket, 1, &limits);
            poller.watch(wire.socket(), place, EpollFlags::EPOLLIN)?;
            let named = keys.as_ref().map(|keys| wire.session.add_set(THE_ONE, THE_PS, keys.clone()));
            let set = named.transpose().map_err(broken)?;
            workers.push(Worker { wire, steps: vec![0; plan.window], set, arrived: 0, is_blocked: false });
        }
        let keys = (0..plan.window).map(key_of).collect();
        Ok(Self { poller, workers, keys, size_bytes: plan.size_bytes, in_flight: 0, blocked: Vec::new() })
    }

    /// Lets every worker ask for the tensor that makes the ps serve it; one that has a plan needs not.
    pub(super) fn begin(&mut self) -> Result<(), BenchError> {
        let now = Instant::now();
        for place in 0..self.workers.len() {
            if self.workers[place].set.is_some() {
                continue;
            }
            let buffer = Buffer::from_vec(vec![0; self.size_bytes]);
            self.ask(place, now, 0, 0, BEGIN, buffer)?;
            self.send(place, now)?;
        }
        drain(NAME, self, now)
    }

    /// Reads once; how many tensors arrived.
    fn hear(&mut self, place: usize, now: Instant, asking: bool) -> Result<u64, BenchError> {
        let worker = &mut self.workers[place];
        let before = worker.arrived;
        worker.wire.receive(now, READ_BYTES)?;
        while let Some(event) = self.workers[place].wire.session.poll_event() {
            match event {
                Event::Answered { waiter: lane, answer } => {
                    let arrived = answer.map_err(|unanswered| broken(unanswered.error))?;
                    self.arrived(place, 1, arrived.buffer.len())?;
                    if asking {
                        self.ask_next(place, now, lane, arrived.buffer)?;
                    }
                }
                Event::Pulled { waiter: last, tray } => {
                    let tensor = tray.get(last).map_err(broken)?;
                    self.arrived(place, tray.len(), tensor.bytes().len())?;
                    if asking {
                        self.pull(place, now, tray)?;
                    }
                }
                other => return Err(broken(format!("it said {other:?} to a worker that only asks"))),
            }
        }
        self.send(place, now)?;
        Ok(self.workers[place].arrived - before)
    }

    /// Notes that tensors came, of `received` bytes each.
    fn arrived(&mut self, place: usize, count: usize, received: usize) -> Result<(), BenchError> {
        self.in_flight -= count;
        self.workers[place].arrived += count as u64;
        let expected = self.size_bytes;
        if received == expected { Ok(()) } else { Err(BenchError::WrongReply { system: NAME, expected, received }) }
    }

    /// Pulls a worker's plan; what comes last is what is looked at.
    fn pull(&mut self, place: usize, now: Instant, tray: Tray) -> Result<(), BenchError> {
        let Worker { wire, set, .. } = &mut self.workers[place];
        let (waiter, min_version, deadline) = (tray.len() - 1, 0, now + PATIENCE);
        self.in_flight += tray.len();
        let set = set.expect("the workers of plans have one");
        let pulled = wire.session.pull(now, PullAsk { set, min_version, deadline, tray, waiter });
        pulled.map(drop).map_err(|(error, ..)| broken(error))
    }

    fn ask_next(&mut self, place: usize, now: Instant, lane: usize, buffer: Buffer) -> Result<(), BenchError> {
        let step = self.workers[place].steps[lane];
        self.workers[place].steps[lane] += 1;
        let key = std::mem::take(&mut self.keys[lane]);
        let asked = self.ask(place, now, lane, step, &key, buffer);
        self.keys[lane] = key;
        asked
    }

    fn ask(
        &mut self,
        place: usize,
        now: Instant,
        lane: usize,
        step: i64,
        key: &str,
        buffer: Buffer,
    ) -> Result<(), BenchError> {
        let ask = Ask {
            consumer: THE_ONE,
            producer: THE_PS,
            step,
            key,
            deadline: now + PATIENCE,
            destination: Some(buffer),
            waiter: lane,
        };
        self.in_flight += 1;
        let asked = self.workers[place].wire.session.request(now, ask);
        asked.map(drop).map_err(|(unanswered, _)| broken(unanswered.error))
    }

    /// Writes what a worker has to say, as far as its socket takes it.
    fn send(&mut self, place: usize, now: Instant) -> Result<(), BenchError> {
        let Worker { wire, is_blocked, .. } = &mut self.workers[place];
        if !*is_blocked && !wire.transmit(now, false)? {
            *is_blocked = true;
            self.blocked.push(place);
        }
        Ok(())
    }
}

impl Askers for Workers {
    fn ask_all(&mut self, now: Instant) -> Result<(), BenchError> {
        for place in 0..self.workers.len() {
            let memory = self.keys.iter().map(|_| Buffer::from_vec(vec![0; self.size_bytes])).enumerate();
            if self.workers[place].set.is_some() {
                let mut tray = Tray::new(self.keys.len());
                memory.for_each(|(lane, buffer)| tray.set_destination(lane, buffer));
                self.pull(place, now, tray)?;
            } else {
                let memory: Vec<_> = memory.collect();
                memory.into_iter().try_for_each(|(lane, buffer)| self.ask_next(place, now, lane, buffer))?;
            }
            self.send(place, now)?;
        }
        Ok(())
    }

    fn turn(&mut self, now: Instant, asking: bool) -> Result<u64, BenchError> {
        let count = self.poller.look(EpollTimeout::ZERO)?;
        for place in std::mem::take(&mut self.blocked) {
            self.workers[place].is_blocked = false;
            self.send(place, now)?;
        }
        let mut arrived = 0;
        for number in 0..count {
            arrived += self.hear(self.poller.reported(number).0, now, asking)?;
        }
        Ok(arrived)
    }

    fn is_quiet(&self) -> bool {
        self.in_flight == 0 && self.blocked.is_empty()
    }

    fn take_arrived(&mut self) -> Vec<u64> {
        self.workers.iter_mut().map(|worker| std::mem::take(&mut worker.arrived)).collect()
    }
}
