//! Short frames waiting to be sent: control frames, failures, goaway. Bounded by [`CONTROL_QUEUE_MAX`] plus what one read of
//! the link can add.

use std::collections::VecDeque;

use crate::arena::Handle;
use crate::limits::CONTROL_QUEUE_MAX;
use crate::outbox::Outbox;
use crate::wire::{Abort, Ends, Failure, PullFailure, PushFailure};

#[derive(Debug)]
pub(super) enum Control {
    Parked(Handle, u32),
    Cancel(Handle),
    Failure {
        id: Handle,
        code: u8,
        reason: String,
    },
    PullCancel(Handle),
    ForgetSet(Handle),
    PullFailure {
        id: Handle,
        code: u8,
        index: u32,
        reason: String,
    },
    PushClose(Handle),
    AheadRevoke {
        number: u64,
        ends: Ends,
        key: Box<str>,
    },
    AheadHeld {
        ends: Ends,
        key: Box<str>,
    },
    /// A stream was not accepted, and neither was the push that it begins with.
    StreamRefused {
        stream: Handle,
        code: u8,
        reason: String,
    },
    Released(u64),
    Resumed,
    Abort {
        step: i64,
        task: u16,
        reason: Box<str>,
    },
    Ping(u64),
    Pong(u64),
    GoAway(Box<str>),
}

#[derive(Default)]
pub(super) struct ControlQueue {
    /// What this side sends of its own accord: bounded by its own requests and sends, and by the parked requests of the peer;
    /// for the rest see [`has_room`](Self::has_room).
    queue: VecDeque<Control>,
    /// What this side must answer to frames of the peer: bounded by [`CONTROL_QUEUE_MAX`].
    answers: VecDeque<Control>,
    /// `Resumed` and `GoAway`, one of each per link: they conclude what was sent before, so they leave after requests and
    /// answers.
    conclusions: VecDeque<Control>,
}

impl ControlQueue {
    pub(super) fn push(&mut self, control: Control) {
        if matches!(control, Control::Resumed | Control::GoAway(_)) {
            self.conclusions.push_back(control);
            return;
        }
        self.queue.push_back(control);
    }

    /// Adds an answer to a frame of the peer.
    pub(super) fn push_answer(&mut self, control: Control) {
        // A peer that pings and never reads must not fill the queue: the latest pong answers for all.
        if let (Control::Pong(nonce), Some(Control::Pong(last))) = (&control, self.answers.back_mut()) {
            *last = *nonce;
            return;
        }
        self.answers.push_back(control);
    }

    #[inline]
    pub(super) fn extend_answers(&mut self, control: Option<Control>) {
        if let Some(control) = control {
            self.push_answer(control);
        }
    }

    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.queue.is_empty() && self.answers.is_empty() && self.conclusions.is_empty()
    }

    /// True if the peer has caused so many answers that they must be sent before more is read. What this side sends of its own
    /// accord does not count: otherwise two sides that both end a step could stop reading each other.
    pub(super) fn is_full(&self) -> bool {
        self.answers.len() >= CONTROL_QUEUE_MAX
    }

    /// True if this side may add a message whose number no request bounds.
    pub(super) fn has_room(&self) -> bool {
        self.queue.len() < CONTROL_QUEUE_MAX
    }

    /// Stages the first frame that is not a conclusion; false if there is none.
    pub(super) fn stage(&mut self, outbox: &mut Outbox) -> bool {
        let control = self.answers.pop_front().or_else(|| self.queue.pop_front());
        control.is_some_and(|control| control.stage(outbox))
    }

    /// Stages what concludes all that was sent before; false if there is nothing. A goodbye waits for the last chunk.
    pub(super) fn stage_conclusion(&mut self, outbox: &mut Outbox) -> bool {
        if outbox.has_chunks() && matches!(self.conclusions.front(), Some(Control::GoAway(_))) {
            return false;
        }
        let control = self.conclusions.pop_front();
        control.is_some_and(|control| control.stage(outbox))
    }
}

impl Control {
    fn stage(self, outbox: &mut Outbox) -> bool {
        outbox.stage(|writer| match &self {
            Control::Parked(id, attachment) => writer.parked(*id, *attachment),
            Control::Cancel(id) => writer.cancel(*id),
            Control::Failure { id, code, reason } => writer.failure(&Failure { id: *id, code: *code, reason }),
            Control::PullCancel(id) => writer.pull_cancel(*id),
            Control::ForgetSet(set) => writer.forget_set(*set),
            Control::PullFailure { id, code, index, reason } => {
                writer.pull_failure(&PullFailure { id: *id, code: *code, index: *index, reason });
            }
            Control::PushClose(stream) => writer.push_close(*stream),
            Control::AheadRevoke { number, ends, key } => writer.ahead_revoke(*number, *ends, key),
            Control::AheadHeld { ends, key } => writer.ahead_held(*ends, key),
            Control::StreamRefused { stream, code, reason } => {
                writer.push_failure(&PushFailure { stream: *stream, code: *code, number: 0, reason });
            }
            Control::Released(sequence) => writer.released(*sequence),
            Control::Resumed => writer.resumed(),
            Control::Abort { step, task, reason } => writer.abort(&Abort { step: *step, task: *task, reason }),
            Control::Ping(nonce) => writer.ping(*nonce),
            Control::Pong(nonce) => writer.pong(*nonce),
            Control::GoAway(reason) => writer.go_away(reason),
        });
        true
    }
}
