//! What each request does.

use super::harness::Pair;
use crate::verbs::device::{Completion, Device, Grant, Post, RECEIVED, Status, Work};
use crate::verbs::fake::{FakeSettings, RequestKind};

#[test]
fn a_message_fills_the_oldest_buffer() {
    let mut pair = Pair::new();
    pair.far.receive(1, 100, 8);
    pair.far.receive(2, 200, 8);
    assert_eq!(pair.send(b"hello"), Status::SUCCESS);
    let there = pair.there.number;
    let expected = Completion { id: RECEIVED | 1, status: Status::SUCCESS, queue_pair: there, bytes: 5, word: None };
    assert_eq!(pair.far.poll(), [expected]);
    assert_eq!(pair.far.bytes(100, 6), b"hello\0");
    assert_eq!(pair.send(b"again"), Status::SUCCESS);
    assert_eq!(pair.far.poll()[0].id, RECEIVED | 2);
    assert_eq!(pair.far.bytes(200, 5), b"again");
    pair.check();
}

#[test]
fn inline_bytes_are_copied_by_the_call_itself() {
    let mut pair = Pair::new();
    pair.far.receive(1, 0, 64);
    pair.near.fill(0, b"inline");
    pair.fabric.pause();
    let work = pair.near.inline(0, 6);
    let here = pair.here;
    pair.near.ask(here, 7, work);
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
fn a_write_is_not_told_and_a_write_with_a_word_is() {
    let mut pair = Pair::new();
    let there = pair.there;
    let window = pair.far.open(there, 1000, 100, Grant::Write);
    pair.near.fill(0, b"tensor");
    let (from, to) = (pair.near.piece(0, 6), pair.far.remote(1000, window.rkey));
    assert_eq!(pair.ask(Work::Write { from, to, word: None }), Status::SUCCESS);
    assert_eq!(pair.far.bytes(1000, 6), b"tensor");
    assert!(pair.far.poll().is_empty());
    pair.far.receive(3, 50, 4);
    pair.far.fill(50, b"same");
    let to = pair.far.remote(1094, window.rkey);
    assert_eq!(pair.ask(Work::Write { from, to, word: Some(0xabcd) }), Status::SUCCESS);
    let received = pair.far.poll();
    assert_eq!((received[0].id, received[0].word, received[0].bytes), (RECEIVED | 3, Some(0xabcd), 6));
    assert_eq!(pair.far.bytes(1094, 6), b"tensor");
    assert_eq!(pair.far.bytes(50, 4), b"same", "the buffer is untouched");
}

#[test]
fn a_read_brings_bytes() {
    let mut pair = Pair::new();
    let there = pair.there;
    let window = pair.far.open(there, 300, 16, Grant::Read);
    pair.far.fill(300, b"sixteen bytes ok");
    let work = Work::Read { into: pair.near.piece(64, 16), from: pair.far.remote(300, window.rkey) };
    assert_eq!(pair.ask(work), Status::SUCCESS);
    assert_eq!(pair.near.bytes(64, 16), b"sixteen bytes ok");
    assert!(pair.far.poll().is_empty());
}

#[test]
fn requests_of_a_call_are_done_in_order() {
    let mut pair = Pair::new();
    let (here, there) = (pair.here, pair.there);
    let (window, bind) = pair.far.bind(0, 4, Grant::Write);
    let close = Work::Invalidate { rkey: window.rkey };
    let posts = [bind, close, bind].map(|work| Post { id: 1, signaled: true, work });
    pair.far.post(there, &posts).expect("three requests");
    // The second bind uses a key that the first one has used up.
    assert_eq!(pair.far.outcomes(), [(1, Status::SUCCESS), (1, Status::SUCCESS), (1, Status::WINDOW_BIND)]);
    let work = Work::Send(pair.near.piece(0, 1));
    pair.near.ask(here, 1, work);
    assert_eq!(pair.near.outcomes(), [(1, Status::RETRIES_EXCEEDED)]);
}

#[test]
fn what_is_not_signaled_is_not_told_unless_it_fails() {
    let mut pair = Pair::new();
    let here = pair.here;
    pair.far.receive(1, 0, 4);
    pair.far.receive(2, 0, 4);
    let work = Work::Send(pair.near.piece(0, 4));
    let quiet = |id| Post { id, signaled: false, work };
    pair.near.post(here, &[quiet(1), quiet(2)]).expect("two requests");
    assert!(pair.near.poll().is_empty());
    pair.near.post(here, &[quiet(3), quiet(4)]).expect("two requests");
    assert_eq!(pair.near.outcomes(), [(3, Status::RECEIVER_NOT_READY), (4, Status::FLUSHED)]);
}

#[test]
fn a_message_longer_than_the_buffer_fails_on_both_sides() {
    let mut pair = Pair::new();
    pair.far.receive(1, 0, 4);
    assert_eq!(pair.send(b"five!"), Status::REMOTE_REJECTED);
    assert_eq!(pair.far.outcomes(), [(1, Status::LOCAL_LENGTH)]);
    assert_eq!(pair.far.bytes(0, 5), [0; 5]);
    let there = pair.there;
    pair.far.send(there, 2, b"x");
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
    let there = pair.there;
    let window = pair.far.open(there, 0, 8, Grant::Write);
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
    let there = pair.there;
    pair.far.receive(1, 0, 8);
    pair.far.receive(2, 0, 8);
    let window = pair.far.open(there, 0, 8, Grant::Write);
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
