//! Clients that the shard fails to serve. The failures are injected: no record is known to cause one.

mod views;

use std::cell::Cell;
use std::net::{Ipv4Addr, TcpListener};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Duration;

use sealane_runtime::Pin;
use sealane_transport::endpoint_map::EndpointMap;
use sealane_transport::shm::attach::Credentials;
use sealane_transport::shm::{
    CallListBuf, ClientEar, ClientEnd, Completion, KeyList, Moved, NO_TIMEOUT, PayloadAt, SmallCall, Submission, Woken,
};
use sealane_transport::tensor::DType;
use sealane_transport::{Code, TensorMeta};

use super::*;
use crate::engine::EngineSettings;

/// The shard panics when it withdraws this key, and when it reports the end of this call.
const TRAP: &str = "a trap";
const TRAP_CALL: u32 = 0xDEAD;
/// The shard panics when it admits this process.
const TRAP_PID: i32 = 0xDEAD;

/// Longer than any answer takes.
const STUCK: Duration = Duration::from_secs(60);

pub(super) fn fall_into_trap(submission: &Submission<'_>) {
    assert!(!matches!(submission, Submission::Withdraw { key: TRAP }), "a trap of the tests'");
}

thread_local! {
    /// How often a client's queue was looked at, by this thread.
    static LOOKS: Cell<usize> = const { Cell::new(0) };
}

pub(super) fn look_at_queue() {
    LOOKS.set(looks() + 1);
}

pub(super) fn looks() -> usize {
    LOOKS.get()
}

pub(super) fn fall_into_trap_of_call(call: u32) {
    assert!(call != TRAP_CALL, "a trap of the tests'");
}

pub(super) fn fall_into_trap_of_process(pid: i32) {
    assert!(pid != TRAP_PID, "a trap of the tests'");
}

/// An engine with one shard that serves two tasks.
fn engine() -> Engine {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let address = listener.local_addr().unwrap();
    let map = EndpointMap::parse(&format!("ps:1={address}\nworker:1={address}\n"), "test").unwrap();
    let mut settings = EngineSettings::new(map, &["ps:1", "worker:1"]).unwrap();
    (settings.runtime.pin, settings.runtime.shards) = (Pin::Off, 1);
    (settings.slab_send_bytes, settings.slab_receive_bytes) = (1 << 20, 1 << 20);
    settings.listeners = vec![listener];
    Engine::start(settings).unwrap()
}

/// A client process whose peers are both tasks, in their order.
struct Process {
    end: ClientEnd,
    doorbell: Doorbell,
    ear: ClientEar,
    record: Record,
}

impl Process {
    fn attach(engine: &Engine, task: &str) -> (ClientId, Process) {
        Process::attach_as(engine, task, 7)
    }

    fn attach_as(engine: &Engine, task: &str, pid: i32) -> (ClientId, Process) {
        let (ends, process) = Process::ends(task, pid);
        let id = engine.admit(ends).unwrap();
        (id, process)
    }

    /// The daemon's end of a client, and the client process.
    fn ends(task: &str, pid: i32) -> (ClientEnds, Process) {
        let (arena, _) = SharedMemory::create("test", 1 << 16).unwrap();
        let (daemons, segment) = DaemonEnd::create(1 << 20).unwrap();
        let end = ClientEnd::open(&segment, 1 << 20).unwrap();
        let bell = Doorbell::create().unwrap();
        let doorbell = bell.duplicate().unwrap().into();
        let (socket, ear) = UnixStream::pair().unwrap();
        let shards = vec![(daemons, bell)];
        let bell = ClientBell::new(Arc::new(socket.into()));
        let ends = ClientEnds { task: task.into(), pid, uid: 1, arena, shared: None, shards, bell };
        let mut process = Process { end, doorbell, ear: ClientEar::new(ear.into()), record: Record::new() };
        process
            .submit(&[Submission::Peer { number: 0, name: "ps:1" }, Submission::Peer { number: 1, name: "worker:1" }]);
        (ends, process)
    }

    /// Writes all submissions before waking the shard.
    fn submit(&mut self, submissions: &[Submission<'_>]) {
        for submission in submissions {
            submission.encode(&mut self.record).unwrap();
            self.end.submissions.push(&self.record).unwrap();
        }
        self.doorbell.ring();
    }

    /// The next completion, formatted; `None` if the shard hangs up first.
    fn next(&mut self) -> Option<String> {
        self.next_as(|completion| format!("{completion:?}"))
    }

    /// Like [`Process::next`], converted by `look`.
    fn next_as<T>(&mut self, look: impl Fn(&Completion<'_>) -> T) -> Option<T> {
        loop {
            // Announced anew each time: the shard rings once per sleep.
            self.end.own_sleep().announce();
            if self.end.completions.pop(&mut self.record).unwrap() {
                self.end.completions.publish();
                self.end.own_sleep().awake();
                return Some(look(&Completion::decode(&self.record).unwrap()));
            }
            match self.ear.wait(Some(STUCK)).unwrap() {
                Woken::Rung => {}
                Woken::HungUp => return None,
                Woken::TimedOut => panic!("no answer comes"),
            }
        }
    }
}

fn recv(call: u32, peer: u16) -> Submission<'static> {
    let (timeout_ms, key) = (NO_TIMEOUT, "some key");
    Submission::Recv { call, peer, step: 1, timeout_ms, key, destination: None, fused: false, fail_if_gone: false }
}

fn send(call: u32, peer: u16, meta: &TensorMeta) -> Submission<'_> {
    let (timeout_ms, key, payload) = (NO_TIMEOUT, "some key", PayloadAt::Inline(&[5; 8]));
    Submission::Send { call, peer, step: 1, timeout_ms, key, meta: meta.as_wire(), payload }
}

fn is_arrived(completion: &str, call: u32) -> bool {
    completion.starts_with(&format!("ArrivedAlone {{ call: {call}, "))
}

/// The client sends itself a tensor; `peer` is its own number. Once that arrives, all earlier submissions have been read.
fn is_served(process: &mut Process, peer: u16, meta: &TensorMeta) -> bool {
    process.submit(&[recv(20, peer), send(21, peer, meta)]);
    let mut ended = [process.next().unwrap(), process.next().unwrap()];
    ended.sort();
    is_arrived(&ended[0], 20) && ended[1] == "Sent { calls: [21] }"
}

/// Sends and recvs of `count` tensors, each pair with a key of its own; call numbers count up from `first`.
fn lists(first: u32, count: u32, meta: &TensorMeta) -> [CallListBuf; 2] {
    let mut lists = <[CallListBuf; 2]>::default();
    for number in 0..count {
        let (key, call) = (format!("layer_{number}/kernel"), first + 2 * number);
        assert!(lists[0].push(SmallCall { call, key: &key, meta: &[], bytes: &[] }));
        assert!(lists[1].push(SmallCall {
            call: call + 1,
            key: &key,
            meta: meta.as_wire(),
            bytes: &[number as u8; 8]
        }));
    }
    lists
}

fn recv_many(step: i64, calls: &CallListBuf) -> Submission<'_> {
    let (calls, timeout_ms) = (calls.as_list(), NO_TIMEOUT);
    Submission::RecvMany { peer: 0, step, timeout_ms, calls, fail_if_gone: false }
}

fn send_many(step: i64, calls: &CallListBuf) -> Submission<'_> {
    Submission::SendMany { peer: 0, step, timeout_ms: NO_TIMEOUT, calls: calls.as_list() }
}

fn open_queue(queue: u32) -> Submission<'static> {
    Submission::OpenQueue { queue, tensors_max: 4, bytes_max: 1024, name: "some queue" }
}

#[test]
fn a_client_that_sleeps_deeply_is_woken_for_answers_alone() {
    let meta = &TensorMeta::new(DType::U8, &[8]).unwrap();
    let engine = engine();
    let (_, mut sender) = Process::attach(&engine, "worker:1");
    let (_, mut receiver) = Process::attach(&engine, "ps:1");
    for (deeply, woken) in [(true, Woken::TimedOut), (false, Woken::Rung)] {
        let sleep = sender.end.own_sleep();
        if deeply {
            sleep.announce_deep()
        } else {
            sleep.announce()
        }
        sender.submit(&[send(1, 0, meta)]);
        receiver.submit(&[recv(1, 1)]);
        let received = receiver.next().unwrap();
        assert!(is_arrived(&received, 1), "{received}");
        // Some turns later, so the shard has rung if it is going to.
        assert!(is_served(&mut receiver, 0, meta));
        assert_eq!(sender.ear.wait(Some(Duration::ZERO)).unwrap(), woken);
        assert_eq!(sender.next().unwrap(), "Sent { calls: [1] }");
    }
    sender.end.own_sleep().announce_deep();
    sender.submit(&[recv(2, 0)]);
    receiver.submit(&[send(2, 1, meta)]);
    assert_eq!(sender.ear.wait(Some(STUCK)).unwrap(), Woken::Rung);
    engine.stop().unwrap();
}

#[test]
fn each_call_of_a_list_ends_by_itself() {
    let (engine, meta) = (engine(), &TensorMeta::new(DType::U8, &[8]).unwrap());
    let (_, mut process) = Process::attach(&engine, "ps:1");
    let [recvs, sends] = lists(100, 3, meta);
    process.submit(&[recv_many(1, &recvs), Submission::Cancel { call: 102 }]);
    assert!(process.next().unwrap().starts_with("Failed { call: 102, memory_back: true, "));
    let mut wrong = CallListBuf::default();
    assert!(wrong.push(SmallCall { call: 7, key: "layer_0/kernel", meta: &[1, 2, 3], bytes: &[1] }));
    process.submit(&[send_many(1, &wrong), send_many(1, &sends)]);
    assert!(process.next().unwrap().starts_with("Failed { call: 7, memory_back: true, "), "metadata that is none");
    let arrived = |completion: &Completion<'_>| match completion {
        Completion::Arrived { calls } => calls.iter().map(|small| (small.call, small.bytes[0])).collect(),
        Completion::ArrivedAlone { call, bytes, .. } => vec![(*call, bytes[0])],
        other => vec![(0, matches!(other, Completion::Sent { calls: [101, 105] }).into())],
    };
    let mut ended = Vec::new();
    while ended.len() < 3 {
        ended.extend(process.next_as(arrived).unwrap());
    }
    ended.sort_unstable();
    assert_eq!(ended, [(0, 1), (100, 0), (104, 2)], "what is sent to a recv that was given up waits");
    engine.stop().unwrap();
}

#[test]
fn what_comes_for_a_client_that_does_not_read_comes_later_and_once() {
    const STEPS: u32 = 100;
    const CALLS: u32 = 64;
    let (engine, meta) = (engine(), &TensorMeta::new(DType::U8, &[8]).unwrap());
    let (_, mut process) = Process::attach(&engine, "ps:1");
    let (mut arrived, mut sent) = (Vec::new(), 0);
    let mut read = |process: &mut Process| {
        let (calls, sends) = process
            .next_as(|completion| match completion {
                Completion::Arrived { calls } => (calls.iter().map(|small| small.call).collect(), 0),
                Completion::ArrivedAlone { call, .. } => (vec![*call], 0),
                Completion::Sent { calls } => (Vec::new(), calls.len()),
                other => panic!("{other:?}"),
            })
            .unwrap();
        arrived.extend(calls);
        sent += sends;
        (arrived.len(), sent)
    };
    for step in 0..STEPS {
        let [recvs, sends] = lists(2 * CALLS * step, CALLS, meta);
        for submission in [recv_many(step.into(), &recvs), send_many(step.into(), &sends)] {
            submission.encode(&mut process.record).unwrap();
            let record = process.record.clone();
            // Pushed as late as possible, with only one record of room: the shard finds its ring full.
            while process.end.submissions.push(&record).is_err() {
                process.doorbell.ring();
                read(&mut process);
            }
        }
        process.doorbell.ring();
    }
    let all = (STEPS * CALLS) as usize;
    while read(&mut process) != (all, all) {}
    arrived.sort_unstable();
    assert_eq!(arrived, Vec::from_iter((0..STEPS * CALLS).map(|number| 2 * number)));
    engine.stop().unwrap();
}

#[test]
fn a_panic_costs_the_client_that_was_served_its_place_and_nobody_else_anything() {
    let meta = &TensorMeta::new(DType::U8, &[8]).unwrap();
    let while_it_is_read = [send(6, 1, meta), Submission::Withdraw { key: TRAP }];
    let while_it_is_told = [send(TRAP_CALL, 1, meta), Submission::Withdraw { key: "nothing" }];
    // Of a tensor that it sends to itself: the last outcome of the turn, and the first.
    let with_the_last_tensor = [send(6, 1, meta), recv(TRAP_CALL, 0), send(7, 0, meta)];
    let with_the_first_tensor = [recv(TRAP_CALL, 0), send(6, 0, meta), send(7, 1, meta)];
    let traps: [&[_]; 4] = [&while_it_is_read, &while_it_is_told, &with_the_last_tensor, &with_the_first_tensor];
    for trap in traps {
        let engine = engine();
        let (id, mut failing) = Process::attach(&engine, "ps:1");
        let (_, mut neighbour) = Process::attach(&engine, "worker:1");
        // It leaves behind what others may depend on: a publication, a queue, a plan that is being pulled.
        let (key, payload) = ("w", PayloadAt::Inline(&[3; 8]));
        let publish = Submission::Publish { call: 1, version: 1, key, meta: meta.as_wire(), payload, more: false };
        let mut packed = Vec::new();
        let keys = KeyList::pack(["nobody's"].into_iter(), &mut packed).unwrap();
        failing.submit(&[
            open_queue(1),
            Submission::OpenPlan { plan: 1, peer: 0, keys: 1 },
            Submission::PlanKeys { plan: 1, keys },
            Submission::Pull {
                call: 2,
                plan: 1,
                min_version: 0,
                timeout_ms: NO_TIMEOUT,
                views: false,
                fail_if_gone: false,
            },
            publish,
        ]);
        assert_eq!(failing.next().unwrap(), "Sent { calls: [1] }");

        neighbour.submit(&[recv(1, 0)]);
        assert!(is_served(&mut neighbour, 1, meta));
        failing.submit(trap);
        assert_eq!(failing.next(), None);
        // What arrived in that same turn, and everything later.
        let received = neighbour.next().unwrap();
        assert!(is_arrived(&received, 1), "{received}");
        assert!(is_served(&mut neighbour, 1, meta));
        assert_eq!(engine.under_way().unwrap(), 0);
        let counters = engine.counters().unwrap()[0];
        assert_eq!((counters.clients_failed, counters.published), (1, 0));

        // The task is free once the socket's owner has seen it close.
        assert!(engine.attached("ps:1").is_some());
        engine.dismiss(id, "it was hung up on");
        let (_, mut next) = Process::attach(&engine, "ps:1");
        next.submit(&[open_queue(1)]);
        assert!(is_served(&mut next, 0, meta));
        engine.stop().unwrap();
    }
}

#[test]
fn a_panic_while_a_client_is_let_in_costs_nobody_else_anything() {
    let meta = &TensorMeta::new(DType::U8, &[8]).unwrap();
    let engine = engine();
    let (_, mut neighbour) = Process::attach(&engine, "worker:1");
    let (id, mut failing) = Process::attach_as(&engine, "ps:1", TRAP_PID);
    assert_eq!(failing.next(), None);
    assert!(is_served(&mut neighbour, 1, meta));
    assert_eq!(engine.counters().unwrap()[0].clients_failed, 1);
    engine.dismiss(id, "it was hung up on");
    let (_, mut next) = Process::attach(&engine, "ps:1");
    assert!(is_served(&mut next, 0, meta));
    engine.stop().unwrap();
}

#[test]
fn clients_come_and_go_no_faster_than_links_let_go_of_their_memory() {
    let engine = engine();
    // As a shard does while a link still uses memory of the client.
    let mut held = Vec::new();
    let mut come_and_go = || {
        let (ends, _) = Process::ends("ps:1", 7);
        held.push(ends.bell.clone());
        engine.admit(ends).map(|id| engine.dismiss(id, "it is gone"))
    };
    (0..CLIENTS_LEAVING_MAX).for_each(|_| come_and_go().unwrap());
    let error = come_and_go().unwrap_err().to_string();
    assert!(error.contains("clients that leave is full"), "{error}");
    drop(held);
    Process::attach(&engine, "ps:1");
    engine.stop().unwrap();
}

#[test]
fn a_lane_is_shared_by_two_of_one_user_and_given_to_nobody_who_is_not_who_he_says() {
    for (other_uid, may_share) in [(1, true), (1, false), (2, true)] {
        let engine = engine();
        let _clients = [("ps:1", 1), ("worker:1", other_uid)].map(|(task, uid)| {
            let (mut ends, process) = Process::ends(task, 7);
            ends.uid = uid;
            engine.admit(ends).unwrap();
            process
        });
        let lane = |task, peer, (pid, uid)| engine.lane(task, peer, Credentials { pid, uid }, may_share);
        let refused = |task, peer, asker| lane(task, peer, asker).unwrap_err().code();
        for asker in [(7, 3), (8, 1), (7, 0), (0, 0)] {
            assert_eq!(refused("ps:1", "worker:1", asker), Code::PermissionDenied, "{asker:?}");
        }
        assert_eq!(refused("ps:1", "ps:1", (7, 1)), Code::InvalidArgument);
        assert_eq!(refused("ps:1", "nobody:1", (7, 1)), Code::NotFound);
        let (own, others) =
            (lane("ps:1", "worker:1", (7, 1)).unwrap(), lane("worker:1", "ps:1", (7, other_uid)).unwrap());
        let is_direct = may_share && other_uid == 1;
        assert_eq!([&own, &others].map(|end| end.bells.is_some()), [is_direct; 2]);
        assert_eq!(Arc::ptr_eq(&own.lane, &others.lane), is_direct);
        assert_eq!(engine.lanes(true).len(), usize::from(is_direct));
        engine.stop().unwrap();
    }
}

#[test]
fn what_a_client_says_of_its_lanes_goes_as_far_as_a_number_does() {
    let (engine, meta) = (engine(), &TensorMeta::new(DType::U8, &[8]).unwrap());
    let (_, mut process) = Process::attach(&engine, "ps:1");
    let all = Moved { tensors: u64::MAX, bytes: u64::MAX - 1 };
    let said = Submission::Direct { peer: 1, sent: all, received: all };
    process.submit(&[said.clone(), said]);
    assert!(is_served(&mut process, 0, meta));
    engine.stop().unwrap();
}
