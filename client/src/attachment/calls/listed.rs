//! Calls that were submitted in one list, from the numbers that they get to their outcomes, or to slots of their own.

use std::ops::Range;

use sealane_transport::{
    RecvOutcome, Unreceived,
    shm::{CallList, CallListBuf},
};

use super::{
    Aftermath, Arrived, Calls, Direction, Memory, Received,
    answers::Fault,
    batch::{Asked, BATCH_CALLS, BATCH_CALLS_MIN, BATCHED_CALLS_MAX, Batch, Batches, NO_BATCH, Sleeper, consecutive},
    slot::{Caller, Daemon, NO_CALL, Slot},
};
use crate::{clock::Tick, limits::CALL_INDEX_BITS};

impl Calls {
    /// Enters calls that lend nothing, and numbers them. There is [room](Self::have_room_for) for them.
    pub(in crate::attachment) fn open_all(
        &mut self,
        calls: &mut CallListBuf,
        direction: Direction,
        segment: u16,
        deadline: Tick,
    ) {
        let (mut left, mut batch, mut is_refused) = (calls.as_list().len(), 0..0, false);
        calls.number(|| {
            if batch.is_empty() && !is_refused {
                let opened = self.open_batch(direction, segment, deadline, left);
                (is_refused, batch) = (opened.is_none(), opened.unwrap_or_default());
            }
            left -= 1;
            batch.next().unwrap_or_else(|| self.open_alone(direction, segment, deadline))
        });
    }

    fn open_alone(&mut self, direction: Direction, segment: u16, deadline: Tick) -> u32 {
        let opened = self.open(direction, segment, deadline, Memory::Nothing);
        opened.unwrap_or_else(|_| unreachable!("there is room"))
    }

    /// Takes consecutive numbers for calls that lend nothing, as many as there are up to a batch; `None` if they are too few to be one, or
    /// there is no room for it.
    fn open_batch(&mut self, direction: Direction, segment: u16, deadline: Tick, calls: usize) -> Option<Range<u32>> {
        if calls < BATCH_CALLS_MIN {
            return None;
        }
        let number = match self.batches.idle.pop() {
            Some(number) => number,
            None => self.new_batch()?,
        };
        let batch = &mut self.batches.batches[usize::from(number)];
        batch.direction = Some(direction);
        (batch.segment, batch.deadline) = (segment, deadline);
        batch.count = calls.min(BATCH_CALLS) as u32;
        (batch.ended, batch.taken) = (0, 0);
        let first = batch.generation << CALL_INDEX_BITS | batch.first;
        Some(first..first + batch.count)
    }

    #[cold]
    fn new_batch(&mut self) -> Option<u16> {
        let first = self.slots.len().next_multiple_of(BATCH_CALLS);
        if first + BATCH_CALLS > BATCHED_CALLS_MAX {
            return None;
        }
        self.vacant.extend(self.slots.len() as u32..first as u32);
        self.slots.resize_with(first, Slot::vacant);
        let unused = || Slot { generation: NO_CALL, ..Slot::vacant() };
        self.slots.resize_with(first + BATCH_CALLS, unused);
        let Batches { batches, of_slots, .. } = &mut self.batches;
        let number = batches.len() as u16;
        of_slots.resize(first / BATCH_CALLS, NO_BATCH);
        of_slots.push(number);
        batches.push(Batch::new(first as u32));
        Some(number)
    }

    /// Slots for single calls, if all others are taken: those of a batch without calls, which it does not get back.
    pub(super) fn give_up_batch(&mut self) -> Option<u32> {
        let number = self.batches.idle.pop()?;
        let batch = &mut self.batches.batches[usize::from(number)];
        let Batch { first, generation, .. } = std::mem::replace(batch, Batch::new(0));
        self.batches.of_slots[first as usize / BATCH_CALLS] = NO_BATCH;
        let given = first..first + BATCH_CALLS as u32;
        given.clone().for_each(|index| self.slots[index as usize].generation = generation);
        self.vacant.extend(given);
        self.vacant.pop()
    }

    /// Removes calls of a list that was not submitted after all.
    pub(in crate::attachment) fn retract_all(&mut self, list: CallList<'_>, after: &mut Aftermath) {
        for call in list.numbers() {
            match self.batches.place(call) {
                // Nobody else has heard of the batch. The numbers behind this one are no calls' then.
                Some((number, 0)) => self.batches.free(number),
                _ => drop(self.retract(call, after)),
            }
        }
    }

    /// Notes what submitted recvs ask for, as [`asked`](Self::asked) does for one; the keys of a batch come in one list.
    pub(in crate::attachment) fn all_asked(
        &mut self,
        recvs: CallList<'_>,
        (peer, step): (&str, i64),
        after: &mut Aftermath,
    ) {
        if !self.unclaimed.is_empty() {
            // One may be for a recv of these, which needs a slot for that.
            return recvs.iter().for_each(|recv| self.asked(recv.call, (peer, step, recv.key), false, after));
        }
        let mut rest = recvs;
        while let Some(first) = rest.numbers().next() {
            let these;
            let Some((batch, at)) = self.batches.get_mut(first) else {
                (these, rest) = rest.split_at(1);
                these.iter().for_each(|recv| self.asked(recv.call, (peer, step, recv.key), false, after));
                continue;
            };
            debug_assert_eq!(at, 0, "a batch is asked for once");
            (these, rest) = rest.split_at(batch.count as usize);
            let Asked { peer: of, step: at, keys, ends } = &mut batch.asked;
            of.push_str(peer);
            *at = step;
            keys.push_str(these.keys());
            let mut end = 0;
            ends.extend(these.key_lengths().map(|len| {
                end += u32::from(len);
                end
            }));
        }
    }

    /// The consumers have released these sends.
    #[inline]
    pub(in crate::attachment) fn all_sent(
        &mut self,
        segment: u16,
        calls: &[u32],
        after: &mut Aftermath,
    ) -> Result<(), Fault> {
        let mut rest = calls;
        while let Some((first, others)) = rest.split_first() {
            let Some((batch, at)) = self.batches.get_mut(*first) else {
                self.sent(segment, *first, after)?;
                rest = others;
                continue;
            };
            let count = consecutive(rest.iter().copied(), batch.count - at);
            batch.end((segment, Direction::Send), (at, count), &mut self.watched, after)?;
            rest = &rest[count as usize..];
        }
        Ok(())
    }

    /// Small tensors arrived.
    #[inline]
    pub(in crate::attachment) fn all_received(
        &mut self,
        segment: u16,
        arrived: CallList<'_>,
        after: &mut Aftermath,
    ) -> Result<(), Fault> {
        let mut rest = arrived;
        while let Some(first) = rest.numbers().next() {
            let Some((batch, at)) = self.batches.get_mut(first) else {
                let (alone, others) = rest.split_at(1);
                for call in alone.iter() {
                    self.received(segment, call.call, call.meta, Arrived::Inline(call.bytes), after)?;
                }
                rest = others;
                continue;
            };
            let count = consecutive(rest.numbers(), batch.count - at);
            let (these, others) = rest.split_at(count as usize);
            batch.end((segment, Direction::Recv), (at, count), &mut self.watched, after)?;
            batch.arrivals.add(at, [these.data()], these.lengths());
            rest = others;
        }
        Ok(())
    }

    #[inline]
    pub(super) fn take_sent_of_batch(&mut self, calls: &[u32]) -> Option<usize> {
        self.batches.take(calls, Direction::Send, |_, _| ())
    }

    #[inline]
    pub(super) fn take_received_of_batch(&mut self, calls: &[u32], mut each: impl FnMut(RecvOutcome)) {
        let Calls { batches, kinds, .. } = self;
        batches.take(calls, Direction::Recv, |arrivals, at| {
            each(arrivals.tensor(at, kinds).map_err(|error| Unreceived { error, destination: None }));
        });
    }

    #[cold]
    pub(super) fn take_one_received_of_batch(&mut self, call: u32) -> Option<Received> {
        let mut received = None;
        self.take_received_of_batch(&[call], |outcome| received = Some(Received::Outcome(outcome)));
        received
    }

    /// Takes the batches of recvs from a peer apart, of one step or all, for somebody who looks through the slots.
    pub(super) fn take_recvs_apart(&mut self, peer: &str, step: Option<i64>) {
        self.take_apart_if(|batch| batch.is_of(peer, step));
    }

    /// Takes the batches of recvs of a step apart.
    pub(super) fn take_step_apart(&mut self, step: i64) {
        self.take_apart_if(|batch| batch.direction == Some(Direction::Recv) && batch.asked.step == step);
    }

    /// Takes batches apart that futures wait for, and that should have ended before `then`.
    pub(super) fn take_watched_apart(&mut self, then: Tick) {
        self.take_apart_if(|batch| batch.deadline < then && batch.sleepers.iter().any(|sleeper| sleeper.is_watched));
    }

    pub(super) fn take_all_apart(&mut self) {
        self.take_apart_if(|_| true);
    }

    fn take_apart_if(&mut self, concerned: impl Fn(&Batch) -> bool) {
        for number in 0..self.batches.batches.len() {
            let batch = &self.batches.batches[number];
            if batch.direction.is_some() && concerned(batch) {
                self.take_apart(number);
            }
        }
    }

    /// Gives a call of a batch its slot, and the others theirs; `None` if it is none of a batch.
    #[cold]
    pub(super) fn take_apart_for(&mut self, call: u32) -> Option<()> {
        let (number, at) = self.batches.place(call)?;
        let is_taken = self.batches.batches[usize::from(number)].taken & 1 << at != 0;
        self.take_apart(number.into());
        (!is_taken).then_some(())
    }

    fn take_apart(&mut self, number: usize) {
        let Calls { batches: Batches { batches, .. }, slots, kinds, .. } = self;
        let batch = &mut batches[number];
        let Some(direction) = batch.direction.take() else { return };
        for at in (0..batch.count).filter(|at| batch.taken & 1 << at == 0) {
            let slot = &mut slots[(batch.first + at) as usize];
            slot.begin(direction, batch.segment, batch.deadline);
            (slot.generation, slot.of_batch) = (batch.generation, true);
            if let Some(key) = batch.asked.key(at) {
                slot.note((&batch.asked.peer, batch.asked.step, key), false);
            }
            if batch.ended & 1 << at != 0 {
                (slot.daemon, slot.caller) = (Daemon::Done, Caller::Owed);
                match (direction == Direction::Recv).then(|| batch.arrivals.tensor(at, kinds)) {
                    Some(Ok(tensor)) => slot.tensor = Some(tensor),
                    Some(Err(error)) => slot.failure = Some(Box::new(Unreceived { error, destination: None })),
                    None => {}
                }
            }
            batch.apart += 1;
        }
        for Sleeper { at, waker, is_watched } in batch.sleepers.drain(..) {
            let slot = &mut slots[(batch.first + at) as usize];
            (slot.waker, slot.watched) = (Some(waker), is_watched);
        }
    }
}

#[cfg(test)]
mod tests;
