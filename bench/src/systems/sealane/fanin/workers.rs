//! Many workers in one thread: for each a session, as an engine has one, over a socket of its own, without the engine
//! around it. All sockets are in one epoll set, which is polled and never waited for. Bounded by the plan's peers and
//! window.

use std::convert::Infallible;
use std::net::TcpStream;
use std::sync::Arc;
use std::time::Instant;

use nix::errno::Errno;
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use sealane_fusion::{Buffer, Error, Keys, Tray};
use sealane_transport::session::{Ask, Event, PullAsk, ReceiveMemory, Roster, Session};
use sealane_transport::tcp::TcpLink;
use sealane_transport::{Handle, Link, SessionLimits};

use super::super::consumer::key_of;
use super::super::{NAME, PATIENCE};
use super::BEGIN;
use crate::error::BenchError;
use crate::plan::{Fuse, Plan};
use crate::systems::fanin::{Askers, drain};

/// Sockets that one look at the epoll set reports.
const EVENTS: usize = 512;

/// Bytes read from one socket at a time, so that all workers get their turns.
const READ_BYTES: usize = 64 << 10;

/// What the greetings agree on for a session's first link.
const FIRST_EPOCH: u32 = 1;

/// The ps among the tasks of its engine's greeting, and a worker among those of its own.
const THE_ONE: u16 = 0;

/// Every tensor goes to memory that came with its request.
struct NoMemory;

impl ReceiveMemory for NoMemory {
    fn allocate(&self, _consumer: u16, len: usize) -> Result<Buffer, Error> {
        Err(Error::InvalidArgument { reason: format!("{len} bytes came without a request's memory").into() })
    }
}

struct Worker {
    session: Session<usize, Infallible>,
    link: TcpLink,
    /// The next step of each of its requests.
    steps: Vec<i64>,
    /// Its plan, where it has one.
    set: Option<Handle>,
    arrived: u64,
    is_blocked: bool,
}

pub(in crate::systems) struct Workers {
    epoll: Epoll,
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
        let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC).map_err(failed("make an epoll set"))?;
        let limits = SessionLimits { window: plan.window, ..SessionLimits::default() };
        let now = Instant::now();
        let keys = match plan.fuse {
            Fuse::Plan => Some(Arc::new(Keys::new((0..plan.window).map(key_of)).map_err(broken)?)),
            _ => None,
        };
        let mut workers = Vec::new();
        for (place, (socket, read_ahead)) in sockets.enumerate() {
            epoll
                .add(&socket, EpollEvent::new(EpollFlags::EPOLLIN, place as u64))
                .map_err(failed("watch a worker's socket"))?;
            let mut session = Session::new(NAME, 1, limits.clone());
            session.attach(now, FIRST_EPOCH, Roster { numbers: vec![u32::from(THE_ONE)] }, limits.tensor_bytes_max);
            let link = TcpLink::new(socket.into(), &read_ahead);
            let named = keys.as_ref().map(|keys| session.add_set(THE_ONE, u32::from(THE_ONE), keys.clone()));
            let set = named.transpose().map_err(broken)?;
            workers.push(Worker { session, link, steps: vec![0; plan.window], set, arrived: 0, is_blocked: false });
        }
        let keys = (0..plan.window).map(key_of).collect();
        Ok(Self { epoll, workers, keys, size_bytes: plan.size_bytes, in_flight: 0, blocked: Vec::new() })
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
        let mut inbound = worker.session.inbound(now, &NoMemory);
        worker.link.receive(&mut inbound, READ_BYTES).map_err(broken)?;
        worker.session.heard(now);
        while let Some(event) = self.workers[place].session.poll_event() {
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
        let Worker { session, set, .. } = &mut self.workers[place];
        let (waiter, min_version, deadline) = (tray.len() - 1, 0, now + PATIENCE);
        self.in_flight += tray.len();
        let set = set.expect("the workers of plans have one");
        let pulled = session.pull(now, PullAsk { set, min_version, deadline, tray, waiter });
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
            producer: u32::from(THE_ONE),
            step,
            key,
            deadline: now + PATIENCE,
            destination: Some(buffer),
            waiter: lane,
        };
        self.in_flight += 1;
        let asked = self.workers[place].session.request(now, ask);
        asked.map(drop).map_err(|(unanswered, _)| broken(unanswered.error))
    }

    /// Writes what a worker has to say, as far as its socket takes it.
    fn send(&mut self, place: usize, now: Instant) -> Result<(), BenchError> {
        let Worker { session, link, is_blocked, .. } = &mut self.workers[place];
        while !*is_blocked && session.has_output() {
            session.fill(now, false);
            link.transmit(session.outbox(), usize::MAX, false).map_err(broken)?;
            session.collect_written();
            if !session.outbox().is_empty() {
                *is_blocked = true;
                self.blocked.push(place);
            }
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
        let mut events = [EpollEvent::empty(); EVENTS];
        let count = match self.epoll.wait(&mut events, EpollTimeout::ZERO) {
            Ok(count) => count,
            Err(Errno::EINTR) => 0,
            Err(errno) => return Err(failed("look at the workers' sockets")(errno)),
        };
        for place in std::mem::take(&mut self.blocked) {
            self.workers[place].is_blocked = false;
            self.send(place, now)?;
        }
        let mut arrived = 0;
        for event in &events[..count] {
            arrived += self.hear(event.data() as usize, now, asking)?;
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

fn broken(reason: impl ToString) -> BenchError {
    BenchError::Sealane { operation: "serve its workers", reason: reason.to_string() }
}

fn failed(operation: &'static str) -> impl FnOnce(Errno) -> BenchError {
    move |errno| BenchError::io(operation)(errno.into())
}
