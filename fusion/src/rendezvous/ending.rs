//! Removing from the table what must not wait any more: a step, a task's tensors, everything.
//!
//! A step of a pair is found directly; anything else takes a search of the whole table, so it is for rare events.

use std::time::Instant;

use sealane_transport::{Error, Handle};

use super::{Entry, Parked, Slot, State, Table, Unsent, Waits};
use crate::limits::LATE_PER_TURN;

/// What was removed; the owner tells those who wait.
#[derive(Debug)]
pub struct Ended<S> {
    /// Tensors that waited.
    pub unsent: Vec<Unsent<S>>,
    /// Requests that waited.
    pub parked: Vec<Parked>,
}

impl<S> Table<S> {
    /// Removes what waits in a step of a pair. Matched tensors of it will not wait again when they come back: their senders get
    /// `error`.
    pub fn end_step(&mut self, pair: u32, step: i64, error: &Error) -> Ended<S> {
        let mut handles = self.steps.of((pair, step));
        handles
            .retain(|&handle| self.entries.get(handle).is_some_and(|entry| (entry.pair, entry.step) == (pair, step)));
        self.end(handles, error)
    }

    /// Like [`end_step`](Self::end_step), for all steps of the pairs that `pick` chooses.
    pub fn end_pairs(&mut self, pick: impl Fn(u32) -> bool, error: &Error) -> Ended<S> {
        let handles = self.entries.select(|entry| pick(entry.pair));
        self.end(handles, error)
    }

    pub fn take_parked(&mut self) -> Vec<Parked> {
        let handles = self.entries.select(|entry| matches!(entry.state, State::Requested(_)));
        handles.into_iter().filter_map(|handle| self.take_request_of(handle)).collect()
    }

    /// Removes all tensors that wait; matched ones stay.
    pub fn take_pending(&mut self) -> Vec<Unsent<S>> {
        self.take_those(|_| true)
    }

    /// Limits how long a parked request of a peer waits, whether or not the peer cancels it. With `fails_if_gone` it waits only for the
    /// process that is there now.
    pub fn park_until(&mut self, by: Parked, until: Instant, fails_if_gone: bool) {
        if let Some(waits) = self.parked.get_mut(&by) {
            waits.fails_if_gone = fails_if_gone;
            self.parked_until.enter(waits.entry, until);
        }
    }

    /// The requests of peers, by session and id, that wait in the pairs that `pick` chooses, and that fail when their producer has gone.
    pub fn parked_to_fail(&self, pick: impl Fn(u32) -> bool) -> Vec<(Handle, Handle)> {
        let of = |(by, waits): (&Parked, &Waits)| match (by, self.entries.get(waits.entry)) {
            (&Parked::Peer { session, id }, Some(entry)) if waits.fails_if_gone && pick(entry.pair) => {
                Some((session, id))
            }
            _ => None,
        };
        let mut parked: Vec<_> = self.parked.iter().filter_map(of).collect();
        // The order of a hash map is arbitrary.
        parked.sort_unstable();
        parked
    }

    /// Removes requests of peers whose time is up, as many as a turn may end; if there are more, [`next_deadline`](Self::next_deadline) is
    /// already due.
    pub fn expire_parked(&mut self, now: Instant) -> Vec<Parked> {
        let mut late = Vec::new();
        while late.len() < LATE_PER_TURN
            && let Some(handle) = self.parked_until.due(now)
        {
            late.push(self.take_request_of(handle).expect("a deadline ends with its request"));
        }
        late
    }

    fn end(&mut self, handles: Vec<Handle>, error: &Error) -> Ended<S> {
        let mut ended = Ended { unsent: Vec::new(), parked: Vec::new() };
        for handle in handles {
            match self.entries.get_mut(handle).expect("just selected") {
                Entry { tensor: Some(_), .. } => ended.unsent.extend(self.take_unsent(handle)),
                Entry { state: State::Sent { barred, .. }, .. } => *barred = Some(Box::new(error.clone())),
                Entry { state: State::Requested(_), .. } => ended.parked.extend(self.take_request_of(handle)),
            }
        }
        ended
    }

    fn take_request_of(&mut self, handle: Handle) -> Option<Parked> {
        let hash = self.hash_of(handle);
        self.take_request(Slot { hash, entry: Some(handle) })
    }

    /// Removes the waiting tensors that `pick` chooses.
    pub(super) fn take_those(&mut self, pick: impl Fn(&Entry<S>) -> bool) -> Vec<Unsent<S>> {
        let chosen = self.entries.select(|entry| entry.tensor.is_some() && pick(entry));
        chosen.into_iter().filter_map(|handle| self.take_unsent(handle)).collect()
    }

    fn take_unsent(&mut self, handle: Handle) -> Option<Unsent<S>> {
        let hash = self.hash_of(handle);
        self.unlink(hash, handle);
        let entry = self.entries.get(handle)?;
        let (pair, step, key) = (entry.pair, entry.step, entry.key.clone());
        let (_, State::Sent { sender, deadline, .. }) = self.remove(handle)? else { return None };
        Some(Unsent { sender: sender?, pending: handle, pair, key, step, deadline: deadline? })
    }
}
