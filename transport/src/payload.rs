//! A tensor's bytes in transit: owned by their holder, returned when the link is done with them.

use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use sealane_runtime::{Buffer, DeviceError, DeviceMemory, DmaBuf, MemoryKind, VolatileSlice, VolatileSliceMut};

/// Metadata of a tensor as the transport carries it: opaque bytes, not allocated up to rank 4.
pub type Meta = smallvec::SmallVec<[u8; 48]>;

/// Bytes to send: a slab or heap buffer that only this tensor owns, or memory shared with other tensors.
///
/// Moves into a link and comes back from it; never copied on the way, except if small bytes are staged, or if the
/// [memory](Self::memory) is a device's that the link cannot read.
#[derive(Debug)]
pub enum Payload {
    /// Owned by this tensor: a slab block or a heap vector.
    Owned(Buffer),
    /// Shared by many: for example one parameter that many workers pull.
    Shared(Arc<Buffer>),
    /// Shared and immutable, in the caller's memory.
    Bytes(Bytes),
}

impl Payload {
    /// Length in bytes.
    #[inline]
    pub fn len(&self) -> usize {
        match self {
            Payload::Owned(buffer) => buffer.len(),
            Payload::Shared(buffer) => buffer.len(),
            Payload::Bytes(bytes) => bytes.len(),
        }
    }

    /// What kind of memory the bytes are in.
    #[inline]
    pub fn memory(&self) -> MemoryKind {
        match self {
            Payload::Owned(buffer) => buffer.memory(),
            Payload::Shared(buffer) => buffer.memory(),
            Payload::Bytes(_) => MemoryKind::Host,
        }
    }

    /// True if the memory is lent, and returned to its owner when dropped.
    #[inline]
    pub fn is_lent(&self) -> bool {
        match self {
            Payload::Owned(buffer) => buffer.lender().is_some(),
            Payload::Shared(buffer) => buffer.lender().is_some(),
            Payload::Bytes(_) => false,
        }
    }

    /// The device memory that holds the bytes, if any.
    #[inline]
    pub fn device(&self) -> Option<&Arc<dyn DeviceMemory>> {
        match self {
            Payload::Owned(buffer) => buffer.device(),
            Payload::Shared(buffer) => buffer.device(),
            Payload::Bytes(_) => None,
        }
    }

    /// As [`Buffer::direct`].
    #[inline]
    pub fn direct(&self) -> Option<(&Arc<DmaBuf>, u64)> {
        match self {
            Payload::Owned(buffer) => buffer.direct(),
            Payload::Shared(buffer) => buffer.direct(),
            Payload::Bytes(_) => None,
        }
    }

    /// Where the bytes are, for a link that moves them by address.
    ///
    /// # Panics
    /// If they are in device memory that is not exported.
    #[cfg(feature = "network")]
    pub(crate) fn spot(&self) -> crate::link::Spot {
        let (bytes, memory) = (self.len(), self.memory());
        match self.direct() {
            Some((region, address)) => crate::link::Spot { address, bytes, memory, direct: Some(region.clone()) },
            None => crate::link::Spot { address: self.volatile().as_ptr() as u64, bytes, memory, direct: None },
        }
    }

    /// The bytes, if they are in host memory that nobody writes to while this is held: as [`Buffer::private_bytes`].
    #[inline]
    pub fn private_bytes(&self) -> Option<&[u8]> {
        match self {
            Payload::Owned(buffer) => buffer.private_bytes(),
            Payload::Shared(buffer) => buffer.private_bytes(),
            Payload::Bytes(bytes) => Some(bytes),
        }
    }

    /// The bytes, if they are anywhere in host memory; `None` if they are only in device memory.
    #[inline]
    pub fn host_bytes(&self) -> Option<VolatileSlice<'_>> {
        match self {
            Payload::Owned(buffer) => buffer.host_bytes(),
            Payload::Shared(buffer) => buffer.host_bytes(),
            Payload::Bytes(bytes) => Some((&**bytes).into()),
        }
    }

    /// [`host_bytes`](Self::host_bytes) of a payload that is known to have them.
    ///
    /// # Panics
    /// If it has none.
    #[inline]
    pub fn volatile(&self) -> VolatileSlice<'_> {
        match self {
            Payload::Owned(buffer) => buffer.volatile(),
            Payload::Shared(buffer) => buffer.volatile(),
            Payload::Bytes(bytes) => (&**bytes).into(),
        }
    }

    /// Copies the bytes from offset `from` on into all of `to`, whatever memory they are in.
    ///
    /// # Errors
    /// The device failed to copy.
    ///
    /// # Panics
    /// If the payload has fewer bytes.
    pub fn read(&self, from: usize, mut to: VolatileSliceMut<'_>) -> Result<(), DeviceError> {
        match self {
            Payload::Owned(buffer) => buffer.read(from, to),
            Payload::Shared(buffer) => buffer.read(from, to),
            Payload::Bytes(bytes) => {
                to.copy_from(&bytes[from..from + to.len()]);
                Ok(())
            }
        }
    }

    /// Copies a range of the bytes to the same place in `target`, whatever memory each is in; from a device to a device through
    /// the host.
    ///
    /// # Errors
    /// A device failed to copy.
    ///
    /// # Panics
    /// If the payload has fewer bytes, or there is no room for them.
    #[inline]
    pub fn copy_to(&self, target: &mut Buffer, range: Range<usize>) -> Result<(), DeviceError> {
        match (self.host_bytes(), target.device()) {
            (Some(bytes), _) => target.write(range.start, bytes.range(range)),
            (None, None) => self.read(range.start, target.volatile_mut().range(range)),
            (None, Some(_)) => {
                let mut bounce = vec![0; range.len()];
                self.read(range.start, (&mut bounce).into())?;
                target.write(range.start, (&bounce).into())
            }
        }
    }

    /// Attaches a host copy of device bytes, which is read instead of them until it is [dropped](Self::drop_host_copy).
    ///
    /// # Panics
    /// If the bytes are not in device memory.
    #[cfg(feature = "network")]
    pub(crate) fn set_host_copy(&mut self, copy: sealane_runtime::HostCopy) {
        if let Payload::Shared(buffer) = self {
            *self = Payload::Owned(buffer.duplicate());
        }
        let Payload::Owned(buffer) = self else { panic!("only a device's bytes have a copy") };
        buffer.set_host_copy(copy);
    }

    /// Drops the host copy, if there is one: the device's bytes are used again.
    #[cfg(feature = "network")]
    #[inline]
    pub(crate) fn drop_host_copy(&mut self) {
        if let Payload::Owned(buffer) = self {
            buffer.drop_host_copy();
        }
    }

    /// The same bytes in memory that many may read; bytes that fit into the buffer value itself stay there.
    pub fn into_shared(self) -> Payload {
        match self {
            Payload::Owned(buffer) if buffer.len() > Buffer::OWN_BYTES => Payload::Shared(Arc::new(buffer)),
            other => other,
        }
    }

    /// Another handle to the same bytes, without a copy if they are shared or in device memory.
    pub fn share(&self) -> Payload {
        match self {
            Payload::Owned(buffer) => Payload::Owned(buffer.duplicate()),
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
/// If the bytes are not in the [host's own memory](MemoryKind::Host).
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
