//! Pushes that are still unread, or were refused for lack of memory, just when the stream switches to a ring.

use std::{
    io::Write,
    task::{Context, Waker},
    thread,
    time::Instant,
};

use sealane::{AcceptOptions, Acceptor, Code, Stream, Tensor};
use sealane_transport::shm::limits::LANE_RINGS;

use super::{Neighbours, echo, read_all};
use crate::{
    daemon::LONG,
    fixture::{bytes, fill_area, tensor},
};

const PIECE: usize = 2 << 10;

/// A stream whose ring was announced behind refused bytes, and all bytes written to it.
struct Pressed {
    ends: [Stream; 2],
    sent: Vec<u8>,
    /// They fill the memory that the stream's bytes are received into.
    others: Vec<Tensor>,
    /// They use all rings but this stream's.
    _kept: Vec<[Stream; 2]>,
    _acceptor: Acceptor,
    _neighbours: Neighbours,
}

impl Pressed {
    fn new(pieces: usize, by_ring: usize) -> Pressed {
        let neighbours = Neighbours::new();
        let mut kept: Vec<_> = (0..LANE_RINGS).map(|_| neighbours.direct_stream()).collect();
        let mut ends = neighbours.stream();
        // After this, the dialer knows that the other end's window is wide enough.
        for _ in 0..10 {
            echo(&mut ends, b"the rings are taken");
            ends.swap(0, 1);
        }
        let [one, other] = &neighbours.tasks;
        let others = fill_area(one, other);
        let acceptor = other.acceptor("another", AcceptOptions::default());
        let held = neighbours.daemon.hold();
        let sent = bytes(pieces * PIECE + by_ring, 3);
        let (pushed, rest) = sent.split_at(pieces * PIECE);
        pushed.chunks(PIECE).for_each(|piece| (&ends[0]).write_all(piece).unwrap());
        assert!(!ends[0].is_direct());
        drop(kept.pop());
        (&ends[0]).write_all(rest).unwrap();
        assert!(ends[0].is_direct());
        drop(held);
        let refused = one.push(other.name(), "another", tensor(64 << 10, 2)).wait().unwrap_err();
        assert_eq!(refused.code(), Code::ResourceExhausted, "{refused}");
        Pressed { ends, sent, others, _kept: kept, _acceptor: acceptor, _neighbours: neighbours }
    }
}

#[test]
fn bytes_of_a_ring_come_behind_those_that_were_refused() {
    for (pieces, by_ring) in [(1, 10), (16, 200_000), (40, 1)] {
        let Pressed { _neighbours, _acceptor, _kept, mut others, sent, ends: [one, other] } =
            Pressed::new(pieces, by_ring);
        thread::scope(|scope| {
            let reading = scope.spawn(|| read_all(&other));
            others.clear();
            one.finish().wait().unwrap();
            let (came, error) = reading.join().unwrap();
            assert!(came == sent && error.is_none(), "{} of {} bytes, then {error:?}", came.len(), sent.len());
        });
    }
}

#[test]
fn a_ring_that_was_announced_twice_is_not_taken_from_a_reader_who_has_not_read_it() {
    let Pressed { _neighbours: neighbours, _acceptor, _kept, mut others, sent, ends: [one, other] } =
        Pressed::new(4, 100_000);
    others.clear();
    one.finish().wait().unwrap();
    drop(one);
    // The next stream would get the same ring and write into it.
    let mut next = neighbours.stream();
    for seed in 0..20 {
        echo(&mut next, &bytes(10_000, seed));
        assert!(!next[0].is_direct(), "the ring is not free");
    }
    let (came, error) = read_all(&other);
    assert!(came == sent && error.is_none(), "{} of {} bytes, then {error:?}", came.len(), sent.len());
    drop((other, _kept));
    super::until_direct(&mut next);
}

#[test]
fn what_was_pushed_and_not_read_comes_before_what_a_ring_brings() {
    let neighbours = Neighbours::new();
    let mut kept: Vec<_> = (0..LANE_RINGS).map(|_| neighbours.direct_stream()).collect();
    let mut ends = neighbours.stream();
    for _ in 0..10 {
        echo(&mut ends, b"the rings are taken");
        ends.swap(0, 1);
    }
    let [one, other] = &ends;
    // A reader waits while nothing has come, and then does something else.
    assert!(other.poll_read(&mut [0], &mut Context::from_waker(Waker::noop())).is_pending());
    let received = || neighbours.streams[1].figures()[0].1.bytes_received;
    let (before, sent) = (received(), bytes(20_000, 5));
    let (pushed, by_ring) = sent.split_at(10_000);
    (&*one).write_all(pushed).unwrap();
    let deadline = Instant::now() + LONG;
    while received() < before + pushed.len() as u64 {
        assert!(Instant::now() < deadline, "it does not come");
        thread::yield_now();
    }
    drop(kept.pop());
    (&*one).write_all(by_ring).unwrap();
    assert!(one.is_direct());
    one.finish().wait().unwrap();
    let (came, error) = read_all(other);
    let is_swapped = came == [by_ring, pushed].concat();
    assert!(came == sent && error.is_none(), "{} bytes, swapped: {is_swapped}, then {error:?}", came.len());
}

#[test]
fn a_ring_that_was_never_taken_up_is_free_when_its_stream_has_ended() {
    for is_left_there_first in [false, true] {
        let Pressed { _neighbours: neighbours, _acceptor, _kept, mut others, ends: [one, other], .. } =
            Pressed::new(4, 100_000);
        let ends = if is_left_there_first { [other, one] } else { [one, other] };
        ends.into_iter().for_each(drop);
        others.clear();
        super::until_direct(&mut neighbours.stream());
    }
}
