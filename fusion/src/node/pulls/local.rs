//! Pulls whose producer is a task of the same node: copied from the store in batches, one a turn, or shared.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;

use sealane_runtime::{Buffer, DeviceError, Sweep};
use sealane_transport::pull_buffer::{Stored, StoredBytes};
use sealane_transport::session::{ReceiveMemory, Store, Wait};
use sealane_transport::trace::Moment;
use sealane_transport::{Error, Handle, Payload, PullBuffer, TensorMeta};

use super::store::PublishedStore;
use super::watchers::Watcher;
use super::{At, Pulls, UnderWay};
use crate::limits::{COPY_AT_ONCE_BYTES, COPY_BATCH_BYTES, COPY_BUDGET_BYTES, LOOK_COST_BYTES, VIEW_COST_BYTES};
use crate::metrics::{Operation, Way};
use crate::node::PullWaiter;
use crate::node::context::{Context, draining};
use crate::node::copying::copy_in_pieces;
use crate::node::memory::Memory;
use crate::node::reporter::Reporter;

/// A pull from this node's store; see the module.
pub(super) struct LocalPull {
    slots: Arc<[u32]>,
    wish: Wish,
    since: Instant,
    pub(super) deadline: Instant,
    pull_buffer: PullBuffer,
    /// Indices to look at, as ranges: first and count.
    ready: VecDeque<(u32, u32)>,
    copy: Option<PartCopy>,
    queued: bool,
}

/// A pull's consumer and options.
#[derive(Debug, Clone, Copy)]
pub(super) struct Wish {
    pub(super) consumer: u16,
    pub(super) min_version: i64,
    /// See [`PullRequest::views`](super::PullRequest::views).
    pub(super) views: bool,
    pub(super) fail_if_gone: bool,
}

/// A large tensor that is half copied.
struct PartCopy {
    index: usize,
    version: i64,
    stamp: u64,
    meta: TensorMeta,
    from: Payload,
    to: Buffer,
    filled: usize,
}

impl LocalPull {
    pub(super) fn new(
        slots: Arc<[u32]>,
        wish: Wish,
        since: Instant,
        deadline: Instant,
        pull_buffer: PullBuffer,
    ) -> Self {
        let ready = VecDeque::from([(0, slots.len() as u32)]);
        Self { slots, wish, since, deadline, pull_buffer, ready, copy: None, queued: false }
    }

    pub(super) fn into_pull_buffer(self) -> PullBuffer {
        self.pull_buffer
    }

    /// Copies about `budget` more bytes; returns how many. What the pull must wait for goes into `watchers`.
    fn advance(
        &mut self,
        (handle, budget): (Handle, usize),
        store: &PublishedStore,
        (memory, reporter): (&Memory, &mut Reporter),
        watchers: &mut Vec<Watcher>,
    ) -> usize {
        let mut copied = 0;
        while copied < budget {
            if let Some(copy) = &mut self.copy {
                let advanced = copy.advance(budget - copied);
                if advanced.is_err() || copy.filled == copy.from.len() {
                    let PartCopy { index, version, stamp, meta, to, .. } = self.copy.take().expect("just looked at");
                    match &advanced {
                        Ok(_) => self.pull_buffer.fill(index, stamp, meta, version, to),
                        Err(error) => self.pull_buffer.fail_with(index, to, error.clone().into()),
                    }
                }
                copied += advanced.unwrap_or(0);
                continue;
            }
            let Some((first, count)) = self.ready.front_mut() else { break };
            if *count == 0 {
                self.ready.pop_front();
                continue;
            }
            let index = *first as usize;
            (*first, *count) = (*first + 1, *count - 1);
            let slot = self.slots[index];
            let Some(published) = store.look(slot).filter(|published| published.version >= self.wish.min_version)
            else {
                let (Wish { min_version, fail_if_gone, .. }, index) = (self.wish, index as u32);
                let wait = Wait { slot, min_version, pull: handle, index, fail_if_gone };
                watchers.push(Watcher { session: None, wait });
                copied += LOOK_COST_BYTES;
                continue;
            };
            copied += self.begin_copy(index, &published, memory, reporter).max(LOOK_COST_BYTES);
        }
        copied
    }

    /// Copies a small tensor, begins to copy a large one, or shares it; returns the bytes copied.
    #[inline]
    fn begin_copy(&mut self, index: usize, published: &Stored<'_>, memory: &Memory, reporter: &mut Reporter) -> usize {
        debug_assert!(self.copy.is_none(), "the tensor that is half copied would be forgotten");
        let (bytes, Wish { consumer, views, .. }) = (published.bytes.len(), self.wish);
        let allocate = |len| memory.allocate_to_stay(consumer, len);
        let payload = match published.bytes {
            StoredBytes::Payload(payload) if views && memory.shares_with(consumer, payload) => {
                let meta = TensorMeta::from_own_wire(published.meta.into());
                self.pull_buffer.fill(index, published.stamp, meta, published.version, payload.share());
                reporter.count_received(1, bytes);
                return VIEW_COST_BYTES;
            }
            StoredBytes::Payload(payload) if bytes > COPY_AT_ONCE_BYTES || payload.host_bytes().is_none() => payload,
            StoredBytes::Packed(_) | StoredBytes::Payload(_) => {
                self.pull_buffer.copy_in(index, published, allocate);
                reporter.count_received(1, bytes);
                return bytes;
            }
        };
        match self.pull_buffer.lend(index, bytes, allocate) {
            Ok(to) => {
                let meta = TensorMeta::from_own_wire(published.meta.into());
                let (version, stamp, from) = (published.version, published.stamp, payload.share());
                self.copy = Some(PartCopy { index, version, stamp, meta, from, to, filled: 0 });
                reporter.count_received(1, bytes);
            }
            Err(full) => self.pull_buffer.fail(index, full),
        }
        0
    }

    /// True if there is something to copy.
    fn has_more(&self) -> bool {
        self.copy.is_some() || self.ready.iter().any(|(_, count)| *count > 0)
    }

    /// Panics unless the pull is in the queue of copying pulls exactly if it says so, and is there if it has something to copy.
    #[cfg(any(test, feature = "fuzzing"))]
    pub(super) fn check_invariants(&self, places: usize) {
        assert_eq!(places, usize::from(self.queued), "a pull would be copied out of its turn, or never");
        assert!(self.queued || !self.has_more(), "a pull would wait for ever for what is published");
        assert!(!self.pull_buffer.is_complete(), "nobody would hear that a pull has all that it wants");
        assert_eq!(self.slots.len(), self.pull_buffer.len(), "a tensor would come to another's place");
    }
}

impl Pulls {
    /// Begins a pull from this node's store; the first batch is copied at once.
    pub(super) fn pull_here(&mut self, pull: UnderWay, context: &mut Context) -> Option<Handle> {
        let At::Here(local) = &pull.at else { unreachable!("the caller knows where it is") };
        let (deadline, tensors) = (local.deadline, local.pull_buffer.len() as u64);
        let Ok(handle) = self.under_way.insert(pull) else { unreachable!("2^32 pulls do not fit in memory") };
        context.reporter.trace(handle, || Moment::PullQueued { tensors });
        self.begin_here(handle, deadline, context);
        self.under_way.get(handle).map(|_| handle)
    }

    pub(super) fn begin_here(&mut self, handle: Handle, deadline: Instant, context: &mut Context) {
        self.deadlines.enter(deadline);
        self.advance(handle, COPY_BATCH_BYTES, context);
    }

    fn local(&mut self, handle: Handle) -> Option<&mut LocalPull> {
        match &mut self.under_way.get_mut(handle)?.at {
            At::Here(local) => Some(local),
            At::Peer { .. } => None,
        }
    }

    /// A tensor that a pull waits for is published.
    pub(super) fn local_ready(&mut self, handle: Handle, index: u32) {
        let Some(local) = self.local(handle) else { return };
        match local.ready.back_mut() {
            Some((first, count)) if *first + *count == index => *count += 1,
            _ => local.ready.push_back((index, 1)),
        }
        self.queue(handle);
    }

    /// A tensor that a pull waits for will not come.
    pub(super) fn fail_local(&mut self, handle: Handle, index: u32, error: &Error, reporter: &mut Reporter) {
        let Some(local) = self.local(handle) else { return };
        local.pull_buffer.fail(index as usize, error.clone());
        self.end_if_complete(handle, reporter);
    }

    /// A task no longer publishes: what pulls of it still wait for will not come. Copies in progress are finished.
    pub(super) fn fail_local_of(&mut self, producer: u16, error: &Error, context: &mut Context) {
        let (plans, pairs) = (&self.plans, &context.pairs);
        let is_of = |pull: &UnderWay| {
            let mirror = plans.get(pull.plan).and_then(|plan| pairs[plan.pair].mirror);
            matches!(pull.at, At::Here(_)) && mirror.is_some_and(|mirror| pairs[mirror].local == producer)
        };
        for handle in self.under_way.select(is_of) {
            let Some(local) = self.local(handle) else { continue };
            for (first, count) in std::mem::take(&mut local.ready) {
                (first..first + count).for_each(|index| local.pull_buffer.fail(index as usize, error.clone()));
            }
            self.end_if_complete(handle, &mut context.reporter);
        }
    }

    fn queue(&mut self, handle: Handle) {
        let Some(local) = self.local(handle) else { return };
        if !local.queued {
            local.queued = true;
            self.copying.push_back(handle);
        }
    }

    /// True if there is something to copy, or a watcher to be told of a publication.
    #[inline]
    pub(in crate::node) fn is_copying(&self) -> bool {
        !self.copying.is_empty() || self.store.has_woken()
    }

    /// The deadline of the next waiting pull from this node's store.
    #[inline]
    pub(in crate::node) fn next_deadline(&self) -> Option<Instant> {
        self.deadlines.next()
    }

    /// Continues the pulls in progress; returns the bytes copied, or work done.
    pub(in crate::node) fn copy_on(&mut self, context: &mut Context) -> usize {
        let mut budget = COPY_BUDGET_BYTES;
        while budget > 0
            && let Some(handle) = self.copying.pop_front()
        {
            if let Some(local) = self.local(handle) {
                local.queued = false;
                let copied = self.advance(handle, COPY_BATCH_BYTES.min(budget), context);
                budget = budget.saturating_sub(copied.max(1));
            }
        }
        COPY_BUDGET_BYTES - budget
    }

    /// Copies about `budget` bytes of a pull; returns how many.
    fn advance(&mut self, handle: Handle, budget: usize, context: &mut Context) -> usize {
        let Some(UnderWay { at: At::Here(local), .. }) = self.under_way.get_mut(handle) else { return 0 };
        let mut watchers = Vec::new();
        let to = (&context.memory, &mut context.reporter);
        let copied = local.advance((handle, budget), &self.store, to, &mut watchers);
        let has_more = local.has_more();
        for watcher in watchers {
            match (self.in_vain(&watcher.wait, context), self.local(handle)) {
                (Some(error), Some(local)) => local.pull_buffer.fail(watcher.wait.index as usize, error),
                _ => self.watch(watcher, &context.peers),
            }
        }
        if has_more {
            self.queue(handle);
        } else if context.draining {
            self.end_drained(handle, &mut context.reporter);
        } else {
            self.end_if_complete(handle, &mut context.reporter);
        }
        copied
    }

    /// The node drains: ends the pulls of clients that wait for what is not published; the clients repeat them with the next node. What is
    /// there is copied first.
    pub(in crate::node) fn refuse_waiting(&mut self, context: &mut Context) {
        for handle in self.under_way.select(|pull| matches!(&pull.at, At::Here(local) if !local.has_more())) {
            self.end_drained(handle, &mut context.reporter);
        }
    }

    /// A pull has everything that is published, and the node drains.
    fn end_drained(&mut self, handle: Handle, reporter: &mut Reporter) {
        if let Some(UnderWay { waiter: PullWaiter::Client(_), at: At::Here(local), .. }) =
            self.under_way.get_mut(handle)
        {
            local.pull_buffer.fail_missing(|_| draining());
        }
        self.end_if_complete(handle, reporter);
    }

    fn end_if_complete(&mut self, handle: Handle, reporter: &mut Reporter) {
        if self.local(handle).is_some_and(|local| local.pull_buffer.is_complete()) {
            if let Some(pull) = self.under_way.get(handle) {
                reporter.record(Operation::Pull, Way::MEMORY, pull.since);
            }
            self.end_one(handle, reporter);
        }
    }

    fn end_one(&mut self, handle: Handle, reporter: &mut Reporter) {
        let Some(UnderWay { waiter, at: At::Here(local), .. }) = self.under_way.remove(handle) else { return };
        reporter.trace(handle, || Moment::PullEnded);
        reporter.finish_pull(waiter, local.into_pull_buffer());
    }

    /// Ends the pulls from this node's store whose consumer `pick` chooses.
    pub(in crate::node) fn end_local(&mut self, pick: impl Fn(u16) -> bool, error: &Error, reporter: &mut Reporter) {
        for handle in self.under_way.select(|pull| matches!(&pull.at, At::Here(local) if pick(local.wish.consumer))) {
            if let Some(local) = self.local(handle) {
                local.pull_buffer.fail_missing(|_| error.clone());
                self.end_one(handle, reporter);
            }
        }
    }

    /// Ends the pulls whose deadline has passed.
    pub(in crate::node) fn expire_local(&mut self, now: Instant, context: &mut Context) {
        if !self.deadlines.is_due(now) {
            return;
        }
        for handle in self.under_way.select(|pull| matches!(&pull.at, At::Here(local) if local.deadline <= now)) {
            let Some(UnderWay { at: At::Here(local), plan, .. }) = self.under_way.get_mut(handle) else { continue };
            let waited = local.deadline.saturating_duration_since(local.since);
            let (slots, step, store) = (local.slots.clone(), local.wish.min_version, &self.store);
            let pair = self.plans.get(*plan).map(|plan| plan.pair);
            let missing = "nobody has published it, or not all of it is copied";
            let awaited = pair.map_or_else(String::new, |pair| context.awaited(now, pair, missing));
            let late = |key: &str| Error::late(Operation::Pull, step, key, waited, awaited.as_str());
            local.pull_buffer.fail_missing(|index| late(store.key(slots[index])));
            self.end_one(handle, &mut context.reporter);
        }
        let deadline = |pull: &UnderWay| match &pull.at {
            At::Here(local) => Some(local.deadline),
            At::Peer { .. } => None,
        };
        self.deadlines = Sweep::after(now, self.under_way.slots());
        self.deadlines.extend(self.under_way.iter().filter_map(|(_, pull)| deadline(pull)));
    }
}

impl PartCopy {
    /// Copies up to `budget` more bytes; returns how many.
    fn advance(&mut self, budget: usize) -> Result<usize, DeviceError> {
        let copied = copy_in_pieces(&mut self.to, &self.from, self.filled, budget)?;
        self.filled += copied;
        Ok(copied)
    }
}
