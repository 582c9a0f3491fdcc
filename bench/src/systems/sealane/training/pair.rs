//! A worker and a ps: a session like an engine's, over its own socket, without the engine around it. Bounded by the ps's share of
//! the tensors.

use std::collections::{HashMap, VecDeque};
use std::net::TcpStream;
use std::os::fd::BorrowedFd;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use sealane_fusion::{Buffer, DType, Error, Keys, PullBuffer, TensorMeta};
use sealane_transport::limits::AHEAD_TENSOR_BYTES;
use sealane_transport::session::{
    CameAhead, Event, KeyOf, PeerRequest, PullParams, PushParams, ReceiveMemory, RequestParams, Roster, Session, Sink,
    Untaken,
};
use sealane_transport::tcp::TcpLink;
use sealane_transport::wire::{Fate, WireError};
use sealane_transport::{Destination, Handle, Link, Meta, Payload, SessionLimits, Tensor};

use super::super::engine::{NAME, PATIENCE, QUEUE, key_of};
use super::memory::destination;
use crate::error::BenchError;
use crate::limits::FILL;
use crate::plan::{Fuse, Variant};
use crate::systems::client::{check_length, other_bytes};
use crate::systems::training::Share;

/// Bytes read from a socket at a time, so that all sockets get their turns.
const READ_BYTES: usize = 256 << 10;

/// The epoch that the greetings agree on for a session's first link.
const FIRST_EPOCH: u32 = 1;

/// The worker's index among the tasks of its greeting.
const THE_ONE: u16 = 0;

/// How long a recv waits for a tensor that may come ahead of its request: as long as an engine does whose requests were useless.
pub(super) const QUIET_TIME: Duration = Duration::from_millis(64);

/// Provides no memory, since every tensor goes to memory that came with its request.
struct NoMemory;

impl ReceiveMemory for NoMemory {
    fn allocate(&self, _consumer: u16, len: usize) -> Result<Buffer, Error> {
        Err(Error::InvalidArgument { reason: format!("{len} bytes came without a request's memory").into() })
    }
}

/// What has completed on a pair since it was last asked.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Ended {
    pub(super) came: usize,
    /// True if the last tensor of a step has arrived.
    pub(super) pull: bool,
    /// True if the last gradient of a step was taken.
    pub(super) push: bool,
}

enum Places {
    /// All at once, by the number of a plan; the session has the pull buffer while a pull is in progress.
    Planned { set: Handle, pull_buffer: Option<PullBuffer> },
    /// One by one.
    Single(Vec<Recv>),
}

/// The recvs of one tensor, step after step.
#[derive(Default)]
struct Recv {
    next_step: i64,
    /// The step that is waited for, if any.
    wanted: Option<i64>,
    /// `None` while the session has it, or if memory is allocated for each transfer.
    memory: Option<Buffer>,
    request: Option<Handle>,
    /// A tensor that arrived before it was wanted.
    kept: Option<Kept>,
}

struct Kept {
    step: i64,
    number: u64,
    cost: usize,
    bytes: Vec<u8>,
}

impl Recv {
    /// Records that the tensor has arrived.
    fn take(&mut self, bytes: &[u8]) {
        self.wanted = None;
        let memory = self.memory.as_mut().expect("it is made when the tensor is wanted");
        memory.copy_from_slice(bytes);
    }
}

/// Accepts tensors as an engine's node does, including those that come ahead of their requests.
struct Taker<'a> {
    share: &'a Tensors,
    /// Empty with a plan.
    recvs: &'a mut [Recv],
    came: &'a mut Vec<usize>,
    /// Tensors that the ps holds until they are requested.
    held: Vec<usize>,
}

impl Sink<usize, ()> for Taker<'_> {
    fn requested(&mut self, _: &mut Session<usize, ()>, _: &PeerRequest, _: &[u8]) -> Result<(), WireError> {
        Err(WireError::BadValue { what: "request to a worker that has nothing", found: 0 })
    }

    fn arrived(&mut self, number: usize, _: Instant, _: &[u8], buffer: Buffer) -> bool {
        let recv = &mut self.recvs[number];
        (recv.wanted, recv.request, recv.memory) = (None, None, Some(buffer));
        self.came.push(number);
        true
    }

    fn taken(&mut self, (): (), _: Payload) {
        unreachable!("nobody asks a worker")
    }

    fn came_ahead(
        &mut self,
        session: &mut Session<usize, ()>,
        came: &CameAhead<'_>,
    ) -> Result<Option<Fate>, WireError> {
        let number = std::str::from_utf8(came.key).ok().and_then(|key| self.share.numbers.get(key));
        let Some((&number, recv)) = number.and_then(|number| Some((number, self.recvs.get_mut(*number)?))) else {
            return Ok(Some(Fate::Returned));
        };
        if came.payload.len() != self.share.pulled[number] {
            return Ok(Some(Fate::Returned));
        }
        if recv.wanted != Some(came.step) {
            if recv.kept.is_some() {
                return Ok(Some(Fate::Returned));
            }
            let bytes = came.payload.to_vec();
            recv.kept = Some(Kept { step: came.step, number: came.number, cost: came.cost(), bytes });
            return Ok(None);
        }
        if let Some(request) = recv.request {
            let Some(memory) = session.cancel_unanswered(request) else { return Ok(Some(Fate::Returned)) };
            (recv.request, recv.memory) = (None, memory.map(Destination::into_memory));
        }
        recv.take(came.payload);
        self.came.push(number);
        Ok(Some(Fate::Taken))
    }

    fn revoked(&mut self, number: u64, of: KeyOf<'_>) -> Option<usize> {
        let recv = self.recvs.get_mut(*self.share.numbers.get(of.key)?)?;
        recv.kept.take_if(|kept| kept.number == number).map(|kept| kept.cost)
    }

    fn held(&mut self, of: KeyOf<'_>) {
        self.held.extend(self.share.numbers.get(of.key));
    }

    fn pushed(&mut self, _: Handle, _: Tensor) -> Result<(), Untaken> {
        Err(Untaken::Unaccepted)
    }
}

/// Requests are identified by the numbers of their tensors.
pub(super) struct Pair {
    session: Session<usize, ()>,
    link: TcpLink,
    /// The index of the ps among the tasks of its engine's greeting.
    ps: u32,
    share: Rc<Tensors>,
    variant: Variant,
    places: Places,
    stream: Handle,
    /// Tensors of the step that have not arrived, and those that arrived one by one and were not requested again.
    to_pull: usize,
    arrived: Vec<usize>,
    /// Tensors that arrived and must be checked.
    came: Vec<usize>,
    /// Recvs that wait for tensors sent ahead, since when, and for which step: the ps sends ahead after the first request.
    quiet: VecDeque<(Instant, usize, i64)>,
    has_asked: bool,
    /// The next gradient to push, and those in flight.
    next_push: usize,
    pushing: usize,
    /// True if the socket took less than there was.
    pub(super) is_blocked: bool,
}

impl Pair {
    /// Takes over a socket that has greeted the `ps`th of the parameter servers, with what was read after its welcome.
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
            Fuse::Plan => Places::Planned {
                set: session.add_set(THE_ONE, ps, share.keys.clone()).map_err(broken)?,
                pull_buffer: None,
            },
            _ => Places::Single(share.pulled.iter().map(|_| Recv::default()).collect()),
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
            came: Vec::new(),
            quiet: VecDeque::new(),
            has_asked: false,
            next_push: 0,
            pushing: 0,
            is_blocked: false,
        })
    }

    pub(super) fn socket(&self) -> BorrowedFd<'_> {
        self.link.descriptor().expect("a TCP link has a socket")
    }

    /// Messages that have moved so far, both ways.
    pub(super) fn messages(&self) -> u64 {
        self.session.sent().messages + self.session.received().messages
    }

    /// Wants all tensors of a step, or the published ones at `min_version` or newer; returns how many had arrived before.
    pub(super) fn pull(&mut self, now: Instant, min_version: i64) -> Result<usize, BenchError> {
        self.to_pull = self.share.pulled.len();
        self.arrived.clear();
        let Places::Planned { set, pull_buffer } = &mut self.places else {
            (0..self.to_pull).try_for_each(|number| self.want(now, number))?;
            self.has_asked = true;
            return self.look_at_what_came();
        };
        if self.to_pull == 0 {
            return Ok(0);
        }
        let pull_buffer = match pull_buffer.take() {
            Some(pull_buffer) => pull_buffer,
            None => {
                let mut pull_buffer = PullBuffer::new(self.share.pulled.len());
                for (number, &bytes) in self.share.pulled.iter().enumerate() {
                    pull_buffer.set_destination(number, destination(self.variant.registration, bytes)?);
                }
                pull_buffer
            }
        };
        let params = PullParams {
            set: *set,
            min_version,
            deadline: now + PATIENCE,
            fail_if_gone: false,
            pull_buffer,
            waiter: 0,
        };
        self.session.pull(now, params).map_err(|(error, ..)| broken(error)).map(|_| 0)
    }

    /// True if all tensors of the step have arrived.
    pub(super) fn has_pulled(&self) -> bool {
        self.to_pull == 0
    }

    /// Wants again what has arrived, without waiting for the rest of a step; returns how many had arrived before.
    pub(super) fn pull_again(&mut self, now: Instant) -> Result<usize, BenchError> {
        if let Places::Planned { .. } = self.places {
            return self.pull(now, 0);
        }
        self.to_pull += self.arrived.len();
        std::mem::take(&mut self.arrived).into_iter().try_for_each(|number| self.want(now, number))?;
        self.look_at_what_came()
    }

    fn want(&mut self, now: Instant, number: usize) -> Result<(), BenchError> {
        let Places::Single(recvs) = &mut self.places else { unreachable!("a plan is pulled as a whole") };
        let (recv, bytes) = (&mut recvs[number], self.share.pulled[number]);
        if recv.memory.is_none() {
            recv.memory = Some(destination(self.variant.registration, bytes)?);
        }
        let step = recv.next_step;
        (recv.next_step, recv.wanted) = (step + 1, Some(step));
        if let Some(kept) = recv.kept.take_if(|kept| kept.step == step) {
            recv.take(&kept.bytes);
            self.session.release_ahead((kept.number, 1), kept.cost, Fate::Taken);
            self.came.push(number);
            return Ok(());
        }
        if self.has_asked && bytes <= AHEAD_TENSOR_BYTES {
            self.quiet.push_back((now, number, step));
            return Ok(());
        }
        self.request(now, number)
    }

    /// True if recvs wait for tensors sent ahead, until [`ask_at_last`](Self::ask_at_last).
    pub(super) fn is_quiet(&self) -> bool {
        !self.quiet.is_empty()
    }

    /// Requests what was not sent ahead in time.
    pub(super) fn ask_at_last(&mut self, now: Instant) -> Result<(), BenchError> {
        while let Some((_, number, step)) = self.quiet.pop_front_if(|(since, ..)| now >= *since + QUIET_TIME) {
            if self.wants(number, step) {
                self.request(now, number)?;
            }
        }
        Ok(())
    }

    /// True if a tensor of that step has not arrived.
    fn wants(&self, number: usize, step: i64) -> bool {
        matches!(&self.places, Places::Single(recvs) if recvs[number].wanted == Some(step))
    }

    /// Requests a tensor that is wanted, and was not requested.
    fn request(&mut self, now: Instant, number: usize) -> Result<(), BenchError> {
        let Places::Single(recvs) = &mut self.places else { unreachable!("a plan is pulled as a whole") };
        let recv = &mut recvs[number];
        let (Some(step), None) = (recv.wanted, recv.request) else { return Ok(()) };
        let params = RequestParams {
            consumer: THE_ONE,
            producer: self.ps,
            step,
            key: self.share.keys.get(number),
            deadline: now + PATIENCE,
            destination: recv.memory.take().map(Into::into),
            waiter: number,
        };
        let asked = match self.variant.fuse {
            Fuse::Receive | Fuse::ReceiveWaitAll => self.session.request_fused(now, params),
            _ => self.session.request(now, params),
        };
        recv.request = Some(asked.map_err(|(unanswered, _)| broken(unanswered.error))?);
        Ok(())
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
            let push = PushParams { stream: self.stream, meta: meta.clone(), payload, deadline, pending: () };
            self.session.push(now, push).map_err(|(error, ())| broken(error))?;
            self.next_push += 1;
            self.pushing += 1;
        }
        Ok(())
    }

    /// Reads once, and returns what has completed.
    pub(super) fn hear(&mut self, now: Instant) -> Result<Ended, BenchError> {
        let recvs = if let Places::Single(recvs) = &mut self.places { &mut recvs[..] } else { &mut [] };
        let mut taker = Taker { share: &self.share, recvs, came: &mut self.came, held: Vec::new() };
        let mut inbound = self.session.inbound_to(now, &NoMemory, &mut taker);
        self.link.receive(&mut inbound, READ_BYTES).map_err(broken)?;
        let held = taker.held;
        self.session.heard(now);
        if !held.is_empty() {
            // Other recvs may also wait for what the ps holds.
            let quiet =
                std::mem::take(&mut self.quiet).into_iter().filter(|(_, number, step)| self.wants(*number, *step));
            let quiet: Vec<_> = quiet.map(|(_, number, _)| number).collect();
            held.into_iter().chain(quiet).try_for_each(|number| self.request(now, number))?;
        }
        let mut ended = Ended::default();
        let before = self.to_pull;
        ended.pull = self.look_at_what_came()? > 0 && self.to_pull == 0;
        while let Some(event) = self.session.poll_event() {
            match event {
                Event::RequestEnded { outcome, .. } => {
                    let failed =
                        outcome.err().map_or_else(|| "an answer came twice".into(), |failed| failed.error.to_string());
                    return Err(broken(failed));
                }
                Event::Pulled { pull_buffer, .. } => {
                    for number in 0..pull_buffer.len() {
                        self.arrived(number, pull_buffer.get(number).map_err(broken)?.bytes())?;
                    }
                    if let (Places::Planned { pull_buffer: place, .. }, true) =
                        (&mut self.places, self.variant.keeps_memory())
                    {
                        *place = Some(pull_buffer);
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

    /// Checks the tensors that arrived one by one; returns their number.
    fn look_at_what_came(&mut self) -> Result<usize, BenchError> {
        let count = self.came.len();
        for number in std::mem::take(&mut self.came) {
            let Places::Single(recvs) = &mut self.places else { unreachable!("a plan's come together") };
            let memory = recvs[number].memory.take().expect("it came into it");
            self.arrived(number, &memory)?;
            self.arrived.push(number);
            if let (Places::Single(recvs), true) = (&mut self.places, self.variant.keeps_memory()) {
                recvs[number].memory = Some(memory);
            }
        }
        Ok(count)
    }

    fn arrived(&mut self, number: usize, bytes: &[u8]) -> Result<(), BenchError> {
        check_length(NAME, self.share.pulled[number], bytes.len())?;
        if bytes.first() != Some(&FILL) || bytes.last() != Some(&FILL) {
            return Err(other_bytes(NAME, number));
        }
        self.to_pull -= 1;
        Ok(())
    }

    /// Writes what there is to send, with one write for each message or as few as possible; returns true if the socket has become
    /// blocked or unblocked.
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

/// The error that a session did not do what a worker asked of it.
fn broken(reason: impl ToString) -> BenchError {
    BenchError::sealane("serve its workers")(reason)
}

/// The tensors of one ps: what its workers pull from it, and the gradients that they push to it. The same for all workers.
pub(super) struct Tensors {
    /// The keys of pulled tensors, the number of each, and its bytes.
    keys: Arc<Keys>,
    numbers: HashMap<String, usize>,
    pulled: Vec<usize>,
    /// The metadata of each gradient, and its bytes, which all workers send from.
    gradients: Vec<(Meta, Bytes)>,
}

impl Tensors {
    pub(super) fn new(Share { numbers, pulled, pushed }: Share) -> Result<Self, BenchError> {
        let gradient = |bytes: usize| {
            let meta = TensorMeta::new(DType::U8, &[bytes as u64])?;
            Ok((meta.into_wire(), Bytes::from(vec![FILL; bytes])))
        };
        let keys = Arc::new(Keys::new(numbers.into_iter().map(key_of)).map_err(broken)?);
        let numbers = (0..pulled.len()).map(|number| (keys.get(number).to_owned(), number)).collect();
        let gradients = pushed.into_iter().map(gradient).collect::<Result<_, Error>>().map_err(broken)?;
        Ok(Self { keys, numbers, pulled, gradients })
    }
}
