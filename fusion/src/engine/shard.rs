//! One shard of an engine: the node, and the sources that supply its links. Jobs from other threads reach it through a
//! thread-local; one runtime runs one engine, so there is exactly one.

use std::cell::{Cell, OnceCell, RefCell, RefMut};
use std::collections::VecDeque;
use std::net::{SocketAddr, TcpListener};
use std::rc::Rc;
use std::sync::Arc;
use std::task::Waker;
use std::time::Instant;

use sealane_runtime::{Shard, Slab, SlabSettings, SourceId};
use sealane_transport::Link;
use sealane_transport::authentication::Authentication;
use sealane_transport::endpoint_map::TransportAddress;
use sealane_transport::provider::{LinkInterface, OpenOn};
use sealane_transport::tcp::TcpLink;
use sealane_transport::wire::Hello;

use super::clients::{Change, Clients};
use super::greetings::Greetings;
use super::links::Links;
use super::listener::Listener;
use super::settings::EngineSettings;
use super::stream_connections::StreamConnections;
use crate::metrics::{NodeMetrics, SHOW_INTERVAL};
use crate::node::{CallerCounters, ConnectOrder, Counters, Node, NodeSettings, Outages};

thread_local! {
    static ENGINE: OnceCell<Rc<ShardEngine>> = const { OnceCell::new() };
}

/// The kinds of links in the order of the settings; `None` where one could not be opened.
type Interfaces = Vec<Option<Box<dyn LinkInterface>>>;

/// The engine on one shard. `!Send`: it belongs to its shard's thread.
pub(super) struct ShardEngine {
    pub(super) shard: Shard,
    pub(super) settings: EngineSettings,
    /// The authentication required on new links.
    pub(super) authentication: RefCell<Authentication>,
    /// When the expiry of the authentication is checked next, on the shard that listens; `None` if it does not expire.
    pub(super) look_at_end: Cell<Option<Instant>>,
    /// This engine's transport addresses, in the order of its listeners.
    pub(super) addresses: Vec<TransportAddress>,
    /// The metrics that other threads see of this shard.
    metrics: Arc<NodeMetrics>,
    /// When the metrics are published next.
    show_at: Cell<Instant>,
    /// Callers that did not become links.
    pub(super) callers: Cell<CallerCounters>,
    interfaces: Interfaces,
    node: RefCell<Node>,
    pub(super) links_source: Cell<Option<SourceId>>,
    pub(super) greetings_source: Cell<Option<SourceId>>,
    pub(super) clients_source: Cell<Option<SourceId>>,
    /// Clients to admit and to dismiss.
    pub(super) client_changes: RefCell<VecDeque<Change>>,
    /// Clients were told that the engine is about to stop.
    pub(super) drain_announced: Cell<bool>,
    /// Clients that may not have heard of the drain, or whose earlier calls may not have been read yet.
    pub(super) clients_unaware: Cell<usize>,
    /// Calls of clients that have not ended, and answers that wait for room in their rings.
    pub(super) client_calls: Cell<usize>,
    /// Clients that were put out because serving them panicked.
    pub(super) clients_failed: Cell<u64>,
    /// The listening sockets, on the shard that listens for all.
    pub(super) listeners: RefCell<Vec<Listener>>,
    /// Stream connections made by callers of these sockets.
    pub(super) stream_connections: Arc<StreamConnections>,
    /// When the next unclaimed stream connection is closed.
    pub(super) close_unclaimed_at: Cell<Option<Instant>>,
    /// Connections to dial and to drop, passed from the node to the handshakes.
    orders: RefCell<Vec<ConnectOrder>>,
    wakers: RefCell<Vec<Waker>>,
}

/// Held by a source that the engine cannot do without. The shard drops a source that panics, and goes on. Without this source nobody would
/// check deadlines or make links, so the engine stops, and every caller is told.
pub(super) struct Vital(Rc<ShardEngine>);

impl Vital {
    pub(super) fn new(engine: &Rc<ShardEngine>) -> Self {
        Vital(engine.clone())
    }
}

impl std::ops::Deref for Vital {
    type Target = ShardEngine;

    fn deref(&self) -> &ShardEngine {
        &self.0
    }
}

impl Drop for Vital {
    fn drop(&mut self) {
        if !self.0.shard.stopping() {
            tracing::error!("a source of the engine failed: the engine stops");
            self.0.shard.request_stop();
        }
    }
}

/// Opens the kinds of links on a shard; also returns why links that use none of them are TCP.
fn open_links(settings: &EngineSettings, on: &OpenOn<'_>) -> Result<(Interfaces, String), String> {
    let opened = settings.links.iter().map(|links| links.open(on)).collect::<Result<Vec<_>, _>>()?;
    let reason = opened.first().map_or(&settings.path_reason, |best| &best.otherwise).clone();
    Ok((opened.into_iter().map(|opened| opened.interface).collect(), reason))
}

impl ShardEngine {
    /// Sets up a shard; returns its metrics.
    pub(super) fn start(
        shard: &Shard,
        node: NodeSettings,
        (outages, stream_connections): (Arc<Outages>, Arc<StreamConnections>),
        settings: EngineSettings,
    ) -> Result<Arc<NodeMetrics>, String> {
        let slab = |name, bytes| Slab::new(SlabSettings { name, bytes, ..SlabSettings::default() });
        let send = slab("send", settings.slab_send_bytes).map_err(|error| error.to_string())?;
        let receive = slab("receive", settings.slab_receive_bytes).map_err(|error| error.to_string())?;
        let on = OpenOn {
            shard: shard.index(),
            slabs: [&send, &receive],
            addresses: &node.addresses,
            is_encrypted: settings.authentication.is_encrypted(),
        };
        let (interfaces, path_reason) = open_links(&settings, &on)?;
        let features = interfaces.iter().flatten().fold(0, |features, interface| features | interface.feature());
        let node = NodeSettings { features, path_reason, ..node };
        let addresses = node.addresses.clone();
        let map = settings.map.clone();
        let mut node = Node::new(node, map, send, receive).map_err(|error| error.to_string())?;
        node.share_outages(outages);
        if let Some(sender) = settings.trace.clone() {
            node.set_trace(sender);
        }
        let metrics = node.metrics().clone();
        let engine = Rc::new(ShardEngine {
            shard: shard.clone(),
            metrics: metrics.clone(),
            show_at: Cell::new(shard.now()),
            authentication: RefCell::new(settings.authentication.clone()),
            look_at_end: Cell::new(settings.authentication.ends().map(|_| shard.now())),
            settings,
            addresses,
            callers: Cell::default(),
            interfaces,
            node: RefCell::new(node),
            links_source: Cell::new(None),
            greetings_source: Cell::new(None),
            clients_source: Cell::new(None),
            client_changes: RefCell::default(),
            drain_announced: Cell::new(false),
            clients_unaware: Cell::new(0),
            client_calls: Cell::new(0),
            clients_failed: Cell::new(0),
            listeners: RefCell::default(),
            stream_connections,
            close_unclaimed_at: Cell::default(),
            orders: RefCell::default(),
            wakers: RefCell::default(),
        });
        Links::start(&engine);
        Greetings::start(&engine);
        // After the links, so that outcomes of what arrived in a turn are written in that turn.
        Clients::start(&engine);
        ENGINE.with(|slot| slot.set(engine)).map_err(|_| "the shard already has an engine".to_owned())?;
        Ok(metrics)
    }

    /// True for the first shard, which accepts callers for all.
    pub(super) fn listens_for_all(&self) -> bool {
        self.shard.index() == 0
    }

    /// From now on, callers of these sockets are accepted too.
    pub(super) fn listen(&self, listeners: Vec<Listener>) {
        self.listeners.borrow_mut().extend(listeners);
        self.shard.notify();
    }

    /// The addresses of the listening sockets, with the indices of their transport addresses.
    pub(super) fn listening(&self) -> Vec<(u16, SocketAddr)> {
        self.listeners.borrow().iter().filter_map(|listener| Some((listener.via, listener.address()?))).collect()
    }

    /// Stops accepting callers; returns the sockets, with the indices of their addresses.
    pub(super) fn yield_listeners(&self) -> Vec<(u16, TcpListener)> {
        let yielded = self.listeners.take().into_iter();
        yielded.map(|listener| listener.into_socket(&self.shard)).collect()
    }

    /// From now on, peers must authenticate this way. Existing links continue.
    pub(super) fn set_authentication(&self, authentication: Authentication) {
        self.look_at_end.set(authentication.ends().map(|_| self.shard.now()));
        self.authentication.replace(authentication);
    }

    /// The kinds of links that are open here, the best first.
    #[inline]
    pub(super) fn interfaces(&self) -> impl Iterator<Item = &dyn LinkInterface> {
        self.interfaces.iter().flatten().map(|interface| &**interface)
    }

    /// Checks whether a link to a peer with these features is acceptable.
    ///
    /// # Errors
    /// A kind of link is required that the peer does not offer.
    pub(super) fn check_features(&self, hello: &Hello) -> Result<(), String> {
        for (links, interface) in self.settings.links.iter().zip(&self.interfaces) {
            let is_offered = interface.as_ref().is_some_and(|interface| hello.features & interface.feature() != 0);
            if links.is_required() && !is_offered {
                let name = links.kind().name();
                return Err(format!("{name} are required (transport.require), and the peer offers none"));
            }
        }
        Ok(())
    }

    /// Makes the link over a connection to a peer, of the best kind that both offer.
    pub(super) fn link(&self, tcp: TcpLink, hello: &Hello) -> Box<dyn Link> {
        match self.interfaces().find(|interface| hello.features & interface.feature() != 0) {
            Some(interface) => interface.link(tcp, &hello.address),
            None => Box::new(tcp),
        }
    }

    pub(super) fn counters(&self) -> Counters {
        let mut counters = self.borrow_node(|node| node.counters());
        for (kind, interface) in counters.kinds.iter_mut().zip(&self.interfaces) {
            kind.figures = interface.as_ref().map(|interface| interface.figures()).unwrap_or_default();
        }
        Counters { callers: self.callers.get(), clients_failed: self.clients_failed.get(), ..counters }
    }

    /// Publishes the metrics for other threads, unless it was done a moment ago.
    #[inline]
    pub(super) fn show_if_due(&self, now: Instant) {
        if self.show_at.get() <= now {
            self.show_at.set(now + SHOW_INTERVAL);
            self.show();
        }
    }

    /// Publishes the metrics for other threads.
    pub(super) fn show(&self) {
        self.metrics.counters.write(&self.counters());
        self.borrow_node(|node| {
            node.show();
            node.flush_trace();
        });
    }

    pub(super) fn count_callers(&self, count: impl FnOnce(&mut CallerCounters)) {
        let mut counters = self.callers.get();
        count(&mut counters);
        self.callers.set(counters);
    }

    /// The engine of the shard that runs this thread.
    pub(super) fn current() -> Option<Rc<ShardEngine>> {
        ENGINE.with(|slot| slot.get().cloned())
    }

    /// Lends the node to `f` on behalf of a task, and makes sure that a turn follows.
    pub(super) fn with_node<T>(&self, f: impl FnOnce(&mut Node, Instant) -> T) -> T {
        let result = self.borrow_node(|node| f(node, self.shard.now()));
        self.shard.notify();
        result
    }

    /// Lends the node to `f`, then wakes the futures concerned, and collects the node's connection orders.
    #[inline]
    pub(super) fn borrow_node<T>(&self, f: impl FnOnce(&mut Node) -> T) -> T {
        let mut node = self.node.borrow_mut();
        let result = f(&mut node);
        if node.has_news() {
            self.spread_news(node);
        }
        result
    }

    #[cold]
    fn take_down_orders(&self, node: &mut Node) {
        while let Some(order) = node.poll_order() {
            self.orders.borrow_mut().push(order);
        }
    }

    fn spread_news(&self, mut node: RefMut<'_, Node>) {
        if node.has_orders() {
            self.take_down_orders(&mut node);
        }
        let mut wakers = self.wakers.take();
        node.take_wakers(&mut wakers);
        // A waker may run its owner's code, which may need the node.
        drop(node);
        wakers.drain(..).for_each(Waker::wake);
        self.wakers.replace(wakers);
    }

    /// The connections that the node wants made or dropped.
    pub(super) fn take_orders(&self) -> Vec<ConnectOrder> {
        self.orders.take()
    }

    pub(super) fn has_orders(&self) -> bool {
        !self.orders.borrow().is_empty()
    }
}
