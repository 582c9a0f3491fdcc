//! What each request does.

use super::harness::Pair;
use crate::verbs::device::{Device, Grant, RECEIVED, Status, Work};
use crate::verbs::fake::{FakeSettings, RequestKind};

#[test]
fn inline_bytes_are_copied_by_the_call_itself() {
    let mut pair = Pair::new();
    pair.far.receive(1, 0, 64);
    pair.near.fill(0, b"inline");
    pair.fabric.pause();
    let work = pair.near.inline(0, 6);
    pair.near.ask(pair.here, 7, work);
    pair.near.fill(0, b"rubble");
    pair.fabric.resume();
    assert_eq!(pair.near.outcomes(), [(7, Status::SUCCESS)]);
    assert_eq!(pair.far.poll()[0].bytes, 6);
    assert_eq!(pair.far.bytes(0, 6), b"inline");
}

#[test]
fn an_empty_message_takes_a_buffer() {
    let mut pair = Pair::new();
    pair.far.receive(1, 0, 0);
    let work = pair.near.inline(0, 0);
    assert_eq!(pair.ask(work), Status::SUCCESS);
    let received = pair.far.poll();
    assert_eq!((received[0].id, received[0].bytes), (RECEIVED | 1, 0));
}

#[test]
fn a_message_longer_than_the_buffer_fails_on_both_sides() {
    let mut pair = Pair::new();
    pair.far.receive(1, 0, 4);
    assert_eq!(pair.send(b"five!"), Status::REMOTE_REJECTED);
    assert_eq!(pair.far.outcomes(), [(1, Status::LOCAL_LENGTH)]);
    assert_eq!(pair.far.bytes(0, 5), [0; 5]);
    pair.far.send(pair.there, 2, b"x");
    assert_eq!(pair.far.outcomes(), [(2, Status::FLUSHED)]);
}

#[test]
fn a_request_longer_than_the_device_allows_fails() {
    let mut pair = Pair::with(FakeSettings { work_bytes_max: 16, ..FakeSettings::default() });
    pair.far.receive(1, 0, 64);
    assert_eq!(pair.send(&[1; 17]), Status::LOCAL_LENGTH);
    assert!(pair.far.poll().is_empty());
}

#[test]
fn an_empty_receive_queue_fails_the_sender_and_is_counted() {
    let mut pair = Pair::new();
    assert_eq!(pair.send(b"x"), Status::RECEIVER_NOT_READY);
    assert_eq!(pair.fabric.receiver_not_ready(), 1);
    assert_eq!(pair.fabric.counters_of("far").receiver_not_ready, 1);

    let mut pair = Pair::new();
    let window = pair.far.open(pair.there, 0, 8, Grant::Write);
    let (from, to) = (pair.near.piece(0, 8), pair.far.remote(0, window.rkey));
    assert_eq!(pair.ask(Work::Write { from, to, word: Some(1) }), Status::RECEIVER_NOT_READY);
    assert_eq!(pair.fabric.receiver_not_ready(), 1);
}

#[test]
fn a_queue_pair_can_talk_to_another_of_its_own_device() {
    let mut pair = Pair::new();
    let (one, other) = (pair.near.create(), pair.near.create());
    let (first, second) = (pair.near.endpoint(one, 1), pair.near.endpoint(other, 2));
    pair.near.device.connect(one.id, 1, &second).expect("a connection");
    pair.near.device.connect(other.id, 2, &first).expect("a connection");
    pair.near.receive(5, 2, 8);
    // The two messages overlap.
    pair.near.send(one, 9, b"abcdef");
    assert_eq!(pair.near.outcomes(), [(5, Status::SUCCESS), (9, Status::SUCCESS)]);
    assert_eq!(pair.near.bytes(2, 6), b"abcdef");
}

#[test]
fn requests_and_bytes_are_counted_by_kind() {
    let mut pair = Pair::new();
    pair.far.receive(1, 0, 8);
    pair.far.receive(2, 0, 8);
    let window = pair.far.open(pair.there, 0, 8, Grant::Write);
    assert_eq!(pair.send(b"four"), Status::SUCCESS);
    let (from, to) = (pair.near.piece(0, 8), pair.far.remote(0, window.rkey));
    assert_eq!(pair.ask(Work::Write { from, to, word: None }), Status::SUCCESS);
    assert_eq!(pair.ask(Work::Write { from, to, word: Some(1) }), Status::SUCCESS);
    let of = |device: &str, kind| {
        let tally = pair.fabric.counters_of(device).of(kind);
        (tally.requests, tally.bytes)
    };
    assert_eq!(of("near", RequestKind::Send), (1, 4));
    assert_eq!(of("near", RequestKind::Write), (1, 8));
    assert_eq!(of("near", RequestKind::WriteWithWord), (1, 8));
    assert_eq!(of("near", RequestKind::Read), (0, 0));
    assert_eq!(of("far", RequestKind::Bind), (1, 0));
    assert_eq!(of("far", RequestKind::Receive), (2, 12));
    assert_eq!(pair.fabric.counters().of(RequestKind::Send).bytes, 4);
    assert_eq!(pair.fabric.counters_of("nobody"), Default::default());
}
