//! The memory windows of one link: created on demand, reused, bounded by `WINDOWS_MAX`.

use super::device::{Device, Grant, Remote, VerbsError, Window, Work};
use super::limits::WINDOWS_MAX;
use super::regions::Use;

/// Part of a region that is open to the peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Opened {
    /// `None` on a device without windows, whose regions are open as a whole.
    window: Option<Window>,
    /// What the peer is told.
    pub(super) remote: Remote,
}

#[derive(Default)]
pub(super) struct Windows {
    free: Vec<Window>,
    made: usize,
}

impl Windows {
    /// Opens `bytes` at `address` in the region that is used. Returns the work request for it, to be posted before the peer is
    /// told; `None` if all windows are in use.
    ///
    /// # Errors
    /// The device provides no window.
    pub(super) fn open(
        &mut self,
        device: &mut dyn Device,
        used: Use,
        (address, bytes): (u64, u64),
        grant: Grant,
    ) -> Result<Option<(Opened, Option<Work>)>, VerbsError> {
        let region = used.region;
        if !device.attributes().has_windows {
            let opened = Opened { window: None, remote: Remote { address, rkey: region.rkey } };
            return Ok(Some((opened, None)));
        }
        let window = match self.free.pop() {
            Some(window) => window,
            None if self.made >= WINDOWS_MAX => return Ok(None),
            None => {
                let window = device.allocate_window()?;
                self.made += 1;
                window
            }
        };
        let rkey = window.next_key();
        let work = Work::Bind { window, rkey, region: region.id, address, bytes, grant };
        let opened = Opened { window: Some(Window { rkey, ..window }), remote: Remote { address, rkey } };
        Ok(Some((opened, Some(work))))
    }

    /// The work request that closes what was opened; `None` if there is nothing to close.
    pub(super) fn closing(opened: &Opened) -> Option<Work> {
        opened.window.map(|window| Work::Invalidate { rkey: window.rkey })
    }

    /// An invalidation is done: its window is free.
    pub(super) fn closed(&mut self, opened: &Opened) {
        self.free.extend(opened.window);
    }

    /// The link ends: frees the windows, and with them what they are bound to.
    pub(super) fn clear(&mut self, device: &mut dyn Device) {
        for window in self.free.drain(..) {
            device.free_window(window.id);
        }
        self.made = 0;
    }
}
