//! The shard that serves a pair of tasks: both sides compute it without communicating.

/// The lane of a pair of tasks, independent of their order: a side with `n` shards serves the pair
/// on shard `lane % n`.
///
/// FNV-1a (Fowler, Noll, Vo): both sides must agree on it, so it is part of the wire's specification.
pub fn lane(one: &str, other: &str) -> u32 {
    let (first, second) = if one <= other { (one, other) } else { (other, one) };
    let mut hash = 0xcbf2_9ce4_8422_2325_u64;
    for byte in first.bytes().chain([0]).chain(second.bytes()) {
        hash = (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
    }
    (hash ^ (hash >> 32)) as u32
}

/// The shard of a side with `shards` shards that serves `lane`.
pub fn shard_of(lane: u32, shards: usize) -> usize {
    lane as usize % shards.max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_sides_find_the_same_lane_and_lanes_spread() {
        let mut counts = [0; 4];
        for worker in 0..64 {
            let (ps, worker) = ("10.0.0.1:2222", format!("10.0.1.{worker}:2222"));
            assert_eq!(lane(ps, &worker), lane(&worker, ps));
            counts[shard_of(lane(ps, &worker), 4)] += 1;
        }
        assert!(counts.iter().all(|count| (8..=24).contains(count)), "{counts:?}");
    }

    #[test]
    fn the_lane_is_the_one_the_wire_promises() {
        assert_eq!(lane("a:1", "b:2"), lane("b:2", "a:1"));
        assert_eq!(lane("a:1", "b:2"), 1_860_462_860);
    }
}
