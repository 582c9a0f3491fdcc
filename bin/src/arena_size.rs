//! How large an arena must be to hold all tensors that a client has in it at once. Pure.

/// Memory is allocated in pages; a tensor above the small limit has pages of its own.
const PAGE_BYTES: u64 = 4096;
/// Up to this size, tensors of similar size share pages, in blocks of a power of two.
const SMALL_BYTES_MAX: u64 = 64 * 1024;
const BLOCK_BYTES_MIN: u64 = 64;
/// What may be left over in such shared pages: one partly used extent of 256 KiB for each of eleven block sizes.
const SMALL_SPARE_BYTES: u64 = 11 * 256 * 1024;

/// Bytes of an arena that holds tensors of these lengths. The allocator behind an arena finds free runs by size class, an eighth
/// wide: half of the largest tensor is added, so that room is found for the last one.
pub(crate) fn arena_bytes(lengths: impl IntoIterator<Item = u64>) -> u64 {
    let (mut sum, mut largest) = (SMALL_SPARE_BYTES, 0);
    for length in lengths {
        let block = if length <= SMALL_BYTES_MAX {
            length.next_power_of_two().max(BLOCK_BYTES_MIN)
        } else {
            length.next_multiple_of(PAGE_BYTES)
        };
        (sum, largest) = (sum + block, block.max(largest));
    }
    (sum + largest / 2).next_multiple_of(PAGE_BYTES)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use sealane_runtime::Extents;

    proptest! {
        #[test]
        fn all_tensors_find_room(small in prop::collection::vec(1..200_000_u64, 0..200), large in prop::collection::vec(1..20_000_000_u64, 0..20)) {
            let lengths = || small.iter().chain(&large).copied();
            let mut extents = Extents::new(arena_bytes(lengths()) as usize);
            for length in lengths() {
                prop_assert!(extents.allocate(length as usize).is_some(), "{length}");
            }
        }
    }

    #[test]
    fn an_arena_is_little_more_than_its_tensors() {
        assert_eq!(arena_bytes([]), SMALL_SPARE_BYTES);
        assert!(arena_bytes([1 << 30, 1 << 30]) < 3 << 30);
    }
}
