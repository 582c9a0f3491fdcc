//! Memory registered with a shard's device: slabs for their lifetime, clients' memory from first use, likewise device
//! memory (`direct.rs`), other memory for one transfer.
//!
//! Registration and deregistration take time proportional to size: for clients' memory the device does both on another
//! thread. Bounded by what the device registers; a lookup is a binary search among a few.

use std::any::Any;
use std::sync::Weak;

use sealane_runtime::DmaBuf;

use super::device::{Access, Device, MemoryKind, Region, RegistrationEvent, VerbsError};
use super::direct::DirectRegions;
use super::settings::Registration;
use crate::link::Spot;

#[derive(Debug, Clone, Copy)]
pub(super) struct Lending {
    pub(super) access: Access,
    pub(super) registration: Registration,
}

/// A region in use; to be returned with [`Regions::release`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Use {
    pub(super) region: Region,
}

/// Memory that stays until it is removed.
struct Standing {
    start: u64,
    end: u64,
    is: Is,
    uses: usize,
    /// Keeps the memory mapped.
    owner: Box<dyn Any>,
}

/// The state of its registration.
enum Is {
    /// To be registered on first use.
    Unused,
    /// In progress, under this ticket.
    Begun(u64),
    Registered(Region),
    /// It may not be registered, or could not be.
    Refused,
}

/// Memory that is registered for one transfer, or was removed while in use.
struct Passing {
    region: Region,
    uses: usize,
    /// Keeps the memory mapped; `None` for one transfer, for which the tensor does so.
    owner: Option<Box<dyn Any>>,
}

#[derive(Default)]
pub(super) struct Regions {
    /// Sorted by start; they do not overlap.
    standing: Vec<Standing>,
    passing: Vec<Passing>,
    /// Memory removed while its registration was in progress, by ticket.
    begun: Vec<(u64, Box<dyn Any>)>,
    /// Memory that is being deregistered, by region.
    ending: Vec<(u32, Box<dyn Any>)>,
    /// Memory of devices.
    pub(super) direct: DirectRegions,
    /// Number of registrations of `standing` memory in progress.
    waited_for: usize,
    next_ticket: u64,
    /// Number of registrations made for one transfer, for the counters.
    pub(super) passing_made: u64,
}

impl Regions {
    /// Registers memory that stays.
    ///
    /// # Errors
    /// The device's error.
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
        self.stand((start, bytes), Is::Registered(region), owner);
        Ok(())
    }

    /// Memory that stays, to be registered on first use if `may_be`; `owner` keeps it mapped.
    pub(super) fn add_later(&mut self, range: (u64, usize), may_be: bool, owner: Box<dyn Any>) {
        self.stand(range, if may_be { Is::Unused } else { Is::Refused }, owner);
    }

    fn stand(&mut self, (start, bytes): (u64, usize), is: Is, owner: Box<dyn Any>) {
        let at = self.standing.partition_point(|known| known.start < start);
        self.standing.insert(at, Standing { start, end: start + bytes as u64, is, uses: 0, owner });
    }

    /// Ends the registration of memory that stayed, after its last use. Its owner is dropped when that is done.
    pub(super) fn remove(&mut self, device: &mut dyn Device, start: u64) {
        let Ok(at) = self.standing.binary_search_by_key(&start, |known| known.start) else { return };
        let Standing { is, uses, owner, .. } = self.standing.remove(at);
        match is {
            Is::Registered(region) if uses > 0 => self.passing.push(Passing { region, uses, owner: Some(owner) }),
            Is::Registered(region) => self.end(device, region, owner),
            Is::Begun(ticket) => {
                self.waited_for -= 1;
                self.begun.push((ticket, owner));
            }
            Is::Unused | Is::Refused => {}
        }
    }

    fn end(&mut self, device: &mut dyn Device, region: Region, owner: Box<dyn Any>) {
        self.ending.push((region.id, owner));
        device.begin_deregister(region.id);
    }

    /// True if the device has yet to report registrations.
    #[inline]
    pub(super) fn awaits(&self) -> bool {
        self.waited_for > 0 || !self.begun.is_empty() || !self.ending.is_empty() || self.direct.awaits()
    }

    /// Begins to register device memory.
    pub(super) fn begin_direct(&mut self, device: &mut dyn Device, memory: Weak<DmaBuf>, access: Access) {
        self.next_ticket += 1;
        self.direct.begin(device, self.next_ticket, memory, access);
    }

    /// Handles the device's reports of registrations.
    pub(super) fn take_registered(&mut self, device: &mut dyn Device) {
        while let Some(registered) = device.next_registered() {
            let (told, region) = match registered {
                RegistrationEvent::Deregistered(region) => {
                    self.ending.retain(|(ending, _)| *ending != region);
                    continue;
                }
                RegistrationEvent::Registered { ticket, region } => (ticket, region),
            };
            let is_it = |known: &&mut Standing| matches!(known.is, Is::Begun(ticket) if ticket == told);
            if let Some(known) = self.standing.iter_mut().find(is_it) {
                self.waited_for -= 1;
                known.is = match region {
                    Ok(region) => Is::Registered(region),
                    Err(error) => {
                        tracing::warn!(%error, "a client's memory is not registered: its tensors are copied");
                        Is::Refused
                    }
                };
            } else if let Some(at) = self.begun.iter().position(|(ticket, _)| *ticket == told) {
                let (_, owner) = self.begun.swap_remove(at);
                if let Ok(region) = region {
                    self.end(device, region, owner);
                }
            } else {
                self.direct.take(told, &region);
            }
        }
        while let Some(region) = self.direct.next_gone() {
            // The kernel keeps the memory as long as it is registered.
            self.end(device, region, Box::new(()));
        }
    }

    /// Registered bytes of memory that stays, found by its start.
    pub(super) fn registered_bytes(&self, start: u64) -> u64 {
        let found = self.standing.binary_search_by_key(&start, |known| known.start).ok();
        let known = found.map(|at| &self.standing[at]).filter(|known| matches!(known.is, Is::Registered(_)));
        known.map_or(0, |known| known.end - known.start)
    }

    /// The region that contains all of these bytes. If there is none, or the settings say so, they are registered for this use
    /// alone. Not so for memory of a client or a device: it may be large, its client may be gone, and registering would stall
    /// the turn.
    ///
    /// # Errors
    /// The device registers no more, or a client's memory is not registered yet or any more: the bytes can travel by copy.
    ///
    /// # Safety
    /// The memory must stay mapped until the use is released.
    #[allow(unsafe_code)]
    pub(super) unsafe fn lend(
        &mut self,
        device: &mut dyn Device,
        spot: &Spot,
        Lending { access, registration }: Lending,
    ) -> Result<Use, VerbsError> {
        if let Some(memory) = &spot.direct {
            return self.direct.lend(memory);
        }
        let Spot { address: start, bytes, memory, .. } = *spot;
        let wait = |reason| Err(VerbsError::new("registration of a client's memory", reason));
        if registration == Registration::Static {
            let at = self.standing.partition_point(|known| known.start <= start);
            if let Some(known) = at.checked_sub(1).map(|at| &mut self.standing[at])
                && start + bytes as u64 <= known.end
            {
                match known.is {
                    Is::Registered(region) => {
                        known.uses += 1;
                        return Ok(Use { region });
                    }
                    Is::Begun(_) => return wait("it is under way"),
                    Is::Refused => return wait("refused before"),
                    Is::Unused => {}
                }
                self.next_ticket += 1;
                let (ticket, length) = (self.next_ticket, (known.end - known.start) as usize);
                // SAFETY: the owner stays with it until the device has told how it went, and that it has ended.
                if let Err(error) = unsafe { device.begin_register(ticket, known.start, length, access) } {
                    tracing::warn!(%error, "a client's memory is not registered: its tensors are copied");
                    known.is = Is::Refused;
                    return Err(error);
                }
                self.waited_for += 1;
                known.is = Is::Begun(ticket);
                return wait("it begins");
            }
            if memory == MemoryKind::Foreign {
                return wait("its client has gone");
            }
        }
        // SAFETY: as the caller promises.
        let region = unsafe { device.register(memory, start, bytes, access) }?;
        self.passing_made += 1;
        self.passing.push(Passing { region, uses: 1, owner: None });
        Ok(Use { region })
    }

    /// A use ends: nothing posted names the region, and no window is bound to it.
    pub(super) fn release(&mut self, device: &mut dyn Device, used: Use) {
        let id = used.region.id;
        let is_it = |known: &&mut Standing| matches!(known.is, Is::Registered(region) if region.id == id);
        if let Some(known) = self.standing.iter_mut().find(is_it) {
            known.uses -= 1;
            return;
        }
        if self.direct.release(used) {
            return;
        }
        let Some(at) = self.passing.iter().position(|known| known.region.id == id) else { return };
        self.passing[at].uses -= 1;
        if self.passing[at].uses == 0 {
            let Passing { region, owner, .. } = self.passing.swap_remove(at);
            match owner {
                Some(owner) => self.end(device, region, owner),
                None => device.deregister(region.id),
            }
        }
    }

    /// Number of regions that stay, and of those for one transfer.
    pub(super) fn counts(&self) -> (usize, usize) {
        let standing = self.standing.iter().filter(|known| matches!(known.is, Is::Registered(_))).count();
        (standing + self.direct.count(), self.passing.len())
    }
}
