//! A tensor's bytes on their way: owned by whoever holds them, given back when the wire is done.

use bytes::Bytes;
use sealane_runtime::Buffer;

/// Metadata of a tensor as transport carries it: opaque bytes, without allocation up to rank 4.
pub type Meta = smallvec::SmallVec<[u8; 48]>;

/// Bytes to send: a slab or heap buffer that this tensor alone owns, or memory shared with other tensors.
///
/// Moves into a link and comes back from it; never copied on the way, except where small bytes are staged.
#[derive(Debug)]
pub enum Payload {
    /// Owned by this tensor: a slab block or a heap vector.
    Owned(Buffer),
    /// Shared and immutable: one parameter that many workers pull.
    Shared(Bytes),
}

impl Payload {
    /// Length in bytes.
    pub fn len(&self) -> usize {
        self.as_ref().len()
    }

    /// The same bytes in memory that many may read; those that fit into a buffer itself stay there.
    pub fn into_shared(self) -> Payload {
        match self {
            Payload::Owned(buffer) if buffer.len() > Buffer::OWN_BYTES => Bytes::from_owner(buffer).into(),
            other => other,
        }
    }

    /// The same bytes once more, without a copy where they are shared.
    pub fn share(&self) -> Payload {
        match self {
            Payload::Shared(bytes) => Payload::Shared(bytes.clone()),
            Payload::Owned(buffer) => Payload::Owned(Buffer::copy_of(buffer)),
        }
    }

    /// True if there are no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl AsRef<[u8]> for Payload {
    fn as_ref(&self) -> &[u8] {
        match self {
            Payload::Owned(buffer) => buffer,
            Payload::Shared(bytes) => bytes,
        }
    }
}

impl Default for Payload {
    fn default() -> Self {
        Payload::Shared(Bytes::new())
    }
}

impl From<Buffer> for Payload {
    fn from(buffer: Buffer) -> Self {
        Payload::Owned(buffer)
    }
}

impl From<Bytes> for Payload {
    fn from(bytes: Bytes) -> Self {
        Payload::Shared(bytes)
    }
}

impl From<Vec<u8>> for Payload {
    fn from(bytes: Vec<u8>) -> Self {
        Payload::Owned(Buffer::from_vec(bytes))
    }
}
