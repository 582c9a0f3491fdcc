//! Memory that is promised to streams whose next tensor is larger than their share of a queue's credit: as much as the queue has
//! room for and the shard has memory for, in the order of asking. So a thousand pushers of large tensors need no memory for a
//! thousand of them: those that have none wait at their side.

use std::collections::VecDeque;
use std::time::Instant;

use sealane_transport::Handle;
use sealane_transport::session::Credit;

use super::Pushes;
use super::queues::StreamKey;
use crate::limits::{PROMISE_LOOK, PROMISE_TIME};
use crate::node::context::Context;

/// What a queue has promised, and who waits.
#[derive(Default)]
pub(super) struct Promises {
    /// Streams that want more than they have, in the order of asking.
    pub(super) waiting: VecDeque<StreamKey>,
    /// Bytes that streams have credit for that have more than their share.
    pub(super) bytes: u64,
    /// Since when somebody waits, nothing was promised, and nothing came of what was.
    since: Option<Instant>,
    /// Something came of it since that was looked at.
    moved: bool,
}

impl Promises {
    /// A stream has brought so much of what it was promised, or will not.
    pub(super) fn kept(&mut self, bytes: u64) {
        debug_assert!(bytes <= self.bytes, "more would be promised than there is room for");
        self.bytes -= bytes;
        self.moved = true;
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
        let still_waits = |first: &Handle| self.queues.get(*first).is_some_and(|queue| queue.promises.since.is_some());
        let waits_for_memory = self.waits_for_memory.filter(still_waits);
        let Some(queue) = self.queues.get_mut(handle) else { return };
        let Some(shared) = queue.shared.clone() else {
            queue.promises.since = None;
            return;
        };
        let now = context.reporter.clock;
        if std::mem::take(&mut queue.promises.moved) && queue.promises.since.is_some() {
            queue.promises.since = Some(now);
        }
        while let Some(&key) = queue.promises.waiting.front() {
            let session = context.peers.session_mut(key.0);
            let wanted = session.as_deref().and_then(|session| session.wanted(key.1));
            let has = session.as_deref().and_then(|session| session.credit(key.1)).map_or(0, |credit| credit.bytes);
            let (Some(stream), Some(session), Some(wanted)) = (self.streams.get_mut(&key), session, wanted) else {
                // It has it by now, or has ended.
                queue.promises.waiting.pop_front();
                if let Some(stream) = self.streams.get_mut(&key) {
                    stream.wants = false;
                }
                continue;
            };
            // Who finds it full is told when there is room.
            let Some((_, room)) = shared.room() else {
                queue.promises.since = None;
                break;
            };
            let (free, all) = context.memory.free_for(queue.task);
            // What it was promised already is part of what it needs.
            let of_others = queue.promises.bytes - stream.promised;
            let room = (room as u64).saturating_sub(of_others);
            let free = (free as u64).saturating_sub(self.promised - stream.promised);
            // One that is larger than the queue comes alone, and one that is larger than the memory to hear so.
            let least = has + wanted.least;
            let has_room = least <= room || of_others == 0;
            let is_first = waits_for_memory.is_none_or(|first| first == handle);
            let has_memory = least <= free && is_first || least > all as u64;
            let is_overdue = queue.promises.since.is_some_and(|since| now >= since + PROMISE_TIME);
            if !(has_room && has_memory || is_overdue) {
                queue.promises.since.get_or_insert(now);
                if !has_memory && is_first {
                    self.waits_for_memory = Some(handle);
                }
                let look = now + PROMISE_LOOK;
                self.look_again = Some(self.look_again.map_or(look, |at| at.min(look)));
                break;
            }
            let bytes = (has + wanted.all).min(room).min(free).max(least);
            session.grant(key.1, Credit { messages: 0, bytes: bytes - has });
            context.peers.mark_dirty(key.0);
            let more = bytes.saturating_sub(stream.promised);
            stream.wants = false;
            stream.promised += more;
            queue.promises.bytes += more;
            queue.promises.since = None;
            queue.promises.waiting.pop_front();
            self.promised += more;
        }
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
        self.promised -= bytes;
        if let Some(queue) = self.queues.get_mut(stream.queue) {
            queue.promises.kept(bytes);
        }
    }

    /// Looks whether there is memory by now for those who wait, longest first. When they have waited for [`PROMISE_TIME`], what was
    /// promised does not count any more: a peer may have stopped, or have nothing to push any more.
    pub(in crate::node) fn look_at_promises(&mut self, now: Instant, context: &mut Context) {
        if self.look_again.is_none_or(|at| at > now) {
            return;
        }
        self.look_again = None;
        let mut waiting: Vec<(Instant, Handle)> = Vec::new();
        waiting.extend(self.queues.iter().filter_map(|(handle, queue)| Some((queue.promises.since?, handle))));
        waiting.sort();
        if waiting.first().is_some_and(|(since, _)| now >= *since + PROMISE_TIME) {
            self.forget_promises();
        }
        waiting.into_iter().for_each(|(_, handle)| self.promise(handle, context));
    }

    fn forget_promises(&mut self) {
        self.promised = 0;
        self.streams.values_mut().for_each(|stream| stream.promised = 0);
        self.queues.iter_mut().for_each(|(_, queue)| queue.promises.bytes = 0);
    }
}
