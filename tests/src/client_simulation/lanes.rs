//! Direct lanes as the daemon creates and ends them. Each side opens its end when its driver next runs.

use std::os::fd::AsFd;

use sealane_transport::shm::attach::GivenLane;
use sealane_transport::shm::{ClientBell, DirectLane, LaneKeeper, Side};

use super::world::World;

/// The lane between two tasks, the lower seat first.
struct Lane {
    pair: [usize; 2],
    keeper: LaneKeeper,
    given: [bool; 2],
}

pub(super) struct Lanes {
    /// Whether this run has lanes at all.
    pub(super) are_given: bool,
    lanes: Vec<Lane>,
}

impl Lanes {
    pub(super) fn new(are_given: bool) -> Lanes {
        Lanes { are_given, lanes: Vec::new() }
    }

    /// A client has gone: ends its side of all its lanes, so that their other sides notice.
    pub(super) fn end_of(&mut self, seat: usize) {
        for Lane { pair, keeper, .. } in self.lanes.extract_if(.., |lane| lane.pair.contains(&seat)) {
            keeper.end(if pair[0] == seat { Side::First } else { Side::Second });
        }
    }
}

impl World {
    /// Gives a client its end of the lane to another client on its host, and makes the lane if there is none.
    pub(super) fn open_lane(&mut self, seat: usize, peer: usize) -> Result<(), String> {
        let is_lane = self.lanes.are_given && seat != peer && self.seats[seat].host == self.seats[peer].host;
        let both = [seat, peer].map(|seat| self.seats[seat].client.is_some());
        if !is_lane || both != [true; 2] {
            return Ok(());
        }
        // A client whose lane has ended notices that before it asks for another.
        self.drive(seat)?;
        let (pair, side) = if seat < peer { ([seat, peer], Side::First) } else { ([peer, seat], Side::Second) };
        self.lanes.lanes.retain(|lane| lane.pair != pair || !lane.keeper.has_ended());
        if !self.lanes.lanes.iter().any(|lane| lane.pair == pair) {
            let keeper = LaneKeeper::create().map_err(|error| error.to_string())?;
            self.lanes.lanes.push(Lane { pair, keeper, given: [false; 2] });
        }
        let lane = self.lanes.lanes.iter_mut().find(|lane| lane.pair == pair).expect("just made");
        if std::mem::replace(&mut lane.given[side as usize], true) {
            return Ok(());
        }
        let memory = lane.keeper.as_fd().try_clone_to_owned().map_err(|error| error.to_string())?;
        let lane = DirectLane::open(&memory, side).map_err(|error| error.to_string())?;
        let (bell, ear) = ClientBell::between_clients().map_err(|error| error.to_string())?;
        let (name, peer) = (self.seats[seat].name, self.seats[peer].name);
        let client = self.seats[seat].client.as_ref().expect("looked for above");
        client.task.open_lane(peer, GivenLane { lane, ear, bell });
        self.note(format_args!("{name} opens its end of the lane with {peer}"));
        Ok(())
    }

    /// Ends a lane, as the daemon does when one side asks for a new one.
    pub(super) fn end_lane(&mut self, index: usize) {
        if self.lanes.lanes.is_empty() {
            return;
        }
        let lane = self.lanes.lanes.swap_remove(index % self.lanes.lanes.len());
        lane.keeper.abandon();
        let [one, other] = lane.pair.map(|seat| self.seats[seat].name);
        self.report.lanes_ended += 1;
        self.note(format_args!("the lane of {one} and {other} ends"));
    }
}
