//! A peer that writes anything into the memory that it shares, at any time.

use rand::{Rng, SeedableRng, rngs::SmallRng};

use super::*;
use crate::{
    channel::record::{FIXED_WORDS, Kind, Shape, store_bytes},
    ring::{Header, Writer, lines},
};

/// A header that is nearly right.
fn header(random: &mut SmallRng) -> u64 {
    let (kind, words) = (random.random_range(0..14_u64), 8 * random.random_range(0..5_u64));
    let (key, payload, rank) = (random.random_range(0..40), random.random_range(0..80), random.random_range(0..3));
    kind | words << 8 | key << 24 | payload << 40 | rank << 56
}

/// No panic, nothing beyond the limits, and an end for every call.
#[test]
fn half_survives_a_ring_of_anything() {
    for seed in 0..400 {
        let mut random = SmallRng::seed_from_u64(seed);
        let rings = [Heap::<1024>::new(), Heap::<1024>::new()];
        let half = |own: usize| Half::new(rings[own].clone(), rings[1 - own].clone(), Seed::random(), Steps::default());
        let (mut victim, mut honest): (Side<1024>, Side<1024>) = (half(0), half(1));
        let mut is_broken = false;
        for _ in 0..2_000 {
            match random.random_range(0..7) {
                0 => {
                    honest.clear();
                    let _sent =
                        send(&mut honest, (random.random_range(0..2), &random.random_range(0..30).to_string()), 1, 64);
                }
                1 => {
                    let at = victim.head() + random.random_range(0..40);
                    let word = if random.random_bool(0.2) { random.random() } else { header(&mut random) };
                    set(rings[1].word(at), word);
                }
                2 => {
                    let ring = &rings[0];
                    let word = [ring.read(), ring.took(), ring.returned()][random.random_range(0..3)];
                    set(word, random.random::<u64>() >> random.random_range(0..64));
                }
                3 => {
                    let tensor = payload(1, random.random_range(8..200));
                    let outgoing = Outgoing { meta: &meta(tensor.len()), payload: &tensor };
                    let key = random.random_range(0..30).to_string();
                    let _sent = victim.send((random.random_range(0..2), key.as_bytes()), outgoing, u64::MAX);
                }
                4 if victim.takes_recvs(1) => {
                    let key = random.random_range(0..30).to_string();
                    let posting =
                        Posting { step: 1, key: key.as_bytes(), deadline: 5, fails_if_gone: false, data: &mut Some(1) };
                    if let Ok(slot) = victim.post(posting)
                        && random.random_bool(0.5)
                    {
                        victim.cancel(slot);
                    }
                }
                5 => victim.sweep(10),
                _ => {
                    is_broken = victim.drain().is_err();
                    let _sent = victim.sent(random.random_range(0..100));
                }
            }
            victim.news.asks.clear();
            while let Some(slot) = victim.news.arrived.pop() {
                victim.is_served(slot, false);
            }
            if is_broken {
                break;
            }
        }
        victim.close(Why::Abandoned);
        victim.news.asks.clear();
        victim.reclaim();
        assert!(victim.counts().iter().all(|count| *count <= SLOTS_MAX));
    }
}

/// A producer that sends beyond its credit fills the consumer's slots, and no more.
#[test]
fn tensors_and_recvs_beyond_the_slots_are_refused() {
    let rings = [Heap::<1024>::new(), Heap::new()];
    let mut victim = Side::new(rings[0].clone(), rings[1].clone(), Seed::random(), Steps::default());
    let mut writer = Writer::new(rings[1].clone());
    for key in 0..=SLOTS_MAX as u64 {
        let shape = Shape { rank: 0, key: 8, payload: 0 };
        let record = writer.record(shape.words());
        store_bytes(&record[FIXED_WORDS..], &key.to_le_bytes());
        store_bytes(&record[shape.meta_at()..], &[0; 8]);
        writer.commit(shape.words(), Header::tensor(shape.words(), shape));
        // The helper `drain` would check all slots each time, which takes long.
        victim.drain().unwrap();
    }
    victim.check_invariants();
    assert_eq!(victim.counts()[3], SLOTS_MAX);
    let returned = [0, 1, 2].map(|at| rings[0].word(at).load(Ordering::Relaxed));
    assert_eq!(Header(returned[0]).kind(), Some(Kind::Returned));
    assert_eq!(returned[1..], [SLOTS_MAX as u64, Why::Full as u64]);
    let posting = Posting { step: 1, key: b"w", deadline: u64::MAX, fails_if_gone: false, data: &mut None };
    assert_eq!(victim.post(posting), Err(Why::Full));
}

#[test]
fn reader_beyond_the_writer_makes_no_room() {
    let rings = [Heap::<1024>::new(), Heap::new()];
    let mut victim = Side::new(rings[0].clone(), rings[1].clone(), Seed::random(), Steps::default());
    for read in [1, u64::MAX] {
        set(rings[0].read(), read);
        send(&mut victim, (1, &read.to_string()), read, 64).unwrap();
    }
    assert_eq!(victim.counts()[1], 2, "both are held");
    set(rings[0].read(), 0);
    drain(&mut victim);
    assert_eq!(victim.counts()[..2], [2, 0]);
}

#[test]
fn record_beyond_the_limits_breaks_the_channel() {
    let tensor = |shape: Shape| Header::tensor(shape.words(), shape);
    let key = KEY_BYTES_MAX + 1;
    let words = lines(FIXED_WORDS + key.div_ceil(8));
    let headers = [
        tensor(Shape { rank: 0, key: 8, payload: PAYLOAD_BYTES_MAX + 1 }),
        tensor(Shape { rank: TENSOR_WORDS_MAX, key: 8, payload: 8 }),
        Header::note(Kind::Announce, words, key),
        Header::note(Kind::Announce, lines(FIXED_WORDS), 64),
        Header(0xff | lines(FIXED_WORDS) << 8),
    ];
    for header in headers {
        let rings = [Heap::<1024>::new(), Heap::new()];
        let mut victim = Side::new(rings[0].clone(), rings[1].clone(), Seed::random(), Steps::default());
        Writer::new(rings[1].clone()).commit(header.words(), header);
        assert!(victim.drain().is_err(), "{header:?}");
    }
}
