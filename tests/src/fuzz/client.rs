//! A whole shard, and a client of one of its tasks that writes anything into its ring while another task of the shard talks to it. The
//! shard goes on or hangs up on the client; it harms nobody else, and nothing of the client is left.

use std::sync::Arc;
use std::time::{Duration, Instant};

use oneshot::Receiver as Outcome;
use sealane_fusion::fuzzing::Attachment;
use sealane_fusion::node::{PushRequest, RecvRequest, RecvWaiter, SendWaiter};
use sealane_fusion::{AcceptOptions, AcceptQueue, RecvOutcome, SendOutcome, Tensor};
use sealane_transport::Meta;
use sealane_transport::named_rows::NamedRowsBuf;
use sealane_transport::shm::attach::Attached;
use sealane_transport::shm::limits::INLINE_BYTES_MAX;
use sealane_transport::shm::{
    AcceptedAt, CallListBuf, ClientEnd, Completion, KeyList, Moved, NO_TIMEOUT, PayloadAt, ReceivedAt, Record,
    SmallCall, Span, Submission,
};

use super::forge::{KEYS, vector};
use super::node::{LAST_TURNS, PEERS, SIZES, STEPS, TASKS, shard};
use super::records::fill;
use super::script::Script;

/// The client's task, and the other one.
const CLIENT: u16 = 0;
const OTHER: u16 = 1;
const ARENA_BYTES: u64 = 128 * 1024;
const AREA_BYTES: u64 = 128 * 1024;
/// Numbers of calls, plans and queues that the client uses.
const NUMBERS: usize = 6;
/// Most steps in the life of a plan.
const PLAN_STEPS_MAX: usize = 12;
/// Longest record that is not a submission, in bytes.
const NOISE_BYTES_MAX: usize = 80;

struct World {
    shard: Attachment,
    end: ClientEnd,
    record: Record,
    now: Instant,
    /// Blocks of the area that were handed to the client.
    tokens: Vec<u64>,
    /// Calls of the other task.
    sends: Vec<Outcome<SendOutcome>>,
    recvs: Vec<Outcome<RecvOutcome>>,
    queue: Option<(&'static str, Arc<AcceptQueue>)>,
    /// The plan of `lead_plan` is open.
    has_plan: bool,
}

/// Runs the script in the input, word by word.
pub(super) fn run(input: &[u8]) {
    let (shard, attached) = Attachment::new(shard(), CLIENT, ARENA_BYTES, AREA_BYTES).expect("memory for a client");
    let Attached { mut shards, .. } = attached;
    let (end, _) = shards.pop().expect("there is one shard");
    let (record, now) = (Record::new(), Instant::now());
    let (tokens, sends, recvs) = (Vec::new(), Vec::new(), Vec::new());
    let mut world = World { shard, end, record, now, tokens, sends, recvs, queue: None, has_plan: false };
    // Without names the client could address nobody.
    for (number, name) in (0..).zip(PEERS.into_iter().chain(TASKS)) {
        world.submit(&Submission::Peer { number, name });
    }
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
            0..=139 => self.ask(script),
            140..=149 => {
                fill(&mut self.record, script.bytes(NOISE_BYTES_MAX));
                let _ = self.end.submissions.push(&self.record);
            }
            150..=179 => self.act(script),
            180..=189 => self.now += Duration::from_millis(script.one_of(&[1, 100, 1_500, 30_000])),
            190..=209 => self.read(),
            210..=229 => self.lead_plan(script),
            255 => self.ask_together(script),
            _ => self.shard.turn(self.now),
        }
    }

    fn submit(&mut self, submission: &Submission<'_>) {
        submission.encode(&mut self.record).expect("within the limits");
        // A full ring is the client's own problem.
        let _ = self.end.submissions.push(&self.record);
    }

    /// Writes a record of the kinds that a client writes, with numbers that may be wrong.
    fn ask(&mut self, script: &mut Script<'_>) {
        let kind = script.below(23);
        let (call, number) = (script.below(NUMBERS) as u32, script.below(NUMBERS) as u32);
        let (peer, step) = (script.below(PEERS.len() + TASKS.len() + 1) as u16, script.below(STEPS) as i64);
        let (key, bytes) = (script.one_of(&KEYS), script.one_of(&SIZES));
        let timeout_ms = script.one_of(&[0, 10, 5_000, NO_TIMEOUT]);
        let offset = if script.yes() { u64::from(script.byte()) << 8 } else { script.number() };
        let span = Span { offset, len: bytes as u64 };
        let inline = [5; INLINE_BYTES_MAX];
        let is_inline = bytes <= INLINE_BYTES_MAX && script.yes();
        let payload = if is_inline { PayloadAt::Inline(&inline[..bytes]) } else { PayloadAt::Arena(span) };
        let meta = if script.below(8) == 0 { Meta::from_slice(script.bytes(40)) } else { vector(bytes as u64) };
        let (meta, mut packed, mut named) = (&meta[..], Vec::new(), NamedRowsBuf::default());
        let freed = [if script.yes() { self.tokens.pop().unwrap_or(1) } else { script.number() }, script.number()];
        let submission = match kind {
            0 | 1 => Submission::Send { call, peer, step, timeout_ms, key, meta, payload },
            2 | 3 => {
                let wanted: &[u8] = if is_inline { meta } else { &[] };
                let (destination, fused, fail_if_gone) =
                    (script.yes().then_some((span, wanted)), script.yes(), script.below(4) == 0);
                Submission::Recv { call, peer, step, timeout_ms, key, destination, fused, fail_if_gone }
            }
            4 => Submission::Publish { call, version: step, key, meta, payload, more: script.yes() },
            5 => Submission::Withdraw { key },
            22 => Submission::Commit,
            6 => Submission::OpenPlan { plan: number, peer, keys: script.below(4) as u32 },
            7 => {
                let keys = KeyList::pack(KEYS.into_iter().take(script.below(3) + 1), &mut packed);
                Submission::PlanKeys { plan: number, keys: keys.expect("short keys") }
            }
            8 => {
                let (plan, min_version, views, fail_if_gone) = (number, step, script.yes(), script.below(4) == 0);
                Submission::Pull { call, plan, min_version, timeout_ms, views, fail_if_gone }
            }
            9 => Submission::ClosePlan { plan: number },
            21 => {
                for key in KEYS.into_iter().take(script.below(3) + 1) {
                    named.name(key, &[script.number(), script.byte().into()], |_| 2);
                }
                let (rows, views, fail_if_gone) = (named.as_rows(), script.yes(), script.yes());
                Submission::Rows { call, peer, min_version: step, timeout_ms, rows, views, fail_if_gone }
            }
            10 => Submission::Push { call, peer, timeout_ms, queue: key, meta, payload },
            11 => {
                let (tensors_max, bytes_max) = (script.number() as u32, script.number());
                Submission::OpenQueue { queue: number, tensors_max, bytes_max, name: key }
            }
            12 => Submission::Grant { queue: number, tensors: script.number() as u32, bytes: script.number() },
            13 => Submission::CloseQueue { queue: number },
            14 => Submission::Cancel { call },
            15 => Submission::Free { tokens: &freed[..script.below(3)] },
            16 if script.byte() == 0 => Submission::Detach,
            18 => {
                let mut moved = || Moved { tensors: script.number(), bytes: script.number() };
                let (sent, received) = (moved(), moved());
                match script.byte() {
                    kind if kind & 2 == 0 => {
                        Submission::Elsewhere { peer: (kind & 1 == 1).then_some(peer), sent, received }
                    }
                    _ => Submission::Direct { peer, sent, received },
                }
            }
            16 => Submission::Cleanup { step },
            20 => {
                let mut moved = || Moved { tensors: script.number(), bytes: script.number() };
                let (published, left) = (moved(), moved());
                Submission::PublishedAgain { published, copied_bytes: script.number(), left }
            }
            19 => Submission::PlanPlace { call, plan: number, index: script.below(3) as u32, span },
            _ => Submission::Abort { step, reason: key },
        };
        self.submit(&submission);
    }

    /// Writes a record of many small calls, some of which may share a number or use one that is taken.
    fn ask_together(&mut self, script: &mut Script<'_>) {
        let (peer, step) = (script.below(PEERS.len() + TASKS.len() + 1) as u16, script.below(STEPS) as i64);
        let (timeout_ms, sends) = (script.one_of(&[0, 10, 5_000, NO_TIMEOUT]), script.yes());
        let (inline, mut calls) = ([5; INLINE_BYTES_MAX], CallListBuf::default());
        for _ in 0..script.below(4) {
            let (call, key) = (script.below(NUMBERS) as u32, script.one_of(&KEYS));
            let bytes = if sends { script.below(INLINE_BYTES_MAX) } else { 0 };
            let meta = if sends { vector(bytes as u64) } else { Meta::new() };
            let small = SmallCall { call, key, meta: &meta, bytes: &inline[..bytes] };
            assert!(calls.push(small), "a few short ones");
        }
        let (calls, fail_if_gone) = (calls.as_list(), script.yes());
        self.submit(&match sends {
            true => Submission::SendMany { peer, step, timeout_ms, calls },
            false => Submission::RecvMany { peer, step, timeout_ms, calls, fail_if_gone },
        });
    }

    /// Steps in the life of a plan, mostly in one turn: it is opened with any number of keys, pulled, given up, closed, and opened again
    /// under the same number. No numbers are wrong here, so that a plan may live long.
    fn lead_plan(&mut self, script: &mut Script<'_>) {
        let (plan, peer) = (NUMBERS as u32, script.below(PEERS.len() + TASKS.len()) as u16);
        for _ in 0..script.below(PLAN_STEPS_MAX) {
            // One byte per step, so that a small change of the input gives another life.
            let step = script.byte();
            let (call, keys, mut packed) =
                (NUMBERS as u32 + u32::from(step >> 5), usize::from(step >> 3 & 3), Vec::new());
            match step & 7 {
                0..=2 if self.has_plan => self.submit(&Submission::ClosePlan { plan }),
                0..=2 => {
                    self.submit(&Submission::OpenPlan { plan, peer, keys: keys as u32 });
                    if keys > 0 {
                        let keys = KeyList::pack(KEYS.into_iter().take(keys), &mut packed);
                        self.submit(&Submission::PlanKeys { plan, keys: keys.expect("short keys") });
                    }
                }
                3..=5 if self.has_plan => {
                    self.submit(&Submission::Pull {
                        call,
                        plan,
                        min_version: 0,
                        timeout_ms: NO_TIMEOUT,
                        views: false,
                        fail_if_gone: false,
                    });
                }
                6 => self.submit(&Submission::Cancel { call }),
                _ => self.shard.turn(self.now),
            }
            self.has_plan ^= step & 7 <= 2;
        }
    }

    /// The client reads its answers, which must make sense.
    fn read(&mut self) {
        while self.end.completions.pop(&mut self.record).expect("a shard keeps the ring whole") {
            let completion = Completion::decode(&self.record).expect("a shard writes what can be read");
            match completion {
                Completion::Received {
                    payload: ReceivedAt::Area { span, token } | ReceivedAt::Lending { span, token },
                    ..
                }
                | Completion::Accepted { payload: AcceptedAt::Area { span, token }, .. }
                | Completion::Placed { span, token, .. }
                | Completion::Board { span, token, .. } => {
                    assert!(span.offset.checked_add(span.len).is_some_and(|end| end <= AREA_BYTES), "{span:?}");
                    self.tokens.push(token);
                }
                Completion::Viewed { span, token, .. } => {
                    assert!(span.offset.checked_add(span.len).is_some_and(|end| end <= ARENA_BYTES), "{span:?}");
                    self.tokens.push(token);
                }
                Completion::Failed { error, .. } | Completion::Missed { error, .. } => {
                    assert!(!error.to_string().is_empty());
                }
                _ => {}
            }
        }
        self.end.completions.publish();
    }

    /// The other task does something with the client's task.
    fn act(&mut self, script: &mut Script<'_>) {
        let node = self.shard.node();
        let pair = node.pair(OTHER, TASKS[usize::from(CLIENT)]).expect("both are on the map");
        let deadline = self.now + Duration::from_millis(script.one_of(&[10, 5_000]));
        let (step, key, bytes) = (script.below(STEPS) as i64, script.one_of(&KEYS), script.one_of(&SIZES));
        let tensor = Tensor::from_elements(&[bytes as u64], &vec![3_u8; bytes]).expect("it fits");
        match script.below(6) {
            0 => {
                let (sender, outcome) = oneshot::channel();
                self.sends.push(outcome);
                node.send(pair, step, key, tensor, deadline, SendWaiter::Channel(sender));
            }
            1 => {
                let (sender, outcome) = oneshot::channel();
                self.recvs.push(outcome);
                let waiter = RecvWaiter::Channel(sender);
                let request = RecvRequest {
                    pair,
                    step,
                    key,
                    deadline,
                    destination: None,
                    waiter,
                    fused: false,
                    fail_if_gone: false,
                };
                node.recv(self.now, request);
            }
            2 => drop(node.publish(OTHER, key, step, tensor)),
            3 => {
                let (sender, outcome) = oneshot::channel();
                self.sends.push(outcome);
                let (tensors, waiter) = (std::iter::once(tensor), SendWaiter::Channel(sender));
                node.push(self.now, PushRequest { pair, queue: key, tensors, deadline, waiter });
            }
            4 => {
                let options = AcceptOptions { tensors_max: 2, bytes_max: 40_000 };
                let queue = Arc::new(AcceptQueue::new(options, Box::new(|| ())));
                if self.queue.is_none() && node.open_queue(OTHER, key, queue.clone()).is_ok() {
                    self.queue = Some((key, queue));
                }
            }
            _ => {
                if let Some((name, queue)) = &self.queue {
                    let taken = queue.take(1, &mut Vec::new());
                    taken.expect("it is open");
                    node.replenish_named(OTHER, name);
                }
            }
        }
    }

    /// The client goes and the shard stops: nothing may be left.
    fn finish(mut self) {
        self.read();
        self.shard.turn(self.now);
        let mut node = self.shard.dismiss("it is gone");
        if let Some((name, queue)) = self.queue.take() {
            node.close_queue(OTHER, name, &queue);
        }
        node.shut_down(self.now, "it is over");
        for _ in 0..LAST_TURNS {
            self.now += Duration::from_secs(5);
            node.turn(self.now);
        }
        assert!(self.sends.iter().all(|outcome| outcome.try_recv().is_ok()), "a send or a push stands");
        assert!(self.recvs.iter().all(|outcome| outcome.try_recv().is_ok()), "a recv stands");
        let counters = node.counters();
        assert_eq!((counters.pending_sends, counters.parked, counters.slab_receive_bytes), (0, 0, 0), "{counters:?}");
        assert_eq!(node.under_way(), 0);
    }
}

pub(super) fn seeds() -> Vec<Vec<u8>> {
    const TURN: u8 = 255;
    const READ: u8 = 200;
    // Kind, call, number, peer, step, key, size, timeout, place, and what the kind adds.
    let ask = |kind: u8, peer: u8, size: u8, more: &[u8]| {
        [&[1, kind, 1, 1, peer, 1, 1, size, 2, 1, 4, 1, 1, 0, 0][..], more].concat()
    };
    let act = |what: u8, size: u8| vec![160, 1, 1, 1, size, what];
    vec![
        [ask(0, 2, 1, &[]), act(1, 0), vec![TURN, TURN, READ]].concat(),
        [ask(2, 2, 2, &[1, 0]), act(0, 2), vec![TURN, TURN, READ], ask(15, 0, 0, &[2])].concat(),
        [ask(6, 2, 0, &[2]), ask(7, 2, 0, &[1]), act(2, 1), ask(8, 2, 0, &[]), vec![TURN, TURN, READ]].concat(),
        [ask(11, 2, 0, &[9, 250, 3]), act(3, 2), ask(12, 2, 0, &[2, 250, 5]), vec![TURN, TURN, READ, TURN]].concat(),
        [act(4, 0), ask(10, 2, 2, &[]), vec![TURN, TURN], act(5, 0), vec![TURN, READ]].concat(),
        [ask(4, 2, 2, &[0]), vec![TURN, READ], ask(5, 2, 0, &[]), vec![TURN, READ]].concat(),
        // Opened with two keys, pulled, closed.
        vec![220, 4, 4, 2 << 3, 3, 7, 0, TURN, READ],
    ]
}
