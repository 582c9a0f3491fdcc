//! Tensors in the memory of CUDA devices: copied through the task's arena, which the driver pins.
//!
//! **Experimental**: tested against a driver of the tests' own, and not yet measured on hardware.
//!
//! [`Task::copy_from_device`](crate::Task::copy_from_device) copies tensors into the arena and then makes a call with them, such as
//! a send; [`Task::copy_to_device`](crate::Task::copy_to_device) copies received tensors to a device. Neither blocks its caller:
//! the copies go into streams of this crate, one for each direction and device, ordered after the caller's stream, and
//! a thread learns of their end. The driver is loaded on first use, so the same program runs on hosts without one.
//!
//! The arena is pinned on first use by a copy ([`Task::pin`](crate::Task::pin)). If the driver cannot pin it, and with an
//! embedded engine, whose memory is ordinary, copies still work, but slower and not asynchronously.

mod allocated;
mod device;
mod driver;
mod piece;
mod pinned;
mod staged;

use std::{any::Any, ops::Range, sync::Arc};

use sealane_transport::{Error, tensor::TensorMeta};

pub(crate) use pinned::Pinned;

pub use self::{
    device::{Direction, device_of, devices},
    staged::{Copying, Staged},
};

/// The number of the stream (a `CUstream`) that copies of `device` in this direction are put into, for producers of device memory that
/// order a consumer's stream after their own work, as those of DLPack do.
///
/// # Errors
/// InvalidArgument for a device that does not exist, and in a forked child; Unavailable where there is no driver.
pub fn stream(device: usize, direction: Direction) -> Result<u64, Error> {
    Ok(device::Device::get(device)?.stream(direction))
}

/// Memory of a device, and what keeps it alive.
#[derive(Debug, Clone)]
pub struct DeviceBytes {
    device: usize,
    address: u64,
    len: usize,
    after: Option<u64>,
    _keeper: Arc<dyn Any + Send + Sync>,
}

impl DeviceBytes {
    /// `len` bytes at `address` (a `CUdeviceptr`) of the device of that number. Copies wait for all work that was put into the stream
    /// `after` (a `CUstream`; 1 and 2 are the default streams) before the call.
    ///
    /// # Safety
    /// As long as `keeper` lives, they are memory of that device, and nothing else writes to them while they are copied, nor reads
    /// while they are copied to. `after` is a stream of the device's primary context that exists during the call.
    #[allow(unsafe_code, reason = "what the caller promises; nothing is read here")]
    pub unsafe fn new(
        device: usize,
        address: u64,
        len: usize,
        after: Option<u64>,
        keeper: Arc<dyn Any + Send + Sync>,
    ) -> DeviceBytes {
        DeviceBytes { device, address, len, after, _keeper: keeper }
    }

    /// The same memory without a stream to wait for: copies in this direction already wait for what is in `after` now.
    ///
    /// # Errors
    /// The driver's.
    pub fn ordered(self, direction: Direction) -> Result<DeviceBytes, Error> {
        if self.after.is_some() {
            device::Device::get(self.device)?.follow(direction, &self)?;
        }
        Ok(DeviceBytes { after: None, ..self })
    }

    /// A part of these bytes.
    ///
    /// # Panics
    /// If the range is out of bounds.
    pub fn part(&self, range: Range<usize>) -> DeviceBytes {
        assert!(range.start <= range.end && range.end <= self.len, "bytes {range:?} of {}", self.len);
        DeviceBytes { address: self.address + range.start as u64, len: range.len(), ..self.clone() }
    }

    /// The device's number.
    pub fn device(&self) -> usize {
        self.device
    }

    /// The address on the device.
    pub fn address(&self) -> u64 {
        self.address
    }

    /// The number of bytes.
    #[allow(clippy::len_without_is_empty, reason = "nobody asks")]
    pub fn len(&self) -> usize {
        self.len
    }
}

/// A tensor in the memory of a device.
#[derive(Debug, Clone)]
pub struct DeviceTensor {
    meta: TensorMeta,
    bytes: DeviceBytes,
}

impl DeviceTensor {
    /// # Errors
    /// InvalidArgument if type and shape have another number of bytes.
    pub fn new(meta: TensorMeta, bytes: DeviceBytes) -> Result<DeviceTensor, Error> {
        meta.check_bytes(bytes.len as u64)?;
        Ok(DeviceTensor { meta, bytes })
    }

    /// Type and shape.
    pub fn meta(&self) -> &TensorMeta {
        &self.meta
    }

    /// The bytes of the tensor.
    pub fn bytes(&self) -> &DeviceBytes {
        &self.bytes
    }
}
