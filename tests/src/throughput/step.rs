//! One ps and one worker on a virtual line, and the steps that they take.
//!
//! Cores cost nothing here but what the line charges for writes and messages: the figures say what the protocol costs,
//! not how fast its code is.

use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use sealane_fusion::node::{
    Answer, BatchWaiter, ConnectOrder, FusedRequest, Node, NodeSettings, PullRequest, PullWaiter, PushRequest,
    RecvRequest, RecvWaiter, SendWaiter,
};
use sealane_fusion::{AcceptOptions, AcceptQueue, Buffer, EndpointMap, Error, Fuse, Keys, RecvOutcome, Tensor, Tray};
use sealane_runtime::{Slab, SlabSettings};
use sealane_transport::link::{Frames, Landing, Receiver};
use sealane_transport::wire::{Greeting, Hello, WireError};
use sealane_transport::{Handle, Link, SessionLimits};

use super::line::{Air, Carried, Line, line};
use super::load::Load;

const MAP: &str = "ps:1=10.0.0.1:7000\nworker:1=10.0.0.2:7000\n";
const PS: usize = 0;
const WORKER: usize = 1;
pub(super) const SLAB_BYTES: usize = 1 << 20;
/// Nothing is late here.
const DEADLINE: Duration = Duration::from_secs(60);
/// The queue that is pushed into.
const QUEUE: &str = "parameters";
/// Turns of one step at most: many times what any needs.
const TURNS_MAX: usize = 10_000_000;

/// How a step's tensors are asked for, if they are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Way {
    /// One by one, each message in a write of its own.
    Off,
    /// One by one, messages of a turn in one write.
    Turn,
    /// All in one fused receive.
    Receive,
    /// By a plan.
    Plan,
    /// All in one push, unasked, into a queue of the default size.
    Push,
}

impl Way {
    pub(super) const ALL: [Way; 5] = [Way::Off, Way::Turn, Way::Receive, Way::Plan, Way::Push];

    pub(super) fn name(self) -> &'static str {
        match self {
            Way::Off => "off",
            Way::Turn => "turn",
            Way::Receive => "receive",
            Way::Plan => "plan",
            Way::Push => "push",
        }
    }
}

/// What one step cost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Cost {
    /// Both ways, releases included.
    pub(super) messages: u64,
    pub(super) carried: Carried,
    /// From the first request or push until the worker has every tensor.
    pub(super) time: Duration,
}

struct Pair {
    air: Rc<Air>,
    base: Instant,
    nodes: [Node; 2],
    links: [Vec<Handle>; 2],
    /// The worker's.
    queue: Arc<AcceptQueue>,
}

/// The second step of a load: by then the sides have met, and plans are agreed.
///
/// # Errors
/// What went wrong, which nothing should.
pub(super) fn second_step(load: &Load, way: Way) -> Result<Cost, String> {
    let mut pair = Pair::new(way)?;
    let tensor = |(key, bytes): &(String, usize)| {
        let tensor = Tensor::from_elements(&[*bytes as u64], &vec![7_u8; *bytes]).map(Tensor::into_shared);
        tensor.map(|tensor| (key.clone(), tensor)).map_err(|error| error.to_string())
    };
    let tensors = load.tensors.iter().map(tensor).collect::<Result<Vec<_>, String>>()?;
    let mut plan = None;
    pair.step(1, way, &tensors, &mut plan)?;
    pair.step(2, way, &tensors, &mut plan)
}

impl Pair {
    fn new(way: Way) -> Result<Pair, String> {
        let map = Arc::new(EndpointMap::parse(MAP, "the simulated network").map_err(|error| error.to_string())?);
        let node = |number: usize, task: &str| {
            let settings = NodeSettings {
                addresses: vec![format!("10.0.0.{}:7000", number + 1).parse().expect("an address")],
                tasks: vec![(task.parse().expect("a task"), 0)],
                shard: 0,
                shards: 1,
                incarnation: 1 << (32 + number),
                session: SessionLimits::default(),
                deposited_tensors_max: 65_536,
                published_tensors_max: 65_536,
                links_max: 2,
                connect_timeout: DEADLINE,
                lease: DEADLINE,
                fuse: if way == Way::Off { Fuse::Off } else { Fuse::Turn },
                path_reason: "simulated".into(),
                features: 0,
                kinds: Vec::new(),
            };
            let slab = |name| Slab::new(SlabSettings { name, bytes: SLAB_BYTES, populate: false });
            let slabs =
                (slab("send").map_err(|error| error.to_string())?, slab("receive").map_err(|error| error.to_string())?);
            Node::new(settings, map.clone(), slabs.0, slabs.1).map_err(|error| error.to_string())
        };
        let mut nodes = [node(PS, "ps:1")?, node(WORKER, "worker:1")?];
        // Whenever something came there is room, so that nobody waits for it.
        let queue = Arc::new(AcceptQueue::new(AcceptOptions::default(), Box::new(|| {})));
        nodes[WORKER].open_queue(0, QUEUE, queue.clone()).map_err(|error| error.to_string())?;
        Ok(Pair { air: Rc::default(), base: Instant::now(), nodes, links: [Vec::new(), Vec::new()], queue })
    }

    fn now(&self) -> Instant {
        self.base + self.air.now.get()
    }

    fn number(&mut self, node: usize) -> Result<u32, Error> {
        let (local, peer) = [("ps:1", "worker:1"), ("worker:1", "ps:1")][node];
        let local = self.nodes[node].local_task(local)?;
        self.nodes[node].pair(local, peer)
    }

    fn step(
        &mut self,
        step: i64,
        way: Way,
        tensors: &[(String, Tensor)],
        plan: &mut Option<(Handle, Tray)>,
    ) -> Result<Cost, String> {
        let failed = |error: Error| error.to_string();
        let (messages, carried, started) = (self.messages(), self.air.carried.get(), self.air.now.get());
        let pairs = [self.number(PS).map_err(failed)?, self.number(WORKER).map_err(failed)?];
        let until = self.now() + DEADLINE;
        for (key, tensor) in tensors {
            match way {
                Way::Plan => self.nodes[PS].publish(0, key, step, tensor.share()).map_err(failed)?,
                Way::Push => {}
                _ => self.nodes[PS].send(pairs[PS], step, key, tensor.share(), until, SendWaiter::Nobody),
            }
        }
        let done = match way {
            Way::Off | Way::Turn => {
                let recvs = self.recv_each(pairs[WORKER], step, tensors, until);
                let mut left = recvs.iter();
                let mut waits = left.next();
                self.run(|| {
                    while let Some(recv) = waits {
                        match recv.try_recv() {
                            Ok(Ok(_)) => waits = left.next(),
                            Ok(Err(unreceived)) => return Err(unreceived.error.to_string()),
                            Err(_) => return Ok(false),
                        }
                    }
                    Ok(true)
                })?
            }
            Way::Receive => {
                let recv = self.recv_fused(pairs[WORKER], step, tensors, until);
                self.run(|| match recv.try_recv() {
                    Ok(outcomes) => {
                        let outcomes = outcomes.map_err(failed)?;
                        outcomes.into_iter().try_for_each(|outcome| match outcome {
                            Ok(_) => Ok(()),
                            Err(unreceived) => Err(unreceived.error.to_string()),
                        })?;
                        Ok(true)
                    }
                    Err(_) => Ok(false),
                })?
            }
            Way::Plan => {
                let (handle, tray) = match plan.take() {
                    Some(plan) => plan,
                    None => self.open_plan(pairs[WORKER], tensors).map_err(failed)?,
                };
                let (sender, pulled) = oneshot::channel();
                let waiter = PullWaiter::Channel(sender);
                let now = self.now();
                self.nodes[WORKER]
                    .pull(now, PullRequest { plan: handle, min_version: step, deadline: until, tray, waiter });
                self.run(|| match pulled.try_recv() {
                    Ok(tray) => {
                        let tray = tray.map_err(failed)?;
                        let error = tray.first_error().map(|(_, error)| error.to_string());
                        *plan = Some((handle, tray));
                        error.map_or(Ok(true), Err)
                    }
                    Err(_) => Ok(false),
                })?
            }
            Way::Push => {
                self.push(pairs[PS], tensors, until);
                let (queue, mut items) = (self.queue.clone(), Vec::new());
                self.run(|| {
                    queue.take(usize::MAX, &mut items).map_err(failed)?;
                    Ok(items.len() == tensors.len())
                })?
            }
        };
        let before = carried;
        let Carried { writes, bytes } = self.air.carried.get();
        let carried = Carried { writes: writes - before.writes, bytes: bytes - before.bytes };
        Ok(Cost { messages: self.messages() - messages, carried, time: done - started })
    }

    fn recv_each(
        &mut self,
        pair: u32,
        step: i64,
        tensors: &[(String, Tensor)],
        deadline: Instant,
    ) -> Vec<oneshot::Receiver<RecvOutcome>> {
        let now = self.now();
        let ask = |(key, tensor): &(String, Tensor)| {
            let (sender, receiver) = oneshot::channel();
            let (destination, waiter) = (Some(memory(tensor)), RecvWaiter::Channel(sender));
            self.nodes[WORKER].recv(now, RecvRequest { pair, step, key, deadline, destination, waiter, fused: false });
            receiver
        };
        tensors.iter().map(ask).collect()
    }

    fn recv_fused(
        &mut self,
        pair: u32,
        step: i64,
        tensors: &[(String, Tensor)],
        deadline: Instant,
    ) -> oneshot::Receiver<Result<Vec<RecvOutcome>, Error>> {
        let (sender, receiver) = oneshot::channel();
        let keys = tensors.iter().map(|(key, _)| key.as_str());
        let destinations = tensors.iter().map(|(_, tensor)| memory(tensor));
        let waiter = BatchWaiter::Channel(sender);
        let now = self.now();
        self.nodes[WORKER].recv_fused(now, FusedRequest { pair, step, keys, destinations, deadline, waiter });
        receiver
    }

    fn push(&mut self, pair: u32, tensors: &[(String, Tensor)], deadline: Instant) {
        let tensors = tensors.iter().map(|(_, tensor)| tensor.share());
        let (now, queue, waiter) = (self.now(), QUEUE, SendWaiter::Nobody);
        self.nodes[PS].push(now, PushRequest { pair, queue, tensors, deadline, waiter });
    }

    fn open_plan(&mut self, pair: u32, tensors: &[(String, Tensor)]) -> Result<(Handle, Tray), Error> {
        let keys = Keys::new(tensors.iter().map(|(key, _)| key))?;
        let mut tray = Tray::new(keys.len());
        tensors.iter().enumerate().for_each(|(index, (_, tensor))| tray.set_destination(index, memory(tensor)));
        Ok((self.nodes[WORKER].open_plan(pair, Arc::new(keys)), tray))
    }

    fn messages(&self) -> u64 {
        self.nodes.iter().map(|node| node.counters().messages_sent).sum()
    }

    /// Goes on until nothing moves any more; when `is_done` first said so.
    fn run(&mut self, mut is_done: impl FnMut() -> Result<bool, String>) -> Result<Duration, String> {
        let mut done = None;
        for _ in 0..TURNS_MAX {
            let mut work = 0;
            for index in [WORKER, PS] {
                work += self.turn(index)?;
            }
            if done.is_none() && is_done()? {
                done = Some(self.air.now.get());
            }
            if work > 0 {
                continue;
            }
            match self.air.next_arrival() {
                Some(arrival) => self.air.now.set(arrival),
                None => return done.ok_or_else(|| "nothing moves any more, and the step is not done".into()),
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

    /// A call, its answer and its welcome, one after the other: the steps that count come later.
    fn connect(&mut self, from: usize, peer: Handle, hello: &Hello) -> Result<(), String> {
        let (now, to) = (self.now(), 1 - from);
        let answer = self.nodes[to].called(now, 0, hello);
        let Answer::Welcome { peer: caller } = answer else { return Err(format!("the call was answered {answer:?}")) };
        let (mut calling, called) = line(&self.air);
        self.nodes[to].accepted(now, caller, Box::new(called), hello);
        self.nodes[to].turn(now);
        self.air.now.set(self.air.next_arrival().ok_or("no welcome is under way")?);
        let welcome = hear(&mut calling)?;
        let now = self.now();
        self.nodes[from].dialed(now, peer, Box::new(calling), &welcome);
        Ok(())
    }
}

/// The worker's own, for one tensor.
fn memory(tensor: &Tensor) -> Buffer {
    Buffer::from_vec(vec![0; tensor.bytes().len()])
}

fn hear(line: &mut Line) -> Result<Hello, String> {
    let mut ear = Ear(None);
    line.receive(&mut ear, usize::MAX).map_err(|error| error.to_string())?;
    match ear.0 {
        Some(Greeting::Welcome(welcome)) => Ok(welcome),
        other => Err(format!("a welcome was expected, not {other:?}")),
    }
}

/// Hears a greeting and leaves what follows on the line.
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
