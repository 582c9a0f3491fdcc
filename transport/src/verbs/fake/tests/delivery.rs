//! When requests are carried out, and in which order.

use super::harness::{MEMORY, Pair, is_readable};
use crate::verbs::device::{Device, Post, RECEIVED, Status, Work};
use crate::verbs::fake::{Fabric, FakeSettings, Fault, Strike};

fn delayed(polls: u32) -> FakeSettings {
    FakeSettings { delay_polls_max: polls, ..FakeSettings::default() }
}

#[test]
fn a_pause_holds_everything_back() {
    let mut pair = Pair::new();
    pair.far.receive(1, 0, 8);
    pair.fabric.pause();
    pair.near.send(pair.here, 7, b"x");
    assert!(pair.near.poll().is_empty());
    assert!(pair.far.poll().is_empty());
    pair.near.device.arm().expect("a device that works");
    assert!(!is_readable(pair.near.device.completion_descriptor()));
    pair.fabric.resume();
    assert!(is_readable(pair.near.device.completion_descriptor()));
    assert_eq!(pair.near.outcomes(), [(7, Status::SUCCESS)]);
    assert_eq!(pair.far.outcomes(), [(1, Status::SUCCESS)]);
    assert!(!pair.fabric.step(), "nothing is left");
}

#[test]
fn a_step_carries_out_and_the_next_one_acknowledges() {
    let mut pair = Pair::new();
    pair.far.receive(1, 0, 8);
    pair.fabric.pause();
    pair.near.send(pair.here, 7, b"x");
    assert!(pair.fabric.step());
    assert_eq!(pair.far.outcomes(), [(1, Status::SUCCESS)], "the answer may come first");
    assert!(pair.near.poll().is_empty());
    assert!(pair.fabric.step());
    assert_eq!(pair.near.outcomes(), [(7, Status::SUCCESS)]);
    assert!(!pair.fabric.step());
}

#[test]
fn what_was_carried_out_fails_if_the_peer_is_gone_before_the_acknowledgement() {
    let mut pair = Pair::new();
    pair.far.receive(1, 0, 8);
    pair.fabric.pause();
    pair.near.send(pair.here, 7, b"x");
    assert!(pair.fabric.step());
    pair.far.device.destroy(pair.there.id);
    pair.fabric.resume();
    assert_eq!(pair.near.outcomes(), [(7, Status::RETRIES_EXCEEDED)]);
    assert_eq!(pair.far.outcomes(), [(1, Status::SUCCESS)]);
}

#[test]
fn a_lost_acknowledgement_fails_before_what_fails_behind_it() {
    for seed in 0..20 {
        let mut pair = Pair::on(&Fabric::new(seed), delayed(20));
        pair.far.receive(1, 0, 8);
        let lost = Strike { kind: None, status: Status(20), carried_out: true };
        pair.fabric.inject("near", Fault::Request { strike: lost, skip: 0 });
        pair.near.send(pair.here, 1, b"x");
        let bad = Work::Send(pair.near.piece(MEMORY, 1));
        pair.near.ask(pair.here, 2, bad);
        let mut outcomes = Vec::new();
        while outcomes.len() < 2 {
            outcomes.extend(pair.near.outcomes());
        }
        assert_eq!(outcomes, [(1, Status(20)), (2, Status::FLUSHED)]);
    }
}

/// The order in which messages of two queue pairs arrive.
fn arrivals(seed: u64, polls: u32) -> Vec<u8> {
    let fabric = Fabric::new(seed);
    let mut pair = Pair::on(&fabric, delayed(polls));
    let (other, here) = (pair.join().0, pair.here);
    (0..20).for_each(|id| pair.far.receive(id, 100 + id as usize, 1));
    for id in 0..10 {
        for (queue_pair, letter) in [(here, b'a'), (other, b'A')] {
            let letter = letter + id as u8;
            pair.near.fill(id as usize, &[letter]);
            let inline = pair.near.inline(id as usize, 1);
            pair.near.ask(queue_pair, id, inline);
        }
    }
    let (mut arrived, mut sent) = (Vec::new(), [Vec::new(), Vec::new()]);
    while sent[0].len() + sent[1].len() < 20 || arrived.len() < 20 {
        for completion in pair.far.poll() {
            let index = (completion.id & !RECEIVED) as usize;
            arrived.push(pair.far.bytes(100 + index, 1)[0]);
        }
        for completion in pair.near.poll() {
            assert_eq!(completion.status, Status::SUCCESS);
            sent[usize::from(completion.queue_pair == other.number)].push(completion.id);
        }
    }
    let ids: Vec<u64> = (0..10).collect();
    assert_eq!(sent, [ids.clone(), ids], "each queue pair's complete in order");
    pair.check();
    arrived
}

#[test]
fn delays_keep_the_order_of_a_queue_pair_and_mix_those_of_several() {
    let arrived = arrivals(5, 7);
    let of =
        |range: std::ops::RangeInclusive<u8>| arrived.iter().copied().filter(|x| range.contains(x)).collect::<Vec<_>>();
    assert_eq!(of(b'a'..=b'j'), b"abcdefghij");
    assert_eq!(of(b'A'..=b'J'), b"ABCDEFGHIJ");
    assert_ne!(arrived, arrivals(5, 0), "mixed");
    assert_eq!(arrived, arrivals(5, 7), "the same seed, the same order");
    assert_ne!(arrived, arrivals(6, 7), "another seed, another order");
}

#[test]
fn a_delayed_answer_may_overtake_the_completion_of_what_it_answers() {
    let overtakes = |seed| {
        let mut pair = Pair::on(&Fabric::new(seed), delayed(9));
        pair.far.receive(1, 0, 8);
        pair.near.receive(2, 8, 8);
        pair.near.send(pair.here, 7, b"ask");
        let mut heard = Vec::new();
        while heard.len() < 2 {
            if !pair.far.poll().is_empty() {
                pair.far
                    .post(pair.there, &[Post { id: 8, signaled: false, work: Work::Send(pair.far.piece(0, 3)) }])
                    .expect("taken");
            }
            heard.extend(pair.near.outcomes());
        }
        heard[0].0 == 2
    };
    let count = (0..100).filter(|&seed| overtakes(seed)).count();
    assert!((1..100).contains(&count), "{count}");
}

#[test]
fn nothing_is_held_back_for_who_sleeps() {
    let mut pair = Pair::with(delayed(1_000_000));
    pair.far.receive(1, 0, 8);
    pair.near.send(pair.here, 7, b"x");
    assert!(pair.far.poll().is_empty());
    pair.near.device.arm().expect("a device that works");
    assert!(is_readable(pair.near.device.completion_descriptor()));
    assert_eq!(pair.far.outcomes(), [(1, Status::SUCCESS)]);
    assert_eq!(pair.near.outcomes(), [(7, Status::SUCCESS)]);
    // The same works if it is armed already.
    pair.near.device.arm().expect("a device that works");
    pair.far.receive(1, 0, 8);
    pair.near.send(pair.here, 7, b"x");
    assert_eq!(pair.near.outcomes(), [(7, Status::SUCCESS)]);
}
