//! Nodes connected directly, in one thread and on a clock that the test sets: what sends and recvs guarantee, case by case.

mod ahead;
mod connecting;
mod credit;
mod ending;
mod fused;
mod leaving;
mod local;
mod meeting;
mod placing;
mod pulling;
mod pushing;
mod quota;
mod rows;
mod together;
mod writing;

use std::sync::Arc;
use std::time::{Duration, Instant};

use sealane_runtime::{Buffer, Slab, SlabSettings};
use sealane_transport::endpoint_map::EndpointMap;
use sealane_transport::lane::shard_of;
use sealane_transport::link::{Frames, Landing, Receiver};
use sealane_transport::loopback::{LoopbackLink, loopback};
use sealane_transport::wire::{Greeting, Hello, RejectCode, WireError};
use sealane_transport::{Code, Destination, Error, Handle, Link, RecvOutcome, SendOutcome, SessionLimits};

use super::{
    Answer, ConnectOrder, DialFailure, DialFailureKind, Fuse, Node, NodeSettings, RecvRequest, RecvWaiter, SendWaiter,
    Ticket,
};
use sealane_transport::tensor::Tensor;

const MAP: &str = "ps:1=10.0.0.1:7000\nps:2=10.0.0.1:7000\nworker:1=10.0.0.2:7000\nabsent:1=10.0.0.2:7000\n\
                   nowhere:1=10.0.0.9:7000\n";
const SLAB_BYTES: usize = 1 << 20;
/// How long calls may wait unless a test says otherwise.
const SOON: Duration = Duration::from_secs(5);
/// Rounds within which nodes must come to rest.
const ROUNDS_MAX: usize = 1000;

fn map() -> Arc<EndpointMap> {
    Arc::new(EndpointMap::parse(MAP, "test").unwrap())
}

fn settings(address: &str, tasks: &[&str]) -> NodeSettings {
    NodeSettings {
        addresses: vec![address.parse().unwrap()],
        tasks: tasks.iter().map(|task| (task.parse().unwrap(), 0)).collect(),
        shard: 0,
        shards: 1,
        job: None,
        incarnation: 1000,
        session: SessionLimits::default(),
        pending_sends_max: 1000,
        published_tensors_max: 1000,
        links_max: 8,
        connect_timeout: Duration::from_secs(20),
        lease: Duration::from_secs(60),
        fuse: Fuse::Turn,
        path_reason: "a test".into(),
        features: 0,
        kinds: Vec::new(),
    }
}

fn ps() -> NodeSettings {
    settings("10.0.0.1:7000", &["ps:1", "ps:2"])
}

fn worker() -> NodeSettings {
    settings("10.0.0.2:7000", &["worker:1"])
}

fn node(settings: NodeSettings) -> Node {
    let slab = |name| Slab::new(SlabSettings { name, bytes: SLAB_BYTES, populate: false }).unwrap();
    Node::new(settings, map(), slab("send"), slab("receive")).unwrap()
}

/// A node of two tasks whose peers are not there.
pub(crate) fn alone() -> Node {
    node(ps())
}

/// Nodes and the network between them. Calls arrive at once, unless no node has the address.
struct Net {
    nodes: Vec<Node>,
    now: Instant,
    /// While set, calls are neither answered nor refused.
    mute: bool,
    /// The failure of calls to an address that no node has.
    failure: DialFailureKind,
    rejections: Vec<(RejectCode, String)>,
}

impl Net {
    fn new(nodes: impl IntoIterator<Item = NodeSettings>) -> Net {
        let nodes = nodes.into_iter().map(node).collect();
        let (now, failure) = (Instant::now(), DialFailureKind::Transient);
        Net { nodes, now, mute: false, failure, rejections: Vec::new() }
    }

    /// A ps at 0 and a worker at 1.
    fn pair() -> Net {
        Net::new([ps(), worker()])
    }

    fn pass(&mut self, time: Duration) {
        self.now += time;
        self.rest();
    }

    /// Runs all nodes and delivers their calls until there is nothing left to do.
    fn rest(&mut self) {
        for _ in 0..ROUNDS_MAX {
            let mut work = 0;
            for index in 0..self.nodes.len() {
                while let Some(order) = self.nodes[index].poll_order() {
                    work += 1;
                    self.carry_out(index, order);
                }
                let mut links = Vec::new();
                self.nodes[index].take_new_links(&mut links);
                work += self.nodes[index].turn(self.now);
                self.nodes[index].check_invariants();
            }
            if work == 0 {
                return;
            }
        }
        panic!("the nodes do not come to rest");
    }

    fn carry_out(&mut self, from: usize, order: ConnectOrder) {
        let ConnectOrder::Dial { peer, address, hello } = order else { return };
        if self.mute {
            return;
        }
        let shard = |node: &Node| shard_of(hello.lane, usize::from(node.settings().shards)) as u16;
        let called =
            |node: &Node| node.settings().addresses == [address.clone()] && node.settings().shard == shard(node);
        let Some(to) = self.nodes.iter().position(called) else {
            return self.fail(from, peer, self.failure, "nobody is there");
        };
        match self.call(to, &hello) {
            Ok((link, welcome)) => self.nodes[from].dialed(self.now, peer, Box::new(link), &welcome),
            Err((code, reason)) => {
                let kind = match code {
                    RejectCode::Crossed => DialFailureKind::Crossed,
                    RejectCode::Full => DialFailureKind::Transient,
                    RejectCode::Version | RejectCode::Refused => DialFailureKind::Final,
                    RejectCode::Unauthenticated | RejectCode::Job => DialFailureKind::Denied,
                };
                self.rejections.push((code, reason.clone()));
                self.fail(from, peer, kind, &reason);
            }
        }
    }

    fn fail(&mut self, from: usize, peer: Handle, kind: DialFailureKind, reason: &str) {
        self.nodes[from].dial_failed(self.now, peer, DialFailure { reason: reason.into(), kind });
    }

    /// Delivers a greeting to a node: returns the caller's end and the welcome, or the rejection.
    fn call(&mut self, to: usize, hello: &Hello) -> Result<(LoopbackLink, Hello), (RejectCode, String)> {
        match self.nodes[to].called(self.now, 0, hello) {
            Answer::Reject(code, reason) => Err((code, reason)),
            Answer::Welcome { peer } => {
                let (mut mine, theirs) = loopback();
                self.nodes[to].accepted(self.now, peer, Box::new(theirs), hello);
                self.nodes[to].turn(self.now);
                let mut ear = Ear(None);
                mine.receive(&mut ear, usize::MAX).unwrap();
                let Some(Greeting::Welcome(welcome)) = ear.0 else { panic!("the welcome comes first") };
                Ok((mine, welcome))
            }
        }
    }

    /// The next call that a node wants to make.
    fn dialing(&mut self, index: usize) -> (Handle, Hello) {
        match self.nodes[index].poll_order() {
            Some(ConnectOrder::Dial { peer, hello, .. }) => (peer, hello),
            other => panic!("a call was expected, not {other:?}"),
        }
    }

    fn number(&mut self, index: usize, local: &str, peer: &str) -> u32 {
        let node = &mut self.nodes[index];
        let local = node.local_task(local).unwrap();
        node.pair(local, peer).unwrap()
    }

    fn send(&mut self, from: (usize, &str), to: &str, key: &str, bytes: &[u8]) -> Sent {
        let pair = self.number(from.0, from.1, to);
        let tensor = Tensor::from_elements(&[bytes.len() as u64], bytes).unwrap();
        let (sender, receiver) = oneshot::channel();
        let deadline = self.now + SOON;
        self.nodes[from.0].send(pair, 1, key, tensor, deadline, SendWaiter::Channel(sender));
        Sent(receiver)
    }

    fn recv(&mut self, at: (usize, &str), from: &str, key: &str) -> Asked {
        self.recv_into(at, from, key, None)
    }

    fn recv_into(&mut self, at: (usize, &str), from: &str, key: &str, destination: Option<Buffer>) -> Asked {
        let pair = self.number(at.0, at.1, from);
        let (sender, receiver) = oneshot::channel();
        let request = RecvRequest {
            destination: destination.map(Destination::from),
            ..request(pair, key, self.now + SOON, RecvWaiter::Channel(sender))
        };
        let ticket = self.nodes[at.0].recv(self.now, request);
        Asked { receiver, ticket }
    }

    /// Checks that nothing waits and nothing is held.
    fn nothing_is_left(&self) {
        for node in &self.nodes {
            let counters = node.counters();
            assert_eq!((counters.pending_sends, counters.parked), (0, 0));
            assert_eq!((counters.slab_send_bytes, counters.slab_receive_bytes), (0, 0));
        }
    }
}

/// A recv of step 1 that brings no memory.
fn request(pair: u32, key: &str, deadline: Instant, waiter: RecvWaiter) -> RecvRequest<'_> {
    RecvRequest { pair, step: 1, key, deadline, destination: None, waiter, fused: false, fail_if_gone: false }
}

struct Sent(oneshot::Receiver<SendOutcome>);

impl Sent {
    fn waits(&self) -> bool {
        matches!(self.0.try_recv(), Err(oneshot::TryRecvError::Empty))
    }

    fn outcome(&self) -> SendOutcome {
        self.0.try_recv().expect("the send has ended")
    }

    fn error(&self) -> Error {
        self.outcome().expect_err("the send has failed")
    }
}

struct Asked {
    receiver: oneshot::Receiver<RecvOutcome>,
    ticket: Option<Ticket>,
}

impl Asked {
    fn waits(&self) -> bool {
        matches!(self.receiver.try_recv(), Err(oneshot::TryRecvError::Empty))
    }

    fn outcome(&self) -> RecvOutcome {
        self.receiver.try_recv().expect("the recv has ended")
    }

    fn bytes(&self) -> Vec<u8> {
        self.outcome().expect("the recv has its tensor").bytes().to_vec()
    }

    fn error(&self) -> Error {
        self.outcome().expect_err("the recv has failed").error
    }
}

/// The limit that an error names.
fn limit(error: &Error) -> &str {
    match error {
        Error::ResourceExhausted { limit, .. } => limit,
        other => panic!("{other} names no limit"),
    }
}

/// Takes a greeting, and leaves the bytes after it on the link.
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
