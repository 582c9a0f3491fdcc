//! Limits on the state held for one peer, over all its sessions with this shard.
//!
//! A peer has a session for each shard that it claims to have, so it could multiply any per-session limit. Sessions with one
//! transport address therefore share one [`PeerQuota`]; the parts of a session that keep state for the peer each hold a
//! [`Share`] of it, and return all of it when they end. Shards share nothing: a peer's state on another shard of this side is
//! counted there.

use std::cell::Cell;
use std::rc::Rc;

use crate::error::Error;
use crate::limits::{SETS_MAX, STREAMS_MAX, SessionLimits};

/// What is charged to a peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Held {
    /// Plans (key sets) that it named.
    Plans,
    /// Their keys.
    Keys,
    /// Bytes of these keys, and of the names of the queues that it pushes into.
    NameBytes,
    /// Streams of its pushes.
    Streams,
    /// Its requests that wait for their tensor.
    Parked,
    /// Its pulls.
    Pulls,
    /// Tensors that its pulls wait for.
    Waits,
}

const KINDS: usize = Held::Waits as usize + 1;

/// How much of each kind.
pub type Charges = [usize; KINDS];

/// What one peer uses of this shard over all its sessions, and its limits; see the module's documentation.
#[derive(Debug)]
pub struct PeerQuota {
    most: Charges,
    used: [Cell<usize>; KINDS],
    /// Charges for its requests for rows.
    pub rows: RowCharges,
}

/// Bytes that a peer's requests for rows hold here. The owner of the sessions counts and bounds them, except for
/// `unreleased`.
#[derive(Debug, Default)]
pub struct RowCharges {
    /// Bytes of keys and row numbers in requests that have not ended.
    pub requests: Cell<usize>,
    /// Bytes of rows that are being gathered.
    pub gathering: Cell<usize>,
    /// Bytes of answers that the peer has not released.
    pub(super) unreleased: Cell<usize>,
}

impl RowCharges {
    /// Bytes of rows: those being gathered, and those that the peer has not released.
    pub fn held(&self) -> usize {
        self.gathering.get() + self.unreleased.get()
    }
}

impl PeerQuota {
    /// The quota of a peer under these limits.
    pub fn new(limits: &SessionLimits) -> Rc<PeerQuota> {
        let SessionLimits { plan_keys_max, peer_name_bytes_max, parked_requests_max: parked, .. } = *limits;
        let most = [SETS_MAX, plan_keys_max, peer_name_bytes_max, STREAMS_MAX, parked, parked, parked];
        Rc::new(PeerQuota { most, used: Default::default(), rows: RowCharges::default() })
    }

    /// What the peer uses, over all its sessions.
    pub fn used(&self) -> Charges {
        self.used.each_ref().map(Cell::get)
    }

    fn full(&self, what: Held) -> Error {
        let most = self.most[what as usize];
        match what {
            Held::Plans => Error::full("plans of a peer", format!("{most} plans of one peer are open")),
            Held::Keys => Error::full("fusion.plan_keys_max", format!("the plans of one peer have {most} keys")),
            Held::NameBytes => Error::full(
                "fusion.peer_name_bytes_max",
                format!("the keys of one peer's plans and the names of its queues have {most} bytes"),
            ),
            Held::Streams => Error::full("queues of a peer", format!("one peer pushes into {most} queues")),
            Held::Parked => {
                Error::full("fusion.parked_requests_max", format!("{most} requests of this peer are parked"))
            }
            Held::Pulls => Error::full("fusion.parked_requests_max", format!("{most} pulls of this peer wait")),
            Held::Waits => Error::full(
                "fusion.parked_requests_max",
                format!("{most} tensors are waited for by pulls of this peer"),
            ),
        }
    }
}

/// What one part of a session uses of its peer's quota.
#[derive(Debug)]
pub(super) struct Share {
    quota: Rc<PeerQuota>,
    mine: Charges,
}

impl Share {
    pub(super) fn of(quota: &Rc<PeerQuota>) -> Share {
        Share { quota: quota.clone(), mine: Charges::default() }
    }

    /// Bytes of gathered rows that the peer has not released.
    pub(super) fn unreleased_rows(&self) -> &Cell<usize> {
        &self.quota.rows.unreleased
    }

    /// What this part uses.
    pub(super) fn mine(&self) -> Charges {
        self.mine
    }

    /// What all of the peer's sessions use of a kind.
    #[inline]
    pub(super) fn used(&self, what: Held) -> usize {
        self.quota.used[what as usize].get()
    }

    /// The error with which [`take`](Self::take) would refuse one more.
    pub(super) fn is_full(&self, what: Held) -> Option<Error> {
        (self.used(what) >= self.quota.most[what as usize]).then(|| self.quota.full(what))
    }

    /// Charges `count` more.
    ///
    /// # Errors
    /// ResourceExhausted, with the limit's name; nothing was charged.
    #[inline]
    pub(super) fn take(&mut self, what: Held, count: usize) -> Result<(), Error> {
        if self.used(what).saturating_add(count) > self.quota.most[what as usize] {
            return Err(self.quota.full(what));
        }
        self.count(what, count);
        Ok(())
    }

    /// Charges `count` more that were checked to fit.
    #[inline]
    pub(super) fn count(&mut self, what: Held, count: usize) {
        self.mine[what as usize] += count;
        let used = &self.quota.used[what as usize];
        used.set(used.get() + count);
    }

    #[inline]
    pub(super) fn give_back(&mut self, what: Held, count: usize) {
        self.mine[what as usize] -= count;
        let used = &self.quota.used[what as usize];
        used.set(used.get() - count);
    }

    /// Returns all that this part uses.
    pub(super) fn give_all_back(&mut self) {
        for (used, mine) in self.quota.used.iter().zip(&mut self.mine) {
            used.set(used.get() - std::mem::take(mine));
        }
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.give_all_back();
    }
}
