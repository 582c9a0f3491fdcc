//! Queues of tasks, opened and closed, emptied slowly or fast, and what others push into them.

use std::time::Duration;

use rand::Rng;
use rand::rngs::SmallRng;
use sealane_fusion::AcceptOptions;

use super::{Deed, length, moment, soon, timeout};
use crate::simulation::agenda::{Agenda, Event};
use crate::simulation::climate::{Climate, STORM};
use crate::simulation::pushes::{NEVER_FULL, QueueId};

/// Queues of one task.
const QUEUES: u32 = 3;
/// Most tensors of one push.
const GROUP_MAX: usize = 60;

pub(super) fn plan(climate: &Climate, random: &mut SmallRng, agenda: &mut Agenda) {
    let tasks = climate.hosts * climate.tasks_per_host;
    for _ in 0..climate.queues {
        let id = QueueId { task: random.random_range(0..tasks), queue: random.random_range(0..QUEUES) };
        acceptor(id, random, agenda);
        for _ in 0..random.random_range(1..4) {
            pusher(random.random_range(0..tasks), id, random, agenda);
        }
    }
}

/// A task accepts from a queue for a while, and perhaps again later.
fn acceptor(id: QueueId, random: &mut SmallRng, agenda: &mut Agenda) {
    let mut when = if random.random_bool(0.5) { soon(random) } else { moment(random) };
    while when < STORM {
        let tensors_max = match random.random_range(0..10) {
            0..5 => random.random_range(1..9),
            5..7 => random.random_range(9..200),
            _ => NEVER_FULL,
        };
        let bytes_max = match random.random_bool(0.3) && tensors_max < NEVER_FULL {
            true => random.random_range(1..3_000),
            false => 64 << 20,
        };
        agenda.add(when, Event::Deed(Deed::OpenQueue { id, options: AcceptOptions { tensors_max, bytes_max } }));
        let closes = random.random_bool(0.6);
        let until = if closes { when + moment(random) / 2 } else { STORM };
        let pause = Duration::from_micros(match random.random_range(0..3) {
            0 => random.random_range(500..3_000),
            1 => random.random_range(3_000..20_000),
            _ => random.random_range(20_000..200_000),
        });
        while when < until {
            let most = match random.random_range(0..4) {
                0 => 1,
                1 => random.random_range(2..6),
                _ => usize::MAX,
            };
            when += random.random_range(Duration::ZERO..2 * pause);
            agenda.add(when, Event::Deed(Deed::Take { id, most }));
        }
        if closes {
            agenda.add(until, Event::Deed(Deed::CloseQueue(id)));
        }
        // Often at once, so that what is in flight for the closed queue meets the new one.
        when = until + if random.random_bool(0.5) { soon(random) } else { instant(random) };
    }
}

/// A task pushes now and then, as a worker does after each step.
fn pusher(pusher: usize, to: QueueId, random: &mut SmallRng, agenda: &mut Agenda) {
    let mut when = moment(random) / 2;
    let usual = length(random);
    for _ in 0..random.random_range(1..14) {
        when += if random.random_bool(0.7) { soon(random) } else { instant(random) };
        let count = match random.random_range(0..10) {
            0 => random.random_range(0..GROUP_MAX),
            1..4 => random.random_range(2..9),
            _ => 1,
        };
        let alike = random.random_bool(0.7);
        let lengths = (0..count).map(|_| if alike { usual } else { length(random) }).collect();
        let timeout = timeout(random, Duration::from_millis(3));
        agenda.add(when, Event::Deed(Deed::Push { pusher, to, lengths, timeout }));
    }
}

/// A delay within which a message is still on its way.
fn instant(random: &mut SmallRng) -> Duration {
    random.random_range(Duration::ZERO..Duration::from_micros(600))
}
