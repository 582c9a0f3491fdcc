//! Views: tensors that other clients of the daemon have published, read in place in those clients' arenas. Any thread; each
//! view keeps its arena mapped, and the daemon keeps the publisher from reusing the memory until the view is dropped. A task that is
//! closed copies what is still viewed, in place: nothing holds the publisher back after that.
#![allow(unsafe_code)]

use std::{
    collections::HashMap,
    num::NonZeroUsize,
    ptr::{self, NonNull},
    sync::{Arc, Mutex, PoisonError},
};

use bytes::Bytes;
use nix::sys::mman::{MRemapFlags, MapFlags, ProtFlags, mmap_anonymous, mprotect, mremap, munmap};
use sealane_transport::shm::{OutOfRange, ReadOnlyMemory, Span};

use super::Area;

const PAGE: usize = 4096;

/// The views that came through one area, by their tokens.
#[derive(Default)]
pub(super) struct Live(Mutex<HashMap<u64, (usize, usize)>>);

impl Live {
    pub(super) fn remove(&self, token: u64) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(&token);
    }

    /// Copies all of them in place. Views for which there is no memory stay the publisher's.
    pub(super) fn keep(&self) {
        // No view is dropped meanwhile.
        let live = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        for &(start, len) in live.values() {
            let first = start - start % PAGE;
            let bytes = (start + len).next_multiple_of(PAGE) - first;
            // SAFETY: the pages are those of a view, whose mapping stays until the view is dropped, which waits for the lock; it is
            // read-only, and nothing but views lies there.
            let _unkept = unsafe { copy_in_place(first, bytes) };
        }
    }
}

/// Replaces shared pages by private ones with the same bytes. Concurrent readers wait, or find either.
///
/// # Safety
/// The pages are mapped, and are this caller's to be replaced by others with the same bytes.
unsafe fn copy_in_place(first: usize, bytes: usize) -> nix::Result<()> {
    let (Some(from), Some(size)) = (NonNull::new(ptr::with_exposed_provenance_mut(first)), NonZeroUsize::new(bytes))
    else {
        return Ok(());
    };
    // SAFETY: a new private mapping, at an address that the kernel chooses.
    let copy =
        unsafe { mmap_anonymous(None, size, ProtFlags::PROT_READ | ProtFlags::PROT_WRITE, MapFlags::MAP_PRIVATE)? };
    // SAFETY: as many bytes are mapped at both, and the copy is nobody else's. Those of neighbours may be written meanwhile, and are
    // not looked at.
    unsafe { ptr::copy_nonoverlapping::<u8>(from.as_ptr(), copy.as_ptr().cast(), bytes) };
    let flags = MRemapFlags::MREMAP_MAYMOVE | MRemapFlags::MREMAP_FIXED;
    // SAFETY: the copy is whole pages of its own mapping.
    let protected = unsafe { mprotect(copy, bytes, ProtFlags::PROT_READ) };
    // SAFETY: it moves the copy's pages to where the caller allows it.
    let moved = protected.and_then(|()| unsafe { mremap(copy, bytes, bytes, flags, Some(from.cast())).map(drop) });
    if moved.is_err() {
        // SAFETY: the copy is still where it was, and nobody's.
        let _ = unsafe { munmap(copy, bytes) };
    }
    moved
}

/// The right to view a tensor, returned to the daemon on drop.
struct Lease {
    area: Arc<Area>,
    token: u64,
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.area.end_view(self.token);
    }
}

/// A tensor that may be viewed, by the daemon's word.
pub(crate) struct Viewable {
    arena: u64,
    span: Span,
    lease: Lease,
}

/// A tensor that is viewed.
struct View {
    bytes: NonNull<[u8]>,
    /// Dropped first, so that `Live` never has what is not mapped any more.
    _lease: Lease,
    _memory: ReadOnlyMemory,
}

// SAFETY: the bytes are only read, in a mapping that belongs to the whole process.
unsafe impl Send for View {}
// SAFETY: as above.
unsafe impl Sync for View {}

impl AsRef<[u8]> for View {
    fn as_ref(&self) -> &[u8] {
        // SAFETY: `Viewable::over` found them in the mapping, which `self` keeps. As with what the daemon lends of a receive area,
        // the other side promises to leave them alone: here the publisher, a process of the same user, until the lease is back.
        unsafe { self.bytes.as_ref() }
    }
}

impl Viewable {
    /// What the daemon has reported with `token`, which is returned through `area`.
    pub(crate) fn new(area: &Arc<Area>, arena: u64, span: Span, token: u64) -> Self {
        Self { arena, span, lease: Lease { area: area.clone(), token } }
    }

    /// The number of the arena that it lies in.
    pub(crate) fn arena(&self) -> u64 {
        self.arena
    }

    /// The tensor's bytes in that arena.
    ///
    /// # Errors
    /// They are not there.
    pub(crate) fn over(self, memory: &ReadOnlyMemory) -> Result<Bytes, OutOfRange> {
        let bytes = memory.bytes(self.span)?;
        let mut live = self.lease.area.views().0.lock().unwrap_or_else(PoisonError::into_inner);
        live.insert(self.lease.token, (bytes.as_ptr().cast::<u8>().expose_provenance(), bytes.len()));
        drop(live);
        Ok(Bytes::from_owner(View { bytes, _lease: self.lease, _memory: memory.clone() }))
    }
}
