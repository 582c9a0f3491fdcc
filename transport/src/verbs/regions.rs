//! The memory that a shard's device knows: slabs and arenas for as long as they are there, other memory for one transfer.
//!
//! Bounded by what the device registers; a lookup is a binary search among a few.

use std::any::Any;

use super::device::{Access, Device, MemoryKind, Region, VerbsError};
use super::settings::Registration;

/// A region that someone uses; to be given back with [`Regions::release`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Use {
    pub(super) region: Region,
}

struct Known {
    start: u64,
    end: u64,
    region: Region,
    uses: usize,
    /// What keeps the memory mapped, if it stays until it is removed; `None` for one transfer, whose tensor does.
    _owner: Option<Box<dyn Any>>,
}

/// See the module.
#[derive(Default)]
pub(super) struct Regions {
    /// Those that stay, by their start; they do not overlap.
    standing: Vec<Known>,
    /// Those for one transfer, or removed while in use.
    passing: Vec<Known>,
    /// Registrations that were made for one transfer, for the record.
    pub(super) passing_made: u64,
}

impl Regions {
    /// Registers memory that stays.
    ///
    /// # Errors
    /// The device's.
    ///
    /// # Safety
    /// `owner` keeps the memory mapped.
    #[allow(unsafe_code)]
    pub(super) unsafe fn add(
        &mut self,
        device: &mut dyn Device,
        (start, bytes): (u64, usize),
        access: Access,
        owner: Box<dyn Any>,
    ) -> Result<(), VerbsError> {
        // SAFETY: as the caller promises.
        let region = unsafe { device.register(MemoryKind::Host, start, bytes, access) }?;
        let at = self.standing.partition_point(|known| known.start < start);
        let known = Known { start, end: start + bytes as u64, region, uses: 0, _owner: Some(owner) };
        self.standing.insert(at, known);
        Ok(())
    }

    /// Ends the registration of memory that stayed: at once, or with its last use.
    pub(super) fn remove(&mut self, device: &mut dyn Device, start: u64) {
        let Ok(at) = self.standing.binary_search_by_key(&start, |known| known.start) else { return };
        let known = self.standing.remove(at);
        if known.uses == 0 {
            return device.deregister(known.region.id);
        }
        self.passing.push(known);
    }

    /// The region that holds all of these bytes; registered for this use alone where none does, or where that is
    /// the setting.
    ///
    /// # Errors
    /// The device does not register more.
    ///
    /// # Safety
    /// The memory stays mapped until the use is released.
    #[allow(unsafe_code)]
    pub(super) unsafe fn lend(
        &mut self,
        device: &mut dyn Device,
        (start, bytes): (u64, usize),
        access: Access,
        registration: Registration,
    ) -> Result<Use, VerbsError> {
        if registration == Registration::Static {
            let at = self.standing.partition_point(|known| known.start <= start);
            if let Some(known) = at.checked_sub(1).map(|at| &mut self.standing[at])
                && start + bytes as u64 <= known.end
            {
                known.uses += 1;
                return Ok(Use { region: known.region });
            }
        }
        // SAFETY: as the caller promises.
        let region = unsafe { device.register(MemoryKind::Host, start, bytes, access) }?;
        self.passing_made += 1;
        self.passing.push(Known { start, end: start + bytes as u64, region, uses: 1, _owner: None });
        Ok(Use { region })
    }

    /// A use ends: nothing that is posted names the region, and no window of it is bound.
    pub(super) fn release(&mut self, device: &mut dyn Device, used: Use) {
        let is_it = |known: &&mut Known| known.region.id == used.region.id;
        if let Some(known) = self.standing.iter_mut().find(is_it) {
            known.uses -= 1;
            return;
        }
        if let Some(at) = self.passing.iter().position(|known| known.region.id == used.region.id) {
            self.passing[at].uses -= 1;
            if self.passing[at].uses == 0 {
                let known = self.passing.swap_remove(at);
                device.deregister(known.region.id);
            }
        }
    }

    /// Regions that stand, and those that pass.
    pub(super) fn counts(&self) -> (usize, usize) {
        (self.standing.len(), self.passing.len())
    }
}
