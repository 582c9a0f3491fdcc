//! Places that are announced with requests and given up before their answers come.

use std::time::Duration;

use super::harness::{Fate, Into, LARGE, Manner, Pair};
use crate::error::Code;
use crate::link::Link;
use crate::verbs::fake::RequestKind;
use crate::verbs::limits::WINDOWS_MAX;

fn manners() -> [Manner; 4] {
    let manner = Manner::default;
    [manner(), manner().without_windows(), manner().registering_each(), manner().tiny()]
}

#[test]
fn an_announced_place_saves_the_question_where_to() {
    let messages = |into| {
        let mut pair = Pair::new(&Manner::default());
        for number in 0..100 {
            let (_, address) = pair.sides[0].ask(pair.now, number, LARGE, into);
            pair.settle();
            let Fate::Arrived { address: found, .. } = pair.fate(0, number) else { panic!("it comes") };
            assert!(into == Into::Anywhere || *found == address, "in the consumer's own memory");
        }
        let sends = [0, 1].map(|side| pair.counters(side).of(RequestKind::Send).requests);
        pair.check();
        sends
    };
    // For each tensor: the request, where to write, and the release; pair.now and then a word of credit.
    let (asked, announced) = (messages(Into::Anywhere), messages(Into::Slab));
    assert!((300..320).contains(&asked[0]) && (200..220).contains(&announced[0]), "{asked:?}, {announced:?}");
    assert_eq!(messages(Into::Heap), announced);
}

/// The memory of a request that was given up is free only when the peer has confirmed it.
#[test]
fn a_request_given_up_before_its_answer_keeps_its_memory_until_the_peer_agrees() {
    for expires in [false, true] {
        for manner in manners() {
            let mut pair = Pair::new(&manner);
            pair.sides[1].parks = true;
            let (request, _) = pair.sides[0].ask(pair.now, 1, LARGE, Into::Slab);
            pair.run(|pair| !pair.sides[1].parked.is_empty());
            let in_use = pair.sides[0].slab.in_use_bytes();
            give_up(&mut pair, request, expires);
            pair.turn(0).expect("a healthy link");
            assert_eq!(pair.sides[0].slab.in_use_bytes(), in_use, "the peer may write there still");
            pair.run(|pair| pair.sides[0].slab.in_use_bytes() == 0);
            pair.run(|pair| pair.sides[1].parked.is_empty());
            goes_on(pair);
        }
    }
}

/// Its place is still in the outbox when the request is given up; the link takes the place and its withdrawal at the same time.
#[test]
fn a_request_given_up_before_the_link_has_told_of_its_place_keeps_its_memory_too() {
    for manner in manners() {
        let mut pair = Pair::new(&manner);
        pair.sides[1].parks = true;
        let (request, address) = pair.sides[0].ask(pair.now, 1, LARGE, Into::Slab);
        let (side, now) = (&mut pair.sides[0], pair.now);
        side.session.outbox().set_traits(side.link.as_ref().expect("it stands").traits());
        side.session.fill(now, false);
        side.session.cancel(request).expect("it stands");
        pair.turn(0).expect("a healthy link");
        let other = pair.sides[0].slab.allocate(LARGE).expect("room");
        assert_ne!(other.as_ptr() as usize, address, "the peer was told to write there");
        pair.run(|pair| pair.sides[1].parked.is_empty());
        drop(other);
        pair.run(|pair| pair.sides[0].slab.in_use_bytes() == 0);
        goes_on(pair);
    }
}

#[test]
fn an_answer_that_has_begun_lands_in_memory_that_is_nobody_elses() {
    for expires in [false, true] {
        for manner in manners() {
            let mut pair = Pair::new(&manner);
            pair.sides[1].parks = true;
            let (request, address) = pair.sides[0].ask(pair.now, 1, LARGE, Into::Slab);
            pair.run(|pair| !pair.sides[1].parked.is_empty());
            pair.fabric.pause();
            pair.sides[1].answer_parked();
            pair.turn(1).expect("a healthy link");
            give_up(&mut pair, request, expires);
            // The frame and the write cross the word that the place is gone.
            for _ in 0..3 {
                pair.turn(0).expect("a healthy link");
                pair.turn(1).expect("a healthy link");
            }
            let block = pair.sides[0].slab.allocate(LARGE).expect("room");
            assert_ne!(block.as_ptr() as usize, address, "it is not given to another");
            pair.fabric.resume();
            pair.run(|pair| !pair.sides[1].home.is_empty());
            assert_eq!(pair.sides[1].home, [(1, false)], "nobody has it");
            assert!(block.iter().all(|byte| *byte == 0), "nothing was written to what is another's");
            drop(block);
            pair.run(|pair| pair.sides[0].slab.in_use_bytes() == 0);
            goes_on(pair);
        }
    }
}

/// For each request, at every step of the fabric: whenever the request is given up, its memory comes back and the link goes on.
#[test]
fn a_request_may_be_given_up_at_every_step() {
    for manner in manners() {
        for steps in 0..40 {
            let mut pair = Pair::new(&manner);
            let (request, _) = pair.sides[0].ask(pair.now, 1, LARGE, Into::Slab);
            pair.fabric.pause();
            for _ in 0..steps {
                let moved = pair.fabric.step();
                for side in 0..2 {
                    pair.turn(side).expect("a healthy link");
                }
                if !moved && pair.sides[0].is_quiet() {
                    break;
                }
            }
            // Given up before it is sent, its memory comes back at once.
            pair.sides[0].session.cancel(request);
            pair.fabric.resume();
            pair.settle();
            pair.run(|pair| pair.sides[0].slab.in_use_bytes() == 0);
            goes_on(pair);
        }
    }
}

#[test]
fn a_small_answer_leaves_its_place_unused_and_closed() {
    for manner in manners() {
        let mut pair = Pair::new(&manner);
        for number in 0..1000 {
            // The destination is far larger than the tensor.
            pair.sides[0].ask_with_room(pair.now, number, (100, LARGE), Into::Slab);
            pair.settle();
        }
        assert_eq!(pair.sides[0].fates.len(), 1000);
        assert!(pair.counters(0).windows <= 10, "windows are used again: {:?}", pair.counters(0));
        goes_on(pair);
    }
}

#[test]
fn more_requests_than_windows_are_announced_as_far_as_there_are_some() {
    let mut pair = Pair::new(&Manner::default());
    pair.sides[1].parks = true;
    let count = 2 * WINDOWS_MAX as u32;
    for number in 0..count {
        pair.sides[0].ask(pair.now, number, 10_000, Into::Heap);
    }
    pair.run(|pair| pair.sides[1].parked.len() == count as usize);
    assert!(pair.counters(0).windows > 0 && pair.counters(0).windows <= WINDOWS_MAX as u64);
    pair.sides[1].answer_parked();
    pair.settle();
    assert!((0..count).all(|number| matches!(pair.fate(0, number), Fate::Arrived { bytes: 10_000, .. })));
    assert!(pair.counters(0).windows <= WINDOWS_MAX as u64);
    goes_on(pair);
}

#[test]
fn a_link_that_ends_gives_announced_memory_back_to_its_request() {
    for manner in manners() {
        let mut pair = Pair::new(&manner);
        pair.sides[1].parks = true;
        let (_, address) = pair.sides[0].ask(pair.now, 1, LARGE, Into::Heap);
        let (cancelled, _) = pair.sides[0].ask(pair.now, 2, LARGE, Into::Slab);
        pair.run(|pair| pair.sides[1].parked.len() == 2);
        give_up(&mut pair, cancelled, false);
        pair.lose();
        assert_eq!(pair.sides[0].slab.in_use_bytes(), 0, "nobody reaches it any more");
        pair.sides[1].parks = false;
        pair.connect();
        pair.settle();
        assert_eq!(*pair.fate(0, 1), Fate::Arrived { bytes: LARGE, address });
        goes_on(pair);
    }
}

fn give_up(pair: &mut Pair, request: crate::Handle, expires: bool) {
    if expires {
        pair.now += Duration::from_secs(61);
        for side in &mut pair.sides {
            side.session.heard(pair.now);
        }
        pair.sides[0].session.handle_timeout(pair.now).expect("heard of just now");
        pair.sides[0].handle_events();
        assert!(pair.sides[0].fates.iter().any(|(_, fate)| *fate == Fate::Ended(Code::DeadlineExceeded)));
    } else {
        let (_, destination) = pair.sides[0].session.cancel(request).expect("it waits");
        assert!(destination.is_none(), "nobody gets announced memory back");
    }
}

/// Checks that the link still works.
fn goes_on(mut pair: Pair) {
    for side in &mut pair.sides {
        side.parks = false;
    }
    pair.settle();
    pair.sides[0].ask(pair.now, 5000, LARGE, Into::Slab);
    pair.sides[1].ask(pair.now, 5001, LARGE, Into::Anywhere);
    pair.settle();
    assert!(matches!(pair.fate(0, 5000), Fate::Arrived { .. }) && matches!(pair.fate(1, 5001), Fate::Arrived { .. }));
    pair.check();
}
