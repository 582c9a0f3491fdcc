//! A task without a thread of its own, for the simulation of clients in `tests/`: the caller does by hand what the driver's thread does,
//! and sets the time.

use std::{cell::Cell, sync::Arc, time::Duration};

use sealane_transport::{Error, shm::attach::Attached};

use crate::{Attach, Task, attachment::Attachment, clock};

/// Drives a task by hand.
pub struct Hands {
    attachment: Arc<Attachment>,
    /// Tensors that came over lanes and were not reported at the last look, and all before that.
    came: Cell<(u64, u64)>,
}

impl Attach {
    /// Attaches to what the caller has made in place of a daemon; also returns the hands that drive the task. Never starts a thread, as
    /// long as nobody waits.
    ///
    /// # Errors
    /// Unavailable if the system gives no page, or no eventfd.
    pub fn attach_by_hand(self, attached: Attached) -> Result<(Task, Hands), Error> {
        let attachment = self.over(attached)?;
        attachment.is_driven_by_caller();
        Ok((Task::of(attachment.clone()), Hands { attachment, came: Cell::default() }))
    }
}

impl Hands {
    /// Does what the driver does each time it wakes.
    pub fn turn(&self) {
        let (last, before) = self.came.get();
        let untold = self.attachment.came_by_lanes();
        self.came.set((untold, before + if untold < last { last } else { 0 }));
        self.attachment.drive_once();
    }

    /// Has the task notice at once that the daemon has hung up.
    pub fn hang_up(&self) {
        self.attachment.hear_end();
    }

    /// Calls that somebody still holds: their caller, or the daemon.
    pub fn calls(&self) -> usize {
        self.attachment.calls_held()
    }

    /// True while calls wait in this process for room.
    pub fn has_backlog(&self) -> bool {
        self.attachment.has_backlog()
    }

    /// True as long as the task is attached.
    pub fn is_up(&self) -> bool {
        self.attachment.is_up()
    }

    /// Tensors that came over lanes, at least.
    pub fn came_by_lanes(&self) -> u64 {
        let (last, before) = self.came.get();
        before + last
    }
}

/// Sets the time that tasks see on this thread; `None` for the system's time.
pub fn set_time(since: Option<Duration>) {
    clock::set_by_hand(since.map(|since| since.as_millis() as u64));
}
