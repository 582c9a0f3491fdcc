//! What a splice does beyond moving records: full rings, quiet ones, and ends that write anything.

use rand::{Rng, SeedableRng, rngs::SmallRng};

use super::*;
use crate::{
    channel::record::Kind,
    ring::{Header, PAD},
};

/// A splice, the ring that it reads and the ring that it writes.
fn splice<const WORDS: u64>() -> (Splice<Heap<WORDS>>, [Heap<WORDS>; 2]) {
    let rings = [Heap::new(), Heap::new()];
    (Splice::new(rings[0].clone(), rings[1].clone()), rings)
}

#[test]
fn reader_that_stops_holds_back_the_writer_and_nothing_is_lost() {
    const TENSORS: u64 = 200;
    let ([mut producer, mut consumer], mut between) = pair_with::<128>(true);
    let sends: Vec<u64> = (0..TENSORS).map(|id| send(&mut producer, (id as i64, "w"), id, 64).unwrap()).collect();
    for _ in 0..10 {
        between.turn_both();
        drain(&mut producer);
    }
    assert!(producer.counts()[1] > 150, "held by the producer: {:?}", producer.counts());
    let recvs: Vec<u32> = (0..TENSORS).map(|step| post(&mut consumer, step as i64, "w")).collect();
    for _ in 0..1000 {
        drain(&mut consumer);
        between.turn_both();
        drain(&mut producer);
        between.turn_both();
    }
    for (id, slot) in recvs.into_iter().enumerate() {
        assert_eq!(take(&mut consumer, slot), Some(id as u64));
    }
    assert!(sends.into_iter().all(|handle| producer.sent(handle) == Sent::Taken));
}

#[test]
fn record_waits_where_it_is_until_its_reader_has_room() {
    let (mut splice, [from, to]) = splice::<64>();
    let mut writer = crate::ring::Writer::new(from.clone());
    let words = 24;
    for _ in 0..2 {
        writer.commit(words, Header::new(Kind::Held as u8, words, 0));
    }
    assert_eq!(splice.turn().unwrap(), Spliced { words: 48, reader: Ring::Urgent, writer: Ring::No });
    assert_eq!(from.read().load(Ordering::Relaxed), 48);
    writer.pad();
    writer.commit(words, Header::new(Kind::Took as u8, words, 0));
    // The padding has no place there.
    assert_eq!(splice.turn().unwrap(), Spliced { words: 16, reader: Ring::No, writer: Ring::No });
    assert!(splice.is_blocked() && !splice.has_work());
    set(to.read(), 48);
    assert_eq!(splice.turn().unwrap(), Spliced { words, reader: Ring::Settled, writer: Ring::No });
    assert!(!splice.is_blocked());
    assert_eq!(Header(to.word(48).load(Ordering::Relaxed)).number(), PAD);
}

#[test]
fn what_the_reader_settles_wakes_the_writer_once() {
    let (mut splice, [from, to]) = splice::<64>();
    set(to.returned(), 2);
    set(to.took(), 3);
    assert!(splice.has_work());
    assert_eq!(splice.turn().unwrap().writer, Ring::Settled);
    assert_eq!([from.took(), from.returned()].map(|word| word.load(Ordering::Relaxed)), [3, 2]);
    assert!(!splice.has_work());
    assert_eq!(splice.turn().unwrap().writer, Ring::No);
}

#[test]
fn urgent_records_say_so() {
    for (kind, urgency) in [
        (Kind::Tensor, Ring::Written),
        (Kind::Took, Ring::Settled),
        (Kind::Ask, Ring::Urgent),
        (Kind::Revoke, Ring::Urgent),
    ] {
        let (mut splice, [from, _]) = splice::<64>();
        crate::ring::Writer::new(from).commit(8, Header::new(kind as u8, 8, 0));
        assert_eq!(splice.turn().unwrap().reader, urgency, "{kind:?}");
    }
}

#[test]
fn quiet_channel_stays_in_its_first_pages_behind_a_splice() {
    let ([mut producer, mut consumer], mut between) = pair_with::<8192>(true);
    for step in 0..5000 {
        let slot = post(&mut consumer, step, "layer_0/kernel");
        send(&mut producer, (step, "layer_0/kernel"), 1, 64).unwrap();
        between.turn_both();
        drain(&mut consumer);
        assert_eq!(take(&mut consumer, slot), Some(1));
        between.turn_both();
        drain(&mut producer);
    }
    let Between(Some(splices)) = &between else { unreachable!() };
    for splice in splices {
        for ring in [&splice.from.memory, &splice.to.memory] {
            let used = (0..8192).rev().find(|at| ring.word(*at).load(Ordering::Relaxed) != 0);
            assert!(used.is_none_or(|at| at < 512), "word {used:?} was used");
        }
    }
}

/// Whatever the two ends write, a splice neither panics nor goes on for ever, and says what is broken.
#[test]
fn splice_survives_rings_of_anything() {
    let mut broken = 0;
    for seed in 0..2000 {
        let (mut splice, [from, to]) = splice::<128>();
        let mut random = SmallRng::seed_from_u64(seed);
        for _ in 0..100 {
            let at = splice.from.head + 8 * random.random_range(0..3);
            let header = Header::new(random.random_range(0..16), 8 * random.random_range(0..6), random.random());
            set(from.word(at), if random.random_bool(0.1) { random.random() } else { header.0 });
            if random.random_bool(0.3) {
                let word = [to.read(), to.took(), to.returned()][random.random_range(0..3)];
                set(word, if random.random_bool(0.9) { splice.to.tail } else { random.random() });
            }
            if splice.turn().is_err() {
                broken += 1;
                break;
            }
        }
    }
    assert!(broken > 500, "{broken}");
}

#[test]
fn ends_that_break_the_rules_are_found() {
    let headers = [Header::new(1, 0, 0), Header::new(1, 136, 0), Header::new(PAD, 1000, 0), Header::new(1, 8 * 66, 0)];
    for header in headers {
        let (mut splice, [from, _]) = splice::<1024>();
        set(from.word(0), header.0);
        // The second one is possible.
        assert_eq!(splice.turn().is_err(), header != headers[1] && header != headers[2], "{header:?}");
    }
    for read in [8, u64::MAX] {
        let (mut splice, [from, to]) = splice::<64>();
        set(to.read(), read);
        set(from.word(0), Header::new(1, 8, 0).0);
        assert!(splice.turn().is_err(), "{read}");
    }
}
