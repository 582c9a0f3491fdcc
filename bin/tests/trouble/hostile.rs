//! Clients that write what no correct one writes: each is hung up on or merely told, the daemon lives, and an honest
//! neighbour sees neither an error nor a wrong byte.

mod scribbler;

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;

use sealane::{Code, Task};
use sealane_transport::shm::attach::Attach;
use sealane_transport::shm::limits::{NUMBERS_PER_RECORD, QUEUE_CREDIT_TENSORS_MAX, QUEUES_MAX, TRUNK_WORDS};
use sealane_transport::shm::{KeyList, Moved, NO_TIMEOUT, PayloadAt, Span, Submission, segment_bytes};

use self::scribbler::Scribbler;
use crate::fixture::{ARENA_BYTES, PS, WORKER};
use crate::hosts::Hosts;
use crate::raw::{Raw, arrived};
use crate::tensors::{STEP, meta, tensor, verify};
use crate::traces::eventually;

/// The hostile client's task.
const VILLAIN: &str = "worker1:2222";

/// Served here, and nobody is attached as it.
const ABSENT: &str = "ps1:2222";

/// Kinds of records, as they lie in the ring.
const SEND: u8 = 2;
const RECV: u8 = 3;
const CANCEL: u8 = 4;
const ABORT: u8 = 5;
const FREE: u8 = 7;
const DETACH: u8 = 8;
const PLAN_KEYS: u8 = 12;
const OPEN_QUEUE: u8 = 16;
const UNKNOWN: u8 = 200;

/// Bytes of the submission ring, and of the header in front of it.
const RING_BYTES: u64 = TRUNK_WORDS * 8;
const HEADER_BYTES: u64 = segment_bytes(0) - 2 * RING_BYTES;

/// The word of the header in which a client says how many answers it has read.
const ANSWERS_READ: usize = 32;

/// Attaches of a client that scribbles, and what it does in each.
const ATTACHES: u64 = 120;
const DEEDS: usize = 60;

fn hosts() -> Hosts {
    Hosts::start(&[&[PS, WORKER, VILLAIN, ABSENT]])
}

/// A hostile client that has named [`ABSENT`] as its peer 0 and itself as peer 1, once its predecessor is gone.
fn villain(hosts: &Hosts) -> Raw {
    let mut attached = None;
    eventually("the task is free", || {
        attached = Raw::attach(hosts.place(VILLAIN), VILLAIN).ok();
        attached.is_some()
    });
    let mut villain = attached.expect("just looked at");
    villain.write(&Submission::Peer { number: 0, name: ABSENT }).unwrap();
    villain.write(&Submission::Peer { number: 1, name: VILLAIN }).unwrap();
    villain
}

fn recv(call: u32, peer: u16, destination: Option<Span>) -> Submission<'static> {
    Submission::Recv {
        call,
        peer,
        step: STEP,
        timeout_ms: NO_TIMEOUT,
        key: "some key",
        destination: destination.map(|span| (span, &[][..])),
        fused: false,
        fail_if_gone: false,
    }
}

fn send<'a>(call: u32, peer: u16, meta: &'a [u8], payload: PayloadAt<'a>) -> Submission<'a> {
    Submission::Send { call, peer, step: STEP, timeout_ms: NO_TIMEOUT, key: "some key", meta, payload }
}

/// Opens plan 1 of the peer that is the villain itself, with as many keys as it is to have or not.
fn plan_place(plan: u32, index: u32, span: Span) -> Submission<'static> {
    Submission::PlanPlace { call: 9, plan, index, span }
}

fn open_plan(villain: &mut Raw, keys: u32, named: &[&str]) {
    villain.write(&Submission::OpenPlan { plan: 1, peer: 1, keys }).unwrap();
    if !named.is_empty() {
        let mut packed = Vec::new();
        let keys = KeyList::pack(named.iter().copied(), &mut packed).unwrap();
        villain.write(&Submission::PlanKeys { plan: 1, keys }).unwrap();
    }
}

fn pull(call: u32, plan: u32) -> Submission<'static> {
    Submission::Pull { call, plan, min_version: 0, timeout_ms: NO_TIMEOUT, views: false, fail_if_gone: false }
}

fn push<'a>(call: u32, peer: u16, meta: &'a [u8], payload: PayloadAt<'a>) -> Submission<'a> {
    Submission::Push { call, peer, timeout_ms: NO_TIMEOUT, queue: "some queue", meta, payload }
}

fn open_queue(queue: u32, tensors_max: u32) -> Submission<'static> {
    Submission::OpenQueue { queue, tensors_max, bytes_max: u64::MAX, name: "some queue" }
}

fn grant(queue: u32, tensors: u32, bytes: u64) -> Submission<'static> {
    Submission::Grant { queue, tensors, bytes }
}

/// Verified round trips of two honest tasks, which are counted, until told to stop.
fn honest_round_trips(one: &Task, other: &Task, count: &AtomicU64, stop: &AtomicBool) {
    let lens = [64, 8 << 10, 300 << 10];
    while !stop.load(Ordering::Relaxed) {
        let number = count.fetch_add(1, Ordering::Relaxed);
        let len = lens[number as usize % lens.len()];
        let sending = one.send(other.name(), STEP, "some key", tensor(number, len));
        verify(&other.recv(one.name(), STEP, "some key").wait().unwrap(), number, len);
        sending.wait().unwrap();
    }
}

/// Does something beside two honest tasks, which are at work before, meanwhile and afterwards.
fn beside_honest_tasks(villainy: impl FnOnce(&Hosts)) {
    let hosts = hosts();
    let (one, other) = (hosts.attach(PS), hosts.attach(WORKER));
    let (count, stop) = (AtomicU64::new(0), AtomicBool::new(false));
    let some_more = || {
        let before = count.load(Ordering::Relaxed);
        eventually("the honest tasks go on", || count.load(Ordering::Relaxed) > before + 2);
    };
    thread::scope(|scope| {
        let honest = scope.spawn(|| honest_round_trips(&one, &other, &count, &stop));
        // Also if it fails: otherwise the honest go on for ever.
        let outcome = catch_unwind(AssertUnwindSafe(|| {
            some_more();
            villainy(&hosts);
            some_more();
        }));
        stop.store(true, Ordering::Relaxed);
        honest.join().unwrap();
        outcome.unwrap_or_else(|panic| resume_unwind(panic));
    });
    drop((one, other));
    hosts.drain();
}

#[test]
fn memory_that_is_scribbled_over_harms_the_scribbler_alone() {
    beside_honest_tasks(|hosts| {
        let mut hung_up = 0;
        for seed in 0..ATTACHES {
            let mut villain = villain(hosts);
            let mut scribbler = Scribbler::new(seed);
            let is_hung_up = (0..DEEDS).any(|_| {
                scribbler.do_something_to(&mut villain);
                villain.let_daemon_read();
                villain.is_hung_up()
            });
            hung_up += u64::from(is_hung_up);
        }
        assert!(hung_up > ATTACHES / 4, "{hung_up} of {ATTACHES}");
    });
}

/// One thing that no correct client does, and what the daemon's log says of it.
type Misconduct = (&'static str, fn(&mut Raw));

/// A record as it would be, with one word changed.
fn tampered(villain: &mut Raw, kind: u8, submission: &Submission<'_>, word: usize, change: impl Fn(u64) -> u64) {
    let mut words = villain.words(submission);
    words[word] = change(words[word]);
    villain.write_words(kind, &words).unwrap();
}

const MISCONDUCT: &[Misconduct] = &[
    ("an unknown kind of submission", |villain| villain.write_words(UNKNOWN, &[1, 2, 3]).unwrap()),
    ("an unknown kind of submission", |villain| villain.write_words(0, &[]).unwrap()),
    ("neither true nor false", |villain| villain.write_words(RECV, &[0, 0, 2 << 16]).unwrap()),
    ("too short for its kind", |villain| villain.write_words(RECV, &[0; 2]).unwrap()),
    ("too short for its kind", |villain| villain.write_words(CANCEL, &[]).unwrap()),
    ("too long for its fields", |villain| villain.write_words(DETACH, &[1]).unwrap()),
    // The third word has the length of the key, before it that of the metadata, and in a send before that the length of the payload.
    ("malformed record: key", |villain| tampered(villain, RECV, &recv(1, 0, None), 2, |word| word | 0xFFFF << 48)),
    ("malformed record: key", |villain| villain.write_words(RECV, &[0, 0, 5000 << 48]).unwrap()),
    ("malformed record: key", |villain| villain.write_words(RECV, &[0, 0, 2 << 48, 0xFFFF]).unwrap()),
    ("malformed record: metadata", |villain| villain.write_words(SEND, &[0, 0, 9 << 32, 1]).unwrap()),
    ("malformed record: inline payload", |villain| {
        villain.write_words(SEND, &[&[0, 0, 513 << 16][..], &[0; 70]].concat()).unwrap();
    }),
    ("malformed record: reason", |villain| villain.write_words(ABORT, &[0, 65535]).unwrap()),
    ("malformed record: tokens", |villain| villain.write_words(FREE, &[u64::MAX]).unwrap()),
    ("malformed record: tokens", |villain| villain.write_words(FREE, &[257]).unwrap()),
    ("peer 9 was not named", |villain| villain.write(&recv(1, 9, None)).unwrap()),
    ("peer 2 was not named", |villain| villain.write(&send(1, 2, &[], PayloadAt::Inline(&[]))).unwrap()),
    ("peer 7 is named out of order", |villain| villain.write(&Submission::Peer { number: 7, name: PS }).unwrap()),
    ("peer 0 is named out of order", |villain| villain.write(&Submission::Peer { number: 0, name: PS }).unwrap()),
    ("call 5 is already in flight", |villain| (0..2).for_each(|_| villain.write(&recv(5, 0, None)).unwrap())),
    ("bytes of shared memory", |villain| {
        villain.write(&recv(1, 0, Some(Span { offset: ARENA_BYTES, len: 1 }))).unwrap();
    }),
    ("bytes of shared memory", |villain| {
        villain.write(&recv(1, 0, Some(Span { offset: u64::MAX, len: u64::MAX }))).unwrap();
    }),
    ("a list of keys", |villain| villain.write_words(PLAN_KEYS, &[1 | 8 << 32, u64::MAX]).unwrap()),
    ("plan 1 is not open", |villain| villain.write(&pull(1, 1)).unwrap()),
    ("plan 7 is not open", |villain| villain.write(&Submission::ClosePlan { plan: 7 }).unwrap()),
    ("plan 1 is already open", |villain| {
        for _ in 0..2 {
            villain.write(&Submission::OpenPlan { plan: 1, peer: 1, keys: 2 }).unwrap();
        }
    }),
    ("is over a limit", |villain| villain.write(&Submission::OpenPlan { plan: 1, peer: 1, keys: u32::MAX }).unwrap()),
    ("is over a limit", |villain| {
        // Each by itself is within its limit.
        for plan in 0..5 {
            villain.write(&Submission::OpenPlan { plan, peer: 1, keys: 1 << 16 }).unwrap();
        }
    }),
    ("more keys than announced", |villain| open_plan(villain, 1, &["a", "b"])),
    ("before its keys are known", |villain| {
        open_plan(villain, 3, &["a", "b"]);
        villain.write(&pull(1, 1)).unwrap();
    }),
    ("bytes of shared memory", |villain| {
        open_plan(villain, 1, &["a"]);
        villain.write(&plan_place(1, 0, Span { offset: ARENA_BYTES, len: 1 })).unwrap();
    }),
    ("plan 7 is not open", |villain| villain.write(&plan_place(7, 0, Span::default())).unwrap()),
    ("no room for a place of tensor 1 now", |villain| {
        open_plan(villain, 2, &["a"]);
        villain.write(&plan_place(1, 1, Span::default())).unwrap();
    }),
    ("no room for a place of tensor 0 now", |villain| {
        open_plan(villain, 1, &["a"]);
        villain.write(&pull(1, 1)).unwrap();
        villain.write(&plan_place(1, 0, Span::default())).unwrap();
    }),
    ("plan 1 is already being pulled", |villain| {
        open_plan(villain, 1, &["a"]);
        (1..3).for_each(|call| villain.write(&pull(call, 1)).unwrap());
    }),
    ("peer 9 was not named", |villain| {
        villain.write(&Submission::OpenPlan { plan: 1, peer: 9, keys: 0 }).unwrap();
        villain.write(&pull(1, 1)).unwrap();
    }),
    ("malformed record: name", |villain| villain.write_words(OPEN_QUEUE, &[1, 0, 4097]).unwrap()),
    ("peer 9 was not named", |villain| villain.write(&push(1, 9, &[], PayloadAt::Inline(&[]))).unwrap()),
    ("peer 9 was not named", |villain| {
        let moved = Moved { tensors: u64::MAX, bytes: 1 };
        villain.write(&Submission::Elsewhere { peer: Some(0), sent: moved, received: moved }).unwrap();
        villain.write(&Submission::Elsewhere { peer: Some(9), sent: moved, received: moved }).unwrap();
    }),
    ("queue 1 is already open", |villain| (0..2).for_each(|_| villain.write(&open_queue(1, 4)).unwrap())),
    ("queue 7 is not open", |villain| villain.write(&grant(7, 1, 1)).unwrap()),
    ("queue 7 is not open", |villain| villain.write(&Submission::CloseQueue { queue: 7 }).unwrap()),
    ("more credit than allowed", |villain| {
        villain.write(&open_queue(1, 4)).unwrap();
        (0..2).for_each(|_| villain.write(&grant(1, QUEUE_CREDIT_TENSORS_MAX, 1)).unwrap());
    }),
    ("more credit than allowed", |villain| {
        villain.write(&open_queue(1, u32::MAX)).unwrap();
        villain.write(&grant(1, 1, u64::MAX)).unwrap();
    }),
    ("is one more than", |villain| {
        // More than the ring has room for at once.
        for queue in 0..=QUEUES_MAX as u32 {
            eventually("there is room", || {
                villain.ring();
                while villain.look().is_some() {}
                villain.end.completions.publish();
                villain.write(&open_queue(queue, 1)).is_ok()
            });
        }
    }),
    ("none that a writer makes", |villain| {
        // A header of one line that has more content, behind the records that name two peers.
        let header = u64::from(RECV + 32) | 8 << 8 | 8 << 24;
        let two_peers_further = 2 * 8;
        villain.memory()[HEADER_BYTES as usize / 8 + two_peers_further].store(header, Ordering::Release);
    }),
    ("the reader's position is not among the records", |villain| {
        // As if answers were read that are not written yet. The daemon finds it when it looks for room.
        villain.memory()[ANSWERS_READ].store(u64::MAX, Ordering::Release);
        let outside = PayloadAt::Arena(Span { offset: ARENA_BYTES, len: 64 });
        eventually("the daemon hangs up", || {
            villain.ring();
            let _ = villain.write(&send(1, 0, &[], outside));
            villain.is_hung_up()
        });
    }),
];

#[test]
fn every_kind_of_misconduct_is_hung_up_on() {
    beside_honest_tasks(|hosts| {
        for (number, (what, misconduct)) in MISCONDUCT.iter().enumerate() {
            let mut villain = villain(hosts);
            misconduct(&mut villain);
            villain.ring();
            while villain.next().is_some() {}
            let log = hosts.place(VILLAIN).path("first.log");
            let log = std::fs::read_to_string(log).unwrap();
            let found: Vec<&str> = log.lines().filter(|line| line.contains("a client was disconnected")).collect();
            assert_eq!(found.len(), number + 1, "{found:#?}");
            assert!(found[number].contains(what), "not {what:?}: {}", found[number]);
        }
    });
}

/// A step in the life of plan 1.
#[derive(Clone, Copy)]
enum Step {
    /// It is opened with the keys of that number in [`KEY_SETS`].
    Open(usize),
    Pull,
    GiveUp,
    Close,
}

/// No key, one, several, and among several one that nobody publishes.
const KEY_SETS: [&[&str]; 4] = [&[], &["a"], &["a", "b", "c"], &["b", "nobody's", "a"]];

/// Lives of plans of one number, in which one is closed and the next is opened while a pull of the first is in progress, or
/// has ended and its end was not told.
fn lives(first: usize, second: usize) -> [Vec<Step>; 6] {
    use Step::{Close, GiveUp, Open, Pull};
    [
        vec![Open(first), Pull, Close, Open(second), Pull],
        vec![Open(first), Pull, Close, Open(second), Pull, GiveUp],
        vec![Open(first), Pull, GiveUp, Close, Open(second), Pull],
        vec![Open(first), Close, Open(second), Pull, Close, Open(first), Pull],
        vec![Open(first), Pull, Close, Open(second), Pull, Close, Open(first), Pull],
        vec![Open(first), Pull, Close, Open(second), Close, Open(second), Pull],
    ]
}

/// How often every life is led: a turn of the daemon may come in the middle of one.
const ROUNDS: usize = 5;
/// As many records as keep the daemon for longer than it takes to write a life.
const SLOW_RECORDS: usize = 8;

#[test]
fn plans_that_are_reopened_while_they_are_pulled_harm_nobody() {
    beside_honest_tasks(|hosts| {
        let mut villain = villain(hosts);
        for (version, key) in ["a", "b", "c"].into_iter().enumerate() {
            let (call, version, meta) = (version as u32, version as i64, meta(64));
            let (meta, payload) = (meta.as_wire(), PayloadAt::Inline(&[7; 64]));
            villain.submit(&Submission::Publish { call, version, key, meta, payload, more: false });
            assert_eq!(villain.next().unwrap(), format!("Sent {{ calls: [{call}] }}"));
        }
        let pairs = (0..KEY_SETS.len()).flat_map(|first| (0..KEY_SETS.len()).map(move |second| (first, second)));
        let lives: Vec<_> = pairs.flat_map(|(first, second)| lives(first, second)).collect();
        let mut call = 100;
        for life in (0..ROUNDS).flat_map(|_| &lives) {
            // All of it is read in one turn, behind records that take longer to read than to write.
            let before = call;
            for _ in 0..SLOW_RECORDS {
                villain.write(&Submission::Free { tokens: &[u64::MAX; NUMBERS_PER_RECORD] }).unwrap();
            }
            for step in life {
                match *step {
                    Step::Open(keys) => open_plan(&mut villain, KEY_SETS[keys].len() as u32, KEY_SETS[keys]),
                    Step::Pull => {
                        // What nobody publishes is not waited for.
                        villain
                            .write(&Submission::Pull {
                                call,
                                plan: 1,
                                min_version: 0,
                                timeout_ms: 1,
                                views: false,
                                fail_if_gone: false,
                            })
                            .unwrap();
                        call += 1;
                    }
                    Step::GiveUp => villain.write(&Submission::Cancel { call: call - 1 }).unwrap(),
                    Step::Close => villain.write(&Submission::ClosePlan { plan: 1 }).unwrap(),
                }
            }
            villain.ring();
            // Each is answered, and once.
            let mut open: Vec<u32> = (before..call).collect();
            while !open.is_empty() {
                let told = villain.next().expect("nothing of it is misconduct");
                if told.starts_with("Pulled") || told.starts_with("Failed") {
                    let ended = open.iter().position(|call| told.contains(&format!("call: {call}"))).expect(&told);
                    open.swap_remove(ended);
                }
            }
            villain.submit(&Submission::ClosePlan { plan: 1 });
        }
    });
}

#[test]
fn wishes_that_cannot_be_granted_are_refused() {
    beside_honest_tasks(|hosts| {
        let refused = |wish: &Attach| hosts.place(VILLAIN).refused(wish);
        for bytes in [u64::MAX, u64::MAX - 1, 1 << 63, 1 << 42] {
            let error = refused(&Attach::new(VILLAIN, bytes));
            assert_eq!(error.code(), Code::ResourceExhausted, "{error}");
        }
        for task in ["", "nobody:1", "\u{0}", &"long".repeat(10_000)] {
            let error = refused(&Attach::new(task, 0));
            assert_eq!(error.code(), Code::NotFound, "{error}");
        }
        drop(villain(hosts));
    });
}

#[test]
fn what_is_merely_wrong_is_answered_or_ignored() {
    beside_honest_tasks(|hosts| {
        let mut villain = villain(hosts);
        villain.write(&Submission::Peer { number: 2, name: "nobody:1" }).unwrap();
        villain.submit(&recv(1, 2, None));
        let unknown = villain.next().unwrap();
        assert!(unknown.starts_with("Failed { call: 1, memory_back: true, error: NotFound"), "{unknown}");
        let meta = meta(64);
        let outside = PayloadAt::Arena(Span { offset: ARENA_BYTES - 63, len: 64 });
        villain.submit(&send(2, 0, meta.as_wire(), outside));
        let outside = villain.next().unwrap();
        assert!(outside.starts_with("Failed { call: 2, memory_back: true, error: InvalidArgument"), "{outside}");
        villain.submit(&send(3, 0, &[0xFF; 20], PayloadAt::Inline(&[1])));
        let no_tensor = villain.next().unwrap();
        assert!(no_tensor.starts_with("Failed { call: 3, memory_back: true, error: InvalidArgument"), "{no_tensor}");
        villain.submit(&send(4, 0, meta.as_wire(), PayloadAt::Inline(&[1])));
        let short = villain.next().unwrap();
        assert!(short.starts_with("Failed { call: 4, memory_back: true, error: InvalidArgument"), "{short}");
        // Tokens that it was never given, and calls that it never made.
        villain.submit(&Submission::Free { tokens: &[0, 1, 1 << 32, u64::MAX] });
        villain.submit(&Submission::Cancel { call: 77 });
        // A place that is sent from and received in at once, in one copy and in several.
        for len in [600, 40_000] {
            let (from, to) = (Span { offset: 0, len }, Span { offset: 64, len });
            let meta = crate::tensors::meta(len as usize);
            villain.submit(&recv(5, 1, Some(to)));
            villain.submit(&send(6, 1, meta.as_wire(), PayloadAt::Arena(from)));
            let overlapping = villain.next().unwrap();
            assert!(
                overlapping.starts_with("Failed { call: 5, memory_back: true, error: InvalidArgument"),
                "{overlapping}"
            );
            villain.submit(&recv(7, 1, None));
            let received = villain.next().unwrap();
            assert!(received.starts_with("Received { call: 7, "), "{received}");
            assert_eq!(villain.next().unwrap(), "Sent { calls: [6] }");
        }
        // A plan that is closed while it is pulled, and one that is given up twice.
        open_plan(&mut villain, 1, &["some key"]);
        villain.write(&pull(20, 1)).unwrap();
        villain.submit(&Submission::ClosePlan { plan: 1 });
        let closed = villain.next().unwrap();
        assert!(closed.starts_with("Failed { call: 20, memory_back: true, error: Aborted"), "{closed}");
        open_plan(&mut villain, 1, &["some key"]);
        villain.write(&pull(21, 1)).unwrap();
        villain.submit(&Submission::Cancel { call: 21 });
        villain.submit(&Submission::Cancel { call: 21 });
        let given_up = villain.next().unwrap();
        assert!(given_up.starts_with("Failed { call: 21, memory_back: true, error: Aborted"), "{given_up}");
        // Published from outside the arena, and as no tensor.
        let publish =
            |call, meta, payload| Submission::Publish { call, version: 1, key: "some key", meta, payload, more: false };
        for (call, meta, payload) in [
            (22, meta.as_wire(), PayloadAt::Arena(Span { offset: u64::MAX, len: 64 })),
            (23, &[0xFF; 20][..], PayloadAt::Arena(Span { offset: 0, len: 600 })),
            (24, meta.as_wire(), PayloadAt::Inline(&[1])),
        ] {
            villain.submit(&publish(call, meta, payload));
            let refused = villain.next().unwrap();
            let expected = format!("Failed {{ call: {call}, memory_back: true, error: InvalidArgument");
            assert!(refused.starts_with(&expected), "{refused}");
        }
        // Board and tensor given back while they are pulled: they stay the plan's.
        villain.submit(&publish(25, meta.as_wire(), PayloadAt::Inline(&[3; 64])));
        assert_eq!(villain.next().unwrap(), "Sent { calls: [25] }");
        for call in [26, 27] {
            villain.submit(&pull(call, 1));
            let mut told = villain.next().unwrap();
            while !told.starts_with("Pulled") {
                let token = told.rsplit_once("token: ").unwrap().1.split([',', ' ']).next().unwrap().parse().unwrap();
                villain.submit(&Submission::Free { tokens: &[token, token] });
                told = villain.next().unwrap();
            }
            assert_eq!(told, format!("Pulled {{ call: {call} }}"));
        }
        // A queue that may not be so long, one that has an acceptor, and pushes that are no tensors.
        villain.submit(&open_queue(1, u32::MAX));
        let long = villain.next().unwrap();
        assert!(long.starts_with("Unopened { queue: 1, error: ResourceExhausted"), "{long}");
        (2..4).for_each(|queue| villain.write(&open_queue(queue, 4)).unwrap());
        villain.submit(&grant(3, 1, 1));
        let taken = villain.next().unwrap();
        assert!(taken.starts_with("Unopened { queue: 3, error: InvalidArgument"), "{taken}");
        let outside = PayloadAt::Arena(Span { offset: u64::MAX, len: 64 });
        for (call, payload) in [(30, outside), (31, PayloadAt::Inline(&[1]))] {
            villain.submit(&push(call, 1, meta.as_wire(), payload));
            let refused = villain.next().unwrap();
            let expected = format!("Failed {{ call: {call}, memory_back: true, error: InvalidArgument");
            assert!(refused.starts_with(&expected), "{refused}");
        }
        // Pushed to itself, with credit that comes late, from a place that is pushed twice.
        let large = crate::tensors::meta(600);
        for call in [32, 33] {
            villain.write(&push(call, 1, large.as_wire(), PayloadAt::Arena(Span { offset: 0, len: 600 }))).unwrap();
        }
        villain.ring();
        // The daemon may read them in one turn or in two.
        let mut told = Vec::new();
        while told.len() < 4 {
            let next = villain.next().unwrap();
            let (kind, calls) = next.split_once(" { calls: [").unwrap_or_else(|| panic!("{next}"));
            told.extend(calls.trim_end_matches("] }").split(", ").map(|call| format!("{kind} {call}")));
        }
        told.sort();
        assert_eq!(told, ["Published 32", "Published 33", "Returned 32", "Returned 33"]);
        villain.submit(&grant(2, 4, 1));
        let first = villain.next().unwrap();
        assert!(first.starts_with("Accepted { queue: 2, "), "{first}");
        // The second waits for what the first was too large; then the queue goes, and it is the next one's.
        villain.write(&grant(2, 0, 599)).unwrap();
        for queue in 1..4 {
            villain.submit(&Submission::CloseQueue { queue });
            assert_eq!(villain.next().unwrap(), format!("QueueClosed {{ queue: {queue} }}"));
        }
        villain.write(&open_queue(4, 4)).unwrap();
        villain.submit(&grant(4, 4, 1));
        let second = villain.next().unwrap();
        assert!(second.starts_with("Accepted { queue: 4, "), "{second}");
        // It is still served.
        villain.submit(&send(8, 1, meta.as_wire(), PayloadAt::Inline(&[3; 64])));
        villain.submit(&recv(9, 1, None));
        let mut ended = [villain.next().unwrap(), villain.next().unwrap()];
        ended.sort();
        assert!(ended[0].starts_with(&arrived(9)), "{ended:?}");
        assert_eq!(ended[1], "Sent { calls: [8] }");
    });
}
