//! One call of the table: its lent memory, its holders, and its outcome.

use std::task::Waker;

use sealane_runtime::Buffer;
use sealane_transport::{Destination, Error, Tensor, Unreceived};

use super::super::{aftermath::Aftermath, memory::Memory, unclaimed::Place};
use super::adopted::Adopted;
use crate::clock::Tick;

/// The generation of slots whose numbers no call has, except calls of a batch that is not taken apart.
pub(super) const NO_CALL: u32 = u32::MAX;

/// One call. Its outcome is in separate fields, so that taking it moves nothing else.
pub(super) struct Slot {
    pub(super) generation: u32,
    pub(super) segment: u16,
    pub(super) direction: Direction,
    pub(super) daemon: Daemon,
    pub(super) caller: Caller,
    /// When it is free, it is the batch's again.
    pub(super) of_batch: bool,
    pub(super) watched: bool,
    pub(super) deadline: Tick,
    pub(super) waker: Option<Waker>,
    pub(super) memory: Memory,
    /// While the daemon works on a recv: a tensor set aside for it, which it gets when the daemon has given the recv up.
    pub(super) tensor: Option<Tensor>,
    pub(super) failure: Option<Box<Unreceived>>,
    /// What a recv asks for.
    pub(super) place: Place,
    /// If the recv is cancelled, its tensor is kept for the next one.
    pub(super) keeps: bool,
    /// Others may write its destination once the call has ended.
    pub(super) borrowed: bool,
    /// Its tensor lies in the caller's destination.
    pub(super) copies: bool,
    /// Where a channel has adopted a waiting recv.
    pub(super) adopted: Option<Adopted>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::attachment) enum Direction {
    Send,
    Recv,
    /// The daemon keeps its memory after its end.
    Publish,
    /// The daemon may keep its memory after its end.
    Push,
    /// Its tensors are received by the plan.
    Pull,
    /// Local: unknown to the daemon. It ends when there is something to look at.
    Watch,
}

impl Direction {
    /// True if the call ends when the daemon releases a tensor, false if it ends with an answer.
    pub(super) fn is_released(self) -> bool {
        matches!(self, Direction::Send | Direction::Publish | Direction::Push)
    }
}

/// The call's state at the daemon.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Daemon {
    /// To be told: a record or tensor of it waits in this process for room.
    Queued,
    /// Told, and not answered.
    Working,
    /// Answered, but the memory is still in use.
    Holding,
    /// Finished without having been told. What waits for room still has its number, which no other call may get before that is gone.
    Dropped,
    /// Finished.
    Done,
}

impl Daemon {
    /// True if the daemon has not heard of the call.
    #[inline]
    pub(super) fn is_here(self) -> bool {
        self == Daemon::Queued
    }

    /// True if the call has not ended: it waits here, or the daemon works on it.
    #[inline]
    pub(super) fn is_open(self) -> bool {
        self.is_here() || self == Daemon::Working
    }

    /// The state of a call that has ended in this one.
    #[inline]
    pub(super) fn ended(self) -> Daemon {
        if matches!(self, Daemon::Queued | Daemon::Dropped) { Daemon::Dropped } else { Daemon::Done }
    }
}

/// The call's state at the caller.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Caller {
    /// Waits, or will ask.
    Waiting,
    /// Has not asked yet how it ended.
    Owed,
    /// Was told, or gave the call up.
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
            of_batch: false,
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
            adopted: None,
        }
    }

    /// Becomes a call that the daemon works on, and that lends nothing.
    #[inline]
    pub(super) fn begin(&mut self, direction: Direction, segment: u16, deadline: Tick) {
        (self.direction, self.segment, self.deadline) = (direction, segment, deadline);
        (self.daemon, self.caller) = (Daemon::Working, Caller::Waiting);
        (self.keeps, self.borrowed, self.copies) = (false, false, false);
        debug_assert!(self.adopted.is_none(), "a channel would serve another call");
        debug_assert!(self.failure.is_none(), "the call would fail as the one before it");
    }

    /// Notes what a recv asks for; `borrowed` if others may write its destination once the call has ended.
    #[inline]
    pub(super) fn note(&mut self, (peer, step, key): (&str, i64, &str), borrowed: bool) {
        self.place.set(peer, step, key);
        (self.keeps, self.borrowed) = (true, borrowed);
    }

    /// The daemon has released the memory, and the caller gets none of it.
    #[inline]
    pub(super) fn spend(&mut self, after: &mut Aftermath) {
        match std::mem::take(&mut self.memory) {
            Memory::Nothing => {}
            memory => after.spent.push(memory),
        }
    }

    /// Fails the call. Unless `memory_back`, the daemon still uses what it was lent; the caller gets its destination all the same.
    pub(super) fn fail(&mut self, memory_back: bool, error: impl FnOnce() -> Error, after: &mut Aftermath) {
        let destination = if memory_back {
            self.daemon = Daemon::Done;
            self.memory_back(after)
        } else {
            self.daemon = Daemon::Holding;
            let (destination, kept) = std::mem::take(&mut self.memory).apart();
            self.memory = kept;
            destination.map(Destination::into_memory)
        };
        if self.caller == Caller::Waiting {
            // The error may have been known before.
            let error = self.failure.take().map_or_else(error, |failure| failure.error);
            self.failure = Some(Box::new(Unreceived { error, destination }));
        }
    }

    /// The daemon has released the memory: returns the caller's destination, if there was one.
    pub(super) fn memory_back(&mut self, after: &mut Aftermath) -> Option<Buffer> {
        let (destination, rest) = std::mem::take(&mut self.memory).into_destination();
        self.memory = rest;
        self.spend(after);
        if self.caller == Caller::Waiting {
            return destination.map(Destination::into_memory);
        }
        after.spent.extend(destination.map(Memory::Destination));
        None
    }
}
