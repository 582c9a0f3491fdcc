//! Where the tensors of both sides lie: over verbs in the shard's slab, which is registered once; else in the heap. Runs on
//! the shard; bounded by the slab, which is made as large as the plan needs.

use bytes::Bytes;
use sealane_fusion::{Buffer, Error, LocalEngine};

use super::names::lanes;
use super::parameters::AHEAD;
use crate::limits::FILL;
use crate::plan::{Bench, Link, Plan};

/// Bytes of each slab that the plan's tensors do not count for: the largest window of small tensors, or a few large ones.
const SLAB_BYTES: usize = 64 << 20;

/// The largest block of a slab that is a power of two; larger ones are whole pages.
const SMALL_BLOCK_BYTES: usize = 64 << 10;
const BLOCK_BYTES_MIN: usize = 64;
const PAGE_BYTES: usize = 4 << 10;

/// Memory that stays with one tensor.
pub(super) fn buffer(shard: &LocalEngine, plan: &Plan, bytes: usize) -> Result<Buffer, Error> {
    match plan.link {
        Link::Verbs => shard.allocate(bytes),
        Link::Tcp | Link::Shm | Link::Loopback => Ok(Buffer::from_vec(vec![0; bytes])),
    }
}

/// The bytes of a tensor that is sent again and again, without a copy.
pub(super) fn filled(shard: &LocalEngine, plan: &Plan, bytes: usize) -> Result<Bytes, Error> {
    let mut memory = buffer(shard, plan, bytes)?;
    memory.fill(FILL);
    Ok(Bytes::from_owner(memory))
}

/// Bytes of the slab that both sides take their tensors from.
pub(super) fn slab_bytes(plan: &Plan) -> usize {
    if plan.link != Link::Verbs {
        return SLAB_BYTES;
    }
    // The producer of these makes each tensor anew; the others send theirs again.
    let copies = if matches!(plan.bench, Bench::Latency | Bench::Rate) { AHEAD } else { 1 };
    SLAB_BYTES + copies * room_bytes(&lanes(plan))
}

/// Bytes of a slab in which tensors of these sizes find room.
pub(super) fn room_bytes(sizes: &[usize]) -> usize {
    let blocks: usize = sizes.iter().copied().map(block_bytes).sum();
    // A quarter more, since free pages need not be neighbours.
    blocks + blocks / 4
}

fn block_bytes(bytes: usize) -> usize {
    if bytes <= SMALL_BLOCK_BYTES {
        bytes.next_power_of_two().max(BLOCK_BYTES_MIN)
    } else {
        bytes.next_multiple_of(PAGE_BYTES)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slab_holds_all_that_lies_in_it() {
        assert_eq!(slab_bytes(&Plan::new(Bench::Bandwidth)), SLAB_BYTES, "nothing does over tcp");
        let over_verbs = |plan: Plan| slab_bytes(&Plan { link: Link::Verbs, ..plan }) - SLAB_BYTES;
        let (size_bytes, window) = (1 << 20, 40);
        let bandwidth = Plan { size_bytes, window, ..Plan::new(Bench::Bandwidth) };
        assert_eq!(over_verbs(bandwidth), 50 << 20);
        let rate = Plan { size_bytes: 65, window: 8, ..Plan::new(Bench::Rate) };
        assert_eq!(over_verbs(rate), AHEAD * 8 * 128 * 5 / 4);
        let step = Plan { step: vec![1, 100_000], ..Plan::new(Bench::Fuse) };
        assert_eq!(over_verbs(step), (64 + 25 * 4096) * 5 / 4);
    }
}
