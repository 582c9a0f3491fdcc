//! A kind of link that exists only in tests: what a peer sends arrives late by a fixed time. It shows that link kinds can be plugged in,
//! and that engines and the simulation work on a link whose bytes no file descriptor announces.

use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::os::fd::BorrowedFd;
use std::rc::Rc;
use std::time::{Duration, Instant};

use sealane_transport::error::LinkError;
use sealane_transport::limits::{FIGURES_MAX, FRAME_BODY_BYTES_MAX};
use sealane_transport::link::{Frames, Landing, Receiver, Traits};
use sealane_transport::outbox::Outbox;
use sealane_transport::provider::{Figure, LinkInterface, LinkProvider, OpenOn, Opened, Told};
use sealane_transport::tcp::TcpLink;
use sealane_transport::wire::{FRAME_HEADER_BYTES, WireError};
use sealane_transport::{Handle, Link, LinkKind};

use crate::simulation::Clock;

/// The kind's name.
pub const KIND: LinkKind = LinkKind::new("delayed");
/// A feature bit that no real kind has.
const FEATURE_DELAYED: u64 = 1 << 62;
/// Most bytes that one end holds back; further bytes wait in the link below.
const HELD_BYTES_MAX: usize = 1 << 20;

const _: () = assert!(HELD_BYTES_MAX > FRAME_HEADER_BYTES + FRAME_BODY_BYTES_MAX);

/// The link kind and its setting.
#[derive(Debug, Clone, Copy)]
pub struct Delayed {
    /// How late bytes arrive.
    pub delay: Duration,
}

impl LinkProvider for Delayed {
    fn kind(&self) -> LinkKind {
        KIND
    }

    fn figures(&self) -> &'static [Figure] {
        &[Figure { name: "links_begun", metric: None, help: "Links opened.", grows: true }]
    }

    fn is_required(&self) -> bool {
        true
    }

    fn open(&self, _shard: &OpenOn<'_>) -> Result<Opened, String> {
        let interface = Interface { delay: self.delay, schedule: Rc::default() };
        Ok(Opened { interface: Some(Box::new(interface)), otherwise: "the peer offers no delay".into() })
    }
}

/// When links of a shard have bytes due, by link name.
#[derive(Default)]
struct Schedule {
    due: BTreeMap<u64, Instant>,
    begun: u64,
}

impl Schedule {
    fn first(&self) -> Option<Instant> {
        self.due.values().min().copied()
    }

    /// Reports the links whose bytes are due; true if there are any.
    fn tell(&self, into: &mut Vec<Told>) -> bool {
        let now = Instant::now();
        let due = self.due.iter().filter(|&(_, &due)| due <= now);
        let before = into.len();
        into.extend(due.map(|(&name, _)| Told { link: Handle::from_bits(name), has_room: false }));
        into.len() > before
    }
}

struct Interface {
    delay: Duration,
    schedule: Rc<RefCell<Schedule>>,
}

impl LinkInterface for Interface {
    fn feature(&self) -> u64 {
        FEATURE_DELAYED
    }

    fn link(&self, tcp: TcpLink, _peer: &str) -> Box<dyn Link> {
        self.schedule.borrow_mut().begun += 1;
        let scheduled = Some(Scheduled { schedule: self.schedule.clone(), name: Handle::NONE });
        let clock: Clock = Rc::new(Instant::now);
        Box::new(DelayedLink { scheduled, ..DelayedLink::new(Box::new(tcp), self.delay, clock) })
    }

    fn poll(&self, into: &mut Vec<Told>) {
        self.schedule.borrow().tell(into);
    }

    fn peek(&self) -> Option<bool> {
        Some(self.schedule.borrow().first().is_some_and(|due| due <= Instant::now()))
    }

    fn arm(&self, into: &mut Vec<Told>) -> bool {
        !self.schedule.borrow().tell(into)
    }

    fn next_timeout(&self) -> Option<Instant> {
        self.schedule.borrow().first()
    }

    fn figures(&self) -> [u64; FIGURES_MAX] {
        let mut figures = [0; FIGURES_MAX];
        figures[0] = self.schedule.borrow().begun;
        figures
    }
}

/// A link's entry in its shard's schedule, removed when dropped.
struct Scheduled {
    schedule: Rc<RefCell<Schedule>>,
    name: Handle,
}

impl Scheduled {
    fn set(&self, due: Option<Instant>) {
        let due_of = &mut self.schedule.borrow_mut().due;
        match due {
            Some(due) => due_of.insert(self.name.to_bits(), due),
            None => due_of.remove(&self.name.to_bits()),
        };
    }
}

impl Drop for Scheduled {
    fn drop(&mut self) {
        self.set(None);
    }
}

/// A link whose bytes arrive late.
pub struct DelayedLink {
    link: Box<dyn Link>,
    delay: Duration,
    clock: Clock,
    /// Bytes that have arrived; `due` says when how many of them are due.
    held: VecDeque<u8>,
    due: VecDeque<(Instant, usize)>,
    /// How the link below ended; reported after all bytes before it.
    ended: Option<LinkError>,
    landing: Option<Landing>,
    /// `None` in the simulation, which polls every link.
    scheduled: Option<Scheduled>,
}

impl DelayedLink {
    /// Delays what arrives over `link` by `delay` of the time that `clock` shows.
    pub fn new(link: Box<dyn Link>, delay: Duration, clock: Clock) -> Self {
        let (held, due) = (VecDeque::new(), VecDeque::new());
        Self { link, delay, clock, held, due, ended: None, landing: None, scheduled: None }
    }

    /// Moves what has arrived into `held`.
    fn take_in(&mut self, now: Instant) {
        while self.ended.is_none() {
            let before = self.held.len();
            let room = HELD_BYTES_MAX.saturating_sub(before);
            if room == 0 {
                break;
            }
            let received = self.link.receive(&mut Holder(&mut self.held), room);
            let count = self.held.len() - before;
            if count > 0 {
                self.due.push_back((now + self.delay, count));
            }
            match received {
                Ok(0) => break,
                Ok(_) => {}
                Err(error) => self.ended = Some(error),
            }
        }
    }

    /// Passes on what is due, about `budget` bytes at most; returns the number of bytes.
    fn give_out(&mut self, receiver: &mut dyn Receiver, budget: usize, now: Instant) -> Result<usize, LinkError> {
        let due: usize = self.due.iter().take_while(|&&(due, _)| due <= now).map(|&(_, count)| count).sum();
        let mut total = 0;
        while total < due && total < budget {
            // Whole frames may exceed the budget, by one frame.
            let room = (budget - total).max(FRAME_HEADER_BYTES + FRAME_BODY_BYTES_MAX);
            let ready = &self.held.make_contiguous()[..room.min(due - total)];
            let count = match self.landing.take() {
                Some(mut landing) => {
                    let count = landing.take(ready);
                    match landing.is_complete() {
                        true => receiver.landed(landing),
                        false => self.landing = Some(landing),
                    }
                    count
                }
                None => {
                    let frames = receiver.frames(ready)?;
                    self.landing = frames.landing;
                    frames.consumed
                }
            };
            if count == 0 {
                break;
            }
            self.held.drain(..count);
            total += count;
        }
        self.forget(total);
        Ok(total)
    }

    /// Removes the first bytes, which were passed on.
    fn forget(&mut self, mut count: usize) {
        while let Some((_, first)) = self.due.front_mut() {
            let taken = count.min(*first);
            *first -= taken;
            count -= taken;
            if *first > 0 {
                break;
            }
            self.due.pop_front();
        }
        debug_assert_eq!(count, 0, "no more is passed on than was held");
    }
}

impl Link for DelayedLink {
    fn kind(&self) -> LinkKind {
        KIND
    }

    fn traits(&self) -> Traits {
        self.link.traits()
    }

    fn adopt(&mut self, name: Handle) {
        self.link.adopt(name);
        if let Some(scheduled) = &mut self.scheduled {
            scheduled.name = name;
        }
    }

    fn descriptor_ready(&mut self) {
        self.link.descriptor_ready();
    }

    fn transmit(&mut self, outbox: &mut Outbox, budget: usize, more_follows: bool) -> Result<usize, LinkError> {
        self.link.transmit(outbox, budget, more_follows)
    }

    fn receive(&mut self, receiver: &mut dyn Receiver, budget: usize) -> Result<usize, LinkError> {
        let now = (self.clock)();
        self.take_in(now);
        let total = self.give_out(receiver, budget, now)?;
        // Bytes that are due but stay are the beginning of a frame, unless the budget is used up.
        let next = self.due.iter().map(|&(due, _)| due).find(|&due| due > now || total >= budget);
        if let Some(scheduled) = &self.scheduled {
            scheduled.set(next);
        }
        match &self.ended {
            Some(error) if total == 0 && next.is_none() => Err(error.clone()),
            _ => Ok(total),
        }
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.link.descriptor()
    }

    fn abandon(&mut self, outbox: &mut Outbox) -> Vec<Landing> {
        self.landing.take().into_iter().chain(self.link.abandon(outbox)).collect()
    }
}

/// Takes every byte of the link below.
struct Holder<'a>(&'a mut VecDeque<u8>);

impl Receiver for Holder<'_> {
    fn frames(&mut self, bytes: &[u8]) -> Result<Frames, WireError> {
        self.0.extend(bytes);
        Ok(Frames { consumed: bytes.len(), landing: None })
    }

    fn landed(&mut self, _landing: Landing) {
        unreachable!("bytes that are held back have no destination yet")
    }
}
