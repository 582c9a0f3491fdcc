//! Direct lanes between clients: which pairs have one, and which of the two was given its end. The engine makes a lane when the first of
//! the two asks, and ends it when one is dismissed; the other sees that in the lane itself. For any thread, under the lock of [`Attached`];
//! bounded by [`DIRECT_LANES_MAX`] per client.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::{Arc, PoisonError};

use sealane_transport::Error;
use sealane_transport::shm::attach::Credentials;
use sealane_transport::shm::{ClientBell, ClientEar, LaneKeeper, ShmError, Side};

use super::{Attached, ClientId, Engine};
use crate::limits::DIRECT_LANES_MAX;

/// One client's end of a lane.
#[derive(Debug)]
pub struct LaneEnd {
    pub lane: Arc<LaneKeeper>,
    pub side: Side,
    /// Where the client is notified by others.
    pub ear: Arc<ClientEar>,
    /// Wakes the other client.
    pub bell: ClientBell,
}

#[derive(Debug, Default)]
pub(super) struct Lanes {
    /// By their two clients, in the order of admission.
    lanes: HashMap<[ClientId; 2], Lane>,
    /// For other clients to wake a client. The daemon rings through the client's own socket instead, which only those two have.
    bells: HashMap<ClientId, (ClientBell, Arc<ClientEar>)>,
}

#[derive(Debug)]
struct Lane {
    keeper: Arc<LaneKeeper>,
    /// Which sides were given their ends.
    given: [bool; 2],
}

impl Lanes {
    /// The pairs of which both sides were given their ends.
    fn pairs(&self) -> impl Iterator<Item = [ClientId; 2]> {
        self.lanes.iter().filter(|(_, lane)| lane.given == [true; 2]).map(|(pair, _)| *pair)
    }

    /// Gives a client its end of the lane with another one, which is made if there is none. A client that asks again has lost its end: that
    /// lane ends, both are added to `told`, and the other asks for a new one.
    fn give(&mut self, asker: ClientId, other: ClientId, told: &mut Vec<ClientId>) -> Result<LaneEnd, Error> {
        let (pair, side) = match asker.0 < other.0 {
            true => ([asker, other], Side::First),
            false => ([other, asker], Side::Second),
        };
        let is_of_use = |lane: &Lane| !lane.given[side as usize] && !lane.keeper.has_ended();
        if self.lanes.get(&pair).is_some_and(|lane| !is_of_use(lane)) {
            told.extend(self.end(pair, |lane, _| lane.abandon(), side));
        }
        let full = [asker, other].into_iter().any(|id| self.of(id).count() >= DIRECT_LANES_MAX);
        let lane = match self.lanes.get_mut(&pair) {
            Some(lane) => lane,
            None if full => {
                let reason = format!("a client has {DIRECT_LANES_MAX} already");
                return Err(Error::full("direct lanes", reason));
            }
            None => {
                let keeper = Arc::new(LaneKeeper::create().map_err(|error| no_memory(&error))?);
                self.lanes.entry(pair).or_insert(Lane { keeper, given: [false; 2] })
            }
        };
        lane.given[side as usize] = true;
        let lane = lane.keeper.clone();
        let (ear, bell) = (self.bell(asker)?.1.clone(), self.bell(other)?.0.clone());
        Ok(LaneEnd { lane, side, ear, bell })
    }

    fn bell(&mut self, of: ClientId) -> Result<&(ClientBell, Arc<ClientEar>), Error> {
        match self.bells.entry(of) {
            Entry::Occupied(known) => Ok(known.into_mut()),
            Entry::Vacant(vacant) => {
                let (bell, ear) = ClientBell::between_clients().map_err(|error| no_memory(&error))?;
                Ok(vacant.insert((bell, Arc::new(ear))))
            }
        }
    }

    fn of(&self, id: ClientId) -> impl Iterator<Item = [ClientId; 2]> {
        self.lanes.keys().copied().filter(move |pair| pair.contains(&id))
    }

    /// Ends a lane; returns the clients to wake.
    fn end(&mut self, pair: [ClientId; 2], tell: fn(&LaneKeeper, Side), gone: Side) -> [ClientId; 2] {
        if let Some(lane) = self.lanes.remove(&pair) {
            tell(&lane.keeper, gone);
        }
        pair
    }

    /// A client has gone: its lanes end. Returns the clients to wake.
    pub(super) fn dismiss(&mut self, id: ClientId) -> Vec<ClientId> {
        let mut told = Vec::new();
        for pair in self.of(id).collect::<Vec<_>>() {
            let gone = if pair[0] == id { Side::First } else { Side::Second };
            told.extend(self.end(pair, LaneKeeper::end, gone));
        }
        self.bells.remove(&id);
        told
    }
}

fn no_memory(error: &ShmError) -> Error {
    Error::full("memory of this host", error.to_string())
}

impl Engine {
    /// The end that the process `asker`, attached as `task`, has of its direct lane with the client attached as `peer`.
    ///
    /// # Errors
    /// NotFound if one of them is not attached; PermissionDenied if the asker is not attached as `task`, or the other is another user's;
    /// InvalidArgument if they are the same; ResourceExhausted if one has too many lanes, or the system has no memory or descriptor.
    pub fn direct_lane(&self, task: &str, peer: &str, asker: Credentials) -> Result<LaneEnd, Error> {
        let mut attached = self.0.attached.lock().unwrap_or_else(PoisonError::into_inner);
        attached.check(task, asker)?;
        let Attached { seats, lanes, .. } = &mut *attached;
        let mut told = Vec::new();
        let find = |name: &str| {
            let not_there = || Error::NotFound { task: name.into(), reason: "no process is attached as it".into() };
            seats.get(name).ok_or_else(not_there)
        };
        let (own, other) = (find(task)?, find(peer)?);
        if other.uid != own.uid {
            return Err(Error::PermissionDenied { reason: format!("{peer} is another user's process").into() });
        }
        if own.id == other.id {
            return Err(Error::invalid("a task has no direct lane with itself"));
        }
        let given = lanes.give(own.id, other.id, &mut told);
        attached.ring_for(&told);
        given
    }

    /// The pairs of tasks whose clients have a direct lane, in order.
    pub fn direct_lanes(&self) -> Vec<[String; 2]> {
        let attached = self.0.attached.lock().unwrap_or_else(PoisonError::into_inner);
        let names: HashMap<ClientId, &String> = attached.seats.iter().map(|(task, seat)| (seat.id, task)).collect();
        let named = |pair: [ClientId; 2]| Some([names.get(&pair[0])?.to_string(), names.get(&pair[1])?.to_string()]);
        let mut pairs: Vec<[String; 2]> = attached.lanes.pairs().filter_map(named).collect();
        pairs.iter_mut().for_each(|pair| pair.sort());
        pairs.sort();
        pairs
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;
    use std::time::Duration;

    use sealane_transport::Code;
    use sealane_transport::shm::{DirectLane, Standing, Woken};

    use super::*;

    fn open(end: &LaneEnd) -> DirectLane {
        DirectLane::open(&end.lane.as_fd().try_clone_to_owned().unwrap(), end.side).unwrap()
    }

    #[test]
    fn both_are_given_one_lane_and_who_asks_again_a_new_one() {
        let (mut lanes, [a, b], mut told) = (Lanes::default(), [4, 7].map(ClientId), Vec::new());
        let (of_a, of_b) = (lanes.give(a, b, &mut told).unwrap(), lanes.give(b, a, &mut told).unwrap());
        assert!(Arc::ptr_eq(&of_a.lane, &of_b.lane));
        assert_eq!((of_a.side, of_b.side, lanes.lanes.len()), (Side::First, Side::Second, 1));
        for (from, to) in [(&of_a, &of_b), (&of_b, &of_a)] {
            from.bell.ring();
            assert_eq!(to.ear.wait(Some(Duration::ZERO)).unwrap(), Woken::Rung);
            assert_eq!(to.ear.wait(Some(Duration::ZERO)).unwrap(), Woken::TimedOut);
        }
        assert!(told.is_empty());
        let (at_a, at_b) = (open(&of_a), open(&of_b));
        at_a.arrive();
        assert_eq!((at_b.other(), at_a.other()), (Standing::Here, Standing::Absent));
        // b has lost its end: a is told, and gets its end of the new lane.
        let again = lanes.give(b, a, &mut told).unwrap();
        assert_eq!(told, [a, b]);
        assert!(!Arc::ptr_eq(&again.lane, &of_b.lane));
        assert!(at_a.has_ended() && at_b.has_ended());
        assert!(Arc::ptr_eq(&again.lane, &lanes.give(a, b, &mut told).unwrap().lane));
        // A lane that one client has left is of no use to the other.
        open(&again).leave();
        assert!(!Arc::ptr_eq(&again.lane, &lanes.give(a, b, &mut told).unwrap().lane));
        assert_eq!(lanes.lanes.len(), 1);
    }

    #[test]
    fn who_goes_takes_its_lanes_along() {
        let (mut lanes, [a, b, c], mut none) = (Lanes::default(), [1, 2, 3].map(ClientId), Vec::new());
        let ends = [(a, b), (b, c), (a, c)].map(|(asker, other)| open(&lanes.give(asker, other, &mut none).unwrap()));
        let mut told = lanes.dismiss(b);
        told.sort_unstable_by_key(|id| id.0);
        assert_eq!(told, [a, b, b, c]);
        // The second end is b's own.
        assert_eq!(ends.each_ref().map(DirectLane::other), [Standing::Gone, Standing::Absent, Standing::Absent]);
        assert_eq!((lanes.lanes.len(), lanes.bells.len()), (1, 2));
    }

    #[test]
    fn a_client_has_so_many_lanes_and_no_more() {
        let (mut lanes, hub, mut told) = (Lanes::default(), ClientId(0), Vec::new());
        for other in 1..=DIRECT_LANES_MAX as u64 {
            lanes.give(hub, ClientId(other), &mut told).unwrap();
        }
        let late = ClientId(1000);
        assert_eq!(lanes.give(late, hub, &mut told).unwrap_err().code(), Code::ResourceExhausted);
        lanes.give(ClientId(1), hub, &mut told).unwrap();
        lanes.dismiss(ClientId(2));
        lanes.give(late, hub, &mut told).unwrap();
    }
}
