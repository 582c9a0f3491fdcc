//! Tensors that reveal when they are torn: every part identifies its tensor.

use sealane::{Buffer, DType, Task, Tensor, TensorMeta};

/// The step of most calls.
pub const STEP: i64 = 7;

/// So large that a copy takes several turns, and a transfer over TCP takes many.
pub const LARGE: usize = 4 << 20;

/// So large that a copy takes several turns, and small enough for many to fit into a client's arena.
pub const MIDDLING: usize = 600 << 10;

/// Low bits of a word that hold the tensor's number; the bits above hold its position.
const NUMBER_BITS: u32 = 48;

/// Bytes after which the pattern repeats.
const PATTERN_BYTES: usize = 4096;

/// The bytes of the tensor with this number.
pub fn bytes(number: u64, len: usize) -> Vec<u8> {
    // Never zero, unlike memory that was never written.
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

/// A tensor in the arena, so that it is sent from there.
pub fn in_arena(task: &Task, number: u64, len: usize) -> Tensor {
    let mut memory: Buffer = task.alloc(len).unwrap();
    memory.copy_from_slice(&bytes(number, len));
    Tensor::new(meta(len), memory).unwrap()
}

/// The number in a tensor's first word; [`verify`] checks the rest.
pub fn number_in(tensor: &Tensor) -> u64 {
    let word = u64::from_le_bytes(*tensor.bytes().first_chunk().unwrap());
    (word & ((1 << NUMBER_BITS) - 1)) - 1
}

/// Checks that this is the complete tensor with that number.
pub fn verify(tensor: &Tensor, number: u64, len: usize) {
    assert!(tensor.bytes() == bytes(number, len), "tensor {number} is torn or another one");
}
