//! What tasks publish, and the plans by which others pull it.

use std::time::Duration;

use rand::Rng;
use rand::rngs::SmallRng;

use super::{ANY_AGE, Deed, length, moment, soon, timeout};
use crate::simulation::agenda::{Agenda, Event};
use crate::simulation::climate::{Climate, STORM, TENSOR_BYTES_MAX};

/// Keys that a task may publish.
const PUBLISHED_KEYS: u32 = 12;
/// Keys that plans may name; those past the published ones never come.
const NAMED_KEYS: u32 = 40;
/// Plans that are closed as soon as they were pulled: how many, and the first one's number.
const FLEETING_MAX: usize = 40;
const FLEETING_PLAN: usize = 500;
/// Keys of a plan at most; a key may be there twice.
const KEYS_MAX: usize = 60;

/// Every key has a length of its own, so that most tensors are of the kind of the one before.
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

/// A plan for one pull, which its task gives up at once most often: named and forgotten in one breath.
fn fleeting(plan: usize, tasks: usize, instant: Duration, random: &mut SmallRng, agenda: &mut Agenda) {
    let (producer, consumer) = (random.random_range(0..tasks), random.random_range(0..tasks));
    let keys = (0..random.random_range(1..4)).map(|_| random.random_range(0..PUBLISHED_KEYS)).collect();
    let (open, timeout) = (moment(random), timeout(random, Duration::from_millis(3)));
    agenda.add(open, Event::Deed(Deed::Open { plan, producer, consumer, keys }));
    agenda.add(open, Event::Deed(Deed::Pull { plan, ahead: ANY_AGE, room: None, timeout }));
    let close = open + instant;
    if random.random_bool(0.4) {
        // What is in flight to the one finds the other.
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
        // Most often one at a time, as a training loop does; sometimes on top of each other.
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
            // Closed before its keys are known to have come.
            let timeout = timeout(random, Duration::from_millis(3));
            agenda.add(when, Event::Deed(Deed::Pull { plan, ahead: ANY_AGE, room: None, timeout }));
            agenda.add(when + instant(random) / 4, Event::Deed(Deed::Close { plan }));
        }
        2..4 => agenda.add(when + soon(random), Event::Deed(Deed::Close { plan })),
        _ => {}
    }
}

/// While a message is on its way.
fn instant(random: &mut SmallRng) -> Duration {
    random.random_range(Duration::ZERO..Duration::from_micros(600))
}
