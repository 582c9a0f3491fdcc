//! Room in a client's arena, or in the area for what it receives.

/// What is not whole tensors: blocks that are cut for small ones, and the books' rounding.
pub(super) const SLACK_BYTES: usize = 2 << 20;
/// The books' rounding, a tensor.
const SLACK_BYTES_A_TENSOR: usize = 4 << 10;

/// A small block has a power of two; a large one is found where a little more than it needs is free.
pub(super) fn block_bytes(bytes: usize) -> usize {
    bytes.next_power_of_two().min(bytes + (64 << 10))
}

/// Room for tensors of these sizes, besides the slack.
pub(super) fn room_bytes(sizes: &[usize]) -> usize {
    sizes.iter().map(|&bytes| block_bytes(bytes) + SLACK_BYTES_A_TENSOR).sum()
}

/// Room for all tensors of a step, on either side.
pub(super) fn step_bytes(step: &[usize]) -> u64 {
    (room_bytes(step) + SLACK_BYTES) as u64
}
