//! What a simulation counted. Plain data; a number for each counted step.

use super::clock::{TICKS_PER_SECOND, Tick, as_ms};
use super::scene::Leg;

/// Messages and their bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Flow {
    pub(super) messages: u64,
    pub(super) bytes: u64,
}

impl Flow {
    pub(super) fn count(&mut self, leg: &Leg) {
        self.messages += 1;
        self.bytes += leg.bytes;
    }
}

/// Of the stations of one kind, the share of the time in which they worked.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Utilisation {
    pub(super) busiest: f64,
    pub(super) mean: f64,
}

/// The busiest and the mean of all.
pub(super) fn of_all(shares: impl Iterator<Item = f64>) -> Utilisation {
    let (sum, busiest, count) = shares
        .fold((0.0, 0.0, 0_u32), |(sum, busiest, count), share| (sum + share, f64::max(busiest, share), count + 1));
    Utilisation { busiest, mean: sum / f64::from(count.max(1)) }
}

/// What a simulation counted.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Tally {
    /// How long was counted.
    pub(super) length: Tick,
    /// Steps of all workers that ended meanwhile.
    pub(super) steps: u64,
    /// How long each of them took, the shortest first.
    pub(super) durations: Vec<Tick>,
    pub(super) worker_cpu: Utilisation,
    pub(super) worker_nic: Utilisation,
    pub(super) ps_cpu: Utilisation,
    pub(super) ps_nic: Utilisation,
    /// What left a shard since the beginning, and what reached one.
    pub(super) sent: Flow,
    pub(super) received: Flow,
}

impl Tally {
    pub(super) fn steps_per_second(&self) -> f64 {
        self.steps as f64 * TICKS_PER_SECOND / self.length as f64
    }

    /// The step time that this share of all steps does not exceed, in milliseconds.
    pub(super) fn step_ms(&self, quantile: f64) -> f64 {
        let rank = (quantile * self.durations.len() as f64).ceil() as usize;
        self.durations.get(rank.saturating_sub(1)).copied().map_or(0.0, as_ms)
    }
}
