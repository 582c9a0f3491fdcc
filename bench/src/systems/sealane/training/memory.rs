//! The memory that a worker pulls into, kept from the first step on or allocated for each transfer; and the memory and files that a
//! worker as a client takes in both processes.

use sealane_fusion::Buffer;
use sealane_runtime::{Slab, SlabSettings};

use super::super::engine::room_bytes;
use crate::error::BenchError;
use crate::plan::{Fuse, Plan, Registration};
use crate::systems::rows::bytes_of_each;
use crate::systems::training;

const SMALL_BYTES_MAX: usize = 64 << 10;
const PAGE_BYTES: usize = 4 << 10;

/// Memory for a tensor that is about to be requested.
///
/// Over TCP there is no device to register with. Memory allocated for each transfer is mapped by the kernel, page by page, before
/// it is used, and unmapped afterwards: the host's part of a registration, without the device's.
pub(super) fn destination(registration: Registration, bytes: usize) -> Result<Buffer, BenchError> {
    match registration {
        Registration::Static => Ok(Buffer::from_vec(vec![0; bytes])),
        Registration::Dynamic => {
            let settings = SlabSettings { name: "receive", bytes: slab_bytes(bytes), populate: true };
            let slab = Slab::new(settings).map_err(BenchError::sealane("train"))?;
            slab.allocate(bytes).map_err(BenchError::sealane("train"))
        }
    }
}

/// The memory that a slab uses to allocate this many bytes in one piece: a power of two up to 64 KiB, and above that a number of
/// pages with four significant bits, as in its bookkeeping.
fn slab_bytes(bytes: usize) -> usize {
    if bytes <= SMALL_BYTES_MAX {
        return bytes.next_power_of_two().max(PAGE_BYTES);
    }
    let pages = bytes.div_ceil(PAGE_BYTES);
    pages.next_multiple_of(((1 << pages.ilog2()) / 8).max(1)) * PAGE_BYTES
}

/// Open files of a client: its socket, its doorbell, and what it sleeps on.
pub(in super::super) const OPEN_FILES: usize = 3;

/// Memory of a client for what it pulls with a plan, and for rows, which lie where the engine puts them.
pub(super) fn area_bytes(plan: &Plan) -> u64 {
    let planned = if plan.fuse == Fuse::Plan { room_bytes(&plan.step) } else { 0 };
    (planned + room_bytes(&bytes_of_each(plan))) as u64
}

/// Memory of a client for its gradients, and for what it pulls without a plan.
pub(super) fn arena_bytes(plan: &Plan) -> u64 {
    let pushed = room_bytes(&training::of(plan).push);
    let pulled = if plan.fuse == Fuse::Plan { 0 } else { room_bytes(&plan.step) };
    (pushed + pulled) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_is_memory_for_tensors_of_every_size() {
        let powers = (0..23).flat_map(|power| [-1, 0, 1].map(|more| (1_i32 << power) + more));
        for bytes in powers.chain([26_624, 751_616, 3_000_001]).filter(|bytes| *bytes > 0) {
            let memory = destination(Registration::Dynamic, bytes as usize).expect("there is memory");
            assert_eq!(memory.len(), bytes as usize);
        }
    }
}
