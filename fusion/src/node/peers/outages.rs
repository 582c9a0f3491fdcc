//! Which peers cannot be reached, so that the log tells it once for each outage of a peer, and once when the peer is back.
//!
//! The one thing that the shards of an engine share about peers: each has its own sessions with a peer, but one line tells of them
//! all. Looked at only when a call has failed or a link has opened. Bounded by [`OUTAGES_MAX`].

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use hashbrown::HashMap;
use sealane_transport::endpoint_map::TransportAddress;

use crate::limits::{OUTAGE_TIME_MIN, OUTAGES_MAX};

/// What was last told of a peer.
#[derive(Debug)]
enum Told {
    UnreachableSince(Instant),
    BackAt(Instant),
}

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Outages(Mutex<HashMap<TransportAddress, Told>>);

impl Outages {
    /// A call to a peer has failed, like all of one session's since `since`. True if that is to be told now.
    pub(super) fn failed(&self, address: &TransportAddress, since: Instant, now: Instant) -> bool {
        if now.saturating_duration_since(since) < OUTAGE_TIME_MIN {
            return false;
        }
        let mut told = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match told.get(address) {
            Some(Told::UnreachableSince(_)) => return false,
            // Another session found it back, and this one will in its next calls: it is no new outage.
            Some(Told::BackAt(back)) if since <= *back => return false,
            None if told.len() >= OUTAGES_MAX => return false,
            _ => {}
        }
        told.insert(address.clone(), Told::UnreachableSince(since));
        true
    }

    /// There is a link with a peer. For how long it could not be reached, if that was told and its return was not.
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
