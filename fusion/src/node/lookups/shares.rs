//! What the lookups of each session hold that have not ended. No entry without a lookup.

use hashbrown::HashMap;
use sealane_transport::Handle;

#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Share {
    /// Bytes of memory for rows that are being gathered.
    pub(super) gathered: usize,
    /// Bytes of keys and row numbers.
    pub(super) requests: usize,
}

/// See the module.
#[derive(Default, PartialEq, Eq)]
pub(super) struct Shares(HashMap<Handle, Share>);

impl Shares {
    pub(super) fn of(&self, session: Handle) -> Share {
        self.0.get(&session).copied().unwrap_or_default()
    }

    pub(super) fn change(&mut self, session: Handle, change: impl FnOnce(&mut Share)) {
        let share = self.0.entry(session).or_default();
        change(share);
        if *share == Share::default() {
            self.0.remove(&session);
        }
    }
}
