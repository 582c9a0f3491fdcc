//! Lanes that carry no more tensors, because one side has gone or the two have another lane, while streams still use their rings,
//! or may: what a process wrote before it went is read. Under the attachment's lock; bounded by [`LANES_RETIRED_MAX`].

use std::task::Waker;

use super::{super::aftermath::Aftermath, Lane};
use crate::{
    clock::Tick,
    limits::{LANE_RETIRED, LANES_RETIRED_MAX},
};

/// These lanes, and when each is next checked.
#[derive(Default)]
pub(super) struct Retired(Vec<(Tick, Lane)>);

impl Retired {
    #[inline]
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    /// Keeps a lane. If there are too many, the streams of the oldest end.
    pub(super) fn keep(&mut self, lane: Lane, now: Tick, after: &mut Aftermath) {
        if self.0.len() >= LANES_RETIRED_MAX {
            let unused = self.0.iter().position(|(_, lane)| !lane.rings.are_used() && !lane.owes);
            let (_, oldest) = self.0.remove(unused.unwrap_or(0));
            oldest.abandon(&mut after.wakers);
        }
        self.0.push((now.later(LANE_RETIRED), lane));
    }

    /// The lane of that number with a peer.
    pub(super) fn find(&mut self, peer: &str, number: u64) -> Option<&mut Lane> {
        let is_it = |lane: &&mut Lane| *lane.channel.peer == *peer && lane.channel.lane.number() == number;
        self.iter_mut().find(is_it)
    }

    pub(super) fn get_mut(&mut self, place: usize) -> Option<&mut Lane> {
        self.0.get_mut(place).map(|(_, lane)| lane)
    }

    pub(super) fn take_all(&mut self) -> impl Iterator<Item = Lane> {
        std::mem::take(&mut self.0).into_iter().map(|(_, lane)| lane)
    }

    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Lane> {
        self.0.iter_mut().map(|(_, lane)| lane)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Lane> {
        self.0.iter().map(|(_, lane)| lane)
    }

    /// Drops lanes that nobody uses.
    pub(super) fn look_at(&mut self, now: Tick, wakers: &mut Vec<Waker>) {
        self.0.retain_mut(|(due, lane)| {
            let mut inner = lane.channel.lock();
            inner.half.sweep(now.milliseconds());
            lane.channel.finish_held(inner, wakers);
            if *due > now {
                return true;
            }
            *due = now.later(LANE_RETIRED);
            lane.rings.are_used() || lane.owes
        });
    }

    /// When the next lane is to be checked.
    pub(super) fn due(&self) -> Option<Tick> {
        self.0.iter().map(|(due, _)| *due).min()
    }
}
