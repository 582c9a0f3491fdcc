//! The schedule of a run: a pure function of the seed. Faults follow one another or overlap, but each target has one at a time.

use std::collections::HashMap;
use std::ops::Range;
use std::time::Duration;

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

use super::deeds::{Deed, Harm, Victim};
use super::history::SETTLE;
use crate::hosts::{Cut, HOSTS, TASKS};
use crate::traffic::Order;

/// Time between the beginnings of two faults.
const GAP_MS: Range<u64> = 100..1500;

/// One in this many faults is isolated from others, so that its effect can be measured.
const LONELY: u32 = 6;

/// Time without other faults before and after it: earlier effects must have settled.
const LONELY_GAP: Duration = Duration::from_millis(500).saturating_add(SETTLE);

/// Duration of an isolated fault: longer than the time-outs for silence and for connecting.
const LONELY_MS: Range<u64> = 500..8000;

/// Attempts to find a target without a fault.
const TRIES: usize = 8;

/// A fault and its time since the beginning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Planned {
    pub(crate) at: Duration,
    pub(crate) lasts: Duration,
    pub(crate) deed: Deed,
}

/// All faults of a run, in the order of their beginnings; all have ended by `span`.
pub(crate) fn schedule(seed: u64, span: Duration) -> Vec<Planned> {
    let mut random = SmallRng::seed_from_u64(seed);
    let mut free_at = HashMap::new();
    let (mut plan, mut at) = (Vec::new(), Duration::ZERO);
    while at < span {
        if random.random_ratio(1, LONELY) {
            let all_free = free_at.values().copied().fold(at, Duration::max);
            let planned = lonely(&mut random, all_free + LONELY_GAP);
            let over = planned.at + planned.lasts;
            if over <= span {
                free_at.insert(planned.deed.victim, over);
                plan.push(planned);
                at = over + LONELY_GAP;
                continue;
            }
        }
        for _ in 0..TRIES {
            let (deed, lasts) = draw(&mut random);
            let free = free_at.get(&deed.victim).is_none_or(|free_at| *free_at <= at);
            if free && at + lasts <= span {
                free_at.insert(deed.victim, at + lasts);
                plan.push(Planned { at, lasts, deed });
                break;
            }
        }
        at += Duration::from_millis(random.random_range(GAP_MS));
    }
    plan
}

/// A fault whose effect is measured.
fn lonely(random: &mut SmallRng, at: Duration) -> Planned {
    let (host, task) = (random.random_range(0..HOSTS), random.random_range(0..TASKS));
    let kill = |victim| Deed { harm: Harm::Kill, victim };
    let [silent, pulled, one_way] = [Cut::Silent, Cut::Pulled, Cut::OneWay].map(|cut| Deed::cut(host, cut));
    let deeds = [silent, pulled, one_way, kill(Victim::Daemon(host)), kill(Victim::Task(task))];
    let lasts = Duration::from_millis(random.random_range(LONELY_MS));
    Planned { at, lasts, deed: deeds[random.random_range(0..deeds.len())] }
}

fn draw(random: &mut SmallRng) -> (Deed, Duration) {
    let (daemon, task) = (random.random_range(0..HOSTS), random.random_range(0..TASKS));
    let cable = Victim::Cable(daemon);
    let (daemon, task) = (Victim::Daemon(daemon), Victim::Task(task));
    // The fault, its target, and its duration in milliseconds.
    let (harm, victim, millis) = match random.random_range(0..20) {
        0..2 => (Harm::Kill, daemon, 1..2000),
        2 => (Harm::Drain, daemon, 800..2500),
        3..6 => (Harm::Kill, task, 1..2000),
        // From too short to be noticed to longer than the time-out for silence.
        6..8 => (Harm::Stop, daemon, 50..4000),
        8..10 => (Harm::Stop, task, 50..4000),
        10..12 => (Harm::Cut(Cut::Pulled), cable, 200..5000),
        12..14 => (Harm::Cut(Cut::Silent), cable, 200..5000),
        14 => (Harm::Cut(Cut::OneWay), cable, 200..5000),
        15 => (Harm::Cut(Cut::Throttled(random.random_range(2..60))), cable, 200..5000),
        // More small tensors than a shard keeps, or more bytes than an arena holds, until their deadline.
        16 => (Harm::Order(Order::Burst { bytes: 100, count: 4000 }), task, 2500..2501),
        17 => (Harm::Order(Order::Burst { bytes: 300 * 1024, count: 200 }), task, 2500..2501),
        // Longer than its queue has room for.
        _ => (Harm::Order(Order::Deaf { millis: 3000 }), task, 3000..3001),
    };
    (Deed { harm, victim }, Duration::from_millis(random.random_range(millis)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_is_a_schedule_in_which_nobody_suffers_two_deeds_at_a_time_and_all_end() {
        let span = Duration::from_secs(600);
        let plan = schedule(1, span);
        assert!(plan == schedule(1, span) && plan != schedule(2, span));
        assert!(plan.len() > 150, "{}", plan.len());
        for (index, one) in plan.iter().enumerate() {
            assert!(one.at + one.lasts <= span);
            let mut later = plan[index + 1..].iter().filter(|other| other.deed.victim == one.deed.victim);
            assert!(later.all(|other| other.at >= one.at + one.lasts), "{one:?}");
        }
        let overlap = |pair: &[Planned]| pair[1].at < pair[0].at + pair[0].lasts;
        assert!(plan.windows(2).any(overlap));
    }
}
