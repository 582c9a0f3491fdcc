//! Lanes as the daemon creates and ends them: shared by two clients, or one each, with the switch of their shard between them. Each side opens
//! its end when its driver next runs.

use std::os::fd::AsFd;

use sealane_transport::shm::attach::{GivenLane, LaneBells};
use sealane_transport::shm::{ClientBell, DirectLane, LaneKeeper, Side};

use super::world::World;

/// The lane that two tasks share, or the lanes of both; the lower seat first.
struct Lane {
    pair: [usize; 2],
    keepers: Vec<LaneKeeper>,
    given: [bool; 2],
}

impl Lane {
    /// The lane of one of the two, and its side.
    fn of(&self, client: usize) -> (&LaneKeeper, Side) {
        match &*self.keepers {
            [shared] => (shared, if client == 0 { Side::First } else { Side::Second }),
            own => (&own[client], Side::First),
        }
    }

    fn has_ended(&self) -> bool {
        self.keepers.iter().any(LaneKeeper::has_ended)
    }
}

/// Which lanes the clients of a run get, if any.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LaneKind {
    /// Two clients share one.
    Direct,
    /// Each has one, and the shard is between them.
    Switched,
}

pub(super) struct Lanes {
    kind: Option<LaneKind>,
    lanes: Vec<Lane>,
}

impl Lanes {
    pub(super) fn new(kind: Option<LaneKind>) -> Lanes {
        Lanes { kind, lanes: Vec::new() }
    }

    /// A client has gone: ends its side of all its lanes, so that their other sides notice. The switch does that for its own.
    pub(super) fn end_of(&mut self, seat: usize) {
        for Lane { pair, keepers, .. } in self.lanes.extract_if(.., |lane| lane.pair.contains(&seat)) {
            if let [keeper] = &*keepers {
                keeper.end(if pair[0] == seat { Side::First } else { Side::Second });
            }
        }
    }
}

impl World {
    /// Gives a client its end of the lane to another client on its host, and makes the lane if there is none.
    pub(super) fn open_lane(&mut self, seat: usize, peer: usize) -> Result<(), String> {
        let is_lane = self.lanes.kind.is_some() && seat != peer && self.seats[seat].host == self.seats[peer].host;
        let both = [seat, peer].map(|seat| self.seats[seat].client.is_some());
        if !is_lane || both != [true; 2] {
            return Ok(());
        }
        // A client whose lane has ended notices that before it asks for another.
        self.drive(seat)?;
        let (pair, client) = if seat < peer { ([seat, peer], 0) } else { ([peer, seat], 1) };
        self.lanes.lanes.retain(|lane| lane.pair != pair || !lane.has_ended());
        if !self.lanes.lanes.iter().any(|lane| lane.pair == pair) {
            self.make_lane(pair)?;
        }
        let lane = self.lanes.lanes.iter_mut().find(|lane| lane.pair == pair).expect("just made");
        if std::mem::replace(&mut lane.given[client], true) {
            return Ok(());
        }
        let (keeper, side) = lane.of(client);
        let memory = keeper.as_fd().try_clone_to_owned().map_err(|error| error.to_string())?;
        let lane = DirectLane::open(&memory, side).map_err(|error| error.to_string())?;
        let bells = match self.lanes.kind {
            Some(LaneKind::Direct) => {
                let (bell, ear) = ClientBell::between_clients().map_err(|error| error.to_string())?;
                Some(LaneBells { ear, bell })
            }
            Some(LaneKind::Switched) | None => None,
        };
        let (name, peer) = (self.seats[seat].name, self.seats[peer].name);
        let client = self.seats[seat].client.as_ref().expect("looked for above");
        client.task.open_lane(peer, GivenLane { lane, bells });
        self.note(format_args!("{name} opens its end of the lane with {peer}"));
        Ok(())
    }

    fn make_lane(&mut self, pair: [usize; 2]) -> Result<(), String> {
        let count = if self.lanes.kind == Some(LaneKind::Direct) { 1 } else { 2 };
        let keepers = (0..count).map(|_| LaneKeeper::create().map_err(|error| error.to_string()));
        let keepers = keepers.collect::<Result<Vec<_>, _>>()?;
        if let [one, other] = &*keepers {
            let handles = pair.map(|seat| self.seats[seat].client.as_ref().expect("both are there").handle);
            let host = self.seats[pair[0]].host;
            let (lanes, now) = ([one, other].map(|keeper| keeper.open(Side::Second)), self.instant());
            self.hosts[host].clients.connect(handles, lanes, now);
        }
        self.lanes.lanes.push(Lane { pair, keepers, given: [false; 2] });
        Ok(())
    }

    /// Ends a lane, as the daemon does when one side asks for a new one.
    pub(super) fn end_lane(&mut self, index: usize) {
        if self.lanes.lanes.is_empty() {
            return;
        }
        let lane = self.lanes.lanes.swap_remove(index % self.lanes.lanes.len());
        lane.keepers.iter().for_each(LaneKeeper::abandon);
        let [one, other] = lane.pair.map(|seat| self.seats[seat].name);
        self.report.lanes_ended += 1;
        self.note(format_args!("the lane of {one} and {other} ends"));
    }
}
