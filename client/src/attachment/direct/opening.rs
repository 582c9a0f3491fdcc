//! Which peers of this host may have a lane, when one is asked for, and how it is opened and closed.

use std::{sync::Arc, time::Instant};

use sealane_transport::{
    Code, Error,
    shm::{Standing, attach::GivenLane},
};

use super::{
    super::{Attachment, Held, Line, Link, State, aftermath::Aftermath, calls::Calls, link::Peer, nudge::Others},
    lane::Lane,
};
use crate::{
    attach,
    clock::Tick,
    limits::{DIRECT_AFTER, DIRECT_RETRY, DIRECT_RETRY_MAX, LANES_MAX},
};

/// The lane state of a task of this host.
#[derive(Debug, Clone, Copy)]
pub(super) enum Neighbour {
    /// So many small tensors went or were wanted; no lane is asked for before then, and `pause` is the pause after that.
    Met { tensors: u32, not_before: Option<Tick>, pause: u64 },
    /// The driver is asking for a lane.
    Asked { pause: u64 },
    /// It has a lane.
    Has(u16),
    /// It never gets one.
    Never,
}

impl Default for Neighbour {
    fn default() -> Self {
        Neighbour::Met { tensors: 0, not_before: None, pause: DIRECT_RETRY }
    }
}

impl Held<'_> {
    /// The lane to a peer, if it has one that is not closed, and whether the other side has opened its end; otherwise counts so many
    /// tensors for the peer.
    #[inline]
    pub(in crate::attachment) fn lane_of(
        &mut self,
        (peer, name): (Peer, &str),
        now: Tick,
        tensors: usize,
    ) -> Option<(u16, bool)> {
        let State { line: Line::Up(link), .. } = &mut **self else { return None };
        if link.direct.neighbours.is_empty() {
            return None;
        }
        let found = match link.direct.recent {
            Some((recent, lane)) if recent == peer => lane,
            _ => link.direct.look_up((peer, name), now, tensors),
        };
        match found {
            Some(lane) => match link.direct.get_mut(lane).map(|lane| lane.ends.other()) {
                Some(Standing::Here) => Some((lane, true)),
                Some(Standing::Absent) => Some((lane, false)),
                Some(Standing::Gone | Standing::Abandoned) | None => {
                    // Before the call is made, which must not be among those that are told.
                    self.pump();
                    None
                }
            },
            None => {
                if link.direct.has_wanted() {
                    self.wake_driver();
                }
                None
            }
        }
    }
}

impl super::Lanes {
    /// The lane to a peer, without counting.
    #[inline]
    pub(super) fn open_lane_of(&self, (peer, name): (Peer, &str)) -> Option<u16> {
        match self.recent {
            Some((recent, lane)) if recent == peer => lane,
            _ if self.open == 0 => None,
            _ => match self.neighbours.get(name) {
                Some(Neighbour::Has(lane)) => Some(*lane),
                _ => None,
            },
        }
    }

    fn look_up(&mut self, (peer, name): (Peer, &str), now: Tick, tensors: usize) -> Option<u16> {
        let found = self.find(name, now, tensors as u32)?;
        self.recent = Some((peer, found));
        found
    }

    /// The lane to a peer, counting so many small tensors or as much; the outer `None` if it may get one soon.
    pub(super) fn find(&mut self, name: &str, now: Tick, more: u32) -> Option<Option<u16>> {
        let found = match self.neighbours.get_mut(name) {
            None | Some(Neighbour::Never) => None,
            Some(Neighbour::Has(lane)) => Some(*lane),
            Some(Neighbour::Asked { .. }) => return None,
            Some(neighbour) => {
                let Neighbour::Met { tensors, not_before, pause } = neighbour else {
                    unreachable!("the only one left")
                };
                *tensors = tensors.saturating_add(more);
                if *tensors >= DIRECT_AFTER && not_before.is_none_or(|at| at <= now) && self.open < LANES_MAX {
                    *neighbour = Neighbour::Asked { pause: *pause };
                    self.wanted.push(name.into());
                }
                return None;
            }
        };
        Some(found)
    }

    /// The lane of that number to a peer, even if it is closed.
    pub(super) fn lane_numbered(&mut self, name: &str, number: u64) -> Option<&mut Lane> {
        let open = match self.neighbours.get(name) {
            Some(&Neighbour::Has(lane)) => self.lanes.get_mut(usize::from(lane)).and_then(Option::as_mut),
            _ => None,
        };
        open.filter(|lane| lane.ends.number() == number).or_else(|| self.retired.find(name, number))
    }

    /// True if the driver is to ask for lanes.
    pub(in crate::attachment) fn has_wanted(&self) -> bool {
        !self.wanted.is_empty()
    }

    /// A peer gets no lane for now.
    fn refused(&mut self, peer: &str, code: Code, now: Tick) {
        let Some(neighbour) = self.neighbours.get_mut(peer) else { return };
        let pause = match *neighbour {
            Neighbour::Asked { pause } => pause,
            _ => DIRECT_RETRY,
        };
        *neighbour = match code {
            // The peer is another user's, or the daemon gives no lanes.
            Code::PermissionDenied => Neighbour::Never,
            _ => {
                let not_before = Some(now.later(pause));
                Neighbour::Met { tensors: 0, not_before, pause: (2 * pause).min(DIRECT_RETRY_MAX) }
            }
        };
    }

    /// Puts a lane into a free place, and notes that for its peer.
    fn place(&mut self, lane: Lane) -> u16 {
        let index = match self.lanes.iter().position(Option::is_none) {
            Some(index) => index,
            None => {
                self.lanes.push(None);
                self.lanes.len() - 1
            }
        };
        self.neighbours.insert(lane.peer.clone(), Neighbour::Has(index as u16));
        self.lanes[index] = Some(lane);
        self.open += 1;
        self.recent = None;
        index as u16
    }

    /// Takes out a lane that is closed.
    pub(super) fn take_out(&mut self, lane: u16) -> Option<Lane> {
        let taken = self.lanes.get_mut(usize::from(lane))?.take()?;
        self.neighbours.insert(taken.peer.clone(), Neighbour::default());
        self.open -= 1;
        self.recent = None;
        Some(taken)
    }
}

impl Link {
    /// Opens this side's end of a lane. It may serve recvs in flight from now on.
    pub(in crate::attachment) fn open_lane(&mut self, peer: Box<str>, given: GivenLane, calls: &mut Calls) {
        let GivenLane { lane, ear, bell } = given;
        // It is the same for all lanes.
        self.direct.ear.get_or_insert_with(|| Arc::new(Others::new(ear)));
        let index = self.direct.place(Lane::new(peer, lane, bell));
        let lane = self.direct.get_mut(index).expect("just placed");
        for (call, step, key) in calls.recvs_from(&lane.peer) {
            let name = calls.matching().name(index, step, &key);
            calls.give_name(call, name);
        }
        // Nothing may arrive before this.
        lane.ends.arrive();
    }

    /// Closes a lane that is gone, or whose other end breaks the protocol: what this side had sent goes through the daemon, which is asked
    /// for what waits for the other's tensors.
    #[cold]
    pub(super) fn close_lane(&mut self, lane: u16, calls: &mut Calls, after: &mut Aftermath) {
        self.tell_what_went();
        let Some(mut gone) = self.direct.take_out(lane) else { return };
        // The other side counts what it has sent by these.
        gone.ends.receiver.publish();
        gone.abandon();
        for entry in 0..gone.kept.len() as u16 {
            gone.forget_kept(lane, entry, calls);
        }
        self.redirect_all(lane, &mut gone, calls, after);
        let has_left = gone.ends.other() == Standing::Gone;
        for (call, ..) in calls.recvs_from(&gone.peer) {
            calls.forget_name(call);
            if has_left {
                // As those hear who wait at the daemon, and before the next process of that task is heard of.
                let error = Error::Left { task: gone.peer.clone(), reason: "its process is gone".into() };
                calls.give_up(call, error, after);
            } else if !self.ask(call, calls, after) {
                self.direct.unasked.push_back(call);
            }
        }
        self.direct.retired.keep(gone, Tick::now(), after);
        self.ring();
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
            (Line::Up(link), Ok(given)) if link.serial == serial => link.open_lane(peer, given, calls),
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
