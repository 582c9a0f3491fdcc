//! Which peers of this host may have a lane, when one is asked for, and how it is opened and closed.

use std::{
    sync::{Arc, Weak},
    time::Instant,
};

use sealane_transport::{
    Code,
    shm::attach::{GivenLane, LaneBells},
};

use super::{
    super::{Attachment, Held, Line, Link, State, calls::Calls, nudge::Others},
    Channel, Lane,
    channel::Bell,
};
use crate::{
    attach,
    clock::Tick,
    limits::{DIRECT_AFTER, DIRECT_RETRY, DIRECT_RETRY_MAX, LANES_MAX},
    memory::ForkMark,
};

/// The lane state of a task of this host.
#[derive(Debug, Clone)]
pub(super) enum Neighbour {
    /// So many small tensors went or were wanted; no lane is asked for before then, and `pause` is the pause after that. Sends in progress go
    /// through the daemon.
    Met { tensors: u32, not_before: Option<Tick>, pause: u64, by_daemon: Vec<u32> },
    /// The driver is asking for a lane.
    Asked { pause: u64, by_daemon: Vec<u32> },
    /// It has a lane.
    Has(u16),
    /// It never gets one.
    Never,
}

impl Default for Neighbour {
    fn default() -> Self {
        Neighbour::Met { tensors: 0, not_before: None, pause: DIRECT_RETRY, by_daemon: Vec::new() }
    }
}

impl Neighbour {
    /// Notes sends that go through the daemon.
    #[inline]
    pub(super) fn notes(&mut self, sent: impl Iterator<Item = u32>, calls: &mut Calls) {
        if let Neighbour::Met { by_daemon, .. } | Neighbour::Asked { by_daemon, .. } = self {
            sent.for_each(|call| super::note(by_daemon, call, calls));
        }
    }

    /// Adds to the number of small tensors. Returns true when it is time to ask for a lane.
    #[inline]
    pub(super) fn counts(&mut self, more: u32, now: Tick) -> bool {
        let Neighbour::Met { tensors, not_before, pause, by_daemon } = self else { return false };
        *tensors = tensors.saturating_add(more);
        let is_due = *tensors >= DIRECT_AFTER && not_before.is_none_or(|at| at <= now);
        if is_due {
            *self = Neighbour::Asked { pause: *pause, by_daemon: std::mem::take(by_daemon) };
        }
        is_due
    }

    /// Sends that went through the daemon and may not be over.
    fn by_daemon(self) -> Vec<u32> {
        match self {
            Neighbour::Met { by_daemon, .. } | Neighbour::Asked { by_daemon, .. } => by_daemon,
            Neighbour::Has(_) | Neighbour::Never => Vec::new(),
        }
    }
}

impl Held<'_> {
    /// Counts small tensors to or from a peer, which may get a lane when there are enough.
    #[inline]
    pub(in crate::attachment) fn counts(&mut self, peer: &str, now: Tick, tensors: usize) {
        let State { line: Line::Up(link), .. } = &mut **self else { return };
        if link.direct.neighbours.is_empty() {
            return;
        }
        link.direct.find(peer, now, tensors as u32);
        if link.direct.has_wanted() {
            self.wake_driver();
        }
    }

    /// Records sends that went through the daemon; `small` of them [count](Self::counts) towards a lane. If there is an active channel, the
    /// consumer is told the name. Until the channel is active, the consumer asks the daemon for every recv while such sends are in progress.
    /// `name` is the name of a single send: several go together only when there is no channel.
    #[inline]
    pub(in crate::attachment) fn sent_by_daemon(
        &mut self,
        sent: impl Iterator<Item = u32>,
        (peer, small, now): (&str, u32, Tick),
        name: (i64, &str),
    ) {
        let State { line: Line::Up(link), calls, .. } = &mut **self else { return };
        if link.direct.neighbours.is_empty() {
            return;
        }
        link.direct.sent_by_daemon(sent, (peer, small, now), name, calls);
        if link.direct.has_wanted() {
            self.wake_driver();
        }
    }

    /// The channel to a peer, whether or not it is active.
    pub(in crate::attachment) fn channel(&self, peer: &str) -> Option<Arc<Channel>> {
        match &self.line {
            Line::Up(link) => link.direct.channel(peer),
            Line::Lost(_) | Line::Ended(_) => None,
        }
    }
}

impl super::Lanes {
    /// The lane to a peer, if it has one, counting so many small tensors or as much.
    pub(super) fn find(&mut self, name: &str, now: Tick, more: u32) -> Option<u16> {
        let neighbour = self.neighbours.get_mut(name)?;
        if let Neighbour::Has(lane) = neighbour {
            return Some(*lane);
        }
        if self.open < LANES_MAX && neighbour.counts(more, now) {
            self.wanted.push(name.into());
        }
        None
    }

    /// The lane of that number to a peer, even if it is closed.
    pub(super) fn lane_numbered(&mut self, name: &str, number: u64) -> Option<&mut Lane> {
        let open = match self.neighbours.get(name) {
            Some(&Neighbour::Has(lane)) => self.lanes.get_mut(usize::from(lane)).and_then(Option::as_mut),
            _ => None,
        };
        open.filter(|lane| lane.channel.lane.number() == number).or_else(|| self.retired.find(name, number))
    }

    /// True if the driver is to ask for lanes.
    pub(in crate::attachment) fn has_wanted(&self) -> bool {
        !self.wanted.is_empty()
    }

    /// A peer gets no lane for now.
    fn refused(&mut self, peer: &str, code: Code, now: Tick) {
        let Some(neighbour) = self.neighbours.get_mut(peer) else { return };
        let (pause, by_daemon) = match std::mem::take(neighbour) {
            Neighbour::Asked { pause, by_daemon } => (pause, by_daemon),
            other => (DIRECT_RETRY, other.by_daemon()),
        };
        *neighbour = match code {
            // This process is no longer the one that is attached as the task.
            Code::PermissionDenied => Neighbour::Never,
            _ => {
                let not_before = Some(now.later(pause));
                Neighbour::Met { tensors: 0, not_before, pause: (2 * pause).min(DIRECT_RETRY_MAX), by_daemon }
            }
        };
    }

    /// Puts the lane of a channel into a free place, and notes that for its peer.
    fn place(&mut self, channel: Arc<Channel>, serial: u32) -> u16 {
        let index = match self.lanes.iter().position(Option::is_none) {
            Some(index) => index,
            None => {
                self.lanes.push(None);
                self.lanes.len() - 1
            }
        };
        let before = self.neighbours.insert(channel.peer.clone(), Neighbour::Has(index as u16));
        let by_daemon = before.map(Neighbour::by_daemon).unwrap_or_default();
        self.lanes[index] = Some(Lane::new(serial, channel, by_daemon));
        self.open += 1;
        index as u16
    }

    /// Takes out a lane that is closed.
    pub(super) fn take_out(&mut self, lane: u16) -> Option<Lane> {
        let mut taken = self.lanes.get_mut(usize::from(lane))?.take()?;
        let mut by_daemon = std::mem::take(&mut taken.by_daemon);
        by_daemon.append(&mut taken.announced);
        let neighbour = Neighbour::Met { tensors: 0, not_before: None, pause: DIRECT_RETRY, by_daemon };
        self.neighbours.insert(taken.channel.peer.clone(), neighbour);
        self.open -= 1;
        Some(taken)
    }
}

impl Link {
    /// Opens this side's end of a lane. Recvs that wait at the daemon may be served by it from now on.
    pub(in crate::attachment) fn open_lane(
        &mut self,
        peer: Box<str>,
        given: GivenLane,
        calls: &mut Calls,
        (task, mark, attachment): (&str, Arc<ForkMark>, Weak<Attachment>),
    ) {
        let GivenLane { lane, bells } = given;
        let bell = match bells {
            Some(LaneBells { ear, bell }) => {
                // It is the same for all lanes.
                self.direct.ear.get_or_insert_with(|| Arc::new(Others::new(ear)));
                Bell::Peer(bell)
            }
            None => Bell::Shard(self.doorbell(task, &peer)),
        };
        let serial = self.direct.opened;
        self.direct.opened = serial.wrapping_add(1);
        let known = (self.direct.ended.clone(), self.default_timeout_ms);
        let channel = Channel::new((task, peer, serial), (lane, bell), known, (mark, attachment));
        self.direct.place(channel.clone(), serial);
        let mut inner = channel.lock();
        for (call, step, key) in calls.recvs_from(&channel.peer) {
            if let Some(slot) = inner.half.adopt(step, key.as_bytes(), call) {
                calls.adopt(call, serial, slot);
            }
        }
        channel.finish(inner);
        // Nothing may arrive before this.
        channel.lane.arrive();
        channel.bell.ring();
    }
}

impl Attachment {
    /// Asks the daemon for one lane that is wanted; on the driver's thread, since it is a conversation.
    pub(in crate::attachment) fn ask_for_lane(&self) {
        let (serial, peer) = {
            let mut held = self.lock();
            let Line::Up(link) = &mut held.line else { return };
            let Some(peer) = link.direct.wanted.pop() else { return };
            (link.serial, peer)
        };
        let given = attach::lane(&self.settings, &peer, Instant::now());
        let mut held = self.lock();
        let State { line, calls, .. } = &mut *held;
        match (line, given) {
            (Line::Up(link), Ok(given)) if link.serial == serial => {
                link.open_lane(peer, given, calls, (self.task(), self.mark.clone(), self.me.clone()));
                self.channels.changes(true);
            }
            (Line::Up(link), Err(error)) if link.serial == serial => {
                link.direct.refused(&peer, error.code(), Tick::now());
            }
            _ => return,
        }
        if held.listening.is_there() {
            // The listener does not hear the other side of the lane yet.
            let nudge = self.nudge_waker.clone();
            held.aftermath.wakers.push(nudge);
        }
    }
}
