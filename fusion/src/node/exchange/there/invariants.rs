//! What holds between any two calls of the node.

use super::super::Exchange;
use super::memory_of;
use crate::node::context::Context;
use crate::rendezvous::RawMatchKey;

impl Exchange {
    /// Panics unless each recv has a way to end, and what is kept is of a session with a link.
    pub(in crate::node::exchange) fn check_there(&self, context: &Context) {
        let there = &self.there;
        let is_attached = |session| context.peers.session(session).is_some_and(|with| with.is_attached());
        let mut kept_bytes = there.check_unexpected(is_attached);
        for (handle, place) in there.places.iter() {
            let at = RawMatchKey { pair: place.pair, step: place.step, key: place.key.as_bytes() };
            assert_eq!(there.find(there.hash(at), at), Some(handle), "a recv and its tensor would not meet");
            assert!(there.of_step(place.pair, place.step).contains(&handle), "a recv would outlive its step");
            assert!(place.kept.is_some() != place.waiter.is_some(), "an empty place would wait for ever");
            match (&place.kept, place.asked) {
                (Some(kept), _) => {
                    kept_bytes += memory_of(kept.range.cost);
                    assert!(is_attached(kept.range.session), "its producer has it back by now");
                }
                (None, None) => {
                    let is_quiet = there.quiet.iter().any(|(quiet, _)| *quiet == handle);
                    assert!(is_quiet || there.hurried.contains(&handle), "a recv would never ask");
                }
                (None, Some((session, request))) => {
                    let waits = context.peers.session(session).is_some_and(|with| with.is_waiting(request));
                    assert!(waits, "a recv would wait for an answer that has come");
                }
            }
        }
        let sorted = there.quiet.iter().is_sorted_by_key(|(_, since)| *since);
        assert!(sorted, "a recv would wait behind one that came later");
        there.posted.check_invariants(|batch| context.reporter.outcomes.batches.is_open(batch));
        assert_eq!(kept_bytes, there.kept_bytes, "the limit would bound something else than what is kept");
        assert_eq!(there.index.len(), there.places.len(), "a recv would be found that has ended");
    }
}
