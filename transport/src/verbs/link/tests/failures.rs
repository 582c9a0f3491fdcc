//! Links that fail: by every completion status, by events, by refused calls, by the end of the TCP connection.

use super::harness::{Fate, Into, LARGE, Manner, NAMES, Pair};
use crate::error::LinkError;
use crate::link::Link;
use crate::verbs::device::Status;
use crate::verbs::fake::{Fault, RequestKind, Strike, Verb};
use crate::verbs::limits::PIECE_BYTES;
use crate::verbs::settings::Transfer;

/// Every error status, and an unknown one.
const STATUSES: [Status; 14] = [
    Status::LOCAL_LENGTH,
    Status::LOCAL_OPERATION,
    Status::LOCAL_PROTECTION,
    Status::FLUSHED,
    Status::WINDOW_BIND,
    Status(7),
    Status(8),
    Status::REMOTE_REJECTED,
    Status::REMOTE_ACCESS,
    Status::REMOTE_OPERATION,
    Status::RETRIES_EXCEEDED,
    Status::RECEIVER_NOT_READY,
    Status::FATAL,
    Status(99),
];

/// Asks for tensors both ways, some of which go in several pieces.
fn ask(pair: &mut Pair) {
    for side in &mut pair.sides {
        for (number, size) in [100, LARGE, PIECE_BYTES + 5].into_iter().enumerate() {
            side.ask(pair.now, number as u32, size, Into::Heap);
            side.ask(pair.now, number as u32 + 3, size, Into::Anywhere);
        }
    }
}

/// After the end of a link, the next one carries what is left: each tensor arrives once.
fn resume(mut pair: Pair) {
    pair.lose();
    for side in &pair.sides {
        let held = side.port.counters();
        assert_eq!((held.links, held.receives_promised, held.works, held.send_buffers), (0, 0, 0, 0));
    }
    pair.connect();
    pair.settle();
    for side in 0..2 {
        assert!((0..6).all(|number| matches!(pair.fate(side, number), Fate::Arrived { .. })));
        assert!(pair.sides[side].home.iter().filter(|(_, taken)| *taken).count() == 6, "each is taken once");
        assert_eq!(pair.sides[side].slab.in_use_bytes(), 0);
    }
    pair.check();
}

#[test]
fn every_completion_error_ends_the_link_and_loses_nothing() {
    for transfer in [Transfer::Write, Transfer::Read] {
        for kind in RequestKind::ALL {
            match (transfer, kind) {
                (Transfer::Write, RequestKind::Read) => continue,
                (Transfer::Read, RequestKind::Write | RequestKind::WriteWithWord) => continue,
                _ => {}
            }
            for (number, status) in STATUSES.into_iter().enumerate() {
                let mut pair = Pair::new(&Manner::with(transfer));
                let strike = Strike { kind: Some(kind), status, carried_out: number % 2 == 1 };
                assert!(pair.fabric.inject(NAMES[0], Fault::Request { strike, skip: number as u32 % 2 }));
                ask(&mut pair);
                // The other side may notice the consequences before this one sees the reason.
                let error = match pair.run_to_the_end() {
                    (0, error) => error,
                    (_, error) => {
                        assert!(matches!(error, LinkError::Verbs(_)), "{error}");
                        pair.turn(0).expect_err("this side knows by now")
                    }
                };
                let said = error.to_string();
                assert!(matches!(error, LinkError::Verbs(_)), "{kind:?}, {status:?}: {said}");
                assert!(said.contains(&status.to_string()), "{kind:?}, {status:?}: {said}");
                assert_eq!(pair.sides[0].port.counters().links_failed, 1);
                resume(pair);
            }
        }
    }
}

#[test]
fn calls_that_are_refused_end_the_link() {
    for transfer in [Transfer::Write, Transfer::Read] {
        for skip in 0..12 {
            let mut pair = Pair::new(&Manner::with(transfer));
            pair.fail(0, Verb::Post, skip);
            ask(&mut pair);
            let (side, error) = pair.run_to_the_end();
            assert!(side == 0 && error.to_string().contains("as the test wants"), "{error}");
            resume(pair);
        }
    }
}

#[test]
fn a_queue_pair_that_fails_with_an_event_ends_its_link() {
    let mut pair = Pair::new(&Manner::default());
    let number = pair.fabric.queue_pairs(NAMES[0])[0];
    assert!(pair.fabric.inject(NAMES[0], Fault::QueuePair(number)));
    ask(&mut pair);
    let (side, error) = pair.run_to_the_end();
    assert_eq!((side, error), (0, LinkError::Verbs("the queue pair failed (asynchronous event)".into())));
    resume(pair);
}

#[test]
fn a_port_that_goes_down_ends_its_links_and_none_begins_until_it_is_up() {
    let mut pair = Pair::new(&Manner::default());
    ask(&mut pair);
    assert!(pair.fabric.inject(NAMES[0], Fault::PortDown));
    let (side, error) = pair.run_to_the_end();
    assert_eq!((side, error), (0, LinkError::Verbs("the port of one is down".into())));
    let why_not = |pair: &Pair| pair.sides[0].port.why_not("other", pair.now);
    assert_eq!(why_not(&pair).as_deref(), Some("the port of one is down"));
    pair.lose();
    assert!(pair.fabric.inject(NAMES[0], Fault::PortUp));
    pair.sides[0].poll();
    assert_eq!(why_not(&pair), None);
    resume(pair);
}

#[test]
fn a_device_that_fails_ends_its_links_and_none_begins_any_more() {
    let mut pair = Pair::new(&Manner::default());
    ask(&mut pair);
    pair.turn(0).expect("a healthy link");
    assert!(pair.fabric.inject(NAMES[0], Fault::DeviceFailed));
    let (side, error) = pair.run_to_the_end();
    assert!(side == 0 && matches!(error, LinkError::Verbs(_)), "{error}");
    pair.lose();
    let reason = pair.sides[0].port.why_not("other", pair.now).expect("a reason");
    assert!(reason.contains("failed"), "{reason}");
    assert!(pair.sides[0].port.state().begin_link().is_err());
    // The port comes up again, the device does not.
    assert!(pair.fabric.inject(NAMES[0], Fault::PortUp));
    pair.sides[0].poll();
    assert!(pair.sides[0].port.why_not("other", pair.now).is_some());
    assert!(pair.sides[1].port.why_not("one", pair.now).is_none());
    assert_eq!(pair.fabric.violations(), Vec::<String>::new());
    let held = pair.sides[0].port.counters();
    assert_eq!((held.links, held.receives_promised, held.works, held.send_buffers), (0, 0, 0, 0));
}

#[test]
fn receive_buffers_that_are_not_taken_put_the_port_out_of_use() {
    let mut pair = Pair::new(&Manner::default());
    pair.fail(0, Verb::PostReceives, 0);
    ask(&mut pair);
    let (side, error) = pair.run_to_the_end();
    assert!(side == 0 && error.to_string().contains("as the test wants"), "{error}");
    assert!(pair.sides[0].port.why_not("other", pair.now).is_some(), "a buffer is lost");
    pair.lose();
    assert_eq!(pair.fabric.violations(), Vec::<String>::new());
}

#[test]
fn the_end_of_the_tcp_connection_ends_the_link_after_what_had_come() {
    for delay_polls_max in [0, 20] {
        let mut manner = Manner::default();
        manner.device.delay_polls_max = delay_polls_max;
        let mut pair = Pair::new(&manner);
        pair.sides[1].parks = true;
        for number in 0..2000 {
            pair.sides[0].ask(pair.now, number, 2000, Into::Anywhere);
        }
        pair.run(|pair| pair.sides[1].parked.len() == 2000);
        // Until the last credit has come.
        for side in [0, 1].repeat(100) {
            pair.turn(side).expect("a healthy link");
        }
        pair.sides[1].answer_parked();
        // Some of the answers are in receive buffers when the peer stops.
        pair.sides[1].transmit(pair.now).expect("a healthy link");
        for _ in 0..100 {
            pair.sides[1].poll();
        }
        pair.sides[1].lose();
        let before = pair.sides[0].fates.len();
        let side = &mut pair.sides[0];
        let link = side.link.as_mut().expect("it stands");
        link.descriptor_ready();
        let error = loop {
            let link = side.link.as_mut().expect("it stands");
            if let Err(error) = link.receive(&mut side.session.inbound(pair.now, &side.slab), 1) {
                break error;
            }
        };
        side.handle_events();
        assert_eq!(error, LinkError::Closed);
        assert!(side.fates.len() > before, "what had come counts");
        assert_eq!(side.port.counters().links_failed, 0, "nobody's fault");
        pair.lose();
        pair.sides[1].parks = false;
        pair.connect();
        pair.settle();
        assert!((0..2000).all(|number| matches!(pair.fate(0, number), Fate::Arrived { .. })));
        pair.check();
    }
}

#[test]
fn a_peer_whose_links_fail_in_a_row_is_left_alone_until_one_carries() {
    let mut manner = Manner::default();
    manner.settings.retry_after = std::time::Duration::from_secs(30);
    let mut pair = Pair::new(&manner);
    let strike = Strike { kind: Some(RequestKind::Send), status: Status::RETRIES_EXCEEDED, carried_out: false };
    ask(&mut pair);
    for _ in 0..crate::verbs::limits::FAILURES_MAX {
        assert_eq!(pair.sides[0].port.why_not("other", pair.now), None);
        // The other side says nothing that this side could receive.
        assert!(pair.fabric.inject(NAMES[0], Fault::Request { strike, skip: 0 }));
        assert!(pair.sides[0].transmit(pair.now).is_ok());
        pair.sides[0].poll();
        assert!(pair.sides[0].transmit(pair.now).is_err());
        pair.lose();
        pair.connect();
    }
    let reason = pair.sides[0].port.why_not("other", pair.now).expect("a reason");
    assert!(reason.contains("3 times") && reason.contains("does not acknowledge"), "{reason}");
    assert_eq!(pair.sides[0].port.why_not("a third", pair.now), None);
    pair.settle();
    assert_eq!(pair.sides[0].port.why_not("other", pair.now), None);
    pair.check();
}

/// A message that breaks off holds one of the peer's receive buffers: the buffer comes back, however often that happens, before the queue
/// pair is destroyed.
#[test]
fn no_receive_buffer_is_lost_with_links_that_die_in_the_middle_of_a_message() {
    const BUFFERS: usize = 1024;
    for drain_polls in [0, 3] {
        let mut manner = Manner::default();
        manner.settings.queue_depth = BUFFERS as u32;
        manner.device.completion_depth = 2048;
        manner.device.drain_polls = drain_polls;
        let mut pair = Pair::new(&manner);
        for number in 0..BUFFERS as u32 {
            assert!(pair.fabric.inject(NAMES[0], Fault::BreakOff { skip: 0 }));
            pair.sides[0].ask(pair.now, number, 100, Into::Anywhere);
            let (side, error) = pair.run_to_the_end();
            assert!(side == 0 && error.to_string().contains("does not acknowledge"), "{error}");
            pair.lose();
            pair.connect();
        }
        pair.settle();
        pair.lose();
        pair.drain();
        for name in NAMES {
            assert_eq!((pair.fabric.receive_buffers(name), pair.counters(0).receives_lost), (BUFFERS, 0), "{name}");
        }
        assert_eq!(pair.sides.each_ref().map(|side| side.port.counters().undrained), [0, 0]);
        pair.check();
    }
}

/// If a device never reports that a queue pair holds no buffers, the wait for that has a time limit and a limit on queue pairs; the buffers
/// come back all the same.
#[test]
fn queue_pairs_of_a_device_that_does_not_tell_are_destroyed_at_the_limits() {
    use crate::verbs::limits::DRAINING_MAX;
    let mut manner = Manner::default();
    manner.settings.queue_depth = 1024;
    manner.device.completion_depth = 2048;
    manner.device.tells_last_receive = false;
    let mut pair = Pair::new(&manner);
    for _ in 0..DRAINING_MAX + 10 {
        pair.lose();
        let draining = pair.sides[0].port.counters().draining as usize;
        assert!((1..=DRAINING_MAX).contains(&draining), "{draining}");
        assert!(pair.sides[0].port.next_timeout().is_some());
        if pair.sides[0].port.why_not("other", pair.now).is_some() {
            // Buffers promised to these queue pairs are promised to nobody else.
            break;
        }
        pair.connect();
    }
    pair.drain();
    let held = pair.sides[0].port.counters();
    assert!(held.undrained > 0 && held.draining == 0, "{held:?}");
    assert_eq!(pair.sides[0].port.next_timeout(), None);
    pair.connect();
    ask(&mut pair);
    pair.settle();
    pair.check();
}

/// Offers have the port's current address, and links over its former address fail by themselves.
#[test]
fn offers_name_the_address_that_the_port_has_now() {
    let mut pair = Pair::new(&Manner::default());
    ask(&mut pair);
    let (gid, lid) = ([7; 16], 99);
    assert!(pair.fabric.inject(NAMES[0], Fault::Address { gid, lid }));
    let (_, error) = pair.run_to_the_end();
    assert!(matches!(error, LinkError::Verbs(_)), "{error}");
    pair.lose();
    // Without an address no link can begin.
    assert!(pair.fabric.inject(NAMES[0], Fault::Address { gid: [0; 16], lid: 0 }));
    pair.sides[0].poll();
    let reason = pair.sides[0].port.why_not("other", pair.now).expect("a reason");
    assert!(reason.contains("no GID"), "{reason}");
    assert!(pair.fabric.inject(NAMES[0], Fault::Address { gid, lid }));
    pair.sides[0].poll();
    assert_eq!(pair.sides[0].port.why_not("other", pair.now), None);
    let attributes = pair.sides[0].port.attributes();
    assert_eq!((attributes.gid, attributes.lid), (gid, lid));
    resume(pair);
}
