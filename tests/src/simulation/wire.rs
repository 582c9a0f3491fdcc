//! The links of the simulated network: what joins two nodes, with faults added; a broken route silences a link, and a host without power
//! never closes one.

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::os::fd::BorrowedFd;
use std::rc::Rc;
use std::time::Instant;

use sealane_transport::error::LinkError;
use sealane_transport::fault::FaultLink;
use sealane_transport::link::{Frames, Landing, Receiver};
use sealane_transport::outbox::Outbox;
use sealane_transport::wire::{Greeting, WireError};
use sealane_transport::{Link, LinkKind};

/// A clock of virtual time.
pub type Clock = Rc<dyn Fn() -> Instant>;

/// Makes the two ends of a link between nodes.
pub type Join = fn(&Clock) -> [Box<dyn Link>; 2];

/// State shared by all wires: which hosts cannot reach each other, and the ends of hosts that lost their power.
#[derive(Default)]
pub(super) struct Air {
    parted: RefCell<BTreeSet<(usize, usize)>>,
    denied: RefCell<BTreeSet<(usize, usize)>>,
    /// Pairs of hosts whose calls were denied at any time.
    once_denied: RefCell<BTreeSet<(usize, usize)>>,
    /// How often all wires were cut.
    cuts: Cell<u32>,
    /// Not dropped before the run ends: the other end would notice.
    lost: RefCell<Vec<FaultLink>>,
}

impl Air {
    pub(super) fn part(&self, one: usize, other: usize) {
        self.parted.borrow_mut().insert((one.min(other), one.max(other)));
    }

    pub(super) fn heal(&self, one: usize, other: usize) {
        self.parted.borrow_mut().remove(&(one.min(other), one.max(other)));
    }

    pub(super) fn deny(&self, one: usize, other: usize) {
        let pair = (one.min(other), one.max(other));
        self.denied.borrow_mut().insert(pair);
        self.once_denied.borrow_mut().insert(pair);
    }

    pub(super) fn trust(&self, one: usize, other: usize) {
        self.denied.borrow_mut().remove(&(one.min(other), one.max(other)));
    }

    pub(super) fn is_denied(&self, one: usize, other: usize) -> bool {
        self.denied.borrow().contains(&(one.min(other), one.max(other)))
    }

    pub(super) fn was_denied(&self, one: usize, other: usize) -> bool {
        self.once_denied.borrow().contains(&(one.min(other), one.max(other)))
    }

    pub(super) fn heal_all(&self) {
        self.parted.borrow_mut().clear();
        self.denied.borrow_mut().clear();
    }

    /// Breaks all existing wires.
    pub(super) fn cut(&self) {
        self.cuts.set(self.cuts.get() + 1);
    }

    pub(super) fn is_parted(&self, one: usize, other: usize) -> bool {
        self.parted.borrow().contains(&(one.min(other), one.max(other)))
    }
}

/// One end of a link.
pub(super) struct Wire {
    /// `None` only while it is being dropped.
    link: Option<FaultLink>,
    ends: (usize, usize),
    air: Rc<Air>,
    /// False once this end's host has lost its power.
    power: Rc<Cell<bool>>,
    /// Value of `Air::cuts` when it was made.
    cuts: u32,
    /// Receives in a thousand that are cut short.
    piecemeal: u32,
    random: u64,
}

impl Wire {
    pub(super) fn new(
        link: FaultLink,
        ends: (usize, usize),
        air: &Rc<Air>,
        power: &Rc<Cell<bool>>,
        piecemeal: u32,
        seed: u64,
    ) -> Self {
        let cuts = air.cuts.get();
        Self { link: Some(link), ends, air: air.clone(), power: power.clone(), cuts, piecemeal, random: seed | 1 }
    }

    fn is_still(&self) -> bool {
        self.air.is_parted(self.ends.0, self.ends.1)
    }

    fn check(&self) -> Result<(), LinkError> {
        if self.cuts == self.air.cuts.get() { Ok(()) } else { Err(LinkError::Injected("cut")) }
    }

    fn link(&mut self) -> &mut FaultLink {
        self.link.as_mut().expect("not dropped")
    }

    /// xorshift64 (Marsaglia 2003): one draw.
    fn draw(&mut self, below: u64) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.random % below
    }
}

impl Link for Wire {
    fn kind(&self) -> LinkKind {
        LinkKind::TCP
    }

    fn transmit(&mut self, outbox: &mut Outbox, budget: usize, more_follows: bool) -> Result<usize, LinkError> {
        self.check()?;
        if self.is_still() { Ok(0) } else { self.link().transmit(outbox, budget, more_follows) }
    }

    fn receive(&mut self, receiver: &mut dyn Receiver, budget: usize) -> Result<usize, LinkError> {
        self.check()?;
        if self.is_still() {
            return Ok(0);
        }
        if self.draw(1000) < u64::from(self.piecemeal) {
            let bytes = self.draw(300) as usize + 1;
            return self.link().receive(&mut Piecemeal { receiver, bytes }, budget);
        }
        self.link().receive(receiver, budget)
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    fn abandon(&mut self, outbox: &mut Outbox) -> Vec<Landing> {
        self.link().abandon(outbox)
    }
}

impl Drop for Wire {
    fn drop(&mut self) {
        if let Some(link) = self.link.take()
            && !self.power.get()
        {
            self.air.lost.borrow_mut().push(link);
        }
    }
}

/// Hands over bytes so that frames end anywhere, as on a socket.
struct Piecemeal<'a> {
    receiver: &'a mut dyn Receiver,
    bytes: usize,
}

impl Receiver for Piecemeal<'_> {
    fn frames(&mut self, bytes: &[u8]) -> Result<Frames, WireError> {
        let shown = bytes.len().min(self.bytes);
        self.receiver.frames(&bytes[..shown])
    }

    fn landed(&mut self, landing: Landing) {
        self.receiver.landed(landing);
    }
}

/// Takes a greeting and leaves what follows on the link.
#[derive(Default)]
pub(super) struct Ear(pub(super) Option<Greeting>);

impl Receiver for Ear {
    fn frames(&mut self, bytes: &[u8]) -> Result<Frames, WireError> {
        let mut consumed = 0;
        if self.0.is_none()
            && let Some((greeting, length)) = Greeting::parse(bytes)?
        {
            self.0 = Some(greeting);
            consumed = length;
        }
        Ok(Frames { consumed, landing: None })
    }

    fn landed(&mut self, _: Landing) {
        unreachable!("greetings bring no payload")
    }
}
