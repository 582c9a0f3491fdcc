//! What is to happen, by virtual time; what is entered first comes first among equals.

use std::collections::BTreeMap;
use std::time::Duration;

use super::network::CallId;
use super::workload::Deed;

/// How a process ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Ending {
    /// It says goodbye.
    Graceful,
    /// Its sockets close.
    Crash,
    /// Nothing is heard of its host any more.
    PowerLoss,
}

#[derive(Debug)]
pub(super) enum Event {
    /// A node's turn; void unless its number is still the seat's.
    Turn { host: usize, shard: usize, number: u64 },
    /// A caller's greeting reaches the host that it calls.
    CallArrives(CallId),
    /// The caller looks whether the welcome is there.
    CallPolled(CallId),
    /// The caller learns that the call failed.
    CallFails(CallId, sealane_fusion::node::DialFailureKind, &'static str),
    /// A task does something.
    Deed(Deed),
    /// Two hosts hear each other no more.
    Part(usize, usize),
    /// They do again.
    Heal(usize, usize),
    /// Two hosts' calls of each other are denied: one has other credentials.
    Deny(usize, usize),
    /// They are no more.
    Trust(usize, usize),
    /// Somebody introduces itself falsely to a host.
    Lie(usize),
    /// A host's process ends.
    Stop(usize, Ending),
    /// A host's process starts.
    Start(usize),
    /// A host loads the endpoint map as it is now.
    Learn(usize),
    /// A shard's turns come late until then.
    Slow { host: usize, shard: usize, until: Duration },
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
