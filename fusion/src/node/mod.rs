//! One shard's share of the engine, without threads or sockets: sessions with peers, the rendezvous table, and who
//! waits for what.
//!
//! Recvs between two tasks of the same node need neither session nor link (`local.rs`).
//!
//! Links are given to it, made by whoever owns it: the engine makes TCP sockets, the simulation in `tests/` makes
//! queues. [`Node::turn`] moves what there is to move; [`Node::poll_order`] says which connections are wanted;
//! time is an argument. Bounded by [`NodeSettings`] and by what its sessions are bounded by.

mod batches;
mod calls;
mod cells;
mod connect;
mod context;
mod counters;
mod events;
mod local;
mod local_pulls;
mod memory;
mod outcomes;
mod peer;
mod placement;
mod plans;
mod pushes;
mod queues;
mod reporter;
mod schedule;
mod turn;

use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::Arc;
use std::task::Waker;
use std::time::{Duration, Instant};

use hashbrown::HashMap;
use sealane_runtime::Slab;
use sealane_transport::endpoint_map::{EndpointMap, TaskName, TransportAddress};
use sealane_transport::error::LinkError;
use sealane_transport::lane::{lane, shard_of};
use sealane_transport::limits::{HELLO_BYTES_MAX, TASKS_PER_HELLO};
use sealane_transport::session::{Charges, Event};
use sealane_transport::trace::{Recorder, TraceSender};
use sealane_transport::{Arena, Error, Handle, SessionLimits};

use crate::metrics::NodeMetrics;
use crate::rendezvous::{EndedSteps, Table};
use crate::shelf::{PublishedShelf, Watcher};
pub use batches::{BatchWaiter, FusedRequest};
pub use calls::{RecvRequest, Ticket};
use cells::Sender;
pub use cells::{ClientCall, ClientOutcome, PullWaiter, RecvWaiter, SendWaiter};
pub use connect::{Answer, ConnectOrder, DialFailure, DialFailureKind};
use context::Context;
pub use counters::{CallerCounters, Counters};
use local::LocalRecvs;
use memory::Memory;
pub use memory::Pool;
use peer::Peer;
pub use plans::PullRequest;
use plans::{Plan, UnderWay};
use pushes::PushGroup;
pub use pushes::PushRequest;
use queues::{Queue, Stream, StreamKey};
use reporter::Reporter;
use schedule::Schedule;

/// How messages of one turn leave.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Fuse {
    /// Each in a write of its own.
    Off,
    /// All that a turn has queued for a peer in one write.
    #[default]
    Turn,
}

/// What a node must know; the same for all shards of an engine but `shard`.
#[derive(Debug, Clone)]
pub struct NodeSettings {
    /// This side's transport addresses, as peers find them in their map.
    pub addresses: Vec<TransportAddress>,
    /// The tasks served here, at most 4,096, each with the place of its address in `addresses`.
    pub tasks: Vec<(TaskName, u16)>,
    /// This shard.
    pub shard: u16,
    /// All shards of this engine.
    pub shards: u16,
    /// Drawn when the process starts; another one means a restart.
    pub incarnation: u64,
    /// Limits of each session.
    pub session: SessionLimits,
    /// Tensors that wait or are lent at most. Default 1,048,576.
    pub deposited_tensors_max: usize,
    /// Keys that are published at most; plans name as many that are not. Default 1,048,576.
    pub published_tensors_max: usize,
    /// Links at most; further callers are rejected. Default 4,096.
    pub links_max: usize,
    /// How long requests wait for a connection. Default 120 s.
    pub connect_timeout: Duration,
    /// How long a tensor stays lent to a peer that has no link. Default 120 s.
    pub lease: Duration,
    /// How messages leave. Default `Turn`.
    pub fuse: Fuse,
    /// Why a link is of the kind that it is, for the log.
    pub path_reason: String,
    /// Feature bits of the greeting.
    pub features: u64,
}

/// A task of another engine, or of this one, as a peer.
struct PeerTask {
    name: TaskName,
    address: TransportAddress,
    /// The pairs with it.
    pairs: Vec<u32>,
}

/// A local task and a peer task.
struct Pair {
    local: u16,
    peer: u32,
    lane: u32,
    /// The local task's name, for those who get its tensors.
    local_name: Arc<str>,
    /// False if another shard of this engine serves the pair.
    owned: bool,
    /// The same two tasks from the other's side, if the peer is a task of this node as well.
    mirror: Option<u32>,
    /// The session that it uses, once known.
    session: Option<Handle>,
}

/// Whom a session is with.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct SessionKey {
    /// Which of this side's transport addresses it goes by.
    via: u16,
    /// The peer's.
    address: TransportAddress,
    /// The peer's shard; `None` until its number of shards is known.
    shard: Option<u16>,
}

/// The number of a peer's task that this side's endpoint map does not name.
const STRANGER: u32 = u32::MAX;

/// See the module.
pub struct Node {
    context: Context,
    map: Arc<EndpointMap>,
    peer_tasks: Vec<PeerTask>,
    peer_numbers: HashMap<TaskName, u32>,
    pairs: Vec<Pair>,
    pair_numbers: HashMap<(u16, u32), u32>,
    /// The pairs of each local task, by its place.
    pairs_of_tasks: Vec<Vec<u32>>,
    /// Shards of each transport address that has been met.
    shards_at: HashMap<TransportAddress, u16>,
    peers: Arena<Peer>,
    sessions: HashMap<SessionKey, Handle>,
    /// Requests that went to another session than their tickets say.
    moved: HashMap<Ticket, Ticket>,
    local: LocalRecvs,
    shelf: PublishedShelf,
    plans: Arena<Plan>,
    pulls: Arena<UnderWay>,
    /// Pulls from this node's shelf that have something to copy.
    local_pulls: VecDeque<Handle>,
    /// No deadline of a pull from this node's shelf is earlier.
    local_pulls_earliest: Option<Instant>,
    push_groups: Arena<PushGroup>,
    queues: Arena<Queue>,
    queue_names: HashMap<(u16, Box<str>), Handle>,
    streams: HashMap<StreamKey, Stream>,
    /// The stream of the last tensor, which most often is that of the next, with its queue and its pusher.
    last_stream: Option<(StreamKey, Handle, Arc<str>)>,
    /// Queues into which something was pushed in this turn.
    filled_queues: Vec<Handle>,
    /// No deadline of a push to a task of this node is earlier.
    local_pushes_earliest: Option<Instant>,
    /// Kept to reuse its memory; empty between calls.
    watchers: Vec<Watcher>,
    table: Table<Sender>,
    ended: EndedSteps,
    /// Kept to reuse its memory; empty between calls.
    events: VecDeque<Event<RecvWaiter, Handle>>,
    /// Sessions with something to send.
    dirty: Vec<Handle>,
    /// Sessions whose link took less than there was.
    blocked: Vec<Handle>,
    /// Sessions whose link has taken nothing for long, since the owner last looked.
    stuck: Vec<Handle>,
    /// Sessions whose link is read every turn.
    hot: Vec<Handle>,
    /// Sessions that got a link since the owner last looked.
    new_links: Vec<Handle>,
    schedule: Schedule,
    orders: VecDeque<ConnectOrder>,
    /// Sessions that a recorder has been given to.
    sessions_traced: u64,
    /// Sessions whose figures have changed since they were shown.
    unshown: Vec<Handle>,
    links: usize,
    /// The number of the last life that a session began; new sessions start there, so that a peer's never goes down.
    lives: u64,
}

impl Node {
    /// A node without peers. Tensors arrive in `receive_slab` unless the consumer brings memory; `send_slab` is for
    /// producers on this shard.
    ///
    /// # Errors
    /// InvalidArgument with more tasks than a greeting can name.
    pub fn new(
        settings: NodeSettings,
        map: Arc<EndpointMap>,
        send_slab: Slab,
        receive_slab: Slab,
    ) -> Result<Node, Error> {
        check_tasks(&settings.tasks)?;
        Ok(Node {
            peer_tasks: Vec::new(),
            peer_numbers: HashMap::new(),
            pairs: Vec::new(),
            pair_numbers: HashMap::new(),
            pairs_of_tasks: Vec::new(),
            shards_at: HashMap::new(),
            peers: Arena::new(settings.links_max.saturating_mul(2)),
            sessions: HashMap::new(),
            moved: HashMap::new(),
            local: LocalRecvs::new(settings.session.queued_requests_max),
            shelf: PublishedShelf::new(settings.published_tensors_max),
            plans: Arena::new(usize::MAX),
            pulls: Arena::new(usize::MAX),
            local_pulls: VecDeque::new(),
            local_pulls_earliest: None,
            push_groups: Arena::new(usize::MAX),
            queues: Arena::new(usize::MAX),
            queue_names: HashMap::new(),
            streams: HashMap::new(),
            last_stream: None,
            filled_queues: Vec::new(),
            local_pushes_earliest: None,
            watchers: Vec::new(),
            table: Table::new(settings.deposited_tensors_max),
            ended: EndedSteps::default(),
            events: VecDeque::new(),
            dirty: Vec::new(),
            blocked: Vec::new(),
            stuck: Vec::new(),
            hot: Vec::new(),
            new_links: Vec::new(),
            schedule: Schedule::default(),
            orders: VecDeque::new(),
            sessions_traced: 0,
            unshown: Vec::new(),
            links: 0,
            lives: 0,
            context: Context {
                settings,
                reporter: Reporter::new(),
                memory: Memory::new(send_slab, receive_slab),
                draining: false,
            },
            map,
        })
    }

    /// Bytes of tensors that tasks of this shard have received so far.
    #[inline]
    pub fn bytes_received(&self) -> u64 {
        self.context.reporter.counters.bytes_received
    }

    /// The slab from which producers on this shard take memory.
    pub fn send_slab(&self) -> &Slab {
        self.context.memory.send_slab()
    }

    /// What this node is set to.
    pub fn settings(&self) -> &NodeSettings {
        &self.context.settings
    }

    /// What has happened so far.
    pub fn counters(&self) -> Counters {
        Counters {
            links: self.links as u64,
            slab_send_bytes: self.context.memory.send_slab().in_use_bytes() as u64,
            slab_receive_bytes: self.context.memory.receive_slab().in_use_bytes() as u64,
            deposits: self.table.deposits() as u64,
            parked: self.table.parked() as u64,
            published: self.shelf.published() as u64,
            ..self.context.reporter.counters
        }
    }

    /// Tells a listener of every call from now on, and of all that becomes of it. Before the first session.
    pub fn set_trace(&mut self, sender: TraceSender) {
        self.context.reporter.recorder = Some(Recorder::new(sender, self.context.settings.shard));
    }

    /// Tells the listener of a trace, if there is one, what it has not heard.
    pub(crate) fn flush_trace(&self) {
        if let Some(recorder) = &self.context.reporter.recorder {
            recorder.flush();
        }
    }

    /// What this node tells of itself, for other threads.
    pub(crate) fn metrics(&self) -> &Arc<NodeMetrics> {
        &self.context.reporter.metrics
    }

    /// Shows other threads what has changed of the sessions.
    pub(crate) fn show_peers(&mut self) {
        for handle in self.unshown.drain(..) {
            if let Some(peer) = self.peers.get_mut(handle) {
                peer.show();
            }
        }
    }

    /// The place of a local task in this side's greeting.
    ///
    /// # Errors
    /// NotFound if it is not served here.
    pub fn local_task(&self, name: &str) -> Result<u16, Error> {
        self.place_of(name).ok_or_else(|| Error::NotFound {
            task: name.into(),
            reason: format!("it is not among the {} tasks of this engine", self.context.settings.tasks.len()).into(),
        })
    }

    fn place_of(&self, name: &str) -> Option<u16> {
        self.context.settings.tasks.iter().position(|(task, _)| task.as_str() == name).map(|place| place as u16)
    }

    /// The number of a local task as a peer of others here.
    fn number_of_local(&mut self, local: u16) -> Option<u32> {
        let name = self.context.settings.tasks[usize::from(local)].0.clone();
        self.number_of(name.as_str())
    }

    /// The number of the pair of a local task and a peer.
    ///
    /// # Errors
    /// NotFound if the peer is not in the endpoint map, InvalidArgument if another shard serves the pair.
    pub fn pair(&mut self, local: u16, peer: &str) -> Result<u32, Error> {
        let number = self.number_of(peer).ok_or_else(|| Error::NotFound {
            task: peer.into(),
            reason: "the endpoint map has no line for it; add one and reload".into(),
        })?;
        let pair = self.pair_of(local, number);
        if self.pairs[pair as usize].owned {
            return Ok(pair);
        }
        let owner = shard_of(self.pairs[pair as usize].lane, usize::from(self.context.settings.shards));
        let here = self.context.settings.shard;
        Err(Error::invalid(format!("the pair with {peer} is served by shard {owner}, this is shard {here}")))
    }

    /// The number of a task in the map.
    fn number_of(&mut self, name: &str) -> Option<u32> {
        if let Some(&number) = self.peer_numbers.get(name) {
            return Some(number);
        }
        let address = self.map.resolve(name)?.clone();
        let name = name.parse::<TaskName>().ok()?;
        let number = self.peer_tasks.len() as u32;
        self.peer_tasks.push(PeerTask { name: name.clone(), address, pairs: Vec::new() });
        self.peer_numbers.insert(name, number);
        Some(number)
    }

    fn pair_of(&mut self, local: u16, peer: u32) -> u32 {
        if let Some(&pair) = self.pair_numbers.get(&(local, peer)) {
            return pair;
        }
        let names = (&self.context.settings.tasks[usize::from(local)].0, &self.peer_tasks[peer as usize].name);
        let lane = lane(names.0.as_str(), names.1.as_str());
        let owned =
            shard_of(lane, usize::from(self.context.settings.shards)) == usize::from(self.context.settings.shard);
        let pair = self.pairs.len() as u32;
        let local_name = names.0.as_str().into();
        self.pairs.push(Pair { local, peer, lane, local_name, owned, mirror: None, session: None });
        self.pair_numbers.insert((local, peer), pair);
        self.peer_tasks[peer as usize].pairs.push(pair);
        if self.pairs_of_tasks.len() <= usize::from(local) {
            self.pairs_of_tasks.resize(usize::from(local) + 1, Vec::new());
        }
        self.pairs_of_tasks[usize::from(local)].push(pair);
        self.find_mirror(pair);
        pair
    }

    /// Looks whether the peer of a pair is a task of this node too.
    fn find_mirror(&mut self, pair: u32) {
        let Pair { local, peer, .. } = self.pairs[pair as usize];
        let producer = self.place_of(self.peer_tasks[peer as usize].name.as_str());
        let (Some(producer), Some(consumer)) = (producer, self.number_of_local(local)) else { return };
        // Not yet known from the other side: that one finds this one.
        let mirror = match self.pair_numbers.get(&(producer, consumer)) {
            Some(&mirror) => mirror,
            None => self.pair_of(producer, consumer),
        };
        self.pairs[pair as usize].mirror = Some(mirror);
        self.pairs[mirror as usize].mirror = Some(pair);
        if self.pairs[pair as usize].owned {
            let task = self.context.settings.tasks[usize::from(local)].0.as_str();
            let peer = self.peer_tasks[peer as usize].name.as_str();
            tracing::info!(task, peer, link = "memory", reason = "this engine serves both tasks", "path");
        }
    }

    /// Takes a new endpoint map, and more tasks to serve, on the same addresses. Requests under way end on the links they
    /// have; later ones go to the new addresses. Links are made again whose greeting named tasks that the old map did not
    /// have, or to whose address the new map adds a task, and all of them if there are new tasks here, so that peers learn of
    /// them.
    ///
    /// # Errors
    /// InvalidArgument if these are more tasks than a greeting can name; nothing has changed.
    pub fn set_map(&mut self, map: Arc<EndpointMap>, more: Vec<(TaskName, u16)>) -> Result<(), Error> {
        let grown = !more.is_empty();
        let tasks = [self.context.settings.tasks.as_slice(), &more].concat();
        check_tasks(&tasks)?;
        self.context.settings.tasks = tasks;
        for task in &mut self.peer_tasks {
            if let Some(address) = map.resolve(task.name.as_str()) {
                task.address = address.clone();
            }
        }
        for pair in &mut self.pairs {
            pair.session = None;
        }
        let before = std::mem::replace(&mut self.map, map);
        // Who was believed to be at an address has to show anew that it is those too who were added there.
        let gains = |address: &TransportAddress| {
            self.map.tasks_at(address).any(|task| before.resolve(task.as_str()) != Some(address))
        };
        let is_stale = |peer: &Peer| grown || peer.has_strangers || gains(&peer.address);
        for handle in self.peers.select(|peer| peer.link.is_some() && is_stale(peer)) {
            self.lose(self.context.reporter.clock, handle, &LinkError::Closed);
        }
        if grown {
            let count = self.context.settings.tasks.len() as u16;
            self.peers.iter_mut().for_each(|(_, peer)| peer.session.set_tasks(count));
            (0..self.pairs.len() as u32).for_each(|pair| self.find_mirror(pair));
        }
        Ok(())
    }

    /// From now on new calls of clients end with Unavailable, and so do requests of peers for tensors that are not
    /// there: what is under way can finish.
    pub fn drain(&mut self) {
        self.context.draining = true;
        // No send can come for these any more.
        let parked = self.table.take_parked();
        self.refuse_parked(parked, &draining());
    }

    /// Tensors lent to peers or being copied, and requests that wait here.
    pub fn under_way(&self) -> usize {
        let lent: usize = self.peers.iter().map(|(_, peer)| peer.session.unreleased()).sum();
        lent + self.table.parked() + usize::from(self.local.is_copying())
    }

    /// Gives a local task memory of its own for tensors that arrive, or takes it away.
    pub fn set_pool(&mut self, task: u16, pool: Option<Rc<dyn Pool>>) {
        self.context.memory.set_pool(task, pool);
    }

    /// The slab for tensors that arrive where neither the caller nor its task brings memory.
    pub fn receive_slab(&self) -> &Slab {
        self.context.memory.receive_slab()
    }

    /// Swaps the outcomes of clients' calls that wait with `other`, which must be empty.
    pub fn swap_client_outcomes(&mut self, other: &mut VecDeque<(ClientCall, ClientOutcome)>) {
        debug_assert!(other.is_empty());
        std::mem::swap(&mut self.context.reporter.outcomes.clients, other);
    }

    /// True if calls of clients have ended.
    #[inline]
    pub fn has_client_outcomes(&self) -> bool {
        !self.context.reporter.outcomes.clients.is_empty()
    }

    /// The client process of a local task is gone, or another one: its tensors that wait are freed, requests that wait
    /// for them end with Unavailable, and so do its own; its plans and queues are closed.
    pub fn forget_client(&mut self, local: u16, reason: &str) {
        let name = self.context.settings.tasks[usize::from(local)].0.clone();
        let error = Error::unavailable(name.as_str(), reason);
        self.end_task(local, &error);
        self.end_local(local, &error);
        self.end_local_pulls(|consumer| consumer == local, &error);
        self.withdraw_all(local, &error);
        self.end_local_pushes(|pair| pair.local == local, &error);
        for handle in self.peers.select(|_| true) {
            let peer = self.peers.get_mut(handle).expect("just selected");
            peer.session.end_requests_of(local, &error);
            self.settle_events(handle);
            self.mark_dirty(handle);
        }
        // Whoever keeps their books may have lost them.
        self.close_plans_of(local);
        self.close_queues_of(local);
        // What these have left as well.
        self.drop_left(Some(local));
    }

    /// Moves the wakers of futures that can go on into `into`. Waking is the owner's, once it no longer holds the node.
    pub fn take_wakers(&mut self, into: &mut Vec<Waker>) {
        into.append(&mut self.context.reporter.outcomes.wakers);
    }

    /// True if there are wakers or orders to take.
    #[inline]
    pub fn has_news(&self) -> bool {
        !self.context.reporter.outcomes.wakers.is_empty() || !self.orders.is_empty()
    }

    /// True if [`poll_order`](Self::poll_order) has something.
    pub fn has_orders(&self) -> bool {
        !self.orders.is_empty()
    }

    /// Keys that are published or named by plans.
    pub fn keys_on_shelf(&self) -> usize {
        self.shelf.keys()
    }

    /// Panics if something that is counted is not there, or the other way round: what each peer has by its quota is what it has
    /// on its sessions, and a slot of the shelf stands for a tensor or for plans. Between turns.
    pub fn check_quotas(&self) {
        let mut peers: Vec<_> = self.peers.iter().map(|(_, peer)| peer).collect();
        peers.sort_by_key(|peer| peer.address.to_string());
        for sessions in peers.chunk_by(|one, other| one.address == other.address) {
            let mut charges = Charges::default();
            for peer in sessions {
                charges.iter_mut().zip(peer.session.check_charges()).for_each(|(all, more)| *all += more);
            }
            assert_eq!(sessions[0].session.quota().used(), charges, "what {} has here", sessions[0].address);
        }
        let here = self.plans.iter().flat_map(|(_, plan)| plan.slots_here());
        let there = peers.iter().flat_map(|peer| peer.session.slots_named());
        self.shelf.check_invariants(here.copied().chain(there));
    }

    /// When [`turn`](Self::turn) must come at the latest.
    pub fn next_timeout(&self) -> Option<Instant> {
        let own = [
            self.table.next_deadline(),
            self.local.next_deadline(),
            self.local_pulls_earliest,
            self.local_pushes_earliest,
        ];
        own.into_iter().chain([self.schedule.next()]).flatten().min()
    }
}

fn check_tasks(tasks: &[(TaskName, u16)]) -> Result<(), Error> {
    if tasks.len() > TASKS_PER_HELLO {
        let found = tasks.len();
        return Err(Error::invalid(format!("{found} tasks on one engine, at most {TASKS_PER_HELLO} are possible")));
    }
    let name_bytes: usize = tasks.iter().map(|(task, _)| task.as_str().len() + 2).sum();
    if name_bytes > HELLO_BYTES_MAX / 2 {
        let limit = HELLO_BYTES_MAX / 2;
        return Err(Error::invalid(format!("the tasks' names take {name_bytes} bytes, at most {limit} are possible")));
    }
    Ok(())
}

/// What new calls hear while the engine drains.
fn draining() -> Error {
    Error::unavailable("this engine", "it drains: it finishes what is under way and then stops")
}

#[cfg(test)]
mod tests;
