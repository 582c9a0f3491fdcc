//! An arena that the driver has pinned, so that copies between it and devices are asynchronous and at full speed.
#![allow(unsafe_code)]

use std::ops::Range;

use sealane_transport::Error;

use super::driver::{Context, Registered};
use crate::limits::CUDA_REGISTERED_BYTES_MAX;

/// Pinned memory; unpinned on drop.
pub(crate) struct Pinned {
    _pieces: Vec<Registered>,
}

impl Pinned {
    /// Pins memory for all devices, by the context of this one.
    ///
    /// # Errors
    /// The driver's; nothing is pinned then.
    ///
    /// # Safety
    /// The memory stays mapped until this is dropped.
    pub(crate) unsafe fn new(memory: Range<*const u8>, device: usize) -> Result<Pinned, Error> {
        let context = Context::of(device)?;
        let len = memory.end as usize - memory.start as usize;
        let start = memory.start.cast_mut();
        let pieces = pieces(len, CUDA_REGISTERED_BYTES_MAX);
        context.with(|current| {
            // SAFETY: a part of memory that stays mapped, as the caller promises.
            let register =
                |piece: Range<usize>| unsafe { current.register(start.wrapping_add(piece.start), piece.len()) };
            Ok(Pinned { _pieces: pieces.map(register).collect::<Result<_, _>>()? })
        })
    }
}

/// `len` bytes in pieces of at most `max`.
fn pieces(len: usize, max: usize) -> impl Iterator<Item = Range<usize>> {
    (0..len).step_by(max).map(move |start| start..len.min(start + max))
}

#[cfg(test)]
mod tests {
    #[test]
    fn pieces_cover_all_of_it() {
        let of = |len| super::pieces(len, 64).collect::<Vec<_>>();
        assert_eq!(of(0), []);
        assert_eq!(of(65), [0..64, 64..65]);
        assert_eq!(of(130), [0..64, 64..128, 128..130]);
    }
}
