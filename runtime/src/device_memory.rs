//! What kind of memory bytes are in, and device memory, whose bytes the host copies but never reads itself.

use std::sync::Arc;

use crate::dma_buf::DmaBuf;
use crate::slab::Buffer;
use crate::volatile::{VolatileSlice, VolatileSliceMut};

/// What kind of memory bytes are in, and so who can use them, and how.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MemoryKind {
    /// Host memory that this process alone writes.
    Host,
    /// Host memory that another process shares and may write at any time: never a `&[u8]`.
    Foreign,
    /// Memory of the device that [`DeviceMemory::name`] names: no host pointer leads there.
    Device(&'static str),
}

/// Memory of a device, such as a GPU, that holds one tensor; freed when the last handle to it is dropped.
///
/// Both copies are complete when they return, and run on the shard's thread. For a real device they should be asynchronous: each
/// would only enqueue a copy on the device's stream and return a handle that later turns poll, like completions of a link. A
/// session would then send a payload once its copy has completed, wake a waiter once the copy of its tensor has, and keep both
/// memories until then. Host memory for such copies comes from the shards' [slabs](crate::Slab), which can be registered with the
/// device at startup. A link that can reach the device's memory itself (GPUDirect RDMA) does so where it is
/// [exported](Self::direct), and copies nothing.
pub trait DeviceMemory: Send + Sync {
    /// The kind of device, such as `"cuda"`, as named in messages.
    fn name(&self) -> &'static str;

    /// Length in bytes. It never changes.
    fn size(&self) -> usize;

    /// Copies bytes from offset `from` until `to` is full. The caller stays within [`size`](Self::size).
    ///
    /// # Errors
    /// The device could not copy; the contents of `to` are then undefined.
    fn copy_to_host(&self, from: usize, to: VolatileSliceMut<'_>) -> Result<(), DeviceError>;

    /// Copies all of `bytes` to offset `to`. The caller stays within [`size`](Self::size).
    ///
    /// # Errors
    /// The device could not copy; the contents of the target are then undefined.
    fn copy_from_host(&self, to: usize, bytes: VolatileSlice<'_>) -> Result<(), DeviceError>;

    /// The exported memory that contains this memory, and the offset of this memory in it, in bytes; `None` (the default) if it is
    /// not exported. It never changes. The bytes must be complete before a buffer over them is sent: unlike a copy, a direct
    /// transfer does not wait for device work that is still writing them.
    fn direct(&self) -> Option<(&Arc<DmaBuf>, u64)> {
        None
    }

    /// Called on the shard's thread after a link has written there directly and before any waiter is told: work given to the device
    /// from then on must see the bytes (`cuFlushGPUDirectRDMAWrites`). Does nothing by default.
    ///
    /// # Errors
    /// The device could not flush: the bytes count as lost.
    fn flush(&self) -> Result<(), DeviceError> {
        Ok(())
    }
}

/// A copy to or from a device's memory has failed. The memory can still be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct DeviceError(pub String);

/// A copy in host memory of bytes in device memory, for links that cannot read device memory.
#[derive(Debug)]
pub struct HostCopy {
    pub buffer: Buffer,
    /// Limits the number of such copies: the code that limits them counts the clones of this.
    pub counted: Arc<()>,
}

/// The part of a buffer that is in a device's memory.
pub(crate) struct OnDevice {
    pub(crate) memory: Arc<dyn DeviceMemory>,
    pub(crate) len: usize,
    /// An `Arc`, though never shared: dropping it is a call, while the drop of a `Box` would be inlined into every drop of a
    /// buffer.
    pub(crate) copy: Option<Arc<HostCopy>>,
}

impl OnDevice {
    #[cold]
    pub(crate) fn host_bytes(&self) -> Option<VolatileSlice<'_>> {
        self.copy.as_ref().map(|copy| copy.buffer.volatile())
    }

    /// The exported memory that contains the bytes, and their address there; `None` if they have a host copy or do not lie within
    /// it.
    #[cold]
    pub(crate) fn direct(&self) -> Option<(&Arc<DmaBuf>, u64)> {
        let (region, at) = self.memory.direct().filter(|_| self.copy.is_none())?;
        let is_within = at.checked_add(self.len as u64).is_some_and(|end| end <= region.bytes());
        is_within.then(|| (region, region.address() + at))
    }

    #[cold]
    pub(crate) fn drop_host_copy(&mut self) {
        self.copy = None;
    }

    pub(crate) fn read(&self, from: usize, to: VolatileSliceMut<'_>) -> Result<(), DeviceError> {
        assert!(from + to.len() <= self.len, "bytes {from}+{} of {}", to.len(), self.len);
        self.memory.copy_to_host(from, to)
    }

    pub(crate) fn write(&mut self, to: usize, bytes: VolatileSlice<'_>) -> Result<(), DeviceError> {
        assert!(to + bytes.len() <= self.len, "bytes {to}+{} of {}", bytes.len(), self.len);
        // The copy would no longer match the bytes.
        self.copy = None;
        self.memory.copy_from_host(to, bytes)
    }
}
