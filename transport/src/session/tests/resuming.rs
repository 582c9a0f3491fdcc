//! A link fails and is replaced: every tensor arrives once, every release counts once.

use super::*;
use crate::error::{Code, Error};
use crate::limits::RELEASE_ACK_EVERY;

const BYTES: usize = 100_000;

/// One request, answered with a tensor of [`BYTES`]; returns what the answering side then sends.
fn answered(pair: &mut Pair, destination: Option<Buffer>) -> Vec<u8> {
    let params = RequestParams { destination: destination.map(Into::into), ..pair.asking.wanting("w", 1) };
    pair.asking.session.request(pair.asking.now, params).unwrap();
    pair.talk();
    let id = pair.answering.asked_one();
    pair.answering.answer(id, pattern(BYTES), "w");
    pair.answering.speak()
}

#[test]
fn a_tensor_that_was_taken_is_not_sent_again_although_its_release_was_lost() {
    let mut pair = Pair::new();
    let bytes = answered(&mut pair, None);
    pair.asking.hear(&bytes).unwrap();
    assert_eq!(pair.asking.answers().len(), 1);
    assert_eq!(words(&pair.asking.speak()), ["release 0+1"], "and nobody hears it");
    pair.new_link();
    assert_eq!(words(&pair.asking.speak()), ["release 0+1", "resumed"]);
    pair.new_link();
    pair.talk();
    assert!(pair.asking.session.poll_event().is_none());
    assert_eq!(pair.answering.released(), [("w", BYTES, true)]);
    pair.nothing_is_left();
}

#[test]
fn many_short_links_do_not_grow_the_release_log() {
    let mut pair = Pair::new();
    for _ in 0..2 * RELEASE_ACK_EVERY {
        let id = pair.asked("w", 1);
        pair.answering.answer(id, vec![1], "w");
        pair.talk();
        assert_eq!((pair.asking.answers().len(), pair.answering.released().len()), (1, 1));
        pair.new_link();
        let again = pair.asking.speak();
        assert!(words(&again).len() <= 2 && again.len() <= 16 + 2 * 8 + 16, "{:?}", words(&again));
        pair.answering.hear(&again).unwrap();
        pair.talk();
    }
}

#[test]
fn memory_that_was_brought_survives_the_link_and_the_slabs_goes_back() {
    let gone = Error::unavailable("p", "gone");
    for brought in [Some(heap(BYTES)), None] {
        let room = brought.as_ref().map(|buffer| buffer.len());
        let mut pair = Pair::new();
        let bytes = answered(&mut pair, brought);
        pair.asking.hear(&bytes[..BYTES / 2]).unwrap();
        pair.asking.lose_link();
        assert_eq!(pair.asking.slab.in_use_bytes(), 0, "a request that waits for a link holds no slab memory");
        pair.asking.session.end_all_requests(&gone);
        let [Event::RequestEnded { outcome: Err(unanswered), .. }] = &pair.asking.events()[..] else {
            panic!("an answer")
        };
        assert_eq!(unanswered.destination.as_ref().map(|buffer| buffer.len()), room);
    }
}

#[test]
fn tensors_of_requests_that_the_window_holds_back_return_and_are_asked_for_later() {
    let mut pair = Pair::new();
    (0..42).for_each(|number| _ = pair.asking.ask("w", number));
    pair.talk();
    let first = pair.answering.asked();
    first.iter().for_each(|(request, _)| pair.answering.session.park(request.id));
    pair.talk();
    let second = pair.answering.asked();
    for (request, _) in first.iter().chain(&second) {
        pair.answering.answer(request.id, pattern(9_000), "w");
    }
    pair.answering.speak();
    pair.new_link();
    pair.talk();
    let events = pair.answering.events();
    let taken = |yes| events.iter().filter(|e| matches!(e, Event::Released { taken, .. } if *taken == yes)).count();
    let asked: Vec<_> = events
        .iter()
        .filter_map(|event| if let Event::Requested(asked) = event { Some(asked.id) } else { None })
        .collect();
    assert_eq!((taken(true), taken(false), asked.len()), (40, 2, 2), "taken, returned, asked as new");
    asked.into_iter().for_each(|id| pair.answering.answer(id, pattern(9_000), "w"));
    pair.talk();
    assert_eq!(pair.asking.answers().len(), 42);
    assert_eq!(pair.answering.released(), [("w", 9_000, true); 2]);
    pair.nothing_is_left();
}

#[test]
fn a_restarted_peer_ends_what_it_was_asked_and_nothing_else() {
    let mut pair = Pair::new();
    let bytes = answered(&mut pair, None);
    pair.asking.hear(&bytes[..BYTES / 2]).unwrap();
    pair.asking.lose_link();
    pair.asking.ask("never sent", 2);
    let restarted = Error::unavailable("p", "it restarted");
    pair.asking.session.reset(&restarted);
    assert_eq!(pair.asking.answers(), [(1, Err("p is unavailable: it restarted".into()))]);
    assert_eq!((pair.asking.session.requests(), pair.asking.session.epoch()), (1, 0));
    assert!(pair.asking.session.wants_link());

    pair.answering.lose_link();
    pair.answering.session.reset(&restarted);
    assert_eq!(pair.answering.released(), [("w", BYTES, false)]);
    assert!(!pair.answering.session.wants_link());

    pair.asking.attach();
    pair.answering.attach();
    pair.talk();
    let id = pair.answering.asked_one();
    pair.answering.answer(id, vec![6], "never sent");
    pair.talk();
    assert_eq!(pair.asking.answers(), [(2, Ok(vec![6]))]);
    assert_eq!(pair.answering.released(), [("never sent", 1, true)], "release numbers begin anew on both sides");
    pair.nothing_is_left();
}

#[test]
fn requests_for_a_task_that_the_peer_no_longer_serves_end() {
    let mut asking = End::new();
    asking.ask("w", 1);
    asking.lose_link();
    asking.session.attach(asking.now, 2, Roster { numbers: vec![PEER_TASK + 1] }, 1 << 20);
    let [Event::RequestEnded { waiter: 1, outcome: Err(unanswered) }] = &asking.events()[..] else {
        panic!("no answer")
    };
    assert_eq!(unanswered.error.code(), Code::NotFound);
    assert_eq!(words(&asking.speak()), ["resumed"]);
}

#[test]
fn requests_move_to_another_session_with_all_that_they_brought() {
    let mut asking = End::new();
    asking.lose_link();
    asking.ask("stays", 1);
    let moves = RequestParams { consumer: 3, destination: Some(heap(5).into()), ..asking.wanting("moves", 2) };
    asking.session.request(asking.now, moves).unwrap();
    let mut moved = Vec::new();
    asking.session.take_requests(
        |consumer, producer| consumer == 3 && producer == PEER_TASK,
        |_, params, _, _| {
            moved.push((
                params.key.to_owned(),
                params.waiter,
                params.destination.map(|buffer| buffer.len()),
                params.deadline,
            ))
        },
    );
    assert_eq!(moved, [("moves".into(), 2, Some(5), asking.now + Duration::from_secs(60))]);
    asking.attach();
    assert_eq!(words(&asking.speak()), ["request stays", "resumed"]);
}
