//! The driver's care for lanes without its thread, and without real time: for the fuzz target of lanes.

use std::sync::{Arc, Weak};

use super::super::Attachment;
use crate::clock::Tick;

/// Does for the direct lanes of one task what its driver would.
pub struct LaneDriver(Weak<Attachment>);

impl LaneDriver {
    pub(crate) fn new(attachment: &Arc<Attachment>) -> Self {
        Self(Arc::downgrade(attachment))
    }

    /// Looks after the lanes as if it were so many milliseconds later: what was not received goes through the daemon, which is asked for
    /// what has not come.
    pub fn look(&self, later_ms: u64) {
        let Some(attachment) = self.0.upgrade() else { return };
        let mut held = attachment.lock();
        held.pump();
        held.look_after_lanes(Tick::now().later(later_ms));
        held.chores();
    }
}
