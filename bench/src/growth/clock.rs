//! Virtual time, and numbers that look random. Pure arithmetic.

use std::f64::consts::TAU;

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
