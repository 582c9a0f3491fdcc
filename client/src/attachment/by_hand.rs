//! What a caller does by hand that acts as a task's driver: see [`crate::by_hand`].

use super::{Attachment, Line};
use crate::clock::Tick;

impl Attachment {
    /// Nobody else takes care of waiting calls.
    pub(crate) fn is_driven_by_caller(&self) {
        self.lock().driver.is_the_caller();
    }

    /// Does what the driver does each time it wakes.
    pub(crate) fn drive_once(&self) {
        let mut held = self.lock();
        held.pump();
        held.chores();
        held.sweep();
        if held.has_unplaced() {
            drop(held);
            self.place_waiting();
            held = self.lock();
        }
        held.look_after_lanes(Tick::now());
    }

    /// Notices that the daemon is gone, or has hung up.
    pub(crate) fn hear_end(&self) {
        self.lock().hung_up();
    }

    pub(crate) fn has_backlog(&self) -> bool {
        self.lock().has_backlog()
    }

    pub(crate) fn is_up(&self) -> bool {
        matches!(self.lock().line, Line::Up(_))
    }

    pub(crate) fn calls_held(&self) -> usize {
        self.lock().calls.held()
    }

    /// Tensors that came over lanes and were not reported to the daemon.
    pub(crate) fn came_by_lanes(&self) -> u64 {
        match &self.lock().line {
            Line::Up(link) => link.direct.came(),
            Line::Lost(_) | Line::Ended(_) => 0,
        }
    }
}
