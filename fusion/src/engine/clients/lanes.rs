//! Lanes between clients: which pairs have one, and which of the two was given its end. Two clients of one user share a *direct* lane. Others
//! have one each, and the [switch](super::switch) of the shard that serves the pair has the other side of both. The engine makes the lanes when
//! the first of the two asks, and ends them when one is dismissed; the other sees that in the lane itself. For any thread, under the lock of
//! [`Attached`]; bounded by [`LANES_MAX`] per client.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::os::fd::OwnedFd;
use std::sync::{Arc, PoisonError};

use sealane_transport::Error;
use sealane_transport::shm::attach::{Credentials, give_lane};
use sealane_transport::shm::{ClientBell, ClientEar, DirectLane, LaneKeeper, ShmError, Side};

use super::super::shard::ShardEngine;
use super::{Attached, Change, ClientId, Engine};
use crate::limits::LANES_MAX;

/// One client's end of a lane.
#[derive(Debug)]
pub struct LaneEnd {
    pub lane: Arc<LaneKeeper>,
    pub side: Side,
    /// Of a direct lane: where the client is notified by others, and what wakes the other client.
    pub bells: Option<(Arc<ClientEar>, ClientBell)>,
}

impl LaneEnd {
    /// Sends it to the client at the other end of `socket`.
    ///
    /// # Errors
    /// [`ShmError::System`] if the client is gone or does not read.
    pub fn give(&self, socket: &OwnedFd) -> Result<(), ShmError> {
        give_lane(socket, &self.lane, self.side, self.bells.as_ref().map(|(ear, bell)| (&**ear, bell)))
    }
}

#[derive(Debug, Default)]
pub(super) struct Lanes {
    /// By their two clients, in the order of admission.
    lanes: HashMap<[ClientId; 2], Lane>,
    /// For other clients to wake a client. The daemon rings through the client's own socket instead, which only those two have.
    bells: HashMap<ClientId, (ClientBell, Arc<ClientEar>)>,
}

/// The lane that two clients share, or their two lanes.
#[derive(Debug)]
struct Lane {
    keepers: Keepers,
    /// Which of the two clients were given their ends.
    given: [bool; 2],
}

#[derive(Debug)]
enum Keepers {
    Direct(Arc<LaneKeeper>),
    /// Each client is the first side of its lane.
    Switched([Arc<LaneKeeper>; 2]),
}

impl Keepers {
    /// # Errors
    /// ResourceExhausted if there is no memory, or no descriptor.
    fn create(is_direct: bool) -> Result<Keepers, Error> {
        let create = || LaneKeeper::create().map(Arc::new).map_err(|error| no_memory(&error));
        Ok(if is_direct { Keepers::Direct(create()?) } else { Keepers::Switched([create()?, create()?]) })
    }

    /// The lane of one of the two clients, and its side.
    fn of(&self, client: usize) -> (&Arc<LaneKeeper>, Side) {
        match (self, client) {
            (Keepers::Direct(lane), 0) => (lane, Side::First),
            (Keepers::Direct(lane), _) => (lane, Side::Second),
            (Keepers::Switched(lanes), _) => (&lanes[client], Side::First),
        }
    }

    fn abandon(&self) {
        [0, 1].into_iter().for_each(|client| self.of(client).0.abandon());
    }
}

/// A client's end of a lane, and the shard's sides if the lanes of both clients were just made.
type Given = (LaneEnd, Option<[DirectLane; 2]>);

impl Lanes {
    /// The pairs of clients that both have their ends: of a direct lane, or of one lane each.
    fn pairs(&self, are_direct: bool) -> impl Iterator<Item = [ClientId; 2]> {
        let is_given =
            move |lane: &Lane| matches!(lane.keepers, Keepers::Direct(_)) == are_direct && lane.given == [true; 2];
        self.lanes.iter().filter(move |(_, lane)| is_given(lane)).map(|(pair, _)| *pair)
    }

    /// Gives a client its end of the lane with another one, which is made if there is none. A client that asks again has lost its end: that
    /// lane ends, both are added to `told`, and the other asks for a new one.
    fn give(
        &mut self,
        (asker, other): (ClientId, ClientId),
        is_direct: bool,
        told: &mut Vec<ClientId>,
    ) -> Result<Given, Error> {
        let (pair, client) = if asker.0 < other.0 { ([asker, other], 0) } else { ([other, asker], 1) };
        let is_of_use = |lane: &Lane| !lane.given[client] && !lane.keepers.of(client).0.has_ended();
        if let Some(lane) = self.lanes.get(&pair)
            && !is_of_use(lane)
        {
            lane.keepers.abandon();
            self.lanes.remove(&pair);
            told.extend(pair);
        }
        let full = [asker, other].into_iter().any(|id| self.of(id).count() >= LANES_MAX);
        let (mut sides, mut is_new) = (None, false);
        let lane = match self.lanes.get_mut(&pair) {
            Some(lane) => lane,
            None if full => {
                let reason = format!("a client has {LANES_MAX} already");
                return Err(Error::full("lanes", reason));
            }
            None => {
                is_new = true;
                let keepers = Keepers::create(is_direct)?;
                self.lanes.entry(pair).or_insert(Lane { keepers, given: [false; 2] })
            }
        };
        lane.given[client] = true;
        if let (true, Keepers::Switched(keepers)) = (is_new, &lane.keepers) {
            sides = Some(keepers.each_ref().map(|keeper| keeper.open(Side::Second)));
        }
        let is_direct = matches!(lane.keepers, Keepers::Direct(_));
        let (lane, side) = lane.keepers.of(client);
        let lane = lane.clone();
        let bells = match is_direct {
            true => Some((self.bell(asker)?.1.clone(), self.bell(other)?.0.clone())),
            false => None,
        };
        Ok((LaneEnd { lane, side, bells }, sides))
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

    /// A client has gone: its direct lanes end. The shard ends the others. Returns the clients to wake.
    pub(super) fn dismiss(&mut self, id: ClientId) -> Vec<ClientId> {
        let mut told = Vec::new();
        for pair in self.of(id).collect::<Vec<_>>() {
            if let Some(Lane { keepers: Keepers::Direct(lane), .. }) = self.lanes.remove(&pair) {
                lane.end(if pair[0] == id { Side::First } else { Side::Second });
                told.extend(pair);
            }
        }
        self.bells.remove(&id);
        told
    }
}

fn no_memory(error: &ShmError) -> Error {
    Error::full("memory of this host", error.to_string())
}

impl Engine {
    /// The end that the process `asker`, attached as `task`, has of its lane with the client attached as `peer`. They share it if they are of one
    /// user and `may_share`; else the shard that serves them moves small tensors from the lane of one to that of the other.
    ///
    /// # Errors
    /// NotFound if one of them is not attached; PermissionDenied if the asker is not attached as `task`; InvalidArgument if they are the
    /// same; ResourceExhausted if one has too many lanes, or the system has no memory or descriptor.
    pub fn lane(&self, task: &str, peer: &str, asker: Credentials, may_share: bool) -> Result<LaneEnd, Error> {
        let mut attached = self.0.attached.lock().unwrap_or_else(PoisonError::into_inner);
        attached.check(task, asker)?;
        let Attached { seats, lanes, .. } = &mut *attached;
        let mut told = Vec::new();
        let find = |name: &str| {
            let not_there = || Error::NotFound { task: name.into(), reason: "no process is attached as it".into() };
            seats.get(name).ok_or_else(not_there)
        };
        let (own, other) = (find(task)?, find(peer)?);
        if own.id == other.id {
            return Err(Error::invalid("a task has no lane with itself"));
        }
        let (is_direct, pair) = (may_share && own.uid == other.uid, (own.id, other.id));
        let given = lanes.give(pair, is_direct, &mut told);
        attached.ring_for(&told);
        let (end, sides) = given?;
        if let Some(sides) = sides {
            let clients = if pair.0.0 < pair.1.0 { [pair.0, pair.1] } else { [pair.1, pair.0] };
            // A shard that has stopped has no clients.
            self.0.runtime.shard(self.shard_of(task, peer)).submit_always(Box::new(move |_| {
                if let Some(engine) = ShardEngine::current() {
                    engine.client_changes.borrow_mut().push_back(Change::Connect(clients, Box::new(sides)));
                }
            }));
        }
        Ok(end)
    }

    /// The pairs of tasks whose clients share a direct lane, in order; or those that have a lane each, with the switch between them.
    pub fn lanes(&self, are_direct: bool) -> Vec<[String; 2]> {
        let attached = self.0.attached.lock().unwrap_or_else(PoisonError::into_inner);
        let names: HashMap<ClientId, &String> = attached.seats.iter().map(|(task, seat)| (seat.id, task)).collect();
        let named = |pair: [ClientId; 2]| Some([names.get(&pair[0])?.to_string(), names.get(&pair[1])?.to_string()]);
        let mut pairs: Vec<[String; 2]> = attached.lanes.pairs(are_direct).filter_map(named).collect();
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

    fn give(lanes: &mut Lanes, pair: (ClientId, ClientId), told: &mut Vec<ClientId>) -> LaneEnd {
        lanes.give(pair, true, told).unwrap().0
    }

    #[test]
    fn both_are_given_one_lane_and_who_asks_again_a_new_one() {
        let (mut lanes, [a, b], mut told) = (Lanes::default(), [4, 7].map(ClientId), Vec::new());
        let (of_a, of_b) = (give(&mut lanes, (a, b), &mut told), give(&mut lanes, (b, a), &mut told));
        assert!(Arc::ptr_eq(&of_a.lane, &of_b.lane));
        assert_eq!((of_a.side, of_b.side, lanes.lanes.len()), (Side::First, Side::Second, 1));
        for (from, to) in [(&of_a, &of_b), (&of_b, &of_a)] {
            let (Some((_, bell)), Some((ear, _))) = (&from.bells, &to.bells) else { panic!("they share the lane") };
            bell.ring();
            assert_eq!(ear.wait(Some(Duration::ZERO)).unwrap(), Woken::Rung);
            assert_eq!(ear.wait(Some(Duration::ZERO)).unwrap(), Woken::TimedOut);
        }
        assert!(told.is_empty());
        let (at_a, at_b) = (open(&of_a), open(&of_b));
        at_a.arrive();
        assert_eq!((at_b.other(), at_a.other()), (Standing::Here, Standing::Absent));
        // b has lost its end: a is told, and gets its end of the new lane.
        let again = give(&mut lanes, (b, a), &mut told);
        assert_eq!(told, [a, b]);
        assert!(!Arc::ptr_eq(&again.lane, &of_b.lane));
        assert!(at_a.has_ended() && at_b.has_ended());
        assert!(Arc::ptr_eq(&again.lane, &give(&mut lanes, (a, b), &mut told).lane));
        // A lane that one client has left is of no use to the other.
        open(&again).leave();
        assert!(!Arc::ptr_eq(&again.lane, &give(&mut lanes, (a, b), &mut told).lane));
        assert_eq!(lanes.lanes.len(), 1);
    }

    #[test]
    fn who_goes_takes_its_lanes_along() {
        let (mut lanes, [a, b, c], mut none) = (Lanes::default(), [1, 2, 3].map(ClientId), Vec::new());
        let ends = [(a, b), (b, c), (a, c)].map(|pair| open(&give(&mut lanes, pair, &mut none)));
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
        for other in 1..=LANES_MAX as u64 {
            give(&mut lanes, (hub, ClientId(other)), &mut told);
        }
        let late = ClientId(1000);
        assert_eq!(lanes.give((late, hub), true, &mut told).unwrap_err().code(), Code::ResourceExhausted);
        give(&mut lanes, (ClientId(1), hub), &mut told);
        lanes.dismiss(ClientId(2));
        give(&mut lanes, (late, hub), &mut told);
    }
}
