//! Clients that do not read what they are answered, or give up what they asked for: nobody else notices.

use std::collections::BTreeSet;
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use sealane::{Error, RecvOptions, SendOptions, Task, TensorMeta};
use sealane_transport::shm::limits::TRUNK_WORDS;
use sealane_transport::shm::{NO_TIMEOUT, PayloadAt, PushError, Submission};

use crate::fixture::{PS, STUCK, WORKER};
use crate::hosts::{Hosts, NEAR_AND_FAR};
use crate::processes::Process;
use crate::raw::{Raw, arrived};
use crate::tensors::{LARGE, STEP, in_arena, meta, tensor, verify};
use crate::traces::{eventually, own_memory};

const OTHER_PS: &str = "ps1:2222";
const OTHER_WORKER: &str = "worker1:2222";

/// Tensors for a client that does not take them: several times what its ring holds.
const TENSORS: u64 = 4000;

/// Round trips of the others meanwhile.
const ROUND_TRIPS: u64 = 1000;

/// Calls of each kind for which there is no room.
const MANY: u64 = 12;

/// Much later than what calls of a second may take together, and sooner than what they take one after the other.
const LATE: Duration = Duration::from_secs(25);

/// Recvs that are given up, each a little later than the one before.
const GIVEN_UP: u64 = 300;

/// What a client may cost that does not read: far more than `TENSORS` answers.
const MEMORY_MAX: u64 = 16 << 20;

fn hosts() -> (Hosts, [Task; 3]) {
    let hosts = Hosts::start(&[&[PS, WORKER, OTHER_PS, OTHER_WORKER]]);
    let tasks = [PS, OTHER_PS, OTHER_WORKER].map(|task| hosts.attach(task));
    (hosts, tasks)
}

fn round_trips(one: &Task, other: &Task) {
    for number in 0..ROUND_TRIPS {
        for (from, to) in [(one, other), (other, one)] {
            let len = if number.is_multiple_of(10) { 8 << 10 } else { 64 };
            let sending = from.send(to.name(), STEP, "key", tensor(number, len));
            verify(&to.recv(from.name(), STEP, "key").wait().unwrap(), number, len);
            sending.wait().unwrap();
        }
    }
}

#[test]
fn many_calls_to_a_daemon_that_stands_still_end_together() {
    let mut hosts = Hosts::start(&[&[PS, WORKER]]);
    let task = hosts.attach(WORKER);
    let pid = hosts.daemon(PS).pid();
    kill(pid, Signal::SIGSTOP).unwrap();
    assert_eq!(waitpid(pid, Some(WaitPidFlag::WUNTRACED)), Ok(WaitStatus::Stopped(pid, Signal::SIGSTOP)));
    let timeout = Some(Duration::from_secs(1));
    // It has a place in the ring, and ends when all of the others had to.
    let mut last = task.recv_with(PS, STEP, "last", RecvOptions { timeout: Some(LATE), ..RecvOptions::default() });
    let keys = |count: u64| (0..count).map(|number| number.to_string());
    let tensors = |count| keys(count).map(|key| (key, tensor(1, 64)));
    let mut codes = BTreeSet::new();
    // More than the ring has room for; what comes then finds none at all.
    for sending in task.send_all_with(PS, STEP, tensors(TRUNK_WORDS / 8 + MANY), SendOptions { timeout }) {
        codes.insert(format!("send {:?}", sending.wait().unwrap_err().code()));
    }
    let wanted = keys(MANY).map(|key| (key, RecvOptions { timeout, ..RecvOptions::default() }));
    for receiving in task.recv_all(PS, STEP + 1, wanted) {
        codes.insert(format!("recv {:?}", receiving.wait().unwrap_err().error.code()));
    }
    let pushed = task.push_all_with(PS, "queue", tensors(MANY).map(|(_, tensor)| tensor), SendOptions { timeout });
    codes.insert(format!("push {:?}", pushed.wait().unwrap_err().code()));
    let published = task.publish_many(1, tensors(MANY));
    assert!(last.try_outcome().is_none(), "a second was waited for each of them: {codes:?}");
    drop(published);
    let full = ["push ResourceExhausted", "recv ResourceExhausted", "send ResourceExhausted"];
    assert!(full.iter().all(|code| codes.contains(*code)), "{codes:?}");
    kill(pid, Signal::SIGCONT).unwrap();
    drop((last, task));
    hosts.drain();
}

#[test]
fn a_client_that_is_stopped_gets_everything_later() {
    let (mut hosts, [producer, one, other]) = hosts();
    let mut stopped = Process::start(&format!("ask {WORKER} {PS} {TENSORS}"), &hosts.socket(WORKER));
    stopped.hear("asked");
    stopped.signal(Signal::SIGSTOP);
    let stop = WaitStatus::Stopped(stopped.pid(), Signal::SIGSTOP);
    assert_eq!(waitpid(stopped.pid(), Some(WaitPidFlag::WUNTRACED)), Ok(stop));
    let pid = hosts.daemon(PS).pid();
    let before = own_memory(pid);
    let tensors = (0..TENSORS).map(|number| (number.to_string(), tensor(number, 64)));
    for sending in producer.send_all(WORKER, STEP, tensors) {
        sending.wait().unwrap();
    }
    round_trips(&one, &other);
    let grown = own_memory(pid).saturating_sub(before);
    assert!(grown < MEMORY_MAX, "{grown} bytes more");
    stopped.signal(Signal::SIGCONT);
    stopped.hear("got all");
    stopped.release();
    drop((producer, one, other, stopped));
    hosts.drain();
}

/// Asks for tensors until the ring is full.
fn ask(raw: &mut Raw, call: u32) -> Result<(), PushError> {
    let key = call.to_string();
    raw.write(&Submission::Recv {
        call,
        peer: 0,
        step: STEP,
        timeout_ms: NO_TIMEOUT,
        key: &key,
        destination: None,
        fused: false,
        fail_if_gone: false,
    })
}

#[test]
fn a_client_that_reads_no_answers_is_not_read_from() {
    let (hosts, [producer, one, other]) = hosts();
    let mut raw = Raw::attach(hosts.place(WORKER), WORKER).unwrap();
    raw.submit(&Submission::Peer { number: 0, name: PS });
    for call in 0..TENSORS as u32 {
        eventually("the daemon reads", || {
            raw.ring();
            ask(&mut raw, call).is_ok()
        });
    }
    let tensors = (0..TENSORS).map(|number| (number.to_string(), tensor(number, 64)));
    for sending in producer.send_all(WORKER, STEP, tensors) {
        sending.wait().unwrap();
    }
    let mut asked = TENSORS as u32;
    while ask(&mut raw, asked).is_ok() {
        asked += 1;
    }
    raw.ring();
    round_trips(&one, &other);
    assert_eq!(ask(&mut raw, asked), Err(PushError::Full));
    let mut calls = Vec::new();
    while calls.len() < TENSORS as usize {
        calls.extend(raw.arrived());
    }
    assert_eq!(calls, Vec::from_iter(0..TENSORS as u32));
    raw.end.completions.publish();
    eventually("the daemon reads again", || ask(&mut raw, asked).is_ok());
    drop((raw, producer, one, other));
    hosts.drain();
}

fn bytes_of_one(meta: &TensorMeta) -> (&[u8], PayloadAt<'static>) {
    (meta.as_wire(), PayloadAt::Inline(&[7]))
}

/// The daemon finds the tensor and the word that it is not wanted any more in one turn.
#[test]
fn a_recv_that_is_given_up_as_its_tensor_arrives_ends_once() {
    let hosts = Hosts::start(&[&[PS, WORKER]]);
    // Whoever attached first is read first.
    let mut producer = Raw::attach(hosts.place(PS), PS).unwrap();
    let mut consumer = Raw::attach(hosts.place(WORKER), WORKER).unwrap();
    producer.submit(&Submission::Peer { number: 0, name: WORKER });
    consumer.submit(&Submission::Peer { number: 0, name: PS });
    let meta = meta(1);
    for call in 0..200 {
        let key = call.to_string();
        ask(&mut consumer, call).unwrap();
        consumer.ring();
        eventually("the daemon has read", || consumer.end.submissions.behind().is_none());
        let (meta, payload) = bytes_of_one(&meta);
        let send = Submission::Send { call, peer: 0, step: STEP, timeout_ms: NO_TIMEOUT, key: &key, meta, payload };
        producer.write(&send).unwrap();
        consumer.write(&Submission::Cancel { call }).unwrap();
        consumer.ring();
        let ended = consumer.next().unwrap();
        if ended.starts_with("Failed") {
            // The daemon was awake and found that it is given up in a turn before: the tensor is the next one's.
            ask(&mut consumer, call).unwrap();
            consumer.ring();
            assert_eq!(consumer.arrived(), [call]);
        } else {
            assert!(ended.starts_with(&arrived(call)), "{ended}");
        }
        assert_eq!(producer.next().unwrap(), format!("Sent {{ calls: [{call}] }}"));
    }
    drop((producer, consumer));
    hosts.drain();
}

#[test]
fn whenever_a_recv_is_given_up_its_tensor_is_the_next_ones() {
    for groups in NEAR_AND_FAR {
        let hosts = Hosts::start(groups);
        let [ps, worker] = [PS, WORKER].map(|task| hosts.attach(task));
        for round in 0..GIVEN_UP {
            let (step, len) = (round as i64, [64, 8 << 10, 200 << 10][round as usize % 3]);
            let options = |destination| RecvOptions { timeout: Some(STUCK), destination, ..RecvOptions::default() };
            let sending = ps.send(WORKER, step, "key", tensor(round, len));
            let destination = round.is_multiple_of(2).then(|| worker.alloc(len).unwrap().into());
            let given_up = worker.recv_with(PS, step, "key", options(destination));
            (0..round * 40).for_each(|_| std::hint::spin_loop());
            drop(given_up);
            verify(&worker.recv_with(PS, step, "key", options(None)).wait().unwrap(), round, len);
            sending.wait().unwrap();
        }
        drop((ps, worker));
        hosts.drain();
    }
}

#[test]
fn a_task_that_is_closed_gets_its_memory_back_from_the_daemon() {
    let (hosts, [producer, one, other]) = hosts();
    for round in 0..50 {
        let worker = hosts.attach(WORKER);
        let receiving = worker.recv_into(PS, round, "never sent", worker.alloc(LARGE).unwrap());
        // One that is on its way, perhaps.
        let sending = producer.send(WORKER, round, "key", tensor(round as u64, LARGE));
        let arriving = worker.recv_into(PS, round, "key", worker.alloc(LARGE).unwrap());
        drop(worker);
        let unreceived = receiving.wait().unwrap_err();
        assert_eq!(unreceived.destination.map(|destination| destination.len()), Some(LARGE), "round {round}");
        match arriving.wait() {
            Ok(tensor) => verify(&tensor, round as u64, LARGE),
            Err(unreceived) => assert!(unreceived.destination.is_some(), "{}", unreceived.error),
        }
        drop(sending);
        producer.cleanup(round).unwrap();
    }
    drop((producer, one, other));
    hosts.drain();
}

#[test]
fn a_send_on_its_way_at_its_deadline_is_told_so_and_its_memory_comes_back_later() {
    const LEN: usize = 16 << 20;
    // More than the half of the arena that the tensor leaves.
    const ROOM: usize = 17 << 20;
    let mut hosts = Hosts::start(&[&[PS], &[WORKER]]);
    let [ps, worker] = [PS, WORKER].map(|task| hosts.attach(task));
    let late = worker.recv(PS, STEP, "late");
    // Its answer comes behind that request.
    let fence = worker.recv(PS, STEP, "fence");
    ps.send(WORKER, STEP, "fence", tensor(1, 64)).wait().unwrap();
    verify(&fence.wait().unwrap(), 1, 64);
    let daemon = hosts.daemon(WORKER);
    daemon.signal(Signal::SIGSTOP);
    let stop = WaitStatus::Stopped(daemon.pid(), Signal::SIGSTOP);
    assert_eq!(waitpid(daemon.pid(), Some(WaitPidFlag::WUNTRACED)), Ok(stop));
    let timeout = Some(Duration::from_millis(100));
    let sending = ps.send_with(WORKER, STEP, "late", in_arena(&ps, 2, LEN), SendOptions { timeout });
    let error = sending.wait().unwrap_err();
    assert!(matches!(&error, Error::DeadlineExceeded(late) if late.delivery_unknown), "{error}");
    assert!(ps.alloc(ROOM).is_err(), "the daemon may still read it");
    daemon.signal(Signal::SIGCONT);
    verify(&late.wait().unwrap(), 2, LEN);
    eventually("the memory comes back", || ps.alloc(ROOM).is_ok());
    drop((ps, worker));
    hosts.drain();
}
