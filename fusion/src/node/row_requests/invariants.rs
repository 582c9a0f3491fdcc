//! The invariants of row requests between calls.

use hashbrown::HashMap;

use super::waiting::PeerId;
use super::{Line, Requester, RowRequests};
use crate::node::context::Context;

impl RowRequests {
    /// Panics unless each request is where it will proceed or end.
    pub(in crate::node) fn check_invariants(&self, context: &Context) {
        let (mut of_peers, mut held) = (0, HashMap::new());
        for (handle, request) in self.requests.iter() {
            let queued = self.queue.iter().filter(|&&queued| queued == handle).count();
            let retried = self.retries.iter().filter(|&&retried| retried == handle).count();
            let waits_for = |name| self.waiting.contains(name, (request.min_version, handle));
            let waits = request.waits.as_ref().is_some_and(waits_for);
            let places = (usize::from(waits), queued, retried);
            let wanted = match request.line {
                Line::None => (1, 0, 0),
                Line::Copies => (0, 1, 0),
                Line::Retries => (0, 0, 1),
            };
            assert_eq!(
                places,
                wanted,
                "nobody would go on with a request in '{}', or twice",
                request.rows.as_rows().title()
            );
            assert!(request.line != Line::Retries || self.retry_at.is_some(), "nobody would try it again");
            assert_eq!(self.deadlines.of(handle), Some(request.deadline), "it would wait for ever");
            if let Requester::Peer { session, id, is_parked, quota } = &request.requester {
                of_peers += 1;
                assert!(*is_parked && context.peers.session(*session).is_some(), "its peer would hear nothing");
                assert_eq!(self.of_peers.get(&(*session, *id)), Some(&handle), "it could not be taken back");
                let gathered = request.gathering.as_ref().map_or(0, |gathering| gathering.bytes());
                let requests = request.rows.as_rows().as_bytes().len();
                let of_peer: &mut (usize, usize) = held.entry(PeerId::of(quota)).or_default();
                *of_peer = (of_peer.0 + requests, of_peer.1 + gathered);
            }
        }
        for peer in context.peers.iter() {
            let (quota, held) = (peer.session.quota(), held.get(&PeerId::of(peer.session.quota())));
            let charged = (quota.rows.requests.get(), quota.rows.gathering.get());
            assert_eq!(charged, held.copied().unwrap_or_default(), "{} would be charged for others", peer.address);
        }
        assert_eq!(self.deadlines.len(), self.requests.len(), "one that has ended would end again");
        assert_eq!(self.of_peers.len(), of_peers, "requests would be taken for rows that are none");
        self.waiting.check_invariants();
        let waiting = self.requests.iter().filter(|(_, request)| request.waits.is_some()).count();
        assert_eq!(self.waiting.len(), waiting, "one that has ended would be looked at");
    }
}
