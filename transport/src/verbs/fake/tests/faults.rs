//! Injected faults.

use super::harness::{Pair, is_readable};
use crate::verbs::device::{AsyncEvent, Device, Grant, Post, Status, Work};
use crate::verbs::fake::{Fabric, FakeSettings, Fault, RequestKind, Strike, Verb, Weather};

fn strike(kind: RequestKind, status: Status) -> Strike {
    Strike { kind: Some(kind), status, carried_out: false }
}

#[test]
fn the_next_request_of_a_kind_fails_with_any_status() {
    for number in (1..=22).filter(|&number| number != 5) {
        let mut pair = Pair::new();
        pair.far.receive(1, 0, 8);
        let status = Status(number);
        assert!(pair.fabric.inject("near", Fault::Request { strike: strike(RequestKind::Send, status), skip: 0 }));
        // A request of another kind does not fail.
        pair.near.open(pair.here, 0, 8, Grant::Read);
        assert_eq!(pair.send(b"x"), status);
        assert!(pair.far.poll().is_empty());
        assert_eq!(pair.send(b"x"), Status::FLUSHED);
    }
}

#[test]
fn a_struck_receive_of_a_word_fails_both_sides() {
    let mut pair = Pair::new();
    pair.far.receive(1, 0, 8);
    let window = pair.far.open(pair.there, 0, 8, Grant::Write);
    pair.fabric.inject("far", Fault::Request { strike: strike(RequestKind::Receive, Status(8)), skip: 0 });
    let (from, to) = (pair.near.piece(0, 8), pair.far.remote(0, window.rkey));
    assert_eq!(pair.ask(Work::Write { from, to, word: Some(1) }), Status::REMOTE_OPERATION);
    assert_eq!(pair.far.outcomes(), [(1, Status(8))]);
}

#[test]
fn some_are_spared_first() {
    let mut pair = Pair::new();
    (0..3).for_each(|id| pair.far.receive(id, 0, 8));
    pair.fabric.inject("near", Fault::Request { strike: strike(RequestKind::Send, Status(7)), skip: 2 });
    assert_eq!(pair.send(b"1"), Status::SUCCESS);
    assert_eq!(pair.send(b"2"), Status::SUCCESS);
    assert_eq!(pair.send(b"3"), Status(7));
}

#[test]
fn an_acknowledgement_can_be_lost() {
    let mut pair = Pair::new();
    pair.far.receive(1, 0, 8);
    let strike = Strike { kind: None, status: Status::RETRIES_EXCEEDED, carried_out: true };
    pair.fabric.inject("near", Fault::Request { strike, skip: 0 });
    assert_eq!(pair.send(b"done"), Status::RETRIES_EXCEEDED);
    assert_eq!(pair.far.outcomes(), [(1, Status::SUCCESS)]);
    assert_eq!(pair.far.bytes(0, 4), b"done");
}

#[test]
fn a_killed_queue_pair_flushes_also_what_was_carried_out() {
    let mut pair = Pair::new();
    pair.far.receive(1, 0, 8);
    pair.fabric.pause();
    pair.near.send(pair.here, 1, b"x");
    assert!(pair.fabric.step(), "carried out, not acknowledged");
    pair.near.send(pair.here, 2, b"x");
    assert!(pair.fabric.inject("near", Fault::QueuePair(pair.here.number)));
    assert_eq!(pair.near.outcomes(), [(1, Status::FLUSHED), (2, Status::FLUSHED)]);
    assert_eq!(pair.far.outcomes(), [(1, Status::SUCCESS)]);
}

#[test]
fn a_killed_queue_pair_flushes_and_tells() {
    let mut pair = Pair::new();
    pair.far.receive(1, 0, 8);
    assert_eq!(pair.fabric.queue_pairs("near"), [pair.here.number]);
    assert_eq!(pair.fabric.queue_pairs("far"), [pair.there.number]);
    pair.fabric.pause();
    pair.near.send(pair.here, 1, b"x");
    assert!(!pair.fabric.inject("far", Fault::QueuePair(pair.here.number)), "another device's");
    assert!(!pair.fabric.inject("near", Fault::QueuePair(0)));
    assert!(pair.fabric.inject("near", Fault::QueuePair(pair.here.number)));
    pair.fabric.resume();
    assert_eq!(pair.near.device.next_event(), Some(AsyncEvent::QueuePairFailed(pair.here.number)));
    assert_eq!(pair.near.outcomes(), [(1, Status::FLUSHED)]);
    assert!(pair.far.poll().is_empty());
    pair.far.send(pair.there, 2, b"x");
    assert_eq!(pair.far.outcomes(), [(2, Status::RETRIES_EXCEEDED)]);
}

#[test]
fn a_port_that_is_down_for_a_short_time_does_no_harm() {
    for device in ["near", "far"] {
        let mut pair = Pair::new();
        pair.far.receive(1, 0, 8);
        assert!(pair.fabric.inject(device, Fault::PortDown));
        pair.near.send(pair.here, 1, b"x");
        // A request that does not travel waits only for its turn.
        let (_, bind) = pair.near.bind(0, 8, Grant::Read);
        pair.near.ask(pair.here, 2, bind);
        for _ in 0..15 {
            assert!(pair.near.poll().is_empty(), "{device}");
        }
        assert!(pair.fabric.inject(device, Fault::PortUp));
        assert_eq!(pair.near.outcomes(), [(1, Status::SUCCESS), (2, Status::SUCCESS)]);
        assert_eq!(pair.far.outcomes(), [(1, Status::SUCCESS)]);
    }
}

#[test]
fn a_port_that_stays_down_ends_requests() {
    let mut pair = Pair::with(FakeSettings { retry_polls: 5, ..FakeSettings::default() });
    pair.far.receive(1, 0, 8);
    pair.fabric.inject("far", Fault::PortDown);
    pair.near.send(pair.here, 1, b"x");
    for _ in 0..4 {
        assert!(pair.near.poll().is_empty());
    }
    assert_eq!(pair.near.outcomes(), [(1, Status::RETRIES_EXCEEDED)]);
}

#[test]
fn time_passes_at_once_for_who_sleeps_behind_a_port_that_is_down() {
    let mut pair = Pair::new();
    pair.far.receive(1, 0, 8);
    pair.fabric.inject("far", Fault::PortDown);
    pair.near.send(pair.here, 1, b"x");
    pair.near.device.arm().expect("a device that works");
    assert!(is_readable(pair.near.device.completion_descriptor()));
    assert_eq!(pair.near.outcomes(), [(1, Status::RETRIES_EXCEEDED)]);
}

#[test]
fn a_port_that_goes_down_before_the_acknowledgement_delays_it() {
    let mut pair = Pair::new();
    pair.far.receive(1, 0, 8);
    pair.fabric.pause();
    pair.near.send(pair.here, 1, b"x");
    assert!(pair.fabric.step());
    pair.fabric.inject("near", Fault::PortDown);
    pair.fabric.resume();
    assert!(pair.near.poll().is_empty());
    assert_eq!(pair.far.outcomes(), [(1, Status::SUCCESS)]);
    pair.fabric.inject("near", Fault::PortUp);
    assert_eq!(pair.near.outcomes(), [(1, Status::SUCCESS)]);
}

/// A call of the near device; true if it succeeds.
type Call = fn(&mut Pair) -> bool;

/// All that may fail.
const CALLS: [(Verb, Call); 7] = [
    (Verb::Register, |pair| pair.near.register(16).is_ok()),
    (Verb::AllocateWindow, |pair| pair.near.device.allocate_window().is_ok()),
    (Verb::Create, |pair| pair.near.device.create().is_ok()),
    (Verb::Connect, |pair| {
        let to = pair.far.endpoint(pair.there, 1);
        pair.near.device.create().is_ok_and(|created| pair.near.device.connect(created.id, 1, &to).is_ok())
    }),
    (Verb::PostReceives, |pair| pair.near.receives(&[]).is_ok()),
    (Verb::Arm, |pair| pair.near.device.arm().is_ok()),
    (Verb::Post, |pair| {
        let post = Post { id: 1, signaled: true, work: Work::Send(pair.near.piece(0, 1)) };
        pair.near.post(pair.here, &[post]).is_ok()
    }),
];

#[test]
fn nothing_works_on_a_failed_device() {
    let mut pair = Pair::new();
    let window = pair.near.window();
    assert!(!pair.fabric.inject("nobody", Fault::DeviceFailed));
    assert!(pair.fabric.inject("near", Fault::DeviceFailed));
    assert_eq!(pair.near.device.next_event(), Some(AsyncEvent::DeviceFailed));
    for (verb, call) in CALLS {
        assert!(!call(&mut pair), "{verb:?}");
    }
    let to = pair.far.endpoint(pair.there, 1);
    assert!(pair.near.device.connect(pair.here.id, 1, &to).is_err());
    assert!(pair.near.device.poll(&mut Vec::new(), 1).is_err());
    // Calls that give something back still work.
    pair.near.device.disarm();
    pair.near.device.free_window(window.id);
    pair.near.device.destroy(pair.here.id);
    let region = pair.near.region.id;
    pair.near.device.deregister(region);
    assert_eq!(pair.far.device.next_event(), None);
    pair.far.send(pair.there, 2, b"x");
    assert_eq!(pair.far.outcomes(), [(2, Status::RETRIES_EXCEEDED)]);
    pair.check();
}

#[test]
fn a_device_can_be_opened_after_one_of_its_name_has_failed() {
    let pair = Pair::new();
    pair.fabric.inject("near", Fault::DeviceFailed);
    let mut next = Pair::on(&pair.fabric, FakeSettings::default());
    next.far.receive(1, 0, 8);
    assert_eq!(next.send(b"x"), Status::SUCCESS);
}

#[test]
fn each_verb_can_fail_once() {
    let mut pair = Pair::new();
    for (verb, call) in CALLS {
        let reason = "cannot allocate memory".to_string();
        assert!(pair.fabric.inject("near", Fault::Verb { verb, reason, skip: 0 }));
        assert!(!call(&mut pair) && call(&mut pair), "{verb:?}");
    }
}

#[test]
fn a_post_can_fail_in_the_middle() {
    let mut pair = Pair::new();
    (0..3).for_each(|id| pair.far.receive(id, 0, 8));
    pair.fabric.inject("near", Fault::Verb { verb: Verb::Post, reason: "cannot allocate memory".into(), skip: 2 });
    let work = Work::Send(pair.near.piece(0, 1));
    let posts = [1, 2, 3].map(|id| Post { id, signaled: true, work });
    assert_eq!(pair.near.post(pair.here, &posts).expect_err("injected").0, 2);
    assert_eq!(pair.near.outcomes(), [(1, Status::SUCCESS), (2, Status::SUCCESS)]);
}

#[test]
fn a_climate_strikes_some_and_the_same_ones_each_time() {
    let run = |seed| {
        let fabric = Fabric::new(seed);
        let mut pair = Pair::on(&fabric, FakeSettings::default());
        let strike = Strike { kind: None, status: Status(12), carried_out: false };
        fabric.set_climate(&[Weather { strike, per_million: 100_000 }]);
        let mut struck = Vec::new();
        for round in 0..200 {
            (pair.here, pair.there) = pair.join();
            pair.far.receive(1, 0, 8);
            match pair.send(b"x") {
                Status::SUCCESS => assert_eq!(pair.far.poll().len(), 1),
                status => struck.push((round, status)),
            }
        }
        fabric.set_climate(&[]);
        (pair.here, pair.there) = pair.join();
        assert_eq!(pair.send(b"x"), Status::SUCCESS);
        struck
    };
    let struck = run(3);
    assert!((5..50).contains(&struck.len()), "{struck:?}");
    assert!(struck.iter().all(|(_, status)| *status == Status(12)));
    assert_eq!(run(3), struck);
    assert_ne!(run(4), struck);
}

#[test]
#[should_panic(expected = "a strike with success")]
fn a_strike_is_no_success() {
    let strike = strike(RequestKind::Send, Status::SUCCESS);
    Fabric::new(1).inject("near", Fault::Request { strike, skip: 0 });
}

#[test]
#[should_panic(expected = "a climate with success")]
fn a_climate_is_no_success() {
    let strike = strike(RequestKind::Send, Status::SUCCESS);
    Fabric::new(1).set_climate(&[Weather { strike, per_million: 1 }]);
}
