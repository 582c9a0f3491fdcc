//! Memory that a tensor owns and Python objects view. Any thread; the owner is a `sealane.Tensor`, which every array and every
//! exported view keeps alive.
#![allow(unsafe_code)]

use std::ptr::NonNull;

use sealane::Payload;
use sealane_runtime::VolatileSliceMut;

/// Bytes that stay in place for as long as this lives.
pub(crate) struct Owned {
    start: *mut u8,
    len: usize,
    writable: bool,
    /// Boxed, since a small buffer stores its bytes inline; and not a `Box`, which would claim exclusive access to them.
    payload: NonNull<Payload>,
}

// SAFETY: the payload may be sent and shared, and the address is only that of its bytes.
unsafe impl Send for Owned {}
// SAFETY: as above; Rust never reads or writes through the address, Python does under its own rules.
unsafe impl Sync for Owned {}

impl Owned {
    /// Takes over the bytes: writable if nobody else has them.
    pub(crate) fn new(payload: Payload) -> Self {
        let mut payload = NonNull::from(Box::leak(Box::new(payload)));
        // SAFETY: it was just made, and nobody else knows of it. From here on it is left alone until it is dropped.
        let (start, len, writable) = match unsafe { payload.as_mut() } {
            Payload::Owned(buffer) => (buffer.as_mut_ptr(), buffer.len(), true),
            Payload::Shared(buffer) => (buffer.as_ptr().cast_mut(), buffer.len(), false),
            Payload::Bytes(bytes) => (bytes.as_ptr().cast_mut(), bytes.len(), false),
        };
        Self { start, len, writable, payload }
    }

    /// Address of the bytes. Must not be written to unless [`writable`](Self::writable).
    pub(crate) fn start(&self) -> *mut u8 {
        self.start
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn writable(&self) -> bool {
        self.writable
    }

    /// A copy of the bytes. Python code in another thread may be changing them meanwhile: then the copy is torn, as with numpy.
    pub(crate) fn to_vec(&self) -> Vec<u8> {
        let mut copy = vec![0; self.len];
        // SAFETY: the payload keeps `len` readable bytes at `start`, and the copy has as many elsewhere.
        unsafe { std::ptr::copy_nonoverlapping(self.start, copy.as_mut_ptr(), self.len) };
        copy
    }

    /// Overwrites all bytes. Python code in another thread may be reading them meanwhile: what it reads is torn, as with numpy.
    ///
    /// # Panics
    /// If the lengths differ, or it is not [`writable`](Self::writable).
    pub(crate) fn write_over(&self, bytes: &[u8]) {
        assert!(self.writable && bytes.len() == self.len, "asked before");
        // SAFETY: the payload keeps `len` writable bytes at `start`; `copy_from` allows that the two overlap.
        unsafe { VolatileSliceMut::new(self.start, self.len) }.copy_from(bytes);
    }
}

impl Drop for Owned {
    fn drop(&mut self) {
        // SAFETY: it came from a box, and nobody uses its bytes any more: all users keep the tensor that contains this.
        drop(unsafe { Box::from_raw(self.payload.as_ptr()) });
    }
}
