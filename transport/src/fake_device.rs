//! A device for tests, with memory that the host cannot read: it is kept scrambled, and only the two copies know the key.
//!
//! Used from any thread; bounded by what tests allocate.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use sealane_runtime::{Buffer, DeviceError, DeviceMemory, VolatileSlice, VolatileSliceMut};

/// A device. A clone is another handle to the same.
#[derive(Debug, Clone, Default)]
pub struct FakeDevice(Arc<State>);

#[derive(Debug, Default)]
struct State {
    in_use_bytes: AtomicUsize,
    tried: AtomicU64,
    to_host: AtomicU64,
    from_host: AtomicU64,
    /// The copies after so many fail, this many; and every copy whose number this divides, unless it is 0.
    failing: Mutex<(u64, u64, u64)>,
}

/// Copies of a device that have succeeded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Copies {
    /// To the host.
    pub to_host: u64,
    /// From the host.
    pub from_host: u64,
}

impl FakeDevice {
    /// Its name.
    pub const NAME: &str = "fake";

    /// A buffer of `len` bytes in the device's memory, with arbitrary contents.
    pub fn allocate(&self, len: usize) -> Buffer {
        Buffer::on_device(Arc::new(FakeMemory::new(self, len)))
    }

    /// A buffer with a copy of `bytes` in the device's memory, which does not count.
    pub fn with(&self, bytes: &[u8]) -> Buffer {
        let memory = FakeMemory::new(self, bytes.len());
        memory.put(0, bytes);
        Buffer::on_device(Arc::new(memory))
    }

    /// Bytes of buffers that have not been dropped.
    pub fn in_use_bytes(&self) -> usize {
        self.0.in_use_bytes.load(Ordering::Relaxed)
    }

    /// Copies so far.
    pub fn copies(&self) -> Copies {
        let [to_host, from_host] = [&self.0.to_host, &self.0.from_host].map(|count| count.load(Ordering::Relaxed));
        Copies { to_host, from_host }
    }

    /// After `passing` copies, `count` fail.
    pub fn fail_after(&self, passing: u64, count: u64) {
        let mut failing = self.0.failing.lock().unwrap_or_else(PoisonError::into_inner);
        (failing.0, failing.1) = (passing, count);
    }

    /// Of every `period` copies one fails; 0 for none.
    pub fn fail_each(&self, period: u64) {
        self.0.failing.lock().unwrap_or_else(PoisonError::into_inner).2 = period;
    }

    /// A copy is made, unless it fails.
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

/// The bytes of a buffer, wherever it is. A copy that fails is tried again.
pub fn bytes_of(buffer: &Buffer) -> Vec<u8> {
    let mut bytes = vec![0; buffer.len()];
    while buffer.read(0, (&mut bytes).into()).is_err() {}
    bytes
}

/// Memory of a [`FakeDevice`].
struct FakeMemory {
    device: FakeDevice,
    cells: Mutex<Vec<u8>>,
}

/// What the byte at an offset is scrambled with.
fn key(at: usize) -> u8 {
    (at.wrapping_mul(167) >> 3) as u8 ^ 0xa5
}

impl FakeMemory {
    fn new(device: &FakeDevice, len: usize) -> Self {
        device.0.in_use_bytes.fetch_add(len, Ordering::Relaxed);
        Self { device: device.clone(), cells: Mutex::new(vec![0; len]) }
    }

    fn put(&self, to: usize, bytes: &[u8]) {
        let mut cells = self.cells.lock().unwrap_or_else(PoisonError::into_inner);
        for (at, (cell, byte)) in (to..).zip(cells[to..to + bytes.len()].iter_mut().zip(bytes)) {
            *cell = byte ^ key(at);
        }
    }
}

impl DeviceMemory for FakeMemory {
    fn name(&self) -> &'static str {
        FakeDevice::NAME
    }

    fn size(&self) -> usize {
        self.cells.lock().unwrap_or_else(PoisonError::into_inner).len()
    }

    fn copy_to_host(&self, from: usize, mut to: VolatileSliceMut<'_>) -> Result<(), DeviceError> {
        self.device.copies_one(&self.device.0.to_host, "to the host")?;
        let cells = self.cells.lock().unwrap_or_else(PoisonError::into_inner);
        let plain: Vec<u8> = (from..).zip(&cells[from..from + to.len()]).map(|(at, cell)| cell ^ key(at)).collect();
        to.copy_from(&plain);
        Ok(())
    }

    fn copy_from_host(&self, to: usize, bytes: VolatileSlice<'_>) -> Result<(), DeviceError> {
        self.device.copies_one(&self.device.0.from_host, "from the host")?;
        self.put(to, &bytes.to_vec());
        Ok(())
    }
}

impl Drop for FakeMemory {
    fn drop(&mut self) {
        self.device.0.in_use_bytes.fetch_sub(self.size(), Ordering::Relaxed);
    }
}
