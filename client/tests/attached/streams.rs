//! Streams between two clients of one daemon.

#[path = "../streams/scenarios.rs"]
mod scenarios;

use std::{
    future::Future,
    io::{Read, Write},
    pin::pin,
    task::{Context, Waker},
    time::Duration,
};

use sealane::{AcceptOptions, Acceptor, Code, RecvOptions, Stream, StreamOptions, Streams, Task, Tensor};
use tempfile::TempDir;

use crate::{
    daemon::{Daemon, LONG, Settings},
    fixture::{TASK, bytes, directory, fill_area, peers, tensor, to, to_as, two_clients},
};

macro_rules! between_clients {
    ($($scenario:ident),* $(,)?) => {
        $(#[test]
        fn $scenario() {
            let (_directory, _daemon, ps, worker) = two_clients();
            scenarios::$scenario(&ps, &worker, scenarios::NARROW);
        })*
    };
}

scenarios::all!(between_clients);

/// The same over rings of a direct lane.
mod by_rings {
    use super::*;
    use crate::direct::open_lane;

    macro_rules! between_neighbours {
        ($($scenario:ident),* $(,)?) => {
            $(#[test]
            fn $scenario() {
                let (_directory, _daemon, ps, worker) = two_clients();
                open_lane(&worker, &ps, ps.name());
                scenarios::$scenario(&ps, &worker, scenarios::WIDE);
            })*
        };
    }

    scenarios::all!(between_neighbours);
}

/// A stream whose receive memory is full of other tensors.
struct Full {
    dialed: Stream,
    accepted: Stream,
    others: Vec<Tensor>,
    _acceptor: Acceptor,
    streams: Streams,
    ps: Task,
    worker: Task,
    daemon: Daemon,
    _directory: TempDir,
}

impl Full {
    fn new() -> Full {
        let (directory, daemon, ps, worker) = two_clients();
        let options = StreamOptions { timeout: Some(LONG / 2), ..StreamOptions::default() };
        let listener = Streams::of(&ps).listen("bytes", options).unwrap();
        let streams = Streams::of(&worker);
        let dialed = streams.connect(ps.name(), "bytes", options).wait().unwrap();
        let accepted = listener.accept().wait().unwrap();
        let others = fill_area(&worker, &ps);
        let acceptor = ps.acceptor("another", sealane::AcceptOptions::default());
        Full { dialed, accepted, others, _acceptor: acceptor, streams, ps, worker, daemon, _directory: directory }
    }
}

/// Once this returns, earlier writes have been refused.
fn until_refused(ps: &Task, worker: &Task) {
    let refused = worker.push(ps.name(), "another", tensor(64 << 10, 2)).wait().unwrap_err();
    assert_eq!(refused.code(), Code::ResourceExhausted, "{refused}");
}

#[test]
fn bytes_wait_while_other_tensors_fill_the_memory_that_they_come_into() {
    let mut full = Full::new();
    let sent = bytes(1 << 20, 3);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            (&full.dialed).write_all(&sent).unwrap();
            full.dialed.finish().wait().unwrap();
        });
        until_refused(&full.ps, &full.worker);
        full.others.clear();
        let mut came = Vec::new();
        (&full.accepted).read_to_end(&mut came).unwrap();
        assert!(came == sent);
    });
}

#[test]
fn who_has_finished_is_told_that_the_other_end_went_before_it_had_memory_for_all() {
    let full = Full::new();
    full.accepted.finish().wait().unwrap();
    (&full.dialed).write_all(&bytes(64 << 10, 3)).unwrap();
    until_refused(&full.ps, &full.worker);
    drop(full.accepted);
    assert_eq!(full.dialed.finish().wait().unwrap_err().code(), Code::Unavailable);
}

#[test]
fn many_pushes_that_were_refused_come_in_order() {
    let mut full = Full::new();
    let held = full.daemon.hold();
    let sent = bytes(64 << 11, 3);
    sent.chunks(1 << 11).for_each(|piece| (&full.dialed).write_all(piece).unwrap());
    drop(held);
    until_refused(&full.ps, &full.worker);
    full.others.clear();
    full.dialed.finish().wait().unwrap();
    let mut came = Vec::new();
    full.accepted.read_to_end(&mut came).unwrap();
    assert!(came == sent);
}

#[test]
fn bytes_that_were_refused_come_although_their_writer_has_gone() {
    // Listed so that the streams are dropped in reverse order.
    let Full { _directory, daemon, worker, ps, streams: _streams, _acceptor, others, mut accepted, mut dialed } =
        Full::new();
    accepted.finish().wait().unwrap();
    assert_eq!(dialed.read(&mut [0]).unwrap(), 0);
    let held = daemon.hold();
    dialed.write_all(&bytes(4 << 10, 3)).unwrap();
    assert!(dialed.poll_finish(&mut Context::from_waker(Waker::noop())).is_pending());
    drop(dialed);
    drop(held);
    until_refused(&ps, &worker);
    drop(others);
    let mut came = Vec::new();
    accepted.read_to_end(&mut came).unwrap();
    assert!(came == bytes(4 << 10, 3));
}

#[test]
fn nothing_is_left_of_a_stream_whose_ends_both_left_before_the_bytes_of_the_other_came() {
    let (_directory, daemon, ps, worker) = two_clients();
    let (here, there) = (Streams::of(&worker), Streams::of(&ps));
    let listener = there.listen("bytes", StreamOptions::default()).unwrap();
    let dialed = here.connect(ps.name(), "bytes", StreamOptions::default()).wait().unwrap();
    let accepted = listener.accept().wait().unwrap();
    // Each hub waits to hear from the other's end.
    daemon.until_under_way(2);
    let held = daemon.hold();
    for mut stream in [dialed, accepted] {
        stream.write_all(b"nobody reads this").unwrap();
        assert!(stream.poll_finish(&mut Context::from_waker(Waker::noop())).is_pending());
    }
    drop(held);
    daemon.until_under_way(0);
}

#[test]
fn who_fills_the_backlog_of_a_listener_gives_way_to_others() {
    const BACKLOG: usize = 1024;
    let directory = directory();
    let daemon = Daemon::start(&directory, Settings::default());
    let [ps, other] = [0, 1].map(|peer| to_as(&daemon, &peers()[peer]).attach().unwrap());
    let greedy = to(&daemon).attach().unwrap();
    let listener = Streams::of(&ps).listen("bytes", StreamOptions::default()).unwrap();
    let dial = |streams: &Streams| streams.connect(ps.name(), "bytes", StreamOptions::default()).wait();
    let (of_greedy, of_other) = (Streams::of(&greedy), Streams::of(&other));
    let dialed: Vec<Stream> = (0..BACKLOG).map(|_| dial(&of_greedy).unwrap()).collect();
    assert_eq!(dial(&of_greedy).unwrap_err().code(), Code::ResourceExhausted, "it has all of it");
    let _others = dial(&of_other).unwrap();
    let ended = (&dialed[BACKLOG - 1]).read(&mut [0]).unwrap_err();
    assert!(ended.to_string().contains("1024 streams wait to be accepted"), "{ended}");
    for place in 0..BACKLOG {
        let accepted = listener.accept().wait().unwrap();
        assert_eq!(accepted.peer(), if place < BACKLOG - 1 { greedy.name() } else { other.name() });
    }
}

#[test]
fn streams_wait_for_no_room_in_the_ring_of_a_daemon_that_hangs() {
    const MANY: usize = 40;
    let directory = directory();
    let daemon = Daemon::start(&directory, Settings { shards: 1, ..Settings::default() });
    let (ps, worker) = (to_as(&daemon, &peers()[0]).attach().unwrap(), to(&daemon).attach().unwrap());
    let (listening, dialing) = (Streams::of(&ps), Streams::of(&worker));
    let options = StreamOptions { timeout: Some(LONG / 2), ..StreamOptions::default() };
    let listener = listening.listen("bytes", options).unwrap();
    let dial = || dialing.connect(ps.name(), "bytes", options);
    let (dialed, accepted) = (dial().wait().unwrap(), listener.accept().wait().unwrap());
    (&accepted).write_all(b"before").unwrap();
    (&dialed).read_exact(&mut [0]).unwrap();
    // It ends much later than everything below should, and sooner than if each write waited for room.
    let last = RecvOptions { timeout: Some(Duration::from_secs(20)), ..RecvOptions::default() };
    let mut last = pin!(worker.recv_with(TASK, 1, "last", last));
    let mut is_under_way = || last.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending();
    assert!(is_under_way());
    daemon.until_under_way(3);
    let held = daemon.hold();
    while worker.cleanup(2).is_ok() {}
    let mut others = Vec::new();
    for _ in 0..MANY {
        others.push(dial());
        drop(dial());
        (&dialed).write_all(b"text").unwrap();
        assert!(is_under_way());
    }
    let mut came = [0; 5];
    (&dialed).read_exact(&mut came).unwrap();
    assert_eq!(&came, b"efore");
    drop(held);
    // Everything is sent once the daemon reads.
    others.into_iter().for_each(|other| drop(other.wait().unwrap()));
    dialed.finish().wait().unwrap();
    let mut came = String::new();
    (&accepted).read_to_string(&mut came).unwrap();
    assert_eq!(came, "text".repeat(MANY));
}

/// A frame of the protocol of streams, as `client/src/stream/frame.rs` has it.
fn frame(kind: u8, stream: u64, value: u64) -> Tensor {
    let mut bytes = [0_u8; 24];
    bytes[0] = kind;
    bytes[8..16].copy_from_slice(&stream.to_le_bytes());
    bytes[16..].copy_from_slice(&value.to_le_bytes());
    Tensor::from_elements(&[24], &bytes).unwrap()
}

#[test]
fn offers_whose_answers_are_not_taken_leave_calls() {
    const ACCEPT: u8 = 1;
    const OFFER: u8 = 11;
    // More than a task may have in flight, and than the queue of its streams holds.
    const OFFERS: u64 = (16_384 + 2 * 4096) / 64 * 64;
    let directory = directory();
    let daemon = Daemon::start(&directory, Settings { shards: 1, ..Settings::default() });
    let victim = to(&daemon).attach().unwrap();
    let [attacker, honest] = [0, 1].map(|at| to_as(&daemon, &peers()[at]).attach().unwrap());
    // The victim dials; the attacker speaks the protocol of streams by itself.
    let frames = attacker.acceptor("sealane.streams", AcceptOptions::default());
    let streams = Streams::of(&victim);
    let connecting = streams.connect(attacker.name(), "x", StreamOptions::default());
    let open = frames.accept().wait().unwrap();
    let stream = u64::from_le_bytes(open.tensor.bytes()[8..16].try_into().unwrap());
    attacker.push(victim.name(), "sealane.streams", frame(ACCEPT, stream, 1 << 20)).wait().unwrap();
    let connected = connecting.wait().unwrap();
    // From now on it takes nothing.
    drop((open, frames));
    for first in (0..OFFERS).step_by(64) {
        let offers = (first..first + 64).map(|number| frame(OFFER, stream, number));
        attacker.push_all(victim.name(), "sealane.streams", offers.collect::<Vec<_>>()).wait().unwrap();
    }
    for step in 0..3 {
        let receiving = honest.recv(victim.name(), step, "key");
        victim.send(honest.name(), step, "key", tensor(64, 1)).wait().unwrap();
        receiving.wait().unwrap();
    }
    drop(connected);
}
