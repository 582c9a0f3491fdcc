//! Pulls whose producer is a task of this very node: copied from the shelf, a helping a turn.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;

use sealane_runtime::Buffer;
use sealane_transport::session::{ReceiveMemory, Shelf, Wait};
use sealane_transport::trace::Moment;
use sealane_transport::{Error, Handle, Payload, TensorMeta, Tray};

use super::Node;
use super::local::{COPY_AT_ONCE_BYTES, COPY_BUDGET_BYTES, COPY_HELPING_BYTES, copy_in_pieces};
use super::plans::{At, UnderWay};
use crate::metrics::{Operation, Way};
use crate::shelf::Watcher;

/// See the module.
pub(super) struct LocalPull {
    slots: Arc<[u32]>,
    consumer: u16,
    min_version: i64,
    since: Instant,
    pub(super) deadline: Instant,
    tray: Tray,
    /// Numbers to look at: first and count.
    ready: VecDeque<(u32, u32)>,
    copy: Option<PartCopy>,
    queued: bool,
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
        consumer: u16,
        min_version: i64,
        since: Instant,
        deadline: Instant,
        tray: Tray,
    ) -> Self {
        let ready = VecDeque::from([(0, slots.len() as u32)]);
        Self { slots, consumer, min_version, since, deadline, tray, ready, copy: None, queued: false }
    }

    pub(super) fn into_tray(self) -> Tray {
        self.tray
    }
}

impl Node {
    /// Begins a pull from the shelf: what one helping holds is copied at once.
    pub(super) fn pull_here(&mut self, pull: UnderWay) -> Option<Handle> {
        let At::Here(local) = &pull.at else { unreachable!("the caller knows where it is") };
        let (deadline, tensors) = (local.deadline, local.tray.len() as u64);
        let Ok(handle) = self.pulls.insert(pull) else { unreachable!("2^32 pulls do not fit in memory") };
        self.context.reporter.trace(handle, || Moment::PullQueued { tensors });
        self.begin_here(handle, deadline);
        self.pulls.get(handle).map(|_| handle)
    }

    pub(super) fn begin_here(&mut self, handle: Handle, deadline: Instant) {
        self.local_pulls_earliest = Some(self.local_pulls_earliest.map_or(deadline, |earliest| earliest.min(deadline)));
        self.advance_local_pull(handle, COPY_HELPING_BYTES);
    }

    fn local_pull(&mut self, handle: Handle) -> Option<&mut LocalPull> {
        match &mut self.pulls.get_mut(handle)?.at {
            At::Here(local) => Some(local),
            At::Peer { .. } => None,
        }
    }

    /// A tensor that a pull waits for is on the shelf.
    pub(super) fn local_pull_ready(&mut self, handle: Handle, index: u32) {
        let Some(local) = self.local_pull(handle) else { return };
        match local.ready.back_mut() {
            Some((first, count)) if *first + *count == index => *count += 1,
            _ => local.ready.push_back((index, 1)),
        }
        self.queue_local_pull(handle);
    }

    /// A tensor that a pull waits for will not come.
    pub(super) fn fail_local_pull(&mut self, handle: Handle, index: u32, error: &Error) {
        let Some(local) = self.local_pull(handle) else { return };
        local.tray.fail(index as usize, error.clone());
        self.end_local_pull_if_complete(handle);
    }

    /// A task publishes nothing any more: what pulls of it have not come to will not come. What is half copied is copied on.
    pub(super) fn fail_local_pulls_of(&mut self, producer: u16, error: &Error) {
        let (plans, pairs) = (&self.plans, &self.context.pairs);
        let is_of = |pull: &UnderWay| {
            let mirror = plans.get(pull.plan).and_then(|plan| pairs[plan.pair].mirror);
            matches!(pull.at, At::Here(_)) && mirror.is_some_and(|mirror| pairs[mirror].local == producer)
        };
        for handle in self.pulls.select(is_of) {
            let Some(local) = self.local_pull(handle) else { continue };
            for (first, count) in std::mem::take(&mut local.ready) {
                (first..first + count).for_each(|index| local.tray.fail(index as usize, error.clone()));
            }
            self.end_local_pull_if_complete(handle);
        }
    }

    fn queue_local_pull(&mut self, handle: Handle) {
        let Some(local) = self.local_pull(handle) else { return };
        if !local.queued {
            local.queued = true;
            self.local_pulls.push_back(handle);
        }
    }

    /// Goes on with the pulls under way; the bytes copied, or work done.
    pub(super) fn pull_on(&mut self) -> usize {
        let mut budget = COPY_BUDGET_BYTES;
        while budget > 0
            && let Some(handle) = self.local_pulls.pop_front()
        {
            if let Some(local) = self.local_pull(handle) {
                local.queued = false;
                let copied = self.advance_local_pull(handle, COPY_HELPING_BYTES.min(budget));
                budget = budget.saturating_sub(copied.max(1));
            }
        }
        COPY_BUDGET_BYTES - budget
    }

    /// Copies about `budget` bytes of a pull; how many.
    fn advance_local_pull(&mut self, handle: Handle, budget: usize) -> usize {
        let mut copied = 0;
        let mut watchers = Vec::new();
        let Some(pull) = self.pulls.get_mut(handle) else { return 0 };
        let At::Here(local) = &mut pull.at else { return 0 };
        while copied < budget {
            if let Some(copy) = &mut local.copy {
                copied += copy.advance(budget - copied);
                if copy.filled == copy.from.len() {
                    let PartCopy { index, version, stamp, meta, to, .. } = local.copy.take().expect("just looked at");
                    local.tray.fill(index, stamp, meta, version, to);
                }
                continue;
            }
            let Some((first, count)) = local.ready.front_mut() else { break };
            if *count == 0 {
                local.ready.pop_front();
                continue;
            }
            let index = *first as usize;
            (*first, *count) = (*first + 1, *count - 1);
            let slot = local.slots[index];
            let Some(shelved) = self.shelf.look(slot).filter(|shelved| shelved.version >= local.min_version) else {
                let wait = Wait { slot, min_version: local.min_version, pull: handle, index: index as u32 };
                watchers.push(Watcher { session: None, wait });
                continue;
            };
            let bytes = shelved.payload.len();
            let (memory, consumer) = (&self.context.memory, local.consumer);
            let allocate = |len| memory.allocate_to_stay(consumer, len);
            if bytes <= COPY_AT_ONCE_BYTES {
                local.tray.copy_in(index, &shelved, allocate);
                copied += bytes;
                self.context.reporter.counters.tensors_received += 1;
                self.context.reporter.counters.bytes_received += bytes as u64;
                continue;
            }
            match local.tray.lend(index, bytes, allocate) {
                Ok(to) => {
                    let meta = TensorMeta::from_own_wire(shelved.meta.into());
                    let (version, stamp, from) = (shelved.version, shelved.stamp, shelved.payload.share());
                    local.copy = Some(PartCopy { index, version, stamp, meta, from, to, filled: 0 });
                    self.context.reporter.counters.tensors_received += 1;
                    self.context.reporter.counters.bytes_received += bytes as u64;
                }
                Err(full) => local.tray.fail(index, full),
            }
        }
        let more = local.copy.is_some() || local.ready.iter().any(|(_, count)| *count > 0);
        for watcher in watchers {
            self.watch(watcher);
        }
        if more {
            self.queue_local_pull(handle);
        } else {
            self.end_local_pull_if_complete(handle);
        }
        copied
    }

    fn end_local_pull_if_complete(&mut self, handle: Handle) {
        if self.local_pull(handle).is_some_and(|local| local.tray.is_complete()) {
            if let Some(pull) = self.pulls.get(handle) {
                self.context.reporter.record(Operation::Pull, Way::Memory, pull.since);
            }
            self.end_local_pull(handle);
        }
    }

    fn end_local_pull(&mut self, handle: Handle) {
        let Some(UnderWay { waiter, at: At::Here(local), .. }) = self.pulls.remove(handle) else { return };
        self.context.reporter.trace(handle, || Moment::PullEnded);
        self.context.reporter.finish_pull(waiter, local.into_tray());
    }

    /// Ends the pulls from this node's shelf that `pick` (consumer) chooses.
    pub(super) fn end_local_pulls(&mut self, pick: impl Fn(u16) -> bool, error: &Error) {
        for handle in self.pulls.select(|pull| matches!(&pull.at, At::Here(local) if pick(local.consumer))) {
            if let Some(local) = self.local_pull(handle) {
                local.tray.fail_missing(|_| error.clone());
                self.end_local_pull(handle);
            }
        }
    }

    pub(super) fn expire_local_pulls(&mut self, now: Instant) {
        if self.local_pulls_earliest.is_none_or(|earliest| earliest > now) {
            return;
        }
        for handle in self.pulls.select(|pull| matches!(&pull.at, At::Here(local) if local.deadline <= now)) {
            let Some(At::Here(local)) = self.pulls.get_mut(handle).map(|pull| &mut pull.at) else { continue };
            let waited = local.deadline.saturating_duration_since(local.since);
            let (slots, step, shelf) = (local.slots.clone(), local.min_version, &self.shelf);
            local.tray.fail_missing(|index| Error::late(Operation::Pull, step, shelf.key(slots[index]), waited));
            self.end_local_pull(handle);
        }
        let deadline = |pull: &UnderWay| match &pull.at {
            At::Here(local) => Some(local.deadline),
            At::Peer { .. } => None,
        };
        self.local_pulls_earliest = self.pulls.iter().filter_map(|(_, pull)| deadline(pull)).min();
    }
}

impl PartCopy {
    /// Copies up to `budget` bytes on; how many.
    fn advance(&mut self, budget: usize) -> usize {
        let copied = copy_in_pieces(&mut self.to, self.from.volatile(), self.filled, budget);
        self.filled += copied;
        copied
    }
}
