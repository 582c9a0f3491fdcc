//! A device for tests, with memory that the host cannot read: it is kept scrambled, and only the two copy functions know
//! the key, and fake RDMA devices that have registered it.
//!
//! Used from any thread; bounded by what tests allocate.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use nix::sys::memfd::{MFdFlags, memfd_create};
use sealane_runtime::{Block, Buffer, DeviceError, DeviceMemory, DmaBuf, Extents, VolatileSlice, VolatileSliceMut};

/// A device. Clones are handles to the same device.
#[derive(Debug, Clone, Default)]
pub struct FakeDevice(Arc<State>);

#[derive(Debug, Default)]
struct State {
    in_use_bytes: AtomicUsize,
    tried: AtomicU64,
    to_host: AtomicU64,
    from_host: AtomicU64,
    flushes: AtomicU64,
    /// After this many copies, this many fail; in addition every copy whose number is a multiple of the third number fails,
    /// unless it is 0.
    failing: Mutex<(u64, u64, u64)>,
}

/// Number of successful copies of a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Copies {
    pub to_host: u64,
    pub from_host: u64,
}

impl FakeDevice {
    pub const NAME: &str = "fake";

    /// A buffer of `len` bytes in the device's memory, with arbitrary contents.
    pub fn allocate(&self, len: usize) -> Buffer {
        Buffer::on_device(Arc::new(FakeMemory::new(self, len, Cells::Own(vec![0; len].into()))))
    }

    /// An allocation of `bytes` bytes that is exported, for tensors that are parts of it.
    pub fn export(&self, bytes: usize) -> FakeExport {
        let file = memfd_create(c"fake-device", MFdFlags::MFD_CLOEXEC).expect("memory");
        let file = File::from(file);
        file.set_len(bytes as u64).expect("memory");
        let descriptor = file.try_clone().expect("a descriptor").into();
        // An address at which no host has memory: accessing it ends the test.
        let region = DmaBuf::new(descriptor, 0, 0xdead_0000_0000_0000, bytes as u64).expect("bytes");
        let extents = Mutex::new(Extents::new(bytes));
        FakeExport { device: self.clone(), memory: Arc::new(Exported { file, region, extents }) }
    }

    /// How often a link's writes were flushed.
    pub fn flushes(&self) -> u64 {
        self.0.flushes.load(Ordering::Relaxed)
    }

    /// A buffer in device memory with a copy of `bytes`; this copy is not counted.
    pub fn with(&self, bytes: &[u8]) -> Buffer {
        let memory = FakeMemory::new(self, bytes.len(), Cells::Own(vec![0; bytes.len()].into()));
        memory.put(0, bytes);
        Buffer::on_device(Arc::new(memory))
    }

    /// Bytes of buffers that were not dropped yet.
    pub fn in_use_bytes(&self) -> usize {
        self.0.in_use_bytes.load(Ordering::Relaxed)
    }

    pub fn copies(&self) -> Copies {
        let [to_host, from_host] = [&self.0.to_host, &self.0.from_host].map(|count| count.load(Ordering::Relaxed));
        Copies { to_host, from_host }
    }

    /// Lets `passing` copies succeed and then `count` fail.
    pub fn fail_after(&self, passing: u64, count: u64) {
        let mut failing = self.0.failing.lock().unwrap_or_else(PoisonError::into_inner);
        (failing.0, failing.1) = (passing, count);
    }

    /// Lets one of every `period` copies fail; 0 for none.
    pub fn fail_each(&self, period: u64) {
        self.0.failing.lock().unwrap_or_else(PoisonError::into_inner).2 = period;
    }

    /// Counts a copy or a flush, unless it should fail.
    fn copies_one(&self, count: &AtomicU64, what: &str) -> Result<(), DeviceError> {
        let mut failing = self.0.failing.lock().unwrap_or_else(PoisonError::into_inner);
        let (passing, to_fail, period) = *failing;
        let number = self.0.tried.fetch_add(1, Ordering::Relaxed) + 1;
        let mut fails = period > 0 && number.is_multiple_of(period);
        if passing > 0 {
            failing.0 -= 1;
        } else if to_fail > 0 {
            failing.1 -= 1;
            fails = true;
        }
        if fails {
            return Err(DeviceError(format!("the copy {what} fails, as the test wants")));
        }
        count.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }
}

/// The bytes of a buffer, wherever it is. A failed copy is repeated.
pub fn bytes_of(buffer: &Buffer) -> Vec<u8> {
    let mut bytes = vec![0; buffer.len()];
    while buffer.read(0, (&mut bytes).into()).is_err() {}
    bytes
}

/// An exported allocation of a [`FakeDevice`]. It lives as long as a handle to it or to one of its buffers.
#[derive(Clone)]
pub struct FakeExport {
    device: FakeDevice,
    memory: Arc<Exported>,
}

struct Exported {
    file: File,
    region: Arc<DmaBuf>,
    extents: Mutex<Extents>,
}

impl FakeExport {
    /// A buffer of `len` bytes in it, with arbitrary contents; `None` if there is no room, or `len` is 0.
    pub fn allocate(&self, len: usize) -> Option<Buffer> {
        self.memory_of(len).map(|memory| Buffer::on_device(Arc::new(memory)))
    }

    /// A buffer with a copy of `bytes`; this copy is not counted.
    pub fn with(&self, bytes: &[u8]) -> Option<Buffer> {
        let memory = self.memory_of(bytes.len())?;
        memory.put(0, bytes);
        Some(Buffer::on_device(Arc::new(memory)))
    }

    /// What a link registers.
    pub fn region(&self) -> &Arc<DmaBuf> {
        &self.memory.region
    }

    fn memory_of(&self, len: usize) -> Option<FakeMemory> {
        let mut extents = self.memory.extents.lock().unwrap_or_else(PoisonError::into_inner);
        let block = if len > 0 { extents.allocate(len)? } else { return None };
        let cells = Cells::Exported { of: self.memory.clone(), block };
        Some(FakeMemory::new(&self.device, len, cells))
    }
}

struct FakeMemory {
    device: FakeDevice,
    len: usize,
    cells: Cells,
}

/// Scrambled bytes.
enum Cells {
    Own(Mutex<Vec<u8>>),
    /// Part of an exported allocation.
    Exported {
        of: Arc<Exported>,
        block: Block,
    },
}

/// Scrambles bytes that are at this offset of their memory, or restores them.
pub(crate) fn scramble(start: u64, bytes: &mut [u8]) {
    for (at, byte) in (start..).zip(bytes) {
        *byte ^= (at.wrapping_mul(167) >> 3) as u8 ^ 0xa5;
    }
}

impl FakeMemory {
    fn new(device: &FakeDevice, len: usize, cells: Cells) -> Self {
        device.0.in_use_bytes.fetch_add(len, Ordering::Relaxed);
        Self { device: device.clone(), len, cells }
    }

    fn put(&self, to: usize, bytes: &[u8]) {
        let mut bytes = bytes.to_vec();
        match &self.cells {
            Cells::Own(cells) => {
                scramble(to as u64, &mut bytes);
                let mut cells = cells.lock().unwrap_or_else(PoisonError::into_inner);
                cells[to..to + bytes.len()].copy_from_slice(&bytes);
            }
            Cells::Exported { of, block } => {
                let at = (block.offset() + to) as u64;
                scramble(at, &mut bytes);
                of.file.write_all_at(&bytes, at).expect("a file in memory");
            }
        }
    }

    fn get(&self, from: usize, bytes: &mut [u8]) {
        match &self.cells {
            Cells::Own(cells) => {
                let cells = cells.lock().unwrap_or_else(PoisonError::into_inner);
                bytes.copy_from_slice(&cells[from..from + bytes.len()]);
                scramble(from as u64, bytes);
            }
            Cells::Exported { of, block } => {
                let at = (block.offset() + from) as u64;
                of.file.read_exact_at(bytes, at).expect("a file in memory");
                scramble(at, bytes);
            }
        }
    }
}

impl DeviceMemory for FakeMemory {
    fn name(&self) -> &'static str {
        FakeDevice::NAME
    }

    fn size(&self) -> usize {
        self.len
    }

    fn copy_to_host(&self, from: usize, mut to: VolatileSliceMut<'_>) -> Result<(), DeviceError> {
        self.device.copies_one(&self.device.0.to_host, "to the host")?;
        let mut plain = vec![0; to.len()];
        self.get(from, &mut plain);
        to.copy_from(&plain);
        Ok(())
    }

    fn copy_from_host(&self, to: usize, bytes: VolatileSlice<'_>) -> Result<(), DeviceError> {
        self.device.copies_one(&self.device.0.from_host, "from the host")?;
        self.put(to, &bytes.to_vec());
        Ok(())
    }

    fn direct(&self) -> Option<(&Arc<DmaBuf>, u64)> {
        match &self.cells {
            Cells::Own(_) => None,
            Cells::Exported { of, block } => Some((&of.region, block.offset() as u64)),
        }
    }

    fn flush(&self) -> Result<(), DeviceError> {
        self.device.copies_one(&self.device.0.flushes, "in front of a flush")
    }
}

impl Drop for FakeMemory {
    fn drop(&mut self) {
        self.device.0.in_use_bytes.fetch_sub(self.len, Ordering::Relaxed);
        if let Cells::Exported { of, block } = &self.cells {
            of.extents.lock().unwrap_or_else(PoisonError::into_inner).free(*block);
        }
    }
}
