//! A whole shard with working tasks, and peers that say anything: a greeting first, then frames. What the shard says must always be
//! well-formed, every call of its tasks must end, and no memory may stay taken.

use std::sync::Arc;
use std::task::{Poll, Waker};
use std::time::{Duration, Instant};

use oneshot::Receiver as Outcome;
use sealane_fusion::node::{
    Answer, BatchWaiter, ConnectOrder, DialFailure, DialFailureKind, Fuse, FusedRequest, Node, NodeSettings,
    PullRequest, PullWaiter, PushRequest, RecvRequest, RecvWaiter, SendWaiter,
};
use sealane_fusion::{
    AcceptOptions, AcceptQueue, Buffer, EndpointMap, Keys, PullBuffer, RecvOutcome, SendOutcome, Tensor,
};
use sealane_runtime::{Slab, SlabSettings};
use sealane_transport::link::{Frames, Landing, Receiver};
use sealane_transport::loopback::{LoopbackLink, loopback};
use sealane_transport::outbox::Outbox;
use sealane_transport::wire::{Greeting, Hello, WireError, parse};
use sealane_transport::{Error, Handle, Link, SessionLimits};

use super::assert_says;
use super::forge::{KEYS, KINDS, forge};
use super::frames::payload_behind;
use super::script::Script;

/// Which address serves which task: the shard is the one at the first address.
const MAP: &str = "ps:1=10.0.0.1:7000\nps:2=10.0.0.1:7000\nworker:1=10.0.0.2:7000\nworker:2=10.0.0.3:7000\n";
pub(super) const TASKS: [&str; 2] = ["ps:1", "ps:2"];
/// Peers of the tasks' calls: two remote tasks, a task of the shard, and an unknown one.
pub(super) const PEERS: [&str; 4] = ["worker:1", "worker:2", "ps:2", "elsewhere:1"];
/// Addresses that peers claim to have.
const ADDRESSES: [&str; 4] = ["10.0.0.2:7000", "10.0.0.3:7000", "10.0.0.9:7000", "no address"];
pub(super) const STEPS: usize = 3;
const SLAB_BYTES: usize = 256 * 1024;
const TENSOR_BYTES_MAX: u64 = 64 * 1024;
/// Sizes of tensors: no bytes, small, beside a frame, in chunks.
pub(super) const SIZES: [usize; 4] = [0, 40, 9_000, 30_000];
/// Most links that peers keep open.
const LINKS_MAX: usize = 4;
/// Most bytes that a peer makes up at once.
const NOISE_BYTES_MAX: usize = 64;
/// Turns after which a shard without peers must be at rest.
pub(super) const LAST_TURNS: usize = 50;

/// A shard that serves [`TASKS`], with small limits.
pub(super) fn shard() -> Node {
    let settings = NodeSettings {
        addresses: vec!["10.0.0.1:7000".parse().expect("an address")],
        tasks: TASKS.iter().map(|task| (task.parse().expect("a task"), 0)).collect(),
        shard: 0,
        shards: 1,
        job: None,
        incarnation: 1 << 40,
        session: SessionLimits {
            window: 4,
            queued_requests_max: 16,
            parked_requests_max: 16,
            chunk_bytes: 12 * 1024,
            in_flight_bytes_max: 64 * 1024,
            tensor_bytes_max: TENSOR_BYTES_MAX,
            ..SessionLimits::default()
        },
        pending_sends_max: 32,
        published_tensors_max: 16,
        links_max: LINKS_MAX,
        connect_timeout: Duration::from_secs(2),
        lease: Duration::from_secs(5),
        fuse: Fuse::Turn,
        path_reason: "fuzzing".to_owned(),
        features: 0,
        kinds: Vec::new(),
    };
    let slab = |name| Slab::new(SlabSettings { name, bytes: SLAB_BYTES, populate: false }).expect("so much memory");
    let map = Arc::new(EndpointMap::parse(MAP, "map").expect("a map"));
    Node::new(settings, map, slab("send"), slab("receive")).expect("a shard")
}

/// A call of a task; it must end.
enum Call {
    Send(Outcome<SendOutcome>),
    Recv(Outcome<RecvOutcome>),
    Pull(Outcome<Result<PullBuffer, Error>>),
}

impl Call {
    fn has_ended(&self) -> bool {
        match self {
            Call::Send(outcome) => outcome.try_recv().is_ok(),
            Call::Recv(outcome) => outcome.try_recv().is_ok(),
            Call::Pull(outcome) => outcome.try_recv().is_ok(),
        }
    }
}

/// A peer's receiver: checks that what the shard says is well-formed.
#[derive(Default)]
struct Ear {
    greeted: bool,
    /// Bytes of payload before the next frame.
    payload: u64,
}

impl Receiver for Ear {
    fn frames(&mut self, bytes: &[u8]) -> Result<Frames, WireError> {
        let mut rest = bytes;
        loop {
            let skipped = self.payload.min(rest.len() as u64);
            (self.payload, rest) = (self.payload - skipped, &rest[skipped as usize..]);
            if !self.greeted {
                let Some((_, length)) = Greeting::parse(rest).expect("a greeting comes first") else { break };
                (self.greeted, rest) = (true, &rest[length..]);
                continue;
            }
            let Some((frame, length)) = parse(rest).expect("a shard says what can be read") else { break };
            self.payload = payload_behind(&frame);
            rest = &rest[length..];
        }
        Ok(Frames { consumed: bytes.len() - rest.len(), landing: None })
    }

    fn landed(&mut self, _: Landing) {
        unreachable!("it takes no payload")
    }
}

/// A peer's end of a link.
struct Peer {
    link: LoopbackLink,
    ear: Ear,
}

struct World {
    node: Node,
    now: Instant,
    peers: Vec<Peer>,
    calls: Vec<Call>,
    plans: Vec<(Handle, usize)>,
    /// Recvs that are read where they lie.
    views: Vec<Handle>,
    batches: Vec<Handle>,
    queues: Vec<(u16, &'static str, Arc<AcceptQueue>)>,
}

/// Runs the script in the input, word by word.
pub(super) fn run(input: &[u8]) {
    let now = Instant::now();
    let mut world = World {
        node: shard(),
        now,
        peers: vec![],
        calls: vec![],
        plans: vec![],
        views: vec![],
        batches: vec![],
        queues: vec![],
    };
    let mut script = Script::new(input);
    while !script.is_over() {
        world.go_on(&mut script);
    }
    world.finish();
}

impl World {
    /// Carries out one word of the script.
    fn go_on(&mut self, script: &mut Script<'_>) {
        match script.byte() {
            word @ 0..=115 => {
                let mut frame = Vec::new();
                forge(usize::from(word) % KINDS, script, &mut frame);
                self.say(script, &frame);
            }
            116..=121 => {
                let noise = script.bytes(NOISE_BYTES_MAX);
                self.say(script, noise);
            }
            122..=127 => {
                let zeros = vec![0; script.below(1 << 16)];
                self.say(script, &zeros);
            }
            128..=175 => self.act(script),
            176..=199 => {
                if self.peers.len() < LINKS_MAX {
                    self.greet(script);
                }
            }
            200..=205 => {
                if !self.peers.is_empty() {
                    self.peers.swap_remove(script.below(self.peers.len()));
                }
            }
            206..=215 => self.now += Duration::from_millis(script.one_of(&[1, 100, 1_500, 30_000])),
            _ => self.turn(),
        }
        self.node.check_invariants();
    }

    /// Sends a peer's bytes to the shard.
    fn say(&mut self, script: &mut Script<'_>, bytes: &[u8]) {
        if self.peers.is_empty() {
            return;
        }
        let at = script.below(self.peers.len());
        let mut outbox = Outbox::new(bytes.len(), 1, bytes.len());
        outbox.stage(|writer| writer.0.extend_from_slice(bytes));
        let _ = self.peers[at].link.transmit(&mut outbox, usize::MAX, false);
    }

    fn turn(&mut self) {
        self.node.turn(self.now);
        self.node.take_new_links(&mut Vec::new());
        for Peer { link, ear } in &mut self.peers {
            // The shard may have hung up; what it said before that is still received.
            while link.receive(ear, usize::MAX).is_ok_and(|heard| heard > 0) {}
        }
        let counters = self.node.counters();
        assert!(counters.pending_sends <= 32 && counters.published <= 16 && counters.links <= LINKS_MAX as u64);
        assert!(counters.slab_receive_bytes <= SLAB_BYTES as u64 && counters.parked <= 16 * LINKS_MAX as u64 * 2);
    }

    fn hello(script: &mut Script<'_>) -> Hello {
        Hello {
            features: 0,
            incarnation: script.number(),
            remembers: if script.yes() { 1 << 40 } else { script.number() },
            tensor_bytes_max: if script.yes() { TENSOR_BYTES_MAX } else { script.number() },
            epoch: script.below(4) as u32,
            shards: script.below(2) as u16 + 1,
            shard: 0,
            lane: script.byte().into(),
            address: script.one_of(&ADDRESSES).to_owned(),
            job: None,
            tasks: (0..script.below(4)).map(|_| script.one_of(&PEERS).to_owned()).collect(),
        }
    }

    /// A peer calls the shard, or answers its call.
    fn greet(&mut self, script: &mut Script<'_>) {
        let hello = Self::hello(script);
        if script.yes()
            && let Some(order) = self.node.poll_order()
        {
            let ConnectOrder::Dial { peer, .. } = order else { return };
            if script.yes() {
                let (mine, theirs) = loopback();
                self.peers.push(Peer { link: mine, ear: Ear { greeted: true, payload: 0 } });
                return self.node.dialed(self.now, peer, Box::new(theirs), &hello);
            }
            let kinds = [DialFailureKind::Refused, DialFailureKind::Crossed, DialFailureKind::Transient];
            let failure = DialFailure { reason: "nobody".to_owned(), kind: script.one_of(&kinds) };
            return self.node.dial_failed(self.now, peer, failure);
        }
        match self.node.called(self.now, 0, &hello) {
            Answer::Reject(_, reason) => assert_says(&reason),
            Answer::Welcome { peer } => {
                let (mine, theirs) = loopback();
                self.peers.push(Peer { link: mine, ear: Ear::default() });
                self.node.accepted(self.now, peer, Box::new(theirs), &hello);
            }
        }
    }

    fn act(&mut self, script: &mut Script<'_>) {
        let local = script.below(TASKS.len()) as u16;
        let Ok(pair) = self.node.pair(local, script.one_of(&PEERS)) else { return };
        let deadline = self.now + Duration::from_millis(script.one_of(&[1, 200, 5_000]));
        let (step, key, bytes) = (script.below(STEPS) as i64, script.one_of(&KEYS), script.one_of(&SIZES));
        let tensor = Tensor::from_elements(&[bytes as u64], &vec![3_u8; bytes]).expect("it fits");
        let now = self.now;
        match script.below(15) {
            0 | 1 => {
                let (sender, outcome) = oneshot::channel();
                self.calls.push(Call::Send(outcome));
                self.node.send(pair, step, key, tensor, deadline, SendWaiter::Channel(sender));
            }
            2 | 3 => {
                let (sender, outcome) = oneshot::channel();
                self.calls.push(Call::Recv(outcome));
                let (waiter, fused, fail_if_gone) = (RecvWaiter::Channel(sender), script.yes(), script.yes());
                let destination = script.yes().then(|| Buffer::from_vec(vec![0; bytes]).into());
                self.node
                    .recv(now, RecvRequest { pair, step, key, deadline, destination, waiter, fused, fail_if_gone });
            }
            4 => drop(self.node.publish(local, key, step, tensor)),
            5 => drop(self.node.withdraw(local, key)),
            6 => {
                let count = script.below(KEYS.len() + 1);
                let keys = Keys::new(KEYS.iter().take(count)).expect("few");
                self.plans.push((self.node.open_plan(pair, Arc::new(keys)), count));
            }
            7 => {
                if !self.plans.is_empty() {
                    let (plan, count) = script.one_of(&self.plans);
                    let (sender, outcome) = oneshot::channel();
                    self.calls.push(Call::Pull(outcome));
                    let (pull_buffer, waiter) = (PullBuffer::new(count), PullWaiter::Channel(sender));
                    self.node.pull(
                        now,
                        PullRequest {
                            plan,
                            min_version: step,
                            deadline,
                            pull_buffer,
                            views: false,
                            fail_if_gone: script.yes(),
                            waiter,
                        },
                    );
                }
            }
            8 => {
                let (sender, outcome) = oneshot::channel();
                self.calls.push(Call::Send(outcome));
                let (tensors, waiter) = (std::iter::once(tensor), SendWaiter::Channel(sender));
                self.node.push(now, PushRequest { pair, queue: key, tensors, deadline, waiter });
            }
            9 => {
                let options = AcceptOptions { tensors_max: 2, bytes_max: 40_000 };
                let queue = Arc::new(AcceptQueue::new(options, Box::new(|| ())));
                if self.node.open_queue(local, key, queue.clone()).is_ok() {
                    self.queues.push((local, key, queue));
                }
            }
            10 => {
                if let Some((local, name, queue)) = self.queues.pop() {
                    let taken = queue.take(1, &mut Vec::new());
                    if taken.is_ok() && script.yes() {
                        self.node.replenish_named(local, name);
                        self.queues.push((local, name, queue));
                    } else {
                        self.node.close_queue(local, name, &queue);
                    }
                }
            }
            11 => {
                self.node.abort(local, step, "over");
                self.node.cleanup(local, step);
            }
            12 => {
                let (sender, outcome) = oneshot::channel();
                self.calls.push(Call::Send(outcome));
                let tensors = (0..script.below(6)).map(|_| (script.one_of(&KEYS), tensor.share())).collect::<Vec<_>>();
                self.node.send_many((pair, step), tensors.into_iter(), deadline, SendWaiter::Channel(sender));
            }
            13 => {
                let keys = (0..script.below(6)).map(|_| script.one_of(&KEYS)).collect::<Vec<_>>();
                let destinations = (0..script.below(3)).map(|_| Buffer::from_vec(vec![0; bytes]));
                let in_views = script.yes();
                let waiter = if in_views { BatchWaiter::Views(None) } else { BatchWaiter::Future(None) };
                let batch = FusedRequest { pair, step, keys: keys.into_iter(), destinations, deadline, waiter };
                let batch = self.node.recv_fused(now, batch);
                (if in_views { &mut self.views } else { &mut self.batches }).push(batch);
            }
            _ if script.yes() => self.node.meet_client(local),
            _ => self.node.forget_client(local, "its process ended"),
        }
    }

    /// The peers go and the shard stops: nothing may be left.
    fn finish(mut self) {
        self.peers.clear();
        self.node.shut_down(self.now, "it is over");
        for _ in 0..LAST_TURNS {
            self.now += Duration::from_secs(5);
            self.turn();
        }
        for (local, name, queue) in self.queues.drain(..) {
            self.node.close_queue(local, name, &queue);
            // Tensors that are not taken would wait for the next acceptor. A queue that is closed and empty reports that.
            let _ = queue.take(usize::MAX, &mut Vec::new());
        }
        assert!(self.calls.iter().all(Call::has_ended), "a call stands");
        for batch in self.views.drain(..) {
            let Poll::Ready(received) = self.node.poll_views(batch, Waker::noop()) else { panic!("a call stands") };
            received.iter().flatten().for_each(|view| drop(view.to_tensor()));
        }
        for batch in self.batches.drain(..) {
            assert!(self.node.poll_batch(batch, Waker::noop()).is_ready(), "a call stands");
        }
        let counters = self.node.counters();
        assert_eq!((counters.pending_sends, counters.parked, counters.links), (0, 0, 0), "{counters:?}");
        self.plans.drain(..).for_each(|(plan, _)| self.node.close_plan(plan));
        self.calls.clear();
        assert_eq!((self.node.counters().slab_receive_bytes, self.node.under_way()), (0, 0));
    }
}

pub(super) fn seeds() -> Vec<Vec<u8>> {
    // A caller with its tasks; then the actions of the shard's tasks and of the caller.
    let hello = [180, 5, 0, 0, 1, 0, 0, 0, 0, 1, 0, 0];
    let answered = [180, 5, 0, 0, 1, 0, 0, 0, 0, 1, 0, 1, 1];
    let act = |what: u8, more: &[u8]| [&[130, 0, 0, 2, 1, 0, 1, what][..], more].concat();
    const TURN: u8 = 255;
    vec![
        [&hello[..], &[TURN], &act(0, &[]), &[0, 16, 1, 9, 0, 0, 0, 0], &[TURN, TURN]].concat(),
        [&act(2, &[0, 0])[..], &[TURN], &answered[..], &[TURN, 1, 16, 16, 40, 0, 1, 7, 0, TURN]].concat(),
        [&act(6, &[2])[..], &act(7, &[0]), &[TURN], &answered[..], &[TURN, 17, 16, 2, 0, 5, 1, 1, 5, 1, 0, TURN]]
            .concat(),
        [&hello[..], &act(9, &[]), &[TURN, 22, 16, 0, 0, 0, 0, 0, TURN, 23, 16, 0, 40, 0, 1, 0, TURN]].concat(),
        [&hello[..], &act(4, &[]), &[TURN, 14, 16, 0, 0, 1, 0, 1, 0, 0, 16, 17, 16, 0, 9, 0, TURN, TURN]].concat(),
        [&act(8, &[])[..], &[TURN], &answered[..], &[TURN, 25, 16, 0, 5, 240, 0, 0, TURN]].concat(),
    ]
}
