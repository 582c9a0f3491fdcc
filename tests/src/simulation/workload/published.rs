//! What tasks publish, and the plans that pull it.

use std::time::Duration;

use rand::Rng;
use rand::rngs::SmallRng;

use super::{ANY_AGE, Deed, length, moment, soon, timeout};
use crate::simulation::agenda::{Agenda, Event};
use crate::simulation::climate::{Climate, STORM, TENSOR_BYTES_MAX};

const PUBLISHED_KEYS: u32 = 12;
/// Keys that plans may name; those beyond the published ones never come.
const NAMED_KEYS: u32 = 40;
/// Plans that are closed right after they are pulled: how many at most, and the first one's number.
const FLEETING_MAX: usize = 40;
const FLEETING_PLAN: usize = 500;
/// Most keys of a plan, duplicates included.
const KEYS_MAX: usize = 60;

/// Each key has a fixed usual length, so that most tensors have the length of the one before.
fn usual_length(key: u32) -> usize {
    match key % 6 {
        0 => 0,
        1..=3 => 64 * key as usize,
        4 => 9_000,
        _ => 20_000,
    }
}

pub(super) fn plan(climate: &Climate, random: &mut SmallRng, agenda: &mut Agenda) {
    let tasks = climate.hosts * climate.tasks_per_host;
    for task in 0..tasks {
        if random.random_bool(0.8) {
            publisher(task, random, agenda);
        }
    }
    for plan in 0..climate.plans {
        reader(plan, tasks, random, agenda);
    }
    for plan in 0..random.random_range(0..FLEETING_MAX) {
        let instant = Duration::from_micros(random.random_range(0..120));
        fleeting(FLEETING_PLAN + plan, tasks, instant, random, agenda);
    }
}

/// A plan for one pull, which its task usually gives up at once, so that the plan is named and forgotten right away.
fn fleeting(plan: usize, tasks: usize, instant: Duration, random: &mut SmallRng, agenda: &mut Agenda) {
    let (producer, consumer) = (random.random_range(0..tasks), random.random_range(0..tasks));
    let keys = (0..random.random_range(1..4)).map(|_| random.random_range(0..PUBLISHED_KEYS)).collect();
    let (open, timeout) = (moment(random), timeout(random, Duration::from_millis(3)));
    agenda.add(open, Event::Deed(Deed::Open { plan, producer, consumer, keys }));
    agenda.add(open, Event::Deed(Deed::Pull { plan, ahead: ANY_AGE, room: None, timeout }));
    let close = open + instant;
    if random.random_bool(0.4) {
        // What is in flight for the closed plan meets the new one.
        let keys = (0..random.random_range(0..4)).map(|_| random.random_range(0..PUBLISHED_KEYS)).collect();
        agenda.add(close, Event::Deed(Deed::Reopen { plan, keys }));
        agenda.add(close, Event::Deed(Deed::Pull { plan, ahead: ANY_AGE, room: None, timeout }));
        agenda.add(close + instant, Event::Deed(Deed::Close { plan }));
        return;
    }
    agenda.add(close, Event::Deed(Deed::Close { plan }));
}

fn publisher(task: usize, random: &mut SmallRng, agenda: &mut Agenda) {
    let begin = random.random_range(Duration::ZERO..STORM / 4);
    for _ in 0..random.random_range(3..30) {
        let when = if random.random_bool(0.3) { begin } else { random.random_range(begin..STORM) };
        let key = random.random_range(0..PUBLISHED_KEYS);
        let keys = match random.random_range(0..4) {
            0 => (0..PUBLISHED_KEYS).collect(),
            1 => (key..PUBLISHED_KEYS).collect(),
            _ => vec![key],
        };
        let rise = match random.random_range(0..20) {
            0 => -1,
            1..4 => 0,
            4..17 => 1,
            _ => random.random_range(2..5),
        };
        let bytes = if random.random_bool(0.8) { usual_length(key) } else { length(random) };
        agenda.add(when, Event::Deed(Deed::Publish { task, keys, rise, bytes }));
        if random.random_bool(0.1) {
            agenda.add(when + soon(random), Event::Deed(Deed::Withdraw { task, key }));
        }
    }
}

fn reader(plan: usize, tasks: usize, random: &mut SmallRng, agenda: &mut Agenda) {
    let (producer, consumer) = (random.random_range(0..tasks), random.random_range(0..tasks));
    let named = if random.random_bool(0.9) { PUBLISHED_KEYS } else { NAMED_KEYS };
    let count = match random.random_range(0..10) {
        0 => random.random_range(0..=KEYS_MAX),
        1..4 => 1,
        _ => random.random_range(2..8),
    };
    let keys: Vec<u32> = (0..count).map(|_| random.random_range(0..named)).collect();
    let open = moment(random);
    agenda.add(open, Event::Deed(Deed::Open { plan, producer, consumer, keys }));
    let mut when = open;
    for _ in 0..random.random_range(0..12) {
        // Most often one at a time, as in a training loop; sometimes overlapping.
        when += if random.random_bool(0.8) { soon(random) } else { Duration::from_micros(random.random_range(0..400)) };
        let ahead = match random.random_range(0..10) {
            0..5 => -random.random_range(0..4),
            5..9 => random.random_range(0..2),
            _ => ANY_AGE,
        };
        let room = random.random_bool(0.1).then(|| match random.random_bool(0.8) {
            true => TENSOR_BYTES_MAX,
            false => length(random),
        });
        let timeout = timeout(random, Duration::from_millis(3));
        agenda.add(when, Event::Deed(Deed::Pull { plan, ahead, room, timeout }));
        match random.random_range(0..100) {
            0..8 => agenda.add(when + soon(random), Event::Deed(Deed::GiveUpPull { plan })),
            8..11 => agenda.add(when + soon(random), Event::Deed(Deed::DeafenPull { plan })),
            11..15 => agenda.add(when + instant(random), Event::Deed(Deed::GiveUpPull { plan })),
            15..20 => {
                let keys = (0..random.random_range(0..8)).map(|_| random.random_range(0..PUBLISHED_KEYS)).collect();
                agenda.add(when + instant(random), Event::Deed(Deed::Reopen { plan, keys }));
            }
            _ => {}
        }
    }
    match random.random_range(0..10) {
        0 | 1 => {
            // Closed before its keys can have been announced.
            let timeout = timeout(random, Duration::from_millis(3));
            agenda.add(when, Event::Deed(Deed::Pull { plan, ahead: ANY_AGE, room: None, timeout }));
            agenda.add(when + instant(random) / 4, Event::Deed(Deed::Close { plan }));
        }
        2..4 => agenda.add(when + soon(random), Event::Deed(Deed::Close { plan })),
        _ => {}
    }
}

/// A delay within which a message is still on its way.
fn instant(random: &mut SmallRng) -> Duration {
    random.random_range(Duration::ZERO..Duration::from_micros(600))
}
