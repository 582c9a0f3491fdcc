//! Sends and recvs over a lane, and what arrives on it.

use sealane_transport::{
    Error, Tensor,
    shm::{Broken, Fate, Note, PayloadAt, Returned, Standing, Submission},
};

use super::{
    super::{
        Held, Line, Link, State,
        aftermath::Aftermath,
        calls::{Awaited, Calls, Name, Wish, no_room},
        link::Peer,
        memory::Memory,
    },
    lane::{Kept, Lane, Sent},
};
use crate::{
    clock::Tick,
    limits::{LANE_NOTES_PER_LOOK, LANE_PATIENCE},
};

/// What became of a tensor that waited in a lane.
enum TakeKept {
    /// The receiver has it, in `incoming`.
    Taken,
    /// Its so many bytes do not fit where they are wanted: it stays.
    TooLong(usize),
    /// It is a hint: the daemon has the tensor.
    ByDaemon,
    /// Its sender has taken it back, or it has changed.
    Lost,
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
        let (lane, is_read) = self.lane_of((peer, name), now, 1)?;
        let State { line: Line::Up(link), calls, aftermath, .. } = &mut **self else { return None };
        if !is_read || !calls.have_room_for(1) {
            return None;
        }
        if !link.direct.lane_unless_ended(lane, step)?.has_entry() {
            link.drain_lane(lane, calls, aftermath);
        }
        let Link { direct, outgoing, .. } = &mut **link;
        let at = direct.lane_unless_ended(lane, step)?;
        let (meta, payload) = (tensor.meta().as_wire(), PayloadAt::Inline(tensor.bytes()));
        let send = Submission::Send { call: 0, peer: 0, step, timeout_ms: 0, key, meta, payload };
        send.encode(outgoing).ok()?;
        let Some(entry) = at.send_tensor(outgoing) else {
            self.say_by_daemon(now, (peer, name), (step, key));
            return None;
        };
        let call = calls.enter_sent((lane, entry), deadline);
        let due = now.later(LANE_PATIENCE).min(now.halfway(deadline));
        let is_away = |call| calls.sent_by(call).is_some();
        at.has_gone(entry, Sent { call, bytes: tensor.len() as u32, step }, due, is_away);
        self.attend_lanes(now, due);
        Some(call)
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
        let (call, peer, timeout_ms, destination, fused, fail_if_gone) = (0, 0, 0, None, false, false);
        let recv = Submission::Recv { call, peer, step, timeout_ms, key, destination, fused, fail_if_gone };
        let said = recv.encode(&mut link.outgoing).is_ok();
        let Link { direct, outgoing, .. } = &mut **link;
        if let (true, Some(at)) = (said, direct.get_mut(lane)) {
            let due = at.hint(outgoing, step, now);
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
        for is_last in [false, true] {
            if let Some(claimed) = self.claim(place, memory) {
                return Some(claimed);
            }
            let State { line: Line::Up(link), calls, aftermath, .. } = &mut **self else { return None };
            let at = link.direct.lane_unless_ended(lane, step).filter(|_| calls.have_room_for(1))?;
            let name = calls.matching().name(lane, step, key);
            match calls.matching().find(name) {
                None if !fail_if_gone && is_read && !at.hints.is_passed_by(now) => {
                    if calls.matching().comes_by_daemon(from, key) {
                        return None;
                    }
                    let call = calls.enter_recv(Some(name), place, memory, (deadline, borrowed));
                    let due = at.waits(call, now, deadline, |call| calls.wants(call).is_some());
                    self.attend_lanes(now, due);
                    return Some(Ok(call));
                }
                None => return None,
                Some(Awaited::Tensor { entry, .. }) => {
                    match link.take_kept((lane, entry), (step, key), memory.room(), calls) {
                        TakeKept::Taken => {
                            let call = calls.enter_recv(None, place, memory, (deadline, borrowed));
                            link.hand_over(call, Wish::Quiet, calls, aftermath);
                            return Some(Ok(call));
                        }
                        TakeKept::TooLong(len) => return Some(Err(no_room(memory.room().unwrap_or_default(), len))),
                        TakeKept::ByDaemon => return None,
                        // Its name is free now: look again.
                        TakeKept::Lost => {}
                    }
                }
                Some(Awaited::Recv(_)) if is_last => {
                    let error = format!("a recv already waits for '{key}' of step {step} from {from}");
                    return Some(Err(Error::invalid(error)));
                }
                Some(Awaited::Recv(_)) => {
                    // It may have ended unnoticed.
                    self.pump();
                }
            }
        }
        None
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
                let Some((wish, room)) = calls.wish(call, place) else { return };
                match link.take_kept((lane, entry), (step, key), room, calls) {
                    TakeKept::Taken => link.hand_over(call, wish, calls, aftermath),
                    TakeKept::TooLong(len) => calls.too_small(call, len, aftermath),
                    TakeKept::ByDaemon | TakeKept::Lost => calls.give_name(call, name),
                }
            }
        }
    }
}

impl Lane {
    /// The error of a sender whose tensor of that step has ended so.
    pub(super) fn error(&self, fate: Fate, step: i64) -> Option<Error> {
        match fate {
            Fate::Taken => None,
            Fate::Duplicate => {
                let reason = format!("a tensor of this key of step {step} waits at {} already", self.peer);
                Some(Error::invalid(reason))
            }
            Fate::Aborted | Fate::Withdrawn => {
                let reason = self.ended.reason(step).unwrap_or("its receiver has ended the step").into();
                Some(Error::Aborted { step, reason })
            }
        }
    }

    pub(super) fn forget_kept(&mut self, lane: u16, entry: u16, calls: &mut Calls) {
        if let Some(kept) = self.kept[usize::from(entry)].take() {
            calls.matching().remove(kept.name, Awaited::Tensor { lane, entry });
        }
    }

    /// Removes a hint that is not needed any more. Nobody is woken for the entry.
    fn end_kept_hint(&mut self, lane: u16, entry: u16, calls: &mut Calls) {
        self.forget_kept(lane, entry, calls);
        self.ends.receiver.settle(entry, Fate::Taken);
    }

    #[inline]
    pub(super) fn settle(&mut self, entry: u16, fate: Fate) -> bool {
        let won = self.ends.receiver.settle(entry, fate);
        self.has_returned |= won;
        won
    }
}

impl Link {
    /// Takes a tensor that waits in a lane for a recv of this step and key whose destination has `room`. It was copied before it is
    /// checked, so that later writes by its sender change nothing.
    fn take_kept(
        &mut self,
        (lane, entry): (u16, u16),
        wanted: (i64, &str),
        room: Option<usize>,
        calls: &mut Calls,
    ) -> TakeKept {
        let Link { direct, incoming, .. } = self;
        let Some(at) = direct.get_mut(lane) else { return TakeKept::Lost };
        let loaded = at.ends.receiver.load(entry, incoming);
        let len = match Submission::decode(incoming) {
            Ok(Submission::Send { step, key, payload: PayloadAt::Inline(bytes), .. })
                if loaded.is_ok() && (step, key) == wanted =>
            {
                Some(bytes.len())
            }
            Ok(Submission::Recv { .. }) if loaded.is_ok() => {
                at.end_kept_hint(lane, entry, calls);
                return TakeKept::ByDaemon;
            }
            _ => None,
        };
        if let (Some(len), Some(room)) = (len, room)
            && len > room
        {
            return TakeKept::TooLong(len);
        }
        at.forget_kept(lane, entry, calls);
        // A tensor that has changed since it was announced is nobody's.
        let fate = if len.is_some() { Fate::Taken } else { Fate::Duplicate };
        match (at.settle(entry, fate), len) {
            (true, Some(len)) => {
                at.has_come(len);
                TakeKept::Taken
            }
            _ => TakeKept::Lost,
        }
    }

    /// Gives a recv the tensor in `incoming`, which was taken.
    fn hand_over(&mut self, call: u32, wish: Wish, calls: &mut Calls, after: &mut Aftermath) {
        if let Ok(Submission::Send { meta, payload: PayloadAt::Inline(bytes), .. }) = Submission::decode(&self.incoming)
        {
            match wish {
                Wish::Quiet => calls.received_direct(call, meta, bytes, after),
                Wish::Asked => calls.set_aside(call, meta, bytes, after),
            }
        }
    }

    /// Takes in what has come over a lane.
    pub(super) fn drain_lane(&mut self, lane: u16, calls: &mut Calls, after: &mut Aftermath) {
        let drained = self.drain_open(lane, calls, after);
        let Some(at) = self.direct.get_mut(lane) else { return };
        if at.ends.has_ring_news() {
            at.rings.wake(at.ends.take_ring_news(), after);
        }
        if drained.is_err() || at.ends.has_ended() {
            return self.close_lane(lane, calls, after);
        }
        at.ring();
    }

    /// # Errors
    /// The other side breaks the protocol.
    fn drain_open(&mut self, lane: u16, calls: &mut Calls, after: &mut Aftermath) -> Result<(), Broken> {
        for _ in 0..LANE_NOTES_PER_LOOK {
            let Some(at) = self.direct.get_mut(lane) else { return Ok(()) };
            match at.ends.receiver.next_note()? {
                Some(Note::Sent(entry)) => self.arrived(lane, entry, calls, after)?,
                // Nobody waits for an entry that was taken back.
                Some(Note::Withdrawn(entry)) => at.forget_kept(lane, entry, calls),
                None => break,
            }
        }
        let Some(at) = self.direct.get_mut(lane) else { return Ok(()) };
        if at.hints.was_passed_by(&at.ends) {
            self.ask_for_waiting(lane, calls, after);
        }
        let Some(at) = self.direct.get_mut(lane) else { return Ok(()) };
        while let Some(Returned { entry, fate }) = at.ends.sender.next_returned()? {
            let sent = at.sent[usize::from(entry)];
            if sent.is_hint() {
                at.hints.has_returned();
            }
            if !sent.is_tensor() {
                continue;
            }
            let Sent { call, bytes, step } = sent;
            // The end of a withdrawn one was already told.
            if fate != Fate::Withdrawn {
                let error = at.error(fate, step);
                if error.is_none() {
                    (at.went.tensors, at.went.bytes) = (at.went.tensors + 1, at.went.bytes + u64::from(bytes));
                }
                // A receiver may have settled it long ago, and the call's number may be that of another send by now.
                if calls.sent_by(call) == Some((lane, entry)) {
                    calls.end_sent(call, error, after);
                }
            }
        }
        Ok(())
    }

    /// The other side had no free entry for something, which may be for any recv that waits here.
    #[cold]
    fn ask_for_waiting(&mut self, lane: u16, calls: &mut Calls, after: &mut Aftermath) {
        while let Some(&(_, call)) = self.direct.get_mut(lane).and_then(|at| at.quiet.front())
            && self.ask(call, calls, after)
        {
            self.direct.get_mut(lane).and_then(|at| at.quiet.pop_front());
        }
        self.ring_shards();
    }

    /// The other side says that a tensor goes through the daemon. Asks for its recv if that waits here, else when it comes.
    fn goes_by_daemon(
        &mut self,
        (lane, entry): (u16, u16),
        (step, name): (i64, Name),
        calls: &mut Calls,
        after: &mut Aftermath,
    ) {
        let found = calls.matching().find(name);
        let Some(at) = self.direct.get_mut(lane) else { return };
        if found.is_none() && calls.matching().insert(name, Awaited::Tensor { lane, entry }) {
            at.kept[usize::from(entry)] = Some(Kept { name, step, is_hint: true });
            return;
        }
        at.ends.receiver.settle(entry, Fate::Taken);
        if let Some(Awaited::Recv(call)) = found {
            // Without room it waits on, and is asked for later.
            let _ = self.ask(call, calls, after);
            self.ring_shards();
        }
    }

    /// Handles an arrived record.
    #[inline]
    fn arrived(&mut self, lane: u16, entry: u16, calls: &mut Calls, after: &mut Aftermath) -> Result<(), Broken> {
        let Link { direct, incoming, .. } = self;
        let Some(at) = direct.lanes[usize::from(lane)].as_mut() else { return Ok(()) };
        at.ends.receiver.load(entry, incoming)?;
        let (step, key, meta, bytes) = match Submission::decode(incoming) {
            Ok(Submission::Send { step, key, meta, payload: PayloadAt::Inline(bytes), .. }) => (step, key, meta, bytes),
            Ok(Submission::Abort { step, reason }) => {
                at.settle(entry, Fate::Taken);
                at.ended_there(lane, (step, reason), calls, after);
                return Ok(());
            }
            Ok(Submission::Recv { step, key, .. }) => {
                let name = calls.matching().name(lane, step, key);
                self.goes_by_daemon((lane, entry), (step, name), calls, after);
                return Ok(());
            }
            _ => {
                let what = "a record that is no tensor, nor says where one is, nor the end of a step";
                return Err(Broken { what, found: entry.into() });
            }
        };
        if direct.ended.reason(step).is_some() {
            at.settle(entry, Fate::Aborted);
            return Ok(());
        }
        let name = calls.matching().name(lane, step, key);
        let waiting = match calls.matching().find(name) {
            None => None,
            Some(Awaited::Tensor { entry: before, .. }) => match at.kept[usize::from(before)] {
                // What it announces may have ended.
                Some(Kept { is_hint: true, .. }) => {
                    at.end_kept_hint(lane, before, calls);
                    None
                }
                _ => {
                    at.settle(entry, Fate::Duplicate);
                    return Ok(());
                }
            },
            Some(Awaited::Recv(call)) => Some((call, calls.wish(call, (&at.peer, step, key)))),
        };
        match waiting {
            Some((call, Some((wish, room)))) if room.is_none_or(|room| bytes.len() <= room) => {
                if at.settle(entry, Fate::Taken) {
                    at.has_come(bytes.len());
                    calls.matching().came_by_lane(&at.peer, key);
                    match wish {
                        Wish::Quiet => calls.received_direct(call, meta, bytes, after),
                        Wish::Asked => calls.set_aside(call, meta, bytes, after),
                    }
                }
                return Ok(());
            }
            Some((call, Some(_))) => calls.too_small(call, bytes.len(), after),
            Some((call, None)) => calls.forget_name(call),
            None => {}
        }
        if calls.matching().insert(name, Awaited::Tensor { lane, entry }) {
            at.kept[usize::from(entry)] = Some(Kept { name, step, is_hint: false });
        } else {
            at.settle(entry, Fate::Duplicate);
        }
        Ok(())
    }
}
