//! A tensor's bytes in transit: owned by their holder, returned when the link is done with them.

use std::sync::Arc;

use bytes::Bytes;
use sealane_runtime::{Buffer, VolatileSlice};

/// Metadata of a tensor as the transport carries it: opaque bytes, not allocated up to rank 4.
pub type Meta = smallvec::SmallVec<[u8; 48]>;

/// Bytes to send: a slab or heap buffer that this tensor alone owns, or memory shared with other tensors.
///
/// Moves into a link and comes back from it; never copied on the way, except where small bytes are staged.
#[derive(Debug)]
pub enum Payload {
    /// Owned by this tensor: a slab block or a heap vector.
    Owned(Buffer),
    /// Shared by many: one parameter that many workers pull.
    Shared(Arc<Buffer>),
    /// Shared and immutable, in the caller's memory.
    Bytes(Bytes),
}

impl Payload {
    /// Length in bytes.
    #[inline]
    pub fn len(&self) -> usize {
        self.volatile().len()
    }

    /// The bytes, wherever they lie.
    #[inline]
    pub fn volatile(&self) -> VolatileSlice<'_> {
        match self {
            Payload::Owned(buffer) => buffer.volatile(),
            Payload::Shared(buffer) => buffer.volatile(),
            Payload::Bytes(bytes) => (&**bytes).into(),
        }
    }

    /// True if others may write to the bytes at any time: then they are no slice.
    pub fn is_foreign(&self) -> bool {
        match self {
            Payload::Owned(buffer) => buffer.is_foreign(),
            Payload::Shared(buffer) => buffer.is_foreign(),
            Payload::Bytes(_) => false,
        }
    }

    /// The same bytes in memory that many may read; those that fit into a buffer itself stay there.
    pub fn into_shared(self) -> Payload {
        match self {
            Payload::Owned(buffer) if buffer.len() > Buffer::OWN_BYTES => Payload::Shared(Arc::new(buffer)),
            other => other,
        }
    }

    /// The same bytes once more, without a copy where they are shared.
    pub fn share(&self) -> Payload {
        match self {
            Payload::Owned(buffer) => Payload::Owned(Buffer::copy_of_volatile(buffer.volatile())),
            Payload::Shared(buffer) => Payload::Shared(buffer.clone()),
            Payload::Bytes(bytes) => Payload::Bytes(bytes.clone()),
        }
    }

    /// True if there are no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// # Panics
/// If the bytes [are foreign](Payload::is_foreign).
impl AsRef<[u8]> for Payload {
    fn as_ref(&self) -> &[u8] {
        match self {
            Payload::Owned(buffer) => buffer,
            Payload::Shared(buffer) => buffer,
            Payload::Bytes(bytes) => bytes,
        }
    }
}

impl Default for Payload {
    fn default() -> Self {
        Payload::Bytes(Bytes::new())
    }
}

impl From<Buffer> for Payload {
    fn from(buffer: Buffer) -> Self {
        Payload::Owned(buffer)
    }
}

impl From<Bytes> for Payload {
    fn from(bytes: Bytes) -> Self {
        Payload::Bytes(bytes)
    }
}

impl From<Vec<u8>> for Payload {
    fn from(bytes: Vec<u8>) -> Self {
        Payload::Owned(Buffer::from_vec(bytes))
    }
}
