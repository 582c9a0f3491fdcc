//! A worker and a ps: a session, as an engine has one, over a socket of its own, without the engine around it. Bounded by
//! the ps's share of the tensors.

use std::net::TcpStream;
use std::os::fd::BorrowedFd;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use sealane_fusion::{Buffer, DType, Error, Keys, TensorMeta, Tray};
use sealane_transport::session::{Ask, Event, PullAsk, PushAsk};
use sealane_transport::{Handle, Meta, Payload, SessionLimits};

use super::super::engine::{NAME, PATIENCE, QUEUE, key_of};
use super::super::wire::{THE_ONE, Wire};
use super::memory::{Copies, destination};
use crate::error::BenchError;
use crate::limits::FILL;
use crate::plan::{Fuse, Variant};
use crate::systems::training::Share;

/// Bytes read from a socket at a time, so that all get their turns.
const READ_BYTES: usize = 256 << 10;

/// What has come to an end on a pair since it was last asked.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Ended {
    /// The last tensor of a step is there.
    pub(super) pull: bool,
    /// The last gradient of a step was taken.
    pub(super) push: bool,
}

/// Where what is pulled goes.
enum Places {
    /// All at once, by the number of a plan; the pull buffer is with the session while a pull is in progress.
    Planned { set: Handle, tray: Option<Tray> },
    /// One by one; empty while the tensor is in flight, or where its memory is made for each transfer.
    Single(Vec<Option<Buffer>>),
}

/// See the module.
pub(super) struct Pair {
    wire: Wire,
    /// The ps among the tasks of its engine's greeting.
    ps: u32,
    share: Rc<Tensors>,
    variant: Variant,
    places: Places,
    /// What it pulls into from the first step on, where that is part of an array.
    parts: Vec<Option<Buffer>>,
    copies: Option<Copies>,
    stream: Handle,
    /// Tensors of the step that have not come.
    to_pull: usize,
    /// The next gradient to push, and those in flight.
    next_push: usize,
    pushing: usize,
    /// The socket took less than there was.
    pub(super) is_blocked: bool,
}

impl Pair {
    /// Takes over a socket that has greeted the `ps`th of so many, with what was read behind its welcome.
    pub(super) fn new(
        socket: (TcpStream, Vec<u8>),
        (ps, count): (usize, usize),
        (share, parts): (Rc<Tensors>, Vec<Option<Buffer>>),
        variant: Variant,
    ) -> Result<Self, BenchError> {
        let queued_requests_max = share.pulled.len().max(share.gradients.len()) + 1;
        let limits = SessionLimits { window: variant.request_buffers, queued_requests_max, ..SessionLimits::default() };
        let (mut wire, ps) = (Wire::new(socket, count as u32, &limits), ps as u32);
        let stream = wire.session.stream(THE_ONE, ps, QUEUE).map_err(BenchError::sealane("train"))?;
        let places = if variant.fuse == Fuse::Plan {
            Places::Planned {
                set: wire.session.add_set(THE_ONE, ps, share.keys.clone()).map_err(BenchError::sealane("train"))?,
                tray: None,
            }
        } else {
            Places::Single(share.pulled.iter().map(|_| None).collect())
        };
        let copies = variant.copies.then(|| Copies::new(&share.pulled));
        let (to_pull, next_push, pushing, is_blocked) = (0, 0, 0, false);
        Ok(Self { wire, ps, share, variant, places, parts, copies, stream, to_pull, next_push, pushing, is_blocked })
    }

    /// The socket, to be watched.
    pub(super) fn socket(&self) -> BorrowedFd<'_> {
        self.wire.socket()
    }

    /// Messages that have moved so far, both ways.
    pub(super) fn messages(&self) -> u64 {
        self.wire.session.sent().messages + self.wire.session.received().messages
    }

    /// Asks for all tensors of a step; true if there are none.
    pub(super) fn pull(&mut self, now: Instant, step: i64, min_version: i64) -> Result<bool, BenchError> {
        let share = self.share.clone();
        let registration = self.variant.registration;
        self.to_pull = share.pulled.len();
        if share.pulled.is_empty() {
            return Ok(true);
        }
        if let Places::Planned { set, tray } = &mut self.places {
            let tray = match tray.take() {
                Some(tray) => tray,
                None => {
                    let mut tray = Tray::new(share.pulled.len());
                    for (number, &bytes) in share.pulled.iter().enumerate() {
                        let part = self.parts[number].take();
                        tray.set_destination(number, part.map_or_else(|| destination(registration, bytes), Ok)?);
                    }
                    tray
                }
            };
            let ask = PullAsk { set: *set, min_version, deadline: now + PATIENCE, tray, waiter: 0 };
            self.wire.session.pull(now, ask).map_err(|(error, ..)| BenchError::sealane("train")(error))?;
            return Ok(false);
        }
        for (number, key) in share.keys.iter().enumerate() {
            let Places::Single(places) = &mut self.places else { unreachable!("a plan was pulled above") };
            let memory = match places[number].take().or_else(|| self.parts[number].take()) {
                Some(memory) => memory,
                None => destination(registration, share.pulled[number])?,
            };
            let ask = Ask {
                consumer: THE_ONE,
                producer: self.ps,
                step,
                key,
                deadline: now + PATIENCE,
                destination: Some(memory),
                waiter: number,
            };
            let asked = match self.variant.fuse {
                Fuse::Receive | Fuse::ReceiveWaitAll => self.wire.session.request_fused(now, ask),
                _ => self.wire.session.request(now, ask),
            };
            asked.map_err(|(unanswered, _)| BenchError::sealane("train")(unanswered.error))?;
        }
        Ok(false)
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
            let payload = match self.variant.copies {
                true => Payload::Owned(Buffer::copy_of(bytes)),
                false => Payload::Bytes(bytes.clone()),
            };
            let deadline = now + PATIENCE;
            let push = PushAsk { stream: self.stream, meta: meta.clone(), payload, deadline, deposit: () };
            self.wire.session.push(now, push).map_err(|(error, ())| BenchError::sealane("train")(error))?;
            self.next_push += 1;
            self.pushing += 1;
        }
        Ok(())
    }

    /// Reads once, and says what has come to an end.
    pub(super) fn hear(&mut self, now: Instant) -> Result<Ended, BenchError> {
        self.wire.receive(now, READ_BYTES)?;
        let mut ended = Ended::default();
        while let Some(event) = self.wire.session.poll_event() {
            match event {
                Event::Answered { waiter: number, answer } => {
                    let arrived = answer.map_err(|unanswered| BenchError::sealane("train")(unanswered.error))?;
                    self.arrived(number, &arrived.buffer)?;
                    if let (Places::Single(places), true) = (&mut self.places, self.variant.keeps_memory()) {
                        places[number] = Some(arrived.buffer);
                    }
                    ended.pull = self.to_pull == 0;
                }
                Event::Pulled { tray, .. } => {
                    for number in 0..tray.len() {
                        self.arrived(number, tray.get(number).map_err(BenchError::sealane("train"))?.bytes())?;
                    }
                    if let (Places::Planned { tray: place, .. }, true) = (&mut self.places, self.variant.keeps_memory())
                    {
                        *place = Some(tray);
                    }
                    ended.pull = self.to_pull == 0;
                }
                Event::PushEnded { count, outcome, .. } => {
                    outcome.map_err(BenchError::sealane("train"))?;
                    self.pushing -= count as usize;
                    self.push_more(now)?;
                    ended.push = self.pushing == 0;
                }
                other => {
                    return Err(BenchError::sealane("train")(format!(
                        "it said {other:?} to a worker that only pulls and pushes"
                    )));
                }
            }
        }
        Ok(ended)
    }

    /// Looks at a tensor that came, and copies it if that is to be measured.
    fn arrived(&mut self, number: usize, bytes: &[u8]) -> Result<(), BenchError> {
        let (expected, received) = (self.share.pulled[number], bytes.len());
        if received != expected {
            return Err(BenchError::WrongReply { system: NAME, expected, received });
        }
        if bytes.first() != Some(&FILL) || bytes.last() != Some(&FILL) {
            return Err(BenchError::WrongBytes { system: NAME, tensor: number });
        }
        if let Some(copies) = &mut self.copies {
            copies.take(number, bytes);
        }
        self.to_pull -= 1;
        Ok(())
    }

    /// Writes what there is to say, as far as the socket takes it; true if that has changed whether it does.
    pub(super) fn send(&mut self, now: Instant) -> Result<bool, BenchError> {
        let was_blocked = self.is_blocked;
        self.is_blocked = !self.wire.transmit(now, self.variant.fuse == Fuse::Off)?;
        Ok(was_blocked != self.is_blocked)
    }
}

/// The tensors of one ps: what its workers pull from it, and the gradients that they push to it. The same for all workers.
pub(super) struct Tensors {
    /// The numbers of what is pulled.
    pub(super) numbers: Vec<usize>,
    /// The keys of what is pulled, and its bytes each.
    pub(super) keys: Arc<Keys>,
    pub(super) pulled: Vec<usize>,
    /// What each gradient is, and its bytes: memory that all workers send from.
    pub(super) gradients: Vec<(Meta, Bytes)>,
}

impl Tensors {
    pub(super) fn new(share: Share) -> Result<Self, BenchError> {
        let gradient = |&bytes: &usize| {
            let meta = TensorMeta::new(DType::U8, &[bytes as u64])?;
            Ok((meta.into_wire(), Bytes::from(vec![FILL; bytes])))
        };
        let keys = Keys::new(share.numbers.iter().copied().map(key_of));
        let gradients = share.pushed.iter().map(gradient).collect::<Result<_, Error>>();
        Ok(Self {
            keys: Arc::new(keys.map_err(BenchError::sealane("train"))?),
            numbers: share.numbers,
            pulled: share.pulled,
            gradients: gradients.map_err(BenchError::sealane("train"))?,
        })
    }
}
