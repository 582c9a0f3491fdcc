//! Copies from one task's memory into another's: of which sizes, and how much of them a turn.

use sealane_runtime::{Buffer, VolatileSlice};

/// Bytes copied at once; a larger tensor is copied in several turns.
pub(super) const COPY_AT_ONCE_BYTES: usize = 64 << 10;
/// Bytes that one `memcpy` is given: for more, the C library changes to stores that pass the caches by, which was slower
/// (4 MiB at once 31 GB/s, in pieces of 64 KiB 38 GB/s).
const COPY_PIECE_BYTES: usize = 64 << 10;
/// Bytes copied in one turn at most, all copies together: about 30 µs, so that small messages do not wait long.
pub(super) const COPY_BUDGET_BYTES: usize = 1 << 20;

/// Bytes copied for one producer, or for one pull, before the next one's turn comes.
pub(super) const COPY_HELPING_BYTES: usize = 256 << 10;

/// Copies up to `budget` bytes of `source` from `filled` on, a piece at a time, see [`COPY_PIECE_BYTES`]; how many.
pub(super) fn copy_in_pieces(target: &mut Buffer, source: VolatileSlice<'_>, filled: usize, budget: usize) -> usize {
    debug_assert!(filled <= source.len(), "a copy would go on behind the end of its tensor");
    let end = source.len().min(filled.saturating_add(budget));
    for at in (filled..end).step_by(COPY_PIECE_BYTES) {
        let piece = at..end.min(at + COPY_PIECE_BYTES);
        target.volatile_mut().range(piece.clone()).copy_from(source.range(piece));
    }
    end - filled
}
