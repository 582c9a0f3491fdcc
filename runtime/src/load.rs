//! A shard's load: how it spends its time. The shard's thread writes, and any thread reads without stopping it; a few counters and
//! one histogram per shard.
//!
//! The shard's time is divided into laps. A lap begins when a turn begins, or when the shard wakes, and ends when the next
//! begins, or when the shard falls asleep; so it covers a turn and the tasks that ran after it. It is busy if the turn found
//! work or a task ran, and idle otherwise. It needs no clock reading beyond the one of every turn.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use crate::{
    counter::{Counter, Gauge},
    histogram::{Histogram, HistogramSnapshot},
};

/// How a shard's time went since it started, see [`Runtime::load`](crate::Runtime::load).
///
/// All but two values only grow: for rates, take two snapshots and divide by the time between them. The current lap or sleep is
/// counted when it ends: while a shard sleeps for an hour, nothing grows, and its busy fraction is correctly zero.
//
// Aligned to the two cache lines that CPUs fetch at once, so that a reader of it slows down nobody but its shard.
#[derive(Debug, Default)]
#[repr(align(128))]
pub struct ShardLoad {
    turns: Counter,
    idle_ns: Counter,
    busy_ns: Histogram,
    longest_ns: Gauge,
    asleep_ns: Counter,
    sleeps: Counter,
    asleep: Gauge,
    stalls: Counter,
}

/// A [`ShardLoad`] at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LoadSnapshot {
    /// Turns that the shard has begun.
    pub turns: u64,
    /// Durations of busy laps in ns. Their number is `busy.count()`, and the shard's busy time `busy.sum()`.
    pub busy: HistogramSnapshot,
    /// The longest busy lap, in ns, without the time in which the shard was [set up](crate::Shard::set_up): as in `stalls`.
    pub longest_ns: u64,
    /// Time awake with nothing to do, in ns.
    pub idle_ns: u64,
    pub asleep_ns: u64,
    pub sleeps: u64,
    /// How often the shard went longer without a turn than `RuntimeSettings::stall_report` allows.
    pub stalls: u64,
    /// The shard is asleep now. If it is awake and its turns do not grow, a task or a source hangs.
    pub asleep: bool,
}

impl ShardLoad {
    /// The load so far; reads about 70 words, wait-free.
    pub fn snapshot(&self) -> LoadSnapshot {
        LoadSnapshot {
            turns: self.turns.get(),
            busy: self.busy_ns.snapshot(),
            longest_ns: self.longest_ns.get(),
            idle_ns: self.idle_ns.get(),
            asleep_ns: self.asleep_ns.get(),
            sleeps: self.sleeps.get(),
            stalls: self.stalls.get(),
            asleep: self.asleep.get() != 0,
        }
    }

    pub fn turns(&self) -> u64 {
        self.turns.get()
    }

    pub fn sleeps(&self) -> u64 {
        self.sleeps.get()
    }

    /// How often the shard went longer without a turn than `RuntimeSettings::stall_report` allows.
    pub fn stalls(&self) -> u64 {
        self.stalls.get()
    }

    pub(crate) fn count_stall(&self) {
        self.stalls.add(1);
    }
}

/// Collects what the reactor reports of its turns and sleeps, and adds it to the shard's load.
pub(crate) struct LoadMeter {
    load: Arc<ShardLoad>,
    lap_began: Instant,
    /// True once the lap contains a turn; false if it began with waking up and the turn is still to come.
    has_turn: bool,
    worked: bool,
}

impl LoadMeter {
    pub(crate) fn new(load: Arc<ShardLoad>, now: Instant) -> Self {
        Self { load, lap_began: now, has_turn: false, worked: false }
    }

    /// A turn begins; `task_ran` if any task did since the last one began. The shard was being set up until `set_up_until`.
    #[inline]
    pub(crate) fn turn_begins(&mut self, now: Instant, task_ran: bool, set_up_until: Instant) {
        self.load.turns.add(1);
        self.worked |= task_ran;
        if self.has_turn {
            self.lap_ends(now, set_up_until);
        }
        self.has_turn = true;
    }

    #[inline]
    pub(crate) fn turn_worked(&mut self) {
        self.worked = true;
    }

    pub(crate) fn falls_asleep(&mut self, now: Instant, set_up_until: Instant) {
        self.lap_ends(now, set_up_until);
        self.load.sleeps.add(1);
        self.load.asleep.set(1);
    }

    pub(crate) fn wakes(&mut self, now: Instant) {
        self.load.asleep.set(0);
        self.load.asleep_ns.add(nanoseconds(now.saturating_duration_since(self.lap_began)));
        self.lap_began = now;
        self.has_turn = false;
    }

    #[inline]
    fn lap_ends(&mut self, now: Instant, set_up_until: Instant) {
        let began = std::mem::replace(&mut self.lap_began, now);
        let lap = nanoseconds(now.saturating_duration_since(began));
        if !std::mem::take(&mut self.worked) {
            self.load.idle_ns.add(lap);
            return;
        }
        self.load.busy_ns.record(lap);
        let longest = self.load.longest_ns.get();
        if lap > longest {
            let after_set_up = nanoseconds(now.saturating_duration_since(began.max(set_up_until)));
            self.load.longest_ns.set(after_set_up.max(longest));
        }
    }
}

/// In nanoseconds; the duration is less than 584 years.
fn nanoseconds(duration: Duration) -> u64 {
    duration.as_secs() * 1_000_000_000 + u64::from(duration.subsec_nanos())
}

#[cfg(test)]
mod tests {
    use super::*;

    const US: Duration = Duration::from_micros(1);

    #[test]
    fn time_is_busy_idle_or_asleep_and_none_is_counted_twice() {
        let (load, start) = (Arc::new(ShardLoad::default()), Instant::now());
        let mut meter = LoadMeter::new(Arc::clone(&load), start);
        let at = |us: u32| start + us * US;
        let turn_begins = |meter: &mut LoadMeter, now, task_ran| meter.turn_begins(now, task_ran, start);

        // The first turn starts with the shard, finds nothing, and takes 1 us.
        turn_begins(&mut meter, at(0), false);
        // 4 us in which the turn itself worked.
        turn_begins(&mut meter, at(1), false);
        meter.turn_worked();
        // 9 us in which a task ran after an idle turn; the next turn finds that out.
        turn_begins(&mut meter, at(5), false);
        turn_begins(&mut meter, at(14), true);
        // An idle turn of 2 us, then 100 us asleep.
        meter.falls_asleep(at(16), start);
        let asleep = load.snapshot();
        assert!(asleep.asleep);
        assert_eq!((asleep.sleeps, asleep.asleep_ns), (1, 0), "counted when it ends");
        meter.wakes(at(116));
        // Waking up counts for the turn that follows: 3 and 20 us of work.
        turn_begins(&mut meter, at(119), false);
        meter.turn_worked();
        turn_begins(&mut meter, at(139), false);

        let seen = load.snapshot();
        assert!(!seen.asleep);
        assert_eq!((seen.turns, load.turns()), (6, 6));
        assert_eq!((seen.busy.count(), seen.busy.sum()), (3, 4000 + 9000 + 23_000));
        assert_eq!((seen.longest_ns, seen.idle_ns), (23_000, 1000 + 2000));
        assert_eq!((seen.sleeps, load.sleeps(), seen.asleep_ns), (1, 1, 100_000));
        assert_eq!(seen.busy.sum() + seen.idle_ns + seen.asleep_ns, 139_000);
    }

    #[test]
    fn longest_turn_excludes_set_up_as_stalls_do() {
        let (load, start) = (Arc::new(ShardLoad::default()), Instant::now());
        let mut meter = LoadMeter::new(Arc::clone(&load), start);
        let set_up_until = start + 900 * US;
        meter.turn_begins(start, true, start);
        meter.turn_begins(start + 1000 * US, true, set_up_until);
        let first = load.snapshot();
        assert_eq!((first.longest_ns, first.busy.sum()), (100_000, 1_000_000), "the time itself is counted");
        meter.turn_begins(start + 1150 * US, true, set_up_until);
        assert_eq!(load.snapshot().longest_ns, 150_000);
    }

    #[test]
    fn a_clock_that_steps_back_is_harmless() {
        let (load, start) = (Arc::new(ShardLoad::default()), Instant::now() + US);
        let mut meter = LoadMeter::new(Arc::clone(&load), start);
        meter.turn_begins(start, false, start);
        meter.turn_begins(start - US, true, start);
        let seen = load.snapshot();
        assert_eq!((seen.busy.count(), seen.busy.sum(), seen.longest_ns), (1, 0, 0));
    }

    #[test]
    fn two_loads_share_no_cache_line() {
        assert_eq!(align_of::<ShardLoad>(), 128);
    }
}
