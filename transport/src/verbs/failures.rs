//! Peers whose verbs links fail repeatedly: they are reached over TCP for a while. No I/O; time is an argument.
//!
//! Bounded by `FAILING_PEERS_MAX`; past that the oldest is forgotten.

use std::time::{Duration, Instant};

use hashbrown::HashMap;

use super::limits::{DOUBLINGS_MAX, FAILING_PEERS_MAX, FAILURES_MAX};

struct Record {
    in_a_row: u32,
    last: Instant,
    reason: String,
}

#[derive(Default)]
pub(super) struct Failures(HashMap<Box<str>, Record>);

impl Failures {
    /// A link to `peer` has failed, or could not be established.
    pub(super) fn note(&mut self, peer: &str, now: Instant, reason: &str) {
        if self.0.len() >= FAILING_PEERS_MAX && !self.0.contains_key(peer) {
            let oldest = self.0.iter().min_by_key(|(_, record)| record.last).map(|(peer, _)| peer.clone());
            oldest.map(|peer| self.0.remove(&peer));
        }
        let fresh = || Record { in_a_row: 0, last: now, reason: String::new() };
        let record = self.0.entry(peer.into()).or_insert_with(fresh);
        record.in_a_row += 1;
        record.last = now;
        reason.clone_into(&mut record.reason);
    }

    /// A link to `peer` has carried something: earlier failures no longer count.
    pub(super) fn forget(&mut self, peer: &str) {
        if !self.0.is_empty() {
            self.0.remove(peer);
        }
    }

    /// Why an open link to `peer` should not be closed for verbs now. The pause doubles with each failure: what a new link may
    /// try costs an open one a resumption.
    pub(super) fn why_not_again(&mut self, peer: &str, now: Instant, retry_after: Duration) -> Option<String> {
        let in_a_row = self.0.get(peer).map_or(0, |record| record.in_a_row);
        self.why_not(peer, now, retry_after * (1 << in_a_row.saturating_sub(FAILURES_MAX).min(DOUBLINGS_MAX)))
    }

    /// Why `peer` should not be reached by verbs now.
    pub(super) fn why_not(&mut self, peer: &str, now: Instant, retry_after: Duration) -> Option<String> {
        let record = self.0.get(peer).filter(|record| record.in_a_row >= FAILURES_MAX)?;
        if now.saturating_duration_since(record.last) >= retry_after {
            // One more is tried; if that fails too, the pause begins again.
            return None;
        }
        let Record { in_a_row, reason, .. } = record;
        Some(format!(
            "verbs failed {in_a_row} times in a row, the last time with: {reason}; next attempt after \
             {retry_after:?}"
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_peer_that_fails_in_a_row_is_left_to_tcp_for_a_while() {
        let (now, pause) = (Instant::now(), Duration::from_secs(30));
        let mut failures = Failures::default();
        for _ in 0..FAILURES_MAX {
            assert_eq!(failures.why_not("a:1", now, pause), None);
            failures.note("a:1", now, "no acknowledgement");
        }
        let reason = failures.why_not("a:1", now, pause).unwrap();
        assert!(reason.contains("3 times") && reason.contains("no acknowledgement"), "{reason}");
        assert_eq!(failures.why_not("b:1", now, pause), None);
        assert_eq!(failures.why_not("a:1", now + pause, pause), None);
        failures.note("a:1", now + pause, "again");
        assert!(failures.why_not("a:1", now + pause, pause).is_some());
        // A link that is already open is not closed again so soon.
        assert_eq!(failures.why_not("a:1", now + 2 * pause, pause), None);
        assert!(failures.why_not_again("a:1", now + 2 * pause, pause).is_some());
        assert_eq!(failures.why_not_again("a:1", now + 3 * pause, pause), None);
        failures.forget("a:1");
        assert_eq!(failures.why_not("a:1", now + pause, pause), None);
    }

    #[test]
    fn the_peers_remembered_are_bounded() {
        let now = Instant::now();
        let mut failures = Failures::default();
        for peer in 0..FAILING_PEERS_MAX + 10 {
            failures.note(&format!("p{peer}:1"), now + Duration::from_millis(peer as u64), "why");
        }
        assert_eq!(failures.0.len(), FAILING_PEERS_MAX);
        assert!(!failures.0.contains_key("p0:1"));
    }
}
