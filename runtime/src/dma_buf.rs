//! Device memory that other devices can reach directly: a kernel dma-buf, and who has registered it.
//!
//! Any thread; bounded by the ports of the process, each of which is remembered once.

use std::fmt;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::device_memory::DeviceError;

/// The smallest page of any kernel: offset and address of a [`DmaBuf`] must agree modulo this.
const PAGE_BYTES: u64 = 4096;

/// How many `DmaBuf`s of the process have been dropped.
static DROPPED: AtomicU64 = AtomicU64::new(0);

/// Something that registers dma-bufs and then reaches them: a shard's port on an RDMA device. Each one is distinct.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reacher(u64);

impl Reacher {
    /// One that equals no other.
    #[expect(clippy::new_without_default, reason = "a default would be the same each time")]
    pub fn new() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        Self(NEXT.fetch_add(1, Ordering::Relaxed))
    }
}

/// Whether a [`Reacher`] can reach memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reach {
    /// It was never asked to reach the memory, and should now register it. Returned once.
    New,
    /// Not yet, not at all, or no longer for new transfers: the bytes are copied.
    No,
    /// It can, as long as a handle to the memory exists.
    Yes,
}

/// Part of a device's memory, exported as a dma-buf: one allocation, of which tensors are parts.
///
/// An RDMA device registers all of it when the first tensor in it is transferred, on another thread than the shard's. It
/// deregisters it once the last handle was dropped: in the shard's next turn, or within a second if the shard sleeps. The kernel
/// keeps the memory until then, even if its owner frees it.
pub struct DmaBuf {
    descriptor: OwnedFd,
    offset: u64,
    address: u64,
    bytes: u64,
    ports: Mutex<Ports>,
}

#[derive(Default)]
struct Ports {
    is_withdrawn: bool,
    known: Vec<(Reacher, bool)>,
}

impl DmaBuf {
    /// `bytes` bytes of a dma-buf from `offset` on. RDMA devices use `address` for them, in bytes: the memory's address on its
    /// device, such as a `CUdeviceptr`. Registrations are not told apart by address, so addresses of two devices may be equal.
    ///
    /// # Errors
    /// `bytes` is 0, the range passes the end of the address space, or `offset` and `address` differ modulo 4 KiB, which no device
    /// can register.
    pub fn new(descriptor: OwnedFd, offset: u64, address: u64, bytes: u64) -> Result<Arc<Self>, DeviceError> {
        let fits = |start: u64| start.checked_add(bytes).is_some();
        if bytes == 0 || !fits(offset) || !fits(address) || offset % PAGE_BYTES != address % PAGE_BYTES {
            return Err(DeviceError(format!(
                "{bytes} bytes at {offset} of a dma-buf cannot be reached as {address:#x}"
            )));
        }
        Ok(Arc::new(Self { descriptor, offset, address, bytes, ports: Mutex::default() }))
    }

    /// Offset of the bytes in the dma-buf.
    pub fn offset(&self) -> u64 {
        self.offset
    }

    /// Address of the bytes for RDMA devices.
    pub fn address(&self) -> u64 {
        self.address
    }

    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// From now on no new transfer reaches the memory directly: bytes are copied. Transfers in progress end normally.
    pub fn withdraw(&self) {
        self.ports().is_withdrawn = true;
    }

    pub fn reach(&self, by: Reacher) -> Reach {
        let mut ports = self.ports();
        match ports.known.iter().find(|(known, _)| *known == by) {
            _ if ports.is_withdrawn => Reach::No,
            Some((_, true)) => Reach::Yes,
            Some((_, false)) => Reach::No,
            None => {
                ports.known.push((by, false));
                Reach::New
            }
        }
    }

    /// Records that `by` has registered the memory; this holds while a handle to it exists.
    pub fn set_reached(&self, by: Reacher) {
        if let Some((_, reaches)) = self.ports().known.iter_mut().find(|(known, _)| *known == by) {
            *reaches = true;
        }
    }

    /// Forgets `by`, which is gone.
    pub fn forget(&self, by: Reacher) {
        self.ports().known.retain(|(known, _)| *known != by);
    }

    /// A number that changes whenever the last handle to any `DmaBuf` is dropped.
    pub fn dropped() -> u64 {
        DROPPED.load(Ordering::Relaxed)
    }

    fn ports(&self) -> MutexGuard<'_, Ports> {
        self.ports.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl AsFd for DmaBuf {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }
}

impl fmt::Debug for DmaBuf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes of a dma-buf at {:#x}", self.bytes, self.address)
    }
}

impl Drop for DmaBuf {
    fn drop(&mut self) {
        DROPPED.fetch_add(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn descriptor() -> OwnedFd {
        std::io::pipe().unwrap().0.into()
    }

    #[test]
    fn only_what_a_device_can_register_is_one() {
        for (offset, address, bytes) in [(0, 4096, 0), (1, 4096, 1), (0, u64::MAX - 4095, 4096), (1 << 63, 0, 1 << 63)]
        {
            assert!(DmaBuf::new(descriptor(), offset, address, bytes).is_err(), "{offset} {address} {bytes}");
        }
        assert!(DmaBuf::new(descriptor(), 4097, 1, 8192).is_ok());
    }

    #[test]
    fn each_port_is_asked_once_and_reaches_it_until_it_is_withdrawn() {
        let region = DmaBuf::new(descriptor(), 0, 0, 4096).unwrap();
        let [one, other] = [Reacher::new(), Reacher::new()];
        assert_eq!([region.reach(one), region.reach(one), region.reach(other)], [Reach::New, Reach::No, Reach::New]);
        region.set_reached(one);
        assert_eq!([region.reach(one), region.reach(other)], [Reach::Yes, Reach::No]);
        region.forget(one);
        assert_eq!(region.reach(one), Reach::New);
        region.set_reached(one);
        region.withdraw();
        assert_eq!([region.reach(one), region.reach(Reacher::new())], [Reach::No; 2]);
    }
}
