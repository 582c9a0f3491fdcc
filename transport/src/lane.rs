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

/// The lane by which shard `shard` of a side with `shards` shards pulls for a pair whose lane is `lane`: on the shard that
/// serves the pair this lane itself, otherwise a near one that leads back to `shard`. So the shards of a side reach
/// different shards of the other side, as many as it has.
pub fn lane_by(lane: u32, shard: usize, shards: usize) -> u32 {
    let shards = shards.max(1) as u64;
    let near = u64::from(lane) - u64::from(lane) % shards + shard as u64;
    u32::try_from(near).unwrap_or_else(|_| (near - shards) as u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_shard_has_a_lane_to_itself_and_they_lead_to_different_shards_of_the_peer() {
        for lane in [0, 1, 5, 1_860_462_860, u32::MAX - 2, u32::MAX] {
            for shards in [1, 2, 3, 7, 1024] {
                let lanes: Vec<u32> = (0..shards).map(|shard| lane_by(lane, shard, shards)).collect();
                assert!(lanes.iter().enumerate().all(|(shard, lane)| shard_of(*lane, shards) == shard), "{lanes:?}");
                assert_eq!(lanes[shard_of(lane, shards)], lane);
                for theirs in [2, 3, 8] {
                    let reached: std::collections::HashSet<_> =
                        lanes.iter().map(|lane| shard_of(*lane, theirs)).collect();
                    assert_eq!(reached.len(), shards.min(theirs), "{shards} and {theirs} by {lanes:?}");
                }
            }
        }
    }

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
}
