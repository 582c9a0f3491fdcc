//! Registered memory as a device sees it: bytes at an address, copied by raw pointers and never borrowed, since other
//! threads own them; or the bytes of a [fake device](crate::fake_device), which no pointer reaches: its file is read and
//! written. Every copy is made under the fabric's lock, so none is in progress once a call that ends it has returned.

#![allow(unsafe_code, reason = "plays the part of a device's direct access to memory")]

use std::fs::File;
use std::marker::PhantomData;
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::ptr::{with_exposed_provenance, with_exposed_provenance_mut};

use crate::fake_device::scramble;
use crate::verbs::device::{DmaBuf, VerbsError};

#[derive(Debug)]
pub(super) struct Memory {
    address: u64,
    bytes: u64,
    /// For device memory: its file, and where the bytes begin in it.
    device: Option<(File, u64)>,
}

impl Memory {
    /// `None` if it is empty or passes the end of the address space.
    ///
    /// # Safety
    /// The bytes must stay mapped while this lives. Code that causes parts of it to be copied must follow what
    /// [`Device::post`](crate::verbs::device::Device::post) requires of them.
    pub(super) unsafe fn new(address: u64, bytes: u64) -> Option<Self> {
        let end = address.checked_add(bytes)?;
        (bytes > 0 && usize::try_from(end).is_ok()).then_some(Self { address, bytes, device: None })
    }

    /// Memory of a fake device.
    pub(super) fn of_device(memory: &DmaBuf) -> Result<Self, VerbsError> {
        let file = memory.as_fd().try_clone_to_owned();
        let file = File::from(file.map_err(|error| VerbsError::system("fake register", &error))?);
        Ok(Self { address: memory.address(), bytes: memory.bytes(), device: Some((file, memory.offset())) })
    }

    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// A part of it, if it is within bounds.
    pub(super) fn part(&self, address: u64, bytes: u64) -> Option<Part<'_>> {
        let end = address.checked_add(bytes)?;
        let is_within = address >= self.address && end <= self.address + self.bytes;
        let device = self.device.as_ref().map(|(file, start)| (file, start + (address - self.address)));
        is_within.then_some(Part { address, bytes, device, memory: PhantomData })
    }
}

/// Bytes within registered memory.
#[derive(Debug, Clone, Copy)]
pub(super) struct Part<'a> {
    address: u64,
    bytes: u64,
    device: Option<(&'a File, u64)>,
    memory: PhantomData<&'a Memory>,
}

impl Part<'_> {
    /// An empty part, of any memory.
    pub(super) const EMPTY: Part<'static> = Part { address: 0, bytes: 0, device: None, memory: PhantomData };

    /// Copies all of `from` to the front; the two may overlap.
    pub(super) fn copy_from(self, from: Part<'_>) {
        assert!(from.bytes <= self.bytes, "{} bytes into {}", from.bytes, self.bytes);
        if from.bytes == 0 {
            return;
        }
        if self.device.is_some() || from.device.is_some() {
            return self.fill_from(&from.contents());
        }
        let source = with_exposed_provenance::<u8>(from.address as usize);
        let target = with_exposed_provenance_mut::<u8>(self.address as usize);
        // SAFETY: both parts are within memory that `Memory::new` was promised to be mapped and that is still registered,
        // since parts borrow it; the length fits both. Nobody else uses the bytes in conflict, as its second promise says.
        unsafe { target.copy_from(source, from.bytes as usize) };
    }

    /// Copies the fabric's own bytes to the front.
    pub(super) fn fill_from(self, from: &[u8]) {
        assert!(from.len() as u64 <= self.bytes, "{} bytes into {}", from.len(), self.bytes);
        if let Some((file, at)) = self.device {
            let mut scrambled = from.to_vec();
            scramble(at, &mut scrambled);
            return file.write_all_at(&scrambled, at).expect("a file in memory");
        }
        let target = with_exposed_provenance_mut::<u8>(self.address as usize);
        // SAFETY: as in `copy_from`; the slice is memory of the fabric's own, and does not overlap with it.
        unsafe { target.copy_from_nonoverlapping(from.as_ptr(), from.len()) };
    }
}

impl Part<'_> {
    fn contents(self) -> Vec<u8> {
        let mut bytes = vec![0; self.bytes as usize];
        match self.device {
            Some((file, at)) => {
                file.read_exact_at(&mut bytes, at).expect("a file in memory");
                scramble(at, &mut bytes);
            }
            None => {
                let source = with_exposed_provenance::<u8>(self.address as usize);
                // SAFETY: as in `copy_from`; the vector is as long, and new.
                unsafe { bytes.as_mut_ptr().copy_from_nonoverlapping(source, bytes.len()) };
            }
        }
        bytes
    }
}

/// Copies bytes that need not be registered.
///
/// # Safety
/// They must be mapped, and nobody may write to them meanwhile.
pub(super) unsafe fn copy_inline(address: u64, bytes: u32) -> Box<[u8]> {
    let mut copied = vec![0; bytes as usize];
    let source = with_exposed_provenance::<u8>(address as usize);
    // SAFETY: the caller's promise; the target is as long, and new.
    unsafe { copied.as_mut_ptr().copy_from_nonoverlapping(source, copied.len()) };
    copied.into()
}
