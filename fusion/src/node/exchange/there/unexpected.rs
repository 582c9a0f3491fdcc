//! Small tensors that came before the call that will receive them (the unexpected messages of MPI and UCX), with keys that a call has read in
//! place before: they stay in their frames, and such a call has them as they lie.
//!
//! That holds for as long as nothing else happens in their step. For whatever does they become tensors that [are kept one by
//! one](There::keep_singly).

use std::sync::Arc;

use sealane_runtime::Buffer;
use sealane_transport::Handle;
use sealane_transport::session::{CameAhead, CameTogether, TakenTogether};
use sealane_transport::tensor::Tensor;
use sealane_transport::wire::{self, Fate, WireError};

use super::super::received::ReceivedBatch;
use super::key_lists::KeyList;
use super::{InSession, Kept, There, memory_of};
use crate::limits::{KEPT_AHEAD_BYTES_MAX, POSTED_CALLS_MAX};
use crate::metrics::Operation;
use crate::node::context::Context;
use crate::rendezvous::{MatchKey, RawMatchKey};

/// Those of one step that came for one task from another.
pub(super) struct Unexpected {
    pair: u32,
    step: i64,
    session: Handle,
    keys: Arc<KeyList>,
    /// The tensors, by the numbers of their keys.
    received: ReceivedBatch,
    /// The number whose tensor is expected next.
    next: usize,
    /// What each of their frames is in the session.
    frames: Vec<InSession>,
    /// How many there are, and their bytes.
    came: (u32, usize),
}

impl Unexpected {
    #[inline]
    fn is_of(&self, of: (u32, i64)) -> bool {
        (self.pair, self.step) == of
    }

    /// What it counts while it is kept.
    fn memory(&self) -> usize {
        self.received.memory() + self.frames.iter().map(|frame| frame.cost).sum::<usize>()
    }
}

impl There {
    /// Keeps the first tensors of a frame together, if a call that reads in place may be expected to ask for them.
    pub(super) fn keep_together(
        &mut self,
        session: Handle,
        pair: u32,
        came: &CameTogether<'_>,
    ) -> Option<TakenTogether> {
        let of = (pair, came.step);
        let key = came.records.iter().next()?.ok()?.key;
        let keys = self.posted.lists.read_in_place(key)?.clone();
        let is_it = |other: &Unexpected| other.is_of(of) && Arc::ptr_eq(&other.keys, &keys);
        let index = match self.unexpected.iter().position(is_it) {
            Some(index) => index,
            None => self.expect(session, of, keys)?,
        };
        let Self { unexpected, posted, kept_bytes, .. } = self;
        let Unexpected { session: from, keys, received, next, frames, came: (count, bytes), .. } =
            &mut unexpected[index];
        if *from != session || *kept_bytes + came.records.as_bytes().len() > KEPT_AHEAD_BYTES_MAX {
            return None;
        }
        let expects = |key: &[u8]| {
            let is_next = *next < keys.len() && keys.key(*next).as_bytes() == key;
            let number = if is_next { *next } else { posted.lists.number_of(keys, key)? };
            *next = number + 1;
            Some(number)
        };
        let Some(brought) = received.take(came.records, expects) else {
            if frames.is_empty() {
                *kept_bytes -= unexpected.swap_remove(index).memory();
            }
            return None;
        };
        (*count, *bytes) = (*count + brought.count as u32, *bytes + brought.bytes);
        frames.push(InSession { session, first: came.first, count: brought.count as u32, cost: brought.cost });
        *kept_bytes += brought.cost;
        Some(TakenTogether { count: brought.count as u32, is_all: brought.is_all, kept: Some(brought.cost) })
    }

    /// Room for tensors of a step with these keys, if nothing else waits for them or has them: its place.
    fn expect(&mut self, session: Handle, (pair, step): (u32, i64), keys: Arc<KeyList>) -> Option<usize> {
        let of = (pair, step);
        let is_other = |other: &Unexpected| other.is_of(of) && !other.keys.is_apart_from(&keys);
        let is_alone =
            !self.steps.may_have(of) && !self.posted.may_have(of, &keys) && !self.unexpected.iter().any(is_other);
        if !is_alone || self.unexpected.len() == POSTED_CALLS_MAX {
            return None;
        }
        let (received, frames) = (ReceivedBatch::waiting(keys.len()), Vec::new());
        let unexpected = Unexpected { pair, step, session, keys, received, next: 0, frames, came: (0, 0) };
        self.kept_bytes += unexpected.memory();
        self.unexpected.push(unexpected);
        Some(self.unexpected.len() - 1)
    }

    /// What came for a step before a call of these keys, if that reads in place.
    pub(super) fn take_unexpected(
        &mut self,
        of: (u32, i64),
        keys: &Arc<KeyList>,
        in_place: bool,
        context: &mut Context,
    ) -> Option<ReceivedBatch> {
        let reporter = &mut context.reporter;
        // A trace tells of each tensor.
        let in_place = in_place && reporter.recorder.is_none();
        let is_it = |other: &Unexpected| other.is_of(of) && in_place && Arc::ptr_eq(&other.keys, keys);
        let Some(index) = self.unexpected.iter().position(is_it) else {
            self.keep_those_singly(|other| other.is_of(of) && !other.keys.is_apart_from(keys));
            return None;
        };
        let unexpected = self.unexpected.swap_remove(index);
        self.kept_bytes -= unexpected.memory();
        let Unexpected { session, received, frames, came: (count, bytes), .. } = unexpected;
        self.ended.extend(frames.into_iter().map(|frame| (frame, Fate::Taken)));
        reporter.count_received(count, bytes);
        let (latencies, now) = (&reporter.metrics.latencies, reporter.clock);
        latencies.record_many(Operation::Recv, context.peers.way_of(session), (now, u64::from(count)), now);
        Some(received)
    }

    /// What came for a step is kept one by one from now on.
    #[inline]
    pub(super) fn keep_singly(&mut self, of: (u32, i64)) {
        if !self.unexpected.is_empty() {
            self.keep_those_singly(|other| other.is_of(of));
        }
    }

    /// The same of what came for a pair that `pick` says.
    pub(super) fn keep_singly_for(&mut self, pick: impl Fn(u32) -> bool) {
        self.keep_those_singly(|other| pick(other.pair));
    }

    fn keep_those_singly(&mut self, pick: impl Fn(&Unexpected) -> bool) {
        while let Some(index) = self.unexpected.iter().position(&pick) {
            let unexpected = self.unexpected.swap_remove(index);
            self.kept_bytes -= unexpected.memory();
            let Unexpected { pair, step, session, received, frames, .. } = unexpected;
            for (InSession { first, .. }, records) in frames.into_iter().zip(received.frames()) {
                let mut meta: &[u8] = &[];
                for (number, record) in (first..).zip(records.iter().flatten()) {
                    meta = record.meta.unwrap_or(meta);
                    let at = RawMatchKey { pair, step, key: record.key };
                    let came = CameAhead {
                        number,
                        producer: 0,
                        consumer: 0,
                        step,
                        key: record.key,
                        meta,
                        payload: record.payload,
                    };
                    if let Ok(Some(fate)) = self.keep(session, self.hash(at), at, &came) {
                        let cost = came.cost();
                        self.ended.push((InSession { session, first: number, count: 1, cost }, fate));
                    }
                }
            }
        }
    }

    /// The link of a session is gone: its peer takes back what no recv has taken.
    pub(super) fn forget_unexpected(&mut self, session: Handle) {
        let Self { unexpected, kept_bytes, .. } = self;
        unexpected.retain(|it| {
            let stays = it.session != session;
            *kept_bytes -= if stays { 0 } else { it.memory() };
            stays
        });
    }

    /// Keeps a tensor that came before its recv, if there is room.
    pub(super) fn keep(
        &mut self,
        session: Handle,
        hash: u64,
        at: RawMatchKey<'_>,
        came: &CameAhead<'_>,
    ) -> Result<Option<Fate>, WireError> {
        let cost = came.cost();
        if self.kept_bytes + memory_of(cost) > KEPT_AHEAD_BYTES_MAX {
            return Ok(Some(Fate::Returned));
        }
        let key = wire::text("key", came.key)?;
        let Ok(tensor) = Tensor::from_wire(came.meta, Buffer::copy_of(came.payload)) else {
            return Ok(Some(Fate::Returned));
        };
        self.kept_bytes += memory_of(cost);
        let (_, place) = self.enter(hash, MatchKey { pair: at.pair, step: at.step, key });
        place.kept = Some(Kept { of: InSession { session, first: came.number, count: 1, cost }, tensor });
        place.asked = None;
        Ok(None)
    }

    /// Panics unless nothing else waits under their keys, and their links stand.
    #[cfg(any(test, feature = "fuzzing"))]
    pub(super) fn check_unexpected(&self, is_attached: impl Fn(Handle) -> bool) -> usize {
        for it in &self.unexpected {
            let (of, (count, _)) = ((it.pair, it.step), it.came);
            let mut places = self.of_step(it.pair, it.step).into_iter().filter_map(|handle| self.places.get(handle));
            let is_there = places.any(|place| self.posted.lists.number_of(&it.keys, place.key.as_bytes()).is_some());
            assert!(!is_there && !self.posted.may_have(of, &it.keys), "a recv and its tensor would not meet");
            assert!(is_attached(it.session), "its producer has it back by now");
            assert_eq!(
                it.frames.iter().map(|frame| frame.count).sum::<u32>(),
                count,
                "a tensor would end twice, or never"
            );
            assert_eq!(it.received.frames().count(), it.frames.len(), "a tensor would have another's number");
            assert!(count > 0, "nothing would be kept for long");
        }
        self.unexpected.iter().map(Unexpected::memory).sum()
    }
}
