//! One call of the table: its lent memory, its holders, and its outcome.

use std::task::Waker;

use sealane_runtime::Buffer;
use sealane_transport::{Error, Tensor, Unreceived};

use super::super::{aftermath::Aftermath, memory::Memory, unclaimed::Place};
use super::matching::Name;
use crate::clock::Tick;

/// One call. What it ended with lies in fields of its own, so that taking it moves no more than itself.
pub(super) struct Slot {
    pub(super) generation: u32,
    pub(super) segment: u16,
    pub(super) direction: Direction,
    pub(super) daemon: Daemon,
    pub(super) caller: Caller,
    pub(super) watched: bool,
    pub(super) deadline: Tick,
    pub(super) waker: Option<Waker>,
    pub(super) memory: Memory,
    /// While the daemon is at work on a recv: one that was set aside for it, to be had when the daemon gives the recv up.
    pub(super) tensor: Option<Tensor>,
    pub(super) failure: Option<Box<Unreceived>>,
    /// What it asks for, of a recv.
    pub(super) place: Place,
    /// If it is cancelled, its tensor is kept for the next.
    pub(super) keeps: bool,
    /// Its destination may be written by others once the call has ended.
    pub(super) borrowed: bool,
    /// Its tensor lies in the caller's destination.
    pub(super) copies: bool,
    /// Of a recv that waits: the daemon was asked, or will be when the ring has room.
    pub(super) asked: bool,
    /// By what a direct lane finds it, of a recv that waits.
    pub(super) name: Option<Name>,
    /// The lane by which it was sent, and the entry there.
    pub(super) sent_by: (u16, u16),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::attachment) enum Direction {
    Send,
    Recv,
    /// Its memory stays with the daemon after its end.
    Publish,
    /// Its memory may stay with the daemon after its end.
    Push,
    /// Its tensors are the plan's.
    Pull,
    /// Local: the daemon does not know of it. It ends when there is something to look at.
    Watch,
}

impl Direction {
    /// Whether the call ends when the daemon is done with a tensor, and else with an answer.
    pub(super) fn is_released(self) -> bool {
        matches!(self, Direction::Send | Direction::Publish | Direction::Push)
    }
}

/// What the daemon has to do with the call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Daemon {
    /// Nothing yet: the call waits in this process for room.
    Untold,
    /// It has not answered.
    Working,
    /// It does not know of the call, which is a send by a direct lane.
    Bypassed,
    /// It has answered, and still uses the memory.
    Holding,
    /// Nothing any more.
    Done,
}

/// What the caller has to do with the call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Caller {
    /// Waits, or will ask.
    Waiting,
    /// Has not yet asked how it ended.
    Owed,
    /// Has been told, or does not care.
    Gone,
}

impl Slot {
    pub(super) fn vacant() -> Self {
        Self {
            generation: 0,
            segment: 0,
            direction: Direction::Send,
            daemon: Daemon::Done,
            caller: Caller::Gone,
            watched: false,
            deadline: Tick::NEVER,
            waker: None,
            memory: Memory::Nothing,
            tensor: None,
            failure: None,
            place: Place::default(),
            keeps: false,
            borrowed: false,
            copies: false,
            asked: true,
            name: None,
            sent_by: (0, 0),
        }
    }

    /// Takes the memory of its call.
    #[inline]
    pub(super) fn lend(&mut self, memory: &mut Memory) {
        if !matches!(memory, Memory::Nothing) {
            self.memory = std::mem::take(memory);
        }
    }

    /// What a recv asks for; `borrowed` if others may write its destination once the call has ended.
    #[inline]
    pub(super) fn note(&mut self, (peer, step, key): (&str, i64, &str), borrowed: bool) {
        self.place.set(peer, step, key);
        (self.keeps, self.borrowed) = (true, borrowed);
    }

    /// The daemon is done with the memory, and the caller gets none of it.
    #[inline]
    pub(super) fn spend(&mut self, after: &mut Aftermath) {
        match std::mem::take(&mut self.memory) {
            Memory::Nothing => {}
            memory => after.spent.push(memory),
        }
    }

    /// The call fails. Unless its memory is back, the daemon still uses what it was lent; the caller gets its destination all the same.
    pub(super) fn fail(&mut self, memory_back: bool, error: impl FnOnce() -> Error, after: &mut Aftermath) {
        let destination = if memory_back {
            self.daemon = Daemon::Done;
            self.memory_back(after)
        } else {
            self.daemon = Daemon::Holding;
            let (destination, kept) = std::mem::take(&mut self.memory).apart();
            self.memory = kept;
            destination
        };
        if self.caller == Caller::Waiting {
            // It may have been known before.
            let error = self.failure.take().map_or_else(error, |failure| failure.error);
            self.failure = Some(Box::new(Unreceived { error, destination }));
        }
    }

    /// The daemon is done with the memory: the caller's destination, where there was one.
    pub(super) fn memory_back(&mut self, after: &mut Aftermath) -> Option<Buffer> {
        let (destination, rest) = std::mem::take(&mut self.memory).into_destination();
        self.memory = rest;
        self.spend(after);
        if self.caller == Caller::Waiting {
            return destination;
        }
        after.spent.extend(destination.map(Memory::Destination));
        None
    }
}
