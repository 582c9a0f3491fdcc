//! Each hazard of the design, with a rule that keeps it harmless.

use super::*;
use crate::{
    channel::{
        producer::NOTES_MAX,
        record::{FIXED_WORDS, Kind},
    },
    ring::{Header, Writer, lines},
};

#[test]
fn tensors_of_a_dead_consumer_are_reclaimed_in_order() {
    let [mut producer, mut consumer] = pair::<8192>();
    let keys: Vec<String> = (0..5_000).map(|key| key.to_string()).collect();
    for (id, key) in (0..).zip(&keys) {
        send(&mut producer, (1, key), id, 64).unwrap();
        if id % 100 == 0 {
            drain(&mut consumer);
            drain(&mut producer);
        }
    }
    let taken = post(&mut consumer, 1, "7");
    assert_eq!(take(&mut consumer, taken), Some(7));
    consumer.close(Why::Closed);
    producer.close(Why::Gone);
    let left = producer.reclaim();
    let ids: Vec<u64> = left.iter().map(|tensor| u64::from_le_bytes(*tensor.payload.first_chunk().unwrap())).collect();
    assert!(ids.iter().copied().eq((0..5_000).filter(|id| *id != 7)), "what the dead one took is taken");
    assert!(left.iter().zip(keys.iter().filter(|key| *key != "7")).all(|(tensor, key)| tensor.key == key.as_bytes()));
}

#[test]
fn kept_tensor_of_a_dead_consumer_is_reclaimed() {
    let [mut producer, mut consumer] = pair::<1024>();
    send(&mut producer, (1, "old"), 0, 64).unwrap();
    // The ring is written several times over, so the old tensor is copied out.
    for id in 1..1_000 {
        let recv = post(&mut consumer, 1, "new");
        send(&mut producer, (1, "new"), id, 64).unwrap();
        drain(&mut consumer);
        assert_eq!(take(&mut consumer, recv), Some(id));
        drain(&mut producer);
    }
    send(&mut producer, (1, "last"), 1_000, 64).unwrap();
    consumer.close(Why::Closed);
    producer.close(Why::Gone);
    let left: Vec<(Vec<u8>, Vec<u8>)> =
        producer.reclaim().into_iter().map(|tensor| (tensor.key, tensor.payload)).collect();
    assert_eq!(left, [(b"old".to_vec(), payload(0, 64)), (b"last".to_vec(), payload(1_000, 64))]);
}

#[test]
fn consumer_that_does_not_receive_fills_its_own_channel_alone() {
    let [mut producer, mut consumer] = pair::<8192>();
    let tensor = payload(1, 8);
    let outgoing = Outgoing { meta: &meta(tensor.len()), payload: &tensor };
    for id in 0..HELD_MAX as u64 + 2_000 {
        // The helper `send` would check all held tensors each time, which takes long.
        match producer.send((1, id.to_string().as_bytes()), outgoing, u64::MAX) {
            Ok(_) => {}
            Err(refusal) => {
                producer.check_invariants();
                assert_eq!(refusal, Refusal::Fails(Why::Full));
                assert!(id > HELD_MAX as u64);
                return;
            }
        }
        if id % 64 == 0 {
            drain(&mut consumer);
        }
        assert!(consumer.counts()[3] <= 8192 / 8, "credit bounds what is unexpected");
    }
    panic!("held tensors have no limit");
}

#[test]
fn held_tensors_have_a_limit_of_bytes() {
    let [mut producer, _consumer] = pair::<8192>();
    let tensor = payload(1, PAYLOAD_BYTES_MAX);
    let outgoing = Outgoing { meta: &meta(tensor.len()), payload: &tensor };
    for id in 0..HELD_MAX {
        let held = producer.counts()[1] * PAYLOAD_BYTES_MAX;
        match producer.send((1, id.to_string().as_bytes()), outgoing, u64::MAX) {
            Ok(_) => assert!(held <= HELD_BYTES_MAX),
            Err(refusal) => {
                assert_eq!(refusal, Refusal::Fails(Why::Full));
                // Metadata and keys count as well.
                assert!(held > HELD_BYTES_MAX / 2, "{held}");
                return;
            }
        }
    }
    panic!("the bytes of held tensors have no limit");
}

#[test]
fn held_tensor_leaves_when_half_of_the_credit_is_back() {
    let [mut producer, mut consumer] = pair::<1024>();
    let mut sent = 0;
    while producer.counts()[1] < 10 {
        send(&mut producer, (1, &sent.to_string()), sent, 8).unwrap();
        sent += 1;
    }
    drain(&mut consumer);
    let in_ring = sent - 10;
    let released = (0..in_ring).find(|id| {
        let recv = post(&mut consumer, 1, &id.to_string());
        assert_eq!(take(&mut consumer, recv), Some(*id));
        drain(&mut producer);
        producer.counts()[1] == 0
    });
    // Credit that came back in single tensors would cost a wake-up each.
    let half = in_ring / 2;
    assert!(released.is_some_and(|id| (half - 2..half + 2).contains(&id)), "{released:?} of {in_ring}");
}

#[test]
fn old_unexpected_tensor_stops_nothing() {
    let [mut producer, mut consumer] = pair::<1024>();
    send(&mut producer, (1, "old"), 0, 64).unwrap();
    for id in 1..20_000 {
        let recv = post(&mut consumer, 1, "new");
        let sent = send(&mut producer, (1, "new"), id, 64).unwrap();
        drain(&mut consumer);
        assert_eq!(take(&mut consumer, recv), Some(id));
        drain(&mut producer);
        assert_eq!(producer.sent(sent), Sent::Taken);
        assert_eq!(producer.counts()[1], 0, "nothing is held");
    }
    let recv = post(&mut consumer, 1, "old");
    assert_eq!(take(&mut consumer, recv), Some(0));
}

#[test]
fn held_tensor_arrives_when_it_is_asked_for() {
    let [mut producer, mut consumer] = pair::<1024>();
    let early = post(&mut consumer, 1, "asked before it is sent");
    for id in 0..500 {
        send(&mut producer, (1, &id.to_string()), id, 64).unwrap();
    }
    let late = post(&mut consumer, 1, "499");
    for round in 0..10 {
        drain(&mut consumer);
        drain(&mut producer);
        if round == 5 {
            send(&mut producer, (1, "asked before it is sent"), 777, 64).unwrap();
        }
    }
    assert_eq!((take(&mut consumer, early), take(&mut consumer, late)), (Some(777), Some(499)));
    assert!(producer.counts()[1] > 100, "the rest is held");
}

#[test]
fn both_rings_full_still_drain() {
    let [mut one, mut other] = pair::<1024>();
    for id in 0..200 {
        send(&mut one, (1, &id.to_string()), id, 64).unwrap();
        send(&mut other, (1, &id.to_string()), id, 64).unwrap();
    }
    let recvs: Vec<[u32; 2]> =
        (0..200).map(|id| [post(&mut one, 1, &id.to_string()), post(&mut other, 1, &id.to_string())]).collect();
    for _ in 0..100 {
        drain(&mut one);
        drain(&mut other);
    }
    for (id, [at_one, at_other]) in (0..).zip(recvs) {
        assert_eq!((take(&mut one, at_one), take(&mut other, at_other)), (Some(id), Some(id)));
    }
}

#[test]
fn peer_that_does_not_read_breaks_the_channel() {
    let rings = [Heap::<1024>::new(), Heap::new()];
    let mut half = Side::new(rings[0].clone(), rings[1].clone(), Seed::random(), Steps::default());
    post(&mut half, 1, "w");
    // Each record makes the half ask for its recv once more.
    let mut writer = Writer::new(rings[1].clone());
    let words = lines(FIXED_WORDS);
    for records in 0..2 * NOTES_MAX {
        writer.commit(words, Header::note(Kind::Held, words, 0));
        if half.drain().is_err() {
            assert!(records > NOTES_MAX, "{records} records");
            return;
        }
    }
    panic!("notes have no limit");
}

#[test]
fn announcements_have_a_limit_and_break_nothing() {
    let [mut producer, _consumer] = pair::<1024>();
    let announced = (0..2 * NOTES_MAX).take_while(|id| producer.announce(1, id.to_string().as_bytes())).count();
    assert!((NOTES_MAX / 2..NOTES_MAX).contains(&announced), "{announced}");
    drain(&mut producer);
}

#[test]
fn tensor_of_a_cancelled_recv_is_the_next_ones() {
    let [mut producer, mut consumer] = pair::<1024>();
    let recv = post(&mut consumer, 1, "w");
    let sent = send(&mut producer, (1, "w"), 5, 64).unwrap();
    drain(&mut consumer);
    assert_eq!(producer.sent(sent), Sent::Taken);
    consumer.cancel(recv);
    // The next tensor of the name is no duplicate, and comes after it.
    send(&mut producer, (1, "w"), 6, 64).unwrap();
    drain(&mut consumer);
    for id in [5, 6] {
        let recv = post(&mut consumer, 1, "w");
        assert_eq!(take(&mut consumer, recv), Some(id));
    }
    let [waits, cancelled] = [post(&mut consumer, 1, "v"), post(&mut consumer, 2, "v")];
    let next = post(&mut consumer, 2, "v");
    send(&mut producer, (2, "v"), 7, 64).unwrap();
    drain(&mut consumer);
    consumer.cancel(cancelled);
    assert_eq!((take(&mut consumer, next), take(&mut consumer, waits)), (Some(7), None), "a recv that waits gets it");
}

#[test]
fn tensor_of_a_cancelled_recv_precedes_later_ones() {
    let [mut producer, mut consumer] = pair::<1024>();
    let recv = post(&mut consumer, 1, "w");
    for id in [5, 6] {
        send(&mut producer, (1, "w"), id, 64).unwrap();
    }
    drain(&mut consumer);
    consumer.cancel(recv);
    consumer.check_invariants();
    for id in [5, 6] {
        let recv = post(&mut consumer, 1, "w");
        assert_eq!(take(&mut consumer, recv), Some(id));
    }
}

#[test]
fn recv_past_its_deadline_fails_and_send_comes_back() {
    let [mut producer, mut consumer] = pair::<1024>();
    let posting = Posting { step: 1, key: b"w", deadline: 100, fails_if_gone: false, data: &mut Some(7) };
    let recv = consumer.post(posting).unwrap();
    let tensor = payload(1, 8);
    let sent = producer.send((1, b"v"), Outgoing { meta: &meta(8), payload: &tensor }, 100).unwrap();
    assert_eq!((consumer.earliest(), producer.earliest()), (100, 100));
    for now in [99, 100] {
        consumer.sweep(now);
        producer.sweep(now);
    }
    assert_eq!((consumer.recv(recv), producer.sent(sent)), (Recv::Failed(Why::Late), Sent::Open));
    assert_eq!(consumer.take_data(recv), Some(7));
    drain(&mut consumer);
    drain(&mut producer);
    assert_eq!(producer.sent(sent), Sent::Returned(Why::Revoked));
    assert_eq!(producer.name_of_returned(sent), Some((1, &b"v"[..])));
    let recv = post(&mut consumer, 1, "v");
    assert_eq!(take(&mut consumer, recv), None, "it is not received after its deadline");
}

#[test]
fn held_send_ends_at_its_deadline() {
    let [mut producer, _consumer] = pair::<1024>();
    let mut sent = 0;
    while producer.counts()[1] == 0 {
        send(&mut producer, (1, &sent.to_string()), sent, 64).unwrap();
        sent += 1;
    }
    let late = send_until(&mut producer, (1, "late"), sent, 64, 100).unwrap();
    producer.sweep(99);
    assert_eq!((producer.sent(late), producer.counts()[1]), (Sent::Open, 2));
    producer.sweep(100);
    assert_eq!((producer.sent(late), producer.counts()[1]), (Sent::Returned(Why::Late), 1));
}

#[test]
fn acknowledgement_does_not_pass_a_return_that_is_not_written() {
    let [mut producer, mut consumer] = pair::<64>();
    let first = send(&mut producer, (1, "w"), 1, 8).unwrap();
    let second = send(&mut producer, (1, "w"), 2, 8).unwrap();
    // The consumer's ring is full, so that the return waits.
    while !consumer.is_waiting() {
        assert!(consumer.announce(1, b"filler"));
    }
    drain(&mut consumer);
    let recv = post(&mut consumer, 1, "w");
    assert_eq!(take(&mut consumer, recv), Some(1));
    assert_eq!(producer.sent(second), Sent::Open);
    for _ in 0..4 {
        drain(&mut producer);
        drain(&mut consumer);
    }
    assert_eq!((producer.sent(first), producer.sent(second)), (Sent::Taken, Sent::Returned(Why::Duplicate)));
}

#[test]
fn tensors_of_an_ended_step_go_back() {
    let [mut producer, mut consumer] = pair::<1024>();
    let unexpected = send(&mut producer, (1, "w"), 1, 8).unwrap();
    drain(&mut consumer);
    let waits = post(&mut consumer, 1, "v");
    consumer.end_step(1, "it makes no sense", true);
    consumer.check_invariants();
    let crossing = send(&mut producer, (1, "x"), 2, 8).unwrap();
    assert_eq!(consumer.recv(waits), Recv::Failed(Why::Aborted));
    drain(&mut consumer);
    drain(&mut producer);
    for sent in [unexpected, crossing] {
        assert_eq!(producer.sent(sent), Sent::Returned(Why::Aborted));
    }
    assert_eq!((producer.reason(1), consumer.reason(1)), (Some("it makes no sense"), Some("it makes no sense")));
    assert_eq!(send(&mut producer, (1, "y"), 3, 8), Err(Refusal::Switch), "the switch judges the step");
    assert!(!consumer.takes_recvs(1) && !producer.takes_recvs(1) && producer.takes_recvs(2));
    // Both clean up, and use the number again; until both have, it is the switch's.
    producer.end_step(1, "cleaned up", false);
    assert!(!producer.takes_recvs(1), "it would wait for a tensor of a step that is over there");
    assert_eq!(send(&mut producer, (1, "w"), 4, 8), Err(Refusal::Switch));
    consumer.end_step(1, "cleaned up", false);
    drain(&mut producer);
    send(&mut producer, (1, "w"), 4, 8).unwrap();
    drain(&mut consumer);
    let recv = post(&mut consumer, 1, "w");
    assert_eq!(take(&mut consumer, recv), Some(4));
}

#[test]
fn step_ended_by_the_peer_fails_recvs_and_held_sends() {
    let [mut one, mut other] = pair::<1024>();
    let mut sent = 0;
    while one.counts()[1] == 0 {
        send(&mut one, (2, &sent.to_string()), sent, 64).unwrap();
        sent += 1;
    }
    let held = send(&mut one, (1, "w"), sent, 64).unwrap();
    let recvs = [1, 2].map(|step| post(&mut one, step, "v"));
    other.end_step(1, "over", true);
    drain(&mut one);
    assert_eq!(one.sent(held), Sent::Returned(Why::Aborted));
    assert_eq!(recvs.map(|recv| one.recv(recv)), [Recv::Failed(Why::Aborted), Recv::Waiting]);
    assert_eq!(one.counts()[1], 1, "what is held in another step stays");
}

#[test]
fn step_ended_before_the_channel_has_ended_at_both() {
    let rings = [Heap::<1024>::new(), Heap::new()];
    let mut ended = Steps::default();
    ended.end(1, "over");
    let mut one = Side::new(rings[0].clone(), rings[1].clone(), Seed::random(), ended);
    let mut other = Side::new(rings[1].clone(), rings[0].clone(), Seed::random(), Steps::default());
    one.tell_ended();
    one.clear();
    drain(&mut other);
    assert_eq!((one.reason(1), other.reason(1)), (Some("over"), Some("over")));
    assert_eq!((other.takes_recvs(1), other.takes_recvs(2)), (false, true));
}

#[test]
fn unexpected_tensor_goes_back_on_clean_up() {
    let [mut producer, mut consumer] = pair::<1024>();
    let sent = send(&mut producer, (1, "w"), 1, 8).unwrap();
    let other = send(&mut producer, (2, "w"), 2, 8).unwrap();
    drain(&mut consumer);
    consumer.end_step(1, "cleaned up", false);
    consumer.check_invariants();
    drain(&mut producer);
    assert_eq!((producer.sent(sent), producer.sent(other)), (Sent::Returned(Why::Aborted), Sent::Open));
    // The producer has not ended the step, and the consumer may use its number again.
    send(&mut producer, (1, "w"), 3, 8).unwrap();
    drain(&mut consumer);
    let recvs = [1, 2].map(|step| post(&mut consumer, step, "w"));
    assert_eq!(recvs.map(|recv| take(&mut consumer, recv)), [Some(3), Some(2)]);
}

/// The switch drops its tensors of a step when the step is aborted, and keeps them when it is cleaned up.
#[test]
fn announcement_outlives_clean_up_but_not_abort() {
    for is_aborted in [false, true] {
        let [mut producer, mut consumer] = pair::<1024>();
        assert!(producer.announce(1, b"w"));
        drain(&mut consumer);
        if is_aborted {
            consumer.end_step(1, "over", true);
        }
        consumer.end_step(1, "cleaned up", false);
        consumer.check_invariants();
        let recv = post(&mut consumer, 1, "w");
        match is_aborted {
            true => assert!(consumer.news.asks.is_empty(), "nothing is left at the switch"),
            false => assert_eq!(consumer.news.asks, [recv]),
        }
    }
}

#[test]
fn send_of_an_ended_step_is_aborted_unless_it_was_taken() {
    for is_taken in [false, true] {
        let [mut producer, mut consumer] = pair::<1024>();
        let sent = send(&mut producer, (1, "w"), 1, 8).unwrap();
        let recv = is_taken.then(|| post(&mut consumer, 1, "w"));
        if is_taken {
            drain(&mut consumer);
        }
        producer.end_step(1, "over", true);
        assert_eq!(producer.sent(sent), if is_taken { Sent::Taken } else { Sent::Open });
        drain(&mut consumer);
        drain(&mut producer);
        let fate = if is_taken { Sent::Taken } else { Sent::Returned(Why::Aborted) };
        assert_eq!(producer.sent(sent), fate);
        recv.into_iter().for_each(|recv| assert_eq!(take(&mut consumer, recv), Some(1)));
    }
}

#[test]
fn silent_consumer_ends_a_revoked_send() {
    for is_aborted in [false, true] {
        let [mut producer, _consumer] = pair::<1024>();
        let tensor = payload(1, 8);
        let sent = producer.send((1, b"w"), Outgoing { meta: &meta(8), payload: &tensor }, 100).unwrap();
        if is_aborted {
            producer.end_step(1, "over", true);
        }
        producer.sweep(100);
        assert_eq!((producer.sent(sent), producer.earliest()), (Sent::Open, 100 + SILENCE_MS));
        producer.sweep(100 + SILENCE_MS);
        let why = if is_aborted { Why::Aborted } else { Why::Silent };
        assert_eq!(producer.sent(sent), Sent::Returned(why));
    }
}

#[test]
fn second_unexpected_tensor_of_a_name_is_returned() {
    let [mut producer, mut consumer] = pair::<1024>();
    let [first, second] = [1, 2].map(|id| send(&mut producer, (1, "w"), id, 8).unwrap());
    drain(&mut consumer);
    drain(&mut producer);
    assert_eq!((producer.sent(first), producer.sent(second)), (Sent::Open, Sent::Returned(Why::Duplicate)));
    let recv = post(&mut consumer, 1, "w");
    assert_eq!(take(&mut consumer, recv), Some(1));
    assert_eq!(producer.sent(first), Sent::Taken);
}

#[test]
fn tensor_that_a_recv_does_not_accept_stays() {
    for is_early in [false, true] {
        let [mut producer, mut consumer] = pair::<1024>();
        let small = |consumer: &mut Side<1024>| {
            let posting = Posting { step: 1, key: b"w", deadline: u64::MAX, fails_if_gone: false, data: &mut Some(10) };
            consumer.post(posting).unwrap()
        };
        let early = is_early.then(|| small(&mut consumer));
        let sent = send(&mut producer, (1, "w"), 1, 64).unwrap();
        drain(&mut consumer);
        let refused = early.unwrap_or_else(|| small(&mut consumer));
        assert_eq!((consumer.recv(refused), producer.sent(sent)), (Recv::Failed(Why::Misfit), Sent::Open));
        assert_eq!((consumer.take_data(refused), id(consumer.content(refused))), (Some(10), 1));
        consumer.free(refused);
        let recv = post(&mut consumer, 1, "w");
        assert_eq!((take(&mut consumer, recv), producer.sent(sent)), (Some(1), Sent::Taken));
    }
}

#[test]
fn recvs_of_one_name_are_served_in_order() {
    let [mut producer, mut consumer] = pair::<1024>();
    for has_table in [false, true] {
        let other = has_table.then(|| post(&mut consumer, 9, "other"));
        if has_table {
            send(&mut producer, (8, "unexpected"), 99, 8).unwrap();
            drain(&mut consumer);
        }
        let recvs = [(); 3].map(|()| post(&mut consumer, 1, "w"));
        for id in 0..3 {
            send(&mut producer, (1, "w"), id, 8).unwrap();
            drain(&mut consumer);
        }
        assert_eq!(recvs.map(|recv| take(&mut consumer, recv)), [Some(0), Some(1), Some(2)]);
        other.into_iter().for_each(|other| consumer.cancel(other));
    }
}

#[test]
fn announced_tensor_moves_its_recv_to_the_switch() {
    let [mut producer, mut consumer] = pair::<1024>();
    for is_early in [false, true] {
        let early = is_early.then(|| post(&mut consumer, 1, "w"));
        assert!(producer.announce(1, b"w"));
        drain(&mut consumer);
        let recv = early.unwrap_or_else(|| post(&mut consumer, 1, "w"));
        assert_eq!(consumer.news.asks, [recv]);
        consumer.news.asks.clear();
        assert_eq!(consumer.wanted(recv).unwrap().key, b"w");
        let adopted = consumer.has_moved(recv, 5).unwrap();
        assert_eq!(consumer.recv(recv), Recv::Moved(5));
        consumer.free(recv);
        consumer.is_over(adopted, 5, true);
        consumer.check_invariants();
        let next = post(&mut consumer, 1, "w");
        assert!(consumer.news.asks.is_empty(), "the announcement is used up");
        consumer.cancel(next);
    }
}

#[test]
fn announcement_outlives_a_recv_that_did_not_get_the_tensor() {
    let [mut producer, mut consumer] = pair::<1024>();
    let recv = post(&mut consumer, 1, "w");
    producer.announce(1, b"w");
    drain(&mut consumer);
    consumer.news.asks.clear();
    let adopted = consumer.has_moved(recv, 5).unwrap();
    consumer.free(recv);
    // Its deadline passed at the switch.
    consumer.is_over(adopted, 5, false);
    let next = post(&mut consumer, 1, "w");
    assert_eq!(consumer.news.asks, [next]);
    // It is given up before the switch is asked.
    consumer.cancel(next);
    let last = post(&mut consumer, 1, "w");
    assert_eq!(consumer.news.asks, [last]);
}

#[test]
fn small_tensor_serves_a_recv_at_the_switch() {
    let [mut producer, mut consumer] = pair::<1024>();
    let adopted = consumer.adopt(1, b"w", 5).unwrap();
    let sent = send(&mut producer, (1, "w"), 1, 8).unwrap();
    drain(&mut consumer);
    assert_eq!((&consumer.news.arrived[..], consumer.arrived_for(adopted)), (&[adopted][..], 5));
    consumer.news.arrived.clear();
    // The call is over: the tensor is the next recv's.
    assert_eq!(producer.sent(sent), Sent::Open);
    consumer.is_served(adopted, false);
    assert_eq!(producer.sent(sent), Sent::Open, "nobody has it yet");
    let recv = post(&mut consumer, 1, "w");
    assert_eq!(take(&mut consumer, recv), Some(1));
    assert_eq!(producer.sent(sent), Sent::Taken);
    // It is here when the name is adopted.
    let sent = send(&mut producer, (1, "v"), 2, 8).unwrap();
    drain(&mut consumer);
    let adopted = consumer.adopt(1, b"v", 6).unwrap();
    assert_eq!(consumer.news.arrived, [adopted]);
    consumer.news.arrived.clear();
    assert_eq!(producer.sent(sent), Sent::Open);
    consumer.is_served(adopted, true);
    assert_eq!(producer.sent(sent), Sent::Taken);
    consumer.check_invariants();
}

#[test]
fn blind_side_asks_the_switch_for_every_recv() {
    let [mut one, mut other] = blind_pair::<1024>();
    assert!(!one.takes_recvs(1) && !other.takes_recvs(1));
    send(&mut one, (1, "w"), 1, 8).unwrap();
    drain(&mut other);
    assert!(other.claim(1, b"v", &mut None).is_none());
    let recv = other.claim(1, b"w", &mut None).unwrap();
    assert_eq!(take(&mut other, recv), Some(1), "what is here is claimed all the same");
    one.clear();
    drain(&mut other);
    assert!(other.takes_recvs(1));
    let waits = post(&mut other, 1, "x");
    one.blind();
    drain(&mut other);
    assert_eq!(other.news.asks, [waits]);
    assert!(!other.takes_recvs(1));
}

#[test]
fn closed_channel_hands_its_recvs_on_or_fails_them() {
    for why in [Why::Abandoned, Why::Gone] {
        let [_, mut consumer] = pair::<1024>();
        let recv = post(&mut consumer, 1, "w");
        consumer.adopt(1, b"v", 9).unwrap();
        assert_eq!(consumer.close(why), [9]);
        match why {
            Why::Abandoned => assert_eq!(consumer.news.asks, [recv]),
            _ => assert_eq!(consumer.recv(recv), Recv::Failed(why)),
        }
        assert!(consumer.close(why).is_empty() && consumer.drain().is_ok());
        consumer.check_invariants();
    }
}

#[test]
fn batch_becomes_visible_at_once() {
    let [mut producer, mut consumer] = pair::<1024>();
    let recvs: Vec<u32> = (0..20).map(|id| post(&mut consumer, 1, &id.to_string())).collect();
    producer.begin_batch();
    for id in 0..20 {
        send(&mut producer, (1, &id.to_string()), id, 64).unwrap();
        drain(&mut consumer);
        assert!(recvs.iter().all(|recv| consumer.recv(*recv) == Recv::Waiting));
    }
    producer.end_batch();
    drain(&mut consumer);
    for (id, recv) in (0..).zip(recvs) {
        assert_eq!(take(&mut consumer, recv), Some(id));
    }
}

#[test]
fn quiet_channel_stays_in_its_first_page() {
    let [mut producer, mut consumer] = pair::<8192>();
    let mut furthest = 0;
    for id in 0..5_000 {
        let recv = post(&mut consumer, 1, "w");
        send(&mut producer, (1, "w"), id, 64).unwrap();
        drain(&mut consumer);
        furthest = furthest.max(consumer.head() % 8192);
        assert_eq!(take(&mut consumer, recv), Some(id));
        drain(&mut producer);
    }
    assert!(furthest <= 512, "word {furthest} is beyond the first page");
}

#[test]
fn wakers_are_woken_when_their_calls_end() {
    let [mut producer, mut consumer] = pair::<1024>();
    let waker = std::task::Waker::noop();
    let recv = post(&mut consumer, 1, "w");
    assert!(consumer.wait_for_recv(recv, waker.clone(), true).is_none());
    let sent = send(&mut producer, (1, "w"), 1, 8).unwrap();
    assert!(producer.wait_for_send(sent, waker.clone(), true).is_none());
    assert_eq!((producer.watched(), consumer.watched()), (1, 1));
    drain(&mut consumer);
    drain(&mut producer);
    assert_eq!((producer.news.wakers.len(), consumer.news.wakers.len()), (1, 1));
    assert_eq!((producer.watched(), consumer.watched()), (0, 0));
    assert_eq!((producer.take_ring(), consumer.take_ring()), (Ring::Written, Ring::Written));
}

#[test]
fn many_open_recvs_are_asked_for_and_break_nothing() {
    const RECVS: usize = SLOTS_MAX - 1000;
    let [mut producer, mut consumer] = pair::<8192>();
    let tensor = payload(1, 8);
    let names: Vec<String> = (0..RECVS).map(|id| id.to_string()).collect();
    let recvs: Vec<u32> = names.iter().map(|key| post_unchecked(&mut consumer, 1, key)).collect();
    // From the last on: the others are held, and asked for in another order.
    for key in names.iter().rev() {
        let outgoing = Outgoing { meta: &meta(8), payload: &tensor };
        producer.send((1, key.as_bytes()), outgoing, u64::MAX).unwrap();
    }
    for _ in 0..RECVS {
        consumer.drain().unwrap();
        producer.drain().unwrap();
        if recvs.iter().all(|slot| consumer.recv(*slot) == Recv::Done) {
            return;
        }
    }
    panic!("some tensors have not arrived");
}
