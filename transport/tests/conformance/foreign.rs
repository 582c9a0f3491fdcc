//! Memory as a client lends it to a daemon: others may write to it at any time, so no link may use it as a slice.
#![allow(unsafe_code)]

use std::ptr::NonNull;
use std::sync::Arc;

use sealane_runtime::{Buffer, Lender};

struct Keeper(NonNull<u8>, usize);

// SAFETY: it does nothing with the memory but free it.
unsafe impl Send for Keeper {}
// SAFETY: as above.
unsafe impl Sync for Keeper {}

impl Lender for Keeper {
    fn give_back(&self, _token: u64) {}
}

impl Drop for Keeper {
    fn drop(&mut self) {
        // SAFETY: `foreign` made it of a box of this length, and the last buffer over it is gone.
        drop(unsafe { Box::from_raw(std::ptr::slice_from_raw_parts_mut(self.0.as_ptr(), self.1)) });
    }
}

/// A foreign buffer of these bytes.
pub fn foreign(bytes: Vec<u8>) -> Buffer {
    let len = bytes.len();
    let start = NonNull::new(Box::into_raw(bytes.into_boxed_slice()).cast::<u8>()).expect("a box has an address");
    // SAFETY: the keeper frees the memory when the buffer is gone, and nobody else has it.
    unsafe { Buffer::foreign(start, len, 0, Arc::new(Keeper(start, len))) }
}
