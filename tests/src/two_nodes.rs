//! One ps and one worker in one thread: two nodes, the links between them, and their turns. No clock: the wire says what time it is.

use std::sync::Arc;
use std::time::{Duration, Instant};

use sealane_fusion::node::{Answer, ConnectOrder, Node, NodeSettings};
use sealane_fusion::{AcceptOptions, AcceptQueue, Buffer, EndpointMap, Error, Fuse, Keys, PullBuffer, Tensor};
use sealane_runtime::{Slab, SlabSettings};
use sealane_transport::link::{Frames, Landing, Receiver};
use sealane_transport::wire::{Greeting, Hello, WireError};
use sealane_transport::{Handle, Link, SessionLimits};

const MAP: &str = "ps:1=10.0.0.1:7000\nworker:1=10.0.0.2:7000\n";
pub(crate) const PS: usize = 0;
pub(crate) const WORKER: usize = 1;
pub(crate) const SLAB_BYTES: usize = 1 << 20;
/// Never reached here.
pub(crate) const DEADLINE: Duration = Duration::from_secs(60);
/// The queue that tensors are pushed into.
pub(crate) const QUEUE: &str = "parameters";
/// Most turns of one step: many times what any step needs.
const TURNS_MAX: usize = 10_000_000;

/// Makes the links between the nodes and keeps the time.
pub(crate) trait Wire {
    /// Both ends of a new link.
    fn link(&self) -> (Box<dyn Link>, Box<dyn Link>);
    /// Time since the nodes were made.
    fn now(&self) -> Duration;
    /// Waits for what is in flight; false if nothing is.
    fn wait(&self) -> bool;
}

pub(crate) struct TwoNodes<W> {
    pub(crate) wire: W,
    base: Instant,
    pub(crate) nodes: [Node; 2],
    links: [Vec<Handle>; 2],
    /// The queue that the worker accepts from.
    pub(crate) queue: Arc<AcceptQueue>,
}

impl<W: Wire> TwoNodes<W> {
    pub(crate) fn new(wire: W, fuse: Fuse) -> Result<Self, String> {
        let mut nodes = [node(PS, "ps:1", fuse)?, node(WORKER, "worker:1", fuse)?];
        // There is room whenever something comes, so that nobody waits for room.
        let queue = Arc::new(AcceptQueue::new(AcceptOptions::default(), Box::new(|| {})));
        nodes[WORKER].open_queue(0, QUEUE, queue.clone()).map_err(|error| error.to_string())?;
        Ok(Self { wire, base: Instant::now(), nodes, links: [Vec::new(), Vec::new()], queue })
    }

    pub(crate) fn now(&self) -> Instant {
        self.base + self.wire.now()
    }

    /// The number of the pair of tasks at a node.
    pub(crate) fn number(&mut self, node: usize) -> Result<u32, Error> {
        let (local, peer) = [("ps:1", "worker:1"), ("worker:1", "ps:1")][node];
        let local = self.nodes[node].local_task(local)?;
        self.nodes[node].pair(local, peer)
    }

    pub(crate) fn open_plan(&mut self, pair: u32, tensors: &[(String, Tensor)]) -> Result<(Handle, PullBuffer), Error> {
        let keys = Keys::new(tensors.iter().map(|(key, _)| key))?;
        let mut pull_buffer = PullBuffer::new(keys.len());
        tensors.iter().enumerate().for_each(|(index, (_, tensor))| pull_buffer.set_destination(index, memory(tensor)));
        Ok((self.nodes[WORKER].open_plan(pair, Arc::new(keys)), pull_buffer))
    }

    /// Takes turns until nothing moves any more; returns the time at which `is_done` first held.
    pub(crate) fn run(
        &mut self,
        mut is_done: impl FnMut(&mut [Node; 2]) -> Result<bool, String>,
    ) -> Result<Duration, String> {
        let mut done = None;
        for _ in 0..TURNS_MAX {
            let mut work = 0;
            for index in [WORKER, PS] {
                work += self.turn(index)?;
            }
            if done.is_none() && is_done(&mut self.nodes)? {
                done = Some(self.wire.now());
            }
            if work > 0 {
                continue;
            }
            if !self.wire.wait() {
                return done.ok_or_else(|| "nothing moves any more, and the step is not done".into());
            }
        }
        Err(format!("{TURNS_MAX} turns and no end"))
    }

    /// Takes turns until `is_done` holds.
    pub(crate) fn until(
        &mut self,
        mut is_done: impl FnMut(&mut [Node; 2]) -> Result<bool, String>,
    ) -> Result<(), String> {
        for _ in 0..TURNS_MAX {
            let work = self.turn(WORKER)? + self.turn(PS)?;
            if is_done(&mut self.nodes)? {
                return Ok(());
            }
            if work == 0 && !self.wire.wait() {
                return Err("nothing moves any more, and the step is not done".into());
            }
        }
        Err(format!("{TURNS_MAX} turns and no end"))
    }

    fn turn(&mut self, index: usize) -> Result<usize, String> {
        let now = self.now();
        while let Some(order) = self.nodes[index].poll_order() {
            if let ConnectOrder::Dial { peer, hello, .. } = order {
                self.connect(index, peer, &hello)?;
            }
        }
        let links = &mut self.links[index];
        self.nodes[index].take_new_links(links);
        links.iter().for_each(|&link| self.nodes[index].mark_hot(link));
        Ok(self.nodes[index].turn(now))
    }

    /// Connects two nodes at once: call, answer and welcome. The steps that count come later.
    fn connect(&mut self, from: usize, peer: Handle, hello: &Hello) -> Result<(), String> {
        let (now, to) = (self.now(), 1 - from);
        let answer = self.nodes[to].called(now, 0, hello);
        let Answer::Welcome { peer: caller } = answer else { return Err(format!("the call was answered {answer:?}")) };
        let (mut calling, called) = self.wire.link();
        self.nodes[to].accepted(now, caller, called, hello);
        self.nodes[to].turn(now);
        let welcome = loop {
            if let Some(welcome) = hear(&mut *calling)? {
                break welcome;
            }
            if !self.wire.wait() {
                return Err("no welcome is in flight".into());
            }
        };
        let now = self.now();
        self.nodes[from].dialed(now, peer, calling, &welcome);
        Ok(())
    }
}

/// The node with index `place`, which serves one task.
pub(crate) fn node(place: usize, task: &str, fuse: Fuse) -> Result<Node, String> {
    let settings = NodeSettings {
        addresses: vec![format!("10.0.0.{}:7000", place + 1).parse().expect("an address")],
        tasks: vec![(task.parse().expect("a task"), 0)],
        shard: 0,
        shards: 1,
        job: None,
        incarnation: 1 << (32 + place),
        session: SessionLimits::default(),
        pending_sends_max: 65_536,
        published_tensors_max: 65_536,
        links_max: 2,
        connect_timeout: DEADLINE,
        lease: DEADLINE,
        fuse,
        path_reason: "one thread".into(),
        features: 0,
        kinds: Vec::new(),
    };
    let map = EndpointMap::parse(MAP, "two nodes").map_err(|error| error.to_string())?;
    let slab =
        |name| Slab::new(SlabSettings { name, bytes: SLAB_BYTES, populate: false }).map_err(|error| error.to_string());
    Node::new(settings, Arc::new(map), slab("send")?, slab("receive")?).map_err(|error| error.to_string())
}

/// Memory of the worker's own for one tensor.
pub(crate) fn memory(tensor: &Tensor) -> Buffer {
    Buffer::from_vec(vec![0; tensor.bytes().len()])
}

/// The welcome, if it has come.
pub(crate) fn hear(link: &mut dyn Link) -> Result<Option<Hello>, String> {
    let mut ear = Ear(None);
    link.receive(&mut ear, usize::MAX).map_err(|error| error.to_string())?;
    match ear.0 {
        Some(Greeting::Welcome(welcome)) => Ok(Some(welcome)),
        None => Ok(None),
        other => Err(format!("a welcome was expected, not {other:?}")),
    }
}

/// Takes a greeting and leaves what follows on the link.
struct Ear(Option<Greeting>);

impl Receiver for Ear {
    fn frames(&mut self, bytes: &[u8]) -> Result<Frames, WireError> {
        let mut consumed = 0;
        if self.0.is_none()
            && let Some((greeting, length)) = Greeting::parse(bytes)?
        {
            (self.0, consumed) = (Some(greeting), length);
        }
        Ok(Frames { consumed, landing: None })
    }

    fn landed(&mut self, _: Landing) {
        unreachable!("greetings bring no payload")
    }
}
