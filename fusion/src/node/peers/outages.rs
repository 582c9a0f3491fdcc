//! Unreachable peers, so that the log reports each outage of a peer once, and once when the peer is back.
//!
//! The only state about peers that the shards of an engine share: each has its own sessions with a peer, but one log line covers them all.
//! Used only when a dial has failed or a link has opened. Bounded by [`OUTAGES_MAX`].

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use hashbrown::HashMap;
use sealane_transport::endpoint_map::TransportAddress;

use crate::limits::{OUTAGE_TIME_MIN, OUTAGES_MAX};

/// What was last logged about a peer.
#[derive(Debug)]
enum Told {
    UnreachableSince(Instant),
    BackAt(Instant),
}

/// The outages that were logged; see the module.
#[derive(Debug, Default)]
pub(crate) struct Outages(Mutex<HashMap<TransportAddress, Told>>);

impl Outages {
    /// A dial to a peer has failed, as all dials of one session have since `since`. True if the outage is to be logged now.
    pub(super) fn failed(&self, address: &TransportAddress, since: Instant, now: Instant) -> bool {
        if now.saturating_duration_since(since) < OUTAGE_TIME_MIN {
            return false;
        }
        let mut told = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match told.get(address) {
            Some(Told::UnreachableSince(_)) => return false,
            // Another session has reached the peer again, and this one will with its next dials: it is not a new outage.
            Some(Told::BackAt(back)) if since <= *back => return false,
            None if told.len() >= OUTAGES_MAX => return false,
            _ => {}
        }
        told.insert(address.clone(), Told::UnreachableSince(since));
        true
    }

    /// There is a link with a peer. Returns how long the peer was unreachable, if that was logged and its return was not.
    pub(super) fn ended(&self, address: &TransportAddress, now: Instant) -> Option<Duration> {
        let mut told = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(last @ Told::UnreachableSince(_)) = told.get_mut(address) else { return None };
        match std::mem::replace(last, Told::BackAt(now)) {
            Told::UnreachableSince(since) => Some(now.saturating_duration_since(since)),
            Told::BackAt(_) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_outage_is_told_once_and_its_end_once_whichever_sessions_see_it() {
        let (outages, begun) = (Outages::default(), Instant::now());
        let peer = "10.0.0.1:7000".parse().unwrap();
        let late = begun + OUTAGE_TIME_MIN;
        assert!(!outages.failed(&peer, begun, begun), "it may be starting");
        assert!(outages.failed(&peer, begun, late));
        assert!(!outages.failed(&peer, begun, late), "another shard's session");
        assert_eq!(outages.ended(&peer, late), Some(OUTAGE_TIME_MIN));
        assert_eq!(outages.ended(&peer, late), None, "another shard's session");
        assert!(!outages.failed(&peer, begun, late + OUTAGE_TIME_MIN), "one that has not found it back yet");
        let again = late + Duration::from_millis(1);
        assert!(outages.failed(&peer, again, again + OUTAGE_TIME_MIN), "the next outage");
    }
}
