//! Copies from one task's memory into another's: of which sizes, and how much of them a turn.

use sealane_runtime::{Buffer, VolatileSlice};

use crate::limits::COPY_PIECE_BYTES;

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
