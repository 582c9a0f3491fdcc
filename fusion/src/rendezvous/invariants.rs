//! The invariants of the table between any two calls.

use sealane_transport::Handle;

use super::{Entry, MatchKey, Parked, State, Table};

impl<S> Entry<S> {
    /// True if its tensor was sent and matched.
    fn is_matched(&self) -> bool {
        self.tensor.is_none() && matches!(self.state, State::Sent { .. })
    }
}

impl<S> Table<S> {
    /// Panics unless what waits is found, counted and ended in time. `is_there` says whether the waiter of a parked request still waits.
    pub(crate) fn check_invariants(&self, is_there: impl Fn(Parked) -> bool) {
        let count = |pick: fn(&State<S>) -> bool| self.entries.iter().filter(|(_, entry)| pick(&entry.state)).count();
        let pending_sends = count(|state| !matches!(state, State::Requested(_)));
        assert_eq!(
            self.pending_sends, pending_sends,
            "fusion.pending_sends_max would bound something else than tensors"
        );
        assert!(pending_sends <= self.pending_sends_max, "fusion.pending_sends_max would be no bound");
        let local = count(|state| matches!(state, State::Requested(Parked::Local(_))));
        assert_eq!(self.local_requests, local, "requests that wait are counted, and are not there");
        let parked = count(|state| matches!(state, State::Requested(Parked::Peer { .. })));
        assert_eq!(self.parked.len(), parked, "a peer could not take its request back");
        let matched = self.entries.iter().filter(|(_, entry)| entry.is_matched()).count();
        assert_eq!(
            self.index.len(),
            self.entries.len() - matched,
            "what is matched would be found, or what waits would not"
        );
        for (handle, entry) in self.entries.iter() {
            self.check_entry(handle, entry, &is_there);
        }
        for (by, waits) in &self.parked {
            let found = self.entries.get(waits.entry).map(|entry| &entry.state);
            assert!(matches!(found, Some(State::Requested(of)) if of == by), "another request would be taken back");
        }
        let ends = self.parked.values().filter(|waits| self.parked_until.of(waits.entry).is_some()).count();
        assert_eq!(self.parked_until.len(), ends, "a request that was answered would end");
    }

    fn check_entry(&self, handle: Handle, entry: &Entry<S>, is_there: &impl Fn(Parked) -> bool) {
        let Entry { pair, step, key, tensor, state } = entry;
        assert!(self.steps.of((*pair, *step)).contains(&handle), "'{key}' would outlive step {step}");
        let found = self.slot(MatchKey { pair: *pair, step: *step, key }).entry;
        let deadline = match state {
            State::Sent { deadline, sender, barred } => {
                assert!(sender.is_some(), "nobody would hear that '{key}' was taken");
                let waits = tensor.is_some();
                assert!(waits || found != Some(handle), "'{key}' would be matched twice");
                assert!(!waits || (deadline.is_some() && barred.is_none()), "'{key}' would wait without an end");
                *deadline
            }
            State::Requested(by) => {
                assert!(tensor.is_none(), "who wants '{key}' would not get it");
                assert!(is_there(*by), "'{key}' would be kept from others by a request that nobody made");
                None
            }
        };
        if !entry.is_matched() {
            assert_eq!(found, Some(handle), "'{key}' of step {step} would meet nobody");
        }
        let ends = deadline.is_none_or(|deadline| self.deadlines.covers(deadline));
        assert!(ends, "the send of '{key}' would wait past its deadline");
    }

    /// The senders whose tensors wait or are matched.
    pub(crate) fn senders(&self) -> impl Iterator<Item = &S> {
        self.entries.iter().filter_map(|(_, entry)| match &entry.state {
            State::Sent { sender, .. } => sender.as_ref(),
            State::Requested(_) => None,
        })
    }

    /// This node's own request that waits in an entry, if there is one.
    pub(crate) fn local_at(&self, entry: Handle) -> Option<Handle> {
        match self.entries.get(entry)?.state {
            State::Requested(Parked::Local(handle)) => Some(handle),
            _ => None,
        }
    }
}
