//! Ends of steps, by this task or by the other side of a lane.

use sealane_transport::{
    Error,
    shm::{Fate, LaneRecord},
};

use super::{
    super::{Held, Line, State, aftermath::Aftermath, calls::Calls},
    Lanes,
    lane::{Lane, Sent},
};
use crate::limits::LANE_REASON_BYTES_MAX;

impl Lanes {
    /// A lane; `None` if the step has ended on either side, or may have: then the daemon knows what becomes of its calls.
    #[inline]
    pub(super) fn lane_unless_ended(&mut self, lane: u16, step: i64) -> Option<&mut Lane> {
        let has_ended = self.ended.may_have(step);
        self.get_mut(lane).filter(|lane| !has_ended && !lane.ended.may_have(step))
    }
}

impl Held<'_> {
    /// Asks the daemon for the step's recvs that wait here: it is to end them.
    pub(in crate::attachment) fn ask_for_step(&mut self, step: i64) {
        let State { line: Line::Up(link), calls, aftermath, .. } = &mut **self else { return };
        let lanes = link.direct.lanes.iter().flatten();
        let mut quiet: Vec<u32> = lanes.flat_map(|lane| lane.quiet.calls()).collect();
        quiet.extend(&link.direct.unasked);
        quiet.retain(|call| calls.wants(*call).is_some_and(|(_, of, ..)| of == step));
        for call in quiet {
            link.ask(call, calls, aftermath);
        }
    }

    /// Ends a step of this task, as the daemon was told. Its sends over lanes come back; if it was `aborted`, the other sides are told, and
    /// what has come goes back.
    pub(in crate::attachment) fn end_direct(&mut self, step: i64, reason: &str, aborted: bool) {
        let State { line: Line::Up(link), calls, aftermath, .. } = &mut **self else { return };
        if link.direct.neighbours.is_empty() {
            return;
        }
        match aborted {
            true => link.direct.ended.end(step, reason),
            false => link.direct.ended.forget(step),
        }
        link.end_unsent(step, reason, calls, aftermath);
        for lane in 0..link.direct.lanes.len() as u16 {
            let Some(at) = link.direct.get_mut(lane) else { continue };
            at.take_back(lane, (step, reason), calls, aftermath);
            if !aborted {
                at.ended.forget(step);
                continue;
            }
            let reason = &reason[..reason.floor_char_boundary(LANE_REASON_BYTES_MAX)];
            // Told before it sees what goes back.
            let entry = at.send(&LaneRecord::Ended { step, reason });
            at.ends.sender.publish();
            entry.into_iter().for_each(|entry| at.sent[usize::from(entry)] = Sent::NO_TENSOR);
            at.refuse(lane, step, calls);
            if entry.is_none() {
                // It hears through the daemon.
                link.close_lane(lane, calls, aftermath);
            }
        }
        link.ring();
    }
}

impl Lane {
    /// Handles the other side's end of a step.
    pub(super) fn ended_there(
        &mut self,
        lane: u16,
        (step, reason): (i64, &str),
        calls: &mut Calls,
        after: &mut Aftermath,
    ) {
        self.ended.end(step, reason);
        self.take_back(lane, (step, reason), calls, after);
        // Only calls that wait for this lane, however often its other side says so. An old call's number may be another peer's by now.
        for call in self.quiet.calls() {
            if calls.wants(call).is_some_and(|(peer, of, ..)| *peer == *self.peer && of == step) {
                calls.end_untold(call, Error::Aborted { step, reason: reason.into() }, after);
            }
        }
    }

    /// Takes back what was sent in a step and not received.
    fn take_back(&mut self, lane: u16, (step, reason): (i64, &str), calls: &mut Calls, after: &mut Aftermath) {
        for entry in 0..self.sent.len() as u16 {
            let sent = self.sent[usize::from(entry)];
            if sent.step == step && sent.is_hint() {
                self.ends.sender.withdraw(entry);
            } else if sent.step == step
                && calls.sent_by(sent.call) == Some((lane, entry))
                && self.ends.sender.withdraw(entry)
            {
                calls.end_sent(sent.call, Some(Error::Aborted { step, reason: reason.into() }), after);
            }
        }
    }

    /// Refuses what has come for a step that this task has ended.
    fn refuse(&mut self, lane: u16, step: i64, calls: &mut Calls) {
        for entry in 0..self.kept.len() as u16 {
            if self.kept[usize::from(entry)].is_some_and(|kept| kept.step == step) {
                self.forget_kept(lane, entry, calls);
                self.settle(entry, Fate::Aborted);
            }
        }
    }
}
