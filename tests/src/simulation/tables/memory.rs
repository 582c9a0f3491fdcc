//! The memory of a simulated table, which stores share and its task writes: as in a client's table, rows may be half written.
#![allow(unsafe_code)]

use std::sync::Arc;

use sealane_fusion::{Buffer, DType, Tensor, TensorMeta};
use sealane_runtime::{Rows, VolatileSlice};
use sealane_transport::Payload;

/// Fills the first half of a row while it is being written; it is not the number of any write.
const HALF_WRITTEN: u8 = 0xee;

pub(super) struct Memory {
    rows: Arc<Buffer>,
    locks: Arc<Buffer>,
    row_bytes: usize,
}

impl Memory {
    pub(super) fn new(rows: u64, row_bytes: usize, locks: usize) -> Self {
        let zeros = |bytes| Arc::new(Buffer::from_vec(vec![0; bytes]));
        Self { rows: zeros(rows as usize * row_bytes), locks: zeros(locks * size_of::<u32>()), row_bytes }
    }

    /// The rows and their locks, to be published.
    pub(super) fn tensors(&self) -> Result<[Tensor; 2], String> {
        let rows = (self.rows.len() / self.row_bytes) as u64;
        let tensor = |dtype, shape: &[u64], memory: &Arc<Buffer>| {
            Tensor::new(TensorMeta::new(dtype, shape)?, Payload::Shared(memory.clone()))
        };
        let rows = tensor(DType::U8, &[rows, self.row_bytes as u64], &self.rows);
        let locks = tensor(DType::U32, &[(self.locks.len() / size_of::<u32>()) as u64], &self.locks);
        Ok([rows.map_err(|error| error.to_string())?, locks.map_err(|error| error.to_string())?])
    }

    /// Writes a row completely, even if it is half written.
    pub(super) fn write(&self, row: u64, bytes: &[u8]) {
        write(&self.rows, self.row_bytes, self.locks.volatile(), row, |_| bytes.to_vec());
    }

    /// Leaves a row half written, as a process does that is stopped in the middle.
    pub(super) fn begin(&self, row: u64) {
        let stripe = row % (self.locks.len() / size_of::<u32>()) as u64;
        write(&self.locks, size_of::<u32>(), VolatileSlice::empty(), stripe, |number| {
            let number = u32::from_ne_bytes(number.try_into().expect("a lock has 4 bytes"));
            (number.wrapping_add(1) | 1).to_ne_bytes().into()
        });
        write(&self.rows, self.row_bytes, VolatileSlice::empty(), row, |mut bytes| {
            bytes[..self.row_bytes.div_ceil(2)].fill(HALF_WRITTEN);
            bytes
        });
    }
}

/// Replaces a row by what `change` makes of it.
fn write(memory: &Buffer, row_bytes: usize, locks: VolatileSlice<'_>, row: u64, change: impl Fn(Vec<u8>) -> Vec<u8>) {
    // SAFETY: the memory is the heap's, this is the only thread, and stores copy it as volatile bytes.
    unsafe {
        Rows::new(memory.volatile(), row_bytes, locks).write(&[row], |_, mut row| {
            let mut before = Vec::new();
            row.as_volatile().append_to(&mut before);
            row.copy_from(&change(before));
        });
    }
}
