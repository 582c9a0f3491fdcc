//! What kind of memory bytes are in; and memory of a device, whose bytes the host copies and never looks at.

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
    /// Memory of the device that [`DeviceMemory::name`] names: no pointer of the host's leads there.
    Device(&'static str),
}

/// Memory of a device, such as a GPU, that holds one tensor; freed when the last handle to it is dropped.
///
/// Both copies are complete when they return, and run on the shard's thread. For a real device they should be asynchronous:
/// each would only put a copy on the device's stream, and return a handle that is polled in later turns, as completions of a link
/// are. What would change then: a session sends a payload once the copy of it has completed, and tells a waiter once the copy
/// of its tensor has; until then it keeps both memories. Host memory for such copies comes from the shards'
/// [slabs](crate::Slab), which can be registered with the device at startup. A link that can reach the device's memory itself (GPUDirect
/// RDMA) does so where it is [exported](Self::direct), and copies nothing.
pub trait DeviceMemory: Send + Sync {
    /// The kind of device, such as `"cuda"`, as named in messages.
    fn name(&self) -> &'static str;

    /// Length in bytes. It never changes.
    fn size(&self) -> usize;

    /// Copies the bytes from offset `from` on into all of `to`. The caller stays within [`size`](Self::size).
    ///
    /// # Errors
    /// The device could not; what is in `to` is then undefined.
    fn copy_to_host(&self, from: usize, to: VolatileSliceMut<'_>) -> Result<(), DeviceError>;

    /// Copies all of `bytes` to offset `to`. The caller stays within [`size`](Self::size).
    ///
    /// # Errors
    /// The device could not; what is there is then undefined.
    fn copy_from_host(&self, to: usize, bytes: VolatileSlice<'_>) -> Result<(), DeviceError>;

    /// The exported memory that it is part of, and where in that it begins, in bytes; `None` (the default) if it is not exported.
    /// It never changes. The bytes must then be complete before a buffer over them is sent: nothing waits for work of the
    /// device's that still writes them, where a copy could.
    fn direct(&self) -> Option<(&Arc<DmaBuf>, u64)> {
        None
    }

    /// Called on the shard's thread when a link has written there by itself, before anybody is told: work that is given to the
    /// device from then on must see the bytes (`cuFlushGPUDirectRDMAWrites`). Does nothing by default.
    ///
    /// # Errors
    /// The device could not: what is there counts as lost.
    fn flush(&self) -> Result<(), DeviceError> {
        Ok(())
    }
}

/// A copy to or from a device's memory has failed. The memory can still be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct DeviceError(pub String);

/// A copy in host memory of bytes that are in a device's; for links that cannot read the device's.
#[derive(Debug)]
pub struct HostCopy {
    /// The bytes.
    pub buffer: Buffer,
    /// Whoever limits such copies counts its clones of this.
    pub counted: Arc<()>,
}

/// The part of a buffer that is in a device's memory.
pub(crate) struct OnDevice {
    pub(crate) memory: Arc<dyn DeviceMemory>,
    pub(crate) len: usize,
    /// Shared with nobody: dropping an `Arc` is a call, where the drop of a `Box` would be inlined into every drop of a buffer.
    pub(crate) copy: Option<Arc<HostCopy>>,
}

impl OnDevice {
    /// The copy in host memory, if there is one.
    #[cold]
    pub(crate) fn host_bytes(&self) -> Option<VolatileSlice<'_>> {
        self.copy.as_ref().map(|copy| copy.buffer.volatile())
    }

    /// The exported memory that the bytes are in, and their address there; `None` if they have a copy in the host's, or do not
    /// lie within it.
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
        // It would no longer be one.
        self.copy = None;
        self.memory.copy_from_host(to, bytes)
    }
}
