//! The schedule of a run: a pure function of the seed. Deeds follow one another or overlap, but nobody suffers two at a time.

use std::collections::HashMap;
use std::ops::Range;
use std::time::Duration;

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

use super::deeds::Deed;
use super::history::SETTLE;
use crate::hosts::{Cut, HOSTS, TASKS};

/// Between the beginnings of two deeds.
const GAP_MS: Range<u64> = 100..1500;

/// How long who was killed is missing.
const ABSENCE_MS: Range<u64> = 1..2000;

/// How long a daemon may drain, and is missing.
const DRAIN_MS: Range<u64> = 800..2500;

/// How long who was stopped stands still: too short to be noticed, and longer than silence is believed.
const STANDSTILL_MS: Range<u64> = 50..4000;

/// How long a cable is cut: most often longer than silence is believed.
const CUT_MS: Range<u64> = 200..5000;

/// How slow a throttled cable is.
const MEGABITS: Range<u32> = 2..60;

/// How long a task accepts nothing: longer than its queue has room.
const DEAF_MS: u64 = 3000;

/// What bursts bring: more small tensors than a shard keeps, or more bytes than an arena holds.
const BURSTS: [(usize, usize); 2] = [(100, 4000), (300 * 1024, 200)];

/// How long a burst lasts: until its tensors' deadline.
const BURST_MS: u64 = 2500;

/// One deed in so many is done with nothing else near it, so that its effect can be measured.
const LONELY: u32 = 6;

/// How long nothing else is done before and after: what was there before must have settled.
const LONELY_GAP: Duration = Duration::from_millis(500).saturating_add(SETTLE);

/// How long a lonely deed lasts: longer than silence is believed, and than connections are waited for.
const LONELY_MS: Range<u64> = 500..8000;

/// Tries to find a victim that has no trouble yet.
const TRIES: usize = 8;

/// A deed and its time, from the beginning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Planned {
    pub(crate) at: Duration,
    pub(crate) lasts: Duration,
    pub(crate) deed: Deed,
}

/// All deeds of a run, in the order of their beginnings; all are over by the end of `span`.
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
                free_at.insert(planned.deed.victim(), over);
                plan.push(planned);
                at = over + LONELY_GAP;
                continue;
            }
        }
        for _ in 0..TRIES {
            let (deed, lasts) = draw(&mut random);
            let free = free_at.get(&deed.victim()).is_none_or(|free_at| *free_at <= at);
            if free && at + lasts <= span {
                free_at.insert(deed.victim(), at + lasts);
                plan.push(Planned { at, lasts, deed });
                break;
            }
        }
        at += Duration::from_millis(random.random_range(GAP_MS));
    }
    plan
}

/// A deed whose effect is measured.
fn lonely(random: &mut SmallRng, at: Duration) -> Planned {
    let (host, task) = (random.random_range(0..HOSTS), random.random_range(0..TASKS));
    let cuts = [Cut::Silent, Cut::Pulled, Cut::OneWay].map(|cut| Deed::Cut(host, cut));
    let kills = [Deed::KillDaemon(host), Deed::KillTask(task)];
    let deeds = [&cuts[..], &kills].concat();
    let lasts = Duration::from_millis(random.random_range(LONELY_MS));
    Planned { at, lasts, deed: deeds[random.random_range(0..deeds.len())] }
}

fn draw(random: &mut SmallRng) -> (Deed, Duration) {
    let (host, task) = (random.random_range(0..HOSTS), random.random_range(0..TASKS));
    let (deed, millis) = match random.random_range(0..20) {
        0..2 => (Deed::KillDaemon(host), random.random_range(ABSENCE_MS)),
        2 => (Deed::DrainDaemon(host), random.random_range(DRAIN_MS)),
        3..6 => (Deed::KillTask(task), random.random_range(ABSENCE_MS)),
        6..8 => (Deed::StopDaemon(host), random.random_range(STANDSTILL_MS)),
        8..10 => (Deed::StopTask(task), random.random_range(STANDSTILL_MS)),
        10..12 => (Deed::Cut(host, Cut::Pulled), random.random_range(CUT_MS)),
        12..14 => (Deed::Cut(host, Cut::Silent), random.random_range(CUT_MS)),
        14..15 => (Deed::Cut(host, Cut::OneWay), random.random_range(CUT_MS)),
        15..16 => (Deed::Cut(host, Cut::Throttled(random.random_range(MEGABITS))), random.random_range(CUT_MS)),
        16..18 => {
            let (bytes, count) = BURSTS[random.random_range(0..BURSTS.len())];
            (Deed::Burst { task, bytes, count }, BURST_MS)
        }
        _ => (Deed::Deafen { task, millis: DEAF_MS }, DEAF_MS),
    };
    (deed, Duration::from_millis(millis))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_is_a_schedule() {
        let minute = Duration::from_secs(60);
        assert_eq!(schedule(7, minute), schedule(7, minute));
        assert_ne!(schedule(7, minute), schedule(8, minute));
    }

    #[test]
    fn nobody_suffers_two_deeds_at_a_time_and_all_end() {
        let span = Duration::from_secs(600);
        let plan = schedule(1, span);
        assert!(plan.len() > 150, "{}", plan.len());
        for (index, one) in plan.iter().enumerate() {
            assert!(one.at + one.lasts <= span);
            let later = plan[index + 1..].iter().filter(|other| other.deed.victim() == one.deed.victim());
            assert!(later.into_iter().all(|other| other.at >= one.at + one.lasts), "{one:?}");
        }
        let overlap = |pair: &[Planned]| pair[1].at < pair[0].at + pair[0].lasts;
        assert!(plan.windows(2).any(overlap));
    }

    #[test]
    fn every_kind_of_deed_is_done() {
        let plan = schedule(1, Duration::from_secs(600));
        let kinds: std::collections::HashSet<_> =
            plan.iter().map(|planned| std::mem::discriminant(&planned.deed)).collect();
        assert_eq!(kinds.len(), 8);
    }
}
