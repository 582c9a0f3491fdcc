//! The buffer through which frames are read: one per thread, lent to the link that is being read. A link keeps only an
//! incomplete frame of it.

use std::cell::Cell;

use crate::limits::FRAME_BODY_BYTES_MAX;
use crate::wire::FRAME_HEADER_BYTES;

/// Large enough for any frame and for several hundred small tensors per read. Small enough that under 2% of a large tensor,
/// behind each chunk of 4 MiB, is copied out of it.
pub(super) const STAGING_BYTES: usize = 64 * 1024;
/// Bytes of frames read in one call: a batch that keeps both ends at work. If all 64 KiB are taken at once, the two take
/// turns at working and waiting (`bench rate`, window 256: 2.1 M tensors/s, with 16 KiB 2.6 M, with 4 KiB 2.0 M).
pub(super) const BATCH_BYTES: usize = 16 * 1024;

const _: () = assert!(STAGING_BYTES - BATCH_BYTES >= FRAME_BODY_BYTES_MAX + FRAME_HEADER_BYTES);

thread_local! {
    static STAGING: Cell<Option<Box<[u8]>>> = const { Cell::new(None) };
}

/// Lends this thread's buffer, which is allocated on first use.
#[inline]
pub(super) fn with<R>(read: impl FnOnce(&mut [u8]) -> R) -> R {
    let mut staging = STAGING.take().unwrap_or_else(|| vec![0; STAGING_BYTES].into_boxed_slice());
    let result = read(&mut staging);
    STAGING.set(Some(staging));
    result
}
