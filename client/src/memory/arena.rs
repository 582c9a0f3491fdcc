//! The arena: memory of this process that the daemon reads tensors from and writes tensors to. Any thread, one short lock;
//! bounded by the size agreed on when attaching.
#![allow(unsafe_code)]

use std::{
    ops::Range,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use sealane_runtime::{Block, Buffer, Extents, Lender};
use sealane_transport::shm::{SharedMemory, Span};

#[cfg(feature = "cuda")]
use {crate::cuda::Pinned, sealane_transport::Error};

use super::ForkMark;

/// An arena; every buffer from it keeps it mapped.
pub(crate) struct Arena {
    /// The pinning, or why the CUDA driver refuses it; declared before the memory, which must be mapped when it is unpinned.
    #[cfg(feature = "cuda")]
    pinned: Mutex<Option<Result<Pinned, Error>>>,
    memory: SharedMemory,
    mark: Arc<ForkMark>,
    books: Mutex<Books>,
}

struct Books {
    extents: Extents,
    /// Blocks in use; a buffer's token is the index of its block.
    blocks: Vec<Option<Block>>,
    vacant: Vec<u32>,
}

impl Arena {
    pub(crate) fn new(memory: SharedMemory, mark: Arc<ForkMark>) -> Self {
        let extents = Extents::new(memory.len() as usize);
        let books = Mutex::new(Books { extents, blocks: Vec::new(), vacant: Vec::new() });
        Self {
            #[cfg(feature = "cuda")]
            pinned: Mutex::default(),
            memory,
            mark,
            books,
        }
    }

    /// Pins the arena with the CUDA driver, by a device's context; with `again` also after a failure.
    ///
    /// # Errors
    /// Why it is not pinned.
    #[cfg(feature = "cuda")]
    pub(crate) fn pin(&self, device: usize, again: bool) -> Result<(), Error> {
        let mut pinned = self.pinned.lock().unwrap_or_else(PoisonError::into_inner);
        if pinned.as_ref().is_none_or(|pinned| pinned.is_err() && again) {
            // SAFETY: the memory is unmapped when this arena is dropped, after `pinned`.
            *pinned = Some(unsafe { Pinned::new(self.range(), device) });
        }
        match &*pinned {
            Some(Err(error)) => Err(error.clone()),
            _ => Ok(()),
        }
    }

    fn books(&self) -> MutexGuard<'_, Books> {
        self.books.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A buffer of `len` bytes, aligned to 64; `None` if there is no room. Not for a forked child.
    pub(crate) fn allocate(self: &Arc<Self>, len: usize) -> Option<Buffer> {
        if len == 0 {
            return Some(Buffer::default());
        }
        let mut books = self.books();
        let block = books.extents.allocate(len)?;
        let span = Span { offset: block.offset() as u64, len: len as u64 };
        let start = self.memory.bytes(span).expect("a block lies in the memory that it was cut from").cast();
        let token = match books.vacant.pop() {
            Some(token) => {
                books.blocks[token as usize] = Some(block);
                token
            }
            None => {
                books.blocks.push(Some(block));
                (books.blocks.len() - 1) as u32
            }
        };
        drop(books);
        // SAFETY: the bytes lie in a mapping that this arena keeps, and the extents give a block to nobody else until it
        // is freed, which `give_back` does.
        Some(unsafe { Buffer::lent(start, len, token.into(), self.clone()) })
    }

    /// The arena's addresses.
    pub(crate) fn range(&self) -> Range<*const u8> {
        let start = self.memory.base().as_ptr().cast::<u8>().cast_const();
        start..start.wrapping_add(self.memory.len() as usize)
    }

    /// Where in the arena these bytes lie; `None` if they lie elsewhere.
    #[inline]
    pub(crate) fn span_of(&self, bytes: &[u8]) -> Option<Span> {
        let offset = (bytes.as_ptr() as usize).checked_sub(self.memory.base().as_ptr() as usize)?;
        let end = offset.checked_add(bytes.len())?;
        (end as u64 <= self.memory.len()).then_some(Span { offset: offset as u64, len: bytes.len() as u64 })
    }

    /// True if a buffer is a block of this arena, and not another lender's memory that lies in one.
    pub(crate) fn is_of(&self, buffer: &Buffer) -> bool {
        buffer.lender().is_some_and(|(lender, _)| std::ptr::addr_eq(Arc::as_ptr(lender), self))
    }

    /// The size, and how many bytes are in no block.
    pub(crate) fn size_and_free(&self) -> (u64, u64) {
        let size = self.memory.len();
        (size, size.saturating_sub(self.books().extents.in_use_bytes() as u64))
    }
}

impl Lender for Arena {
    fn give_back(&self, token: u64) {
        // In a child the blocks are the parent's, and the lock may be held forever by a thread that was not copied.
        if self.mark.forked() {
            return;
        }
        let mut books = self.books();
        if let Some(block) = books.blocks.get_mut(token as usize).and_then(Option::take) {
            books.extents.free(block);
            books.vacant.push(token as u32);
        }
    }
}

#[cfg(feature = "cuda")]
impl Drop for Arena {
    fn drop(&mut self) {
        // A child has its parent's memory, but not its driver.
        if self.mark.forked() {
            std::mem::forget(std::mem::take(&mut self.pinned));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn arena(bytes: u64) -> Arc<Arena> {
        let (memory, _) = SharedMemory::create("test", bytes).unwrap();
        Arc::new(Arena::new(memory, Arc::new(ForkMark::new().unwrap())))
    }

    #[test]
    fn buffers_come_from_the_arena_and_go_back_to_it() {
        let arena = arena(1 << 20);
        let mut buffer = arena.allocate(1000).unwrap();
        buffer.fill(7);
        assert_eq!(arena.span_of(&buffer).map(|span| span.len), Some(1000));
        assert_eq!(arena.span_of(&buffer[10..20]).map(|span| span.len), Some(10));
        assert_eq!(arena.size_and_free(), (1 << 20, (1 << 20) - 1024));
        assert!(arena.allocate(1 << 20).is_none());
        drop(buffer);
        let whole = arena.allocate(1 << 20).unwrap();
        assert_eq!(arena.size_and_free().1, 0);
        assert!(arena.allocate(1).is_none());
        assert!(arena.allocate(0).unwrap().is_empty());
        assert!(arena.is_of(&whole) && !arena.is_of(&Buffer::copy_of(&[1; 1000])));
        drop(whole);
    }

    #[test]
    fn bytes_elsewhere_are_not_the_arenas() {
        let (arena, other) = (arena(1 << 20), arena(1 << 20));
        assert_eq!(arena.span_of(&[1, 2, 3]), None);
        assert_eq!(arena.span_of(&other.allocate(10).unwrap()), None);
    }

    #[test]
    fn a_buffer_keeps_its_arena() {
        let arena = arena(1 << 20);
        let mut buffer = arena.allocate(100).unwrap();
        drop(arena);
        buffer.fill(3);
        assert_eq!(buffer[99], 3);
    }
}
