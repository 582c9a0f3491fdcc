//! A buffer: bytes with one owner, in itself, from a slab, from the heap or lent; any thread, bounded by its slab.
#![allow(unsafe_code)]

use std::{
    fmt,
    ops::{Deref, DerefMut},
    ptr::NonNull,
    sync::Arc,
};

use super::{
    extents::Block,
    home::{self, Home},
};
use crate::volatile::{VolatileSlice, VolatileSliceMut};

/// Who lends memory that is no slab's, and hears when it is no longer used.
pub trait Lender: Send + Sync {
    /// The buffer that was lent as `token` is dropped: nobody uses its bytes any more. Called on whichever thread drops
    /// it, and wherever: it must not call back into what owns the buffer.
    fn give_back(&self, token: u64);
}

/// Bytes with one owner, which go back to their slab when dropped, from whichever thread.
///
/// A buffer from a [`Slab`](super::Slab) is 64-byte aligned and exactly as long as was asked for; one made by
/// [`from_vec`](Self::from_vec) lies on the heap; a few bytes lie in the buffer itself, and move with it, if it was made by
/// [`copy_of`](Self::copy_of). The default is empty and owns nothing.
pub struct Buffer(Storage);

const OWN_WORDS: usize = Buffer::OWN_BYTES / 8;

enum Storage {
    Slab { start: NonNull<u8>, len: usize, block: Block, home: NonNull<Home> },
    Lent { start: NonNull<u8>, len: usize, token: u64, lender: Arc<dyn Lender>, is_foreign: bool },
    Heap(Vec<u8>),
    Own { len: u8, words: [u64; OWN_WORDS] },
}

// SAFETY: a buffer is the only one to access its bytes, and `give_back` may be called from any thread.
unsafe impl Send for Buffer {}
// SAFETY: a shared buffer gives out nothing but `&[u8]` and the address of bytes that are only copied.
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

    /// Most bytes that a buffer holds itself: a row of 16 floats. More would make every move of a tensor dearer; fewer would
    /// miss the tensors that are sent in the largest numbers.
    pub const OWN_BYTES: usize = 64;

    /// A buffer with a copy of `bytes`: within itself if they are few, so that nothing is allocated, else on the heap.
    /// Aligned to 8 bytes.
    #[inline]
    pub fn copy_of(bytes: &[u8]) -> Self {
        Self::copy_of_volatile(bytes.into())
    }

    /// The same of bytes that others may write to at any time.
    #[inline]
    pub fn copy_of_volatile(bytes: VolatileSlice<'_>) -> Self {
        if bytes.len() > Self::OWN_BYTES {
            return Self::from_vec(bytes.to_vec());
        }
        let mut buffer = Self(Storage::Own { len: bytes.len() as u8, words: [0; OWN_WORDS] });
        buffer.volatile_mut().copy_from(bytes);
        buffer
    }

    /// A buffer of `len` zeros, kept as [`copy_of`](Self::copy_of) keeps its bytes.
    pub fn of_len(len: usize) -> Self {
        if len > Self::OWN_BYTES {
            return Self::from_vec(vec![0; len]);
        }
        Self(Storage::Own { len: len as u8, words: [0; OWN_WORDS] })
    }

    /// A buffer over memory that `lender` lends as `token`, and gets back when the buffer is dropped.
    ///
    /// # Safety
    /// The `len` bytes at `start` stay readable and writable as long as `lender` lives, and until they are given back
    /// nobody else uses them.
    pub unsafe fn lent(start: NonNull<u8>, len: usize, token: u64, lender: Arc<dyn Lender>) -> Self {
        Self(Storage::Lent { start, len, token, lender, is_foreign: false })
    }

    /// The same over memory that others may write at any time, as another process does that shares it: it has
    /// [`volatile`](Self::volatile) bytes alone, and is no slice.
    ///
    /// # Safety
    /// The `len` bytes at `start` stay readable and writable as long as `lender` lives, and this process uses them through
    /// such buffers alone.
    pub unsafe fn foreign(start: NonNull<u8>, len: usize, token: u64, lender: Arc<dyn Lender>) -> Self {
        Self(Storage::Lent { start, len, token, lender, is_foreign: true })
    }

    /// Length in bytes.
    #[inline]
    pub fn len(&self) -> usize {
        match &self.0 {
            Storage::Slab { len, .. } | Storage::Lent { len, .. } => *len,
            Storage::Heap(bytes) => bytes.len(),
            Storage::Own { len, .. } => usize::from(*len),
        }
    }

    /// True if there are no bytes.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// True if others may write to it at any time: then it is no slice.
    #[inline]
    pub fn is_foreign(&self) -> bool {
        matches!(self.0, Storage::Lent { is_foreign: true, .. })
    }

    /// The bytes, wherever they lie.
    #[inline]
    pub fn volatile(&self) -> VolatileSlice<'_> {
        match &self.0 {
            // SAFETY: as `lent` and `foreign` ask of their callers.
            Storage::Lent { start, len, .. } => unsafe { VolatileSlice::new(start.as_ptr(), *len) },
            _ => (&**self).into(),
        }
    }

    /// The bytes to be written, wherever they lie.
    #[inline]
    pub fn volatile_mut(&mut self) -> VolatileSliceMut<'_> {
        match &mut self.0 {
            // SAFETY: as `lent` and `foreign` ask of their callers, and `self` is borrowed mutably.
            Storage::Lent { start, len, .. } => unsafe { VolatileSliceMut::new(start.as_ptr(), *len) },
            _ => (&mut **self).into(),
        }
    }

    /// The token of a lent buffer, which is not given back by this: the caller owes the bytes to the lender.
    ///
    /// # Errors
    /// The buffer itself where it is not lent.
    pub fn into_token(mut self) -> Result<u64, Self> {
        match std::mem::replace(&mut self.0, Storage::Heap(Vec::new())) {
            Storage::Lent { token, .. } => Ok(token),
            other => {
                self.0 = other;
                Err(self)
            }
        }
    }

    /// Who lent the memory, and as what; `None` where it is not lent.
    pub fn lender(&self) -> Option<(&Arc<dyn Lender>, u64)> {
        match &self.0 {
            Storage::Lent { lender, token, .. } => Some((lender, *token)),
            _ => None,
        }
    }

    /// The heap memory of a buffer that was made by [`from_vec`](Self::from_vec), without copying.
    ///
    /// # Errors
    /// The buffer itself where it lies elsewhere.
    pub fn into_vec(mut self) -> Result<Vec<u8>, Self> {
        match &mut self.0 {
            Storage::Heap(bytes) => Ok(std::mem::take(bytes)),
            Storage::Slab { .. } | Storage::Lent { .. } | Storage::Own { .. } => Err(self),
        }
    }

    /// Shortens the buffer to `len` bytes; does nothing where it is not longer. The block stays taken as a whole.
    pub fn truncate(&mut self, len: usize) {
        match &mut self.0 {
            Storage::Heap(bytes) => bytes.truncate(len),
            Storage::Slab { len: now, .. } | Storage::Lent { len: now, .. } => *now = len.min(*now),
            Storage::Own { len: now, .. } => *now = len.min(usize::from(*now)) as u8,
        }
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        match &self.0 {
            // SAFETY: the block went to this buffer alone, which nobody can use any more.
            Storage::Slab { block, home, .. } => unsafe { home::give_back(*home, *block) },
            Storage::Lent { token, lender, .. } => lender.give_back(*token),
            Storage::Heap(_) | Storage::Own { .. } => {}
        }
    }
}

/// Why a buffer is not looked at. It is a fault of the program, never of the memory's owner.
const FOREIGN: &str = "memory that others write at any time is no slice";

/// # Panics
/// If the buffer [is foreign](Buffer::is_foreign).
impl Deref for Buffer {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        match &self.0 {
            Storage::Heap(bytes) => bytes,
            // SAFETY: the block lies in a mapping that outlives the buffer, has at least `len` bytes, all of them
            // initialised (zeroed by the kernel or written since), and is accessed through this buffer alone.
            Storage::Slab { start, len, .. } => unsafe { std::slice::from_raw_parts(start.as_ptr(), *len) },
            Storage::Lent { start, len, is_foreign, .. } => {
                assert!(!is_foreign, "{FOREIGN}");
                // SAFETY: as `lent` asks of its caller.
                unsafe { std::slice::from_raw_parts(start.as_ptr(), *len) }
            }
            // SAFETY: `len` is at most the size of the words, every one of which is initialised.
            Storage::Own { len, words } => unsafe {
                std::slice::from_raw_parts(words.as_ptr().cast::<u8>(), usize::from(*len))
            },
        }
    }
}

/// # Panics
/// If the buffer [is foreign](Buffer::is_foreign).
impl DerefMut for Buffer {
    #[inline]
    fn deref_mut(&mut self) -> &mut [u8] {
        match &mut self.0 {
            Storage::Heap(bytes) => bytes,
            // SAFETY: as in `deref`, and `self` is borrowed mutably.
            Storage::Slab { start, len, .. } => unsafe { std::slice::from_raw_parts_mut(start.as_ptr(), *len) },
            Storage::Lent { start, len, is_foreign, .. } => {
                assert!(!*is_foreign, "{FOREIGN}");
                // SAFETY: as `lent` asks of its caller, and `self` is borrowed mutably.
                unsafe { std::slice::from_raw_parts_mut(start.as_ptr(), *len) }
            }
            // SAFETY: as in `deref`, and any bytes are legal words.
            Storage::Own { len, words } => unsafe {
                std::slice::from_raw_parts_mut(words.as_mut_ptr().cast::<u8>(), usize::from(*len))
            },
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
            Storage::Lent { .. } => "lent",
            Storage::Heap(_) => "heap",
            Storage::Own { .. } => "own",
        };
        write!(f, "Buffer({} bytes, {place})", self.len())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;

    #[test]
    fn a_few_bytes_are_held_by_the_buffer_itself() {
        for len in [0, 1, 63, 64, 65, 1000] {
            let bytes: Vec<u8> = (0..len).map(|at| at as u8).collect();
            let mut buffer = Buffer::copy_of(&bytes);
            assert_eq!(&*buffer, bytes);
            assert_eq!(format!("{buffer:?}").contains("own"), len <= 64);
            assert!(buffer.as_ptr().cast::<u64>().is_aligned() || len > 64);
            buffer.fill(9);
            buffer.truncate(len / 2);
            assert_eq!(&*buffer, vec![9; len / 2]);
            assert_eq!(buffer.into_vec().is_ok(), len > 64);
        }
    }

    #[test]
    fn lent_memory_is_used_in_place_and_given_back_once() {
        #[derive(Default)]
        struct Book(Mutex<Vec<u64>>);
        impl Lender for Book {
            fn give_back(&self, token: u64) {
                self.0.lock().unwrap().push(token);
            }
        }

        let book = Arc::new(Book::default());
        let mut memory = vec![1_u8; 100];
        let start = NonNull::new(memory.as_mut_ptr()).unwrap();
        // SAFETY: the memory outlives both buffers, which do not exist at the same time.
        let mut lent = unsafe { Buffer::lent(start, 100, 7, book.clone()) };
        lent[99] = 5;
        lent.truncate(50);
        assert_eq!((lent.len(), lent.lender().map(|(_, token)| token)), (50, Some(7)));
        let lent = lent.into_vec().unwrap_err();
        drop(lent);
        assert_eq!(*book.0.lock().unwrap(), [7]);

        // SAFETY: as above.
        let kept = unsafe { Buffer::lent(start, 100, 8, book.clone()) };
        assert_eq!(kept[99], 5);
        assert_eq!(kept.into_token().unwrap(), 8);
        assert_eq!(*book.0.lock().unwrap(), [7], "taking the token means owing the memory");
        assert!(Buffer::from_vec(vec![1]).into_token().is_err());
        assert_eq!(memory[99], 5);
    }

    #[test]
    fn foreign_memory_is_copied_and_is_no_slice() {
        struct Nobody;
        impl Lender for Nobody {
            fn give_back(&self, _token: u64) {}
        }

        let mut memory = vec![1_u8; 100];
        let start = NonNull::new(memory.as_mut_ptr()).unwrap();
        // SAFETY: the memory outlives the buffer, and is not used meanwhile.
        let mut foreign = unsafe { Buffer::foreign(start, 100, 7, Arc::new(Nobody)) };
        foreign.volatile_mut().range(1..3).copy_from(&[2, 3]);
        foreign.truncate(4);
        assert_eq!(foreign.volatile().to_vec(), [1, 2, 3, 1]);
        assert!(foreign.is_foreign() && foreign.len() == 4);
        let look =
            |look: &mut dyn FnMut() -> usize| std::panic::catch_unwind(std::panic::AssertUnwindSafe(look)).is_err();
        assert!(look(&mut || foreign.iter().len()), "a slice of it would promise that it stays as it is");
        assert!(look(&mut || foreign.iter_mut().len()));
    }
}
