//! Memory that is promised to streams whose next tensor is larger than their share of a queue's credit: as much as the queue has room for
//! and the shard has memory for, in the order of asking. So a thousand pushers of large tensors do not need memory for a thousand tensors
//! here: streams without a promise wait at the pusher.

use std::collections::VecDeque;
use std::time::Instant;

use sealane_transport::Handle;
use sealane_transport::session::Credit;

use super::Pushes;
use super::queues::StreamKey;
use crate::limits::{CREDIT_MEMORY_SHARE, PROMISE_LOOK, PROMISE_TIME};
use crate::node::context::Context;

/// A queue's promises, and the streams that wait for one.
#[derive(Default)]
pub(super) struct Promises {
    /// Streams that want more credit, in the order of asking.
    pub(super) waiting: VecDeque<StreamKey>,
    /// Promised bytes of the streams that have more credit than their share.
    pub(super) bytes: u64,
    /// Since when the first of them has waited while no stream used its promise.
    since: Option<Instant>,
    /// The queue is in the shard's line for memory.
    in_line: bool,
}

/// The promises of all queues of a shard.
#[derive(Default)]
pub(super) struct AllPromises {
    /// Bytes of all queues' promises.
    pub(super) bytes: u64,
    /// Queues whose streams wait for memory; each gets one promise in turn.
    line: VecDeque<Handle>,
    /// A promise was used since this was last checked.
    moved: bool,
    /// When to check again whether there is memory.
    pub(super) look_again: Option<Instant>,
}

impl AllPromises {
    /// True if the queue is first in line, or the line is empty.
    fn is_turn_of(&self, queue: Handle) -> bool {
        self.line.front().is_none_or(|first| *first == queue)
    }

    /// A queue leaves the line: it no longer waits, or will queue up again behind the others.
    fn leave(&mut self, queue: Handle, promises: &mut Promises) {
        if std::mem::take(&mut promises.in_line) {
            self.line.retain(|other| *other != queue);
        }
        promises.since = None;
    }

    /// A queue must wait, for memory or for its own streams to use their promises.
    fn wait(&mut self, queue: Handle, promises: &mut Promises, is_for_memory: bool, now: Instant) {
        if is_for_memory && !std::mem::replace(&mut promises.in_line, true) {
            self.line.push_back(queue);
        }
        promises.since.get_or_insert(now);
        let look = now + PROMISE_LOOK;
        self.look_again = Some(self.look_again.map_or(look, |at| at.min(look)));
    }
}

impl Pushes {
    /// A stream asks for more credit than it has.
    pub(in crate::node) fn stream_wants(&mut self, session: Handle, stream: Handle, context: &mut Context) {
        let key = (session, stream);
        let Some(of) = self.streams.get_mut(&key) else { return };
        let handle = of.queue;
        if !std::mem::replace(&mut of.wants, true)
            && let Some(queue) = self.queues.get_mut(handle)
        {
            queue.promises.waiting.push_back(key);
        }
        self.promise(handle, context);
    }

    /// Gives waiting streams what there is room and memory for.
    pub(super) fn promise(&mut self, handle: Handle, context: &mut Context) {
        if context.draining {
            return;
        }
        let Some(queue) = self.queues.get_mut(handle) else { return };
        let memory_task = queue.memory_task();
        let (promises, all) = (&mut queue.promises, &mut self.promises);
        let now = context.reporter.clock;
        while let Some(&key) = promises.waiting.front() {
            let session = context.peers.session_mut(key.0);
            let wanted = session.as_deref().and_then(|session| session.wanted(key.1));
            let has = session.as_deref().and_then(|session| session.credit(key.1)).map_or(0, |credit| credit.bytes);
            let (Some(stream), Some(session), Some(wanted)) = (self.streams.get_mut(&key), session, wanted) else {
                // It has the credit by now, or has ended.
                promises.waiting.pop_front();
                if let Some(stream) = self.streams.get_mut(&key) {
                    stream.wants = false;
                }
                continue;
            };
            // If the queue is full, or has no acceptor, this is called again when that changes.
            let Some((_, room)) = queue.shared.as_ref().and_then(|shared| shared.room()) else { break };
            let (free, memory) = context.memory.free_for(memory_task);
            // The stream's own earlier promise is part of what it needs.
            let (of_queue, of_all) = (promises.bytes - stream.promised, all.bytes - stream.promised);
            let room = (room as u64).saturating_sub(of_queue);
            let free = (free as u64).saturating_sub(of_all);
            // A tensor larger than the queue comes alone, and one larger than the memory is let through so that its pusher gets an error.
            // But a stream that already has credit for the largest tensor does not collect more that way.
            let least = has + wanted.least;
            let is_modest = has <= context.settings.session.tensor_bytes_max;
            let has_room = least <= room || of_queue == 0 && is_modest;
            // Free memory may be fragmented, and other streams may use their shares meanwhile.
            let spared = if of_all == 0 { 0 } else { (memory / CREDIT_MEMORY_SHARE) as u64 };
            let fits = least.saturating_add(spared) <= free && all.is_turn_of(handle);
            let has_memory = fits || least > memory as u64 && is_modest;
            // If nothing is promised to others and there is still no memory, let it through as well, so that its pusher gets an error.
            let has_waited = promises.since.is_some_and(|since| now >= since + PROMISE_TIME);
            let is_overdue = has_waited && of_all == 0 && is_modest;
            if !(has_room && has_memory || is_overdue) {
                return all.wait(handle, promises, !has_memory, now);
            }
            let bytes = (has + wanted.all).min(room).min(free.saturating_sub(spared)).max(least);
            session.grant(key.1, Credit { messages: 0, bytes: bytes - has });
            context.peers.mark_dirty(key.0);
            let more = bytes.saturating_sub(stream.promised);
            (stream.wants, stream.promised) = (false, stream.promised + more);
            (promises.bytes, all.bytes) = (promises.bytes + more, all.bytes + more);
            promises.waiting.pop_front();
            all.leave(handle, promises);
        }
        all.leave(handle, promises);
    }

    /// Reduces the promises of a queue whose tensors have come: those bytes are no longer expected.
    pub(super) fn reduce_promises(&mut self, handle: Handle, context: &mut Context) {
        let Some(queue) = self.queues.get(handle).filter(|queue| queue.promises.bytes > 0) else { return };
        for key in queue.hungry.iter().copied().collect::<Vec<_>>() {
            let credit = context.peers.session_mut(key.0).and_then(|session| session.credit(key.1));
            self.reduce_promise(key, credit.map_or(0, |credit| credit.bytes));
        }
    }

    /// A stream has only `left` bytes of credit left, or has ended.
    pub(super) fn reduce_promise(&mut self, key: StreamKey, left: u64) {
        let Some(stream) = self.streams.get_mut(&key).filter(|stream| stream.promised > left) else { return };
        let bytes = stream.promised - left;
        stream.promised = left;
        self.promises.bytes -= bytes;
        self.promises.moved = true;
        if let Some(queue) = self.queues.get_mut(stream.queue) {
            debug_assert!(bytes <= queue.promises.bytes, "more would be promised than there is room for");
            queue.promises.bytes -= bytes;
        }
    }

    /// Checks whether there is memory now for streams that wait. If no promise was used for [`PROMISE_TIME`], promises no longer count: the
    /// peers may have stopped, or have nothing left to push.
    pub(in crate::node) fn look_at_promises(&mut self, now: Instant, context: &mut Context) {
        if self.promises.look_again.is_none_or(|at| at > now) {
            return;
        }
        self.promises.look_again = None;
        let has_moved = std::mem::take(&mut self.promises.moved);
        let mut is_overdue = false;
        for (_, queue) in self.queues.iter_mut() {
            if let Some(since) = &mut queue.promises.since {
                *since = if has_moved { now } else { *since };
                is_overdue |= now >= *since + PROMISE_TIME;
            }
        }
        if is_overdue {
            self.promises.bytes = 0;
            self.streams.values_mut().for_each(|stream| stream.promised = 0);
            self.queues.iter_mut().for_each(|(_, queue)| queue.promises.bytes = 0);
        }
        // Serves the line in order, until the first queue in it must go on waiting; then the queues that wait only for their own streams.
        while let Some(&first) = self.promises.line.front() {
            if self.queues.get(first).is_none() {
                self.promises.line.pop_front();
                continue;
            }
            self.promise(first, context);
            if self.promises.line.front() == Some(&first) {
                break;
            }
        }
        for handle in self.queues.select(|queue| queue.promises.since.is_some() && !queue.promises.in_line) {
            self.promise(handle, context);
        }
        if self.promises.look_again.is_none() && !self.promises.line.is_empty() {
            self.promises.look_again = Some(now + PROMISE_LOOK);
        }
    }
}
