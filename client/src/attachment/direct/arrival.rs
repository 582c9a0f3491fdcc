//! What comes over a lane: records, entries that are returned, and tensors that wait for their recvs.

use sealane_transport::{
    Error, Room,
    shm::{Broken, Fate, LaneRecord, Note, Returned},
};

use super::{
    super::{
        Link,
        aftermath::Aftermath,
        calls::{Awaited, Calls, Name, Waiting, Wanted, Wish},
    },
    Lanes,
    lane::{Kept, Lane, Sent},
};
use crate::limits::LANE_NOTES_PER_LOOK;

/// What became of a tensor that waited in a lane.
pub(super) enum TakeKept {
    /// The receiver has it, in `loaded`.
    Taken,
    /// The tensor does not fit the destination, and stays in the lane.
    Misfit(Error),
    /// It is a hint: the daemon has the tensor.
    ByDaemon,
    /// Its sender has taken it back, or it has changed.
    Lost,
}

impl Lane {
    /// The error of a sender whose tensor of that step has ended so.
    #[inline]
    pub(super) fn error(&self, fate: Fate, step: i64) -> Option<Error> {
        if fate == Fate::Taken { None } else { self.error_unless_taken(fate, step) }
    }

    #[cold]
    fn error_unless_taken(&self, fate: Fate, step: i64) -> Option<Error> {
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
    /// Takes a tensor that waits in a lane for a recv of this step and key whose destination is `room`. It was copied before it is
    /// checked, so that later writes by its sender change nothing.
    pub(super) fn take_kept(
        &mut self,
        (lane, entry): (u16, u16),
        wanted: (i64, &str),
        room: Option<Room>,
        calls: &mut Calls,
    ) -> TakeKept {
        let Lanes { lanes, loaded, .. } = &mut self.direct;
        let Some(at) = lanes.get_mut(usize::from(lane)).and_then(Option::as_mut) else { return TakeKept::Lost };
        let is_loaded = at.ends.receiver.load(entry, loaded).is_ok();
        let len = match loaded.record() {
            Ok(LaneRecord::Tensor { step, key, meta, bytes }) if is_loaded && (step, key) == wanted => {
                if let Some(Err(misfit)) = room.map(|room| room.check(meta, bytes.len() as u64)) {
                    return TakeKept::Misfit(misfit);
                }
                Some(bytes.len())
            }
            Ok(LaneRecord::ByDaemon { .. }) if is_loaded => {
                at.end_kept_hint(lane, entry, calls);
                return TakeKept::ByDaemon;
            }
            _ => None,
        };
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

    /// Gives a recv the tensor that was loaded and taken.
    pub(super) fn hand_over(&mut self, call: u32, wish: Wish, calls: &mut Calls, after: &mut Aftermath) {
        if let Ok(LaneRecord::Tensor { meta, bytes, .. }) = self.direct.loaded.record() {
            calls.hand_over((call, wish), meta, bytes, after);
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
        while let Some((_, call)) = self.direct.get_mut(lane).and_then(|at| at.quiet.first())
            && self.ask(call, calls, after)
        {
            if let Some(at) = self.direct.get_mut(lane) {
                at.quiet.pop();
            }
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
        let Lanes { lanes, loaded, ended, .. } = &mut self.direct;
        let Some(at) = lanes[usize::from(lane)].as_mut() else { return Ok(()) };
        at.ends.receiver.load(entry, loaded)?;
        let (step, key, meta, bytes) = match loaded.record()? {
            LaneRecord::Tensor { step, key, meta, bytes } => (step, key, meta, bytes),
            LaneRecord::Ended { step, reason } => {
                at.settle(entry, Fate::Taken);
                at.ended_there(lane, (step, reason), calls, after);
                return Ok(());
            }
            LaneRecord::ByDaemon { step, key } => {
                let name = calls.matching().name(lane, step, key);
                self.goes_by_daemon((lane, entry), (step, name), calls, after);
                return Ok(());
            }
        };
        if ended.reason(step).is_some() {
            at.settle(entry, Fate::Aborted);
            return Ok(());
        }
        let name = calls.matching().name(lane, step, key);
        match calls.take_waiting(name, (&at.peer, step, key)) {
            Waiting::Recv(Some(Wanted { call, wish, room })) => {
                if let Some(Err(misfit)) = room.map(|room| room.check(meta, bytes.len() as u64)) {
                    calls.refuse(call, misfit, after);
                } else if !at.settle(entry, Fate::Taken) {
                    // Its sender was faster to take it back.
                    calls.give_name(call, name);
                    return Ok(());
                } else {
                    at.has_come(bytes.len());
                    calls.matching().came_by_lane(&at.peer, key);
                    calls.hand_over((call, wish), meta, bytes, after);
                    return Ok(());
                }
            }
            Waiting::Recv(None) | Waiting::Nothing => {}
            Waiting::Tensor { entry: before } => match at.kept[usize::from(before)] {
                // What it announces may have ended.
                Some(Kept { is_hint: true, .. }) => at.end_kept_hint(lane, before, calls),
                _ => {
                    at.settle(entry, Fate::Duplicate);
                    return Ok(());
                }
            },
        }
        if calls.matching().insert(name, Awaited::Tensor { lane, entry }) {
            at.kept[usize::from(entry)] = Some(Kept { name, step, is_hint: false });
        } else {
            at.settle(entry, Fate::Duplicate);
        }
        Ok(())
    }
}
