//! A buffer: bytes with one owner, from a slab or from the heap; any thread, bounded by its slab.
#![allow(unsafe_code)]

use std::{
    fmt,
    ops::{Deref, DerefMut},
    ptr::NonNull,
};

use super::{
    extents::Block,
    home::{self, Home},
};

/// Bytes with one owner, which go back to their slab when dropped, from whichever thread.
///
/// A buffer from a [`Slab`](super::Slab) is 64-byte aligned and exactly as long as was asked for; one made by
/// [`from_vec`](Self::from_vec) lies on the heap. The default is empty and owns nothing.
pub struct Buffer(Storage);

enum Storage {
    Slab { start: NonNull<u8>, len: usize, block: Block, home: NonNull<Home> },
    Heap(Vec<u8>),
}

// SAFETY: a buffer is the only one to access its bytes, and `give_back` may be called from any thread.
unsafe impl Send for Buffer {}
// SAFETY: a shared buffer gives out nothing but `&[u8]`.
unsafe impl Sync for Buffer {}

impl Buffer {
    /// # Safety
    /// `block` was just taken from `home` for at least `len` bytes, lies at `start`, and goes to this buffer alone.
    pub(super) unsafe fn from_block(start: NonNull<u8>, len: usize, block: Block, home: NonNull<Home>) -> Self {
        Self(Storage::Slab { start, len, block, home })
    }

    /// A buffer on the heap that takes `bytes` over without copying.
    pub fn from_vec(bytes: Vec<u8>) -> Self {
        Self(Storage::Heap(bytes))
    }

    /// The heap memory of a buffer that was made by [`from_vec`](Self::from_vec), without copying.
    ///
    /// # Errors
    /// The buffer itself where it lies in a slab.
    pub fn into_vec(mut self) -> Result<Vec<u8>, Self> {
        match &mut self.0 {
            Storage::Heap(bytes) => Ok(std::mem::take(bytes)),
            Storage::Slab { .. } => Err(self),
        }
    }

    /// Shortens the buffer to `len` bytes; does nothing where it is not longer. The block stays taken as a whole.
    pub fn truncate(&mut self, len: usize) {
        match &mut self.0 {
            Storage::Heap(bytes) => bytes.truncate(len),
            Storage::Slab { len: now, .. } => *now = len.min(*now),
        }
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        if let Storage::Slab { block, home, .. } = self.0 {
            // SAFETY: the block went to this buffer alone, which nobody can use any more.
            unsafe { home::give_back(home, block) };
        }
    }
}

impl Deref for Buffer {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        match &self.0 {
            Storage::Heap(bytes) => bytes,
            // SAFETY: the block lies in a mapping that outlives the buffer, has at least `len` bytes, all of them
            // initialised (zeroed by the kernel or written since), and is accessed through this buffer alone.
            Storage::Slab { start, len, .. } => unsafe { std::slice::from_raw_parts(start.as_ptr(), *len) },
        }
    }
}

impl DerefMut for Buffer {
    #[inline]
    fn deref_mut(&mut self) -> &mut [u8] {
        match &mut self.0 {
            Storage::Heap(bytes) => bytes,
            // SAFETY: as in `deref`, and `self` is borrowed mutably.
            Storage::Slab { start, len, .. } => unsafe { std::slice::from_raw_parts_mut(start.as_ptr(), *len) },
        }
    }
}

impl Default for Buffer {
    fn default() -> Self {
        Self(Storage::Heap(Vec::new()))
    }
}

impl AsRef<[u8]> for Buffer {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl fmt::Debug for Buffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let place = match self.0 {
            Storage::Slab { .. } => "slab",
            Storage::Heap(_) => "heap",
        };
        write!(f, "Buffer({} bytes, {place})", self.len())
    }
}
