//! What goes through the daemon after all: sends that were not received, and recvs for which nothing came. The driver takes care of it.

use std::time::Duration;

use sealane_transport::{
    Code, Destination, Error,
    shm::{LaneRecord, Moved, NO_TIMEOUT, PayloadAt, Span, Submission},
};

use super::{
    super::{
        Held, Line, Link, State,
        aftermath::Aftermath,
        backlog::Way,
        calls::Calls,
        link::{Peer, Unsubmitted},
    },
    lane::Lane,
};
use crate::{
    clock::{Tick, timeout_ms},
    limits::{DIRECT_LOOK, LANES_LOOK, REDIRECTED_PER_LOOK},
};

/// A send that was taken back from a lane, and for which the daemon has no room yet.
pub(super) struct Unsent {
    call: u32,
    peer: Box<str>,
    step: i64,
    key: Box<str>,
    meta: Box<[u8]>,
    bytes: Box<[u8]>,
}

impl Held<'_> {
    /// Makes sure that somebody looks after the lanes when that is due: the driver, or without its thread those who wait.
    #[inline]
    pub(super) fn attend_lanes(&mut self, now: Tick, due: Tick) {
        let Line::Up(link) = &mut self.line else { return };
        if link.direct.attended <= due && link.direct.attended >= now {
            return;
        }
        self.attend_to_lanes(due);
    }

    fn attend_to_lanes(&mut self, due: Tick) {
        if let Line::Up(link) = &mut self.line {
            link.direct.attended = due;
        }
        let is_idle = self.driver.is_idle();
        self.wake_driver();
        if self.listening.is_there() && !is_idle {
            // The driver itself listens, and might sleep longer.
            let nudge = self.attachment.nudge_waker.clone();
            self.aftermath.wakers.push(nudge);
        }
    }

    /// Redirects sends that were not received to the daemon, asks it for recvs that have waited long enough, and tells it from time to time
    /// how much went.
    pub(in crate::attachment) fn look_after_lanes(&mut self, now: Tick) {
        let State { line: Line::Up(link), calls, aftermath, .. } = &mut **self else { return };
        if !link.direct.is_open() && link.direct.unasked.is_empty() && link.direct.unsent.is_empty() {
            return;
        }
        link.direct.retired.look_at(now);
        link.send_unsent(calls, aftermath);
        link.ask_for_quiet(now, calls, aftermath);
        link.redirect_pending(now, calls, aftermath);
        if link.direct.look_at.is_none_or(|at| at <= now) {
            link.direct.look_at = Some(now.after(DIRECT_LOOK));
            link.tell_what_went();
        }
        link.ring();
    }

    /// True if the driver is to ask for a lane.
    pub(in crate::attachment) fn wants_lanes(&self) -> bool {
        matches!(&self.line, Line::Up(link) if link.direct.has_wanted())
    }

    /// Time until the lanes must be looked after, by the caller.
    pub(in crate::attachment) fn attend_lanes_in(&mut self) -> Option<Duration> {
        let State { line: Line::Up(link), .. } = &mut **self else { return None };
        let now = Tick::now();
        let due = link.direct.next_due(now);
        link.direct.attended = due;
        due.from(now)
    }
}

impl super::Lanes {
    /// A lane by number: the open ones, then the retired ones.
    fn lane_at(&mut self, place: usize) -> Option<&mut Lane> {
        match place.checked_sub(self.lanes.len()) {
            None => self.lanes[place].as_mut(),
            Some(place) => self.retired.iter_mut().nth(place),
        }
    }

    /// When a send must go through the daemon, a waiting recv be asked for, or the daemon be told how much went. While tensors
    /// are exchanged, somebody looks so often that no call has to wake anybody.
    fn next_due(&mut self, now: Tick) -> Tick {
        let moved = self.lanes.iter().flatten().map(|lane| lane.went.tensors + lane.came.tensors).sum();
        let is_busy = std::mem::replace(&mut self.moved, moved) != moved;
        let lanes = || self.lanes.iter().flatten();
        let first = |lane: &Lane| {
            let calls = lane.pending.first().into_iter().chain(lane.quiet.first()).map(|(at, _)| at);
            calls.chain(lane.hints.due()).min()
        };
        let due = lanes().filter_map(first).chain(self.retired.due()).min().unwrap_or(Tick::NEVER);
        let left = !self.unasked.is_empty() || !self.unsent.is_empty();
        let untold = lanes()
            .chain(self.retired.iter())
            .any(|lane| lane.went.tensors > 0 || lane.came.tensors > 0 || lane.rings.have_moved());
        let due = if left || is_busy { due.min(now.later(LANES_LOOK)) } else { due };
        if untold { due.min(self.look_at.unwrap_or(now)) } else { due }
    }
}

impl Link {
    /// Asks the daemon for recvs that have waited here long enough.
    fn ask_for_quiet(&mut self, now: Tick, calls: &mut Calls, after: &mut Aftermath) {
        // The rest is tried at the next look: a shard that does not read must not hold back recvs that another serves.
        let (left, mut failed) = (self.direct.unasked.len(), 0);
        for _ in 0..left {
            let Some(call) = self.direct.unasked.pop_front_if(|_| failed < REDIRECTED_PER_LOOK) else { break };
            if !self.ask(call, calls, after) {
                self.direct.unasked.push_back(call);
                failed += 1;
            }
        }
        for lane in 0..self.direct.lanes.len() as u16 {
            while let Some((at, call)) = self.direct.get_mut(lane).and_then(|lane| lane.quiet.first())
                && (at <= now || calls.wants(call).is_none())
            {
                if !self.ask(call, calls, after) {
                    break;
                }
                if let Some(lane) = self.direct.get_mut(lane) {
                    lane.quiet.pop();
                }
            }
        }
    }

    /// Asks the daemon for a recv that waits here; false if there is no room to. A lane may still serve it.
    pub(super) fn ask(&mut self, call: u32, calls: &mut Calls, after: &mut Aftermath) -> bool {
        let Some((peer, step, key, deadline, memory)) = calls.wants(call) else { return true };
        let Some(&Peer { segment, number }) = self.peers.get(peer) else {
            let error = Error::unavailable(peer, "the daemon does not know of it");
            calls.end_untold(call, error, after);
            return true;
        };
        let destination = match memory.lent() {
            None => None,
            Some([]) => Some(Span::default()),
            Some(lent) => self.arena.span_of(lent),
        };
        let timeout_ms = deadline.from(Tick::now()).map_or(NO_TIMEOUT, timeout_ms);
        let meta = memory.destination().and_then(Destination::meta).cloned();
        let destination = destination.map(|span| (span, meta.as_ref().map_or(&[][..], |meta| meta.as_wire())));
        let (fused, fail_if_gone) = (false, false);
        let recv = Submission::Recv { call, peer: number, step, timeout_ms, key, destination, fused, fail_if_gone };
        match self.submit(segment, &recv) {
            Ok(way) => calls.is_asked(call, segment, way == Way::Ring),
            // The limit of waiting records is reached; a fault is noticed by the next who submits.
            Err(Unsubmitted::Full | Unsubmitted::Fault(_)) => return false,
            Err(Unsubmitted::Refused(error)) if error.code() == Code::ResourceExhausted => return false,
            Err(Unsubmitted::Refused(error)) => calls.end_untold(call, error, after),
        }
        true
    }

    /// Redirects to the daemon what the other side of a lane has not received in time.
    fn redirect_pending(&mut self, now: Tick, calls: &mut Calls, after: &mut Aftermath) {
        self.direct.iter_mut().for_each(|(_, lane)| lane.end_hints(now));
        for lane in 0..self.direct.lanes.len() as u16 {
            for _ in 0..REDIRECTED_PER_LOOK {
                let Some(at) = self.direct.get_mut(lane) else { break };
                let Some((due, entry)) = at.first_pending(lane, calls) else { break };
                // If the daemon has no room now, it may have later.
                let peer = self.peers.get(&at.peer).filter(|_| due <= now && self.direct.unsent.is_empty());
                if !peer.is_some_and(|peer| self.segments[usize::from(peer.segment)].has_room()) {
                    break;
                }
                if let Some(mut at) = self.direct.lanes[usize::from(lane)].take() {
                    at.pending.pop();
                    self.take_from(&mut at, entry, calls, after);
                    self.direct.lanes[usize::from(lane)] = Some(at);
                }
            }
        }
    }

    /// Redirects to the daemon everything that a closed lane had not delivered.
    pub(super) fn redirect_all(&mut self, lane: u16, gone: &mut Lane, calls: &mut Calls, after: &mut Aftermath) {
        for entry in 0..gone.sent.len() as u16 {
            if calls.sent_by(gone.sent[usize::from(entry)].call) == Some((lane, entry)) {
                self.take_from(gone, entry, calls, after);
            }
        }
    }

    /// Takes a sent tensor back from a lane and redirects it to the daemon, unless the other side has already settled it.
    fn take_from(&mut self, at: &mut Lane, entry: u16, calls: &mut Calls, after: &mut Aftermath) {
        let sent = at.sent[usize::from(entry)];
        if !at.ends.sender.withdraw(entry) {
            // Whether or not the other side announces it.
            let fate = at.ends.sender.fate(entry);
            let error = fate.map_or_else(|| Some(lost(&at.peer)), |fate| at.error(fate, sent.step));
            return calls.end_sent(sent.call, error, after);
        }
        calls.is_back(sent.call);
        let loaded = &mut self.direct.loaded;
        at.ends.sender.load(entry, loaded);
        match loaded.record() {
            Ok(LaneRecord::Tensor { step, key, meta, bytes }) if step == sent.step => {
                let (call, peer) = (sent.call, at.peer.clone());
                let [meta, bytes] = [meta, bytes].map(Box::from);
                self.direct.unsent.push_back(Unsent { call, peer, step, key: key.into(), meta, bytes });
                self.send_unsent(calls, after);
            }
            // The other side could write there.
            _ => calls.end_sent(sent.call, Some(lost(&at.peer)), after),
        }
    }

    /// Sends what was taken back through the daemon, as far as it has room.
    fn send_unsent(&mut self, calls: &mut Calls, after: &mut Aftermath) {
        while let Some(unsent) = self.direct.unsent.pop_front() {
            match self.send_by_daemon(&unsent, calls) {
                Ok(true) => {}
                Ok(false) => return self.direct.unsent.push_front(unsent),
                Err(error) => calls.end_sent(unsent.call, Some(error), after),
            }
        }
    }

    /// Sends it through the daemon; false if there is no room.
    ///
    /// # Errors
    /// The daemon does not know its receiver.
    fn send_by_daemon(&mut self, unsent: &Unsent, calls: &mut Calls) -> Result<bool, Error> {
        let Unsent { call, peer: name, step, key, meta, bytes } = unsent;
        if calls.sent_by(*call).is_none() {
            // The call has ended.
            return Ok(true);
        }
        let Link { peers, outgoing, segments, .. } = self;
        let &Peer { segment, number: peer } = peers.get(name).ok_or_else(|| lost(name))?;
        let timeout_ms = calls.deadline(*call).from(Tick::now()).map_or(NO_TIMEOUT, timeout_ms);
        let payload = PayloadAt::Inline(bytes);
        let send = Submission::Send { call: *call, peer, step: *step, timeout_ms, key, meta, payload };
        send.encode(outgoing).map_err(|field| Error::invalid(field.to_string()))?;
        let at = &mut segments[usize::from(segment)];
        // Nothing overtakes what waits; a fault is noticed by the next who submits.
        let is_sent = at.waiting.is_empty() && at.push(outgoing).unwrap_or(false);
        if is_sent {
            calls.redirect(*call, segment);
        }
        Ok(is_sent)
    }

    /// Ends a step: its sends that were taken back are not sent any more.
    pub(super) fn end_unsent(&mut self, step: i64, reason: &str, calls: &mut Calls, after: &mut Aftermath) {
        self.direct.unsent.retain(|unsent| {
            if unsent.step == step {
                calls.end_sent(unsent.call, Some(Error::Aborted { step, reason: reason.into() }), after);
            }
            unsent.step != step
        });
    }

    /// Tells the daemon how much went over lanes. What finds no room is told later.
    pub(in crate::attachment) fn tell_what_went(&mut self) {
        for place in 0..self.direct.lanes.len() + self.direct.retired.len() {
            let Some(at) = self.direct.lane_at(place) else { continue };
            let (sent, received) = at.rings.take_moved();
            (at.went.bytes, at.came.bytes) = (at.went.bytes + sent, at.came.bytes + received);
            let (sent, received) = (at.went, at.came);
            let Some(&Peer { segment, number: peer }) = self.peers.get(&at.peer) else { continue };
            if (sent.bytes, received.bytes, sent.tensors, received.tensors) != (0, 0, 0, 0)
                // The peer's number may be waiting there.
                && self.segments[usize::from(segment)].waiting.is_empty()
                && self.submit_ahead(segment, &Submission::Direct { peer, sent, received }).is_ok()
                && let Some(at) = self.direct.lane_at(place)
            {
                (at.went, at.came) = (Moved::default(), Moved::default());
            }
        }
    }
}

/// The error of a send that the other side of a lane has corrupted.
fn lost(peer: &str) -> Error {
    Error::unavailable(peer, "its process broke the direct lane by which the tensor went")
}
