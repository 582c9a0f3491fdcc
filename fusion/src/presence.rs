//! Which local tasks have a process attached, and which have had one that left. Pure: no clock, no I/O.
//!
//! Either side of a call may start first, so requests wait for a task that was never attached. They also wait for one that was attached and
//! has left, unless they [say otherwise](IfGone): such a request ends when its task leaves, or at once if it has left. Each attachment has
//! a number, which these requests are told while they wait, and repeat when they are sent again after a link was lost: the note that their
//! task has left may have been lost too, and another process may have attached since.
//!
//! A process whose daemon drains attaches to the next daemon, or to this one if that fails: it does not count as having left.
//!
//! Bounded by the tasks of the node, each with a reason of at most `ENDED_REASON_BYTES`.

use std::sync::Arc;

use sealane_transport::Error;
use sealane_transport::if_gone::IfGone;

use crate::rendezvous::EndedSteps;

/// Whether a task has a process.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
enum State {
    /// It has had none yet, or its process is expected back.
    #[default]
    Awaited,
    Here,
    /// The daemon drains: when the process goes, it is expected back.
    Moving,
    /// Its process has left, with the reason.
    Left(Arc<str>),
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
struct Seat {
    /// The number of the last attachment; 0 before the first.
    number: u32,
    state: State,
}

/// The tasks of a node, by index.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct Presence {
    seats: Vec<Seat>,
}

impl Presence {
    fn seat(&mut self, task: u16) -> &mut Seat {
        let place = usize::from(task);
        if self.seats.len() <= place {
            self.seats.resize_with(place + 1, Seat::default);
        }
        &mut self.seats[place]
    }

    /// A process attaches as the task; returns the number of this attachment.
    pub fn came(&mut self, task: u16) -> u32 {
        let seat = self.seat(task);
        seat.number = seat.number.wrapping_add(1).max(1);
        seat.state = State::Here;
        seat.number
    }

    /// The process of a task has gone. True if it is expected to attach again.
    pub fn left(&mut self, task: u16, reason: &str) -> bool {
        let seat = self.seat(task);
        let is_awaited = seat.state == State::Moving;
        seat.state = if is_awaited { State::Awaited } else { State::Left(EndedSteps::reason_to_keep(reason)) };
        is_awaited
    }

    /// The daemon drains: the processes attached now are expected to attach again after they have gone.
    pub fn expect_all_again(&mut self) {
        for seat in self.seats.iter_mut().filter(|seat| seat.state == State::Here) {
            seat.state = State::Moving;
        }
    }

    /// The attachment of its task that a request may wait for; 0 for the next one, or for any.
    ///
    /// # Errors
    /// The reason with which the task left, if the request must not wait.
    #[inline]
    pub fn admit(&self, task: u16, if_gone: IfGone) -> Result<u32, &str> {
        let IfGone::Fails { attachment } = if_gone else { return Ok(0) };
        let Some(seat) = self.seats.get(usize::from(task)) else { return Ok(0) };
        match &seat.state {
            State::Left(reason) => Err(reason),
            State::Here | State::Moving if [0, seat.number].contains(&attachment) => Ok(seat.number),
            State::Awaited if attachment == 0 => Ok(0),
            State::Here | State::Moving => Err("another process has attached as this task since"),
            State::Awaited => Err("its daemon was drained"),
        }
    }
}

/// The error of those who wait for a task that has left.
pub fn gone(task: &str, reason: &str) -> Error {
    Error::Left { task: task.into(), reason: reason.into() }
}

#[cfg(test)]
mod tests;
