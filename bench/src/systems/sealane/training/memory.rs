//! The memory that a worker pulls into: its own from the first step on, or made for each transfer, and where a copy is
//! forced, the memory that it copies to.

use sealane_fusion::Buffer;
use sealane_runtime::{Slab, SlabSettings};

use crate::error::BenchError;
use crate::plan::Registration;

const SMALL_BYTES_MAX: usize = 64 << 10;
const PAGE_BYTES: usize = 4 << 10;

/// Memory for a tensor that is about to be asked for.
///
/// Over TCP there is no device to register with. What is made for each transfer is mapped by the kernel, page by page,
/// before it is used, and unmapped afterwards: the host's part of a registration, without the device's.
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

/// The least memory that a slab hands out so much of in one piece: a power of two up to 64 KiB, and above that a number of
/// pages with four significant bits, as its books keep them.
fn slab_bytes(bytes: usize) -> usize {
    if bytes <= SMALL_BYTES_MAX {
        return bytes.next_power_of_two().max(PAGE_BYTES);
    }
    let pages = bytes.div_ceil(PAGE_BYTES);
    pages.next_multiple_of(((1 << pages.ilog2()) / 8).max(1)) * PAGE_BYTES
}

/// Where a worker copies what it has pulled from one ps.
pub(super) struct Copies(Vec<Vec<u8>>);

impl Copies {
    pub(super) fn new(sizes: &[usize]) -> Self {
        Self(sizes.iter().map(|&bytes| vec![0; bytes]).collect())
    }

    pub(super) fn take(&mut self, number: usize, bytes: &[u8]) {
        self.0[number].copy_from_slice(bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_is_memory_for_tensors_of_every_size() {
        let powers = (0..23).flat_map(|power| [-1, 0, 1].map(|more| (1_i32 << power) + more));
        for bytes in powers.chain([26_624, 751_616, 3_000_001]).filter(|bytes| *bytes > 0) {
            for registration in [Registration::Static, Registration::Dynamic] {
                let memory = destination(registration, bytes as usize).expect("there is memory");
                assert_eq!(memory.len(), bytes as usize);
            }
        }
    }
}
