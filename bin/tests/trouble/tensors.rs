//! Tensors that tell when they are torn: every part of one says whose part it is.

use sealane::{Buffer, DType, Task, Tensor, TensorMeta};

/// The step of most calls.
pub const STEP: i64 = 7;

/// So large that a copy takes several turns, and a transfer over TCP many.
pub const LARGE: usize = 4 << 20;

/// Bytes after which the pattern of a number begins again.
const PATTERN_BYTES: usize = 4096;

/// The bytes of the tensor of that number.
pub fn bytes(number: u64, len: usize) -> Vec<u8> {
    let words = (0..PATTERN_BYTES as u64 / 8)
        .map(|at| number.wrapping_mul(0x9E37_79B9_7F4A_7C15).wrapping_add(at << 48 | number));
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

/// Whether this is the tensor of that number, all of it.
pub fn verify(tensor: &Tensor, number: u64, len: usize) {
    assert!(tensor.bytes() == bytes(number, len), "tensor {number} is torn or another one");
}
