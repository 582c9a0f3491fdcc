//! One shard's open device: its options, the interface for its owner, and state shared by its links.
//!
//! `port/` has the rest: its links, their message buffers, and dispatch of completions.
//!
//! Belongs to its shard, shared by its links; bounded by the device's queues: `credits.rs` limits receive buffers, and work
//! requests are counted, so neither the shared receive queue nor the completion queue can overrun.
#![allow(unsafe_code)]

mod completions;
mod draining;
mod links;
mod messages;

use std::any::Any;
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::os::fd::BorrowedFd;
use std::rc::Rc;
use std::time::Instant;

use draining::Draining;
use hashbrown::HashMap;
use sealane_runtime::{Buffer, Slab, SlabSettings};
use serde::{Deserialize, Serialize};
use zerocopy::{FromBytes, Immutable, IntoBytes};

use super::credits::Buffers;
use super::device::{Access, AsyncEvent, Attributes, Completion, Device, Piece, Status, VerbsError};
use super::failures::Failures;
use super::limits::{
    COMPLETIONS_PER_TURN, DIRECT_LOOK, MESSAGE_BYTES, REGISTERED_LOOK, SEND_BUFFERS, SEND_DEPTH, WINDOW_MIN, WORKS_MAX,
};
use super::regions::Regions;
use super::settings::VerbsSettings;
use crate::arena::{Arena, Handle};
use crate::provider::Told;
use crate::shm::SharedMemory;

/// A device that a shard has opened, shared by all links of the shard.
pub struct Port(RefCell<State>);

/// What a port has done, and what it holds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, Serialize, Deserialize)]
#[repr(C)]
pub struct PortCounters {
    /// Links that have begun.
    pub links_begun: u64,
    /// Links that ended by an error of the device or of the peer's queue pair.
    pub links_failed: u64,
    /// Links that should have been verbs and became TCP.
    pub links_refused: u64,
    /// Registrations for one transfer.
    pub registrations: u64,
    /// Bytes that peers wrote, or that were read from them.
    pub bytes_placed: u64,
    /// Payloads that were sent in messages, by copy, for lack of a registration.
    pub payloads_streamed: u64,
    /// Links that exist now.
    pub links: u64,
    /// Regions that are registered now.
    pub regions: u64,
    /// Receive buffers promised to peers.
    pub receives_promised: u64,
    /// Work requests not known to be done.
    pub works: u64,
    /// Message buffers for sending that are in use.
    pub send_buffers: u64,
    /// Queue pairs of closed links that may still hold receive buffers.
    pub draining: u64,
    /// Queue pairs that were destroyed before the device said that they held none.
    pub undrained: u64,
    /// Regions of device memory that are registered now, by dma-buf.
    pub direct_regions: u64,
    /// Regions of device memory that could not be registered.
    pub direct_refused: u64,
}

/// What has arrived for a link.
pub(super) enum Arrival {
    /// A message in a receive buffer, which is returned with [`State::refill`].
    Message { buffer: u32, bytes: usize },
    /// The immediate data of a write.
    Word(u32),
}

/// A link, as its port knows it.
#[derive(Default)]
pub(super) struct Entry {
    owner: Option<Handle>,
    pub(super) arrivals: VecDeque<Arrival>,
    /// Completed work requests, by number.
    pub(super) completed: VecDeque<(u64, Status)>,
    /// Credit that has come with messages and that the link has not taken yet.
    pub(super) credits: u32,
    /// The link waits for credit.
    pub(super) wants_credit: bool,
    /// Why it must end.
    pub(super) broken: Option<String>,
    /// The queue pair failed, and no longer holds a receive buffer.
    is_drained: bool,
    is_told: bool,
    has_room: bool,
    /// Shared with the link, which checks it in every turn: there is something for it.
    pub(super) has_news: Rc<Cell<bool>>,
}

pub(super) struct State {
    pub(super) device: Box<dyn Device>,
    pub(super) settings: VerbsSettings,
    // After the device, which is dropped first: it may write there as long as it is open.
    receive_buffers: Vec<Buffer>,
    send_buffers: Vec<Buffer>,
    free_send_buffers: Vec<u32>,
    messages_lkey: u32,
    /// Receive buffers to be posted again.
    refill: Vec<(u64, Piece)>,
    pub(super) regions: Regions,
    pub(super) buffers: Buffers,
    links: Arena<Entry>,
    /// Queue pairs of closed links, oldest first.
    draining: VecDeque<Draining>,
    by_number: HashMap<u32, Handle>,
    works: u32,
    works_max: u32,
    /// Kept to reuse its memory.
    completions: Vec<Completion>,
    told: Vec<Handle>,
    /// Links that wait for what others hold: message buffers, or entries of the completion queue.
    waiting: Vec<Handle>,
    /// Why no link can begin.
    down: Option<String>,
    /// Why no link can begin although the port is up: it has no address.
    unaddressed: Option<String>,
    /// No link can ever begin: the device has failed, or this side has lost count of its buffers.
    is_lost: bool,
    pub(super) failures: Failures,
    pub(super) counters: PortCounters,
}

/// Numbers of work requests and completions for which a port's device must be opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Depths {
    /// Entries of the completion queue.
    pub completions: u32,
    /// Work requests of one queue pair.
    pub sends: u32,
}

impl Depths {
    pub fn of(settings: &VerbsSettings) -> Depths {
        // One more, for a queue pair that is stopped.
        Depths { completions: settings.queue_depth + WORKS_MAX + 1, sends: SEND_DEPTH }
    }
}

impl Port {
    /// Takes over an open device: registers message buffers and fills its shared receive queue.
    ///
    /// # Errors
    /// The queues are too short for a single link, or the device does not accept the buffers.
    pub fn open(device: Box<dyn Device>, settings: VerbsSettings) -> Result<Rc<Port>, VerbsError> {
        let attributes = device.attributes();
        let receives = attributes.receive_depth.min(settings.queue_depth);
        let works_max = attributes.completion_depth.saturating_sub(receives + 1).min(WORKS_MAX);
        // With less than this, a single link could stall for lack of room.
        let (receives_min, works_min, sends_min) = (WINDOW_MIN * 2, 8, 8);
        if receives < receives_min || works_max < works_min || attributes.send_depth < sends_min {
            let found = (receives, attributes.completion_depth, attributes.send_depth);
            let reason = format!(
                "{receives_min} receive buffers, {works_min} completions besides and {sends_min} work requests a queue \
                 pair are needed; the device offers {found:?}"
            );
            return Err(VerbsError::new("queue depths (verbs.queue_depth)", reason));
        }
        let bytes = (receives as usize + SEND_BUFFERS) * MESSAGE_BYTES;
        let slab = Slab::new(SlabSettings { name: "verbs messages", bytes, populate: true })
            .map_err(|error| VerbsError::new("message buffers", error.to_string()))?;
        let allocate =
            |_| slab.allocate(MESSAGE_BYTES).map_err(|full| VerbsError::new("message buffers", full.to_string()));
        let receive_buffers = (0..receives).map(allocate).collect::<Result<Vec<_>, _>>()?;
        let send_buffers = (0..SEND_BUFFERS as u32).map(allocate).collect::<Result<Vec<_>, _>>()?;
        let (start, length) = slab.region();
        let mut state = State {
            device,
            settings,
            receive_buffers,
            send_buffers,
            free_send_buffers: (0..SEND_BUFFERS as u32).rev().collect(),
            messages_lkey: 0,
            refill: Vec::with_capacity(receives as usize),
            regions: Regions::default(),
            buffers: Buffers::new(receives),
            links: Arena::new(usize::MAX >> 1),
            draining: VecDeque::new(),
            by_number: HashMap::new(),
            works: 0,
            works_max,
            completions: Vec::with_capacity(COMPLETIONS_PER_TURN),
            told: Vec::new(),
            waiting: Vec::new(),
            down: None,
            unaddressed: None,
            is_lost: false,
            failures: Failures::default(),
            counters: PortCounters::default(),
        };
        // SAFETY: the buffers keep the slab's memory, and are dropped behind the device.
        let region =
            unsafe { state.device.register(super::device::MemoryKind::Host, start as u64, length, Access::Windows) }?;
        state.messages_lkey = region.lkey;
        (0..receives).for_each(|buffer| state.refill(buffer));
        state.post_refills()?;
        if !state.device.attributes().has_windows {
            tracing::warn!("the device has no memory windows: peers could reach all of this shard's registered memory");
        }
        Ok(Rc::new(Port(RefCell::new(state))))
    }

    pub(super) fn state(&self) -> std::cell::RefMut<'_, State> {
        self.0.borrow_mut()
    }

    pub fn attributes(&self) -> Attributes {
        self.state().device.attributes().clone()
    }

    pub fn counters(&self) -> PortCounters {
        let state = self.state();
        let (links, regions) = (state.links.len() as u64, state.regions.counts().0 as u64);
        PortCounters {
            links,
            regions,
            registrations: state.regions.passing_made,
            draining: state.draining.len() as u64,
            direct_regions: state.regions.direct.count() as u64,
            direct_refused: state.regions.direct.refusals(),
            receives_promised: state.buffers.promised().into(),
            works: state.works.into(),
            send_buffers: (SEND_BUFFERS - state.free_send_buffers.len()) as u64,
            ..state.counters
        }
    }

    /// Registers a slab, so that tensors move from and to it without a copy. Does nothing if memory is registered for each
    /// transfer.
    ///
    /// # Errors
    /// The device's error, which names the memory-lock limit if that is the cause.
    pub fn add_slab(&self, slab: &Slab) -> Result<(), VerbsError> {
        let (start, bytes) = slab.region();
        self.add((start as u64, bytes), Box::new(slab.clone()))
    }

    /// Registers memory shared with a client, once it is first used. The time grows with the size, so another thread does it,
    /// and until then tensors travel by copy. If not `may_be_pinned`, they always do.
    pub fn add_shared(&self, memory: &SharedMemory, may_be_pinned: bool) {
        let state = &mut *self.state();
        if memory.is_empty() || state.settings.registration == super::Registration::Dynamic {
            return;
        }
        let range = (memory.base().as_ptr() as u64, memory.len() as usize);
        state.regions.add_later(range, may_be_pinned, Box::new(memory.clone()));
    }

    /// Ends the registration of shared memory, again on the other thread, when the last transfer is done with it.
    pub fn remove_shared(&self, memory: &SharedMemory) {
        let state = &mut *self.state();
        state.regions.remove(&mut *state.device, memory.base().as_ptr() as u64);
    }

    /// Registered bytes of shared memory.
    pub fn pinned_bytes(&self, memory: &SharedMemory) -> u64 {
        self.state().regions.registered_bytes(memory.base().as_ptr() as u64)
    }

    /// Most bytes of a client's memory that may be registered.
    pub fn client_pinned_bytes_max(&self) -> u64 {
        self.state().settings.client_pinned_bytes_max
    }

    fn add(&self, range: (u64, usize), owner: Box<dyn Any>) -> Result<(), VerbsError> {
        let state = &mut *self.state();
        if state.settings.registration == super::Registration::Dynamic {
            return Ok(());
        }
        let access = state.access();
        // SAFETY: the owner keeps the memory mapped, and stays with the region.
        unsafe { state.regions.add(&mut *state.device, range, access, owner) }
    }

    /// Why no verbs link to this peer can begin now; `None` if one can.
    pub fn why_not(&self, peer: &str, now: Instant) -> Option<String> {
        let state = &mut *self.state();
        state.why_none_can().or_else(|| state.failures.why_not(peer, now, state.settings.retry_after))
    }

    /// Why a link to this peer that fell back to TCP should not be replaced by verbs now.
    pub fn why_not_again(&self, peer: &str, now: Instant) -> Option<String> {
        let state = &mut *self.state();
        state.why_none_can().or_else(|| state.failures.why_not_again(peer, now, state.settings.retry_after))
    }

    /// Takes completions, adds to `into` the links that they concern, and returns how many completions there were. If the
    /// device has failed, every link ends, and `into` names them all.
    pub fn poll(&self, into: &mut Vec<Told>) -> usize {
        let mut state = self.state();
        let count = state.take_completions();
        if !state.draining.is_empty() {
            state.go_on_draining();
        }
        if state.regions.awaits() {
            let State { regions, device, .. } = &mut *state;
            regions.take_registered(&mut **device);
        }
        state.tell(into);
        count
    }

    /// True if completions wait to be taken; cheap.
    pub fn peek(&self) -> bool {
        let mut state = self.state();
        state.take_completions();
        !state.told.is_empty()
    }

    /// The next completion will make the completion descriptor readable; false if there is work already.
    pub fn arm(&self, into: &mut Vec<Told>) -> bool {
        let mut state = self.state();
        if let Err(error) = state.device.arm() {
            state.fail_all(&error.to_string());
        }
        state.take_completions();
        state.tell(into);
        into.is_empty()
    }

    /// The completion descriptor was readable.
    pub fn disarm(&self) {
        self.state().device.disarm();
    }

    /// Lends the descriptors to `f`.
    pub fn with_descriptors<T>(&self, f: impl FnOnce([BorrowedFd<'_>; 2]) -> T) -> T {
        let state = self.state();
        f([state.device.completion_descriptor(), state.device.event_descriptor()])
    }

    /// The event descriptor was readable: if a port went down or a device has failed, every link ends.
    pub fn handle_events(&self, into: &mut Vec<Told>) {
        let mut state = self.state();
        state.take_events();
        state.go_on_draining();
        state.tell(into);
    }

    /// The latest time to call [`poll`](Self::poll) again if no descriptor becomes readable.
    pub fn next_timeout(&self) -> Option<Instant> {
        let state = self.state();
        let registered = state.regions.awaits().then(|| Instant::now() + REGISTERED_LOOK);
        let direct = (!state.regions.direct.is_empty()).then(|| Instant::now() + DIRECT_LOOK);
        registered.into_iter().chain(direct).chain(state.draining.front().map(|draining| draining.until)).min()
    }
}

impl State {
    fn take_events(&mut self) {
        while let Some(event) = self.device.next_event() {
            let device = self.device.attributes().device.clone();
            match event {
                AsyncEvent::PortDown => self.go_down(&format!("the port of {device} is down")),
                AsyncEvent::PortUp if self.is_lost => {}
                AsyncEvent::PortUp => {
                    tracing::info!(device, "the port is up: new links use verbs again");
                    self.down = None;
                    self.refresh();
                }
                AsyncEvent::AddressChanged => self.refresh(),
                AsyncEvent::DeviceFailed => self.give_up(&format!("the device {device} has failed or was removed")),
                AsyncEvent::CompletionQueueOverrun => {
                    tracing::error!(device, "the completion queue has overrun: its links end");
                    self.give_up(&format!("the completion queue of {device} has overrun"));
                }
                AsyncEvent::QueuePairFailed(number) => {
                    if let Some(&link) = self.by_number.get(&number) {
                        self.break_link(link, "the queue pair failed (asynchronous event)");
                    }
                }
                AsyncEvent::LastReceive(number) => self.is_drained(number),
            }
        }
    }

    /// Makes offers name the port's current addresses. Links over an address that it no longer has fail on their own.
    fn refresh(&mut self) {
        let Attributes { device, gid, lid, .. } = self.device.attributes().clone();
        self.unaddressed = self.device.refresh().err().map(|error| error.to_string());
        let now = self.device.attributes();
        if let Some(reason) = &self.unaddressed {
            tracing::error!(device, reason, "the port has no address for verbs: new links use TCP until it has one");
        } else if (now.gid, now.lid) != (gid, lid) {
            tracing::info!(device, gid_index = now.gid_index, reason = now.chosen, "the port has another address");
        }
    }

    /// Why no link to any peer can be established now.
    fn why_none_can(&self) -> Option<String> {
        if let Some(reason) = self.down.as_ref().or(self.unaddressed.as_ref()) {
            return Some(reason.clone());
        }
        let depth = self.settings.queue_depth;
        let reason = || format!("all {depth} receive buffers are promised to other links (verbs.queue_depth)");
        (!self.buffers.has_room()).then(reason)
    }

    /// How memory is registered: for windows, if the device has them.
    pub(super) fn access(&self) -> Access {
        if self.device.attributes().has_windows { Access::Windows } else { Access::Peers }
    }
}
