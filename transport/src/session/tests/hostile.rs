//! A peer that breaks the protocol or floods: this leads to a typed error or meets a limit.

use std::sync::Arc;

use super::*;
use crate::error::Code;
use crate::if_gone::IfGone;
use crate::limits::{CONTROL_QUEUE_MAX, RELEASE_LOG_MAX, SessionLimits};
use crate::pull_buffer::{Keys, PullBuffer};
use crate::session::{Event as Told, PullParams, PushParams};
use crate::tensor::{DType, TensorMeta};
use crate::wire::{Abort, Part, PushFailure, PushFrame, PushGrant, PushOpen, Request, Response};

fn request(number: u64) -> Request<'static> {
    Request {
        id: Handle::from_bits(1 << 32 | number),
        step: 1,
        timeout_ms: 9,
        consumer: 0,
        producer: 0,
        if_gone: IfGone::Waits,
        key: "w",
    }
}

#[test]
fn numbers_that_cannot_be_end_the_link_and_are_named() {
    let abort = Abort { step: 1, task: 4, reason: "" };
    let cases = [
        (frames(|w| w.request(&Request { consumer: 1, ..request(0) })), "request's consumer is 1"),
        (frames(|w| w.request(&Request { producer: 1, ..request(0) })), "request's producer is 1"),
        (frames(|w| w.release(5, [(Handle::from_bits(0), true)].into_iter())), "release number is 5"),
        (frames(|w| w.released(1)), "acknowledged release number is 1"),
        (frames(|w| w.abort(&abort)), "abort's task is 4"),
        (vec![0; 16], "unknown frame kind 0"),
    ];
    for (bytes, message) in cases {
        let error = End::new().hear(&bytes).unwrap_err();
        assert_eq!(error.to_string(), message);
    }
}

#[test]
fn a_push_that_is_not_the_next_ends_the_link_up_to_the_last_number_there_is() {
    let (stream, meta) = (Handle::from_bits(1 << 32), TensorMeta::new(DType::U8, &[3]).unwrap());
    for number in [1, 2, u64::MAX - 1, u64::MAX] {
        let bytes = frames(|w| {
            w.push_open(&PushOpen { stream, first: 0, from: 0, to: 0, queue: "q" });
            let mut pushes = w.pushes(stream, number);
            (0..2).for_each(|_| pushes.push(meta.as_wire(), (&[7; 3]).into()));
            pushes.end();
        });
        let error = End::new().hear(&bytes).unwrap_err();
        assert_eq!(error.to_string(), format!("number of a push is {number}"));
    }
}

#[test]
fn whoever_says_again_and_again_that_nobody_accepts_is_sent_the_rest_when_somebody_does() {
    let mut pushing = End::new();
    let stream = pushing.session.stream(0, PEER_TASK, "queue").unwrap();
    for pending in ["a", "b", "c", "d", "e"] {
        let (meta, payload) = (TensorMeta::new(DType::U8, &[3]).unwrap().into_wire(), pattern(3).into());
        let deadline = pushing.now + Duration::from_secs(60);
        let push = PushParams { stream, meta, payload, deadline, pending };
        pushing.session.push(pushing.now, push).map_err(|(error, _)| error).unwrap();
    }
    pushing.speak();
    let mut sent = Vec::new();
    for taken in 0..5 {
        for _ in 0..3 {
            let code = Code::Unavailable as u8;
            let nobody = frames(|w| w.push_failure(&PushFailure { stream, number: taken, code, reason: "" }));
            pushing.hear(&nobody).unwrap();
            assert!(words(&pushing.speak()).iter().all(|word| !word.contains("Push")), "nobody accepts");
        }
        let grant = PushGrant { stream, taken, messages: taken + 2, bytes: 1 << 20 };
        pushing.hear(&frames(|w| w.push_grant(&grant))).unwrap();
        let said = pushing.speak();
        let Ok(Some((Frame::Push(PushFrame::Pushes(pushes)), _))) = parse(&said) else { panic!("{:?}", words(&said)) };
        sent.push((pushes.first, pushes.records.iter().count()));
    }
    assert_eq!(sent, [(0, 2), (1, 2), (2, 2), (3, 2), (4, 1)]);
    pushing.hear(&frames(|w| w.push_grant(&PushGrant { stream, taken: 5, messages: 5, bytes: 1 << 20 }))).unwrap();
    let mut ended: Vec<_> = std::iter::from_fn(|| pushing.session.poll_event()).collect();
    ended.retain(|event| matches!(event, Told::PushEnded { outcome: Ok(()), count: 1, .. }));
    assert_eq!(ended.len(), 5);
}

#[test]
fn a_tensor_of_a_pull_comes_once_and_what_nobody_pulls_is_not_counted() {
    let large = 50_000;
    let pulling = || {
        let mut pulling = End::new();
        let keys = Keys::new(["none", "large", "kept back"]).unwrap();
        let set = pulling.session.add_set(0, PEER_TASK, Arc::new(keys)).unwrap();
        let (deadline, pull_buffer) = (pulling.now + Duration::from_secs(60), PullBuffer::new(3));
        let params = PullParams { set, min_version: 0, deadline, fail_if_gone: false, pull_buffer, waiter: 1 };
        let id = pulling.session.pull(pulling.now, params).map_err(|(error, ..)| error).unwrap();
        pulling.speak();
        let metas = frames(|w| {
            let mut metas = w.metas(set);
            for (index, bytes) in [(0, 0), (1, large)] {
                metas.push(index, TensorMeta::new(DType::U8, &[bytes]).unwrap().as_wire(), bytes);
            }
            metas.end();
        });
        pulling.hear(&metas).unwrap();
        (pulling, id)
    };
    let small = |id, count| {
        frames(|w| {
            let mut parts = w.parts(id, 1, 0);
            parts.push(count, (&[]).into());
            parts.end();
        })
    };
    let part = |id| {
        let part = Part { id, version: 1, payload_bytes: large, transfer: 0, index: 1 };
        [frames(|w| w.part(&part)), pattern(large as usize)].concat()
    };
    for index in [0, 1] {
        let (mut pulling, id) = pulling();
        pulling.hear(&small(Handle::from_bits(9 << 32), u32::MAX)).unwrap();
        assert_eq!(pulling.session.received().tensors, 0);
        let bytes = if index == 0 { small(id, 1) } else { part(id) };
        pulling.hear(&bytes).unwrap();
        let error = pulling.hear(&bytes).unwrap_err();
        assert_eq!(error.to_string(), format!("number of a tensor that has come is {index}"));
    }
}

#[test]
fn handles_that_name_nothing_change_nothing() {
    let mut pair = Pair::new();
    let id = pair.asked("w", 1);
    pair.answering.answer(id, pattern(10), "w");
    for bits in [0, 1, u64::MAX, 2 << 32, 1 << 32 | 77, u64::MAX >> 1] {
        let unknown = Handle::from_bits(bits);
        let to_consumer = frames(|w| {
            w.parked(unknown, 0);
            w.failure(&crate::wire::Failure { id: unknown, code: 14, reason: "x" });
        });
        pair.asking.hear(&to_consumer).unwrap();
        let before = pair.answering.session.producer.release_seen();
        pair.answering.hear(&frames(|w| w.release(before, [(unknown, true)].into_iter()))).unwrap();
        pair.answering.hear(&frames(|w| w.cancel(unknown))).unwrap();
        assert!(matches!(pair.answering.events()[..], [Event::Cancelled(_)]));
    }
    assert_eq!((pair.asking.session.requests(), pair.answering.session.unreleased()), (1, 1));
}

#[test]
fn an_answer_to_nobody_is_read_and_sent_back() {
    let mut asking = End::new();
    let (id, token) = (Handle::from_bits(8 << 32), Handle::from_bits(3 << 32));
    let mut bytes = frames(|w| w.response(&Response { id, token, payload_bytes: 50_000, transfer: 0, meta: b"m" }));
    bytes.extend(pattern(50_000));
    bytes.extend(frames(|w| w.ping(1)));
    for piece in bytes.chunks(7_001) {
        asking.hear(piece).unwrap();
    }
    assert!(asking.session.poll_event().is_none());
    assert_eq!(asking.slab.in_use_bytes(), 0);
    assert_eq!(words(&asking.speak()), ["release 0+1", "pong", "resumed"]);
}

#[test]
fn a_second_answer_to_the_same_request_is_sent_back() {
    let mut asking = End::new();
    let id = asking.ask("w", 1);
    for token in [3 << 32, 4 << 32] {
        let response = Response { id, token: Handle::from_bits(token), payload_bytes: 2, transfer: 0, meta: &[] };
        let bytes = [frames(|w| w.response(&response)), vec![7, 7]].concat();
        asking.hear(&bytes).unwrap();
    }
    assert_eq!(asking.answers(), [(1, Ok(vec![7, 7]))]);
    let said = asking.speak();
    let Ok(Some((Frame::Release(release), _))) = parse(&said) else { panic!("no release") };
    let entries: Vec<_> = release.entries.iter().collect();
    assert_eq!(entries, [(Handle::from_bits(3 << 32), true), (Handle::from_bits(4 << 32), false)]);
}

#[test]
fn an_announced_size_beyond_all_memory_allocates_nothing() {
    let limits = SessionLimits { tensor_bytes_max: u64::MAX, ..SessionLimits::default() };
    for mut asking in [End::new(), End::with(limits)] {
        let id = asking.ask("w", 1);
        let token = Handle::from_bits(1 << 32);
        asking
            .hear(&frames(|w| w.response(&Response { id, token, payload_bytes: u64::MAX, transfer: 0, meta: &[] })))
            .unwrap();
        assert!(matches!(&asking.answers()[..], [(1, Err(_))]));
        asking.hear(&[0; 1000]).unwrap();
        assert_eq!(asking.slab.in_use_bytes(), 0);
        asking.lose_link();
        assert!(!asking.session.wants_link(), "what never arrived needs no release");
    }
}

#[test]
fn a_flood_of_pings_costs_one_pong() {
    let mut session = End::new();
    let pings = frames(|w| (0..10_000).for_each(|nonce| w.ping(nonce)));
    session.hear(&pings).unwrap();
    assert!(session.session.can_receive());
    let said = session.speak();
    assert_eq!(words(&said), ["pong", "resumed"]);
    assert!(matches!(parse(&said), Ok(Some((Frame::Pong { nonce: 9_999 }, _)))), "the latest");
}

#[test]
fn a_peer_that_asks_and_never_reads_is_no_longer_read_from() {
    let limits = SessionLimits { parked_requests_max: 10, ..SessionLimits::default() };
    let mut session = End::with(limits);
    let mut heard = 0;
    while session.session.can_receive() {
        session.hear(&frames(|w| w.request(&request(heard)))).unwrap();
        session.asked().into_iter().for_each(|(asked, _)| session.session.park(asked.id));
        heard += 1;
        assert!(heard <= CONTROL_QUEUE_MAX as u64, "the control queue is bounded");
    }
    // Once the link takes frames again, so does the session.
    session.session.fill(session.now, false);
    assert!(session.session.can_receive());
    let said = words(&session.speak());
    assert_eq!(said.iter().filter(|word| *word == "parked").count(), 10);
    assert_eq!(said.iter().filter(|word| *word == "failure 8").count() as u64, heard - 10);
}

#[test]
fn after_its_farewell_a_peer_is_asked_for_nothing_until_the_next_link() {
    let mut pair = Pair::new();
    pair.answering.session.go_away("maintenance");
    let farewell = pair.answering.speak();
    assert_eq!(words(&farewell), ["resumed", "go away"]);
    pair.asking.ask("queued", 1);
    pair.asking.hear(&farewell).unwrap();
    assert_eq!(pair.asking.session.farewell(), Some("maintenance"));
    let params = pair.asking.wanting("w", 2);
    let (unanswered, waiter) = pair.asking.session.request(pair.asking.now, params).unwrap_err();
    assert_eq!(unanswered.error.to_string(), "10.0.0.2:7000 is unavailable: maintenance");
    assert_eq!(waiter, 2);
    assert_eq!(words(&pair.asking.speak()), ["resumed"], "what was queued waits too");
    assert!(!pair.asking.session.has_output());

    pair.asking.lose_link();
    pair.answering.lose_link();
    assert_eq!(pair.asking.session.farewell(), None);
    pair.asking.ask("for the next one", 3);
    assert!(pair.asking.session.wants_link());
    pair.asking.attach();
    assert_eq!(words(&pair.asking.speak()), ["request queued", "request for the next one", "resumed"]);
    pair.answering.session.go_away("nobody hears it");
    assert!(!pair.answering.session.has_output());
}

#[test]
fn answers_without_end_to_what_was_not_asked_end_the_link() {
    let mut asking = End::new();
    let response = |number: u64| Response {
        id: Handle::from_bits(8 << 32),
        token: Handle::from_bits(1 << 32 | number),
        payload_bytes: 0,
        transfer: 0,
        meta: &[],
    };
    let mut heard = 0;
    let error = loop {
        let flood = frames(|w| (0..256).for_each(|number| w.response(&response(number))));
        match asking.hear(&flood) {
            Ok(()) => heard += 256,
            Err(error) => break error,
        }
    };
    assert!(error.to_string().contains("answer past all requests"), "{error}");
    assert!(heard <= RELEASE_LOG_MAX + SessionLimits::default().queued_requests_max, "{heard}");
}

#[test]
fn a_set_that_is_swapped_under_a_pull_harms_nobody() {
    let id = Handle::from_bits(1 << 32 | 5);
    let name = |keys: &'static [&'static str]| {
        frames(|w| {
            w.key_set(id, (0, 0), (keys.len() as u32, 0), keys.iter().copied());
        })
    };
    let pull = crate::wire::Pull {
        id: Handle::from_bits(1 << 32 | 6),
        set: id,
        min_version: 0,
        timeout_ms: 9,
        fail_if_gone: false,
    };
    let mut end = End::new();
    end.hear(&name(&["a", "b", "c"])).unwrap();
    let found = |end: &mut End, slots: Vec<u32>| match end.session.poll_event() {
        Some(crate::session::Event::Named(named)) => end.session.set_found(named.set, named.serial, slots),
        other => panic!("no set was named: {other:?}"),
    };
    found(&mut end, vec![0, 1, 2]).unwrap();
    end.hear(&frames(|w| w.pull(&pull))).unwrap();
    end.speak();
    let mut waits = Vec::new();
    end.session.take_waits(&mut waits);
    assert_eq!(waits.len(), 3);
    end.hear(&frames(|w| w.forget_set(id))).unwrap();
    assert!(matches!(end.session.poll_event(), Some(crate::session::Event::Forgotten { .. })));
    end.hear(&name(&["a"])).unwrap();
    found(&mut end, vec![0]).unwrap();
    end.session.pull_ready(waits[2].pull, waits[2].index);
    end.speak();
    assert!(!end.session.is_serving(waits[2].pull), "its set is no more");
    assert!(end.hear(&name(&["b"])).is_err(), "a set is named once");
}

#[test]
fn a_pull_of_half_a_set_is_refused() {
    let id = Handle::from_bits(1 << 32 | 5);
    let pull = crate::wire::Pull {
        id: Handle::from_bits(1 << 32 | 6),
        set: id,
        min_version: 0,
        timeout_ms: 9,
        fail_if_gone: false,
    };
    let mut end = End::new();
    let half = frames(|w| {
        w.key_set(id, (0, 0), (9, 0), ["a", "b"].into_iter());
    });
    end.hear(&half).unwrap();
    end.hear(&frames(|w| w.pull(&pull))).unwrap();
    let said = words(&end.speak()).join(" ");
    assert!(said.contains("keys are incomplete"), "{said}");
    assert!(!end.session.is_urgent(), "nothing of it keeps the shard awake");
}
