//! Pushing: into a peer's queue by the session, into one of this node's by hand.

use std::collections::VecDeque;
use std::time::Instant;

use sealane_transport::session::{PushAsk, ReceiveMemory};
use sealane_transport::trace::Moment;
use sealane_transport::{Error, Handle, Meta, Payload, Tensor};

use super::cells::SendWaiter;
use super::{Node, Pair, draining};
use crate::metrics::{Operation, Way};
use crate::queue::Accepted;

/// Pushes that one waiter waits for.
pub(super) struct PushGroup {
    left: usize,
    error: Option<Error>,
    waiter: SendWaiter,
    since: Instant,
    way: Way,
}

/// Pushes, as a task of this shard asks them.
#[derive(Debug)]
pub struct PushRequest<'a, T> {
    /// The pair, from [`Node::pair`].
    pub pair: u32,
    /// The queue's name at the other side.
    pub queue: &'a str,
    /// What to push, in order.
    pub tensors: T,
    /// When those that were not taken end with DeadlineExceeded.
    pub deadline: Instant,
    /// Who is told, once all have ended: the first error, if there was any.
    pub waiter: SendWaiter,
}

/// A push to a task of this node that waits for room.
pub(super) struct LocalPush {
    pub(super) pair: u32,
    tensor: Tensor,
    since: Instant,
    pub(super) deadline: Instant,
    group: Handle,
}

impl Node {
    /// Pushes tensors into a queue of the pair's peer. The waiter hears when the queue has taken all of them.
    pub fn push<T: ExactSizeIterator<Item = Tensor>>(&mut self, now: Instant, push: PushRequest<'_, T>) {
        let PushRequest { pair, queue, tensors, deadline, waiter } = push;
        if self.context.draining && matches!(waiter, SendWaiter::Client(_)) {
            return self.context.reporter.finish_send(waiter, Err(draining()));
        }
        let left = tensors.len();
        if left == 0 {
            return self.context.reporter.finish_send(waiter, Ok(()));
        }
        let group = PushGroup { left, error: None, waiter, since: now, way: Way::Memory };
        let Ok(group) = self.push_groups.insert(group) else { unreachable!("2^32 groups do not fit in memory") };
        self.context.reporter.trace(group, || Moment::PushQueued { queue: queue.into(), tensors: left as u64 });
        if let Some(mirror) = self.context.pairs[pair].mirror {
            let acceptor = self.context.pairs[mirror].local;
            let handle = self.queue_named(acceptor, queue);
            let waiting = tensors.map(|tensor| LocalPush { pair, tensor, since: now, deadline, group });
            self.queues.get_mut(handle).expect("just found").local.extend(waiting);
            self.local_pushes_earliest = Some(self.local_pushes_earliest.map_or(deadline, |at| at.min(deadline)));
            self.fill_locally(handle);
            return;
        }
        match self.stream_of(pair, queue) {
            Ok((session, stream)) => {
                let way = self.context.peers.way_of(session);
                self.push_groups.get_mut(group).expect("just made").way = way;
                for tensor in tensors {
                    let (meta, payload) = tensor.into_parts();
                    self.push_there(now, session, stream, meta.into_wire(), payload, deadline, group);
                }
                self.context.asked(now, session, deadline);
            }
            Err(error) => self.push_ended(group, left as u32, Err(error)),
        }
    }

    fn stream_of(&mut self, pair: u32, queue: &str) -> Result<(Handle, Handle), Error> {
        let Pair { local, peer, .. } = self.context.pairs[pair];
        let session = self.session_of(pair)?;
        let peer_session = &mut self.context.peers.get_mut(session).expect("session_of gives a live one").session;
        Ok((session, peer_session.stream(local, peer, queue)?))
    }

    #[allow(clippy::too_many_arguments, reason = "the parts of a push, taken apart by both callers")]
    fn push_there(
        &mut self,
        now: Instant,
        session: Handle,
        stream: Handle,
        meta: Meta,
        payload: Payload,
        deadline: Instant,
        group: Handle,
    ) {
        let peer = self.context.peers.get_mut(session).expect("the caller found its stream");
        let ask = PushAsk { stream, meta, payload, deadline, deposit: group };
        if let Err((error, group)) = peer.session.push(now, ask) {
            self.push_ended(group, 1, Err(error));
        }
    }

    /// Pushes that were to go to another session: pushed again where they belong.
    pub(super) fn push_elsewhere(&mut self, now: Instant, pushes: Vec<MovedPush>) {
        for MovedPush { from, to, queue, meta, payload, deadline, group } in pushes {
            let pair = self.context.pairs.pair_of(from, to);
            match self.stream_of(pair, &queue) {
                Ok((session, stream)) => {
                    self.push_there(now, session, stream, meta, payload, deadline, group);
                    self.context.asked(now, session, deadline);
                }
                Err(error) => self.push_ended(group, 1, Err(error)),
            }
        }
    }

    /// Pushes of a group have ended, all in the same way.
    #[inline]
    pub(super) fn push_ended(&mut self, handle: Handle, count: u32, outcome: Result<(), Error>) {
        let Some(group) = self.push_groups.get_mut(handle) else { return };
        group.left -= count as usize;
        if let Err(error) = outcome {
            group.error.get_or_insert(error);
        } else {
            self.context.reporter.counters.tensors_sent += u64::from(count);
        }
        if group.left == 0 {
            self.context.reporter.trace(handle, || Moment::PushEnded);
            let group = self.push_groups.remove(handle).expect("just looked at");
            if group.error.is_none() {
                self.context.reporter.record(Operation::Push, group.way, group.since);
            }
            self.context.reporter.finish_send(group.waiter, group.error.map_or(Ok(()), Err));
        }
    }

    /// Moves pushes of this node into a queue, as far as it has room.
    pub(super) fn fill_locally(&mut self, handle: Handle) {
        let Some(queue) = self.queues.get_mut(handle) else { return };
        let Some(shared) = queue.shared.clone() else { return };
        let (mut waiting, task) = (std::mem::take(&mut queue.local), queue.task);
        let mut items = Vec::new();
        while !waiting.is_empty()
            && let Some((mut tensors, mut bytes)) = shared.room()
        {
            while tensors > 0
                && bytes > 0
                && let Some(LocalPush { pair, tensor, group, .. }) = waiting.pop_front()
            {
                match self.moved_into(task, tensor) {
                    Ok(tensor) => {
                        let (from, len) = (self.context.pairs[pair].local_name.clone(), tensor.len());
                        (tensors, bytes) = (tensors - 1, bytes.saturating_sub(len));
                        self.context.reporter.count_received(len);
                        items.push(Accepted { from, tensor });
                        self.push_ended(group, 1, Ok(()));
                    }
                    Err(error) => self.push_ended(group, 1, Err(error)),
                }
            }
            shared.fill(self.context.settings.shard, &mut items);
        }
        self.keep_waiting(handle, waiting);
    }

    /// A push was ended while the queue's own list was out: what is left goes before what came meanwhile.
    fn keep_waiting(&mut self, handle: Handle, mut waiting: VecDeque<LocalPush>) {
        if let Some(queue) = self.queues.get_mut(handle) {
            waiting.append(&mut queue.local);
            queue.local = waiting;
        }
    }

    /// The tensor where the accepting task can have it: as it is, or copied into its memory.
    fn moved_into(&self, task: u16, tensor: Tensor) -> Result<Tensor, Error> {
        if self.context.memory.takes_as_is(task, tensor.payload()) {
            return Ok(tensor);
        }
        let mut memory = self.context.memory.allocate(task, tensor.len())?;
        memory.volatile_mut().copy_from(tensor.payload().volatile());
        Ok(Tensor::from_parts(tensor.meta().clone(), memory))
    }

    /// Ends the pushes to queues of this node that `pick` (the pair) chooses.
    pub(super) fn end_local_pushes(&mut self, pick: impl Fn(&Pair) -> bool, error: &Error) {
        let mut ended = Vec::new();
        for (_, queue) in self.queues.iter_mut() {
            queue.local.retain(|push| {
                let ends = pick(&self.context.pairs[push.pair]);
                ended.extend(ends.then_some(push.group));
                !ends
            });
        }
        ended.into_iter().for_each(|group| self.push_ended(group, 1, Err(error.clone())));
        self.forget_unused_queues();
    }

    fn forget_unused_queues(&mut self) {
        for handle in self.queues.select(|queue| queue.local.is_empty()) {
            self.forget_unused_queue(handle);
        }
    }

    pub(super) fn expire_local_pushes(&mut self, now: Instant) {
        if self.local_pushes_earliest.is_none_or(|earliest| earliest > now) {
            return;
        }
        let mut ended = Vec::new();
        let mut earliest: Option<Instant> = None;
        for (_, queue) in self.queues.iter_mut() {
            let key = &queue.name;
            queue.local.retain(|push| {
                if push.deadline > now {
                    earliest = Some(earliest.map_or(push.deadline, |earliest| earliest.min(push.deadline)));
                    return true;
                }
                let waited = push.deadline.saturating_duration_since(push.since);
                let error = Error::late(Operation::Push, 0, key.clone(), waited);
                ended.push((push.group, error));
                false
            });
        }
        self.local_pushes_earliest = earliest;
        ended.into_iter().for_each(|(group, error)| self.push_ended(group, 1, Err(error)));
        self.forget_unused_queues();
    }
}

/// A push on its way from one session to another: never sent on any link.
pub(super) struct MovedPush {
    pub(super) from: u16,
    pub(super) to: u32,
    pub(super) queue: Box<str>,
    pub(super) meta: Meta,
    pub(super) payload: Payload,
    pub(super) deadline: Instant,
    pub(super) group: Handle,
}
