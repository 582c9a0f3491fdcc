//! Events to come, ordered by virtual time; of events at the same time, the one entered first comes first.

use std::collections::BTreeMap;
use std::time::Duration;

use super::network::CallId;
use super::workload::Deed;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Ending {
    /// It says goodbye.
    Graceful,
    /// Its sockets close.
    Crash,
    /// Its host goes silent.
    PowerLoss,
}

#[derive(Debug)]
pub(super) enum Event {
    /// A node's turn; void unless its number is still the one its seat expects.
    Turn {
        host: usize,
        shard: usize,
        number: u64,
    },
    /// A caller's greeting reaches the called host.
    CallArrives(CallId),
    /// The caller checks for the welcome.
    CallPolled(CallId),
    /// The caller learns that the call failed.
    CallFails(CallId, sealane_fusion::node::DialFailureKind, &'static str),
    Deed(Deed),
    /// A route breaks: two hosts cannot reach each other.
    Part(usize, usize),
    /// The route works again.
    Heal(usize, usize),
    /// Calls between two hosts are denied: one has other credentials.
    Deny(usize, usize),
    /// They are no longer denied.
    Trust(usize, usize),
    /// Someone introduces itself falsely to a host.
    Lie(usize),
    /// A host's process ends.
    Stop(usize, Ending),
    /// A host's process starts.
    Start(usize),
    Learn(usize),
    /// A shard's turns come late until `until`.
    Slow {
        host: usize,
        shard: usize,
        until: Duration,
    },
}

#[derive(Default)]
pub(super) struct Agenda {
    entries: BTreeMap<(Duration, u64), Event>,
    entered: u64,
}

impl Agenda {
    pub(super) fn add(&mut self, at: Duration, event: Event) {
        self.entered += 1;
        self.entries.insert((at, self.entered), event);
    }

    pub(super) fn next(&mut self) -> Option<(Duration, Event)> {
        let ((at, _), event) = self.entries.pop_first()?;
        Some((at, event))
    }
}
