//! Links that are called only when the port says so: none is forgotten, whichever link takes the room.

use std::collections::BTreeSet;
use std::rc::Rc;
use std::time::Instant;

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

use super::harness::{Into, Manner, NAMES, Side, check_port, links};
use crate::arena::Handle;
use crate::link::Link;
use crate::provider::Told;
use crate::session::Roster;
use crate::verbs::fake::Fabric;
use crate::verbs::port::Port;
use crate::verbs::settings::Transfer;

const SIZES: [usize; 6] = [0, 100, 8192, 9000, 70_000, 1_100_000];
/// Turns in which nothing happens although some links wait.
const IDLE_TURNS: usize = 100;

/// A shard: one port, and its sides, some of which are to be called.
struct Shard {
    port: Rc<Port>,
    sides: Vec<Side>,
    /// Sides to be called.
    hot: BTreeSet<usize>,
}

impl Shard {
    fn turn(&mut self, now: Instant) -> bool {
        let mut told: Vec<Told> = Vec::new();
        let count = self.port.poll(&mut told);
        self.hot.extend(told.iter().map(|told| told.link.index()));
        let hot = std::mem::take(&mut self.hot);
        for &number in &hot {
            let side = &mut self.sides[number];
            let read = side.receive(now).expect("a healthy link");
            side.transmit(now).expect("a healthy link");
            if read > 0 || side.session.is_urgent() && !side.session.outbox().is_full() {
                self.hot.insert(number);
            }
        }
        count > 0 || !hot.is_empty()
    }
}

fn run(manner: &Manner, links_count: usize, seed: u64) {
    let fabric = Fabric::new(seed);
    let mut random = SmallRng::seed_from_u64(seed);
    let now = Instant::now();
    let ports = NAMES.map(|name| manner.open(&fabric, name));
    let mut shards = ports.map(|port| Shard { port, sides: Vec::new(), hot: BTreeSet::new() });
    for number in 0..links_count {
        let made = links([&shards[0].port, &shards[1].port]);
        for (shard, mut link) in shards.iter_mut().zip(made) {
            link.adopt(Handle::from_bits(1 << 32 | number as u64));
            let mut side = Side::new(shard.port.clone());
            side.session.attach(now, 1, Roster { numbers: vec![0] }, u64::MAX);
            for number in 0..30 {
                let size = SIZES[random.random_range(0..SIZES.len())];
                let into = [Into::Anywhere, Into::Heap][random.random_range(0..2)];
                side.ask(now, number, size, into);
            }
            side.link = Some(link);
            shard.sides.push(side);
            shard.hot.insert(number);
        }
    }
    let mut idle = 0;
    let all = |shards: &[Shard; 2]| shards.iter().flat_map(|shard| &shard.sides).all(Side::is_quiet);
    while !all(&shards) {
        let moved = shards.each_mut().map(|shard| shard.turn(now));
        idle = if moved.contains(&true) { 0 } else { idle + 1 };
        assert!(idle < IDLE_TURNS, "everybody sleeps: seed {seed}, {:?}", shards.each_ref().map(|s| s.port.counters()));
    }
    for (shard, name) in shards.iter_mut().zip(NAMES) {
        for side in &mut shard.sides {
            assert_eq!((side.fates.len(), side.home.len()), (30, 30));
            side.lose();
        }
        check_port(&fabric, name, &shard.port, manner.device.completion_depth);
    }
    assert_eq!(fabric.violations(), Vec::<String>::new());
}

#[test]
fn nobody_is_forgotten() {
    for seed in 1..=4 {
        for transfer in [Transfer::Write, Transfer::Read] {
            let mut manner = Manner::with(transfer);
            manner.device.delay_polls_max = 3 * (seed as u32 % 2);
            run(&manner, 4, seed);
            run(&manner.clone().without_windows(), 3, seed);
            manner = manner.tiny();
            run(&manner, 1, seed);
            run(&manner, 2, seed);
        }
    }
}

/// All links together may have at most eight work requests in flight.
#[test]
fn links_that_share_little_room_wake_each_other() {
    for seed in 1..=4 {
        let mut manner = Manner::default();
        manner.device.completion_depth = manner.settings.queue_depth + 9;
        manner.device.delay_polls_max = 2;
        run(&manner, 8, seed);
    }
}

#[test]
fn a_link_that_ends_gives_its_room_to_those_that_wait() {
    let mut manner = Manner::default();
    manner.device.completion_depth = manner.settings.queue_depth + 9;
    let fabric = Fabric::new(9);
    let ports = NAMES.map(|name| manner.open(&fabric, name));
    let now = Instant::now();
    let mut made: Vec<_> = (0..2).map(|_| links([&ports[0], &ports[1]])).collect();
    let mut sides: Vec<Side> = Vec::new();
    for (number, pair) in made.drain(..).enumerate() {
        let [mut near, far] = pair;
        near.adopt(Handle::from_bits(1 << 32 | number as u64));
        let mut side = Side::new(ports[0].clone());
        side.session.attach(now, 1, Roster { numbers: vec![0] }, u64::MAX);
        side.link = Some(near);
        sides.push(side);
        let mut other = Side::new(ports[1].clone());
        other.session.attach(now, 1, Roster { numbers: vec![0] }, u64::MAX);
        other.link = Some(far);
        sides.push(other);
    }
    fabric.pause();
    // The first link takes all the room, as announced places do.
    for number in 0..20 {
        sides[0].ask(now, number, 10_000, Into::Heap);
    }
    sides[0].transmit(now).expect("a healthy link");
    sides[2].ask(now, 0, 100, Into::Anywhere);
    sides[2].transmit(now).expect("a healthy link");
    let before = ports[0].counters().works;
    let mut told = Vec::new();
    ports[0].poll(&mut told);
    assert!(told.is_empty(), "nothing has happened: {told:?}");
    sides[0].lose();
    assert!(ports[0].counters().works < before);
    ports[0].poll(&mut told);
    assert_eq!(told, [Told { link: Handle::from_bits(1 << 32 | 1), has_room: true }]);
    fabric.resume();
    sides.iter_mut().for_each(Side::lose);
}
