//! Tables: published, written row by row while others pull, and sometimes left half written for a while.

use std::time::Duration;

use rand::Rng;
use rand::rngs::SmallRng;

use super::{ANY_AGE, Deed, moment, soon, timeout};
use crate::simulation::agenda::{Agenda, Event};
use crate::simulation::climate::{Climate, STORM};
use crate::simulation::tables;

/// Tables that a task may publish.
const TABLES: u32 = 3;
/// Tables that pulls may name; the last is never published.
const NAMED_TABLES: u32 = TABLES + 1;
/// Most tables of a pull, duplicates included.
const TABLES_MAX: usize = 3;
/// Longest that a row stays half written: some pulls give up before that, most do not.
const HELD_MAX: Duration = Duration::from_millis(60);

pub(super) fn plan(climate: &Climate, random: &mut SmallRng, agenda: &mut Agenda) {
    let tasks = climate.hosts * climate.tasks_per_host;
    for task in 0..tasks {
        if random.random_bool(0.7) {
            publisher(task, random, agenda);
        }
    }
    for ask in 0..climate.row_pulls {
        reader(ask, tasks, random, agenda);
    }
}

fn publisher(task: usize, random: &mut SmallRng, agenda: &mut Agenda) {
    let begin = random.random_range(Duration::ZERO..STORM / 4);
    for key in 0..random.random_range(2..=TABLES) {
        agenda.add(begin, Event::Deed(Deed::PublishTable { task, key }));
        for _ in 0..random.random_range(0..60) {
            let when = random.random_range(begin..STORM);
            let deed = match random.random_range(0..20) {
                0..3 => Deed::PublishTable { task, key },
                3 => {
                    agenda.add(when + soon(random), Event::Deed(Deed::PublishTable { task, key }));
                    Deed::WithdrawTable { task, key }
                }
                4..7 => {
                    let until = when + random.random_range(Duration::ZERO..HELD_MAX);
                    agenda.add(until, Event::Deed(Deed::EndRow { task, key }));
                    Deed::BeginRow { task, key, row: row(key, random) }
                }
                _ => {
                    let rows = (0..random.random_range(1..20)).map(|_| row(key, random)).collect();
                    Deed::WriteRows { task, key, rows }
                }
            };
            agenda.add(when, Event::Deed(deed));
        }
    }
}

fn row(key: u32, random: &mut SmallRng) -> u64 {
    random.random_range(0..tables::shape(key).0)
}

/// One of the first `tables` tables, and some of its rows: most often in order, and rarely one that it lacks.
fn some_rows(tables: u32, random: &mut SmallRng) -> (u32, Vec<u64>) {
    let key = random.random_range(0..tables);
    let count = random.random_range(0..100);
    let mut ids: Vec<u64> = (0..count).map(|_| row(key, random)).collect();
    if random.random_bool(0.9) {
        ids.sort_unstable();
        ids.dedup();
    }
    if random.random_bool(0.03) {
        ids.push(tables::shape(key).0 + random.random_range(0..3));
    }
    (key, ids)
}

fn reader(ask: usize, tasks: usize, random: &mut SmallRng, agenda: &mut Agenda) {
    let (producer, consumer) = (random.random_range(0..tasks), random.random_range(0..tasks));
    let named = if random.random_bool(0.9) { TABLES } else { NAMED_TABLES };
    let count = if random.random_bool(0.5) { 1 } else { random.random_range(2..=TABLES_MAX) };
    let tables = (0..count).map(|_| some_rows(named, random)).collect();
    let ahead = match random.random_range(0..10) {
        0..4 => ANY_AGE,
        4..8 => 0,
        8 => 1,
        _ => -1,
    };
    let (when, timeout) = (moment(random), timeout(random, Duration::from_millis(3)));
    agenda.add(when, Event::Deed(Deed::PullRows { ask, producer, consumer, tables, ahead, timeout }));
    match random.random_range(0..20) {
        0 => agenda.add(when + soon(random), Event::Deed(Deed::GiveUpRows { ask })),
        1 => {
            let instant = random.random_range(Duration::ZERO..Duration::from_micros(600));
            agenda.add(when + instant, Event::Deed(Deed::GiveUpRows { ask }));
        }
        2 => agenda.add(when + soon(random) / 4, Event::Deed(Deed::DeafenRows { ask })),
        _ => {}
    }
}
