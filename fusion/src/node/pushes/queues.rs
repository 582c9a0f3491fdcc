//! Accepting: the queues of this node's tasks, the streams that feed them, and how credit is granted.

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;

use sealane_transport::limits::{KEY_BYTES_MAX, MEASURE_QUEUE, NO_TASK};
use sealane_transport::session::{Credit, Opened, Untaken};
use sealane_transport::tensor::TensorBatch;
use sealane_transport::{Error, Handle, Tensor};

use super::Pushes;
use super::local::LocalPush;
use super::promises::Promises;
use crate::limits::{CREDIT_BYTES_MAX, CREDIT_MEMORY_SHARE, CREDIT_MESSAGES_MAX};
use crate::node::context::Context;
use crate::node::memory::Memory;
use crate::node::pairs::STRANGER;
use crate::queue::{AcceptQueue, Accepted, AcceptedBatch};

/// Ended streams that may remain in a list of waiting streams.
pub(super) const WAITING_SLACK: usize = 256;

/// A stream: its session, and its handle there.
pub(super) type StreamKey = (Handle, Handle);

/// A queue; exists from the first push or accept that names it.
pub(super) struct Queue {
    pub(super) task: u16,
    pub(super) name: Box<str>,
    /// Where tensors go; `None` while nobody accepts.
    pub(super) shared: Option<Arc<AcceptQueue>>,
    /// The queue of the last acceptor, if tensors of this shard are still in it: the next acceptor gets them.
    left: Option<Arc<AcceptQueue>>,
    /// The streams that feed it.
    pub(super) streams: BTreeSet<StreamKey>,
    /// Those of the streams that may get more credit.
    pub(super) hungry: VecDeque<StreamKey>,
    /// What streams were promised beyond their share of the credit.
    pub(super) promises: Promises,
    /// Pushes of this node that wait for room.
    pub(super) local: VecDeque<LocalPush>,
    /// Tensors that came in this turn; empty if there is no acceptor.
    pub(super) arrived: Vec<AcceptedBatch>,
}

impl Queue {
    /// True if nobody can accept from the queue, because its tensors are dropped as they arrive.
    fn discards(&self) -> bool {
        self.shared.as_ref().is_some_and(|shared| shared.discards())
    }

    /// Returns the task in whose memory tensors arrive.
    pub(super) fn memory_task(&self) -> u16 {
        if self.discards() { NO_TASK } else { self.task }
    }

    /// The next stream that may get more credit, if the queue has room. If it has none, the node is told when there is.
    fn next_hungry(&mut self, shared: &AcceptQueue) -> Option<StreamKey> {
        if self.hungry.is_empty() || shared.room().is_none() { None } else { self.hungry.pop_front() }
    }

    /// Removes ended streams from the lists of waiting ones, once they are most of them: opening and closing streams makes no list grow.
    fn prune(&mut self) {
        for waiting in [&mut self.hungry, &mut self.promises.waiting] {
            if waiting.len() > 2 * self.streams.len() + WAITING_SLACK {
                waiting.retain(|key| self.streams.contains(key));
            }
        }
    }
}

/// The engine stops: acceptors must not wait forever.
impl Drop for Queue {
    fn drop(&mut self) {
        if let Some(shared) = &self.shared {
            shared.close(Error::unavailable("this engine", "it has stopped"));
        }
    }
}

/// A stream, as the queue's side sees it.
pub(super) struct Stream {
    pub(super) queue: Handle,
    from: Arc<str>,
    /// It is in the queue's list of streams that may get more credit.
    pub(super) hungry: bool,
    /// It waits for more than its share, to send a larger tensor.
    pub(super) wants: bool,
    /// Bytes of its credit, where it has more than its share.
    pub(super) promised: u64,
}

/// The name of a queue, borrowed.
#[derive(Hash)]
pub(super) struct QueueName<'a>(pub(super) u16, pub(super) &'a str);

impl hashbrown::Equivalent<(u16, Box<str>)> for QueueName<'_> {
    fn equivalent(&self, key: &(u16, Box<str>)) -> bool {
        (self.0, self.1) == (key.0, &*key.1)
    }
}

impl Pushes {
    /// The queue of a task by its name; created if there is none.
    pub(super) fn queue_named(&mut self, task: u16, name: &str) -> Handle {
        if let Some(&handle) = self.names.get(&QueueName(task, name)) {
            return handle;
        }
        let queue = Queue {
            task,
            name: name.into(),
            shared: (name == MEASURE_QUEUE).then(|| Arc::new(AcceptQueue::discarding())),
            left: None,
            streams: BTreeSet::new(),
            hungry: VecDeque::new(),
            promises: Promises::default(),
            local: VecDeque::new(),
            arrived: Vec::new(),
        };
        let Ok(handle) = self.queues.insert(queue) else { unreachable!("2^32 queues do not fit in memory") };
        let before = self.names.insert((task, name.into()), handle);
        debug_assert!(before.is_none(), "the queue that was '{name}' would never be found again");
        handle
    }

    /// Tensors pushed into a queue of a local task go to `shared` from now on, first those that an earlier queue had taken and nobody
    /// accepted.
    ///
    /// # Errors
    /// InvalidArgument if it has an acceptor already, or if its name is longer than a peer may say.
    pub(in crate::node) fn open_queue(
        &mut self,
        task: u16,
        name: &str,
        shared: Arc<AcceptQueue>,
        context: &mut Context,
    ) -> Result<(), Error> {
        if name.len() > KEY_BYTES_MAX {
            let found = name.len();
            let reason = format!("the queue's name has {found} bytes, at most {KEY_BYTES_MAX} are accepted");
            return Err(Error::invalid(reason));
        }
        let handle = self.queue_named(task, name);
        let queue = self.queues.get_mut(handle).expect("just found");
        if queue.shared.is_some() {
            return Err(Error::invalid(format!("queue '{name}' already has an acceptor")));
        }
        if let Some(left) = queue.left.take() {
            shared.fill(context.settings.shard, &mut left.take_back(context.settings.shard));
        }
        queue.shared = Some(shared);
        for key in queue.streams.clone() {
            self.wants_credit(key);
        }
        self.replenish(handle, context);
        Ok(())
    }

    /// Nobody accepts from `shared` any more: pushers wait for the next acceptor. Tensors that its owner does not take out of it go to that
    /// acceptor, too.
    pub(in crate::node) fn close_queue(
        &mut self,
        task: u16,
        name: &str,
        shared: &Arc<AcceptQueue>,
        context: &mut Context,
    ) {
        let Some(&handle) = self.names.get(&QueueName(task, name)) else { return };
        if self.queues.get(handle).and_then(|queue| queue.shared.as_ref()).is_some_and(|open| Arc::ptr_eq(open, shared))
        {
            self.deliver(handle, context);
            let shard = context.settings.shard;
            let queue = self.queues.get_mut(handle).expect("just found");
            queue.left = queue.shared.take().filter(|shared| shared.count_of(shard) > 0);
            self.forget_unused_queue(handle);
        }
    }

    /// Frees what the queues of `task`, or of all tasks, had taken and nobody has accepted or will accept.
    pub(in crate::node) fn drop_left(&mut self, task: Option<u16>, shard: u16) {
        let is_of = |queue: &Queue| queue.left.is_some() && task.is_none_or(|task| queue.task == task);
        for handle in self.queues.select(is_of) {
            let left = self.queues.get_mut(handle).and_then(|queue| queue.left.take()).expect("just selected");
            drop(left.take_back(shard));
            self.forget_unused_queue(handle);
        }
    }

    /// The queues of a local task lose their acceptors.
    pub(in crate::node) fn close_queues_of(&mut self, local: u16, context: &mut Context) {
        for handle in self.queues.select(|queue| queue.task == local && !queue.discards()) {
            let queue = self.queues.get(handle).map(|queue| (queue.name.clone(), queue.shared.clone()));
            if let Some((name, Some(shared))) = queue {
                self.close_queue(local, &name, &shared, context);
            }
        }
    }

    /// There is room in the queue of that name.
    pub(in crate::node) fn replenish_named(&mut self, task: u16, name: &str, context: &mut Context) {
        if let Some(&handle) = self.names.get(&QueueName(task, name)) {
            self.replenish(handle, context);
        }
    }

    /// Every queue may have room: the node had drained, and now resumes.
    pub(in crate::node) fn replenish_all(&mut self, context: &mut Context) {
        for handle in self.queues.select(|queue| queue.shared.is_some()) {
            self.replenish(handle, context);
        }
    }

    /// Tensors of this shard in queues that have an acceptor.
    pub(in crate::node) fn unaccepted(&self, shard: u16) -> usize {
        self.queues.iter().filter_map(|(_, queue)| queue.shared.as_ref()).map(|shared| shared.count_of(shard)).sum()
    }

    pub(super) fn forget_unused_queue(&mut self, handle: Handle) {
        let unused = |queue: &Queue| {
            let is_closed = queue.shared.is_none() || queue.discards() && queue.arrived.is_empty();
            is_closed && queue.left.is_none() && queue.streams.is_empty() && queue.local.is_empty()
        };
        if self.queues.get(handle).is_some_and(unused)
            && let Some(queue) = self.queues.remove(handle)
        {
            debug_assert!(queue.arrived.is_empty(), "what came into '{}' in this turn would be lost", queue.name);
            self.names.remove(&QueueName(queue.task, &queue.name));
        }
    }

    fn wants_credit(&mut self, key: StreamKey) {
        if let Some(stream) = self.streams.get_mut(&key)
            && !stream.hungry
            && let Some(queue) = self.queues.get_mut(stream.queue)
        {
            stream.hungry = true;
            queue.hungry.push_back(key);
        }
    }

    /// There is room in a queue: waiting pushers are served in turn.
    fn replenish(&mut self, handle: Handle, context: &mut Context) {
        // A stream served here must ask again for more. Its next tensor triggers that only if the stream is looked up anew.
        self.last_stream = None;
        // Pushes of this host are served first, so that they end before the node does.
        self.fill_locally(handle, context);
        if context.draining {
            return;
        }
        let Some(queue) = self.queues.get_mut(handle) else { return };
        let Some(shared) = queue.shared.clone() else { return };
        let streams = queue.streams.len() + 1;
        let memory = context.memory.free_for(queue.memory_task()).1 / CREDIT_MEMORY_SHARE / self.streams.len().max(1);
        let most = Credit {
            messages: (shared.capacity() / streams).clamp(1, CREDIT_MESSAGES_MAX) as u64,
            bytes: (shared.bytes_max() / streams).min(memory).clamp(1, CREDIT_BYTES_MAX) as u64,
        };
        while let Some(key) = self.queues.get_mut(handle).and_then(|queue| queue.next_hungry(&shared)) {
            let Some(stream) = self.streams.get_mut(&key) else { continue };
            stream.hungry = false;
            let Some(session) = context.peers.session_mut(key.0) else { continue };
            let Some(has) = session.credit(key.1) else { continue };
            let messages = most.messages.saturating_sub(has.messages);
            let bytes = most.bytes.saturating_sub(has.bytes);
            session.grant(key.1, Credit { messages, bytes });
            context.peers.mark_dirty(key.0);
            self.reduce_promise(key, if has.bytes > most.bytes { has.bytes } else { 0 });
        }
        self.promise(handle, context);
    }

    /// A peer opens a stream.
    pub(in crate::node) fn stream_opened(&mut self, session: Handle, opened: Opened, context: &mut Context) {
        let Opened { stream, from, to, queue } = opened;
        if from == STRANGER || self.streams.contains_key(&(session, stream)) {
            // A stranger gets no credit: its pushes time out on its side, unless it opens the stream again once it is known, on its next
            // link.
            return;
        }
        let from: Arc<str> = context.pairs.peer_name(from).as_str().into();
        let handle = self.queue_named(to, &queue);
        let key = (session, stream);
        self.queues.get_mut(handle).expect("just found").streams.insert(key);
        self.streams.insert(key, Stream { queue: handle, from, hungry: false, wants: false, promised: 0 });
        self.wants_credit(key);
        self.replenish(handle, context);
    }

    /// Streams of a session have ended.
    pub(in crate::node) fn streams_closed(&mut self, session: Handle, streams: &[Handle]) {
        self.last_stream = None;
        for &stream in streams {
            let key = (session, stream);
            self.reduce_promise(key, 0);
            let Some(Stream { queue: handle, .. }) = self.streams.remove(&key) else { continue };
            let Some(queue) = self.queues.get_mut(handle) else { continue };
            queue.streams.remove(&key);
            queue.prune();
            self.forget_unused_queue(handle);
        }
    }

    /// Delivers what came in this turn, and gives credit to streams that have used theirs.
    #[inline]
    pub(in crate::node) fn deliver_arrived(&mut self, context: &mut Context) {
        if !self.filled.is_empty() {
            self.deliver_filled(context);
        }
    }

    fn deliver_filled(&mut self, context: &mut Context) {
        self.last_stream = None;
        while let Some(handle) = self.filled.pop() {
            self.deliver(handle, context);
            self.reduce_promises(handle, context);
            self.replenish(handle, context);
        }
    }

    /// Puts what came in this turn into the queue, where it can be accepted.
    fn deliver(&mut self, handle: Handle, context: &mut Context) {
        let Some(queue) = self.queues.get_mut(handle) else { return };
        let bytes: usize = queue.arrived.iter().map(AcceptedBatch::bytes).sum();
        let tensors: usize = queue.arrived.iter().map(AcceptedBatch::len).sum();
        context.reporter.counters.tensors_received += tensors as u64;
        context.reporter.counters.bytes_received += bytes as u64;
        // Without an acceptor nothing arrives; what arrived before the queue was closed is already in it.
        if let Some(shared) = &queue.shared {
            shared.fill(context.settings.shard, &mut queue.arrived);
        }
        debug_assert!(queue.arrived.is_empty(), "nobody accepts from '{}', and tensors came to it", queue.name);
    }
}

/// Takes what a session's peer pushes.
pub(in crate::node) struct Arrivals<'a> {
    pub(in crate::node) session: Handle,
    pub(in crate::node) pushes: &'a mut Pushes,
    pub(in crate::node) memory: &'a Memory,
}

impl Arrivals<'_> {
    /// A tensor came on a stream.
    ///
    /// # Errors
    /// Nobody accepts from its queue.
    #[inline]
    pub(in crate::node) fn take(&mut self, stream: Handle, tensor: Tensor) -> Result<(), Untaken> {
        let Some((queue, from)) = self.queue_of(stream) else { return Err(Untaken::Unaccepted) };
        queue.arrived.push(Accepted { from, tensor }.into());
        Ok(())
    }

    /// True if a stream's queue has an acceptor, and its task has no memory of its own for what comes.
    #[inline]
    pub(in crate::node) fn takes_together(&mut self, stream: Handle) -> bool {
        let memory = self.memory;
        self.find(stream).is_some_and(|queue| queue.shared.is_some() && !memory.has_pool(queue.memory_task()))
    }

    /// Tensors came on a stream whose queue has an acceptor.
    #[inline]
    pub(in crate::node) fn take_together(&mut self, stream: Handle, tensors: TensorBatch) {
        let (queue, from) = self.queue_of(stream).expect("just looked at");
        queue.arrived.push(AcceptedBatch::new(from, tensors));
    }

    /// The queue of a stream on which something came, and the pusher's name; `None` if nobody accepts from it.
    #[inline]
    fn queue_of(&mut self, stream: Handle) -> Option<(&mut Queue, Arc<str>)> {
        self.find(stream)?;
        let Pushes { last_stream, queues, filled, .. } = &mut *self.pushes;
        let (_, handle, from) = last_stream.as_ref()?;
        let queue = queues.get_mut(*handle).filter(|queue| queue.shared.is_some())?;
        if queue.arrived.is_empty() {
            filled.push(*handle);
        }
        Some((queue, from.clone()))
    }

    /// The queue that a stream leads to.
    #[inline]
    fn find(&mut self, stream: Handle) -> Option<&Queue> {
        let key = (self.session, stream);
        let pushes = &mut *self.pushes;
        if pushes.last_stream.as_ref().is_none_or(|(last, ..)| *last != key) {
            let found = pushes.streams.get_mut(&key)?;
            if let Some(queue) = pushes.queues.get_mut(found.queue)
                && !std::mem::replace(&mut found.hungry, true)
            {
                queue.hungry.push_back(key);
            }
            pushes.last_stream = Some((key, found.queue, found.from.clone()));
        }
        let (_, handle, _) = pushes.last_stream.as_ref()?;
        pushes.queues.get(*handle)
    }
}
