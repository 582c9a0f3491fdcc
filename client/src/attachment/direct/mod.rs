//! Lanes: memory that two clients of one host share, or that each of them shares with the daemon's shard, which passes on what comes. A lane
//! carries their *channel*, by which small tensors go from one to the other without calls at the daemon. One that the two share also has rings
//! of bytes for streams (`rings.rs`), which may outlive the channel (`retired.rs`).
//!
//! A lane to a peer of this host is asked for after [enough](DIRECT_AFTER) calls to it. When both sides have opened their ends, small tensors
//! go through the channel alone. Large ones go through the daemon and are announced in the channel, so that the consumer's half knows of
//! every tensor, and asks the daemon only for those that are there. Tensors that went through the daemon before are not announced: until
//! they are over, a recv is asked for at the daemon as well.
//!
//! When a lane ends, each side closes its half and tells what it has taken; then the rest goes on through the daemon.
//!
//! Threads: a call takes the lock of its channel alone; opening, closing and everything that concerns the daemon takes the attachment's
//! first. Limits: [`LANES_MAX`] lanes.

mod cache;
mod calls;
mod channel;
mod errors;
mod lock;
mod opening;
mod retired;
mod rings;
mod switch;
#[cfg(test)]
mod tests;

pub(super) use self::{cache::ChannelCache, channel::NotHere};
pub(crate) use self::{
    calls::{Awaited, ChannelRecv, ChannelSend, Ended, OverChannel},
    channel::Channel,
    rings::{RingPlace, RingReader, RingWriter},
};

use std::{collections::VecDeque, sync::Arc, task::Waker};

use hashbrown::HashMap;
use sealane_transport::{
    channel::{Steps, Unsettled},
    shm::{Moved, Submission},
};

use self::{opening::Neighbour, retired::Retired, rings::Rings};
use super::{Held, Line, Link, State, calls::Calls, link::Peer, nudge::Others};
use crate::{
    clock::Tick,
    limits::{BY_DAEMON_LOOK, DIRECT_LOOK, LANES_LOOK, LANES_MAX},
};

/// The lanes of one link.
pub(super) struct Lanes {
    /// Tasks of this host.
    neighbours: HashMap<Box<str>, Neighbour>,
    lanes: Vec<Option<Lane>>,
    open: usize,
    /// Lanes opened so far, which numbers them.
    opened: u32,
    retired: Retired,
    /// Peers for which the driver is to ask for a lane.
    wanted: Vec<Box<str>>,
    /// Where other processes wake this one.
    ear: Option<Arc<Others>>,
    /// Steps that this task has ended.
    ended: Steps,
    /// When somebody will next look after the channels.
    attended: Tick,
    /// When to tell the daemon how much went.
    tell_at: Option<Tick>,
}

/// One lane, and what this process remembers of it.
struct Lane {
    serial: u32,
    channel: Arc<Channel>,
    rings: Rings,
    /// The channel was found active: both sides read.
    is_told_active: bool,
    /// Sends that went through the daemon before that, or that were not announced.
    by_daemon: Vec<u32>,
    /// Those that were announced, which the next lane to this peer must know of.
    announced: Vec<u32>,
    /// Tensors and bytes sent and received of which the daemon was told.
    told: [(u64, u64); 2],
    /// Of a closed channel: what the peer has not taken, and whether that is known.
    unsent: VecDeque<Unsettled>,
    is_reclaimed: bool,
    /// Of a closed channel: something is still to go through the daemon.
    owes: bool,
}

impl Lane {
    fn new(serial: u32, channel: Arc<Channel>, by_daemon: Vec<u32>) -> Lane {
        Lane {
            serial,
            channel,
            rings: Rings::default(),
            is_told_active: false,
            by_daemon,
            announced: Vec::new(),
            told: [(0, 0); 2],
            unsent: VecDeque::new(),
            is_reclaimed: false,
            owes: true,
        }
    }

    /// True if the peer has closed its end meanwhile, so that what it has not taken can go on.
    fn can_go_on(&self) -> bool {
        self.owes && !self.is_reclaimed && self.channel.lane.is_left()
    }

    /// Gives up a closed channel whose peer does not close its end, or whose tensors find no room at the daemon for too long.
    fn abandon(self, wakers: &mut Vec<Waker>) {
        let mut inner = self.channel.lock();
        let error = sealane_transport::Error::unavailable(&self.channel.peer, "the direct channel to it has ended");
        inner.end.get_or_insert(error);
        inner.half.end_for_good();
        self.channel.finish_held(inner, wakers);
        self.rings.end(wakers);
    }

    /// Tensors and bytes sent and received of which the daemon was not told.
    fn untold(&self) -> [Moved; 2] {
        self.untold_with(self.rings.moved())
    }

    /// [`untold`](Self::untold), with so many bytes of streams.
    fn untold_with(&self, bytes: [u64; 2]) -> [Moved; 2] {
        let now = self.channel.lock().half.moved();
        let since =
            |at: usize| Moved { tensors: now[at].0 - self.told[at].0, bytes: now[at].1 - self.told[at].1 + bytes[at] };
        [since(0), since(1)]
    }
}

impl Lanes {
    pub(super) fn new(neighbours: Vec<String>) -> Lanes {
        let neighbours = neighbours.into_iter().map(|name| (name.into(), Neighbour::default())).collect();
        Lanes {
            neighbours,
            lanes: Vec::new(),
            open: 0,
            opened: 0,
            retired: Retired::default(),
            wanted: Vec::new(),
            ear: None,
            ended: Steps::default(),
            attended: Tick::NEVER,
            tell_at: None,
        }
    }

    /// True if there are lanes to poll.
    #[inline]
    pub(super) fn is_open(&self) -> bool {
        self.open > 0 || self.retired.len() > 0
    }

    /// Peers that read their ends of lanes.
    pub(super) fn peers(&self) -> Vec<String> {
        let is_shared = |lane: &&Lane| lane.channel.is_open() && !lane.channel.is_switched();
        let shared = self.lanes.iter().flatten().filter(is_shared);
        shared.map(|lane| lane.channel.peer.to_string()).collect()
    }

    /// Tensors that came over channels and were not reported to the daemon.
    #[cfg(feature = "fuzzing")]
    pub(super) fn came(&self) -> u64 {
        self.lanes.iter().flatten().map(|lane| lane.untold()[1].tensors).sum()
    }

    /// Where other processes wake this one.
    pub(super) fn ear(&self) -> Option<Arc<Others>> {
        self.ear.clone()
    }

    fn get(&self, index: u16) -> Option<&Lane> {
        self.lanes.get(usize::from(index))?.as_ref()
    }

    fn get_mut(&mut self, index: u16) -> Option<&mut Lane> {
        self.lanes.get_mut(usize::from(index))?.as_mut()
    }

    /// The lane to a peer, if it has one.
    fn index_of(&self, peer: &str) -> Option<u16> {
        if self.open == 0 {
            return None;
        }
        match self.neighbours.get(peer) {
            Some(Neighbour::Has(index)) => Some(*index),
            _ => None,
        }
    }

    /// The channel to a peer, if it has one.
    pub(super) fn channel(&self, peer: &str) -> Option<Arc<Channel>> {
        Some(self.get(self.index_of(peer)?)?.channel.clone())
    }

    /// Calls over channels that futures wait for.
    #[inline]
    pub(super) fn watched(&self) -> usize {
        self.all().map(|lane| lane.channel.watched()).sum()
    }

    /// True if somebody waits until a peer has taken a tensor.
    pub(super) fn has_send_waiters(&self) -> bool {
        self.lanes.iter().flatten().any(|lane| lane.channel.lock().half.has_send_waiters())
    }

    /// The open lanes, then the retired ones.
    fn all(&self) -> impl Iterator<Item = &Lane> {
        self.lanes.iter().flatten().chain(self.retired.iter())
    }

    /// Tells every peer that this process sleeps, and how deeply.
    pub(super) fn announce(&self, sleep: Sleep) {
        for lane in self.all() {
            let flag = lane.channel.lane.own_sleep();
            match sleep {
                Sleep::Light => flag.announce(),
                Sleep::Deep => flag.announce_deep(),
                Sleep::Idle => flag.announce_idle(),
            }
        }
    }

    pub(super) fn awake(&self) {
        self.all().for_each(|lane| lane.channel.lane.own_sleep().awake());
    }

    /// True if nothing has arrived over any lane that concerns a process which sleeps like this.
    #[inline]
    pub(super) fn is_quiet(&self, sleep: Sleep) -> bool {
        let is_quiet = |lane: &Lane| {
            let channel = &lane.channel;
            !channel.owes() && channel.lock().half.is_quiet(sleep == Sleep::Light) && !channel.lane.has_ring_news()
        };
        self.lanes.iter().flatten().all(is_quiet)
            && self.retired.iter().all(|lane| !lane.channel.lane.has_ring_news() && !lane.can_go_on())
    }

    /// Notes sends that went through the daemon, and counts as many of them as `small`.
    #[inline]
    pub(super) fn sent_by_daemon(
        &mut self,
        sent: impl Iterator<Item = u32>,
        (peer, small, now): (&str, u32, Tick),
        (step, key): (i64, &str),
        calls: &mut Calls,
    ) {
        let index = match self.neighbours.get_mut(peer) {
            Some(Neighbour::Has(index)) => *index,
            Some(neighbour) => {
                neighbour.notes(sent, calls);
                if self.open < LANES_MAX && neighbour.counts(small, now) {
                    self.wanted.push(peer.into());
                }
                return;
            }
            None => return,
        };
        let Some(lane) = self.get_mut(index) else { return };
        let channel = lane.channel.clone();
        let mut inner = channel.lock();
        for call in sent {
            if lane.is_told_active && inner.half.announce(step, key.as_bytes()) {
                note(&mut lane.announced, call, calls);
            } else {
                note(&mut lane.by_daemon, call, calls);
                // The peer is blind until the channel is active.
                inner.half.blind();
            }
        }
        channel.finish(inner);
    }

    /// Ends a step of this task in all channels.
    fn end_step(&mut self, step: i64, reason: &str, is_aborted: bool, wakers: &mut Vec<Waker>) {
        /// Bytes of the reason that peers are told.
        const REASON_BYTES_MAX: usize = 512;
        let reason = &reason[..reason.floor_char_boundary(REASON_BYTES_MAX)];
        match is_aborted {
            true => self.ended.end(step, reason),
            false => self.ended.forget(step),
        }
        for lane in self.lanes.iter().flatten() {
            let mut inner = lane.channel.lock();
            inner.half.end_step(step, reason, is_aborted);
            lane.channel.finish_held(inner, wakers);
        }
    }

    /// Leaves all lanes, since the daemon is lost, or `closing` the task: calls end with `error`. Peers keep what they have taken.
    pub(super) fn leave(&mut self, closing: bool, error: &sealane_transport::Error, wakers: &mut Vec<Waker>) {
        for lane in self.lanes.drain(..).flatten().chain(self.retired.take_all()) {
            let mut inner = lane.channel.lock();
            inner.end.get_or_insert_with(|| error.clone());
            inner.half.close(sealane_transport::channel::Why::Closed);
            inner.half.end_for_good();
            lane.channel.finish_held(inner, wakers);
            lane.rings.end(wakers);
            match closing {
                true => lane.channel.lane.leave(),
                false => lane.channel.lane.close(),
            }
            lane.channel.bell.ring();
        }
        self.open = 0;
    }

    /// When the channels must be looked after: the earliest deadline, something that found no room, or the daemon is to be told how much went.
    fn next_due(&mut self, now: Tick) -> Tick {
        let (mut due, mut is_busy, mut is_untold) = (Tick::NEVER, false, false);
        for lane in self.lanes.iter().flatten() {
            due = due.min(Tick::of_milliseconds(lane.channel.lock().half.earliest()));
            is_untold |= lane.untold().iter().any(|moved| (moved.tensors, moved.bytes) != (0, 0));
            is_busy |= !lane.is_told_active || lane.channel.lock().half.is_waiting();
        }
        if self.open > 0 {
            // Calls over channels wake nobody, so that what they leave is looked for from time to time.
            due = due.min(now.after(DIRECT_LOOK));
        }
        is_busy |= self.retired.iter().any(|lane| lane.owes);
        let due = due.min(self.retired.due().unwrap_or(Tick::NEVER));
        let due = if is_busy { due.min(now.later(LANES_LOOK)) } else { due };
        if is_untold { due.min(self.tell_at.unwrap_or(now)) } else { due }
    }
}

/// How a process sleeps, as its peers see it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Sleep {
    /// It waits for anything.
    Light,
    /// It does not wait for acknowledgements.
    Deep,
    /// It waits for nothing, and only answers.
    Idle,
}

impl Held<'_> {
    /// Calls that futures wait for, at the daemon and over channels.
    #[inline]
    pub(super) fn watched(&self) -> usize {
        let over_channels = match &self.line {
            Line::Up(link) if link.direct.is_open() => link.direct.watched(),
            _ => 0,
        };
        self.calls.watched() + over_channels
    }

    /// Ends what is past its deadline, retries what found no room, and tells the daemon from time to time how much went.
    pub(super) fn look_after_lanes(&mut self, now: Tick) {
        let State { line: Line::Up(link), calls, aftermath, .. } = &mut **self else { return };
        if !link.direct.is_open() {
            return;
        }
        for index in 0..link.direct.lanes.len() {
            let Some(lane) = &link.direct.lanes[index] else { continue };
            let channel = lane.channel.clone();
            let mut inner = channel.lock();
            inner.half.sweep(now.milliseconds());
            channel.finish_held(inner, &mut aftermath.wakers);
        }
        link.drain_lanes(calls, aftermath);
        link.direct.retired.look_at(now, &mut aftermath.wakers);
        if link.direct.tell_at.is_none_or(|at| at <= now) {
            link.direct.tell_at = Some(now.after(DIRECT_LOOK));
            link.tell_what_went();
        }
        link.ring();
    }

    /// True if the driver is to ask for a lane.
    pub(super) fn wants_lanes(&self) -> bool {
        matches!(&self.line, Line::Up(link) if link.direct.has_wanted())
    }

    /// True if the driver must answer peers.
    pub(super) fn has_channels(&self) -> bool {
        matches!(&self.line, Line::Up(link) if link.direct.is_open())
    }

    /// Time until the channels must be looked after, by the caller.
    pub(super) fn attend_lanes_in(&mut self) -> Option<std::time::Duration> {
        let State { line: Line::Up(link), .. } = &mut **self else { return None };
        let now = Tick::now();
        let due = link.direct.next_due(now);
        link.direct.attended = due;
        due.from(now)
    }

    /// Makes sure that somebody looks after the channels at `due`.
    pub(super) fn attend_lanes(&mut self, due: Tick) {
        let Line::Up(link) = &mut self.line else { return };
        if link.direct.attended <= due {
            return;
        }
        link.direct.attended = due;
        let is_idle = self.driver.is_idle();
        self.wake_driver();
        if self.listening.is_there() && !is_idle {
            // The driver itself listens, and might sleep longer.
            let nudge = self.attachment.nudge_waker.clone();
            self.aftermath.wakers.push(nudge);
        }
    }
}

impl Link {
    /// Tells the daemon how much went over lanes. What finds no room is told later.
    pub(super) fn tell_what_went(&mut self) {
        for place in 0..self.direct.lanes.len() + self.direct.retired.len() {
            let Some(lane) = self.direct.at(place) else { continue };
            let bytes = lane.rings.moved();
            let [sent, received] = lane.untold_with(bytes);
            let Some(&Peer { segment, number: peer }) = self.peers.get(&lane.channel.peer) else { continue };
            if (sent.bytes, received.bytes, sent.tensors, received.tensors) == (0, 0, 0, 0)
                // The peer's number may be waiting there.
                || !self.segments[usize::from(segment)].waiting.is_empty()
                || self.submit_ahead(segment, &Submission::Direct { peer, sent, received }).is_err()
            {
                continue;
            }
            if let Some(lane) = self.direct.at(place) {
                lane.rings.has_told(bytes);
                for (told, (moved, bytes)) in lane.told.iter_mut().zip([sent, received].into_iter().zip(bytes)) {
                    *told = (told.0 + moved.tensors, told.1 + moved.bytes - bytes);
                }
            }
        }
    }
}

impl Lanes {
    /// A lane by number: the open ones, then the retired ones.
    fn at(&mut self, place: usize) -> Option<&mut Lane> {
        match place.checked_sub(self.lanes.len()) {
            None => self.lanes[place].as_mut(),
            Some(place) => self.retired.get_mut(place),
        }
    }
}

/// Adds a send to a list of those at the daemon, from which those that have ended are taken from time to time.
fn note(list: &mut Vec<u32>, call: u32, calls: &mut Calls) {
    if list.len() > 2 * BY_DAEMON_LOOK && list.len().is_multiple_of(BY_DAEMON_LOOK) {
        list.retain(|call| calls.is_at_daemon(*call));
    }
    list.push(call);
}
