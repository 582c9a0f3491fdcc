//! All devices of a fabric, their queue pairs and what is in flight between them: the state behind the fabric's lock.
//!
//! Calls of devices come in here; `delivery.rs` carries out what they post. Bounded by the depths of the devices and by
//! what is registered, allocated and created.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use nix::sys::eventfd::EventFd;

use super::counters::Counters;
use super::fault::{Fault, Verb, Waiting, Weather};
use super::memory::Memory;
use super::protection::{Protection, lkey};
use super::queue_pair::{Connection, Outstanding, QueuePair, State};
use super::queues::{CompletionQueue, Events};
use super::random::Random;
use super::settings::FakeSettings;
use crate::verbs::device::{
    Access, AsyncEvent, Completion, Endpoint, Piece, Post, QueuePair as Handle, RECEIVED, Region, STOPPED, Status,
    VerbsError, Window, Work,
};

/// Numbers of queue pairs and indices of keys have 24 bits, and are never reused.
pub(super) const NUMBERS: u32 = 1 << 24;

/// Added to a queue pair's number to form its id, so that one is not mistaken for the other.
const ID_ABOVE_NUMBER: u64 = 1 << 32;

/// What all devices with the same name share.
pub(super) struct Adapter {
    pub(super) name: String,
    pub(super) gid: [u8; 16],
    pub(super) lid: u16,
    pub(super) is_down: bool,
    pub(super) faults: Waiting,
    pub(super) counters: Counters,
}

/// One open device.
pub(super) struct Context {
    pub(super) adapter: usize,
    pub(super) settings: FakeSettings,
    pub(super) protection: Protection,
    /// Posted buffers, oldest first.
    pub(super) receives: VecDeque<(u64, Piece)>,
    /// Number of buffers posted whose completion was not polled.
    pub(super) receives_held: u32,
    /// Number of posted requests that may still have a completion, as far as the poster knows.
    pub(super) sends_held: u32,
    pub(super) completions: CompletionQueue,
    pub(super) events: Events,
    pub(super) has_failed: bool,
    pub(super) has_overrun: bool,
}

/// The fabric's state.
pub(super) struct Network {
    pub(super) adapters: Vec<Adapter>,
    pub(super) contexts: BTreeMap<u32, Context>,
    /// By number.
    pub(super) queue_pairs: BTreeMap<u32, QueuePair>,
    /// Numbers of queue pairs with requests that are not acknowledged.
    pub(super) busy: BTreeSet<u32>,
    /// Stopped queue pairs, and when they return their receive buffers.
    pub(super) draining: BTreeMap<u32, u64>,
    /// Number of polls so far.
    pub(super) clock: u64,
    pub(super) is_paused: bool,
    pub(super) climate: Vec<Weather>,
    pub(super) random: Random,
    pub(super) violations: Vec<String>,
    next_context: u32,
    pub(super) next_index: u32,
    pub(super) next_number: u32,
}

impl Network {
    pub(super) fn new(seed: u64) -> Self {
        Self {
            adapters: Vec::new(),
            contexts: BTreeMap::new(),
            queue_pairs: BTreeMap::new(),
            busy: BTreeSet::new(),
            draining: BTreeMap::new(),
            clock: 0,
            is_paused: false,
            climate: Vec::new(),
            random: Random::new(seed),
            violations: Vec::new(),
            next_context: 0,
            next_index: 1,
            next_number: 1,
        }
    }

    /// The adapter with this name, created if there is none.
    pub(super) fn adapter(&mut self, name: &str) -> usize {
        self.adapters.iter().position(|adapter| adapter.name == name).unwrap_or_else(|| {
            let index = self.adapters.len();
            let mut gid = [0; 16];
            // An IPv4 address, 10.x.x.x, as RoCE v2 maps it.
            gid[10..13].copy_from_slice(&[0xff, 0xff, 10]);
            gid[13..].copy_from_slice(&(index as u32 + 1).to_be_bytes()[1..]);
            let (faults, counters) = (Waiting::default(), Counters::default());
            self.adapters.push(Adapter { name: name.into(), gid, lid: 0, is_down: false, faults, counters });
            index
        })
    }

    /// Opens a device; returns its number, and its adapter's GID.
    pub(super) fn open(
        &mut self,
        settings: FakeSettings,
        (completion_bell, event_bell): (Arc<EventFd>, Arc<EventFd>),
    ) -> (u32, [u8; 16]) {
        let adapter = self.adapter(&settings.name);
        let number = self.next_context;
        self.next_context += 1;
        let context = Context {
            adapter,
            protection: Protection::default(),
            receives: VecDeque::new(),
            receives_held: 0,
            sends_held: 0,
            completions: CompletionQueue::new(settings.completion_depth, completion_bell),
            events: Events::new(event_bell),
            has_failed: false,
            has_overrun: false,
            settings,
        };
        self.contexts.insert(number, context);
        (number, self.adapters[adapter].gid)
    }

    /// The device is dropped, and with it everything that it has.
    pub(super) fn close(&mut self, context: u32) {
        let queue_pairs = self.queue_pairs_of(|of, _| of == context);
        for &number in &queue_pairs {
            self.busy.remove(&number);
            self.draining.remove(&number);
            self.queue_pairs.remove(&number);
        }
        if let Some(closed) = self.contexts.remove(&context) {
            let (regions, windows) = closed.protection.counts();
            let counters = &mut self.adapters[closed.adapter].counters;
            counters.regions -= regions;
            counters.windows -= windows;
            counters.queue_pairs -= queue_pairs.len() as u64;
            counters.left_behind += regions + windows + queue_pairs.len() as u64;
        }
    }

    /// Numbers of the queue pairs that `wanted` selects by their device's number and adapter.
    pub(super) fn queue_pairs_of(&self, wanted: impl Fn(u32, usize) -> bool) -> Vec<u32> {
        let is_wanted = |queue_pair: &QueuePair| wanted(queue_pair.context, self.contexts[&queue_pair.context].adapter);
        self.queue_pairs.iter().filter(|(_, queue_pair)| is_wanted(queue_pair)).map(|(&number, _)| number).collect()
    }

    pub(super) fn context(&mut self, number: u32) -> &mut Context {
        self.contexts.get_mut(&number).expect("a device that is open, or has a queue pair")
    }

    pub(super) fn counters(&mut self, context: u32) -> &mut Counters {
        let adapter = self.contexts[&context].adapter;
        &mut self.adapters[adapter].counters
    }

    /// Fails if the device has failed, or the call should fail.
    pub(super) fn admit(&mut self, context: u32, verb: Verb) -> Result<(), VerbsError> {
        if self.contexts[&context].has_failed {
            return Err(verb.error(DEVICE_FAILED));
        }
        let adapter = self.contexts[&context].adapter;
        self.adapters[adapter].faults.fails(verb)
    }

    fn index(&mut self, verb: Verb) -> Result<u32, VerbsError> {
        if self.next_index == NUMBERS {
            return Err(verb.error("all keys of the fabric were used"));
        }
        self.next_index += 1;
        Ok(self.next_index - 1)
    }

    pub(super) fn register(&mut self, context: u32, memory: Memory, access: Access) -> Result<Region, VerbsError> {
        let index = self.index(Verb::Register)?;
        let counters = self.counters(context);
        counters.registrations += 1;
        counters.regions += 1;
        Ok(self.context(context).protection.register(index, memory, access))
    }

    /// A call has registered or deregistered `bytes` bytes before it returned.
    pub(super) fn note_call(&mut self, context: u32, bytes: u64) {
        let counters = self.counters(context);
        counters.register_call_bytes_max = counters.register_call_bytes_max.max(bytes);
    }

    /// Deregisters a region; returns its size in bytes.
    pub(super) fn deregister(&mut self, context: u32, region: u32) -> u64 {
        let uses = |piece: &Piece| piece.bytes > 0 && piece.lkey == lkey(region);
        let mut pending = self.queue_pairs.values().filter(|of| of.context == context).flat_map(|of| &of.pending);
        if pending.any(|request| match &request.work {
            Work::Send(piece) | Work::Write { from: piece, .. } | Work::Read { into: piece, .. } => uses(piece),
            Work::Bind { region: bound, .. } => *bound == region,
            Work::SendInline { .. } | Work::Invalidate { .. } => false,
        }) {
            self.violations.push(format!("region {region} was deregistered under a posted request"));
        }
        let found = self.context(context);
        if found.receives.iter().any(|(_, piece)| uses(piece)) {
            self.violations.push(format!("region {region} was deregistered under a posted receive buffer"));
        }
        let found = self.context(context);
        let (bytes, orphans) = (found.protection.deregister(region), found.protection.orphan_of_region(region));
        if orphans > 0 {
            self.violations.push(format!("region {region} was deregistered with {orphans} windows bound to it"));
        }
        if bytes.is_some() {
            self.counters(context).regions -= 1;
        } else {
            self.violations.push(format!("region {region} was deregistered, and is not there"));
        }
        bytes.unwrap_or(0)
    }

    pub(super) fn allocate_window(&mut self, context: u32) -> Result<Window, VerbsError> {
        self.admit(context, Verb::AllocateWindow)?;
        if !self.contexts[&context].settings.has_windows {
            return Err(Verb::AllocateWindow.error("the device has no windows"));
        }
        let index = self.index(Verb::AllocateWindow)?;
        let counters = self.counters(context);
        counters.allocations += 1;
        counters.windows += 1;
        Ok(self.context(context).protection.allocate(index))
    }

    pub(super) fn free_window(&mut self, context: u32, window: u32) {
        if self.context(context).protection.free(window) {
            self.counters(context).windows -= 1;
        } else {
            self.violations.push(format!("window {window} was freed, and is not there"));
        }
    }

    pub(super) fn create(&mut self, context: u32) -> Result<Handle, VerbsError> {
        self.admit(context, Verb::Create)?;
        let number = self.next_number;
        if number == NUMBERS {
            return Err(Verb::Create.error("all numbers of the fabric were used"));
        }
        self.next_number += 1;
        self.queue_pairs.insert(number, QueuePair::new(context));
        let counters = self.counters(context);
        counters.creations += 1;
        counters.queue_pairs += 1;
        let inline_bytes = self.contexts[&context].settings.inline_bytes;
        Ok(Handle { id: ID_ABOVE_NUMBER + u64::from(number), number, inline_bytes })
    }

    /// The number of a queue pair that belongs to the device.
    fn own(&self, context: u32, id: u64) -> Option<u32> {
        let number = u32::try_from(id.checked_sub(ID_ABOVE_NUMBER)?).ok()?;
        self.queue_pairs.get(&number).filter(|found| found.context == context).map(|_| number)
    }

    pub(super) fn connect(
        &mut self,
        context: u32,
        id: u64,
        first_packet: u32,
        peer: Endpoint,
    ) -> Result<(), VerbsError> {
        self.admit(context, Verb::Connect)?;
        let refuse = |reason: &str| Err(Verb::Connect.error(reason));
        let Some(number) = self.own(context, id) else {
            return refuse("no such queue pair");
        };
        if first_packet >= NUMBERS || peer.first_packet >= NUMBERS || peer.number >= NUMBERS {
            return refuse("a number has more than 24 bits");
        }
        if !matches!(peer.mtu, 256 | 512 | 1024 | 2048 | 4096) {
            return refuse("the peer's MTU is none of the five");
        }
        let mtu = self.contexts[&context].settings.mtu.min(peer.mtu);
        let queue_pair = self.queue_pairs.get_mut(&number).expect("found above");
        if !matches!(queue_pair.state, State::Idle) {
            return refuse("the queue pair was connected before");
        }
        queue_pair.state = State::Connected(Connection { first_packet, mtu, peer });
        Ok(())
    }

    /// Stops a queue pair. True if it was connected: what it holds is flushed, and the rest follows.
    pub(super) fn stop(&mut self, context: u32, id: u64) -> bool {
        let Some(number) = self.own(context, id) else {
            self.violations.push(format!("queue pair {id:#x} was stopped, and is not there"));
            return false;
        };
        if self.contexts[&context].has_failed || matches!(self.queue_pairs[&number].state, State::Idle) {
            return false;
        }
        self.fail(number, None);
        let last = Post { id: STOPPED, signaled: true, work: Work::Invalidate { rkey: 0 } };
        self.enqueue(number, &last, Box::default());
        self.context(context).protection.orphan_of_queue_pair(number);
        let due = self.clock + u64::from(self.contexts[&context].settings.drain_polls);
        self.draining.insert(number, due);
        self.drain();
        true
    }

    /// Stopped queue pairs whose time has come return their receive buffers, and report it.
    pub(super) fn drain(&mut self) {
        let is_due = |number: &u32, due: u64| {
            let context = &self.contexts[&self.queue_pairs[number].context];
            due <= self.clock || context.completions.is_armed()
        };
        let over: Vec<u32> =
            self.draining.iter().filter(|(number, due)| is_due(number, **due)).map(|(&number, _)| number).collect();
        for number in over {
            self.draining.remove(&number);
            let queue_pair = self.queue_pairs.get_mut(&number).expect("what drains is there");
            let context = queue_pair.context;
            if let Some(id) = queue_pair.partial.take() {
                let (status, bytes) = (Status::FLUSHED, 0);
                self.tell_completion(context, Completion { id, status, queue_pair: number, bytes, word: None }, 0);
            }
            if self.contexts[&context].settings.tells_last_receive {
                self.context(context).events.push(AsyncEvent::LastReceive(number));
            }
        }
    }

    pub(super) fn destroy(&mut self, context: u32, id: u64) {
        let Some(number) = self.own(context, id) else {
            self.violations.push(format!("queue pair {id:#x} was destroyed, and is not there"));
            return;
        };
        self.busy.remove(&number);
        self.draining.remove(&number);
        let gone = self.queue_pairs.remove(&number).expect("found above");
        let found = self.context(context);
        // A flushed buffer that was not polled is lost as well.
        let before = found.completions.entries.len();
        found.completions.entries.retain(|entry| {
            let Completion { queue_pair, status, .. } = entry.completion;
            !(entry.is_receive() && queue_pair == number && status == Status::FLUSHED)
        });
        let lost = before - found.completions.entries.len() + usize::from(gone.partial.is_some());
        let is_left = |entry: &&super::queues::Entry| !entry.is_receive() && entry.completion.queue_pair == number;
        let left = found.completions.entries.iter().filter(is_left).count();
        // Each one that remains still takes its place in the completion queue.
        found.sends_held = found.sends_held - gone.occupied + left as u32;
        let orphans = found.protection.orphan_of_queue_pair(number);
        let counters = self.counters(context);
        counters.queue_pairs -= 1;
        counters.windows_orphaned += orphans;
        counters.receives_lost += lost as u64;
    }

    /// The number of the queue pair, if it accepts this request now.
    pub(super) fn may_post(&mut self, context: u32, id: u64, post: &Post) -> Result<u32, VerbsError> {
        self.admit(context, Verb::Post)?;
        let refuse = |reason: String| Err(Verb::Post.error(reason));
        let Some(number) = self.own(context, id) else {
            return refuse("no such queue pair".into());
        };
        let (settings, queue_pair) = (&self.contexts[&context].settings, &self.queue_pairs[&number]);
        if matches!(queue_pair.state, State::Idle) {
            return refuse("the queue pair is not connected".into());
        }
        if queue_pair.occupied >= settings.send_depth {
            return refuse(format!("cannot allocate memory: the send queue holds {}", settings.send_depth));
        }
        if post.id & RECEIVED != 0 {
            return refuse("the id is that of a receive buffer".into());
        }
        match post.work {
            Work::SendInline { bytes, .. } if bytes > settings.inline_bytes => {
                refuse(format!("cannot allocate memory: {bytes} bytes inline, at most {}", settings.inline_bytes))
            }
            Work::Bind { .. } | Work::Invalidate { .. } if !settings.has_windows => {
                refuse("the device has no windows".into())
            }
            _ => Ok(number),
        }
    }

    /// Enqueues a request that [`may_post`](Self::may_post) has accepted.
    pub(super) fn enqueue(&mut self, number: u32, post: &Post, inline: Box<[u8]>) {
        let context = self.queue_pairs[&number].context;
        let due = self.delayed(context);
        let (id, is_signaled, work) = (post.id, post.signaled, post.work);
        let request = Outstanding { id, is_signaled, work, inline, due, deadline: None, lost: None };
        let queue_pair = self.queue_pairs.get_mut(&number).expect("a queue pair that may post");
        queue_pair.occupied += 1;
        queue_pair.pending.push_back(request);
        if queue_pair.connection().is_some() {
            self.busy.insert(number);
        } else {
            self.fail(number, None);
        }
        self.context(context).sends_held += 1;
        self.note_worst(context);
    }

    pub(super) fn post_receives(&mut self, context: u32, buffers: &[(u64, Piece)]) -> Result<(), VerbsError> {
        self.admit(context, Verb::PostReceives)?;
        let found = self.context(context);
        let held = found.receives_held as usize + buffers.len();
        let depth = found.settings.receive_depth;
        if held > depth as usize {
            let reason = format!("cannot allocate memory: {held} buffers, the shared receive queue holds {depth}");
            return Err(Verb::PostReceives.error(reason));
        }
        if buffers.iter().any(|(id, _)| id & RECEIVED == 0) {
            return Err(Verb::PostReceives.error("the id is not that of a receive buffer"));
        }
        found.receives.extend(buffers);
        found.receives_held = held as u32;
        self.note_worst(context);
        Ok(())
    }

    fn note_worst(&mut self, context: u32) {
        let found = &self.contexts[&context];
        let worst = u64::from(found.sends_held) + u64::from(found.receives_held);
        let counters = self.counters(context);
        counters.completions_worst = counters.completions_worst.max(worst);
    }

    pub(super) fn poll(&mut self, context: u32, into: &mut Vec<Completion>, most: usize) -> Result<usize, VerbsError> {
        self.clock += 1;
        self.progress();
        let found = self.contexts.get_mut(&context).expect("a device that is open");
        if found.has_failed {
            return Err(VerbsError::new("fake poll", DEVICE_FAILED));
        }
        let count = most.min(found.completions.entries.len());
        for entry in found.completions.entries.drain(..count) {
            into.push(entry.completion);
            if entry.is_receive() {
                found.receives_held -= 1;
            } else if let Some(queue_pair) = self.queue_pairs.get_mut(&entry.completion.queue_pair) {
                queue_pair.occupied -= entry.frees;
                found.sends_held -= entry.frees;
            } else {
                found.sends_held -= 1;
            }
        }
        Ok(count)
    }

    pub(super) fn arm(&mut self, context: u32) -> Result<(), VerbsError> {
        self.admit(context, Verb::Arm)?;
        self.context(context).completions.arm();
        self.progress();
        Ok(())
    }

    /// False if what should fail does not exist.
    pub(super) fn inject(&mut self, device: &str, fault: Fault) -> bool {
        let index = self.adapter(device);
        let adapter = &mut self.adapters[index];
        match fault {
            Fault::Request { strike, skip } => adapter.faults.strike(strike, skip),
            Fault::Verb { verb, reason, skip } => adapter.faults.verb(verb, reason, skip),
            Fault::BreakOff { skip } => adapter.faults.break_off(skip),
            Fault::QueuePair(number) => return self.kill(index, number),
            Fault::PortDown => {
                adapter.is_down = true;
                self.tell(index, AsyncEvent::PortDown);
            }
            Fault::PortUp => {
                adapter.is_down = false;
                self.tell(index, AsyncEvent::PortUp);
                self.progress();
            }
            Fault::Address { gid, lid } => {
                (adapter.gid, adapter.lid) = (gid, lid);
                self.tell(index, AsyncEvent::AddressChanged);
            }
            Fault::DeviceFailed => {
                let failed = self.tell(index, AsyncEvent::DeviceFailed);
                for &context in &failed {
                    self.context(context).has_failed = true;
                }
                for number in self.queue_pairs_of(|context, _| failed.contains(&context)) {
                    self.fail(number, None);
                }
                return !failed.is_empty();
            }
        }
        true
    }

    fn kill(&mut self, adapter: usize, number: u32) -> bool {
        let Some(queue_pair) = self.queue_pairs.get(&number) else {
            return false;
        };
        let context = queue_pair.context;
        if self.contexts[&context].adapter != adapter {
            return false;
        }
        self.fail(number, None);
        self.context(context).events.push(AsyncEvent::QueuePairFailed(number));
        true
    }

    /// Sends an event to all open devices of an adapter; returns these devices.
    fn tell(&mut self, adapter: usize, event: AsyncEvent) -> Vec<u32> {
        let mut told = Vec::new();
        for (&number, context) in self.contexts.iter_mut().filter(|(_, context)| context.adapter == adapter) {
            context.events.push(event);
            told.push(number);
        }
        told
    }
}

const DEVICE_FAILED: &str = "input/output error: the device has failed";
