//! Sends and recvs over a lane, one by one or many together.

use std::iter::once;

use sealane_transport::{
    Error, Tensor,
    shm::{LaneRecord, Standing},
};

use super::{
    super::{
        Held, Line, State,
        calls::{Awaited, Wanted, Wish},
        link::Peer,
        memory::Memory,
    },
    arrival::TakeKept,
    lane::Sent,
};
use crate::{
    clock::Tick,
    limits::{ASK_AFTER, LANE_PATIENCE, LANES_LOOK},
};

/// A lane whose other side reads, and what calls that are made over it together have in common.
#[derive(Clone, Copy)]
pub(in crate::attachment) struct OverLane {
    pub(in crate::attachment) lane: u16,
    pub(in crate::attachment) step: i64,
    pub(in crate::attachment) now: Tick,
    pub(in crate::attachment) deadline: Tick,
}

impl Held<'_> {
    /// Sends a small tensor over the lane to its peer; returns the call, unless the tensor is to go through the daemon.
    #[inline]
    pub(in crate::attachment) fn send_direct(
        &mut self,
        now: Tick,
        (peer, name): (Peer, &str),
        (step, key): (i64, &str),
        tensor: &Tensor,
        deadline: Tick,
    ) -> Option<u32> {
        let (lane, true) = self.lane_of((peer, name), now, 1)? else { return None };
        let State { line: Line::Up(link), calls, aftermath, .. } = &mut **self else { return None };
        if !link.direct.lane_unless_ended(lane, step)?.has_entry() {
            link.drain_lane(lane, calls, aftermath);
        }
        if !calls.have_room_for(1) {
            return None;
        }
        let mut sent = None;
        self.send_over(OverLane { lane, step, now, deadline }, once((key, tensor)), |call| sent = Some(call));
        if sent.is_none() {
            self.say_by_daemon(now, (peer, name), (step, key));
        }
        sent
    }

    /// Sends small tensors over a lane, as many as there are entries for; returns how many, and calls `each` with their calls.
    #[inline]
    pub(in crate::attachment) fn send_over<'t>(
        &mut self,
        OverLane { lane, step, now, deadline }: OverLane,
        tensors: impl Iterator<Item = (&'t str, &'t Tensor)>,
        mut each: impl FnMut(u32),
    ) -> usize {
        let due = now.later(LANE_PATIENCE).min(now.halfway(deadline));
        // First, since keys are the caller's, whose code may panic.
        self.attend_lanes(now, due);
        let State { line: Line::Up(link), calls, .. } = &mut **self else { return 0 };
        let Some(at) = link.direct.lane_unless_ended(lane, step) else { return 0 };
        at.pending.forget(|call| calls.sent_by(call).is_some());
        let mut count = 0;
        for (key, tensor) in tensors {
            let (meta, bytes) = (tensor.meta().as_wire(), tensor.bytes());
            if !calls.have_room_for(1) {
                break;
            }
            let Some(entry) = at.send_tensor(&LaneRecord::Tensor { step, key, meta, bytes }) else { break };
            let call = calls.enter_sent((lane, entry), deadline);
            at.has_gone(entry, Sent { call, bytes: bytes.len() as u32, step }, due);
            each(call);
            count += 1;
        }
        count
    }

    /// Tells the peer over the lane that a tensor, too large or without an entry, goes through the daemon: its recv may wait there.
    pub(in crate::attachment) fn say_by_daemon(&mut self, now: Tick, peer: (Peer, &str), (step, key): (i64, &str)) {
        let State { line: Line::Up(link), calls, aftermath, .. } = &mut **self else { return };
        let Some(lane) = link.direct.open_lane_of(peer) else { return };
        let Some(at) = link.direct.lane_unless_ended(lane, step).filter(|at| at.ends.other() == Standing::Here) else {
            return;
        };
        if !at.has_entry() {
            link.drain_lane(lane, calls, aftermath);
        }
        if let Some(at) = link.direct.get_mut(lane) {
            let due = at.hint((step, key), now);
            self.attend_lanes(now, due);
        }
    }

    /// Enters a recv that the lane to its peer may serve: it gets its tensor, waits here for it, or fails, in which case the memory stays.
    /// `None` if the daemon is to be asked; then call [`asked_by_name`](Self::asked_by_name).
    #[inline]
    pub(in crate::attachment) fn recv_direct(
        &mut self,
        now: Tick,
        peer: Peer,
        place: (&str, i64, &str),
        memory: &mut Memory,
        (deadline, borrowed, fail_if_gone): (Tick, bool, bool),
    ) -> Option<Result<u32, Error>> {
        let (from, step, key) = place;
        let (lane, is_read) = self.lane_of((peer, from), now, 1)?;
        let (over, may_wait) = (OverLane { lane, step, now, deadline }, is_read && !fail_if_gone);
        for is_last in [false, true] {
            if let Some(claimed) = self.claim(place, memory) {
                return Some(claimed);
            }
            let mut entered = None;
            self.recv_over(over, from, once(key), (memory, borrowed, may_wait), |recv| entered = Some(recv));
            if entered.is_some() {
                return entered;
            }
            let State { line: Line::Up(link), calls, .. } = &mut **self else { return None };
            link.direct.lane_unless_ended(lane, step).filter(|_| calls.have_room_for(1))?;
            let matching = calls.matching();
            match matching.find(matching.name(lane, step, key)) {
                Some(Awaited::Recv(_)) if is_last => {
                    let error = format!("a recv already waits for '{key}' of step {step} from {from}");
                    return Some(Err(Error::invalid(error)));
                }
                // It may have ended unnoticed.
                Some(Awaited::Recv(_)) => self.pump(),
                _ => return None,
            }
        }
        None
    }

    /// Enters recvs that a lane may serve, up to the first for which the daemon is to be asked, or whose name another recv has; returns how
    /// many, and calls `each` for them. If they `may_wait`, they wait here for what has not come. The memory is the first one's; it stays
    /// if that fails.
    #[inline]
    pub(in crate::attachment) fn recv_over<'k>(
        &mut self,
        OverLane { lane, step, now, deadline }: OverLane,
        from: &str,
        keys: impl Iterator<Item = &'k str>,
        (memory, borrowed, may_wait): (&mut Memory, bool, bool),
        mut each: impl FnMut(Result<u32, Error>),
    ) -> usize {
        let due = now.later(ASK_AFTER).min(now.halfway(deadline));
        let State { line: Line::Up(link), calls, aftermath, .. } = &mut **self else { return 0 };
        let Some(at) = link.direct.lane_unless_ended(lane, step) else { return 0 };
        let may_wait = may_wait && !at.hints.is_passed_by(now);
        if may_wait {
            at.quiet.forget(|call| calls.wants(call).is_some());
        }
        let (mut count, mut waiting) = (0, 0);
        for key in keys {
            if !calls.have_room_for(1) {
                break;
            }
            let (place, of) = ((from, step, key), (deadline, borrowed));
            let name = calls.matching().name(lane, step, key);
            let mut found = calls.matching().find(name);
            if let Some(Awaited::Tensor { entry, .. }) = found {
                match link.take_kept((lane, entry), (step, key), memory.room(), calls) {
                    TakeKept::Taken => {
                        let call = calls.enter_recv(None, place, memory, of);
                        link.hand_over(call, Wish::Quiet, calls, aftermath);
                        each(Ok(call));
                    }
                    TakeKept::Misfit(error) => each(Err(error)),
                    TakeKept::ByDaemon => {
                        // The hint is used up: who looks here again must not wait for another.
                        calls.matching().came_by_daemon(from, key);
                        break;
                    }
                    // Its name is free now.
                    TakeKept::Lost => found = None,
                }
                if found.is_some() {
                    count += 1;
                    continue;
                }
            }
            let Some(at) = link.direct.get_mut(lane).filter(|_| found.is_none() && may_wait) else { break };
            if calls.matching().comes_by_daemon(from, key) {
                break;
            }
            let call = calls.enter_recv(Some(name), place, memory, of);
            at.quiet.push(due, call);
            each(Ok(call));
            (count, waiting) = (count + 1, waiting + 1);
        }
        if waiting > 0 {
            if let Some(at) = link.direct.get_mut(lane) {
                // Another thread of this process may be asleep.
                at.hints.say_awaits(true, &at.ends);
            }
            self.attend_lanes(now, due.later(LANES_LOOK).min(now.halfway(deadline)));
        }
        count
    }

    /// Called after the daemon was asked for a recv. A lane may still serve it, and may already have its tensor: while there was no room to
    /// ask, lanes were polled, and perhaps opened.
    pub(in crate::attachment) fn asked_by_name(&mut self, call: u32, peer: Peer, place: (&str, i64, &str)) {
        let State { line: Line::Up(link), calls, aftermath, .. } = &mut **self else { return };
        let (from, step, key) = place;
        let lane = link.direct.open_lane_of((peer, from));
        let Some(lane) = lane.filter(|lane| link.direct.lane_unless_ended(*lane, step).is_some()) else { return };
        let name = calls.matching().name(lane, step, key);
        match calls.matching().find(name) {
            None => calls.give_name(call, name),
            Some(Awaited::Recv(_)) => {}
            Some(Awaited::Tensor { entry, .. }) => {
                let Some(Wanted { wish, room, .. }) = calls.wanted(call, place) else { return };
                match link.take_kept((lane, entry), (step, key), room, calls) {
                    TakeKept::Taken => link.hand_over(call, wish, calls, aftermath),
                    TakeKept::Misfit(error) => calls.refuse(call, error, aftermath),
                    TakeKept::ByDaemon | TakeKept::Lost => calls.give_name(call, name),
                }
            }
        }
    }
}
