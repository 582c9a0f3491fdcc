//! Copies from one task's memory into another's: in pieces, and limited per turn.

use sealane_runtime::{Buffer, DeviceError};
use sealane_transport::Payload;

use crate::limits::COPY_PIECE_BYTES;

/// Copies up to `budget` bytes of `source` from `filled` on, in pieces of [`COPY_PIECE_BYTES`]; returns how many.
///
/// # Errors
/// A device could not copy from or to its memory.
pub(super) fn copy_in_pieces(
    target: &mut Buffer,
    source: &Payload,
    filled: usize,
    budget: usize,
) -> Result<usize, DeviceError> {
    debug_assert!(filled <= source.len(), "a copy would go on behind the end of its tensor");
    let end = source.len().min(filled.saturating_add(budget));
    for at in (filled..end).step_by(COPY_PIECE_BYTES) {
        source.copy_to(target, at..end.min(at + COPY_PIECE_BYTES))?;
    }
    Ok(end - filled)
}
