//! What one task sends to another in a tick of the clock: a pure function of the three, known to both.

use std::time::Duration;

/// A tick, in microseconds: the step of sends and recvs.
pub(super) const TICK_US: u64 = 100_000;

/// The longest deadline of a call that is answered.
pub(crate) const TIMEOUT_MAX: Duration = Duration::from_secs(8);

/// Deadlines: most calls outlast a short trouble, some a long one.
const TIMEOUTS: [Duration; 3] = [Duration::from_secs(3), Duration::from_secs(3), TIMEOUT_MAX];

/// A send and its recv.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Parcel {
    pub(super) key: u32,
    pub(super) bytes: usize,
    pub(super) timeout: Duration,
}

/// The parcels of a tick: none in most, three at most.
pub(super) fn parcels(from: usize, to: usize, tick: u64) -> impl Iterator<Item = Parcel> {
    let fate = mix(mix(from as u64 + 1, to as u64 + 1), tick);
    let count = [1, 0, 2, 0, 3, 0, 1, 0][fate as usize % 8];
    (0..count).map(move |key| {
        let fate = mix(fate, u64::from(key));
        let bytes = match fate % 64 {
            0..8 => 0,
            8..34 => 64,
            34..50 => 8 * 1024,
            50..60 => 100 * 1024 + 7,
            60..63 => 600 * 1024 + 1,
            _ => 5 << 20,
        };
        Parcel { key, bytes, timeout: TIMEOUTS[(fate >> 8) as usize % TIMEOUTS.len()] }
    })
}

/// Scatters two numbers.
pub(super) fn mix(a: u64, b: u64) -> u64 {
    let mut mixed = (a ^ b.rotate_left(32)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    mixed ^= mixed >> 29;
    mixed = mixed.wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed ^ (mixed >> 32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_sizes_come_to_pass() {
        let mut sizes: Vec<usize> = (0..2000).flat_map(|tick| parcels(0, 1, tick)).map(|parcel| parcel.bytes).collect();
        sizes.sort_unstable();
        sizes.dedup();
        assert_eq!(sizes.len(), 6, "{sizes:?}");
    }

    #[test]
    fn both_directions_differ() {
        let of = |from, to| (0..100).map(move |tick| parcels(from, to, tick).count()).collect::<Vec<_>>();
        assert_ne!(of(0, 1), of(1, 0));
    }
}
