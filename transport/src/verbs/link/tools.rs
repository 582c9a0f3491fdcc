//! State shared by the parts of a link: the port's state, the send queue, the windows, and pending messages.
#![allow(unsafe_code)]

use super::ToSay;
use super::queue::{Queue, Then};
use crate::link::Spot;
use crate::verbs::device::{Grant, VerbsError, Work};
use crate::verbs::message::Part;
use crate::verbs::port::State;
use crate::verbs::regions::{Lending, Use};
use crate::verbs::windows::{Opened, Windows};

/// See the module.
pub(super) struct Tools<'a> {
    pub(super) state: &'a mut State,
    pub(super) queue: &'a mut Queue,
    pub(super) windows: &'a mut Windows,
    pub(super) to_say: &'a mut ToSay,
}

impl Tools<'_> {
    /// True if so many work requests can be put into the queue.
    #[inline]
    pub(super) fn has_room(&self, works: usize) -> bool {
        self.queue.has_room(self.state, works)
    }

    #[inline]
    pub(super) fn push(&mut self, work: Work, then: Then) {
        self.queue.push(self.state, work, then);
    }

    pub(super) fn say(&mut self, part: Part<'static>) {
        self.to_say.push_back(part);
    }

    /// The region that holds these bytes, registered for this use if none does and they are neither a client's nor a device's.
    ///
    /// # Errors
    /// The device registers no more, or such memory not yet or not any more: the bytes can travel by copy.
    ///
    /// # Safety
    /// The memory stays mapped until the use is released.
    pub(super) unsafe fn lend(&mut self, spot: &Spot) -> Result<Use, VerbsError> {
        let (access, registration) = (self.state.access(), self.state.settings.registration);
        let how = Lending { access, registration };
        // SAFETY: as the caller promises.
        unsafe { self.state.regions.lend(&mut *self.state.device, spot, how) }
    }

    pub(super) fn release(&mut self, used: Use) {
        self.state.regions.release(&mut *self.state.device, used);
    }

    /// Opens bytes of a region to the peer, for which one work request must have room; it leaves before all that is said
    /// from now on. `None` if all windows are in use.
    ///
    /// # Errors
    /// The device makes no window.
    pub(super) fn open(
        &mut self,
        used: Use,
        address: u64,
        bytes: usize,
        grant: Grant,
    ) -> Result<Option<Opened>, VerbsError> {
        let opened = self.windows.open(&mut *self.state.device, used, (address, bytes as u64), grant)?;
        Ok(opened.map(|(opened, work)| {
            if let Some(work) = work {
                self.push(work, Then::Nothing);
            }
            opened
        }))
    }
}
