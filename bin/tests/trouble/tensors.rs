//! Tensors that tell when they are torn: every part of one says whose part it is.

use sealane::{Buffer, DType, Task, Tensor, TensorMeta};

/// The step of most calls.
pub const STEP: i64 = 7;

/// So large that a copy takes several turns, and a transfer over TCP many.
pub const LARGE: usize = 4 << 20;

/// So large that a copy takes several turns, and that many fit into what a client has for them.
pub const MIDDLING: usize = 600 << 10;

/// Bits of a word that say whose it is; those above say where it is.
const NUMBER_BITS: u32 = 48;

/// Bytes after which the pattern of a number begins again.
const PATTERN_BYTES: usize = 4096;

/// The bytes of the tensor of that number.
pub fn bytes(number: u64, len: usize) -> Vec<u8> {
    // Never zero, as memory is that nobody has written.
    let words = (0..PATTERN_BYTES as u64 / 8).map(|at| (at << NUMBER_BITS) | (number + 1));
    let pattern: Vec<u8> = words.flat_map(u64::to_le_bytes).collect();
    let mut bytes = pattern.repeat(len.div_ceil(PATTERN_BYTES));
    bytes.truncate(len);
    bytes
}

pub fn meta(len: usize) -> TensorMeta {
    TensorMeta::new(DType::U8, &[len as u64]).unwrap()
}

pub fn tensor(number: u64, len: usize) -> Tensor {
    Tensor::new(meta(len), bytes(number, len)).unwrap()
}

/// A tensor that lies in the arena, so that it leaves from there.
pub fn in_arena(task: &Task, number: u64, len: usize) -> Tensor {
    let mut memory: Buffer = task.alloc(len).unwrap();
    memory.copy_from_slice(&bytes(number, len));
    Tensor::new(meta(len), memory).unwrap()
}

/// The number of a tensor, by its first word; for [`verify`] to confirm.
pub fn number_in(tensor: &Tensor) -> u64 {
    let word = u64::from_le_bytes(*tensor.bytes().first_chunk().unwrap());
    (word & ((1 << NUMBER_BITS) - 1)) - 1
}

/// Whether this is the tensor of that number, all of it.
pub fn verify(tensor: &Tensor, number: u64, len: usize) {
    assert!(tensor.bytes() == bytes(number, len), "tensor {number} is torn or another one");
}
