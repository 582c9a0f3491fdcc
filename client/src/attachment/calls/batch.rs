//! Small calls that were submitted together. They lend nothing, and mostly all of them end well: then a batch has a bit for each in place
//! of a [slot](Slot), and what has arrived stays as it came until its caller takes it. Where one of them is handled by itself (it fails,
//! or cancelled), the batch is taken apart, and its calls are in the slots that their numbers name.

use std::ops::Range;

use sealane_runtime::Buffer;
use sealane_transport::{
    Error, Tensor,
    shm::{CallList, CallListBuf},
    tensor::LastKind,
};

use super::{
    Aftermath, Calls, Direction, INDEX_MASK, Memory, Received, RecvOutcome, Tick, Unreceived, Waker, Watched,
    answers::{Fault, NOT_UNDER_WAY},
    slot::{Caller, Daemon, NO_CALL, Slot},
};
use crate::limits::{CALL_INDEX_BITS, CALLS_MAX};

/// Most calls of a batch: one for each bit.
pub(super) const BATCH_CALLS: usize = u64::BITS as usize;
/// Fewer have slots from the beginning.
const BATCH_CALLS_MIN: usize = 8;
/// For slots that belong to no batch.
const NO_BATCH: u16 = u16::MAX;

const _: () = assert!(CALLS_MAX / BATCH_CALLS < NO_BATCH as usize);

/// All batches. Each has as many slots, which are used when it is taken apart.
#[derive(Default)]
pub(super) struct Batches {
    batches: Vec<Batch>,
    /// The batch that has so many slots from here on.
    of_slots: Vec<u16>,
    /// Batches without calls.
    idle: Vec<u16>,
}

struct Batch {
    generation: u32,
    /// The index of its first slot.
    first: u32,
    /// `None` while it has no calls, and once it was taken apart.
    direction: Option<Direction>,
    segment: u16,
    count: u32,
    deadline: Tick,
    /// Calls that have ended well, and among them those whose callers know.
    ended: u64,
    taken: u64,
    sleepers: Vec<Sleeper>,
    asked: Asked,
    arrivals: Arrivals,
    /// If it was taken apart: how many of its calls have slots.
    apart: u32,
}

/// Who sleeps for a call until its end.
struct Sleeper {
    at: u32,
    waker: Waker,
    is_watched: bool,
}

/// What the recvs of a batch ask for.
#[derive(Default)]
struct Asked {
    peer: String,
    step: i64,
    keys: String,
    /// Where each key ends.
    ends: Vec<u32>,
}

/// Tensors as they came.
#[derive(Default)]
struct Arrivals {
    data: Vec<u8>,
    /// By call: where its tensor begins, and the lengths of metadata and bytes.
    places: Vec<(u32, u16, u16)>,
}

impl Arrivals {
    fn tensor(&self, at: u32, kinds: &mut LastKind) -> Result<Tensor, Error> {
        let (start, meta_bytes, bytes) = self.places[at as usize];
        let (meta, rest) = self.data[start as usize..].split_at(meta_bytes.into());
        kinds.tensor(meta, Buffer::copy_of(&rest[..bytes.into()]))
    }
}

impl Asked {
    fn key(&self, at: u32) -> Option<&str> {
        let end = *self.ends.get(at as usize)? as usize;
        let start = at.checked_sub(1).map_or(0, |before| self.ends[before as usize] as usize);
        Some(&self.keys[start..end])
    }
}

impl Batch {
    fn new(first: u32) -> Batch {
        Batch {
            generation: 0,
            first,
            direction: None,
            segment: 0,
            count: 0,
            deadline: Tick::NEVER,
            ended: 0,
            taken: 0,
            sleepers: Vec::new(),
            asked: Asked::default(),
            arrivals: Arrivals::default(),
            apart: 0,
        }
    }

    fn is_of(&self, peer: &str, step: Option<i64>) -> bool {
        self.direction == Some(Direction::Recv)
            && self.asked.peer == peer
            && step.is_none_or(|step| self.asked.step == step)
    }

    #[inline]
    fn all(&self) -> u64 {
        bits(0, self.count)
    }

    /// Notes that `count` calls from `at` on have ended; a fault if they are of another direction, or one of them had before.
    #[inline]
    fn end(
        &mut self,
        (segment, direction): (u16, Direction),
        (at, count): (u32, u32),
        watched: &mut Watched,
        after: &mut Aftermath,
    ) -> Result<(), Fault> {
        let these = bits(at, count);
        if self.ended & these != 0 || (self.segment, self.direction) != (segment, Some(direction)) {
            return Err(NOT_UNDER_WAY);
        }
        self.ended |= these;
        if !self.sleepers.is_empty() {
            let woken = self.sleepers.extract_if(.., |sleeper| these & 1 << sleeper.at != 0);
            after.wakers.extend(woken.map(|sleeper| {
                watched.changes(direction, sleeper.is_watched, false);
                sleeper.waker
            }));
        }
        Ok(())
    }
}

impl Batches {
    /// Calls that find place in batches without calls.
    pub(super) fn room(&self) -> usize {
        self.idle.len() * BATCH_CALLS
    }

    /// The batch of a call, unless that has a slot, and the call's place in it.
    #[inline]
    fn place(&self, call: u32) -> Option<(u16, u32)> {
        let index = call & INDEX_MASK;
        let number = *self.of_slots.get(index as usize / BATCH_CALLS)?;
        let batch = self.batches.get(usize::from(number))?;
        let at = index % BATCH_CALLS as u32;
        let is_whole = batch.direction.is_some() && batch.generation == call >> CALL_INDEX_BITS && at < batch.count;
        is_whole.then_some((number, at))
    }

    #[inline]
    fn get(&self, call: u32) -> Option<(&Batch, u32)> {
        self.place(call).map(|(number, at)| (&self.batches[usize::from(number)], at))
    }

    #[inline]
    fn get_mut(&mut self, call: u32) -> Option<(&mut Batch, u32)> {
        self.place(call).map(|(number, at)| (&mut self.batches[usize::from(number)], at))
    }

    /// The direction of a batch's call, and its deadline.
    pub(super) fn about(&self, call: u32) -> Option<(Direction, Tick)> {
        self.get(call).and_then(|(batch, _)| Some((batch.direction?, batch.deadline)))
    }

    #[inline]
    pub(super) fn is_owed(&self, call: u32) -> bool {
        self.get(call).is_some_and(|(batch, at)| batch.ended & !batch.taken & 1 << at != 0)
    }

    /// Notes who sleeps for a call; false if the call has a slot.
    pub(super) fn wake_at_end(
        &mut self,
        call: u32,
        (waker, is_watched): (&Waker, bool),
        watched: &mut Watched,
        after: &mut Aftermath,
    ) -> bool {
        let Some((batch, at)) = self.get_mut(call) else { return false };
        let Some(direction) = batch.direction.filter(|_| batch.ended & 1 << at == 0) else { return true };
        match batch.sleepers.iter_mut().find(|sleeper| sleeper.at == at) {
            Some(sleeper) => {
                watched.changes(direction, sleeper.is_watched, is_watched);
                sleeper.is_watched = is_watched;
                // As for a slot.
                if !sleeper.waker.will_wake(waker) {
                    after.wakers.push(std::mem::replace(&mut sleeper.waker, waker.clone()));
                }
            }
            None => {
                watched.changes(direction, false, is_watched);
                batch.sleepers.push(Sleeper { at, waker: waker.clone(), is_watched });
            }
        }
        true
    }

    /// Nobody sleeps for the call any more, which no future waits for; false if it has a slot.
    pub(super) fn wake_nobody(&mut self, call: u32) -> bool {
        let Some((batch, at)) = self.get_mut(call) else { return false };
        batch.sleepers.retain(|sleeper| sleeper.at != at || sleeper.is_watched);
        true
    }

    /// The callers learn how the first of these calls of that direction ended, as far as they follow each other in one batch and have ended;
    /// `each` is called with the place of each. Returns how many; `None` if there are none. Frees the batch after its last.
    #[inline]
    fn take(&mut self, calls: &[u32], direction: Direction, mut each: impl FnMut(&Arrivals, u32)) -> Option<usize> {
        let (number, at) = self.place(*calls.first()?)?;
        let batch = &mut self.batches[usize::from(number)];
        if batch.direction != Some(direction) {
            return None;
        }
        let ended = (batch.ended & !batch.taken).wrapping_shr(at).trailing_ones();
        let count = consecutive(calls.iter().copied(), ended);
        if count == 0 {
            return None;
        }
        batch.taken |= bits(at, count);
        (at..at + count).for_each(|at| each(&batch.arrivals, at));
        if batch.taken == batch.all() {
            self.free(number);
        }
        Some(count as usize)
    }

    /// Notes that a slot of a batch that was taken apart is free.
    pub(super) fn has_left(&mut self, index: u32) {
        let number = self.of_slots[index as usize / BATCH_CALLS];
        let batch = &mut self.batches[usize::from(number)];
        batch.apart -= 1;
        if batch.apart == 0 {
            self.free(number);
        }
    }

    fn free(&mut self, number: u16) {
        let batch = &mut self.batches[usize::from(number)];
        let Batch { asked: Asked { peer, keys, ends, .. }, arrivals: Arrivals { data, places }, .. } = batch;
        peer.clear();
        keys.clear();
        ends.clear();
        data.clear();
        places.clear();
        batch.direction = None;
        batch.generation = (batch.generation + 1) & (u32::MAX >> CALL_INDEX_BITS);
        self.idle.push(number);
    }

    /// Calls in progress that have no slots.
    #[cfg(any(test, feature = "fuzzing"))]
    pub(super) fn under_way(&self) -> usize {
        let whole = self.batches.iter().filter(|batch| batch.direction.is_some());
        whole.map(|batch| (batch.count - batch.taken.count_ones()) as usize).sum()
    }
}

impl Calls {
    /// Enters calls that lend nothing, and numbers them. There is [room](Self::have_room_for) for them.
    pub(in crate::attachment) fn open_all(
        &mut self,
        calls: &mut CallListBuf,
        direction: Direction,
        segment: u16,
        deadline: Tick,
    ) {
        let (mut left, mut batch) = (calls.as_list().len(), 0..0);
        calls.number(|| {
            if batch.is_empty() {
                batch = self.open_batch(direction, segment, deadline, left).unwrap_or_default();
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
        if first + BATCH_CALLS > CALLS_MAX {
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

    /// Slots for single calls, if all others are taken: those of a batch without calls.
    pub(super) fn give_up_batch(&mut self) -> Option<u32> {
        let number = self.batches.idle.pop()?;
        let Batch { first, generation, .. } = self.batches.batches[usize::from(number)];
        self.batches.of_slots[first as usize / BATCH_CALLS] = NO_BATCH;
        let given = first..first + BATCH_CALLS as u32;
        given.clone().for_each(|index| self.slots[index as usize].generation = generation);
        self.vacant.extend(given);
        self.vacant.pop()
    }

    /// Notes what submitted recvs ask for, as [`asked`](Self::asked) does for one; the keys of a batch come in one list.
    pub(in crate::attachment) fn all_asked(
        &mut self,
        recvs: CallList<'_>,
        (peer, step): (&str, i64),
        after: &mut Aftermath,
    ) {
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
                    self.received(segment, call.call, call.meta, super::Arrived::Inline(call.bytes), after)?;
                }
                rest = others;
                continue;
            };
            let count = consecutive(rest.numbers(), batch.count - at);
            let (these, others) = rest.split_at(count as usize);
            batch.end((segment, Direction::Recv), (at, count), &mut self.watched, after)?;
            let Arrivals { data, places } = &mut batch.arrivals;
            let mut start = data.len() as u32;
            data.extend_from_slice(these.data());
            let last = (at + count) as usize;
            if places.len() < last {
                places.resize(last, (0, 0, 0));
            }
            for (place, (meta, bytes)) in places[at as usize..].iter_mut().zip(these.lengths()) {
                *place = (start, meta, bytes);
                start += u32::from(meta) + u32::from(bytes);
            }
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

/// How many numbers follow each other from the first on, at most so many.
#[inline]
fn consecutive(numbers: impl Iterator<Item = u32>, at_most: u32) -> u32 {
    let mut numbers = numbers.take(at_most as usize).peekable();
    let first = numbers.peek().copied().unwrap_or_default();
    (first..).zip(numbers).take_while(|(expected, number)| expected == number).count() as u32
}

/// So many bits, at least one, from that one on.
#[inline]
fn bits(at: u32, count: u32) -> u64 {
    (u64::MAX >> (BATCH_CALLS as u32 - count)) << at
}

#[cfg(test)]
mod tests;
