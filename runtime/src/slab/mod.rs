//! A shard's memory for tensors in flight: populated once, reused forever, bounded by its size.
//!
//! The thread that made a slab allocates from it; its buffers may go to any thread and return by themselves when dropped. On the
//! owner's thread that is a bit in a bitmap; on any other it is a push onto a lock-free stack that the owner empties when it next
//! looks. The memory stays until the last buffer is gone, even if the slab itself is dropped before.

mod buffer;
mod extents;
mod home;
mod region;
#[cfg(test)]
mod tests;

use std::rc::Rc;

pub use self::{
    buffer::{Buffer, Lender},
    extents::{Block, Extents},
};
use self::{
    extents::PAGE,
    home::{BYTES_MAX, Owner},
    region::Region,
};
use crate::error::RuntimeError;

#[derive(Clone, Copy, Debug)]
pub struct SlabSettings {
    /// What it is for, `"send"` or `"receive"`; appears in [`SlabFull`].
    pub name: &'static str,
    /// Its size; rounded up to 4 KiB pages, at most 128 GiB. Default 64 MiB.
    pub bytes: usize,
    /// Whether every page is made at start rather than at first use; default true. The bookkeeping takes about
    /// 1 % more.
    pub populate: bool,
}

impl SlabSettings {
    /// A slab's size by default: room for a step of a common vision model, at a cost that a small host can pay.
    pub const BYTES: usize = 64 << 20;
}

impl Default for SlabSettings {
    fn default() -> Self {
        Self { name: "send", bytes: Self::BYTES, populate: true }
    }
}

/// The slab has no room for the buffer; try again when buffers have come back.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the {name} slab is full: {requested} bytes were requested, {available} of {limit} are free (perhaps not in one piece)"
)]
pub struct SlabFull {
    pub name: &'static str,
    pub requested: usize,
    /// The bytes free, all pieces together.
    pub available: usize,
    /// The slab's size.
    pub limit: usize,
}

/// Memory that one thread gives out as [`Buffer`]s.
///
/// Blocks are powers of two from 64 bytes to 64 KiB, above that multiples of 4 KiB; all are 64-byte aligned.
/// A clone is another handle to the same slab, on the same thread:
///
/// ```compile_fail
/// let slab = sealane_runtime::Slab::new(Default::default()).unwrap();
/// std::thread::spawn(move || slab.in_use_bytes());
/// ```
#[derive(Clone, Debug)]
pub struct Slab {
    name: &'static str,
    // `Rc`, so that the slab stays on the thread that owns its free bitmaps.
    owner: Rc<Owner>,
}

impl Slab {
    /// Maps the memory and, unless told otherwise, makes every page of it (about 10 ms for 64 MiB).
    ///
    /// # Errors
    /// [`RuntimeError::Setting`] where the size is 0 or too large, [`RuntimeError::System`] where the kernel
    /// refuses the memory.
    pub fn new(settings: SlabSettings) -> Result<Self, RuntimeError> {
        if settings.bytes == 0 || settings.bytes > BYTES_MAX {
            return Err(RuntimeError::Setting {
                setting: "bytes",
                problem: format!(
                    "the {} slab cannot have {} bytes; 1 to {BYTES_MAX} are possible",
                    settings.name, settings.bytes
                ),
            });
        }
        let region = Region::map(settings.bytes.next_multiple_of(PAGE), settings.populate)?;
        Ok(Self { name: settings.name, owner: Rc::new(Owner::new(region)) })
    }

    /// A buffer of exactly `len` bytes; its contents are whatever this process last wrote there, or zero.
    ///
    /// Zero bytes take nothing and are never refused.
    ///
    /// # Errors
    /// [`SlabFull`] where no free piece is long enough.
    pub fn allocate(&self, len: usize) -> Result<Buffer, SlabFull> {
        if len == 0 {
            return Ok(Buffer::default());
        }
        self.owner.allocate(len).ok_or_else(|| SlabFull {
            name: self.name,
            requested: len,
            available: self.capacity_bytes() - self.in_use_bytes(),
            limit: self.capacity_bytes(),
        })
    }

    /// Bytes in buffers that have not come back, counted in whole blocks; exact, also for buffers that other
    /// threads have dropped.
    pub fn in_use_bytes(&self) -> usize {
        self.owner.in_use_bytes()
    }

    /// Size of the slab, the limit of what can be in use.
    pub fn capacity_bytes(&self) -> usize {
        self.owner.capacity_bytes()
    }

    /// Where the memory is: address and length, for registration with a device. It stays valid as long as the
    /// slab or one of its buffers exists.
    pub fn region(&self) -> (*const u8, usize) {
        self.owner.region()
    }
}
