//! The invariants of recvs and kept tensors between any two calls of the node.

use super::super::Exchange;
use super::memory_of;
use crate::node::context::Context;
use crate::rendezvous::RawMatchKey;

impl Exchange {
    /// Panics unless each recv has a way to end, and each kept tensor belongs to a session with a link.
    pub(in crate::node::exchange) fn check_there(&self, context: &Context) {
        let remote = &self.remote;
        let is_attached = |session| context.peers.session(session).is_some_and(|with| with.is_attached());
        let mut kept_bytes = remote.check_unexpected(is_attached);
        self.check_credit(context);
        for (handle, entry) in remote.entries.iter() {
            let at = RawMatchKey { pair: entry.pair, step: entry.step, key: entry.key.as_bytes() };
            assert_eq!(remote.find(remote.hash(at), at), Some(handle), "a recv and its tensor would not meet");
            assert!(remote.of_step(entry.pair, entry.step).contains(&handle), "a recv would outlive its step");
            assert!(entry.kept.is_some() != entry.waiter.is_some(), "an empty entry would wait for ever");
            match (&entry.kept, entry.request) {
                (Some(kept), _) => {
                    kept_bytes += memory_of(kept.range.cost);
                    assert!(is_attached(kept.range.session), "its producer has it back by now");
                }
                (None, None) => {
                    assert!(
                        remote.delayed.contains(handle) || remote.hurried.contains(&handle),
                        "a recv would never send its request"
                    );
                }
                (None, Some((session, request))) => {
                    let waits = context.peers.session(session).is_some_and(|with| with.is_waiting(request));
                    assert!(waits, "a recv would wait for an answer that has come");
                }
            }
        }
        remote.delayed.check_invariants();
        remote.posted.check_invariants(|batch| context.reporter.outcomes.batches.listens(batch));
        assert_eq!(kept_bytes, remote.kept_bytes, "the limit would bound something else than what is kept");
        assert_eq!(remote.index.len(), remote.entries.len(), "a recv would be found that has ended");
    }

    /// Panics unless the credit that peers have used equals what is kept of theirs, and what sessions count as sent ahead equals what is
    /// recorded here.
    fn check_credit(&self, context: &Context) {
        let remote = &self.remote;
        let of_entries = remote.entries.iter().filter_map(|(_, entry)| entry.kept.as_ref()).map(|kept| &kept.range);
        let of_frames = remote.unexpected.iter().flat_map(|unexpected| &unexpected.frames);
        let of_ended = remote.to_release.iter().map(|(range, _)| range);
        let kept: Vec<_> = of_entries.chain(of_frames).chain(of_ended).collect();
        for handle in context.peers.select(|_| true) {
            let kept = kept.iter().filter(|range| range.session == handle).map(|range| range.cost).sum();
            let with = context.peers.session(handle).filter(|with| !with.has_events());
            if let Some(Err(what)) = with.map(|with| with.check_ahead(kept)) {
                panic!("sent ahead, to and from {handle:?}: {what}");
            }
        }
    }
}
