//! Device memory that a shard's RDMA device has registered, by dma-buf: from first use until the last handle to it is
//! dropped.
//!
//! Bounded by `DIRECT_REGIONS_MAX`; a lookup scans all of them, and is needed only for large payloads.

use std::sync::{Arc, Weak};

use sealane_runtime::{DmaBuf, Reacher};

use super::device::{Access, Device, Region, VerbsError};
use super::limits::DIRECT_REGIONS_MAX;
use super::regions::Use;

struct Known {
    /// While it can be upgraded, payloads and places may use the region.
    memory: Weak<DmaBuf>,
    is: Is,
    uses: usize,
}

/// The state of its registration.
enum Is {
    /// In progress, under this ticket.
    Begun(u64),
    Registered(Region),
}

pub(super) struct DirectRegions {
    reacher: Reacher,
    known: Vec<Known>,
    /// Number of registrations in progress.
    waited_for: usize,
    /// The value of [`DmaBuf::dropped`] when memory without a handle was last looked for; `None` if there may be some.
    looked_at: Option<u64>,
    /// How often memory could not be registered; `why_not` is the reason of the last failure.
    refusals: u64,
    why_not: Option<String>,
}

impl Default for DirectRegions {
    fn default() -> Self {
        Self { reacher: Reacher::new(), known: Vec::new(), waited_for: 0, looked_at: None, refusals: 0, why_not: None }
    }
}

impl DirectRegions {
    /// Identifies who has made these registrations.
    pub(super) fn reacher(&self) -> Reacher {
        self.reacher
    }

    /// Begins to register memory, under `ticket`. What cannot be registered is copied.
    pub(super) fn begin(&mut self, device: &mut dyn Device, ticket: u64, memory: Weak<DmaBuf>, access: Access) {
        let Some(wanted) = memory.upgrade() else { return };
        let begun = if self.known.len() < DIRECT_REGIONS_MAX {
            device.begin_register_direct(ticket, wanted, access)
        } else {
            let reason = format!("{DIRECT_REGIONS_MAX} of them are registered, which is the most");
            Err(VerbsError::new("registration of a device's memory", reason))
        };
        match begun {
            Ok(()) => {
                self.waited_for += 1;
                self.known.push(Known { memory, is: Is::Begun(ticket), uses: 0 });
            }
            Err(error) => self.refused(&error),
        }
    }

    fn refused(&mut self, error: &VerbsError) {
        self.refusals += 1;
        let reason = error.to_string();
        if self.why_not.as_ref() != Some(&reason) {
            tracing::warn!(
                reason,
                "a device's memory is not reached directly: its tensors are copied through the host's"
            );
            self.why_not = Some(reason);
        }
    }

    /// Takes in the result of the registration with this ticket; false if it was not for device memory.
    pub(super) fn take(&mut self, ticket: u64, region: &Result<Region, VerbsError>) -> bool {
        let is_it = |known: &Known| matches!(known.is, Is::Begun(begun) if begun == ticket);
        let Some(at) = self.known.iter().position(is_it) else { return false };
        self.waited_for -= 1;
        match region {
            Ok(region) => {
                self.known[at].is = Is::Registered(*region);
                // The last handle may have been the registration's own.
                self.looked_at = None;
                if let Some(memory) = self.known[at].memory.upgrade() {
                    memory.set_reached(self.reacher);
                    tracing::info!(bytes = memory.bytes(), "a device's memory is reached directly");
                }
            }
            Err(error) => {
                self.known.swap_remove(at);
                self.refused(error);
            }
        }
        true
    }

    /// The region of registered memory.
    ///
    /// # Errors
    /// It is not registered.
    pub(super) fn lend(&mut self, memory: &Arc<DmaBuf>) -> Result<Use, VerbsError> {
        let found = self.known.iter_mut().find(|known| known.memory.as_ptr() == Arc::as_ptr(memory));
        match found {
            Some(Known { is: Is::Registered(region), uses, .. }) => {
                *uses += 1;
                Ok(Use { region: *region })
            }
            _ => Err(VerbsError::new("use of a device's memory", "it is not registered")),
        }
    }

    /// A use ends; false if it was not of device memory.
    pub(super) fn release(&mut self, used: Use) -> bool {
        let is_it = |known: &&mut Known| matches!(known.is, Is::Registered(region) if region.id == used.region.id);
        let Some(known) = self.known.iter_mut().find(is_it) else { return false };
        known.uses -= 1;
        self.looked_at = None;
        true
    }

    /// Removes and returns a region that nobody uses and to whose memory there is no handle any more.
    pub(super) fn next_gone(&mut self) -> Option<Region> {
        let now = DmaBuf::dropped();
        let is_gone = |known: &Known| {
            known.uses == 0 && known.memory.strong_count() == 0 && matches!(known.is, Is::Registered(_))
        };
        let Some(at) = self.known.iter().position(is_gone) else {
            self.looked_at = Some(now);
            return None;
        };
        let Is::Registered(region) = self.known.swap_remove(at).is else { unreachable!("just looked at") };
        Some(region)
    }

    /// True if the device has yet to report registrations, or if handles may have been dropped since
    /// [`next_gone`](Self::next_gone) last found nothing.
    #[inline]
    pub(super) fn awaits(&self) -> bool {
        self.waited_for > 0 || (!self.known.is_empty() && self.looked_at != Some(DmaBuf::dropped()))
    }

    pub(super) fn is_empty(&self) -> bool {
        self.known.is_empty()
    }

    pub(super) fn count(&self) -> usize {
        self.known.len() - self.waited_for
    }

    /// How often memory could not be registered.
    pub(super) fn refusals(&self) -> u64 {
        self.refusals
    }
}

impl Drop for DirectRegions {
    fn drop(&mut self) {
        let memories = self.known.iter().filter_map(|known| known.memory.upgrade());
        memories.for_each(|memory| memory.forget(self.reacher));
    }
}
