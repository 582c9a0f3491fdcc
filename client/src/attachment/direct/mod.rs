//! Direct lanes: small sends and recvs between two clients of one host and one user go through memory that the two share, past the daemon,
//! which only provides it and is told how much went. Under the attachment's lock; bounded by [`LANES_MAX`].
//!
//! A lane to a peer of this host is asked for after [enough](DIRECT_AFTER) calls to it, and used when both have opened their ends. From
//! then on a **send** goes over it if there is a free entry, and through the daemon otherwise. A tensor that is not received within [a
//! moment](LANE_PATIENCE) is taken back and goes through the daemon, too: its receiver does not want it yet, does not poll, or has gone. A
//! **recv** takes what has come, or waits in this process. The daemon is asked for it when the other side says in the lane that a tensor of
//! its name goes through the daemon because it is large; when the other side says that it has no free entry, which concerns all recvs; and
//! after [a moment](ASK_AFTER) in any case. So the two meet at the daemon if not in the lane, whatever either process does meanwhile, and
//! the daemon keeps the deadlines. If the tensor comes over the lane after all, the daemon is told to cancel the recv.
//!
//! (If two tensors of one name wait, the second is refused, as without lanes, unless the first has gone to the daemon meanwhile: then each
//! goes to a recv.)
//!
//! Streams have rings of bytes in the same memory (`rings.rs`), which outlive the lane (`retired.rs`).
//!
//! The lane decides whose a tensor is: see `sealane_transport::shm::direct`. The end of a step is also sent over the lane, so that it is
//! known there before what follows.

mod arrival;
mod due;
mod ends;
mod exchange;
#[cfg(feature = "fuzzing")]
mod fuzzing;
mod hints;
mod lane;
mod opening;
mod redirect;
mod retired;
mod rings;
mod steps;
#[cfg(test)]
mod tests;

pub(super) use self::exchange::OverLane;
#[cfg(feature = "fuzzing")]
pub use self::fuzzing::LaneDriver;
pub(crate) use self::rings::{RingPlace, RingReader, RingWriter};

use std::{collections::VecDeque, sync::Arc};

use hashbrown::HashMap;
use sealane_transport::shm::{Fate, LaneCopy, Standing};

use self::{lane::Lane, opening::Neighbour, redirect::Unsent, retired::Retired, steps::Steps};
use super::{Link, aftermath::Aftermath, calls::Calls, link::Peer, nudge::Others};
use crate::clock::Tick;

/// The lanes of one link.
pub(super) struct Lanes {
    /// Tasks of this host.
    neighbours: HashMap<Box<str>, Neighbour>,
    /// The last peer that was looked up, and its lane.
    recent: Option<(Peer, Option<u16>)>,
    lanes: Vec<Option<Lane>>,
    /// The record of a lane that was last looked at.
    loaded: LaneCopy,
    open: usize,
    retired: Retired,
    /// Recvs that waited for lanes that are gone, and for which there was no room to ask the daemon.
    unasked: VecDeque<u32>,
    /// Sends that were taken back, and for which the daemon had no room.
    unsent: VecDeque<Unsent>,
    /// Peers for which the driver is to ask for a lane.
    wanted: Vec<Box<str>>,
    /// Where other processes wake this one.
    ear: Option<Arc<Others>>,
    /// Steps that this task has ended.
    ended: Steps,
    /// When somebody will next look after waiting recvs, and sends that were not received.
    attended: Tick,
    /// How much went and came, without the daemon knowing, at the last look.
    moved: u64,
    /// When to tell the daemon how much went.
    look_at: Option<Tick>,
}

impl Lanes {
    pub(super) fn new(neighbours: Vec<String>) -> Lanes {
        let neighbours = neighbours.into_iter().map(|name| (name.into(), Neighbour::default())).collect();
        Lanes {
            neighbours,
            recent: None,
            lanes: Vec::new(),
            loaded: LaneCopy::new(),
            open: 0,
            retired: Retired::default(),
            unasked: VecDeque::new(),
            unsent: VecDeque::new(),
            wanted: Vec::new(),
            ear: None,
            ended: Steps::default(),
            attended: Tick::NEVER,
            moved: 0,
            look_at: None,
        }
    }

    /// True if there are lanes to poll.
    #[inline]
    pub(super) fn is_open(&self) -> bool {
        self.open > 0 || self.retired.len() > 0
    }

    /// Peers that read their ends of lanes.
    pub(super) fn peers(&self) -> Vec<String> {
        let read = self.lanes.iter().flatten().filter(|lane| lane.ends.other() == Standing::Here);
        read.map(|lane| lane.peer.to_string()).collect()
    }

    /// Tensors that came over lanes and were not reported to the daemon.
    #[cfg(feature = "fuzzing")]
    pub(super) fn came(&self) -> u64 {
        self.lanes.iter().flatten().map(|lane| lane.came.tensors).sum()
    }

    /// Where other processes wake this one.
    pub(super) fn ear(&self) -> Option<Arc<Others>> {
        self.ear.clone()
    }

    #[inline]
    fn iter_mut(&mut self) -> impl Iterator<Item = (u16, &mut Lane)> {
        self.lanes.iter_mut().enumerate().filter_map(|(index, lane)| Some((index as u16, lane.as_mut()?)))
    }

    fn get_mut(&mut self, lane: u16) -> Option<&mut Lane> {
        self.lanes.get_mut(usize::from(lane))?.as_mut()
    }

    /// Tells every lane that this process sleeps; if deeply, it is not woken for sends that were received.
    pub(super) fn announce(&mut self, deeply: bool, calls: &mut Calls) {
        for lane in self.lanes.iter_mut().flatten() {
            lane.quiet.forget(|call| calls.wants(call).is_some());
            lane.hints.say_awaits(lane.quiet.first().is_some(), &lane.ends);
        }
        for lane in self.lanes.iter().flatten().chain(self.retired.iter()) {
            if deeply {
                lane.ends.own_sleep().announce_deep();
            } else {
                lane.ends.own_sleep().announce();
            }
        }
    }

    pub(super) fn awake(&self) {
        let lanes = self.lanes.iter().flatten().chain(self.retired.iter());
        lanes.for_each(|lane| lane.ends.own_sleep().awake());
    }

    /// True if nothing has come over any lane.
    #[inline]
    pub(super) fn is_quiet(&self) -> bool {
        self.lanes.iter().flatten().all(|lane| !lane.has_news())
            && self.retired.iter().all(|lane| !lane.ends.has_ring_news())
    }

    /// Wakes peers that sleep and were written to.
    #[inline]
    pub(super) fn ring(&mut self) {
        for lane in self.lanes.iter_mut().flatten() {
            lane.ring();
        }
    }

    /// Leaves all lanes, since the daemon is lost, or `closing` the task: nothing more is sent over them. Peers keep what they received.
    pub(super) fn leave(&mut self, closing: bool, calls: &mut Calls, after: &mut Aftermath) {
        for (index, lane) in self.lanes.drain(..).enumerate() {
            let Some(mut lane) = lane else { continue };
            for entry in 0..lane.sent.len() as u16 {
                let call = lane.sent[usize::from(entry)].call;
                if calls.sent_by(call) == Some((index as u16, entry))
                    && !lane.ends.sender.withdraw(entry)
                    && lane.ends.sender.fate(entry) == Some(Fate::Taken)
                {
                    calls.end_sent(call, None, after);
                }
            }
            lane.rings.end(after);
            match closing {
                true => lane.leave(),
                false => lane.abandon(),
            }
        }
        self.retired.iter().for_each(|lane| lane.rings.end(after));
        self.retired = Retired::default();
        self.open = 0;
        self.recent = None;
    }
}

impl Link {
    /// Takes in what has come over all lanes.
    #[inline]
    pub(super) fn drain_lanes(&mut self, calls: &mut Calls, after: &mut Aftermath) {
        for lane in 0..self.direct.lanes.len() as u16 {
            if self.direct.lanes[usize::from(lane)].as_ref().is_some_and(Lane::has_news) {
                self.drain_lane(lane, calls, after);
            }
        }
        if self.direct.retired.len() > 0 {
            self.direct.retired.iter_mut().for_each(|lane| lane.rings.wake(lane.ends.take_ring_news(), after));
        }
    }
}
