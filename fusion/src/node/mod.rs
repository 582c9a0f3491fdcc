//! One shard's share of the engine, without threads or sockets: sessions with peers, the rendezvous table, and the waiters of calls.
//!
//! A node only routes between its parts, each of which owns its state: `pairs` (tasks and their numbers), `peers` (sessions and their
//! links), `exchange` (sends and recvs), `pulls` (published tensors), `row_requests` (rows of them), `pushes` (queues). The first two are
//! lent to the others as the `context`, with the reporter that tells how calls end. Events of sessions go through `events.rs`.
//!
//! Recvs between two tasks of the same node need neither session nor link (`exchange/local_recvs.rs`).
//!
//! Its owner supplies the links: TCP sockets in the engine, queues in the simulation in `tests/`. [`Node::turn`] moves whatever can move;
//! [`Node::poll_order`] says which connections are wanted; time is an argument. Bounded by [`NodeSettings`] and by the limits of its
//! sessions.

mod awaited;
mod calls;
mod cells;
mod connect;
mod context;
mod copying;
mod counters;
mod events;
mod exchange;
#[cfg(any(test, feature = "fuzzing"))]
mod invariants;
mod memory;
mod orders;
mod outcomes;
mod pairs;
mod peers;
mod placement;
mod pulls;
mod pushes;
mod receiver;
mod reporter;
mod row_requests;
mod settings;
mod turn;

use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::Arc;
use std::task::Waker;
use std::time::Instant;

use sealane_runtime::{Slab, earliest};
use sealane_transport::endpoint_map::{EndpointMap, TaskName, TransportAddress};
use sealane_transport::error::LinkError;
use sealane_transport::session::Event;
use sealane_transport::trace::{Recorder, TraceSender};
use sealane_transport::{Error, Handle};

use crate::metrics::NodeMetrics;
use crate::presence::{self, Presence};
pub use cells::{ClientCall, ClientOutcome, ClientOutcomes, PullWaiter, RecvWaiter, SendWaiter, Ticket};
use context::{Context, draining};
pub use counters::{CallerCounters, Counters, KindCounters};
use exchange::Exchange;
pub use exchange::{BatchWaiter, FusedRequest, ReceivedBatch, RecvRequest};
use memory::Memory;
pub use memory::Pool;
pub use orders::{Answer, ConnectOrder, DialFailure, DialFailureKind};
use pairs::Pairs;
pub(crate) use peers::Outages;
use peers::{Connection, Peer, Peers};
pub use pulls::PullRequest;
use pulls::Pulls;
pub use pushes::PushRequest;
use pushes::Pushes;
use reporter::Reporter;
pub use row_requests::PullRowsRequest;
use row_requests::RowRequests;
pub use settings::{Fuse, NodeSettings};

/// One shard's state machine; see the module.
pub struct Node {
    context: Context,
    exchange: Exchange,
    row_requests: RowRequests,
    pulls: Pulls,
    pushes: Pushes,
    /// Kept to reuse its memory; empty between calls.
    events: VecDeque<Event<RecvWaiter, Handle>>,
}

impl Node {
    /// A node without peers. Tensors arrive in `receive_slab` unless the consumer brings memory; `send_slab` is for producers on this
    /// shard.
    ///
    /// # Errors
    /// InvalidArgument if there are more tasks than a handshake can name.
    pub fn new(
        mut settings: NodeSettings,
        map: Arc<EndpointMap>,
        send_slab: Slab,
        receive_slab: Slab,
    ) -> Result<Node, Error> {
        let tasks = std::mem::take(&mut settings.tasks);
        let pairs = Pairs::new(tasks, map, (settings.shard, settings.shards))?;
        Ok(Node {
            exchange: Exchange::new(&settings),
            row_requests: RowRequests::new(),
            pulls: Pulls::new(settings.published_tensors_max),
            pushes: Pushes::new(),
            events: VecDeque::new(),
            context: Context {
                peers: Peers::new(settings.links_max),
                reporter: Reporter::new(&settings.kinds),
                settings,
                pairs,
                memory: Memory::new(send_slab, receive_slab),
                presence: Presence::default(),
                draining: false,
                deaf: false,
            },
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

    /// The node's settings, without its tasks, which may grow in number.
    pub fn settings(&self) -> &NodeSettings {
        &self.context.settings
    }

    /// Counters and gauges of this node.
    pub fn counters(&self) -> Counters {
        Counters {
            links: self.context.peers.links() as u64,
            slab_send_bytes: self.context.memory.send_slab().in_use_bytes() as u64,
            slab_receive_bytes: self.context.memory.receive_slab().in_use_bytes() as u64,
            pending_sends: self.exchange.pending_sends() as u64,
            parked: self.exchange.parked() as u64,
            published: self.pulls.count() as u64,
            ..self.context.reporter.counters
        }
    }

    /// Shares the record of logged outages with the other nodes of its engine.
    pub(crate) fn share_outages(&mut self, outages: Arc<Outages>) {
        self.context.peers.outages = outages;
    }

    /// Traces every call from now on, and its progress, to `sender`. Call it before the first session.
    pub fn set_trace(&mut self, sender: TraceSender) {
        self.context.reporter.recorder = Some(Recorder::new(sender, self.context.settings.shard));
    }

    /// Sends the listener of a trace, if there is one, what it has not received yet.
    pub(crate) fn flush_trace(&self) {
        if let Some(recorder) = &self.context.reporter.recorder {
            recorder.flush();
        }
    }

    /// What this node publishes about itself, for other threads.
    pub(crate) fn metrics(&self) -> &Arc<NodeMetrics> {
        &self.context.reporter.metrics
    }

    /// Publishes for other threads what has changed in the sessions, and what has ended since the last turn.
    pub(crate) fn show(&mut self) {
        self.context.reporter.record_runs();
        self.context.peers.show();
    }

    /// The index of a local task in this side's task list.
    ///
    /// # Errors
    /// NotFound if it is not served here.
    pub fn local_task(&self, name: &str) -> Result<u16, Error> {
        self.context.pairs.local_task(name)
    }

    /// The number of the pair of a local task and a peer.
    ///
    /// # Errors
    /// NotFound if the peer is not in the endpoint map, InvalidArgument if another shard serves the pair.
    pub fn pair(&mut self, local: u16, peer: &str) -> Result<u32, Error> {
        self.context.pairs.pair(local, peer)
    }

    /// The number of a pair for [plans](Self::open_plan), which any shard may pull: what a task publishes is on all of its
    /// shards.
    ///
    /// # Errors
    /// NotFound if the peer is not in the endpoint map.
    pub fn pulling_pair(&mut self, local: u16, peer: &str) -> Result<u32, Error> {
        self.context.pairs.pulling_pair(local, peer)
    }

    /// Takes a new endpoint map, and more tasks to serve, on the same addresses. Requests in flight end on their current links; later ones
    /// go to the new addresses. If an address that no longer has a task has no link, requests already sent to it end with Unavailable, and
    /// those not sent yet go to the new addresses. Links are re-established if their handshake named tasks that the old map lacked, or if
    /// the new map adds a task to their address; all of them are if there are new tasks here, so that peers learn of them.
    ///
    /// # Errors
    /// InvalidArgument if there are more tasks than a handshake can name; nothing has changed.
    pub fn set_map(&mut self, map: Arc<EndpointMap>, more: Vec<(TaskName, u16)>) -> Result<(), Error> {
        let grown = !more.is_empty();
        let (before, moved) = self.context.pairs.set_map(map, more)?;
        for pair in moved {
            self.exchange.leave_ahead(pair, &mut self.context);
        }
        if grown {
            let count = self.context.pairs.tasks().len() as u16;
            self.context.peers.set_tasks(count);
            self.context.pairs.find_mirrors();
            // Handshakes in progress still name the old tasks.
            let Context { peers, settings, pairs, .. } = &mut self.context;
            for handle in peers.select(|peer| peer.connection == Connection::Dialing) {
                peers.hang_up(handle);
                peers.dial(handle, settings, pairs);
            }
        }
        // A peer believed to be at an address must prove again that it is also the tasks that were added there.
        let pairs = &self.context.pairs;
        let gains = |address: &TransportAddress| {
            pairs.map().tasks_at(address).any(|task| before.resolve(task.as_str()) != Some(address))
        };
        let is_stale = |peer: &Peer| grown || peer.has_strangers || gains(&peer.address);
        for handle in self.context.peers.select(|peer| peer.has_link() && is_stale(peer)) {
            self.lose(self.context.reporter.clock, handle, &LinkError::Closed);
        }
        for handle in self.context.peers.select(|peer| !peer.has_link()) {
            self.leave_behind(self.context.reporter.clock, handle);
        }
        Ok(())
    }

    /// From now on new calls of clients, and requests of peers for tensors that are not there, end with Unavailable; what is in flight can
    /// finish. Pushers on other nodes get no more credit: their tensors are for the next node.
    pub fn drain(&mut self) {
        self.context.draining = true;
        self.context.presence.expect_all_again();
        // No send can come for the requests any more, and nothing is published for the pulls and row requests.
        self.exchange.refuse_all_parked(&draining(), &mut self.context);
        self.exchange.revoke_all_ahead(&mut self.context);
        self.pulls.refuse_waiting(&mut self.context);
        self.row_requests.refuse_waiting(&mut self.context);
    }

    /// From now on nothing that peers send is read. A push that came after [`under_way`](Self::under_way) had returned 0 would be
    /// acknowledged and lost; unread, its pusher learns that this node is gone.
    pub fn stop_reading(&mut self) {
        self.context.deaf = true;
    }

    /// Takes new calls again after [`drain`](Self::drain), and reads again after [`stop_reading`](Self::stop_reading).
    pub fn resume(&mut self) {
        (self.context.draining, self.context.deaf) = (false, false);
        self.pushes.replenish_all(&mut self.context);
    }

    /// Tensors that peers have not released or that are being copied, requests that wait here, and tensors acknowledged to pushers in
    /// queues that have an acceptor. Once the node [reads nothing](Self::stop_reading), only the last are counted: the end of the others
    /// can no longer arrive.
    pub fn under_way(&self) -> usize {
        let taken = self.pushes.unaccepted(self.context.settings.shard);
        if self.context.deaf {
            return taken;
        }
        let unreleased: usize = self.context.peers.iter().map(|peer| peer.session.unreleased()).sum();
        unreleased + self.exchange.parked() + usize::from(self.exchange.is_copying()) + self.row_requests.len() + taken
    }

    /// Gives a local task its own memory for tensors that arrive, or takes it away.
    pub fn set_pool(&mut self, task: u16, pool: Option<Rc<dyn Pool>>) {
        self.context.memory.set_pool(task, pool);
    }

    /// The slab for tensors that arrive when neither the caller nor its task brings memory.
    pub fn receive_slab(&self) -> &Slab {
        self.context.memory.receive_slab()
    }

    /// Swaps the waiting outcomes of clients' calls with `other`, which must be empty.
    pub fn swap_client_outcomes(&mut self, other: &mut ClientOutcomes) {
        debug_assert!(other.is_empty());
        std::mem::swap(&mut self.context.reporter.outcomes.clients, other);
    }

    /// True if calls of clients have ended.
    #[inline]
    pub fn has_client_outcomes(&self) -> bool {
        !self.context.reporter.outcomes.clients.is_empty()
    }

    /// A client process attaches as a local task. Requests that wait for it, and fail when it leaves, are told which process it is.
    pub fn meet_client(&mut self, local: u16) {
        let attachment = self.context.presence.came(local);
        self.exchange.tell_attachment(local, attachment, &mut self.context);
    }

    /// The client process of a local task is gone, or was replaced: its tensors that wait are freed, requests that wait for them end with
    /// Unavailable, as do its own calls, and its plans and queues are closed. Later requests fail the same way if they ask to, unless the
    /// node was [draining](Self::drain).
    pub fn forget_client(&mut self, local: u16, reason: &str) {
        let is_awaited = self.context.presence.left(local, reason);
        let error = presence::gone(self.context.pairs.task(local).as_str(), reason);
        let Node { exchange, row_requests, pulls, pushes, context, .. } = self;
        exchange.end_task(local, &error, context);
        row_requests.end_of(Some(local), true, &error, context);
        exchange.end_here(local, &error, &mut context.reporter);
        pulls.end_local(|consumer| consumer == local, &error, &mut context.reporter);
        pulls.withdraw_all(local, &error, context);
        pushes.end_local(|pair| pair.local == local, &error, context);
        for handle in self.context.peers.select(|_| true) {
            let peer = self.context.peers.get_mut(handle).expect("just selected");
            peer.session.end_requests_of(local, &error);
            self.handle_events(handle);
            self.context.peers.mark_dirty(handle);
        }
        // Their owner may have lost track of its plans and queues.
        self.pulls.close_plans_of(local, &mut self.context);
        self.pushes.close_queues_of(local, &mut self.context);
        // Also frees what is left in its queues, unless the same client is expected again.
        if !is_awaited {
            self.pushes.drop_left(Some(local), self.context.settings.shard);
        }
    }

    /// Moves the wakers of futures that can proceed into `into`. The owner wakes them, once it no longer holds the node.
    pub fn take_wakers(&mut self, into: &mut Vec<Waker>) {
        into.append(&mut self.context.reporter.outcomes.wakers);
    }

    /// True if there are wakers or orders to take.
    #[inline]
    pub fn has_news(&self) -> bool {
        !self.context.reporter.outcomes.wakers.is_empty() || self.context.peers.has_orders()
    }

    /// True if [`poll_order`](Self::poll_order) has something.
    pub fn has_orders(&self) -> bool {
        self.context.peers.has_orders()
    }

    /// Keys that are published or named by plans.
    pub fn keys_in_store(&self) -> usize {
        self.pulls.keys()
    }

    /// When [`turn`](Self::turn) must be called at the latest.
    #[inline]
    pub fn next_timeout(&self) -> Option<Instant> {
        let (exchange, pulls) = (self.exchange.next_deadline(), self.pulls.next_deadline());
        let (pushes, peers) = (self.pushes.next_deadline(), self.context.peers.next_timeout());
        earliest([exchange, pulls, self.row_requests.next_deadline(), pushes, peers])
    }
}

#[cfg(test)]
pub(crate) mod tests;
