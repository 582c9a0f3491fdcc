//! Views: tensors that other clients of the daemon have published, read where they lie in those clients' arenas. Any thread; each
//! keeps its arena mapped, and the daemon keeps the publisher from using the memory again until the view is dropped.
#![allow(unsafe_code)]

use std::{ptr::NonNull, sync::Arc};

use bytes::Bytes;
use sealane_transport::shm::{OutOfRange, ReadOnlyMemory, Span};

use super::Area;

/// The right to view a tensor, which goes back to the daemon when it is dropped.
struct Lease {
    area: Arc<Area>,
    token: u64,
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.area.end_view(self.token);
    }
}

/// A tensor that the daemon says may be viewed.
pub(crate) struct Viewable {
    arena: u64,
    span: Span,
    lease: Lease,
}

/// A tensor that is viewed.
struct View {
    bytes: NonNull<[u8]>,
    _memory: ReadOnlyMemory,
    _lease: Lease,
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
    /// What the daemon told of by `token`, which goes back by way of `area`.
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
        Ok(Bytes::from_owner(View { bytes, _memory: memory.clone(), _lease: self.lease }))
    }
}
