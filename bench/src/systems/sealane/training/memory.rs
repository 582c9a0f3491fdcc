//! The memory that a worker pulls into: its own from the first step on, or made for each transfer, and where a copy is
//! forced, the memory that it copies to.

use sealane_fusion::Buffer;
use sealane_runtime::{Slab, SlabSettings};

use super::broken;
use crate::error::BenchError;
use crate::plan::Registration;

/// Memory for a tensor that is about to be asked for.
///
/// Over TCP there is no device to register with. What is made for each transfer is mapped by the kernel, page by page,
/// before it is used, and unmapped afterwards: the host's part of a registration, without the device's.
pub(super) fn destination(registration: Registration, bytes: usize) -> Result<Buffer, BenchError> {
    match registration {
        Registration::Static => Ok(Buffer::from_vec(vec![0; bytes])),
        Registration::Dynamic => {
            let slab = Slab::new(SlabSettings { name: "receive", bytes, populate: true }).map_err(broken)?;
            slab.allocate(bytes).map_err(broken)
        }
    }
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
