//! Sends and recvs by a lane, what comes by it, and what is taken back.

use std::time::Duration;

use sealane_transport::{
    Error, Tensor,
    shm::{Broken, Fate, Moved, NO_TIMEOUT, Note, PayloadAt, Returned, Span, Standing, Submission},
};

use super::{
    super::{
        Held, Line, Link, State,
        aftermath::Aftermath,
        backlog::Way,
        calls::{Awaited, Calls, Name, Wish, no_room},
        link::{Peer, Unsubmitted},
        memory::Memory,
    },
    lane::{Kept, Lane, Sent},
};
use crate::{
    clock::{Tick, timeout_ms},
    limits::{ASK_AFTER, DIRECT_LOOK, LANE_NOTES_PER_LOOK, LANE_PATIENCE, REDIRECTED_PER_LOOK},
};

/// What became of a recv that a lane may serve.
pub(in crate::attachment) enum Found {
    /// It is entered: it has its tensor, or waits here for it.
    Entered(u32),
    /// The daemon is to be asked; the lane may serve it by its name all the same.
    Nothing(Memory, Option<Name>),
    /// It fails.
    Failed(Error, Memory),
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
        (timeout_ms, deadline): (u32, Tick),
    ) -> Option<u32> {
        let State { line: Line::Up(link), calls, .. } = &mut **self else { return None };
        let Some(lane) = link.lane_of(peer, now) else {
            if link.direct.has_wanted() {
                self.wake_driver();
            }
            return None;
        };
        if !link.direct.is_read(lane) || link.direct.has_ended(lane, step) || !calls.have_room_for(1) {
            return None;
        }
        let (meta, payload) = (tensor.meta().as_wire(), PayloadAt::Inline(tensor.bytes()));
        let (call, peer) = (0, 0);
        Submission::Send { call, peer, step, timeout_ms, key, meta, payload }.encode(&mut link.outgoing).ok()?;
        let Link { direct, outgoing, .. } = &mut **link;
        let at = direct.get_mut(lane)?;
        let mut call = 0;
        at.send(outgoing, |entry| {
            call = calls.enter_sent((lane, entry), deadline);
            Sent { call, bytes: tensor.len() as u32, step }
        })?;
        let due = now.later(LANE_PATIENCE).min(now.halfway(deadline));
        while let Some((_, first)) = at.pending.front()
            && calls.sent_by(*first).is_none()
        {
            at.pending.pop_front();
        }
        at.pending.push_back((due, call));
        if direct.look_at.is_none_or(|at| at <= now) {
            self.look_after_lanes(now);
        }
        self.attend_lanes(due);
        Some(call)
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
        let (nothing, task) = (|memory| Found::Nothing(memory, None), self.attachment.task());
        let State { line: Line::Up(link), calls, aftermath, .. } = &mut **self else { return nothing(memory) };
        let Some(lane) = link.lane_of(peer, now) else {
            if link.direct.has_wanted() {
                self.wake_driver();
            }
            return nothing(memory);
        };
        if link.direct.get_mut(lane).is_some_and(|lane| lane.ends.has_ended()) {
            // Before this one waits, which is none of those that hear of it.
            link.drain_lane(task, lane, calls, aftermath);
            return nothing(memory);
        }
        if link.direct.has_ended(lane, step) || !calls.have_room_for(1) {
            return nothing(memory);
        }
        let name = calls.matching().name(lane, step, key);
        match calls.matching().find(name) {
            Some(Awaited::Tensor { entry, .. }) => {
                if let (Some(room), Some(len)) = (memory.room(), link.len_of(lane, entry, (step, key)))
                    && len > room
                {
                    return Found::Failed(no_room(room, len), memory);
                }
                if link.take_kept((lane, entry), (step, key), calls) {
                    let call = calls.enter_recv(place, memory, (deadline, borrowed));
                    link.hand_over(lane, call, calls, aftermath);
                    return Found::Entered(call);
                }
            }
            Some(Awaited::Recv(_)) => {
                let error = Error::invalid(format!("a recv already waits for '{key}' of step {step} from {peer}"));
                return Found::Failed(error, memory);
            }
            None => {}
        }
        if fail_if_gone || !link.direct.is_read(lane) || calls.matching().comes_by_daemon(peer, key) {
            return Found::Nothing(memory, Some(name));
        }
        let call = calls.enter_recv(place, memory, (deadline, borrowed));
        calls.wait_for_lane(call, name);
        let Some(lane) = link.direct.get_mut(lane) else { unreachable!("it is open") };
        let at = lane.ask_at(now, deadline);
        while let Some((_, first)) = lane.quiet.front()
            && calls.wants(*first).is_none()
        {
            lane.quiet.pop_front();
        }
        lane.quiet.push_back((at, call));
        self.attend_lanes(at);
        Found::Entered(call)
    }

    /// Sees to it that somebody looks after the lanes when that is due.
    #[inline]
    fn attend_lanes(&mut self, due: Tick) {
        let Line::Up(link) = &mut self.line else { return };
        if link.direct.attended <= due {
            return;
        }
        link.direct.attended = due;
        self.wake_driver();
        if self.listening {
            // It may sleep longer.
            let nudge = self.attachment.nudge_waker.clone();
            self.aftermath.wakers.push(nudge);
        }
    }

    /// Has the sends go by the daemon that were not received, asks it for recvs that have waited long enough, and tells it now and then how
    /// much went.
    pub(in crate::attachment) fn look_after_lanes(&mut self, now: Tick) {
        self.ask_for_quiet(now);
        let task = self.attachment.task();
        let State { line: Line::Up(link), calls, aftermath, .. } = &mut **self else { return };
        if !link.direct.is_open() {
            return;
        }
        link.redirect_pending(task, now, calls, aftermath);
        if link.direct.look_at.is_none_or(|at| at <= now) {
            link.direct.look_at = Some(now.after(DIRECT_LOOK));
            link.tell_what_went();
        }
    }

    /// In how much time the driver is to look after the lanes, which it does.
    pub(in crate::attachment) fn attend_lanes_in(&mut self) -> Option<Duration> {
        let State { line: Line::Up(link), .. } = &mut **self else { return None };
        let (direct, now) = (&mut link.direct, Tick::now());
        let due = if direct.unasked.is_empty() { direct.next_due() } else { now.later(ASK_AFTER) };
        direct.attended = due;
        due.from(now)
    }

    /// Asks the daemon for recvs that have waited here long enough.
    fn ask_for_quiet(&mut self, now: Tick) {
        let State { line: Line::Up(link), calls, aftermath, .. } = &mut **self else { return };
        for call in std::mem::take(&mut link.direct.unasked) {
            if !link.ask(call, calls, aftermath) {
                link.direct.unasked.push(call);
            }
        }
        link.ring();
        if !link.direct.is_open() {
            return;
        }
        let all = calls.matching().take_learned();
        if all {
            link.direct.iter_mut().for_each(|(_, lane)| lane.asked_rightly());
        }
        if now < link.direct.next_due() && !all {
            return;
        }
        for lane in 0..link.direct.lanes.len() as u16 {
            while let Some(&(at, call)) = link.direct.get_mut(lane).and_then(|lane| lane.quiet.front())
                && (all || at <= now || calls.wants(call).is_none())
            {
                if !link.ask(call, calls, aftermath) {
                    break;
                }
                if let Some(lane) = link.direct.get_mut(lane) {
                    lane.quiet.pop_front();
                }
            }
        }
        link.ring();
    }

    /// A step of this task has ended. Sends of it come back; `aborted` if others are to hear, and those that have come go back.
    pub(in crate::attachment) fn end_direct(&mut self, step: i64, reason: &str, aborted: bool) {
        let task = self.attachment.task();
        let State { line: Line::Up(link), calls, aftermath, .. } = &mut **self else { return };
        if !link.direct.is_open() {
            return;
        }
        match aborted {
            true => link.direct.ended.end(step, reason),
            false => link.direct.ended.forget(step),
        }
        for lane in 0..link.direct.lanes.len() as u16 {
            let Some(at) = link.direct.get_mut(lane) else { continue };
            at.take_back(lane, step, reason, calls, aftermath);
            if !aborted {
                at.ended.forget(step);
                continue;
            }
            let said = Submission::Abort { step, reason }.encode(&mut link.outgoing).is_ok();
            let Link { direct, outgoing, .. } = &mut **link;
            let at = direct.get_mut(lane).expect("just looked at");
            // Before what went back is seen.
            let has_said = said && at.send(outgoing, |_| Sent { call: u32::MAX, bytes: 0, step }).is_some();
            at.refuse(lane, step, calls);
            if !has_said {
                // It hears by the daemon.
                link.close_lane(task, lane, calls, aftermath);
            }
        }
        // The daemon is to end them.
        for call in calls.quiet(step) {
            link.ask(call, calls, aftermath);
        }
        link.ring();
    }
}

impl super::Lanes {
    /// The other side has opened its end.
    #[inline]
    fn is_read(&self, lane: u16) -> bool {
        self.lanes[usize::from(lane)].as_ref().is_some_and(|lane| lane.ends.other() == Standing::Here)
    }

    /// A step has ended for this task or the other of a lane: the daemon knows what becomes of its calls.
    #[inline]
    fn has_ended(&self, lane: u16, step: i64) -> bool {
        self.ended.reason(step).is_some()
            || self.lanes[usize::from(lane)].as_ref().is_none_or(|lane| lane.ended.reason(step).is_some())
    }
}

impl Lane {
    /// What a sender hears whose tensor of a step has ended so.
    fn error(&self, fate: Fate, step: i64) -> Option<Error> {
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

    /// Takes back what was sent of a step.
    fn take_back(&mut self, lane: u16, step: i64, reason: &str, calls: &mut Calls, after: &mut Aftermath) {
        for entry in 0..self.sent.len() as u16 {
            let sent = self.sent[usize::from(entry)];
            if sent.step == step && calls.sent_by(sent.call) == Some((lane, entry)) {
                self.take_back_one(entry, || Error::Aborted { step, reason: reason.into() }, calls, after);
            }
        }
    }

    /// Takes one back, whose caller hears why, unless the other side has it.
    fn take_back_one(&mut self, entry: u16, error: impl FnOnce() -> Error, calls: &mut Calls, after: &mut Aftermath) {
        if self.ends.sender.withdraw(entry) {
            calls.end_sent(self.sent[usize::from(entry)].call, Some(error()), after);
        }
    }

    /// Refuses what has come of a step that this task has ended.
    fn refuse(&mut self, lane: u16, step: i64, calls: &mut Calls) {
        for entry in 0..self.kept.len() {
            if let Some(kept) = self.kept[entry].filter(|kept| kept.step == step) {
                let entry = entry as u16;
                self.forget_kept(lane, entry, kept, calls);
                self.settle(entry, Fate::Aborted);
            }
        }
    }

    fn forget_kept(&mut self, lane: u16, entry: u16, kept: Kept, calls: &mut Calls) {
        self.kept[usize::from(entry)] = None;
        calls.matching().remove(kept.name, Awaited::Tensor { lane, entry });
    }

    #[inline]
    fn settle(&mut self, entry: u16, fate: Fate) -> bool {
        let won = self.ends.receiver.settle(entry, fate);
        self.has_returned |= won;
        won
    }
}

impl Link {
    /// The bytes of a tensor that waits in a lane, if it is of this step and key.
    fn len_of(&mut self, lane: u16, entry: u16, (step, key): (i64, &str)) -> Option<usize> {
        let Link { direct, incoming, .. } = self;
        direct.get_mut(lane)?.ends.receiver.load(entry, incoming).ok()?;
        match Submission::decode(incoming).ok()? {
            Submission::Send { step: of, key: named, payload: PayloadAt::Inline(bytes), .. }
                if (of, named) == (step, key) =>
            {
                Some(bytes.len())
            }
            _ => None,
        }
    }

    /// Takes a tensor that waits in a lane, of which a copy is in `incoming` then; false if its sender has taken it back.
    fn take_kept(&mut self, (lane, entry): (u16, u16), at: (i64, &str), calls: &mut Calls) -> bool {
        let is_there = self.len_of(lane, entry, at).is_some();
        let Some(of) = self.direct.get_mut(lane) else { return false };
        if let Some(kept) = of.kept[usize::from(entry)] {
            of.forget_kept(lane, entry, kept, calls);
        }
        // What is no longer what it was said to be is nobody's.
        of.settle(entry, if is_there { Fate::Taken } else { Fate::Duplicate }) && is_there
    }

    /// Gives a recv the tensor that is in `incoming`.
    fn hand_over(&mut self, lane: u16, call: u32, calls: &mut Calls, after: &mut Aftermath) {
        let Link { direct, incoming, .. } = self;
        let Ok(Submission::Send { meta, payload: PayloadAt::Inline(bytes), .. }) = Submission::decode(incoming) else {
            unreachable!("it was looked at before it was taken");
        };
        if let Some(lane) = direct.get_mut(lane) {
            (lane.came.tensors, lane.came.bytes) = (lane.came.tensors + 1, lane.came.bytes + bytes.len() as u64);
        }
        calls.received_direct(call, meta, bytes, after);
    }

    /// Takes what has come by a lane.
    pub(super) fn drain_lane(&mut self, task: &str, lane: u16, calls: &mut Calls, after: &mut Aftermath) {
        let drained = self.drain_open(lane, calls, after);
        let Some(at) = self.direct.get_mut(lane) else { return };
        if drained.is_err() || at.ends.has_ended() {
            return self.close_lane(task, lane, calls, after);
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
                Some(Note::Withdrawn(entry)) => {
                    if let Some(kept) = at.kept[usize::from(entry)] {
                        at.forget_kept(lane, entry, kept, calls);
                    }
                    at.has_returned = true;
                }
                None => break,
            }
        }
        let Some(at) = self.direct.get_mut(lane) else { return Ok(()) };
        while let Some(Returned { entry, fate }) = at.ends.sender.next_returned()? {
            let Sent { call, bytes, step } = at.sent[usize::from(entry)];
            if fate == Fate::Withdrawn {
                // Its end was told.
                continue;
            }
            let error = at.error(fate, step);
            if error.is_none() && call != u32::MAX {
                (at.went.tensors, at.went.bytes) = (at.went.tensors + 1, at.went.bytes + u64::from(bytes));
            }
            calls.end_sent(call, error, after);
        }
        Ok(())
    }

    /// A record has come.
    #[inline]
    fn arrived(&mut self, lane: u16, entry: u16, calls: &mut Calls, after: &mut Aftermath) -> Result<(), Broken> {
        let Link { direct, incoming, .. } = self;
        let ended = &direct.ended;
        let Some(at) = direct.lanes[usize::from(lane)].as_mut() else { return Ok(()) };
        at.ends.receiver.load(entry, incoming)?;
        let (step, key, meta, bytes) = match Submission::decode(incoming) {
            Ok(Submission::Send { step, key, meta, payload: PayloadAt::Inline(bytes), .. }) => (step, key, meta, bytes),
            Ok(Submission::Abort { step, reason }) => {
                at.settle(entry, Fate::Taken);
                at.ended.end(step, reason);
                at.take_back(lane, step, reason, calls, after);
                for call in calls.quiet(step) {
                    if calls.wants(call).is_some_and(|(peer, ..)| *peer == *at.peer) {
                        calls.end_untold(call, Error::Aborted { step, reason: reason.into() }, after);
                    }
                }
                return Ok(());
            }
            _ => {
                return Err(Broken {
                    what: "a record that is neither a tensor nor the end of a step",
                    found: entry.into(),
                });
            }
        };
        if ended.reason(step).is_some() {
            at.settle(entry, Fate::Aborted);
            return Ok(());
        }
        let name = calls.matching().name(lane, step, key);
        let waiting = match calls.matching().find(name) {
            None => None,
            Some(Awaited::Tensor { .. }) => {
                at.settle(entry, Fate::Duplicate);
                return Ok(());
            }
            Some(Awaited::Recv(call)) => Some((call, calls.wish(call, step, key))),
        };
        match waiting {
            Some((call, Some((wish, room)))) if room.is_none_or(|room| bytes.len() <= room) => {
                if at.settle(entry, Fate::Taken) {
                    calls.matching().came_by_lane(&at.peer, key);
                    (at.came.tensors, at.came.bytes) = (at.came.tensors + 1, at.came.bytes + bytes.len() as u64);
                    match wish {
                        Wish::Quiet => calls.received_direct(call, meta, bytes, after),
                        Wish::Asked => {
                            at.asked_in_vain();
                            calls.set_aside(call, meta, bytes, after);
                        }
                    }
                }
                return Ok(());
            }
            Some((call, Some(_))) => calls.too_small(call, bytes.len(), after),
            Some((call, None)) => calls.forget_name(call),
            None => {}
        }
        if calls.matching().insert(name, Awaited::Tensor { lane, entry }) {
            at.kept[usize::from(entry)] = Some(Kept { name, step });
        }
        Ok(())
    }

    /// Tells the daemon how much went by lanes. What finds no room is told later.
    pub(in crate::attachment) fn tell_what_went(&mut self) {
        for lane in 0..self.direct.lanes.len() as u16 {
            let Some(at) = self.direct.get_mut(lane) else { continue };
            let (sent, received) = (at.went, at.came);
            let Some(&Peer { segment, number: peer }) = self.peers.get(&at.peer) else { continue };
            if (sent.tensors, received.tensors) != (0, 0)
                && self.submit_ahead(segment, &Submission::Direct { peer, sent, received }).is_ok()
                && let Some(at) = self.direct.get_mut(lane)
            {
                (at.went, at.came) = (Moved::default(), Moved::default());
            }
        }
    }

    /// Asks the daemon for a recv that waits here; false if there is no room to. A lane may still serve it.
    pub(super) fn ask(&mut self, call: u32, calls: &mut Calls, after: &mut Aftermath) -> bool {
        let Some((peer, step, key, deadline, memory)) = calls.wants(call) else { return true };
        let serving = match self.peers.get(peer) {
            Some(found) => *found,
            None => {
                let error = Error::unavailable(peer, "the daemon does not know of it");
                calls.end_untold(call, error, after);
                return true;
            }
        };
        let Peer { segment, number } = serving;
        let destination = match memory.lent() {
            None => None,
            Some([]) => Some(Span::default()),
            Some(lent) => self.arena.span_of(lent),
        };
        let timeout_ms = deadline.from(Tick::now()).map_or(NO_TIMEOUT, timeout_ms);
        let (fused, fail_if_gone) = (false, false);
        let recv = Submission::Recv { call, peer: number, step, timeout_ms, key, destination, fused, fail_if_gone };
        match self.submit(segment, &recv) {
            Ok(way) => {
                calls.is_asked(call, segment, way == Way::Ring);
                true
            }
            Err(Unsubmitted::Full) => false,
            Err(Unsubmitted::Refused(error)) => {
                calls.end_untold(call, error, after);
                true
            }
            // It is noticed by the next who submits.
            Err(Unsubmitted::Fault(_)) => false,
        }
    }

    /// Sends by the daemon what a lane that has gone had not been taken of.
    pub(super) fn resend(
        &mut self,
        task: &str,
        (lane, gone): (u16, &mut Lane),
        calls: &mut Calls,
        after: &mut Aftermath,
    ) {
        for entry in 0..gone.sent.len() as u16 {
            let Sent { call, step, .. } = gone.sent[usize::from(entry)];
            if calls.sent_by(call) != Some((lane, entry)) {
                continue;
            }
            if !gone.ends.sender.withdraw(entry) {
                // The other side has decided about it before it went.
                let error = gone.ends.sender.fate(entry).map_or(Some(lost(&gone.peer)), |fate| gone.error(fate, step));
                calls.end_sent(call, error, after);
                continue;
            }
            gone.ends.sender.load(entry, &mut self.incoming);
            if let Err(error) = self.send_again(task, &gone.peer, call, calls) {
                calls.end_sent(call, Some(error), after);
            }
        }
    }

    fn send_again(&mut self, task: &str, peer: &str, call: u32, calls: &mut Calls) -> Result<(), Error> {
        let Peer { segment, number } = self.peer(task, peer).map_err(|_| lost(peer))?;
        let record = self.incoming.clone();
        let Ok(Submission::Send { step, key, meta, payload, .. }) = Submission::decode(&record) else {
            return Err(lost(peer));
        };
        let timeout_ms = calls.deadline(call).from(Tick::now()).map_or(NO_TIMEOUT, timeout_ms);
        let again = Submission::Send { call, peer: number, step, timeout_ms, key, meta, payload };
        match self.submit(segment, &again) {
            Ok(way) => {
                calls.redirect(call, segment);
                if way == Way::Backlog {
                    calls.waits(call);
                }
                Ok(())
            }
            Err(Unsubmitted::Refused(error)) => Err(error),
            Err(Unsubmitted::Full | Unsubmitted::Fault(_)) => Err(lost(peer)),
        }
    }

    /// Has the daemon carry what a lane's other side has not received in time.
    fn redirect_pending(&mut self, task: &str, now: Tick, calls: &mut Calls, after: &mut Aftermath) {
        for lane in 0..self.direct.lanes.len() as u16 {
            for _ in 0..REDIRECTED_PER_LOOK {
                let Some(at) = self.direct.get_mut(lane) else { break };
                let Some(&(due, call)) = at.pending.front() else { break };
                let sent_by = calls.sent_by(call);
                // Where the daemon has no room now, it may have later.
                let mut has_room =
                    || self.peers.get(&at.peer).is_some_and(|peer| self.segments[usize::from(peer.segment)].has_room());
                if sent_by.is_some() && (due > now || !has_room()) {
                    break;
                }
                at.pending.pop_front();
                if let Some((_, entry)) = sent_by
                    && at.ends.sender.withdraw(entry)
                {
                    at.ends.sender.load(entry, &mut self.incoming);
                    let peer = at.peer.clone();
                    if let Err(error) = self.send_again(task, &peer, call, calls) {
                        calls.end_sent(call, Some(error), after);
                    }
                }
            }
        }
        self.ring();
    }
}

/// The error of a send whose lane has gone, and that the daemon does not take.
fn lost(peer: &str) -> Error {
    Error::unavailable(peer, "its process is gone, and the tensor could not be sent again")
}
