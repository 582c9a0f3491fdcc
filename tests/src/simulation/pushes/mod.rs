//! Queues that tasks open, empty and close, and what others push into them.
//!
//! All this happens on threads that are not shards, as with the engine's acceptors: shards hear later that a queue is open, has room or is
//! closed, and pushed tensors arrive in the meantime. Only a process that ends takes tensors with it. What pushers and acceptors are
//! promised is in `verdict.rs`.

mod verdict;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rand::Rng;
use sealane_fusion::node::{Node, PushRequest, SendWaiter};
use sealane_fusion::{AcceptOptions, AcceptQueue, Buffer, SendOutcome, Tensor};

use super::ledger::End;
use super::run::Simulation;
use super::workload;

/// Capacity of a queue that never fills: more than all tasks of a run push.
pub(super) const NEVER_FULL: usize = 1 << 16;
/// How often queues are emptied, and the pause in between.
const EMPTYING_LOOKS: usize = 5;
const EMPTYING_PAUSE: Duration = Duration::from_millis(50);

/// A queue, by the accepting task and a number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct QueueId {
    pub(super) task: usize,
    pub(super) queue: u32,
}

/// A queue with an acceptor.
struct Open {
    shared: Arc<AcceptQueue>,
    /// `on_room` was called.
    roomy: Arc<AtomicBool>,
    tensors_max: usize,
    since: Duration,
}

/// Tensors that were pushed together.
struct Group {
    pusher: usize,
    to: QueueId,
    host: usize,
    /// The number of the first tensor; the others' numbers follow.
    first: usize,
    count: usize,
    issued: Duration,
    deadline: Duration,
    receiver: Option<oneshot::Receiver<SendOutcome>>,
    ended: Option<(Duration, End)>,
}

struct Pushed {
    group: usize,
    bytes: usize,
    accepted: bool,
}

#[derive(Default)]
pub(super) struct Pushes {
    queues: BTreeMap<QueueId, Open>,
    /// Largest capacity of the queues that a process has opened under that name: its streams may have credit for as many tensors.
    widest: BTreeMap<QueueId, usize>,
    groups: Vec<Group>,
    open: Vec<usize>,
    pushed: Vec<Pushed>,
    /// The last accepted tensor, by pusher and queue.
    last: BTreeMap<(usize, QueueId), usize>,
    /// When a process last ended, by host.
    stopped: BTreeMap<usize, Duration>,
}

impl Pushes {
    /// Counts of tensors that were accepted, and of groups that ended with an error.
    pub(super) fn outcomes(&self) -> (usize, usize) {
        let failed = |group: &&Group| matches!(group.ended, Some((_, End::Err(_))));
        (self.pushed.iter().filter(|pushed| pushed.accepted).count(), self.groups.iter().filter(failed).count())
    }

    pub(super) fn is_open(&self, group: usize) -> bool {
        self.groups[group].ended.is_none()
    }

    /// True if the queue has taken the whole group.
    pub(super) fn is_taken(&self, group: usize) -> bool {
        matches!(self.groups[group].ended, Some((_, End::Ok)))
    }

    fn end(&mut self, group: usize, now: Duration, end: End) {
        let ended = &mut self.groups[group];
        (ended.ended, ended.receiver) = (Some((now, end)), None);
        self.open.retain(|&open| open != group);
    }
}

/// The name of a queue; one is so long that the frame that opens its stream has little room for anything else.
fn name(queue: u32) -> String {
    let padding = if queue == 1 { 900 } else { 0 };
    format!("gradients{queue}/{}", "x".repeat(padding))
}

impl Simulation {
    /// A task opens an acceptor for a queue of its own, unless it has one.
    pub(super) fn open_queue(&mut self, id: QueueId, options: AcceptOptions) -> Result<(), String> {
        let host = self.host_of(id.task);
        if !self.serves(host, id.task) || self.pushes.queues.contains_key(&id) {
            return Ok(());
        }
        let tensors_max = options.tensors_max;
        self.trace.note(self.now, format_args!("{id:?} opens for {tensors_max} tensors"));
        let roomy = Arc::new(AtomicBool::new(false));
        let told = roomy.clone();
        let on_room = Box::new(move || told.store(true, Ordering::Relaxed));
        let shared = Arc::new(AcceptQueue::new(options, on_room));
        let widest = self.pushes.widest.entry(id).or_default();
        *widest = tensors_max.max(*widest);
        let since = self.now;
        self.pushes.queues.insert(id, Open { shared: shared.clone(), roomy, tensors_max, since });
        let place = self.place_of(id.task);
        let mut is_open = true;
        for shard in 0..self.hosts[host].seats.len() {
            let shared = shared.clone();
            let open = move |node: &mut Node| {
                if let Err(error) = node.open_queue(place, &name(id.queue), shared.clone()) {
                    shared.close(error);
                }
            };
            is_open &= self.try_submit(host, shard, Box::new(open));
        }
        if !is_open {
            // As in the engine, which tells the acceptor that the mailbox is full.
            self.drop_acceptor(id);
        }
        Ok(())
    }

    /// Drops the acceptor of a queue, sometimes after taking out what is in the queue.
    pub(super) fn close_queue(&mut self, id: QueueId) -> Result<(), String> {
        if self.random.random_bool(0.5) {
            self.take(id, usize::MAX)?;
        }
        self.drop_acceptor(id);
        Ok(())
    }

    /// Does what the engine does when an acceptor is dropped; its shards hear of it later.
    fn drop_acceptor(&mut self, id: QueueId) {
        let Some(Open { shared, .. }) = self.pushes.queues.remove(&id) else { return };
        self.trace.note(self.now, format_args!("{id:?} closes"));
        let (host, place) = (self.host_of(id.task), self.place_of(id.task));
        for shard in 0..self.hosts[host].seats.len() {
            let shared = shared.clone();
            self.submit(host, shard, Box::new(move |node| node.close_queue(place, &name(id.queue), &shared)));
        }
    }

    /// Takes up to `most` tensors out of a queue.
    pub(super) fn take(&mut self, id: QueueId, most: usize) -> Result<(), String> {
        let Some(open) = self.pushes.queues.get(&id) else { return Ok(()) };
        let mut items = Vec::new();
        open.shared.take(most, &mut items).map_err(|error| format!("{id:?} stands, and says '{error}'"))?;
        if open.roomy.swap(false, Ordering::Relaxed) {
            let (host, place) = (self.host_of(id.task), self.place_of(id.task));
            for shard in 0..self.hosts[host].seats.len() {
                self.submit(host, shard, Box::new(move |node| node.replenish_named(place, &name(id.queue))));
            }
        }
        self.accepted(id, items)
    }

    /// Takes all tensors out of every queue.
    pub(super) fn take_all(&mut self) -> Result<(), String> {
        let open: Vec<QueueId> = self.pushes.queues.keys().copied().collect();
        open.into_iter().try_for_each(|id| self.take(id, usize::MAX))
    }

    /// Opens, empties and closes each queue that a task ever had, so that nobody keeps any tensors.
    pub(super) fn empty_queues(&mut self) -> Result<(), String> {
        let all: Vec<QueueId> = self.pushes.widest.keys().copied().collect();
        for &id in &all {
            self.open_queue(id, AcceptOptions::default())?;
        }
        for _ in 0..EMPTYING_LOOKS {
            self.run_until(self.now + EMPTYING_PAUSE)?;
            self.take_all()?;
        }
        all.into_iter().for_each(|id| self.drop_acceptor(id));
        self.run_until(self.now + EMPTYING_PAUSE)
    }

    /// Pushes tensors of these lengths; returns the group's number, or `None` if the host is down.
    pub(super) fn push(
        &mut self,
        pusher: usize,
        to: QueueId,
        lengths: &[usize],
        timeout: Duration,
    ) -> Result<Option<usize>, String> {
        let host = self.host_of(pusher);
        let Some((shard, pair)) = self.seat_of(host, pusher, to.task)? else { return Ok(None) };
        let (number, first, count) = (self.pushes.groups.len(), self.pushes.pushed.len(), lengths.len());
        self.trace.note(
            self.now,
            format_args!("push {number} of {count} tensors from {first} by {pusher} to {to:?}, {timeout:?}"),
        );
        let slab = self.hosts[host].seats[shard].node.send_slab();
        let tensor = |(&bytes, number): (&usize, usize)| {
            let mut buffer = slab.allocate(bytes).unwrap_or_else(|_| Buffer::from_vec(vec![0; bytes]));
            workload::fill(workload::seed_of_pushed(pusher, to, number), number, &mut buffer);
            Tensor::new(workload::meta(number, bytes), buffer).map_err(|error| error.to_string())
        };
        let tensors = lengths.iter().zip(first..).map(tensor).collect::<Result<Vec<_>, String>>()?;
        let pushed = lengths.iter().map(|&bytes| Pushed { group: number, bytes, accepted: false });
        self.pushes.pushed.extend(pushed);
        let (sender, receiver) = oneshot::channel();
        let (issued, deadline, receiver) = (self.now, self.now + timeout, Some(receiver));
        self.pushes.groups.push(Group { pusher, to, host, first, count, issued, deadline, receiver, ended: None });
        self.pushes.open.push(number);
        let (now, deadline) = (self.instant(), self.base + deadline);
        let (queue, tensors, waiter) = (&*name(to.queue), tensors.into_iter(), SendWaiter::Channel(sender));
        let node = &mut self.hosts[host].seats[shard].node;
        node.push(now, PushRequest { pair, queue, tensors, deadline, waiter });
        self.settle(host, shard)?;
        Ok(Some(number))
    }

    /// A process has ended, and its queues and pushes with it.
    pub(super) fn forget_pushes_of(&mut self, host: usize) {
        let tasks_per_host = self.climate.tasks_per_host;
        let stays = |id: &QueueId| id.task / tasks_per_host != host;
        self.pushes.queues.retain(|id, _| stays(id));
        self.pushes.widest.retain(|id, _| stays(id));
        self.pushes.stopped.insert(host, self.now);
        let is_of = |group: &usize| self.pushes.groups[*group].host == host;
        let lost: Vec<usize> = self.pushes.open.iter().copied().filter(is_of).collect();
        lost.into_iter().for_each(|group| self.pushes.end(group, self.now, End::Lost));
    }
}
