//! A peer that writes anything into the memory that it shares, at any time.

use rand::{Rng, SeedableRng, rngs::SmallRng};

use super::*;

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
                        Posting { step: 1, key: key.as_bytes(), deadline: 5, fails_if_gone: false, data: Some(1) };
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
