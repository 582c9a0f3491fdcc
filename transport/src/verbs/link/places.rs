//! Places announced with requests, on both sides: addresses where a response may be written without asking first.
//!
//! This side's places stay open until a response has arrived in them or, if it is no longer wanted, until the peer says
//! that nothing is in transit; only then is the memory reused. They are bounded by `WINDOWS_MAX`, the peer's by
//! `PLACES_MAX`.
#![allow(unsafe_code)]

use std::collections::VecDeque;

use hashbrown::HashMap;

use super::outgoing::Outgoing;
use super::queue::Then;
use super::tools::Tools;
use crate::link::Landing;
use crate::outbox::{Announcement, Kept, Revocation};
use crate::verbs::device::{Grant, Remote};
use crate::verbs::limits::{PLACES_MAX, WINDOWS_MAX};
use crate::verbs::message::{BadMessage, Part};
use crate::verbs::port::State;
use crate::verbs::regions::Use;
use crate::verbs::windows::{Opened, Windows};

/// A place announced by the peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct TheirPlace {
    pub(super) remote: Remote,
    pub(super) bytes: u64,
}

struct OurPlace {
    address: u64,
    used: Use,
    opened: Opened,
    /// What is in a revoked place.
    kept: Vec<Kept>,
    step: Step,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Step {
    Open,
    /// The peer must confirm that nothing is on its way.
    Revoking,
    Closing,
}

pub(super) struct Places {
    announces: bool,
    theirs: HashMap<u64, TheirPlace>,
    ours: HashMap<u64, OurPlace>,
    closing: VecDeque<u64>,
}

impl Places {
    pub(super) fn new(announces: bool) -> Self {
        Self { announces, theirs: HashMap::new(), ours: HashMap::new(), closing: VecDeque::new() }
    }

    /// Opens a place and tells the peer, if there is room; otherwise the peer asks when it has the answer.
    pub(super) fn announce(&mut self, tools: &mut Tools<'_>, announcement: Announcement) {
        if !self.announces || self.ours.len() >= WINDOWS_MAX / 2 || !tools.has_room(2) {
            return;
        }
        let Announcement { request, spot } = announcement;
        let (address, bytes) = (spot.address, spot.bytes);
        // SAFETY: the session keeps the destination where it is until an answer has taken it, which then keeps it, or gives
        // it here when it revokes the place; and the use is released before either lets it go.
        let Ok(used) = (unsafe { tools.lend(&spot) }) else { return };
        let Ok(Some(opened)) = tools.open(used, address, bytes, Grant::Write) else {
            return tools.release(used);
        };
        let request = request.to_bits();
        self.ours.insert(request, OurPlace { address, used, opened, kept: Vec::new(), step: Step::Open });
        tools.say(Part::Place { request, bytes: bytes as u64, place: opened.remote });
    }

    /// True if a place of this side may be open for the answer to a request.
    pub(super) fn has(&self, request: u64) -> bool {
        self.ours.contains_key(&request)
    }

    /// An answer begins to come into a place of this side; `None` if the place was not announced for it.
    pub(super) fn take(&mut self, request: u64, address: u64) -> Option<(Use, Opened)> {
        let ours = self.ours.get(&request)?;
        if ours.step != Step::Open || ours.address != address {
            return None;
        }
        let ours = self.ours.remove(&request)?;
        Some((ours.used, ours.opened))
    }

    /// Nobody waits for an answer in a place of this side any more, or the answer came another way.
    pub(super) fn revoke(&mut self, tools: &mut Tools<'_>, revocation: Revocation, landed: &mut Vec<Landing>) {
        let Revocation { request, kept } = revocation;
        let request = request.to_bits();
        // The place was not announced for lack of room, or is already closed.
        let Some(ours) = self.ours.get_mut(&request) else { return let_go(kept, landed) };
        let reply = matches!(kept, Kept::Memory(_));
        ours.kept.push(kept);
        if ours.step != Step::Open {
            return;
        }
        ours.step = if reply { Step::Revoking } else { Step::Closing };
        if !reply {
            self.closing.push_back(request);
        }
        tools.say(Part::Revoke { request, reply });
    }

    /// The peer confirms that nothing is on its way to a revoked place.
    pub(super) fn revoked(&mut self, request: u64) -> Result<(), BadMessage> {
        let ours = self.ours.get_mut(&request).filter(|ours| ours.step == Step::Revoking);
        let ours = ours.ok_or(BadMessage::new("revoked place", request))?;
        ours.step = Step::Closing;
        self.closing.push_back(request);
        Ok(())
    }

    /// Takes in a place announced by the peer.
    pub(super) fn learn(&mut self, request: u64, place: TheirPlace) {
        // If there is no room for a place, this side asks for it when it is needed.
        if self.theirs.len() < PLACES_MAX {
            self.theirs.insert(request, place);
        }
    }

    /// Removes and returns the place that the peer has announced for the answer to a request.
    pub(super) fn find(&mut self, request: u64) -> Option<TheirPlace> {
        if self.theirs.is_empty() { None } else { self.theirs.remove(&request) }
    }

    /// The peer revokes a place of its own.
    pub(super) fn forget(&mut self, tools: &mut Tools<'_>, request: u64, reply: bool, outgoing: &mut Outgoing) {
        self.theirs.remove(&request);
        if reply && !outgoing.revoke(request) {
            tools.say(Part::Revoked { request });
        }
    }

    /// True if work requests wait to be queued.
    pub(super) fn has_unposted(&self) -> bool {
        !self.closing.is_empty()
    }

    /// Queues the work requests that close places.
    pub(super) fn pump(&mut self, tools: &mut Tools<'_>, landed: &mut Vec<Landing>) {
        while let Some(&request) = self.closing.front()
            && tools.has_room(1)
        {
            self.closing.pop_front();
            let Some(ours) = self.ours.get(&request) else { continue };
            match Windows::closing(&ours.opened) {
                Some(work) => tools.push(work, Then::ClosedPlace(request)),
                None => self.closed(tools, request, landed),
            }
        }
    }

    /// The peer can no longer access a place: its memory is free, and an answer in it can be handed on.
    pub(super) fn closed(&mut self, tools: &mut Tools<'_>, request: u64, landed: &mut Vec<Landing>) {
        if let Some(ours) = self.ours.remove(&request) {
            tools.windows.closed(&ours.opened);
            tools.release(ours.used);
            ours.kept.into_iter().for_each(|kept| let_go(kept, landed));
        }
    }

    /// The link ends: reports what was open, so that it can be closed before the memory is released.
    pub(super) fn close_all(&self, windows: &mut Windows) {
        self.ours.values().for_each(|ours| windows.closed(&ours.opened));
    }

    /// Nothing is open any more: releases all memory.
    pub(super) fn clear(&mut self, state: &mut State, landed: &mut Vec<Landing>) {
        for (_, ours) in self.ours.drain() {
            state.regions.release(&mut *state.device, ours.used);
            ours.kept.into_iter().for_each(|kept| let_go(kept, landed));
        }
    }
}

/// The peer can no longer access it.
fn let_go(kept: Kept, landed: &mut Vec<Landing>) {
    match kept {
        Kept::Memory(memory) => drop(memory),
        Kept::Response(mut landing) => {
            landing.is_closed = true;
            landed.push(landing);
        }
    }
}
