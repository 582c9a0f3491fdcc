//! Sends and recvs by a lane, and what comes by it.

use sealane_transport::{
    Error, Tensor,
    shm::{Broken, Fate, Note, PayloadAt, Returned, Submission},
};

use super::{
    super::{
        Held, Line, Link, State,
        aftermath::Aftermath,
        calls::{Awaited, Calls, Name, Wish, no_room},
        memory::Memory,
    },
    lane::{Kept, Lane, Sent},
};
use crate::{
    clock::Tick,
    limits::{LANE_NOTES_PER_LOOK, LANE_PATIENCE},
};

/// What became of a recv that a lane may serve.
pub(in crate::attachment) enum Found {
    /// It is entered: it has its tensor, or waits here for it.
    Entered(u32),
    /// The daemon is to be asked, and [`Held::asked_by_name`] told.
    Nothing(Memory),
    /// It fails.
    Failed(Error, Memory),
}

/// What became of a tensor that waited in a lane.
enum TakeKept {
    /// It is the receiver's, and in `incoming`.
    Taken,
    /// So many bytes have no room where they are wanted: it stays.
    TooLong(usize),
    /// It is none: the daemon has it.
    ByDaemon,
    /// Its sender has taken it back, or it is not what it was.
    Lost,
}

impl Held<'_> {
    /// Sends a small tensor by the lane to its peer; the call, unless it is to go by the daemon.
    #[inline]
    pub(in crate::attachment) fn send_direct(
        &mut self,
        now: Tick,
        (peer, step): (&str, i64),
        key: &str,
        tensor: &Tensor,
        deadline: Tick,
    ) -> Option<u32> {
        let lane = self.lane_of(peer, now)?;
        let State { line: Line::Up(link), calls, aftermath, .. } = &mut **self else { return None };
        if !link.direct.is_read(lane) || link.direct.may_have_ended(lane, step) || !calls.have_room_for(1) {
            return None;
        }
        link.find_entry(lane, calls, aftermath);
        let (meta, payload) = (tensor.meta().as_wire(), PayloadAt::Inline(tensor.bytes()));
        let send = Submission::Send { call: 0, peer: 0, step, timeout_ms: 0, key, meta, payload };
        send.encode(&mut link.outgoing).ok()?;
        let Link { direct, outgoing, .. } = &mut **link;
        let at = direct.get_mut(lane)?;
        let Some(entry) = at.send_tensor(outgoing) else {
            self.say_by_daemon(now, (peer, step), key);
            return None;
        };
        let call = calls.enter_sent((lane, entry), deadline);
        let due = now.later(LANE_PATIENCE).min(now.halfway(deadline));
        at.has_gone(entry, Sent { call, bytes: tensor.len() as u32, step }, due, |call| calls.sent_by(call).is_some());
        self.attend_lanes(now, due);
        Some(call)
    }

    /// A tensor goes by the daemon that is too large or finds no entry, as the lane to its peer says, for its recv may wait there.
    pub(in crate::attachment) fn say_by_daemon(&mut self, now: Tick, (peer, step): (&str, i64), key: &str) {
        let State { line: Line::Up(link), calls, aftermath, .. } = &mut **self else { return };
        let Some(lane) = link.direct.open_lane_of(peer) else { return };
        if !link.direct.is_read(lane) || link.direct.may_have_ended(lane, step) {
            return;
        }
        link.find_entry(lane, calls, aftermath);
        let (call, peer, timeout_ms, destination, fused, fail_if_gone) = (0, 0, 0, None, false, false);
        let recv = Submission::Recv { call, peer, step, timeout_ms, key, destination, fused, fail_if_gone };
        let said = recv.encode(&mut link.outgoing).is_ok();
        let Link { direct, outgoing, .. } = &mut **link;
        if let (true, Some(at)) = (said, direct.get_mut(lane)) {
            let due = at.hint(outgoing, step, now);
            self.attend_lanes(now, due);
        }
    }

    /// Enters a recv that the lane to its peer may serve.
    #[inline]
    pub(in crate::attachment) fn recv_direct(
        &mut self,
        now: Tick,
        place: (&str, i64, &str),
        memory: Memory,
        (deadline, borrowed, fail_if_gone): (Tick, bool, bool),
    ) -> Found {
        let (peer, step, key) = place;
        let Some(lane) = self.lane_of(peer, now) else { return Found::Nothing(memory) };
        for is_last in [false, true] {
            let State { line: Line::Up(link), calls, aftermath, .. } = &mut **self else { break };
            if link.direct.may_have_ended(lane, step) || !calls.have_room_for(1) {
                break;
            }
            let name = calls.matching().name(lane, step, key);
            match calls.matching().find(name) {
                Some(Awaited::Tensor { entry, .. }) => {
                    match link.take_kept((lane, entry), (step, key), memory.room(), calls) {
                        TakeKept::Taken => {
                            let call = calls.enter_recv(place, memory, (deadline, borrowed));
                            link.hand_over(call, Wish::Quiet, calls, aftermath);
                            return Found::Entered(call);
                        }
                        TakeKept::TooLong(len) => {
                            return Found::Failed(no_room(memory.room().unwrap_or_default(), len), memory);
                        }
                        TakeKept::ByDaemon => return Found::Nothing(memory),
                        TakeKept::Lost => {}
                    }
                }
                Some(Awaited::Recv(_)) if is_last => {
                    let error = format!("a recv already waits for '{key}' of step {step} from {peer}");
                    return Found::Failed(Error::invalid(error), memory);
                }
                Some(Awaited::Recv(_)) => {
                    // It may have ended, as nobody has looked.
                    self.pump();
                    continue;
                }
                None => {}
            }
            if fail_if_gone || !link.direct.is_read(lane) || calls.matching().comes_by_daemon(peer, key) {
                break;
            }
            let Some(at) = link.direct.get_mut(lane).filter(|at| !at.hints.is_passed_by(now)) else { break };
            let call = calls.enter_recv(place, memory, (deadline, borrowed));
            calls.wait_for_lane(call, name);
            let due = at.waits(call, now, deadline, |call| calls.wants(call).is_some());
            self.attend_lanes(now, due);
            return Found::Entered(call);
        }
        Found::Nothing(memory)
    }

    /// The daemon was asked for a recv. A lane may serve it all the same, and may have what it wants by now: while there was no room to
    /// ask, lanes were looked at, and perhaps opened.
    pub(in crate::attachment) fn asked_by_name(&mut self, call: u32, place: (&str, i64, &str)) {
        let State { line: Line::Up(link), calls, aftermath, .. } = &mut **self else { return };
        let (peer, step, key) = place;
        let Some(lane) = link.direct.open_lane_of(peer).filter(|lane| !link.direct.may_have_ended(*lane, step)) else {
            return;
        };
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
    /// What a sender hears whose tensor of a step has ended so.
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

    /// What was said of a tensor that goes by the daemon is of no use any more. Nobody is woken for the entry.
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
    /// Takes what came back by a lane that has no entry for a tensor.
    #[inline]
    fn find_entry(&mut self, lane: u16, calls: &mut Calls, after: &mut Aftermath) {
        if !self.direct.get_mut(lane).is_some_and(|lane| lane.has_entry()) {
            self.drain_lane(lane, calls, after);
        }
    }

    /// Takes a tensor that waits in a lane for a recv of this step and key whose destination has `room`. What its sender writes meanwhile
    /// changes nothing: it was copied before it is looked at.
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
        // What is no longer what it was said to be is nobody's.
        let fate = if len.is_some() { Fate::Taken } else { Fate::Duplicate };
        match (at.settle(entry, fate), len) {
            (true, Some(len)) => {
                at.has_come(len);
                TakeKept::Taken
            }
            _ => TakeKept::Lost,
        }
    }

    /// Gives a recv the tensor that is in `incoming`, and taken.
    fn hand_over(&mut self, call: u32, wish: Wish, calls: &mut Calls, after: &mut Aftermath) {
        if let Ok(Submission::Send { meta, payload: PayloadAt::Inline(bytes), .. }) = Submission::decode(&self.incoming)
        {
            match wish {
                Wish::Quiet => calls.received_direct(call, meta, bytes, after),
                Wish::Asked => calls.set_aside(call, meta, bytes, after),
            }
        }
    }

    /// Takes what has come by a lane.
    pub(super) fn drain_lane(&mut self, lane: u16, calls: &mut Calls, after: &mut Aftermath) {
        let drained = self.drain_open(lane, calls, after);
        let Some(at) = self.direct.get_mut(lane) else { return };
        if drained.is_err() || at.ends.has_ended() {
            return self.close_lane(lane, calls, after);
        }
        at.ring();
    }

    /// # Errors
    /// The other side breaks the rules.
    fn drain_open(&mut self, lane: u16, calls: &mut Calls, after: &mut Aftermath) -> Result<(), Broken> {
        for _ in 0..LANE_NOTES_PER_LOOK {
            let Some(at) = self.direct.get_mut(lane) else { return Ok(()) };
            match at.ends.receiver.next_note()? {
                Some(Note::Sent(entry)) => self.arrived(lane, entry, calls, after)?,
                // Nobody waits for an entry that he has taken back.
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
            // The end of one that was withdrawn was told.
            if fate != Fate::Withdrawn {
                let error = at.error(fate, step);
                if error.is_none() {
                    (at.went.tensors, at.went.bytes) = (at.went.tensors + 1, at.went.bytes + u64::from(bytes));
                }
                calls.end_sent(call, error, after);
            }
        }
        Ok(())
    }

    /// The other side has had no entry for something, which may be for any recv that waits here.
    #[cold]
    fn ask_for_waiting(&mut self, lane: u16, calls: &mut Calls, after: &mut Aftermath) {
        while let Some(&(_, call)) = self.direct.get_mut(lane).and_then(|at| at.quiet.front())
            && self.ask(call, calls, after)
        {
            self.direct.get_mut(lane).and_then(|at| at.quiet.pop_front());
        }
        self.ring_shards();
    }

    /// The other side says that a tensor goes by the daemon. Its recv is asked for if it waits here, or else when it comes.
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

    /// A record has come.
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
                // The one that it tells of may have ended.
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
