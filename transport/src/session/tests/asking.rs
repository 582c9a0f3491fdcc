//! The asking half: window, deadlines, cancels, and where a tensor lands.

use std::time::Duration;

use super::*;
use crate::error::{Code, Error, Operation};
use crate::limits::KEY_BYTES_MAX;
use crate::tensor::{DType, TensorMeta};
use crate::{Destination, Unreceived};

fn refusal(outcome: Result<Handle, (Unreceived, u32)>) -> (Error, Option<usize>, u32) {
    let (unanswered, waiter) = outcome.expect_err("refused");
    (unanswered.error, unanswered.destination.map(|buffer| buffer.len()), waiter)
}

#[test]
fn the_window_holds_back_and_parked_requests_do_not_count() {
    let mut pair = Pair::new();
    (0..43).for_each(|number| _ = pair.asking.ask(&format!("w{number}"), number));
    pair.talk();
    let asked = pair.answering.asked();
    let keys: Vec<_> = asked.iter().map(|(_, key)| key.as_str()).collect();
    assert_eq!((keys.len(), keys[0], keys[39]), (40, "w0", "w39"));
    assert_eq!((asked[0].0.consumer, asked[0].0.producer, asked[0].0.step), (PEER_TASK, 0, 1));

    for (request, _) in &asked[..2] {
        pair.answering.session.park(request.id);
    }
    pair.talk();
    let next: Vec<_> = pair.answering.asked().into_iter().map(|(_, key)| key).collect();
    assert_eq!(next, ["w40", "w41"], "two are parked, so two more may be asked");

    pair.answering.session.unpark();
    pair.answering.answer(asked[0].0.id, vec![1], "parked");
    pair.talk();
    assert!(pair.answering.session.unreleased() == 0 && pair.asking.answers().len() == 1);
    assert_eq!(pair.answering.released(), [("parked", 1, true)], "a parked one left the window before, and frees none");
    pair.answering.answer(asked[5].0.id, vec![1], "asked");
    pair.talk();
    assert_eq!(pair.asking.answers(), [(5, Ok(vec![1]))]);
    let events = pair.answering.events();
    assert!(matches!(
        events[..],
        [Event::Released { .. }, Event::Requested(_)] | [Event::Requested(_), Event::Released { .. }]
    ));
}

#[test]
fn a_deadline_ends_the_request_and_tells_the_peer() {
    let mut pair = Pair::new();
    let destination = Some(heap(64).into());
    let params = RequestParams {
        deadline: pair.asking.now + Duration::from_secs(2),
        destination,
        ..pair.asking.wanting("late", 4)
    };
    pair.asking.session.request(pair.asking.now, params).unwrap();
    assert_eq!(pair.asking.session.next_timeout(), Some(pair.asking.now + Duration::from_secs(2)));
    pair.talk();
    let id = pair.answering.asked_one();
    pair.answering.session.park(id);
    pair.talk();

    pair.asking.now += Duration::from_millis(1999);
    pair.asking.session.handle_timeout(pair.asking.now).unwrap();
    assert!(pair.asking.session.poll_event().is_none());
    pair.asking.now += Duration::from_millis(1);
    pair.asking.session.handle_timeout(pair.asking.now).unwrap();
    let [Event::RequestEnded { waiter: 4, outcome: Err(unanswered) }] = &pair.asking.events()[..] else {
        panic!("no answer")
    };
    let late = "recv of step 1 key 'late' waited 2s and its deadline passed: 10.0.0.2:7000: connected, but nobody there has sent it";
    assert_eq!(unanswered.error.to_string(), late);
    assert_eq!(unanswered.destination.as_ref().map(|buffer| buffer.len()), Some(64));
    assert_eq!(pair.asking.session.requests(), 0);
    pair.talk();
    assert!(matches!(pair.answering.events()[..], [Event::Cancelled(withdrawn)] if withdrawn == id));
    pair.answering.session.unpark();
    pair.nothing_is_left();
}

#[test]
fn only_a_request_that_went_out_is_cancelled_at_the_peer() {
    let mut pair = Pair::new();
    let params = RequestParams { destination: Some(heap(9).into()), ..pair.asking.wanting("never sent", 1) };
    let queued = pair.asking.session.request(pair.asking.now, params).unwrap();
    let (waiter, destination) = pair.asking.session.cancel(queued).unwrap();
    assert_eq!((waiter, destination.unwrap().len()), (1, 9));
    assert_eq!(words(&pair.asking.speak()), ["resumed"]);

    let sent = pair.asking.ask("sent", 2);
    let request = pair.asking.speak();
    assert!(pair.asking.session.cancel(sent).is_some());
    assert!(pair.asking.session.cancel(sent).is_none(), "it has ended");
    let cancel = pair.asking.speak();
    assert_eq!((words(&request), words(&cancel)), (vec!["request sent".to_owned()], vec!["cancel".to_owned()]));

    // The answer crosses the cancel: it is read, nobody gets it, and it is released.
    pair.answering.hear(&request).unwrap();
    let id = pair.answering.asked_one();
    pair.answering.answer(id, vec![5; 10], "crossed");
    let answer = pair.answering.speak();
    pair.answering.hear(&cancel).unwrap();
    assert!(matches!(pair.answering.events()[..], [Event::Cancelled(withdrawn)] if withdrawn == id));
    pair.asking.hear(&answer).unwrap();
    pair.talk();
    assert_eq!(pair.answering.released(), [("crossed", 10, false)]);
    pair.nothing_is_left();
}

#[test]
fn requests_given_up_without_a_link_leave_nothing_behind() {
    let mut asking = End::new();
    asking.lose_link();
    for _ in 0..100_000 {
        let handle = asking.ask("w", 1);
        asking.session.cancel(handle).unwrap();
    }
    assert_eq!(asking.session.requests(), 0);
    assert!(asking.session.consumer.queue_length() < 1_000, "cancelled requests do not pile up in the queue");
    let kept = asking.ask("kept", 2);
    asking.attach();
    assert_eq!(words(&asking.speak()), ["request kept", "resumed"]);
    assert!(asking.session.cancel(kept).is_some());
}

#[test]
fn a_tensor_lands_in_the_destination_that_was_brought() {
    let mut pair = Pair::new();
    for (room, bytes) in [(8, 8), (100, 8), (100, 0), (100_000, 90_000)] {
        let params = RequestParams { destination: Some(heap(room).into()), ..pair.asking.wanting("w", 1) };
        pair.asking.session.request(pair.asking.now, params).unwrap();
        pair.talk();
        let id = pair.answering.asked_one();
        pair.answering.answer(id, pattern(bytes), "w");
        pair.talk();
        let [Event::RequestEnded { outcome: Ok(arrived), .. }] = &mut pair.asking.events()[..] else {
            panic!("no tensor")
        };
        assert_eq!((&arrived.buffer[..], &arrived.meta[..]), (&pattern(bytes)[..], &b"w"[..]));
        assert!(std::mem::take(&mut arrived.buffer).into_vec().is_ok(), "it is the heap buffer, not the slab's");
        assert_eq!(pair.answering.released().len(), 1);
    }
    pair.nothing_is_left();
}

#[test]
fn a_tensor_that_has_no_place_goes_back_and_the_error_says_why() {
    let limits = SessionLimits { tensor_bytes_max: 3 << 20, ..SessionLimits::default() };
    let mut pair = Pair { asking: End::with(limits), answering: End::new() };
    let held = pair.asking.slab.allocate(SLAB_BYTES - (1 << 20)).unwrap();
    let exact = TensorMeta::new(DType::F32, &[2]).unwrap();
    let cases = [
        (Some(heap(9).into()), 10, "the destination has 9 bytes, the tensor needs 10"),
        (Some(Destination::of(exact, heap(8))), 8, "the destination takes f32[2], the tensor has other metadata"),
        (None, 2 << 20, "runtime.slab_receive_bytes is full: the receive slab is full: 2097152 bytes were requested"),
        (None, 4 << 20, "transport.tensor_bytes_max is full: the tensor has 4194304 bytes, the limit is 3145728"),
    ];
    for (destination, bytes, message) in cases {
        let room = destination.as_ref().map(|destination: &Destination| destination.len());
        let params = RequestParams { destination, ..pair.asking.wanting("w", 1) };
        pair.asking.session.request(pair.asking.now, params).unwrap();
        pair.talk();
        let id = pair.answering.asked_one();
        pair.answering.answer(id, pattern(bytes), "w");
        pair.talk();
        let [Event::RequestEnded { outcome: Err(unanswered), .. }] = &pair.asking.events()[..] else {
            panic!("a tensor")
        };
        assert!(unanswered.error.to_string().starts_with(message), "{}", unanswered.error);
        assert_eq!(unanswered.destination.as_ref().map(|buffer| buffer.len()), room);
        assert_eq!(pair.answering.released(), [("w", bytes, false)]);
    }
    drop(held);
    pair.nothing_is_left();
}

#[test]
fn a_refusal_of_the_peer_reaches_the_waiter_with_its_code() {
    let mut pair = Pair::new();
    let deadline = Error::late(Operation::Send, 1, "w", Duration::ZERO, "");
    let cases = [
        (Error::Aborted { step: 1, reason: "loss is NaN".into() }, Code::Aborted, "step 1 was aborted: loss is NaN"),
        (Error::invalid("odd"), Code::InvalidArgument, "odd"),
        (Error::full("x", "y"), Code::ResourceExhausted, "a limit of the peer is full: x is full: y"),
        (deadline, Code::Aborted, "step 1 was aborted: send of step 1 key 'w' waited 0ns and its deadline passed"),
        (Error::unavailable("p", "gone"), Code::Unavailable, "10.0.0.2:7000 is unavailable: p is unavailable: gone"),
    ];
    for (error, code, text) in cases {
        let id = pair.asked("w", 3);
        pair.answering.session.refuse(id, &error);
        pair.talk();
        let [Event::RequestEnded { waiter: 3, outcome: Err(unanswered) }] = &pair.asking.events()[..] else {
            panic!("none")
        };
        assert_eq!((unanswered.error.code(), unanswered.error.to_string().as_str()), (code, text));
    }
    pair.nothing_is_left();
}

#[test]
fn requests_over_a_limit_come_back_at_once() {
    let mut asking = End::with(SessionLimits { queued_requests_max: 2, ..SessionLimits::default() });
    let long = "k".repeat(KEY_BYTES_MAX + 1);
    let params = RequestParams { destination: Some(heap(3).into()), ..asking.wanting(&long, 1) };
    let (error, room, waiter) = refusal(asking.session.request(asking.now, params));
    assert_eq!((error.code(), room, waiter), (Code::InvalidArgument, Some(3), 1));
    let params = RequestParams { producer: PEER_TASK + 1, ..asking.wanting("w", 2) };
    let (error, _, waiter) = refusal(asking.session.request(asking.now, params));
    assert_eq!((error.code(), waiter), (Code::NotFound, 2));

    asking.ask(&long[1..], 3);
    asking.ask("w", 4);
    let params = RequestParams { destination: Some(heap(3).into()), ..asking.wanting("w", 5) };
    let (error, room, waiter) = refusal(asking.session.request(asking.now, params));
    assert_eq!(
        error.to_string(),
        "fusion.queued_requests_max is full: 2 requests to 10.0.0.2:7000 are already waiting"
    );
    assert_eq!((room, waiter), (Some(3), 5));
}

#[test]
fn the_oldest_wait_is_told() {
    let mut asking = End::new();
    assert_eq!(asking.session.oldest_wait(asking.now), Duration::ZERO);
    asking.ask("w", 1);
    asking.now += Duration::from_secs(3);
    asking.ask("v", 2);
    assert_eq!(asking.session.oldest_wait(asking.now + Duration::from_secs(1)), Duration::from_secs(4));
}
