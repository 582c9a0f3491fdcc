//! Nodes, the link between them, and the clients at them.

use std::sync::Arc;
use std::time::{Duration, Instant};

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use sealane::Tensor;
use sealane_fusion::fuzzing::Clients;
use sealane_fusion::node::{Answer, ConnectOrder, DialFailure, DialFailureKind, Node, NodeSettings};
use sealane_fusion::{EndpointMap, Fuse};
use sealane_runtime::{Slab, SlabSettings};
use sealane_transport::loopback::loopback;
use sealane_transport::wire::Hello;
use sealane_transport::{Handle, SessionLimits};

use super::Report;
use super::actions::ACTIONS;
use super::lanes::{LaneKind, Lanes};
use super::ledger::Ledger;
use super::seats::{Seat, TASKS};
use crate::simulation::trace::Trace;
use crate::two_nodes::hear;

const SLAB_BYTES: usize = 1 << 20;
/// A deadline between nodes that is never reached here.
const PATIENCE: Duration = Duration::from_secs(60);

/// A node with its clients and its links to the other node.
pub(super) struct Host {
    pub(super) clients: Clients,
    links: Vec<Handle>,
}

pub(super) struct World {
    pub(super) random: SmallRng,
    pub(super) trace: Trace,
    base: Instant,
    /// Milliseconds since the start.
    pub(super) now: u64,
    pub(super) hosts: Vec<Host>,
    pub(super) seats: Vec<Seat>,
    pub(super) lanes: Lanes,
    pub(super) ledger: Ledger,
    pub(super) report: Report,
    /// Received tensors that are not dropped yet.
    pub(super) kept: Vec<Tensor>,
    pub(super) actions: usize,
}

impl World {
    pub(super) fn new(seed: u64, lanes: LaneKind, lines: usize) -> Result<World, String> {
        let mut random = SmallRng::seed_from_u64(seed);
        // The host of each seat.
        let places: &[usize] = match random.random_range(0..10) {
            0..5 => &[0, 0],
            5..9 => &[0, 0, 1],
            _ => &[0, 1],
        };
        let hosts = (0..=places.iter().copied().max().unwrap_or_default())
            .map(|host| Ok(Host { clients: Clients::new(node(host, places)?), links: Vec::new() }))
            .collect::<Result<_, String>>()?;
        let seats = (0..places.len()).map(|seat| Seat::draw(&mut random, seat, places)).collect();
        let has_lanes = random.random_bool(0.8);
        let mut world = World {
            random,
            trace: Trace::new(lines),
            base: Instant::now(),
            now: 0,
            hosts,
            seats,
            lanes: Lanes::new(has_lanes.then_some(lanes)),
            ledger: Ledger::default(),
            report: Report::default(),
            kept: Vec::new(),
            actions: 0,
        };
        world.pass(1);
        for seat in 0..world.seats.len() {
            world.attach(seat)?;
        }
        Ok(world)
    }

    pub(super) fn run(&mut self) -> Result<Report, String> {
        for _ in 0..ACTIONS {
            self.act()?;
        }
        self.settle()?;
        self.report.trace_hash = self.trace.hash();
        Ok(self.report)
    }

    pub(super) fn note(&mut self, what: std::fmt::Arguments<'_>) {
        self.trace.note(Duration::from_millis(self.now), what);
    }

    /// Time passes, for nodes and clients alike.
    pub(super) fn pass(&mut self, milliseconds: u64) {
        self.now += milliseconds;
        sealane::by_hand::set_time(Some(Duration::from_millis(self.now)));
    }

    pub(super) fn instant(&self) -> Instant {
        self.base + Duration::from_millis(self.now)
    }

    pub(super) fn turn(&mut self, host: usize) -> Result<(), String> {
        while let Some(order) = self.hosts[host].clients.node.poll_order() {
            if let ConnectOrder::Dial { peer, hello, .. } = order {
                self.connect(host, peer, &hello)?;
            }
        }
        let now = self.instant();
        let Host { clients, links } = &mut self.hosts[host];
        clients.node.take_new_links(links);
        links.iter().for_each(|&link| clients.node.mark_hot(link));
        clients.turn(now);
        clients.node.check_invariants();
        let seats = self.seats.iter_mut().filter(|seat| seat.host == host);
        seats.for_each(|seat| seat.unread = 0);
        Ok(())
    }

    /// Connects two nodes: call, answer and welcome, one after the other.
    fn connect(&mut self, from: usize, peer: Handle, hello: &Hello) -> Result<(), String> {
        let (now, to) = (self.instant(), 1 - from);
        let there = &mut self.hosts[to].clients.node;
        let Answer::Welcome { peer: caller } = there.called(now, 0, hello) else {
            let failure = DialFailure { reason: "the other calls".into(), kind: DialFailureKind::Crossed };
            self.hosts[from].clients.node.dial_failed(now, peer, failure);
            return Ok(());
        };
        let (mut calling, called) = loopback();
        there.accepted(now, caller, Box::new(called), hello);
        there.turn(now);
        let welcome = hear(&mut calling)?.ok_or("a loopback delays nothing, and brought no welcome")?;
        self.hosts[from].clients.node.dialed(now, peer, Box::new(calling), &welcome);
        Ok(())
    }
}

/// A node that serves the tasks placed on `host`.
pub(crate) fn node(host: usize, places: &[usize]) -> Result<Node, String> {
    let address = |host: usize| format!("10.0.0.{}:7000", host + 1);
    let lines = places.iter().zip(TASKS).map(|(place, task)| format!("{task}={}\n", address(*place)));
    let map = EndpointMap::parse(&lines.collect::<String>(), "simulated clients").map_err(|error| error.to_string())?;
    let own = places.iter().zip(TASKS).filter(|(place, _)| **place == host);
    let settings = NodeSettings {
        addresses: vec![address(host).parse().expect("an address")],
        tasks: own.map(|(_, task)| (task.parse().expect("a task"), 0)).collect(),
        shard: 0,
        shards: 1,
        job: None,
        incarnation: 1 << (32 + host),
        session: SessionLimits::default(),
        pending_sends_max: 65_536,
        published_tensors_max: 65_536,
        links_max: 2,
        connect_timeout: PATIENCE,
        lease: PATIENCE,
        fuse: Fuse::Turn,
        path_reason: "one thread".into(),
        features: 0,
        kinds: Vec::new(),
    };
    let slab =
        |name| Slab::new(SlabSettings { name, bytes: SLAB_BYTES, populate: false }).map_err(|error| error.to_string());
    Node::new(settings, Arc::new(map), slab("send")?, slab("receive")?).map_err(|error| error.to_string())
}
