//! Pushes to tasks of the same node: they wait at the queue until it has room.

use std::collections::VecDeque;
use std::time::Instant;

use sealane_runtime::{Sweep, earliest};
use sealane_transport::session::ReceiveMemory;
use sealane_transport::tensor::IntoTensor;
use sealane_transport::{Error, Handle, Tensor};

use super::{Load, Pushes};
use crate::metrics::Operation;
use crate::node::context::Context;
use crate::node::memory::Memory;
use crate::node::pairs::Pair;
use crate::queue::Accepted;

/// A push to a task of this node that waits for room.
pub(super) struct LocalPush {
    pair: u32,
    tensor: Tensor,
    since: Instant,
    pub(super) deadline: Instant,
    pub(super) group: Handle,
}

impl Pushes {
    /// Pushes into a queue of a task of this node.
    pub(in crate::node) fn push_here<T: ExactSizeIterator<Item: IntoTensor>>(
        &mut self,
        now: Instant,
        acceptor: u16,
        load: Load<'_, T>,
        context: &mut Context,
    ) {
        let Load { pair, queue, tensors, deadline, group } = load;
        let handle = self.queue_named(acceptor, queue);
        let wait = |tensor: T::Item| LocalPush { pair, tensor: tensor.into_tensor(), since: now, deadline, group };
        let waiting = tensors.map(wait);
        self.queues.get_mut(handle).expect("just found").local.extend(waiting);
        self.deadlines.enter(deadline);
        self.fill_locally(handle, context);
    }

    /// The next deadline of a waiting push, or the time when waiting streams are checked.
    #[inline]
    pub(in crate::node) fn next_deadline(&self) -> Option<Instant> {
        earliest([self.deadlines.next(), self.promises.look_again])
    }

    /// Moves pushes of this node into a queue, as far as it has room.
    pub(super) fn fill_locally(&mut self, handle: Handle, context: &mut Context) {
        let Some(queue) = self.queues.get_mut(handle) else { return };
        let Some(shared) = queue.shared.clone() else { return };
        let (mut waiting, task) = (std::mem::take(&mut queue.local), queue.memory_task());
        let mut items = Vec::new();
        while !waiting.is_empty()
            && let Some((mut tensors, mut bytes)) = shared.room()
        {
            while tensors > 0
                && bytes > 0
                && let Some(LocalPush { pair, tensor, group, .. }) = waiting.pop_front()
            {
                match moved_into(task, tensor, &context.memory) {
                    Ok(tensor) => {
                        let (from, len) = (context.pairs[pair].local_name.clone(), tensor.len());
                        (tensors, bytes) = (tensors - 1, bytes.saturating_sub(len));
                        context.reporter.count_received(1, len);
                        items.push(Accepted { from, tensor }.into());
                        self.ended(group, 1, Ok(()), &mut context.reporter);
                    }
                    Err(error) => self.ended(group, 1, Err(error), &mut context.reporter),
                }
            }
            shared.fill(context.settings.shard, &mut items);
            debug_assert!(items.is_empty(), "the queue promised room, and {} tensors would be lost", items.len());
        }
        self.keep_waiting(handle, waiting);
    }

    /// A push was ended while the queue's list was taken out: what is left of the list goes before what came meanwhile.
    fn keep_waiting(&mut self, handle: Handle, mut waiting: VecDeque<LocalPush>) {
        if let Some(queue) = self.queues.get_mut(handle) {
            waiting.append(&mut queue.local);
            queue.local = waiting;
        }
    }

    /// Ends the pushes to queues of this node whose pair `pick` chooses.
    pub(in crate::node) fn end_local(&mut self, pick: impl Fn(&Pair) -> bool, error: &Error, context: &mut Context) {
        let mut ended = Vec::new();
        for (_, queue) in self.queues.iter_mut() {
            queue.local.retain(|push| {
                let ends = pick(&context.pairs[push.pair]);
                ended.extend(ends.then_some(push.group));
                !ends
            });
        }
        ended.into_iter().for_each(|group| self.ended(group, 1, Err(error.clone()), &mut context.reporter));
        self.forget_unused_queues();
    }

    fn forget_unused_queues(&mut self) {
        for handle in self.queues.select(|queue| queue.local.is_empty()) {
            self.forget_unused_queue(handle);
        }
    }

    /// Ends the pushes whose deadline has passed.
    pub(in crate::node) fn expire_local(&mut self, now: Instant, context: &mut Context) {
        if !self.deadlines.is_due(now) {
            return;
        }
        let mut ended = Vec::new();
        let waiting: usize = self.queues.iter().map(|(_, queue)| queue.local.len()).sum();
        self.deadlines = Sweep::after(now, waiting + self.queues.slots());
        for (_, queue) in self.queues.iter_mut() {
            let key = &queue.name;
            queue.local.retain(|push| {
                if push.deadline > now {
                    self.deadlines.enter(push.deadline);
                    return true;
                }
                let waited = push.deadline.saturating_duration_since(push.since);
                let awaited = context.awaited(now, push.pair, "its queue had no room, and nobody takes from it");
                let error = Error::late(Operation::Push, 0, key.clone(), waited, awaited);
                ended.push((push.group, error));
                false
            });
        }
        ended.into_iter().for_each(|(group, error)| self.ended(group, 1, Err(error), &mut context.reporter));
        self.forget_unused_queues();
    }
}

/// The tensor as the accepting task can hold it: unchanged, or copied into its memory.
fn moved_into(task: u16, tensor: Tensor, memory: &Memory) -> Result<Tensor, Error> {
    if memory.takes_as_is(task, tensor.payload()) {
        return Ok(tensor);
    }
    let mut place = memory.allocate(task, tensor.len())?;
    tensor.payload().copy_to(&mut place, 0..tensor.len())?;
    Ok(Tensor::from_parts(tensor.meta().clone(), place))
}
