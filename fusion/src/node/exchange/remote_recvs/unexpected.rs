//! Small tensors that came before the call that will receive them (the unexpected messages of MPI and UCX), with keys that an earlier call
//! has read in place: they stay in their frames, and the call reads them there.
//!
//! If one of them needs any other treatment, all that came for its call are [split up](RemoteRecvs::split_up) into tensors that are kept
//! one by one.

use std::sync::Arc;

use sealane_runtime::Buffer;
use sealane_transport::Handle;
use sealane_transport::session::{CameTogether, TakenTogether, ahead_cost};
use sealane_transport::tensor::{Tensor, TensorMeta};
use sealane_transport::wire::{self, AheadRecords, Fate, WireError};

use super::super::received::ReceivedBatch;
use super::key_lists::KeyList;
use super::{AheadRange, Kept, RemoteRecvs, find, hash, memory_of};
use crate::limits::{KEPT_AHEAD_BYTES_MAX, UNEXPECTED_CALLS_MAX};
use crate::metrics::Operation;
use crate::node::context::Context;
use crate::rendezvous::{MatchKey, RawMatchKey};

/// The early tensors of one future call.
pub(super) struct Unexpected {
    pair: u32,
    step: i64,
    session: Handle,
    keys: Arc<KeyList>,
    /// The tensors, by the indices of their keys.
    received: ReceivedBatch,
    /// The index of the key that is expected next.
    next: usize,
    /// The range of each of their frames in the session.
    pub(super) frames: Vec<AheadRange>,
    /// How many tensors there are, and their bytes.
    came: (u32, usize),
}

impl Unexpected {
    #[inline]
    fn is_of(&self, of: (u32, i64)) -> bool {
        (self.pair, self.step) == of
    }

    /// What they count towards `kept_bytes`.
    fn memory(&self) -> usize {
        self.received.memory() + self.frames.iter().map(|frame| memory_of_frame(frame.cost)).sum::<usize>()
    }
}

/// Memory of a frame whose tensors cost `cost` of their session's credit.
fn memory_of_frame(cost: usize) -> usize {
    cost + ReceivedBatch::FRAME_BYTES + size_of::<AheadRange>()
}

impl RemoteRecvs {
    /// Keeps the first tensors of a frame together, if a call that reads in place is likely to ask for them.
    pub(super) fn keep_together(
        &mut self,
        session: Handle,
        pair: u32,
        came: &CameTogether<'_>,
    ) -> Option<TakenTogether> {
        if self.kept_bytes + came.records.as_bytes().len() > KEPT_AHEAD_BYTES_MAX {
            return None;
        }
        let (of, first) = ((pair, came.step), came.records.iter().next()?.ok()?);
        let keys = self.posted.lists.read_in_place(first.key)?.clone();
        let is_it = |other: &Unexpected| other.is_of(of) && Arc::ptr_eq(&other.keys, &keys);
        let index = match self.unexpected.iter().position(is_it) {
            Some(index) => index,
            None => self.open_unexpected(session, of, keys, came.records)?,
        };
        let is_crowded = self.steps.may_have(of);
        let Self { unexpected, posted, kept_bytes, entries, index: names, hasher, .. } = self;
        let Unexpected { session: from, keys, received, next, frames, came: (count, bytes), .. } =
            &mut unexpected[index];
        if *from != session {
            return None;
        }
        let expects = |key: &[u8]| {
            let is_next = *next < keys.len() && keys.key(*next).as_bytes() == key;
            let number = if is_next { *next } else { posted.lists.number_of(keys, key)? };
            let at = RawMatchKey { pair, step: came.step, key };
            if is_crowded && find(names, entries, hash(hasher, at), at).is_some() {
                return None;
            }
            *next = number + 1;
            Some(number)
        };
        let brought = received.take(came.records, expects)?;
        (*count, *bytes) = (*count + brought.count as u32, *bytes + brought.bytes);
        frames.push(AheadRange { session, first: came.first, count: brought.count as u32, cost: brought.cost });
        *kept_bytes += memory_of_frame(brought.cost);
        Some(TakenTogether { count: brought.count as u32, is_all: brought.is_all, kept: Some(brought.cost) })
    }

    /// Makes room for tensors of a step with these keys, the first of which has come, unless a call already waits for them or is to have
    /// them; returns its index.
    fn open_unexpected(
        &mut self,
        session: Handle,
        (pair, step): (u32, i64),
        keys: Arc<KeyList>,
        records: AheadRecords<'_>,
    ) -> Option<usize> {
        let of = (pair, step);
        let is_other = |other: &Unexpected| other.is_of(of) && !other.keys.is_known_disjoint_from(&keys);
        let is_full = self.unexpected.len() == UNEXPECTED_CALLS_MAX;
        if is_full || self.posted.may_have(of, &keys) || self.unexpected.iter().any(is_other) {
            return None;
        }
        // If the first tensor were then not kept, the room would take memory that its session's credit does not cover, so check it first.
        let first = records.iter().next()?.ok()?;
        let at = RawMatchKey { pair, step, key: first.key };
        let meta = TensorMeta::from_wire(first.meta?).ok()?;
        if meta.check_bytes(first.payload.len() as u64).is_err()
            || (self.steps.may_have(of) && self.find(self.hash(at), at).is_some())
        {
            return None;
        }
        let (received, frames) = (ReceivedBatch::waiting(keys.len()), Vec::new());
        let unexpected = Unexpected { pair, step, session, keys, received, next: 0, frames, came: (0, 0) };
        self.kept_bytes += unexpected.memory();
        self.unexpected.push(unexpected);
        Some(self.unexpected.len() - 1)
    }

    /// What came for a step before a call with these keys, if the call reads in place.
    pub(super) fn take_unexpected(
        &mut self,
        of: (u32, i64),
        keys: &Arc<KeyList>,
        in_place: bool,
        context: &mut Context,
    ) -> Option<ReceivedBatch> {
        let reporter = &mut context.reporter;
        // A trace names each tensor.
        let in_place = in_place && reporter.recorder.is_none();
        let is_it = |other: &Unexpected| other.is_of(of) && in_place && Arc::ptr_eq(&other.keys, keys);
        let Some(index) = self.unexpected.iter().position(is_it) else {
            self.split_up_those(|other| other.is_of(of) && !other.keys.is_known_disjoint_from(keys));
            return None;
        };
        let unexpected = self.unexpected.remove(index);
        self.kept_bytes -= unexpected.memory();
        let Unexpected { session, received, frames, came: (count, bytes), .. } = unexpected;
        self.to_release.extend(frames.into_iter().map(|frame| (frame, Fate::Taken)));
        reporter.count_received(count, bytes);
        let (latencies, now) = (&reporter.metrics.latencies, reporter.clock);
        latencies.record_many(Operation::Recv, context.peers.way_of(session), (now, u64::from(count)), now);
        Some(received)
    }

    /// If this tensor came together with others, they are kept one by one from now on.
    #[inline]
    pub(super) fn split_up(&mut self, at: RawMatchKey<'_>) {
        let lists = &self.posted.lists;
        let has = |it: &Unexpected| {
            let number = if it.is_of((at.pair, at.step)) { lists.number_of(&it.keys, at.key) } else { None };
            number.is_some_and(|number| !it.received.waits(number))
        };
        if let Some(index) = self.unexpected.iter().position(has) {
            self.split_up_at(index);
        }
    }

    /// Splits up all that came for a step.
    pub(super) fn split_up_step(&mut self, of: (u32, i64)) {
        self.split_up_those(|other| other.is_of(of));
    }

    /// Splits up all that came for the pairs that `pick` chooses.
    pub(super) fn split_up_pairs(&mut self, pick: impl Fn(u32) -> bool) {
        self.split_up_those(|other| pick(other.pair));
    }

    fn split_up_those(&mut self, pick: impl Fn(&Unexpected) -> bool) {
        while let Some(index) = self.unexpected.iter().position(&pick) {
            self.split_up_at(index);
        }
    }

    #[cold]
    fn split_up_at(&mut self, index: usize) {
        let unexpected = self.unexpected.remove(index);
        self.kept_bytes -= unexpected.memory();
        let Unexpected { pair, step, session, received, frames, .. } = unexpected;
        for (AheadRange { first, .. }, records) in frames.into_iter().zip(received.frames()) {
            let mut meta: &[u8] = &[];
            for (number, record) in (first..).zip(records.iter().flatten()) {
                meta = record.meta.unwrap_or(meta);
                let at = RawMatchKey { pair, step, key: record.key };
                let cost = ahead_cost(record.key, meta, record.payload);
                let range = AheadRange { session, first: number, count: 1, cost };
                // Its key comes from a list, and so is valid UTF-8.
                let kept = self.keep(self.hash(at), at, range, (meta, record.payload));
                if let Some(fate) = kept.unwrap_or(Some(Fate::Returned)) {
                    self.to_release.push((range, fate));
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
    ///
    /// # Errors
    /// Its key is not valid UTF-8.
    pub(super) fn keep(
        &mut self,
        hash: u64,
        at: RawMatchKey<'_>,
        range: AheadRange,
        (meta, payload): (&[u8], &[u8]),
    ) -> Result<Option<Fate>, WireError> {
        let memory = memory_of(range.cost);
        if self.kept_bytes + memory > KEPT_AHEAD_BYTES_MAX {
            return Ok(Some(Fate::Returned));
        }
        let key = wire::text("key", at.key)?;
        let Ok(tensor) = Tensor::from_wire(meta, Buffer::copy_of(payload)) else {
            return Ok(Some(Fate::Returned));
        };
        self.kept_bytes += memory;
        let (_, entry) = self.enter(hash, MatchKey { pair: at.pair, step: at.step, key });
        entry.kept = Some(Kept { range, tensor });
        entry.request = None;
        Ok(None)
    }

    /// Panics unless nothing else waits or lies under their keys, and their links are up; returns what they count.
    #[cfg(any(test, feature = "fuzzing"))]
    pub(super) fn check_unexpected(&self, is_attached: impl Fn(Handle) -> bool) -> usize {
        for it in &self.unexpected {
            let (of, (count, _)) = ((it.pair, it.step), it.came);
            let entries = self.of_step(it.pair, it.step);
            let mut entries = entries.iter().filter_map(|handle| self.entries.get(*handle));
            let is_twice = entries.any(|entry| {
                let number = self.posted.lists.number_of(&it.keys, entry.key.as_bytes());
                number.is_some_and(|number| !it.received.waits(number))
            });
            assert!(!is_twice && !self.posted.may_have(of, &it.keys), "a recv and its tensor would not meet");
            assert!(is_attached(it.session), "its producer has it back by now");
            let ranges: u32 = it.frames.iter().map(|frame| frame.count).sum();
            let lie = (0..it.received.len()).filter(|&number| !it.received.waits(number)).count();
            assert_eq!((ranges, lie), (count, count as usize), "a tensor would end twice, or never");
            let others = self.unexpected.iter().filter(|other| other.is_of(of) && !Arc::ptr_eq(&other.keys, &it.keys));
            let is_apart = others.map(|other| it.keys.is_known_disjoint_from(&other.keys));
            assert!(is_apart.into_iter().all(|is_apart| is_apart), "two calls would have one tensor");
            assert_eq!(it.received.frames().count(), it.frames.len(), "a tensor would have another's number");
            assert!(count > 0, "nothing would be kept for long");
        }
        self.unexpected.iter().map(Unexpected::memory).sum()
    }
}
