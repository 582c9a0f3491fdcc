//! A wrapper that makes any link unreliable, for tests of code that uses links.
//!
//! The same seed gives the same faults at the same calls.

use std::os::fd::BorrowedFd;

use crate::arena::Handle;
use crate::error::LinkError;
use crate::link::{Landing, Link, LinkKind, Receiver, Traits};
use crate::outbox::Outbox;

/// Frequency of each fault, in calls per million.
#[derive(Debug, Clone, Copy, Default)]
pub struct Faults {
    /// The link breaks, as by a reset.
    pub reset: u32,
    /// A call moves nothing, as on a slow network.
    pub delay: u32,
    /// From this call on, everything sent is lost and nothing arrives, as if the peer's host were gone.
    pub blackout: u32,
    /// A receive has a budget of one byte: it moves as little as the link can.
    pub dribble: u32,
}

pub struct FaultLink {
    link: Box<dyn Link>,
    faults: Faults,
    random: u64,
    dead: Option<LinkError>,
    black: bool,
}

impl FaultLink {
    /// Wraps `link`; `seed` chooses the faults.
    pub fn new(link: Box<dyn Link>, faults: Faults, seed: u64) -> Self {
        Self { link, faults, random: seed, dead: None, black: false }
    }

    /// SplitMix64 (Steele, Lea, Flood 2014): one draw.
    fn happens(&mut self, per_million: u32) -> bool {
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.random;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % 1_000_000 < u64::from(per_million)
    }

    fn strike(&mut self) -> Result<(), LinkError> {
        if let Some(error) = &self.dead {
            return Err(error.clone());
        }
        if self.happens(self.faults.reset) {
            let error = LinkError::Injected("reset");
            self.dead = Some(error.clone());
            return Err(error);
        }
        self.black |= self.happens(self.faults.blackout);
        Ok(())
    }
}

impl Link for FaultLink {
    fn kind(&self) -> LinkKind {
        self.link.kind()
    }

    fn reason(&self) -> Option<&str> {
        self.link.reason()
    }

    fn traits(&self) -> Traits {
        self.link.traits()
    }

    fn adopt(&mut self, name: Handle) {
        self.link.adopt(name);
    }

    fn descriptor_ready(&mut self) {
        self.link.descriptor_ready();
    }

    fn transmit(&mut self, outbox: &mut Outbox, budget: usize, more_follows: bool) -> Result<usize, LinkError> {
        self.strike()?;
        if self.black {
            let vanished = outbox.pending_bytes().min(budget);
            outbox.advance(vanished);
            return Ok(vanished);
        }
        if self.happens(self.faults.delay) { Ok(0) } else { self.link.transmit(outbox, budget, more_follows) }
    }

    fn receive(&mut self, receiver: &mut dyn Receiver, budget: usize) -> Result<usize, LinkError> {
        self.strike()?;
        if self.black || self.happens(self.faults.delay) {
            return Ok(0);
        }
        let budget = if self.happens(self.faults.dribble) { 1 } else { budget };
        self.link.receive(receiver, budget)
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.link.descriptor()
    }

    fn abandon(&mut self, outbox: &mut Outbox) -> Vec<Landing> {
        self.link.abandon(outbox)
    }
}
