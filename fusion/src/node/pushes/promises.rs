//! Memory that is promised to streams whose next tensor is larger than their share of a queue's credit: as much as the queue has
//! room for and the shard has memory for, in the order of asking. So a thousand pushers of large tensors need no memory for a
//! thousand of them: those that have none wait at their side.

use std::collections::VecDeque;
use std::time::Instant;

use sealane_transport::Handle;
use sealane_transport::session::Credit;

use super::Pushes;
use super::queues::StreamKey;
use crate::limits::{CREDIT_MEMORY_SHARE, PROMISE_LOOK, PROMISE_TIME};
use crate::node::context::Context;

/// What a queue has promised, and who waits.
#[derive(Default)]
pub(super) struct Promises {
    /// Streams that want more than they have, in the order of asking.
    pub(super) waiting: VecDeque<StreamKey>,
    /// Bytes that streams have credit for that have more than their share.
    pub(super) bytes: u64,
    /// Since when the first of them waits for others to bring what they were promised, and none does.
    since: Option<Instant>,
    /// The queue stands in the shard's line for memory.
    in_line: bool,
}

/// What a shard's queues have promised together.
#[derive(Default)]
pub(super) struct AllPromises {
    /// Bytes of all queues' promises.
    pub(super) bytes: u64,
    /// Queues whose streams wait for memory, which get a promise each in turn.
    line: VecDeque<Handle>,
    /// Something has come of a promise since that was looked at.
    moved: bool,
    /// When it is looked whether there is memory.
    pub(super) look_again: Option<Instant>,
}

impl AllPromises {
    /// True if it is a queue's turn.
    fn is_turn_of(&self, queue: Handle) -> bool {
        self.line.front().is_none_or(|first| *first == queue)
    }

    /// A queue waits no longer, or stands behind the others from now on.
    fn leave(&mut self, queue: Handle, promises: &mut Promises) {
        if std::mem::take(&mut promises.in_line) {
            self.line.retain(|other| *other != queue);
        }
        promises.since = None;
    }

    /// A queue has to wait, for memory or for what its own streams were promised.
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
    /// A stream says that it waits for more credit than it has.
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

    /// Gives those who wait what there is room and memory for.
    pub(super) fn promise(&mut self, handle: Handle, context: &mut Context) {
        if context.draining {
            return;
        }
        let Some(queue) = self.queues.get_mut(handle) else { return };
        let (promises, all) = (&mut queue.promises, &mut self.promises);
        let now = context.reporter.clock;
        while let Some(&key) = promises.waiting.front() {
            let session = context.peers.session_mut(key.0);
            let wanted = session.as_deref().and_then(|session| session.wanted(key.1));
            let has = session.as_deref().and_then(|session| session.credit(key.1)).map_or(0, |credit| credit.bytes);
            let (Some(stream), Some(session), Some(wanted)) = (self.streams.get_mut(&key), session, wanted) else {
                // It has it by now, or has ended.
                promises.waiting.pop_front();
                if let Some(stream) = self.streams.get_mut(&key) {
                    stream.wants = false;
                }
                continue;
            };
            // Who finds it full is told when there is room, and who finds nobody that accepts, when somebody does.
            let Some((_, room)) = queue.shared.as_ref().and_then(|shared| shared.room()) else { break };
            let (free, memory) = context.memory.free_for(queue.task);
            // What it was promised already is part of what it needs.
            let (of_queue, of_all) = (promises.bytes - stream.promised, all.bytes - stream.promised);
            let room = (room as u64).saturating_sub(of_queue);
            let free = (free as u64).saturating_sub(of_all);
            // One that is larger than the queue comes alone, and one that is larger than the memory to hear so; but whoever has
            // credit for the largest tensor already does not collect more that way.
            let least = has + wanted.least;
            let is_modest = has <= context.settings.session.tensor_bytes_max;
            let has_room = least <= room || of_queue == 0 && is_modest;
            // What is free may not be in one piece, and streams may bring their shares meanwhile.
            let spared = if of_all == 0 { 0 } else { (memory / CREDIT_MEMORY_SHARE) as u64 };
            let fits = least.saturating_add(spared) <= free && all.is_turn_of(handle);
            let has_memory = fits || least > memory as u64 && is_modest;
            // Where nothing is promised to others, and there is no memory still, it is to hear so as well.
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

    /// What came of a queue's streams is not to come any more.
    pub(super) fn settle_promises(&mut self, handle: Handle, context: &mut Context) {
        let Some(queue) = self.queues.get(handle).filter(|queue| queue.promises.bytes > 0) else { return };
        for key in queue.hungry.iter().copied().collect::<Vec<_>>() {
            let credit = context.peers.session_mut(key.0).and_then(|session| session.credit(key.1));
            self.settle_promise(key, credit.map_or(0, |credit| credit.bytes));
        }
    }

    /// A stream has no more credit left than this, or has ended.
    pub(super) fn settle_promise(&mut self, key: StreamKey, left: u64) {
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

    /// Looks whether there is memory by now for those who wait. When nothing has come of any promise for [`PROMISE_TIME`], those
    /// do not count any more: peers may have stopped, or have nothing to push any more.
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
        // Each in its turn, until the first of them has to go on waiting; then those who wait for none but themselves.
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
