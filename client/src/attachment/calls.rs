//! The table of calls: the memory each has lent to the daemon, its waiter, and its outcome. No I/O; under the attachment's
//! lock; bounded by `CALLS_MAX`. A batch takes the numbers of a whole one, however few calls it has, until its last call is over.
//!
//! A call has two owners: the caller, who may abandon it, and the daemon, which may still use the call's memory. Its slot is
//! free when neither holds it. A call's number has an index and a generation, so stale answers are recognized.

mod adopted;
mod answers;
mod batch;
mod listed;
mod slot;
mod waiting;

use sealane_runtime::{Buffer, copy_bytes};
use sealane_transport::{Error, RecvOutcome, SendOutcome, Tensor, Unreceived, tensor::LastKind};

use super::{
    aftermath::Aftermath,
    memory::{Memory, Substitute},
    unclaimed::{Place, Unclaimed},
};
use crate::{
    clock::Tick,
    limits::{CALL_INDEX_BITS, CALLS_MAX},
};

pub(super) use self::{
    answers::{Arrived, Fault},
    slot::Direction,
};
use self::{
    batch::Batches,
    slot::{Caller, Daemon, NO_CALL, Slot},
    waiting::Watched,
};

const INDEX_MASK: u32 = (1 << CALL_INDEX_BITS) - 1;

/// The calls of one attachment.
#[derive(Default)]
pub(crate) struct Calls {
    slots: Vec<Slot>,
    vacant: Vec<u32>,
    batches: Batches,
    watched: Watched,
    /// Tensors that arrived for cancelled recvs.
    unclaimed: Unclaimed,
    kinds: LastKind,
    /// Recvs that channels have adopted and that have ended: lane, slot, call, and whether the tensor came from the daemon.
    left: Vec<(u32, u32, u32, bool)>,
    /// Recvs to be cancelled at the daemon because a tensor is set aside for them, with their segments.
    to_cancel: Vec<(u16, u32)>,
    /// Publications that have ended, and whether the daemon has refused them.
    published: Vec<(u32, bool)>,
    /// The earliest deadline of a queued call, or earlier.
    queued_until: Option<Tick>,
}

/// How a recv ended. As long as an outcome: a longer value would be moved by calls of memcpy.
pub(crate) enum Received {
    Outcome(RecvOutcome),
    /// The tensor still has to be copied to where the caller wants it, by the caller's thread and without the lock.
    Landed(Box<(Tensor, Buffer)>),
}

const _: () = assert!(size_of::<Received>() == size_of::<RecvOutcome>());

impl Received {
    /// The outcome, with the tensor where it was wanted.
    #[inline]
    pub(crate) fn finish(self) -> RecvOutcome {
        match self {
            Received::Outcome(outcome) => outcome,
            Received::Landed(landed) => {
                let (tensor, mut destination) = *landed;
                let (meta, landed) = tensor.into_parts();
                destination.truncate(landed.len());
                copy_bytes(&mut destination, landed.as_ref());
                Ok(Tensor::new(meta, destination)?)
            }
        }
    }
}

impl Calls {
    /// Enters a call that is about to be submitted.
    ///
    /// # Errors
    /// The memory, if the table is full.
    #[inline]
    pub(super) fn open(
        &mut self,
        direction: Direction,
        segment: u16,
        deadline: Tick,
        memory: Memory,
    ) -> Result<u32, Memory> {
        let Some((call, slot)) = self.occupy(direction, segment, deadline) else { return Err(memory) };
        slot.memory = memory;
        Ok(call)
    }

    /// Takes a slot for a call that lends nothing; `None` if the table is full.
    #[inline]
    fn occupy(&mut self, direction: Direction, segment: u16, deadline: Tick) -> Option<(u32, &mut Slot)> {
        let index = match self.vacant.pop() {
            Some(index) => index,
            None => self.new_slot()?,
        };
        let slot = &mut self.slots[index as usize];
        slot.begin(direction, segment, deadline);
        Some((slot.generation << CALL_INDEX_BITS | index, slot))
    }

    #[cold]
    fn new_slot(&mut self) -> Option<u32> {
        if self.slots.len() >= CALLS_MAX {
            return self.give_up_batch();
        }
        self.slots.push(Slot::vacant());
        Some(self.slots.len() as u32 - 1)
    }

    /// Notes what a submitted recv asks for; `borrowed` if others may write its destination once the call has ended.
    ///
    /// It also gets what came for another recv of that key while there was no room to submit it: until now nobody could see it waiting.
    #[inline]
    pub(super) fn asked(&mut self, call: u32, place: (&str, i64, &str), borrowed: bool, after: &mut Aftermath) {
        let Some(slot) = self.slot(call) else { return };
        slot.note(place, borrowed);
        let waits = slot.caller == Caller::Waiting && slot.daemon.is_open();
        let room = slot.memory.room();
        if waits
            && !self.unclaimed.is_empty()
            && let Ok(Some(tensor)) = self.unclaimed.take(place, room)
        {
            self.give(call, tensor, after);
        }
    }

    /// Tensors that arrived for cancelled recvs.
    #[inline]
    pub(super) fn unclaimed(&mut self) -> &mut Unclaimed {
        &mut self.unclaimed
    }

    /// True if a recv may get a tensor that arrived for a cancelled one.
    #[inline]
    pub(super) fn has_unclaimed(&self) -> bool {
        !self.unclaimed.is_empty()
    }

    /// Enters a recv that ends at once with a tensor of one that was given up; `None` if the table is full, and then the tensor is kept.
    pub(super) fn claim(
        &mut self,
        of: (&str, i64, &str),
        tensor: Tensor,
        memory: &mut Memory,
        after: &mut Aftermath,
    ) -> Option<u32> {
        let Some((call, slot)) = self.occupy(Direction::Recv, 0, Tick::NEVER) else {
            let mut place = Place::default();
            place.set(of.0, of.1, of.2);
            self.unclaimed.put_back(place, tensor);
            return None;
        };
        slot.note(of, false);
        (slot.daemon, slot.caller, slot.copies, slot.tensor) = (Daemon::Done, Caller::Owed, false, Some(tensor));
        let (destination, rest) = std::mem::take(memory).into_destination();
        after.spent.push(rest);
        // The caller's thread copies it to where it is wanted.
        slot.memory = destination.map_or(Memory::Nothing, Substitute::of_a_tensor);
        Some(call)
    }

    /// Marks an entered call as waiting in this process for room.
    pub(super) fn waits(&mut self, call: u32) {
        if let Some(slot) = self.slot(call) {
            slot.daemon = Daemon::Queued;
            let deadline = slot.deadline;
            self.is_queued_until(deadline);
        }
    }

    /// Records the deadline of a queued call.
    pub(super) fn is_queued_until(&mut self, deadline: Tick) {
        self.queued_until = Some(self.queued_until.map_or(deadline, |until| until.min(deadline)));
    }

    /// True if a queued call may have passed its deadline. The caller then checks every queued call, and reports the deadlines of those
    /// that stay queued with [`is_queued_until`](Self::is_queued_until).
    pub(super) fn may_expire(&mut self, now: Tick) -> bool {
        self.queued_until.take_if(|until| *until < now).is_some()
    }

    /// Deadline of a call that waits in this process for room; `None` if it does not, or is not wanted any more.
    pub(super) fn queued(&mut self, call: u32) -> Option<Tick> {
        self.own_slot(call).filter(|slot| slot.daemon == Daemon::Queued).map(|slot| slot.deadline)
    }

    /// What waited for room with this number is gone, and the daemon was not told of it.
    pub(super) fn not_queued(&mut self, call: u32) {
        if let Some(slot) = self.own_slot(call).filter(|slot| slot.daemon == Daemon::Dropped) {
            slot.daemon = Daemon::Done;
            self.release(call);
        }
    }

    /// Marks a call that waited as told to the daemon.
    pub(super) fn told(&mut self, call: u32) {
        if let Some(slot) = self.slot(call) {
            slot.daemon = Daemon::Working;
        }
    }

    /// Sets what a waiting call lends that had nothing to lend before.
    pub(super) fn lend(&mut self, call: u32, memory: Memory) {
        if let Some(slot) = self.slot(call) {
            slot.memory = memory;
        }
    }

    /// Ends a call that waits in this process: the daemon never hears of it.
    pub(super) fn end_untold(&mut self, call: u32, error: Error, after: &mut Aftermath) {
        let Some(slot) = self.slot(call).filter(|slot| slot.daemon.is_here()) else { return };
        slot.daemon = slot.daemon.ended();
        let destination = slot.memory_back(after);
        if slot.caller == Caller::Waiting {
            slot.failure = Some(Box::new(Unreceived { error, destination }));
        }
        if slot.direction == Direction::Publish {
            self.published.push((call, true));
        }
        self.end(call, after);
        self.release(call);
    }

    /// Calls that somebody holds.
    #[cfg(any(test, feature = "fuzzing"))]
    pub(super) fn held(&self) -> usize {
        let in_slots = self.slots.iter().filter(|slot| (slot.daemon, slot.caller) != (Daemon::Done, Caller::Gone));
        in_slots.count() + self.batches.under_way()
    }

    /// True if so many more calls may be in flight.
    pub(super) fn have_room_for(&self, calls: usize) -> bool {
        CALLS_MAX - self.entered() >= calls
    }

    /// Number of calls that are entered, at most.
    #[inline]
    pub(super) fn entered(&self) -> usize {
        self.slots.len() - self.vacant.len() - self.batches.room()
    }

    /// Number of calls on a shard that the daemon has not answered, or is to be told of.
    pub(super) fn open_on(&self, segment: u16) -> usize {
        let is_open = |slot: &&Slot| slot.segment == segment && slot.daemon.is_open();
        self.slots.iter().filter(is_open).count() + self.batches.open_on(segment)
    }

    /// A step is over: discards tensors kept or still coming for cancelled recvs of that step.
    pub(super) fn forget_step(&mut self, step: i64, after: &mut Aftermath) {
        self.take_step_apart(step);
        after.unwanted.extend(self.unclaimed.forget(step));
        let is_of_it = |slot: &&mut Slot| slot.direction == Direction::Recv && slot.place.step() == step;
        for slot in self.slots.iter_mut().filter(is_of_it) {
            if slot.daemon.is_open() {
                // A tensor that is set aside for a caller who waits has been received: its sender may know.
                if slot.caller == Caller::Gone {
                    slot.keeps = false;
                    after.unwanted.extend(slot.tensor.take());
                }
            } else {
                // Its caller may still look at what came, but nobody after it.
                slot.keeps = false;
            }
        }
    }

    /// Keeps a tensor that came for a recv which was given up, or sets it aside for one that asks for it now. If it lies in the
    /// caller's destination it is copied, exceptionally under the lock: the destination leaves with its call, and the next recv
    /// must not ask the daemon meanwhile.
    fn keep(&mut self, call: u32, tensor: Tensor, after: &mut Aftermath) {
        let slot = &self.slots[(call & INDEX_MASK) as usize];
        if slot.keeps && slot.copies {
            let copy = Tensor::from_parts(tensor.meta().clone(), Buffer::copy_of(tensor.bytes()));
            self.pass_on(call, copy, after);
        } else if slot.keeps {
            return self.pass_on(call, tensor, after);
        }
        after.unwanted.push(tensor);
    }

    /// Passes a tensor that is not this call's to another recv that asks for it, or keeps it for one that will.
    fn pass_on(&mut self, call: u32, tensor: Tensor, after: &mut Aftermath) {
        let place = self.slots[(call & INDEX_MASK) as usize].place.clone();
        self.pass_to_next(place, Some(call & INDEX_MASK), tensor, after);
    }

    /// Passes a tensor to a recv that asks for it, except the one at an index, or keeps it for one that will.
    fn pass_to_next(&mut self, place: Place, except: Option<u32>, tensor: Tensor, after: &mut Aftermath) {
        self.take_recvs_apart(place.peer(), Some(place.step()));
        let fits = |memory: &Memory| memory.check(tensor.meta().as_wire(), tensor.len()).is_ok();
        let others = self.slots.iter().enumerate().filter(|(index, _)| Some(*index as u32) != except);
        let next = others.map(|(index, slot)| (index as u32, slot)).find(|(_, slot)| {
            slot.daemon.is_open()
                && (slot.caller, slot.direction) == (Caller::Waiting, Direction::Recv)
                && slot.keeps
                && slot.place == place
                && slot.tensor.is_none()
                && fits(&slot.memory)
        });
        match next.map(|(index, slot)| slot.generation << CALL_INDEX_BITS | index) {
            Some(next) => self.give(next, tensor, after),
            None => self.unclaimed.keep(place, tensor),
        }
    }

    /// Gives another call's tensor to a recv that waits.
    fn give(&mut self, call: u32, tensor: Tensor, after: &mut Aftermath) {
        self.leave(call);
        let slot = &mut self.slots[(call & INDEX_MASK) as usize];
        slot.tensor = Some(tensor);
        if slot.daemon.is_here() {
            return self.end_with_set_aside(call, after);
        }
        // The daemon has its destination. Once it has given the recv up, that ends with this tensor.
        self.to_cancel.push((slot.segment, call));
    }

    /// Passes on a tensor that was set aside for a recv on which the daemon is still working.
    #[inline]
    fn unset_aside(&mut self, call: u32, after: &mut Aftermath) {
        if let Some(tensor) = self.slots[(call & INDEX_MASK) as usize].tensor.take() {
            self.pass_on(call, tensor, after);
        }
    }

    /// The next recv to cancel at the daemon, with its segment.
    #[inline]
    pub(super) fn take_to_cancel(&mut self) -> Option<(u16, u32)> {
        self.to_cancel.pop()
    }

    /// True if publications have ended.
    #[inline]
    pub(super) fn has_published(&self) -> bool {
        !self.published.is_empty()
    }

    /// A publication that has ended, and whether the daemon has refused it.
    pub(super) fn take_published(&mut self) -> Option<(u32, bool)> {
        self.published.pop()
    }

    /// True if the daemon may use memory of a call.
    pub(super) fn lend_memory(&self) -> bool {
        let uses = |slot: &Slot| matches!(slot.daemon, Daemon::Working | Daemon::Holding);
        self.slots.iter().any(|slot| uses(slot) && !matches!(slot.memory, Memory::Nothing))
    }

    /// True while the daemon may write a destination that is not this library's own memory.
    pub(super) fn borrows(&mut self, call: u32) -> bool {
        let uses = |slot: &Slot| matches!(slot.daemon, Daemon::Working | Daemon::Holding);
        self.slot(call).is_some_and(|slot| slot.borrowed && uses(slot))
    }

    /// Notes that a tensor which arrives for a cancelled recv may be torn.
    pub(super) fn distrust(&mut self, call: u32) {
        if let Some(slot) = self.slot(call) {
            slot.keeps = false;
        }
    }

    /// Enters a watch, which ends by [`noticed`](Self::noticed); `None` if the table is full.
    pub(super) fn watch(&mut self, deadline: Tick) -> Option<u32> {
        let call = self.open(Direction::Watch, 0, deadline, Memory::Nothing).ok()?;
        self.slots[(call & INDEX_MASK) as usize].daemon = Daemon::Done;
        Some(call)
    }

    /// Ends a watch: there is something to look at.
    pub(super) fn noticed(&mut self, watch: u32, after: &mut Aftermath) {
        self.end(watch, after);
    }

    /// Removes a call that was not submitted after all.
    pub(super) fn retract(&mut self, call: u32, after: &mut Aftermath) -> Memory {
        self.leave(call);
        let Some(slot) = self.slot(call) else { return Memory::Nothing };
        (slot.daemon, slot.caller) = (Daemon::Done, Caller::Gone);
        // If the link was lost meanwhile, the outcome has the caller's destination, and the slot at most what was lent in its place.
        let memory = match slot.failure.take().and_then(|failure| failure.destination) {
            Some(destination) => {
                slot.spend(after);
                Memory::Destination(destination.into())
            }
            None => std::mem::take(&mut slot.memory),
        };
        self.release(call);
        memory
    }

    /// True if the call has ended and the caller was not told.
    #[inline]
    pub(super) fn is_owed(&self, call: u32) -> bool {
        match self.slots.get((call & INDEX_MASK) as usize) {
            Some(slot) if slot.generation == call >> CALL_INDEX_BITS => slot.caller == Caller::Owed,
            _ => self.batches.is_owed(call),
        }
    }

    /// How a send, a push, a publication, a pull or a watch ended; can be taken once.
    #[inline]
    pub(crate) fn take_sent(&mut self, call: u32) -> Option<SendOutcome> {
        let Some(slot) = self.owed(call) else { return self.take_sent_of_batch(&[call]).map(|_| Ok(())) };
        let outcome = match slot.failure.take() {
            None => Ok(()),
            Some(failure) => Err(failure.error),
        };
        self.release(call);
        Some(outcome)
    }

    /// How a recv ended; can be taken once.
    #[inline]
    pub(crate) fn take_received(&mut self, call: u32) -> Option<Received> {
        let Some(slot) = self.owed(call) else { return self.take_one_received_of_batch(call) };
        let received = match slot.tensor.take() {
            Some(tensor) => match std::mem::take(&mut slot.memory).into_substitute() {
                Some(substitute) => Received::Landed(Box::new((tensor, substitute.destination.into_memory()))),
                None => Received::Outcome(Ok(tensor)),
            },
            None => {
                let failure = slot.failure.take().expect("a recv without a tensor has failed");
                Received::Outcome(Err(*failure))
            }
        };
        self.release(call);
        Some(received)
    }

    /// How the first of these sends ended, as far as they have; returns how many.
    #[inline]
    pub(crate) fn take_all_sent(&mut self, calls: &[u32], outcomes: &mut Vec<SendOutcome>) -> usize {
        if let Some(count) = self.take_sent_of_batch(calls) {
            outcomes.extend((0..count).map(|_| Ok(())));
            return count;
        }
        let ended = calls.iter().map_while(|call| self.has_slot(*call).then(|| self.take_sent(*call))?);
        let before = outcomes.len();
        outcomes.extend(ended);
        outcomes.len() - before
    }

    /// How the first of these recvs ended, as far as they have, and are nowhere to be copied to; returns how many.
    #[inline]
    pub(crate) fn take_all_received(&mut self, calls: &[u32], outcomes: &mut Vec<RecvOutcome>) -> usize {
        let before = outcomes.len();
        while let Some(call) = calls.get(outcomes.len() - before) {
            let taken = outcomes.len();
            self.take_received_of_batch(&calls[taken - before..], |outcome| outcomes.push(outcome));
            if outcomes.len() > taken {
                continue;
            }
            let is_complete = |slot: &&mut Slot| !matches!(slot.memory, Memory::Substitute(_));
            if self.own_slot(*call).filter(is_complete).is_none() {
                break;
            }
            let Some(Received::Outcome(outcome)) = self.take_received(*call) else { break };
            outcomes.push(outcome);
        }
        outcomes.len() - before
    }

    #[inline]
    fn owed(&mut self, call: u32) -> Option<&mut Slot> {
        let slot = self.own_slot(call).filter(|slot| slot.caller == Caller::Owed)?;
        slot.caller = Caller::Gone;
        Some(slot)
    }

    /// The caller gives the call up. Returns the segment if the daemon is still working on it. A call that waits in this process goes on
    /// unless it is to `cancel`.
    pub(super) fn forsake(&mut self, call: u32, cancel: bool, after: &mut Aftermath) -> Option<u16> {
        self.slot(call)?;
        self.leave(call);
        let slot = &mut self.slots[(call & INDEX_MASK) as usize];
        if cancel && slot.daemon.is_here() {
            slot.daemon = slot.daemon.ended();
            slot.spend(after);
        }
        let (mut unwanted, mut set_aside) = (None, None);
        // The daemon has given it up, but has not returned its memory yet.
        let waits_for_memory = (slot.caller, slot.daemon) == (Caller::Waiting, Daemon::Holding);
        if waits_for_memory {
            set_aside = slot.tensor.take();
        }
        after.failures.extend(slot.failure.take().map(|failure| *failure));
        if slot.caller == Caller::Owed {
            unwanted = slot.tensor.take();
            if matches!(slot.daemon, Daemon::Done | Daemon::Dropped) {
                slot.spend(after);
            }
        }
        slot.caller = Caller::Gone;
        let at_work = (slot.daemon == Daemon::Working || waits_for_memory).then_some(slot.segment);
        // As in `wake_at_end`.
        after.wakers.extend(slot.waker.take());
        self.watch_for(call, false);
        if let Some(tensor) = unwanted {
            self.keep(call, tensor, after);
        }
        if let Some(tensor) = set_aside {
            match self.slots[(call & INDEX_MASK) as usize].keeps {
                true => self.pass_on(call, tensor, after),
                false => after.unwanted.push(tensor),
            }
        }
        self.release(call);
        at_work
    }

    /// The segment, if the daemon is still at work on the call.
    pub(super) fn at_work_on(&mut self, call: u32) -> Option<u16> {
        self.slot(call).filter(|slot| slot.daemon == Daemon::Working).map(|slot| slot.segment)
    }

    /// Ends every call, since nothing more is heard from the daemon, and nothing waits for room any more. Memory comes back if the daemon
    /// is `gone`; one that lives may still use what it was lent, which then stays here for as long as this table does.
    pub(super) fn end_all(&mut self, gone: bool, error: impl Fn() -> Error, after: &mut Aftermath) {
        self.take_all_apart();
        for index in 0..self.slots.len() {
            let call = self.slots[index].generation << CALL_INDEX_BITS | index as u32;
            self.not_queued(call);
            let slot = &mut self.slots[index];
            // A caller may still wait for a call whose answer was the fault that ended the attachment.
            if slot.daemon == Daemon::Done && slot.caller != Caller::Waiting {
                continue;
            }
            let has_lent = !matches!(slot.memory, Memory::Nothing);
            let is_used = has_lent && matches!(slot.daemon, Daemon::Working | Daemon::Holding);
            let memory_back = gone || !is_used;
            slot.fail(memory_back, &error, after);
            self.end(call, after);
            self.unset_aside(call, after);
            self.release(call);
        }
        self.to_cancel.clear();
        self.left.clear();
    }

    #[inline]
    fn has_slot(&self, call: u32) -> bool {
        let slot = self.slots.get((call & INDEX_MASK) as usize);
        slot.is_some_and(|slot| slot.generation == call >> CALL_INDEX_BITS)
    }

    /// The slot of a call that is none of a batch.
    #[inline]
    fn own_slot(&mut self, call: u32) -> Option<&mut Slot> {
        let slot = self.slots.get_mut((call & INDEX_MASK) as usize)?;
        (slot.generation == call >> CALL_INDEX_BITS).then_some(slot)
    }

    /// The slot of a call; if that is of a batch, the batch is taken apart.
    #[inline]
    fn slot(&mut self, call: u32) -> Option<&mut Slot> {
        if !self.has_slot(call) {
            self.take_apart_for(call)?;
        }
        Some(&mut self.slots[(call & INDEX_MASK) as usize])
    }

    /// Makes the outcome available to the caller, who may be gone, and wakes it.
    #[inline]
    fn end(&mut self, call: u32, after: &mut Aftermath) {
        let Some(slot) = self.own_slot(call).filter(|slot| slot.caller == Caller::Waiting) else { return };
        slot.caller = Caller::Owed;
        if slot.adopted.is_some() || slot.waker.is_some() {
            self.end_known(call, after);
        }
    }

    /// A channel, or somebody who sleeps, knows of the call.
    #[inline(never)]
    fn end_known(&mut self, call: u32, after: &mut Aftermath) {
        let slot = &mut self.slots[(call & INDEX_MASK) as usize];
        if let Some((lane, at)) = slot.adopted.take() {
            self.left.push((lane, at, call, slot.tensor.is_some()));
        }
        if let Some(waker) = slot.waker.take() {
            after.wakers.push(waker);
            self.watch_for(call, false);
        }
    }

    /// Frees the slot if nobody holds it.
    #[inline]
    fn release(&mut self, call: u32) {
        let index = call & INDEX_MASK;
        let slot = &mut self.slots[index as usize];
        if slot.daemon == Daemon::Done && slot.caller == Caller::Gone {
            debug_assert!(slot.tensor.is_none(), "the slot's next call would find it");
            debug_assert!(matches!(slot.memory, Memory::Nothing), "the slot's next call would have lent it");
            if std::mem::take(&mut slot.of_batch) {
                slot.generation = NO_CALL;
                return self.batches.has_left(index);
            }
            slot.generation = (slot.generation + 1) & (u32::MAX >> CALL_INDEX_BITS);
            self.vacant.push(index);
        }
    }
}

#[cfg(test)]
mod tests;
