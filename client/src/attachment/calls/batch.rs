//! The state of small calls that were submitted together. They lend nothing, and mostly all of them end well: then a batch has a bit for
//! each in place of a slot, and what has arrived stays as it came until its caller takes it. When one of them is handled by itself, since
//! it has failed or is given up, the batch is taken apart: its calls are in the slots that their numbers name.

use std::task::Waker;

use sealane_runtime::Buffer;
use sealane_transport::{Error, Tensor, tensor::LastKind};

use super::{
    Aftermath, Direction, INDEX_MASK,
    answers::{Fault, NOT_UNDER_WAY},
    waiting::Watched,
};
use crate::{
    clock::Tick,
    limits::{CALL_INDEX_BITS, CALLS_MAX},
};

/// Most calls of a batch: one for each bit.
pub(super) const BATCH_CALLS: usize = u64::BITS as usize;
/// Fewer have slots from the beginning.
pub(super) const BATCH_CALLS_MIN: usize = 8;
/// For slots that belong to no batch.
pub(super) const NO_BATCH: u16 = u16::MAX;

/// Numbers for batches, which take those of 64 calls until their last call is over: half of all, so that few calls of many lists do not
/// keep single calls out.
pub(super) const BATCHED_CALLS_MAX: usize = CALLS_MAX / 2;
/// What a batch without calls keeps for the next ones of keys, and of what has arrived: enough for usual ones.
const KEPT_BYTES_MAX: usize = 16 << 10;

const _: () = assert!(BATCHED_CALLS_MAX / BATCH_CALLS < NO_BATCH as usize);

/// All batches. Each has [`BATCH_CALLS`] slots, which are used when it is taken apart.
#[derive(Default)]
pub(super) struct Batches {
    pub(super) batches: Vec<Batch>,
    /// Whose each group of [`BATCH_CALLS`] slots is.
    pub(super) of_slots: Vec<u16>,
    /// Batches without calls.
    pub(super) idle: Vec<u16>,
}

pub(super) struct Batch {
    pub(super) generation: u32,
    /// The index of its first slot.
    pub(super) first: u32,
    /// `None` while it has no calls, and once it was taken apart.
    pub(super) direction: Option<Direction>,
    pub(super) segment: u16,
    pub(super) count: u32,
    pub(super) deadline: Tick,
    /// Calls that have ended well, and among them those whose callers know.
    pub(super) ended: u64,
    pub(super) taken: u64,
    pub(super) sleepers: Vec<Sleeper>,
    pub(super) asked: Asked,
    pub(super) arrivals: Arrivals,
    /// If it was taken apart: how many of its calls have slots.
    pub(super) apart: u32,
}

/// Who sleeps for a call until its end.
pub(super) struct Sleeper {
    pub(super) at: u32,
    pub(super) waker: Waker,
    pub(super) is_watched: bool,
}

/// What the recvs of a batch ask for.
#[derive(Default)]
pub(super) struct Asked {
    pub(super) peer: String,
    pub(super) step: i64,
    pub(super) keys: String,
    /// Where each key ends.
    pub(super) ends: Vec<u32>,
}

/// Tensors as they came.
#[derive(Default)]
pub(super) struct Arrivals {
    pub(super) data: Vec<u8>,
    /// By call: where its tensor begins, and the lengths of metadata and bytes.
    pub(super) places: Vec<(u32, u16, u16)>,
}

impl Arrivals {
    /// Adds tensors of the calls from `at` on: metadata and bytes of each behind those of the one before, and the lengths of both.
    #[inline]
    pub(super) fn add<const PARTS: usize>(
        &mut self,
        at: u32,
        parts: [&[u8]; PARTS],
        lengths: impl ExactSizeIterator<Item = (u16, u16)>,
    ) {
        let Arrivals { data, places } = self;
        let mut start = data.len() as u32;
        parts.iter().for_each(|part| data.extend_from_slice(part));
        let last = at as usize + lengths.len();
        if places.len() < last {
            places.resize(last, (0, 0, 0));
        }
        for (place, (meta, bytes)) in places[at as usize..].iter_mut().zip(lengths) {
            *place = (start, meta, bytes);
            start += u32::from(meta) + u32::from(bytes);
        }
    }

    pub(super) fn tensor(&self, at: u32, kinds: &mut LastKind) -> Result<Tensor, Error> {
        let (start, meta_bytes, bytes) = self.places[at as usize];
        let (meta, rest) = self.data[start as usize..].split_at(meta_bytes.into());
        kinds.tensor(meta, Buffer::copy_of(&rest[..bytes.into()]))
    }
}

impl Asked {
    pub(super) fn key(&self, at: u32) -> Option<&str> {
        let end = *self.ends.get(at as usize)? as usize;
        let start = at.checked_sub(1).map_or(0, |before| self.ends[before as usize] as usize);
        Some(&self.keys[start..end])
    }
}

impl Batch {
    pub(super) fn new(first: u32) -> Batch {
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

    pub(super) fn is_of(&self, peer: &str, step: Option<i64>) -> bool {
        self.direction == Some(Direction::Recv)
            && self.asked.peer == peer
            && step.is_none_or(|step| self.asked.step == step)
    }

    #[inline]
    fn all(&self) -> u64 {
        bits(0, self.count)
    }

    /// Notes that `count` calls from `at` on have ended; a fault if they are of another segment or direction, or one of them had before.
    #[inline]
    pub(super) fn end(
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
    pub(super) fn place(&self, call: u32) -> Option<(u16, u32)> {
        let index = call & INDEX_MASK;
        let number = *self.of_slots.get(index as usize / BATCH_CALLS)?;
        let batch = self.batches.get(usize::from(number))?;
        let at = index % BATCH_CALLS as u32;
        let is_whole = batch.direction.is_some() && batch.generation == call >> CALL_INDEX_BITS && at < batch.count;
        is_whole.then_some((number, at))
    }

    #[inline]
    pub(super) fn get(&self, call: u32) -> Option<(&Batch, u32)> {
        self.place(call).map(|(number, at)| (&self.batches[usize::from(number)], at))
    }

    #[inline]
    pub(super) fn get_mut(&mut self, call: u32) -> Option<(&mut Batch, u32)> {
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

    /// True if the call is of a batch and has not ended.
    pub(super) fn is_open(&self, call: u32) -> bool {
        self.get(call).is_some_and(|(batch, at)| batch.ended & 1 << at == 0)
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

    /// The callers learn how the first of these calls of that direction ended, as far as they follow each other in one batch and have;
    /// `each` is called with the place of each. Returns how many; `None` if there are none. Frees the batch after its last.
    #[inline]
    pub(super) fn take(
        &mut self,
        calls: &[u32],
        direction: Direction,
        mut each: impl FnMut(&Arrivals, u32),
    ) -> Option<usize> {
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

    pub(super) fn free(&mut self, number: u16) {
        let batch = &mut self.batches[usize::from(number)];
        let Batch { asked: Asked { peer, keys, ends, .. }, arrivals: Arrivals { data, places }, .. } = batch;
        peer.clear();
        keys.clear();
        keys.shrink_to(KEPT_BYTES_MAX);
        ends.clear();
        data.clear();
        data.shrink_to(KEPT_BYTES_MAX);
        places.clear();
        batch.direction = None;
        batch.generation = (batch.generation + 1) & (u32::MAX >> CALL_INDEX_BITS);
        self.idle.push(number);
    }

    /// Calls on a shard that the daemon has not answered and that have no slots.
    pub(super) fn open_on(&self, segment: u16) -> usize {
        let there = self.batches.iter().filter(|batch| batch.direction.is_some() && batch.segment == segment);
        there.map(|batch| (batch.count - batch.ended.count_ones()) as usize).sum()
    }

    /// Calls in progress that have no slots.
    #[cfg(any(test, feature = "fuzzing"))]
    pub(super) fn under_way(&self) -> usize {
        let whole = self.batches.iter().filter(|batch| batch.direction.is_some());
        whole.map(|batch| (batch.count - batch.taken.count_ones()) as usize).sum()
    }
}

/// How many numbers follow each other from the first on, at most so many.
#[inline]
pub(super) fn consecutive(numbers: impl Iterator<Item = u32>, at_most: u32) -> u32 {
    let mut numbers = numbers.take(at_most as usize).peekable();
    let first = numbers.peek().copied().unwrap_or_default();
    (first..).zip(numbers).take_while(|(expected, number)| expected == number).count() as u32
}

/// So many bits, at least one, from that one on.
#[inline]
fn bits(at: u32, count: u32) -> u64 {
    (u64::MAX >> (BATCH_CALLS as u32 - count)) << at
}
