//! A station: what works one message after the other, in the order in which they come; virtual time, and numbers that look
//! random. Pure; two numbers a station.

use std::f64::consts::TAU;

/// A shard, or one direction of a NIC.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Station {
    /// When it has done all that it was given.
    free: Tick,
    /// What it was given since counting began.
    worked: Tick,
}

impl Station {
    /// It gets work at `from`. When that is done.
    pub(super) fn work(&mut self, from: Tick, work: Tick) -> Tick {
        self.free = self.free.max(from) + work;
        self.worked += work;
        self.free
    }

    /// Counts only what is left to do, and what comes.
    pub(super) fn count_from(&mut self, now: Tick) {
        self.worked = self.free.saturating_sub(now);
    }

    /// What it has done since counting began.
    pub(super) fn worked_by(&self, now: Tick) -> Tick {
        self.worked.saturating_sub(self.free.saturating_sub(now))
    }
}

/// A NIC, which sends and receives at the same time.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Nic {
    sending: Station,
    receiving: Station,
    /// When the last byte of the message before was taken in.
    received: Tick,
}

impl Nic {
    /// It gets a message at `from` that takes so long. When its first byte leaves.
    pub(super) fn send(&mut self, from: Tick, work: Tick) -> Tick {
        self.sending.work(from, work) - work
    }

    /// The first byte of a message reaches it at `from`; by itself the message takes `work`, but its sender needs `sending` for
    /// it. When its last byte is taken in: bytes are as they come, so an idle NIC adds nothing to what the sender needs.
    pub(super) fn receive(&mut self, from: Tick, work: Tick, sending: Tick) -> Tick {
        let taken_in = self.receiving.work(from, work).max(from + sending);
        // In order, however slow the sender of the one before is.
        self.received = self.received.max(taken_in);
        self.received
    }

    /// Counts only what is left to do, and what comes.
    pub(super) fn count_from(&mut self, now: Tick) {
        self.sending.count_from(now);
        self.receiving.count_from(now);
    }

    /// What the busier direction has done since counting began.
    pub(super) fn worked_by(&self, now: Tick) -> Tick {
        self.sending.worked_by(now).max(self.receiving.worked_by(now))
    }
}

/// Virtual time, in picoseconds since the run began: whole numbers, so that a sum does not depend on its order, and 213 days
/// of them.
pub(super) type Tick = u64;

/// Ticks of a second.
pub(super) const TICKS_PER_SECOND: f64 = 1e12;

/// A time in nanoseconds as ticks, to the nearest.
pub(super) fn of_ns(nanoseconds: f64) -> Tick {
    (nanoseconds * 1e3).round() as Tick
}

/// Ticks as milliseconds.
pub(super) fn as_ms(ticks: Tick) -> f64 {
    ticks as f64 / 1e9
}

/// A draw that depends on the seed and on what it is for, and on nothing that happened before: two runs that differ in one
/// resource see the same stragglers. Evenly distributed over 0 to 1, of which it is neither.
pub(super) fn draw(seed: u64, what: u64, which: u64) -> f64 {
    let bits = mixed(mixed(mixed(seed) ^ what) ^ which) >> 12;
    (bits as f64 + 0.5) / (1_u64 << 52) as f64
}

/// A factor with mean 1 and a lognormal distribution of that sigma, by the transform of Box and Muller (1958).
pub(super) fn lognormal(sigma: f64, first: f64, second: f64) -> f64 {
    let normal = (-2.0 * first.ln()).sqrt() * (TAU * second).cos();
    (sigma * normal - sigma * sigma / 2.0).exp()
}

/// SplitMix64 (Steele, Lea, Flood 2014).
fn mixed(number: u64) -> u64 {
    let mut bits = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    bits ^ (bits >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_waits_for_work() {
        let mut station = Station::default();
        assert_eq!(station.work(10, 5), 15);
        assert_eq!(station.work(12, 5), 20);
        assert_eq!(station.work(30, 5), 35);
        assert_eq!((station.worked_by(35), station.worked_by(32)), (15, 12));
        station.count_from(33);
        assert_eq!((station.worked_by(33), station.worked_by(40)), (0, 2));
    }

    #[test]
    fn bytes_are_taken_in_as_they_come() {
        let mut nic = Nic::default();
        assert_eq!(nic.send(10, 4), 10);
        assert_eq!(nic.send(11, 4), 14);
        // Alone: when the last byte comes. Two at once: one after the other.
        assert_eq!(nic.receive(100, 4, 4), 104);
        assert_eq!(nic.receive(100, 4, 4), 108);
        // From a slower sender, and then from a faster one, which does not overtake.
        assert_eq!(nic.receive(200, 4, 16), 216);
        assert_eq!(nic.receive(201, 4, 4), 216);
    }

    #[test]
    fn draws_are_even_and_repeat() {
        let all: Vec<f64> = (0..10_000).map(|which| draw(7, 1, which)).collect();
        assert!(all.iter().all(|draw| *draw > 0.0 && *draw < 1.0));
        let mean = all.iter().sum::<f64>() / all.len() as f64;
        assert!((mean - 0.5).abs() < 0.02, "{mean}");
        assert_eq!(draw(7, 1, 5), all[5]);
        assert_ne!(draw(8, 1, 5), all[5]);
        assert_ne!(draw(7, 2, 5), all[5]);
    }

    #[test]
    fn stragglers_have_the_mean_of_all_and_their_spread() {
        let factors: Vec<f64> = (0..20_000).map(|which| lognormal(0.5, draw(1, 1, which), draw(1, 2, which))).collect();
        let mean = factors.iter().sum::<f64>() / factors.len() as f64;
        assert!((mean - 1.0).abs() < 0.03, "{mean}");
        let logarithms: Vec<f64> = factors.iter().map(|factor| factor.ln() + 0.125).collect();
        let variance = logarithms.iter().map(|value| value * value).sum::<f64>() / logarithms.len() as f64;
        assert!((variance - 0.25).abs() < 0.02, "{variance}");
        assert_eq!(lognormal(0.0, 0.3, 0.9), 1.0);
    }
}
