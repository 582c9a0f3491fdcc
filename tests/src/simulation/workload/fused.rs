//! Fused receives: some of their tensors are sent before, some after, some never; by single calls or by one call.

use std::time::Duration;

use rand::Rng;
use rand::rngs::SmallRng;

use super::{Deed, SHARED_KEYS, STEPS, Spot, Told, length, moment, soon, timeout};
use crate::simulation::agenda::{Agenda, Event};
use crate::simulation::climate::Climate;

/// First key of fused receives; single recvs use smaller ones.
const FIRST_KEY: u32 = 1_000_000;
/// First key of fused receives that a loop repeats in each step.
const FIRST_LOOP_KEY: u32 = 2_000_000;
/// Duration of a loop's step.
const STEP_TIME: Duration = Duration::from_millis(20);
/// Most keys of one fused receive.
const KEYS_MAX: u32 = 60;

pub(super) fn plan(climate: &Climate, random: &mut SmallRng, agenda: &mut Agenda) {
    plan_loops(climate, random, agenda);
    let tasks = climate.hosts * climate.tasks_per_host;
    for batch in 0..climate.batches {
        let (producer, consumer) = (random.random_range(0..tasks), random.random_range(0..tasks));
        let step = random.random_range(0..STEPS);
        let count =
            if random.random_bool(0.8) { random.random_range(0..12) } else { random.random_range(12..KEYS_MAX) };
        let shared = random.random_bool(0.2);
        let key = |number| match shared && number % 4 == 0 {
            true => number / 4 % SHARED_KEYS,
            false => FIRST_KEY + batch as u32 * KEYS_MAX + number,
        };
        let keys: Vec<u32> = (0..count).map(key).collect();
        let start = moment(random);
        let asked = start + soon(random);
        let sent = if random.random_bool(0.5) { 1.0 } else { 0.85 };
        let together = random.random_bool(0.5);
        let mut tensors = Vec::new();
        for &key in &keys {
            if random.random_bool(sent) {
                let (at, bytes) = (Spot { producer, consumer, step, key }, length(random));
                if together {
                    tensors.push((at, bytes));
                } else {
                    let timeout = timeout(random, Duration::from_millis(30));
                    agenda.add(start + soon(random), Event::Deed(Deed::Send { at, bytes, timeout }));
                }
            }
        }
        let timeout_of_all = timeout(random, Duration::from_millis(30));
        agenda.add(start + soon(random), Event::Deed(Deed::SendMany { tensors, timeout: timeout_of_all }));
        let told = [Told::OneByOne, Told::Together, Told::InViews][random.random_range(0..3)];
        let fuse = |random: &mut SmallRng| Deed::Fuse {
            batch,
            producer,
            consumer,
            step,
            keys: keys.clone(),
            rooms: if told != Told::InViews && random.random_bool(0.3) {
                random.random_range(0..=keys.len())
            } else {
                0
            },
            told,
            timeout: timeout(random, Duration::from_millis(3)),
        };
        agenda.add(asked, Event::Deed(fuse(random)));
        match random.random_range(0..100) {
            0..16 => agenda.add(asked + soon(random), Event::Deed(Deed::GiveUpFused { batch })),
            16..26 => {
                // Given up and wanted again at once.
                let again = asked + soon(random);
                agenda.add(again, Event::Deed(Deed::GiveUpFused { batch }));
                agenda.add(again, Event::Deed(fuse(random)));
            }
            26..34 => {
                let task = if random.random_bool(0.5) { producer } else { consumer };
                let when = asked + soon(random) / 4;
                let deed =
                    if random.random_bool(0.5) { Deed::Abort { task, step } } else { Deed::Cleanup { task, step } };
                agenda.add(when, Event::Deed(deed));
                agenda.add(when + soon(random), Event::Deed(Deed::Cleanup { task, step }));
            }
            _ => {}
        }
    }
}

/// Plans loops that ask for the same tensors in each step, most often after they were sent.
fn plan_loops(climate: &Climate, random: &mut SmallRng, agenda: &mut Agenda) {
    let tasks = climate.hosts * climate.tasks_per_host;
    for batch in climate.batches..climate.batches * 2 {
        let (producer, consumer) = (random.random_range(0..tasks), random.random_range(0..tasks));
        let (first, count) = (FIRST_LOOP_KEY + batch as u32 * KEYS_MAX, random.random_range(1..KEYS_MAX));
        let keys: Vec<u32> = (first..first + count).collect();
        // One call asks for all keys, or two calls for a part each.
        let middle = if random.random_bool(0.5) { keys.len() } else { random.random_range(0..keys.len()) };
        let start = moment(random);
        for step in 0..STEPS {
            let begins = start + STEP_TIME * step as u32;
            let mut tensors: Vec<_> =
                keys.iter().map(|&key| (Spot { producer, consumer, step, key }, length(random))).collect();
            if random.random_bool(0.3) {
                tensors.rotate_left(random.random_range(0..keys.len()));
            }
            let rest = tensors.split_off(random.random_range(0..=tensors.len()));
            for tensors in [tensors, rest] {
                let at = begins + soon(random) / 20;
                let timeout = timeout(random, Duration::from_millis(30));
                agenda.add(at, Event::Deed(Deed::SendMany { tensors, timeout }));
            }
            let asked = begins + soon(random) / 10;
            for (half, keys) in [&keys[..middle], &keys[middle..]].into_iter().enumerate() {
                let told = if random.random_bool(0.8) { Told::InViews } else { Told::Together };
                let (keys, timeout) = (keys.to_vec(), timeout(random, Duration::from_millis(30)));
                if keys.is_empty() {
                    continue;
                }
                let batch = batch + half * climate.batches;
                let fuse = Deed::Fuse { batch, producer, consumer, step, keys, rooms: 0, told, timeout };
                agenda.add(asked + soon(random) / 40, Event::Deed(fuse));
            }
            match random.random_range(0..100) {
                0..5 => agenda.add(asked + soon(random) / 20, Event::Deed(Deed::GiveUpFused { batch })),
                5..10 => agenda.add(begins + soon(random) / 10, Event::Deed(Deed::Abort { task: producer, step })),
                10..15 => agenda.add(begins + soon(random) / 10, Event::Deed(Deed::Cleanup { task: consumer, step })),
                _ => {}
            }
        }
    }
}
