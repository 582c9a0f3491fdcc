//! The answering half: a tensor is kept until its release, and no limit on kept tensors is exceeded.

use super::*;
use crate::error::Error;
use crate::limits::{OUTBOX_PAYLOADS, RELEASE_ACK_EVERY, RELEASE_LOG_MAX};

#[test]
fn a_release_that_comes_while_the_link_holds_the_payload_waits_for_it() {
    let mut pair = Pair::new();
    let id = pair.asked("w", 1);
    pair.answering.answer(id, pattern(100_000), "w");
    pair.answering.session.fill(pair.answering.now, false);
    // A peer may give up a tensor of which it has received only a part.
    let early = frames(|w| w.release(0, [(Handle::from_bits(1 << 32), false)].into_iter()));
    pair.answering.hear(&early).unwrap();
    assert!(pair.answering.session.poll_event().is_none());
    pair.answering.speak();
    assert_eq!(pair.answering.released(), [("w", 100_000, false)]);
}

#[test]
fn releases_leave_together_and_without_hurry() {
    let mut pair = Pair::new();
    (0..3).for_each(|number| _ = pair.asking.ask("w", number));
    pair.talk();
    for (request, _) in pair.answering.asked() {
        pair.answering.answer(request.id, vec![1], "w");
    }
    let bytes = pair.answering.speak();
    pair.asking.hear(&bytes).unwrap();
    assert_eq!(pair.asking.answers().len(), 3);
    assert!(pair.asking.session.has_output() && !pair.asking.session.is_urgent());
    pair.asking.ask("next", 9);
    assert!(pair.asking.session.is_urgent());
    assert_eq!(words(&pair.asking.speak()), ["release 0+3", "request next"]);
}

#[test]
fn acknowledgements_keep_the_release_log_short() {
    let mut pair = Pair::new();
    for round in 1..=2 * RELEASE_ACK_EVERY {
        let id = pair.asked("w", 1);
        pair.answering.answer(id, vec![1], "w");
        pair.talk();
        assert_eq!((pair.asking.answers().len(), pair.answering.released().len()), (1, 1));
        assert_eq!(pair.asking.session.consumer.has_releases(), round % RELEASE_ACK_EVERY != 0);
    }
    pair.nothing_is_left();
}

#[test]
fn without_acknowledgements_nothing_more_is_asked() {
    let mut asking = End::new();
    asking.ask("held", 1);
    asking.speak();
    // Answers that nobody waits for: each must be released, and this peer never acknowledges.
    let nobody = frames(|w| {
        for number in 1..=RELEASE_LOG_MAX as u64 {
            let (id, token) = (Handle::from_bits(99 << 32), Handle::from_bits(1 << 32 | number));
            w.response(&crate::wire::Response { id, token, payload_bytes: 0, transfer: 0, meta: &[] });
        }
    });
    asking.hear(&nobody).unwrap();
    asking.ask("w", 2);
    let said = words(&asking.speak());
    assert!(said.iter().all(|word| word.starts_with("release")), "no request among {} frames", said.len());
    asking.hear(&frames(|w| w.released(1))).unwrap();
    assert_eq!(words(&asking.speak()), ["request w"]);
}

#[test]
fn an_answer_over_a_limit_comes_back_to_its_owner() {
    let few = SessionLimits { parked_requests_max: 3, ..SessionLimits::default() };
    let small = SessionLimits { tensor_bytes_max: 100, ..SessionLimits::default() };
    let mut pair = Pair { asking: End::with(small), answering: End::with(few) };
    pair.answering.lose_link();
    pair.answering.session.attach(pair.answering.now, 2, Roster { numbers: vec![PEER_TASK] }, 100);
    (0..4).for_each(|number| _ = pair.asking.ask("w", number));
    pair.talk();
    let ids: Vec<_> = pair.answering.asked().iter().map(|(request, _)| request.id).collect();
    assert_eq!(ids.len(), 3, "the fourth is refused before its owner hears of it");
    let (meta, payload, pending) =
        pair.answering.session.respond(ids[0], Meta::from_slice(b"m"), vec![0; 101].into(), "large").unwrap_err();
    assert_eq!((&meta[..], payload.len(), pending), (&b"m"[..], 101, "large"));
    pair.answering.answer(ids[1], vec![0; 100], "fits");
    let nobody = Handle::from_bits(77 << 32);
    (0..2).for_each(|_| pair.answering.answer(nobody, vec![0; 1], "unwanted"));
    let refused = pair.answering.session.respond(ids[2], Meta::new(), vec![0; 3].into(), "fourth");
    assert_eq!(refused.unwrap_err().2, "fourth");
    pair.talk();
    let answers = pair.asking.answers();
    let text = |at: usize| answers[at].1.clone().unwrap_err();
    assert!(text(0).ends_with("fusion.parked_requests_max is full: 3 requests of this peer are parked or unreleased"));
    let too_large = "transport.tensor_bytes_max is full: the tensor has 101 bytes, the consumer accepts 100";
    assert!(text(1).ends_with(too_large));
    assert!(text(2).ends_with("fusion.parked_requests_max is full: 3 tensors are unreleased"), "{}", text(2));
    assert_eq!(answers[3], (1, Ok(vec![0; 100])), "refusals are short, and overtake tensors");
    assert_eq!(pair.answering.released(), [("fits", 100, true), ("unwanted", 1, false), ("unwanted", 1, false)]);
    pair.nothing_is_left();
}

#[test]
fn the_outbox_takes_a_bounded_number_of_payloads_at_once() {
    let mut answering = End::new();
    let shared = bytes::Bytes::from(pattern(10_000));
    for number in 0..2 * OUTBOX_PAYLOADS as u64 {
        answering.answer(Handle::from_bits(1 << 32 | number), shared.clone(), "w");
    }
    assert!(answering.session.fill(answering.now, false));
    assert!(answering.session.outbox().is_full());
    assert!(answering.session.outbox().pending_bytes() < (OUTBOX_PAYLOADS + 1) * (10_000 + 100));
    assert_eq!(words(&answering.speak()).len(), 2 * OUTBOX_PAYLOADS + 1);
}

/// For example, its process was stopped beyond the deadline, and the peer waited a second longer.
#[test]
fn a_request_that_the_peer_gives_up_after_its_deadline_ends_with_the_deadline() {
    let mut pair = Pair::new();
    let id = pair.asked("w", 1);
    pair.answering.session.refuse(id, &Error::Aborted { step: 0, reason: "nobody took it back".into() });
    let bytes = pair.answering.speak();
    pair.asking.now += Duration::from_secs(61);
    pair.asking.hear(&bytes).unwrap();
    let answers = pair.asking.answers();
    let [(1, Err(said))] = &answers[..] else { panic!("{answers:?}") };
    assert!(said.contains("recv of step 1 key 'w'"), "{said}");
}
