//! A worker and a ps: a session, as an engine has one, over a socket of its own, without the engine around it. Bounded by
//! the ps's share of the tensors.

use std::net::TcpStream;
use std::os::fd::BorrowedFd;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use sealane_fusion::{Buffer, DType, Error, Keys, TensorMeta, Tray};
use sealane_transport::session::{Ask, Event, PullAsk, PushAsk, ReceiveMemory, Roster, Session};
use sealane_transport::tcp::TcpLink;
use sealane_transport::{Handle, Link, Meta, Payload, SessionLimits};

use super::super::engine::{NAME, PATIENCE, QUEUE, key_of};
use super::memory::destination;
use crate::error::BenchError;
use crate::limits::FILL;
use crate::plan::{Fuse, Variant};
use crate::systems::client::{check_length, other_bytes};
use crate::systems::training::Share;

/// Bytes read from a socket at a time, so that all get their turns.
const READ_BYTES: usize = 256 << 10;

/// What the greetings agree on for a session's first link.
const FIRST_EPOCH: u32 = 1;

/// The worker among the tasks of its greeting.
const THE_ONE: u16 = 0;

/// Every tensor goes to memory that came with its request.
struct NoMemory;

impl ReceiveMemory for NoMemory {
    fn allocate(&self, _consumer: u16, len: usize) -> Result<Buffer, Error> {
        Err(Error::InvalidArgument { reason: format!("{len} bytes came without a request's memory").into() })
    }
}

/// What has come to an end on a pair since it was last asked.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Ended {
    /// Tensors that came.
    pub(super) came: usize,
    /// The last tensor of a step is there.
    pub(super) pull: bool,
    /// The last gradient of a step was taken.
    pub(super) push: bool,
}

/// Where what is pulled goes.
enum Places {
    /// All at once, by the number of a plan; the pull buffer is with the session while a pull is in progress.
    Planned { set: Handle, tray: Option<Tray> },
    /// One by one, each with its next step; empty while the tensor is in flight, or where its memory is made for each transfer.
    Single(Vec<(i64, Option<Buffer>)>),
}

/// See the module. Requests are told apart by the numbers of their tensors.
pub(super) struct Pair {
    session: Session<usize, ()>,
    link: TcpLink,
    /// The ps among the tasks of its engine's greeting.
    ps: u32,
    share: Rc<Tensors>,
    variant: Variant,
    places: Places,
    stream: Handle,
    /// Tensors of the step that have not come, and those that came one by one and were not asked for again.
    to_pull: usize,
    arrived: Vec<usize>,
    /// The next gradient to push, and those in flight.
    next_push: usize,
    pushing: usize,
    /// The socket took less than there was.
    pub(super) is_blocked: bool,
}

impl Pair {
    /// Takes over a socket that has greeted the `ps`th of so many, with what was read behind its welcome.
    pub(super) fn new(
        (socket, read_ahead): (TcpStream, Vec<u8>),
        (ps, count): (usize, usize),
        share: Rc<Tensors>,
        variant: Variant,
    ) -> Result<Self, BenchError> {
        let queued_requests_max = share.pulled.len().max(share.gradients.len()) + 1;
        let limits = SessionLimits { window: variant.request_buffers, queued_requests_max, ..SessionLimits::default() };
        let mut session = Session::new(NAME, 1, limits.clone());
        let roster = Roster { numbers: (0..count as u32).collect() };
        session.attach(Instant::now(), FIRST_EPOCH, roster, limits.tensor_bytes_max);
        let ps = ps as u32;
        let places = match variant.fuse {
            Fuse::Plan => {
                Places::Planned { set: session.add_set(THE_ONE, ps, share.keys.clone()).map_err(broken)?, tray: None }
            }
            _ => Places::Single(share.pulled.iter().map(|_| (0, None)).collect()),
        };
        Ok(Self {
            stream: session.stream(THE_ONE, ps, QUEUE).map_err(broken)?,
            session,
            link: TcpLink::new(socket.into(), &read_ahead),
            ps,
            share,
            variant,
            places,
            to_pull: 0,
            arrived: Vec::new(),
            next_push: 0,
            pushing: 0,
            is_blocked: false,
        })
    }

    /// The socket, to be watched.
    pub(super) fn socket(&self) -> BorrowedFd<'_> {
        self.link.descriptor().expect("a TCP link has a socket")
    }

    /// Messages that have moved so far, both ways.
    pub(super) fn messages(&self) -> u64 {
        self.session.sent().messages + self.session.received().messages
    }

    /// Asks for all tensors of a step, of the published ones at `min_version` or newer; true if there are none.
    pub(super) fn pull(&mut self, now: Instant, min_version: i64) -> Result<bool, BenchError> {
        self.to_pull = self.share.pulled.len();
        self.arrived.clear();
        if self.to_pull == 0 {
            return Ok(true);
        }
        let Places::Planned { set, tray } = &mut self.places else {
            return (0..self.to_pull).try_for_each(|number| self.ask(now, number)).map(|()| false);
        };
        let tray = match tray.take() {
            Some(tray) => tray,
            None => {
                let mut tray = Tray::new(self.share.pulled.len());
                for (number, &bytes) in self.share.pulled.iter().enumerate() {
                    tray.set_destination(number, destination(self.variant.registration, bytes)?);
                }
                tray
            }
        };
        let ask = PullAsk { set: *set, min_version, deadline: now + PATIENCE, fail_if_gone: false, tray, waiter: 0 };
        self.session.pull(now, ask).map_err(|(error, ..)| broken(error)).map(|_| false)
    }

    /// Asks once more for what came, without waiting for the rest of a step.
    pub(super) fn ask_again(&mut self, now: Instant) -> Result<(), BenchError> {
        if let Places::Planned { .. } = self.places {
            return self.pull(now, 0).map(drop);
        }
        self.to_pull += self.arrived.len();
        std::mem::take(&mut self.arrived).into_iter().try_for_each(|number| self.ask(now, number))
    }

    fn ask(&mut self, now: Instant, number: usize) -> Result<(), BenchError> {
        let Places::Single(places) = &mut self.places else { unreachable!("a plan is pulled as a whole") };
        let (next, memory) = &mut places[number];
        let memory = match memory.take() {
            Some(memory) => memory,
            None => destination(self.variant.registration, self.share.pulled[number])?,
        };
        let step = *next;
        *next += 1;
        let ask = Ask {
            consumer: THE_ONE,
            producer: self.ps,
            step,
            key: self.share.keys.get(number),
            deadline: now + PATIENCE,
            destination: Some(memory),
            waiter: number,
        };
        let asked = match self.variant.fuse {
            Fuse::Receive | Fuse::ReceiveWaitAll => self.session.request_fused(now, ask),
            _ => self.session.request(now, ask),
        };
        asked.map(drop).map_err(|(unanswered, _)| broken(unanswered.error))
    }

    /// Begins to push all gradients of a step; true if there are none.
    pub(super) fn push(&mut self, now: Instant) -> Result<bool, BenchError> {
        self.next_push = 0;
        self.push_more(now)?;
        Ok(self.share.gradients.is_empty())
    }

    fn push_more(&mut self, now: Instant) -> Result<(), BenchError> {
        let most = match self.variant.fuse {
            Fuse::Off | Fuse::Turn => self.variant.request_buffers,
            _ => usize::MAX,
        };
        while self.pushing < most && self.next_push < self.share.gradients.len() {
            let (meta, bytes) = &self.share.gradients[self.next_push];
            let payload = Payload::Bytes(bytes.clone());
            let deadline = now + PATIENCE;
            let push = PushAsk { stream: self.stream, meta: meta.clone(), payload, deadline, deposit: () };
            self.session.push(now, push).map_err(|(error, ())| broken(error))?;
            self.next_push += 1;
            self.pushing += 1;
        }
        Ok(())
    }

    /// Reads once, and says what has come to an end.
    pub(super) fn hear(&mut self, now: Instant) -> Result<Ended, BenchError> {
        let mut inbound = self.session.inbound(now, &NoMemory);
        self.link.receive(&mut inbound, READ_BYTES).map_err(broken)?;
        self.session.heard(now);
        let mut ended = Ended::default();
        let before = self.to_pull;
        while let Some(event) = self.session.poll_event() {
            match event {
                Event::Answered { waiter: number, answer } => {
                    let arrived = answer.map_err(|unanswered| broken(unanswered.error))?;
                    self.arrived(number, &arrived.buffer)?;
                    self.arrived.push(number);
                    if let (Places::Single(places), true) = (&mut self.places, self.variant.keeps_memory()) {
                        places[number].1 = Some(arrived.buffer);
                    }
                    ended.pull = self.to_pull == 0;
                }
                Event::Pulled { tray, .. } => {
                    for number in 0..tray.len() {
                        self.arrived(number, tray.get(number).map_err(broken)?.bytes())?;
                    }
                    if let (Places::Planned { tray: place, .. }, true) = (&mut self.places, self.variant.keeps_memory())
                    {
                        *place = Some(tray);
                    }
                    ended.pull = self.to_pull == 0;
                }
                Event::PushEnded { count, outcome, .. } => {
                    outcome.map_err(broken)?;
                    self.pushing -= count as usize;
                    self.push_more(now)?;
                    ended.push = self.pushing == 0;
                }
                other => return Err(broken(format!("it said {other:?} to a worker that only pulls and pushes"))),
            }
        }
        ended.came = before - self.to_pull;
        Ok(ended)
    }

    /// Looks at a tensor that came.
    fn arrived(&mut self, number: usize, bytes: &[u8]) -> Result<(), BenchError> {
        check_length(NAME, self.share.pulled[number], bytes.len())?;
        if bytes.first() != Some(&FILL) || bytes.last() != Some(&FILL) {
            return Err(other_bytes(NAME, number));
        }
        self.to_pull -= 1;
        Ok(())
    }

    /// Writes what there is to say, one write a message or as few as can be; true if that has changed whether the socket takes all.
    pub(super) fn send(&mut self, now: Instant) -> Result<bool, BenchError> {
        let was_blocked = std::mem::take(&mut self.is_blocked);
        while self.session.has_output() && !self.is_blocked {
            self.session.fill(now, self.variant.fuse == Fuse::Off);
            self.link.transmit(self.session.outbox(), usize::MAX, false).map_err(broken)?;
            self.session.collect_written();
            self.is_blocked = !self.session.outbox().is_empty();
        }
        Ok(was_blocked != self.is_blocked)
    }
}

/// A session that did not do what a worker asks of it.
fn broken(reason: impl ToString) -> BenchError {
    BenchError::sealane("serve its workers")(reason)
}

/// The tensors of one ps: what its workers pull from it, and the gradients that they push to it. The same for all workers.
pub(super) struct Tensors {
    /// The keys of what is pulled, and its bytes each.
    keys: Arc<Keys>,
    pulled: Vec<usize>,
    /// What each gradient is, and its bytes: memory that all workers send from.
    gradients: Vec<(Meta, Bytes)>,
}

impl Tensors {
    pub(super) fn new(Share { numbers, pulled, pushed }: Share) -> Result<Self, BenchError> {
        let gradient = |bytes: usize| {
            let meta = TensorMeta::new(DType::U8, &[bytes as u64])?;
            Ok((meta.into_wire(), Bytes::from(vec![FILL; bytes])))
        };
        let keys = Arc::new(Keys::new(numbers.into_iter().map(key_of)).map_err(broken)?);
        let gradients = pushed.into_iter().map(gradient).collect::<Result<_, Error>>().map_err(broken)?;
        Ok(Self { keys, pulled, gradients })
    }
}
