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

pub(super) struct Tools<'a> {
    pub(super) state: &'a mut State,
    pub(super) queue: &'a mut Queue,
    pub(super) windows: &'a mut Windows,
    pub(super) to_say: &'a mut ToSay,
}

impl Tools<'_> {
    /// True if `works` work requests can be queued.
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

    /// The region that contains these bytes, registered for this use if there is none and they belong neither to a client nor
    /// to a device.
    ///
    /// # Errors
    /// The device registers no more, or such memory is not registered yet or any more: the bytes can travel by copy.
    ///
    /// # Safety
    /// The memory must stay mapped until the use is released.
    pub(super) unsafe fn lend(&mut self, spot: &Spot) -> Result<Use, VerbsError> {
        let (access, registration) = (self.state.access(), self.state.settings.registration);
        let how = Lending { access, registration };
        // SAFETY: as the caller promises.
        unsafe { self.state.regions.lend(&mut *self.state.device, spot, how) }
    }

    pub(super) fn release(&mut self, used: Use) {
        self.state.regions.release(&mut *self.state.device, used);
    }

    /// Opens bytes of a region to the peer; there must be room for one work request, which is sent before anything said from
    /// now on. `None` if all windows are in use.
    ///
    /// # Errors
    /// The device provides no window.
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
