//! Accepting: the queues of this node's tasks, the streams that feed them, and who gets credit.

#[cfg(feature = "fuzzing")]
mod invariants;

use std::collections::VecDeque;
use std::sync::Arc;

use hashbrown::HashMap;
use sealane_transport::session::{Credit, Opened, Untaken};
use sealane_transport::{Arena, Error, Handle, Tensor};

use super::pushes::LocalPush;
use super::{Node, STRANGER};
use crate::queue::{AcceptQueue, Accepted};

/// A stream's credit in tensors at most: with fewer, a pusher of small ones would wait for its credit.
const CREDIT_MESSAGES_MAX: usize = 1024;
/// A stream's credit in bytes at most: some milliseconds of a fast link.
const CREDIT_BYTES_MAX: usize = 16 << 20;

/// A stream, by its session and its handle there.
pub(super) type StreamKey = (Handle, Handle);

/// A queue, from the first push or accept on that names it.
pub(super) struct Queue {
    pub(super) task: u16,
    pub(super) name: Box<str>,
    /// Where tensors go; none while nobody accepts.
    pub(super) shared: Option<Arc<AcceptQueue>>,
    /// Where they went until nobody accepted any more, if tensors of this shard are still there: they are the next one's.
    left: Option<Arc<AcceptQueue>>,
    /// Streams that feed it.
    streams: Vec<StreamKey>,
    /// Those of them that may have more credit than they have.
    hungry: VecDeque<StreamKey>,
    /// Pushes of this node that wait for room.
    pub(super) local: VecDeque<LocalPush>,
    /// Tensors that came in this turn; none without a queue.
    arrived: Vec<Accepted>,
}

/// The engine stops: whoever accepts must not wait for ever.
impl Drop for Queue {
    fn drop(&mut self) {
        if let Some(shared) = &self.shared {
            shared.close(Error::unavailable("this engine", "it has stopped"));
        }
    }
}

/// Where a stream leads.
pub(super) struct Stream {
    queue: Handle,
    from: Arc<str>,
    /// It is in the queue's list of those who want more credit.
    hungry: bool,
}

/// The name of a queue, borrowed.
#[derive(Hash)]
struct QueueName<'a>(u16, &'a str);

impl hashbrown::Equivalent<(u16, Box<str>)> for QueueName<'_> {
    fn equivalent(&self, key: &(u16, Box<str>)) -> bool {
        (self.0, self.1) == (key.0, &*key.1)
    }
}

impl Node {
    /// The queue of a task by its name; made if there is none.
    pub(super) fn queue_named(&mut self, task: u16, name: &str) -> Handle {
        if let Some(&handle) = self.queue_names.get(&QueueName(task, name)) {
            return handle;
        }
        let queue = Queue {
            task,
            name: name.into(),
            shared: None,
            left: None,
            streams: Vec::new(),
            hungry: VecDeque::new(),
            local: VecDeque::new(),
            arrived: Vec::new(),
        };
        let Ok(handle) = self.queues.insert(queue) else { unreachable!("2^32 queues do not fit in memory") };
        self.queue_names.insert((task, name.into()), handle);
        handle
    }

    /// Tensors pushed into a queue of a local task go to `shared` from now on, first those that were taken before and that
    /// nobody accepted.
    ///
    /// # Errors
    /// InvalidArgument if someone accepts from it already.
    pub fn open_queue(&mut self, task: u16, name: &str, shared: Arc<AcceptQueue>) -> Result<(), Error> {
        let handle = self.queue_named(task, name);
        let queue = self.queues.get_mut(handle).expect("just found");
        if queue.shared.is_some() {
            return Err(Error::invalid(format!("queue '{name}' has an acceptor already")));
        }
        if let Some(left) = queue.left.take() {
            shared.fill(self.context.settings.shard, &mut left.take_back(self.context.settings.shard));
        }
        queue.shared = Some(shared);
        for key in queue.streams.clone() {
            self.wants_credit(key);
        }
        self.replenish(handle);
        Ok(())
    }

    /// Nobody accepts from `shared` any more: pushers wait for the next who does. What is in it, and is not taken out by
    /// whoever has it, is the next one's too.
    pub fn close_queue(&mut self, task: u16, name: &str, shared: &Arc<AcceptQueue>) {
        let Some(&handle) = self.queue_names.get(&QueueName(task, name)) else { return };
        if self.queues.get(handle).and_then(|queue| queue.shared.as_ref()).is_some_and(|open| Arc::ptr_eq(open, shared))
        {
            self.deliver(handle);
            let shard = self.context.settings.shard;
            let queue = self.queues.get_mut(handle).expect("just found");
            queue.left = queue.shared.take().filter(|shared| shared.count_of(shard) > 0);
            self.forget_unused_queue(handle);
        }
    }

    /// Frees what the queues of a task, of all tasks without one, had taken and nobody accepted: nobody will.
    pub(super) fn drop_left(&mut self, task: Option<u16>) {
        let is_of = |queue: &Queue| queue.left.is_some() && task.is_none_or(|task| queue.task == task);
        for handle in self.queues.select(is_of) {
            let left = self.queues.get_mut(handle).and_then(|queue| queue.left.take()).expect("just selected");
            drop(left.take_back(self.context.settings.shard));
            self.forget_unused_queue(handle);
        }
    }

    /// Nobody accepts from the queues of a local task any more.
    pub(super) fn close_queues_of(&mut self, local: u16) {
        for handle in self.queues.select(|queue| queue.task == local) {
            let queue = self.queues.get(handle).map(|queue| (queue.name.clone(), queue.shared.clone()));
            if let Some((name, Some(shared))) = queue {
                self.close_queue(local, &name, &shared);
            }
        }
    }

    /// There is room in the queue of that name.
    pub fn replenish_named(&mut self, task: u16, name: &str) {
        if let Some(&handle) = self.queue_names.get(&QueueName(task, name)) {
            self.replenish(handle);
        }
    }

    pub(super) fn forget_unused_queue(&mut self, handle: Handle) {
        let unused = |queue: &Queue| {
            queue.shared.is_none() && queue.left.is_none() && queue.streams.is_empty() && queue.local.is_empty()
        };
        if self.queues.get(handle).is_some_and(unused)
            && let Some(queue) = self.queues.remove(handle)
        {
            self.queue_names.remove(&QueueName(queue.task, &queue.name));
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

    /// There is room in a queue: whoever waits for it is served in turn.
    fn replenish(&mut self, handle: Handle) {
        // Whoever is served here must ask again: the next tensor says so only if its stream is looked up.
        self.last_stream = None;
        self.fill_locally(handle);
        let Some(queue) = self.queues.get_mut(handle) else { return };
        let Some(shared) = queue.shared.clone() else { return };
        let streams = queue.streams.len() + 1;
        let most = Credit {
            messages: (shared.capacity() / streams).clamp(1, CREDIT_MESSAGES_MAX) as u64,
            bytes: (shared.bytes_max() / streams).clamp(1, CREDIT_BYTES_MAX) as u64,
        };
        while !queue.hungry.is_empty() && shared.room().is_some() {
            let Some(key) = queue.hungry.pop_front() else { break };
            let Some(stream) = self.streams.get_mut(&key) else { continue };
            stream.hungry = false;
            let Some(peer) = self.context.peers.get_mut(key.0) else { continue };
            let Some(has) = peer.session.credit(key.1) else { continue };
            let messages = most.messages.saturating_sub(has.messages);
            let bytes = most.bytes.saturating_sub(has.bytes);
            peer.session.grant(key.1, Credit { messages, bytes });
            self.context.peers.mark_dirty(key.0);
        }
    }

    /// A peer begins a stream.
    pub(super) fn stream_opened(&mut self, session: Handle, opened: Opened) {
        let Opened { stream, from, to, queue } = opened;
        if from == STRANGER || self.streams.contains_key(&(session, stream)) {
            // A stranger gets no credit, and its pushes end by their deadlines there, unless it opens the stream again
            // when it is known: on its next link.
            return;
        }
        let from: Arc<str> = self.context.pairs.peer_name(from).as_str().into();
        let handle = self.queue_named(to, &queue);
        let key = (session, stream);
        self.queues.get_mut(handle).expect("just found").streams.push(key);
        self.streams.insert(key, Stream { queue: handle, from, hungry: false });
        self.wants_credit(key);
        self.replenish(handle);
    }

    /// Streams of a session have ended.
    pub(super) fn streams_closed(&mut self, session: Handle, streams: &[Handle]) {
        self.last_stream = None;
        for &stream in streams {
            let key = (session, stream);
            let Some(Stream { queue: handle, .. }) = self.streams.remove(&key) else { continue };
            let Some(queue) = self.queues.get_mut(handle) else { continue };
            queue.streams.retain(|other| *other != key);
            self.forget_unused_queue(handle);
        }
    }

    /// Hands over what came, and gives credit to those who have used theirs.
    pub(super) fn settle_queues(&mut self) {
        self.last_stream = None;
        while let Some(handle) = self.filled_queues.pop() {
            self.deliver(handle);
            self.replenish(handle);
        }
    }

    /// Puts what came in this turn where it can be accepted.
    fn deliver(&mut self, handle: Handle) {
        let Some(queue) = self.queues.get_mut(handle) else { return };
        let bytes: usize = queue.arrived.iter().map(|item| item.tensor.len()).sum();
        self.context.reporter.counters.tensors_received += queue.arrived.len() as u64;
        self.context.reporter.counters.bytes_received += bytes as u64;
        // Without a queue nothing arrives, and what arrived before it was closed is in it.
        if let Some(shared) = &queue.shared {
            shared.fill(self.context.settings.shard, &mut queue.arrived);
        }
    }
}

/// What a node needs to take pushes in.
pub(super) struct Arrivals<'a> {
    pub(super) session: Handle,
    pub(super) queues: &'a mut Arena<Queue>,
    pub(super) streams: &'a mut HashMap<StreamKey, Stream>,
    pub(super) last_stream: &'a mut Option<(StreamKey, Handle, Arc<str>)>,
    pub(super) filled_queues: &'a mut Vec<Handle>,
}

impl Arrivals<'_> {
    /// A tensor came on a stream.
    ///
    /// # Errors
    /// Nobody accepts it.
    #[inline]
    pub(super) fn take(&mut self, stream: Handle, tensor: Tensor) -> Result<(), Untaken> {
        let key = (self.session, stream);
        if self.last_stream.as_ref().is_none_or(|(last, ..)| *last != key) {
            let Some(found) = self.streams.get_mut(&key) else { return Err(Untaken::Unaccepted) };
            if let Some(queue) = self.queues.get_mut(found.queue)
                && !std::mem::replace(&mut found.hungry, true)
            {
                queue.hungry.push_back(key);
            }
            *self.last_stream = Some((key, found.queue, found.from.clone()));
        }
        let Some((_, handle, from)) = &*self.last_stream else { return Err(Untaken::Unaccepted) };
        let queue = self.queues.get_mut(*handle).filter(|queue| queue.shared.is_some());
        let Some(queue) = queue else { return Err(Untaken::Unaccepted) };
        if queue.arrived.is_empty() {
            self.filled_queues.push(*handle);
        }
        queue.arrived.push(Accepted { from: from.clone(), tensor });
        Ok(())
    }
}
