//! Memory of a device that this crate allocates.
#![allow(unsafe_code)]

use std::sync::Arc;

use sealane_transport::Error;

use super::{DeviceBytes, driver::Context};

/// Device memory, freed on drop.
struct Allocated {
    context: Context,
    address: u64,
}

impl Drop for Allocated {
    fn drop(&mut self) {
        // Without its context there is nothing to free.
        let _ = self.context.with(|current| {
            // SAFETY: it was allocated in this context, and its owners are gone.
            unsafe { current.free(self.address) };
            Ok(())
        });
    }
}

/// For programs without a library that allocates device memory.
impl DeviceBytes {
    /// `len` bytes of the device of that number, at least 1, with arbitrary contents; freed with the last clone.
    ///
    /// # Errors
    /// ResourceExhausted if the device has no room, InvalidArgument if it does not exist, Unavailable if there is no driver.
    pub fn allocate(device: usize, len: usize) -> Result<DeviceBytes, Error> {
        let context = Context::of(device)?;
        let address = context.with(|current| current.allocate(len))?;
        let keeper = Arc::new(Allocated { context, address });
        // SAFETY: the keeper frees it; what else uses it goes through this crate, whose copies keep it.
        Ok(unsafe { DeviceBytes::new(device, address, len, None, keeper) })
    }

    /// Copies all bytes to the host, and waits until they are there.
    ///
    /// # Errors
    /// The driver's.
    ///
    /// # Panics
    /// If `host` has another length.
    pub fn read(&self, host: &mut [u8]) -> Result<(), Error> {
        assert_eq!(host.len(), self.len, "as many bytes");
        // SAFETY: they are memory of the device, as `new` asks.
        Context::of(self.device)?.with(|current| unsafe { current.read(host, self.address) })
    }

    /// Copies all bytes from the host, and waits until they are there.
    ///
    /// # Errors
    /// The driver's.
    ///
    /// # Panics
    /// If `host` has another length.
    pub fn write(&self, host: &[u8]) -> Result<(), Error> {
        assert_eq!(host.len(), self.len, "as many bytes");
        // SAFETY: they are memory of the device, as `new` asks.
        Context::of(self.device)?.with(|current| unsafe { current.write(self.address, host) })
    }
}
