//! A task without a thread of its own, for the simulation of clients in `tests/`: what the driver's thread does, somebody does by hand, and
//! time passes when he says so.

use std::{cell::Cell, sync::Arc, time::Duration};

use sealane_transport::{Error, shm::attach::Attached};

use crate::{Attach, Task, attachment::Attachment, clock};

/// The hands.
pub struct Hands {
    attachment: Arc<Attachment>,
    /// What has come by lanes and was not told when that was looked at last, and all before that.
    came: Cell<(u64, u64)>,
}

impl Attach {
    /// Attaches to what the caller has made in place of a daemon; also, what he moves the task by. It never starts a thread, as long as
    /// nobody waits.
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
    /// Does what the driver does each time that it is awake.
    pub fn turn(&self) {
        let (last, before) = self.came.get();
        let untold = self.attachment.came_by_lanes();
        self.came.set((untold, before + if untold < last { last } else { 0 }));
        self.attachment.drive_once();
    }

    /// The daemon has hung up, as the task hears at once.
    pub fn hang_up(&self) {
        self.attachment.hear_end();
    }

    /// Calls that somebody holds: who made them, or the daemon.
    pub fn calls(&self) -> usize {
        self.attachment.calls_held()
    }

    /// True while calls wait in this process for room.
    pub fn has_backlog(&self) -> bool {
        self.attachment.has_backlog()
    }

    /// True as long as it is attached.
    pub fn is_up(&self) -> bool {
        self.attachment.is_up()
    }

    /// Tensors that came by lanes, at least.
    pub fn came_by_lanes(&self) -> u64 {
        let (last, before) = self.came.get();
        before + last
    }
}

/// So much time has passed, as tasks of this thread see it; `None` for the time of the system.
pub fn set_time(since: Option<Duration>) {
    clock::set_by_hand(since.map(|since| since.as_millis() as u64));
}
