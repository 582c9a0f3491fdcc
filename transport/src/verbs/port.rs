//! One shard's open device: message buffers, completions handed to their links, and what links share.
//!
//! Lives on its shard, shared by its links; bounded by the device's queues: receive buffers are promised by `credits.rs`,
//! work requests are counted, so neither the shared receive queue nor the completion queue can overrun.
#![allow(unsafe_code)]

use std::any::Any;
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};
use std::rc::Rc;
use std::time::{Duration, Instant};

use hashbrown::HashMap;
use sealane_runtime::{Buffer, Slab, SlabSettings};

use super::credits::{Buffers, Credits};
use super::device::{
    Access, AsyncEvent, Attributes, Completion, Device, Endpoint, Piece, QueuePair, RECEIVED, Status, VerbsError,
};
use super::failures::Failures;
use super::limits::{COMPLETIONS_PER_TURN, MESSAGE_BYTES, SEND_BUFFERS, SEND_DEPTH, WINDOW_MIN, WORKS_MAX};
use super::regions::Regions;
use super::settings::VerbsSettings;
use crate::arena::{Arena, Handle};
use crate::shm::SharedMemory;

/// A device that a shard has opened, for all links of the shard. See the module.
pub struct Port(RefCell<State>);

/// What a link's owner is to do about it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Told {
    /// The name that the link was adopted under.
    pub link: Handle,
    /// It may have room, or something of its own to do, besides what has come.
    pub has_room: bool,
}

/// What a port has done and holds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PortCounters {
    /// Links that have begun.
    pub links_begun: u64,
    /// Links that ended by an error of the device or of the peer's queue pair.
    pub links_failed: u64,
    /// Links that were to be verbs, and became TCP.
    pub links_refused: u64,
    /// Registrations for one transfer.
    pub registrations: u64,
    /// Bytes that peers wrote, or that were read from them.
    pub bytes_placed: u64,
    /// Payloads that went in messages, by copy, for want of a registration.
    pub payloads_streamed: u64,
    /// Links that stand.
    pub links: u64,
    /// Regions that stand.
    pub regions: u64,
    /// Receive buffers that are promised to peers.
    pub receives_promised: u64,
    /// Work requests that are not known to be done.
    pub works: u64,
    /// Message buffers for sending that are in use.
    pub send_buffers: u64,
}

/// What has come for a link.
pub(super) enum Arrival {
    /// A message in a receive buffer, which is given back with [`State::refill`].
    Message { buffer: u32, bytes: usize },
    /// The word of a write.
    Word(u32),
}

/// A link, as its port knows it.
#[derive(Default)]
pub(super) struct Entry {
    owner: Option<Handle>,
    pub(super) arrivals: VecDeque<Arrival>,
    /// Work requests that have completed, by their numbers.
    pub(super) completed: VecDeque<(u64, Status)>,
    /// Why it ends.
    pub(super) broken: Option<String>,
    is_told: bool,
    has_room: bool,
    /// Shared with the link, which looks at it in every turn: there is something for it.
    pub(super) has_news: Rc<Cell<bool>>,
}

pub(super) struct State {
    pub(super) device: Box<dyn Device>,
    pub(super) settings: VerbsSettings,
    // Behind the device, which is dropped first: it may write there as long as it is open.
    receive_buffers: Vec<Buffer>,
    send_buffers: Vec<Buffer>,
    free_send_buffers: Vec<u32>,
    messages_lkey: u32,
    /// Receive buffers to be posted again.
    refill: Vec<(u64, Piece)>,
    pub(super) regions: Regions,
    pub(super) buffers: Buffers,
    links: Arena<Entry>,
    by_number: HashMap<u32, Handle>,
    works: u32,
    works_max: u32,
    /// Kept to reuse its memory.
    completions: Vec<Completion>,
    told: Vec<Handle>,
    /// Links that wait for what others hold: message buffers, entries of the completion queue.
    waiting: Vec<Handle>,
    /// Why no link can begin.
    down: Option<String>,
    /// And none will: the device has failed, or this side has lost count of it.
    is_lost: bool,
    pub(super) failures: Failures,
    pub(super) counters: PortCounters,
}

/// Work requests of all links, and completions, that a port is opened for: what to open its device with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Depths {
    /// Entries of the completion queue.
    pub completions: u32,
    /// Work requests of one queue pair.
    pub sends: u32,
}

impl Depths {
    /// What `settings` need.
    pub fn of(settings: &VerbsSettings) -> Depths {
        Depths { completions: settings.queue_depth + WORKS_MAX, sends: SEND_DEPTH }
    }
}

impl Port {
    /// Takes over an open device: registers message buffers and fills its shared receive queue.
    ///
    /// # Errors
    /// The queues are too short for a single link, or the device does not take the buffers.
    pub fn open(device: Box<dyn Device>, settings: VerbsSettings) -> Result<Rc<Port>, VerbsError> {
        let attributes = device.attributes();
        let receives = attributes.receive_depth.min(settings.queue_depth);
        let works_max = attributes.completion_depth.saturating_sub(receives).min(WORKS_MAX);
        // Less than this and a single link could stop for want of room.
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
            by_number: HashMap::new(),
            works: 0,
            works_max,
            completions: Vec::with_capacity(COMPLETIONS_PER_TURN),
            told: Vec::new(),
            waiting: Vec::new(),
            down: None,
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

    /// What the device is.
    pub fn attributes(&self) -> Attributes {
        self.state().device.attributes().clone()
    }

    /// What this port has done and holds.
    pub fn counters(&self) -> PortCounters {
        let state = self.state();
        let (links, regions) = (state.links.len() as u64, state.regions.counts().0 as u64);
        PortCounters {
            links,
            regions,
            registrations: state.regions.passing_made,
            receives_promised: state.buffers.promised().into(),
            works: state.works.into(),
            send_buffers: (SEND_BUFFERS - state.free_send_buffers.len()) as u64,
            ..state.counters
        }
    }

    /// Registers a slab, so that tensors move from and to it without a copy. Does nothing where memory is registered for
    /// each transfer.
    ///
    /// # Errors
    /// The device's, which name the memory-lock limit where that is why.
    pub fn add_slab(&self, slab: &Slab) -> Result<(), VerbsError> {
        let (start, bytes) = slab.region();
        self.add((start as u64, bytes), Box::new(slab.clone()))
    }

    /// The same for memory that is shared with a client.
    ///
    /// # Errors
    /// Those of [`add_slab`](Self::add_slab).
    pub fn add_shared(&self, memory: &SharedMemory) -> Result<(), VerbsError> {
        if memory.is_empty() {
            return Ok(());
        }
        self.add((memory.base().as_ptr() as u64, memory.len() as usize), Box::new(memory.clone()))
    }

    /// Ends the registration of memory that was shared, at once or when the last transfer is done with it.
    pub fn remove_shared(&self, memory: &SharedMemory) {
        let state = &mut *self.state();
        state.regions.remove(&mut *state.device, memory.base().as_ptr() as u64);
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
        if let Some(reason) = &state.down {
            return Some(reason.clone());
        }
        if !state.buffers.has_room() {
            let depth = state.settings.queue_depth;
            return Some(format!("all {depth} receive buffers are promised to other links (verbs.queue_depth)"));
        }
        state.failures.why_not(peer, now, state.settings.retry_after)
    }

    /// Takes completions, and says in `into` which links they concern. How many there were.
    ///
    /// # Errors
    /// The device has failed; every link has ended with that, and `into` names them.
    pub fn poll(&self, into: &mut Vec<Told>) -> usize {
        let mut state = self.state();
        let count = state.take_completions();
        state.tell(into);
        count
    }

    /// True if completions wait to be taken; cheap.
    pub fn glance(&self) -> bool {
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

    /// The descriptors to watch for reading: of completions, and of events.
    pub fn descriptors(&self) -> [RawFd; 2] {
        let state = self.state();
        [state.device.completion_descriptor().as_raw_fd(), state.device.event_descriptor().as_raw_fd()]
    }

    /// Lends the descriptors to `f`.
    pub fn with_descriptors<T>(&self, f: impl FnOnce([BorrowedFd<'_>; 2]) -> T) -> T {
        let state = self.state();
        f([state.device.completion_descriptor(), state.device.event_descriptor()])
    }

    /// The event descriptor was readable: a port that went down ends every link, and so does a device that has failed.
    pub fn handle_events(&self, into: &mut Vec<Told>) {
        let mut state = self.state();
        while let Some(event) = state.device.next_event() {
            let device = state.device.attributes().device.clone();
            match event {
                AsyncEvent::PortDown => state.go_down(&format!("the port of {device} is down")),
                AsyncEvent::PortUp if state.is_lost => {}
                AsyncEvent::PortUp => {
                    tracing::info!(device, "the port is up: new links use verbs again");
                    state.down = None;
                }
                AsyncEvent::DeviceFailed => state.give_up(&format!("the device {device} has failed or was removed")),
                AsyncEvent::CompletionQueueOverrun => {
                    tracing::error!(device, "the completion queue has overrun: its links end");
                    state.give_up(&format!("the completion queue of {device} has overrun"));
                }
                AsyncEvent::QueuePairFailed(number) => {
                    if let Some(&link) = state.by_number.get(&number) {
                        state.break_link(link, "the queue pair failed (asynchronous event)");
                    }
                }
            }
        }
        state.tell(into);
    }

    /// How long the oldest record of a failing peer is kept at most.
    pub fn retry_after(&self) -> Duration {
        self.state().settings.retry_after
    }
}

impl State {
    /// How memory is registered: for windows, where the device has them.
    pub(super) fn access(&self) -> Access {
        if self.device.attributes().has_windows { Access::Windows } else { Access::Peers }
    }

    /// A new link's queue pair, what its peer is to know of it, and its share of receive buffers.
    pub(super) fn begin_link(&mut self) -> Result<(Handle, QueuePair, Endpoint, Credits), VerbsError> {
        let queue_pair = self.device.create()?;
        let Some(credits) = Credits::begin(&mut self.buffers) else {
            self.device.destroy(queue_pair.id);
            return Err(VerbsError::new("receive buffers (verbs.queue_depth)", "all are promised to other links"));
        };
        assert!(self.buffers.promised() <= self.receive_buffers.len() as u32, "a promise without a buffer");
        let Ok(link) = self.links.insert(Entry::default()) else {
            unreachable!("links are fewer than numbers of queue pairs")
        };
        self.by_number.insert(queue_pair.number, link);
        let attributes = self.device.attributes();
        let endpoint = Endpoint {
            number: queue_pair.number,
            first_packet: first_packet(queue_pair.id),
            gid: attributes.gid,
            lid: attributes.lid,
            mtu: attributes.mtu,
            reads: attributes.reads,
        };
        Ok((link, queue_pair, endpoint, credits))
    }

    /// Ends a link: nothing of its peer's reaches memory of this side any more, and its outstanding work requests, of which
    /// there were `works`, are forgotten.
    pub(super) fn end_link(&mut self, link: Handle, queue_pair: &QueuePair, credits: &Credits, works: u32) {
        self.device.destroy(queue_pair.id);
        // What it has left in the completion queue is handed out under its number, which may be another's later.
        while self.take_completions() > 0 {}
        self.by_number.remove(&queue_pair.number);
        self.retired(works);
        credits.end(&mut self.buffers);
        if let Some(entry) = self.links.remove(link) {
            for arrival in entry.arrivals {
                if let Arrival::Message { buffer, .. } = arrival {
                    self.refill(buffer);
                }
            }
        }
        // An error has put the port out of use.
        let _ = self.post_refills();
    }

    /// True if something has come for a link that it has not taken, as far as the device tells now.
    pub(super) fn has_more(&mut self, link: Handle) -> bool {
        while self.take_completions() > 0 {}
        !self.entry(link).arrivals.is_empty()
    }

    pub(super) fn entry(&mut self, link: Handle) -> &mut Entry {
        self.links.get_mut(link).expect("a link has its entry until it ends")
    }

    /// The owner of a link wants to hear of it under this name.
    pub(super) fn adopt(&mut self, link: Handle, owner: Handle) {
        let entry = self.entry(link);
        entry.owner = Some(owner);
        if entry.is_told {
            self.told.push(link);
        }
    }

    /// True if so many work requests may be posted.
    #[inline]
    pub(super) fn has_room_for(&self, works: u32) -> bool {
        self.works + works <= self.works_max
    }

    #[inline]
    pub(super) fn posted(&mut self, works: u32) {
        self.works += works;
        debug_assert!(self.works <= self.works_max);
    }

    #[inline]
    pub(super) fn retired(&mut self, works: u32) {
        self.works -= works;
        self.wake_waiting();
    }

    /// A link could not go on for want of what others hold, and is to be told when there may be some.
    pub(super) fn wait(&mut self, link: Handle) {
        if !self.waiting.contains(&link) {
            self.waiting.push(link);
        }
    }

    #[inline]
    fn wake_waiting(&mut self) {
        while let Some(link) = self.waiting.pop() {
            self.mark_told(link, true);
        }
    }

    /// The owner of a link is to be told.
    fn mark_told(&mut self, link: Handle, has_room: bool) {
        let Some(entry) = self.links.get_mut(link) else { return };
        entry.has_room |= has_room;
        entry.has_news.set(true);
        if !std::mem::replace(&mut entry.is_told, true) && entry.owner.is_some() {
            self.told.push(link);
        }
    }

    /// A buffer to write a message into.
    #[inline]
    pub(super) fn take_send_buffer(&mut self) -> Option<u32> {
        self.free_send_buffers.pop()
    }

    #[inline]
    pub(super) fn free_send_buffer(&mut self, buffer: u32) {
        self.free_send_buffers.push(buffer);
        self.wake_waiting();
    }

    /// Takes the memory of a message buffer out, to be put back.
    #[inline]
    pub(super) fn lift_send_buffer(&mut self, buffer: u32) -> Buffer {
        std::mem::take(&mut self.send_buffers[buffer as usize])
    }

    #[inline]
    pub(super) fn put_down_send_buffer(&mut self, buffer: u32, memory: Buffer) {
        self.send_buffers[buffer as usize] = memory;
    }

    /// The same for a buffer in which a message has come.
    #[inline]
    pub(super) fn lift_receive_buffer(&mut self, buffer: u32) -> Buffer {
        std::mem::take(&mut self.receive_buffers[buffer as usize])
    }

    #[inline]
    pub(super) fn put_down_receive_buffer(&mut self, buffer: u32, memory: Buffer) {
        self.receive_buffers[buffer as usize] = memory;
    }

    /// True if few message buffers are left, or little of the completion queue, so that completions are wanted sooner.
    #[inline]
    pub(super) fn is_short(&self) -> bool {
        self.free_send_buffers.len() < SEND_BUFFERS / 4 || self.works * 2 >= self.works_max
    }

    #[inline]
    pub(super) fn send_buffer(&mut self, buffer: u32) -> &mut [u8] {
        &mut self.send_buffers[buffer as usize]
    }

    /// The first `bytes` of a message buffer, for the device.
    #[inline]
    pub(super) fn message_piece(&self, buffer: u32, bytes: usize) -> Piece {
        let address = self.send_buffers[buffer as usize].as_ptr() as u64;
        Piece { address, bytes: bytes as u32, lkey: self.messages_lkey }
    }

    /// A receive buffer is to be posted again, by [`post_refills`](Self::post_refills).
    #[inline]
    pub(super) fn refill(&mut self, buffer: u32) {
        let memory = &mut self.receive_buffers[buffer as usize];
        let piece =
            Piece { address: memory.as_mut_ptr() as u64, bytes: MESSAGE_BYTES as u32, lkey: self.messages_lkey };
        self.refill.push((RECEIVED | u64::from(buffer), piece));
    }

    /// Gives the shared receive queue what was taken from it. If it does not take it, the port is out of use: there are fewer
    /// buffers than are promised.
    #[inline]
    pub(super) fn post_refills(&mut self) -> Result<(), VerbsError> {
        if self.refill.is_empty() {
            return Ok(());
        }
        // SAFETY: the buffers outlive the device, and are looked at only between their completion and now.
        let posted = unsafe { self.device.post_receives(&self.refill) };
        self.refill.clear();
        posted.inspect_err(|error| self.give_up(&error.to_string()))
    }

    /// Moves completions to their links; how many there were.
    #[inline]
    fn take_completions(&mut self) -> usize {
        match self.device.poll(&mut self.completions, COMPLETIONS_PER_TURN) {
            Ok(0) => 0,
            polled => self.hand_out_all(polled),
        }
    }

    fn hand_out_all(&mut self, polled: Result<usize, VerbsError>) -> usize {
        let mut completions = std::mem::take(&mut self.completions);
        for completion in &completions {
            self.hand_out(completion);
        }
        completions.clear();
        self.completions = completions;
        match polled {
            Ok(count) => {
                // An error has put the port out of use.
                let _ = self.post_refills();
                count
            }
            Err(error) => {
                self.give_up(&error.to_string());
                0
            }
        }
    }

    #[inline]
    fn hand_out(&mut self, completion: &Completion) {
        let link = self.by_number.get(&completion.queue_pair).copied();
        let has_come = completion.id & RECEIVED != 0;
        let buffer = (completion.id & !RECEIVED) as u32;
        let Some(link) = link else {
            if has_come {
                self.refill(buffer);
            }
            return;
        };
        let entry = self.links.get_mut(link).expect("a number goes with its link");
        let mut has_room = true;
        if !has_come {
            entry.completed.push_back((completion.id, completion.status));
        } else if !completion.status.is_success() {
            entry.broken.get_or_insert_with(|| format!("receive: {}", completion.status));
            self.refill(buffer);
        } else if let Some(word) = completion.word {
            entry.arrivals.push_back(Arrival::Word(word));
            has_room = false;
            self.refill(buffer);
        } else {
            entry.arrivals.push_back(Arrival::Message { buffer, bytes: completion.bytes as usize });
            has_room = false;
        }
        self.mark_told(link, has_room);
    }

    fn tell(&mut self, into: &mut Vec<Told>) {
        for link in self.told.drain(..) {
            let Some(entry) = self.links.get_mut(link) else { continue };
            entry.is_told = false;
            if let Some(owner) = entry.owner {
                into.push(Told { link: owner, has_room: std::mem::take(&mut entry.has_room) });
            }
        }
    }

    /// Ends a link at its next call.
    pub(super) fn break_link(&mut self, link: Handle, reason: &str) {
        let Some(entry) = self.links.get_mut(link) else { return };
        entry.broken.get_or_insert_with(|| reason.to_owned());
        self.mark_told(link, true);
    }

    fn fail_all(&mut self, reason: &str) {
        for link in self.links.select(|_| true) {
            self.break_link(link, reason);
        }
    }

    /// No link can begin any more, ever, and all that stand end.
    fn give_up(&mut self, reason: &str) {
        self.is_lost = true;
        self.go_down(reason);
    }

    /// No link can begin any more until the port comes up, and all that stand end.
    pub(super) fn go_down(&mut self, reason: &str) {
        if self.down.is_none() {
            tracing::error!(reason, "verbs are out of use: links go on by TCP");
            self.down = Some(reason.to_owned());
        }
        self.fail_all(reason);
    }
}

/// The number of a queue pair's first packet: 24 bits that differ from link to link, so that packets of a former link are
/// not taken for the new one's.
fn first_packet(id: u64) -> u32 {
    use std::hash::{BuildHasher, RandomState};
    (RandomState::new().hash_one(id) & 0xff_ffff) as u32
}
