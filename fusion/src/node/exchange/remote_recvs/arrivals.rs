//! Small tensors of peers that come ahead of their requests: taken by their recvs, kept for them, or given back.

use std::time::Instant;

use sealane_transport::session::{CameAhead, CameTogether, ReceiveMemory, TakenTogether};
use sealane_transport::trace::Moment;
use sealane_transport::wire::{Fate, WireError};
use sealane_transport::{Destination, Handle, Unreceived};

use super::super::{Exchange, LastPair};
use super::{AheadRange, Entry};
use crate::node::cells::RecvWaiter;
use crate::node::context::Context;
use crate::node::memory::Memory;
use crate::node::outcomes::unheard;
use crate::node::pairs::{Pairs, STRANGER};
use crate::node::peers::PeerSession;
use crate::node::reporter::Reporter;
use crate::rendezvous::RawMatchKey;

impl Exchange {
    /// A turn, or a link, has ended: releases kept tensors that have ended, so that their producers hear of it in the next turn. Returns
    /// the number of ranges.
    #[inline]
    pub(in crate::node) fn release_ended(&mut self, context: &mut Context) -> usize {
        let count = self.remote.to_release.len();
        for (of, fate) in self.remote.to_release.drain(..) {
            release(of, fate, context);
        }
        count
    }

    /// True if producers are still to be told the fate of kept tensors.
    pub(in crate::node) fn has_to_release(&self) -> bool {
        !self.remote.to_release.is_empty()
    }

    /// Gives back everything that came from the peer of a pair.
    pub(in crate::node::exchange) fn give_back_of_pair(&mut self, pair: u32, context: &mut Context) {
        self.remote.split_up_pairs(|of| of == pair);
        for handle in self.remote.entries.select(|entry| entry.pair == pair && entry.kept.is_some()) {
            self.end_entry(handle, None, context);
        }
    }

    /// Gives back everything that came for a pair in `step`.
    pub(in crate::node::exchange) fn give_back_of(&mut self, pair: u32, step: i64, context: &mut Context) {
        self.remote.split_up_step((pair, step));
        for handle in self.remote.of_step(pair, step) {
            self.end_entry(handle, None, context);
        }
    }

    /// The link of a session is gone: its peer takes back what no recv has taken.
    pub(in crate::node::exchange) fn forget_kept(&mut self, session: Handle) {
        self.remote.forget_unexpected(session);
        let is_of = |entry: &Entry| entry.kept.as_ref().is_some_and(|kept| kept.range.session == session);
        for handle in self.remote.entries.select(is_of) {
            self.remote.take_kept(handle);
        }
        debug_assert!(
            self.remote.to_release.iter().all(|(of, _)| of.session != session),
            "its producer would send it again"
        );
    }

    /// The pair of tensors that come ahead on a session; `None` if no recv can get them.
    #[inline(always)]
    fn pair_ahead(
        &self,
        (session, last_pair): (Handle, &mut LastPair),
        (consumer, producer, step): (u16, u32, i64),
        pairs: &mut Pairs,
    ) -> Option<u32> {
        let ends = (consumer, producer);
        let pair = match *last_pair {
            Some((last, pair)) if last == ends => pair,
            _ if producer == STRANGER => return None,
            _ => {
                let pair = pairs.pair_of(consumer, producer);
                *last_pair = Some((ends, pair));
                pair
            }
        };
        // Only if the pair has sent requests on this session: a task that has moved may still send from its old place.
        let is_requested = pairs[pair].requested_there == Some(session) && pairs[pair].owned;
        (is_requested && self.ended.reason(consumer, pair, step).is_none()).then_some(pair)
    }

    /// True if tensors that come together may be for a call that reads in place, now or in future.
    #[inline]
    pub(in crate::node) fn looks_at_frames(&self) -> bool {
        self.remote.posted.lists.reads_in_place()
    }

    /// Small tensors of a peer have come ahead of their requests in one frame: takes the first of them for a call that reads them in place,
    /// or keeps them for a future one. Returns how many, and since when they were waited for if they were.
    #[inline]
    pub(in crate::node) fn came_together(
        &mut self,
        session: (Handle, &mut LastPair),
        came: &CameTogether<'_>,
        (pairs, reporter): (&mut Pairs, &mut Reporter),
    ) -> Option<(TakenTogether, Option<Instant>)> {
        let of = session.0;
        let pair = self.pair_ahead(session, (came.consumer, came.producer, came.step), pairs)?;
        let posted = &mut self.remote.posted;
        let Some((brought, since)) = posted.take_frame((pair, came.step), came.records, &mut reporter.outcomes) else {
            return self.remote.keep_together(of, pair, came).map(|kept| (kept, None));
        };
        let count = brought.count as u32;
        reporter.count_received(count, brought.bytes);
        Some((TakenTogether { count, is_all: brought.is_all, kept: None }, Some(since)))
    }

    /// A small tensor of a peer has come ahead of its request: returns its fate, or `None` if it is kept.
    ///
    /// # Errors
    /// It would have to be kept, and its key is not valid UTF-8.
    #[inline]
    pub(in crate::node) fn came_ahead(
        &mut self,
        (of, with, last_pair): (Handle, &mut PeerSession, &mut LastPair),
        came: &CameAhead<'_>,
        (pairs, reporter, memory): (&mut Pairs, &mut Reporter, &Memory),
    ) -> Result<(Option<Fate>, Option<Instant>), WireError> {
        let returned = Ok((Some(Fate::Returned), None));
        let ends = (came.consumer, came.producer, came.step);
        let Some(pair) = self.pair_ahead((of, last_pair), ends, pairs) else { return returned };
        let at = RawMatchKey { pair, step: came.step, key: came.key };
        let remote = &mut self.remote;
        if let Some(found) = remote.posted.find(at) {
            let (waiter, since, destination) = remote.posted.at(found);
            let received = receive(came, (waiter, since), destination, (reporter, memory));
            remote.posted.over(found);
            return Ok(received);
        }
        remote.split_up(at);
        let hash = remote.hash(at);
        let Some(handle) = remote.find(hash, at) else {
            let range = AheadRange { session: of, first: came.number, count: 1, cost: came.cost() };
            let fate = remote.keep(hash, at, range, (came.meta, came.payload))?;
            if fate == Some(Fate::Returned) {
                remote.delayed.was_useful(pair);
            }
            return Ok((fate, None));
        };
        let Some(entry) = remote.entries.get_mut(handle).filter(|entry| entry.kept.is_none()) else {
            return Ok((Some(Fate::Duplicate), None));
        };
        if let Some((by, request)) = entry.request {
            if by != of || !entry.takes_ahead {
                return returned;
            }
            // The recv's answer may be arriving already: then this tensor goes back to wait at its producer.
            let Some(destination) = with.cancel_unanswered(request) else { return returned };
            entry.destination = destination;
            if let Some((delay, _)) = entry.waited {
                remote.delayed.was_in_vain(pair, delay);
            }
        }
        let taken = remote.take(hash, handle, |entry| (entry.waiter.take(), entry.destination.take(), entry.since));
        let Some((Some(waiter), mut destination, since)) = taken else {
            unreachable!("who has no tensor waits for one")
        };
        Ok(receive(came, (waiter, since), &mut destination, (reporter, memory)))
    }
}

/// Tells the producer of kept tensors their fate.
pub(super) fn release(AheadRange { session, first, count, cost }: AheadRange, fate: Fate, context: &mut Context) {
    if let Some(with) = context.peers.session_mut(session) {
        with.release_ahead((first, count), cost, fate);
        context.peers.mark_dirty(session);
    }
}

/// Copies a tensor into the memory of its recv, brought or allocated, and ends the recv. Returns the tensor's fate, and since when it was
/// waited for.
#[inline(always)]
fn receive(
    came: &CameAhead<'_>,
    (waiter, since): (RecvWaiter, Instant),
    destination: &mut Option<Destination>,
    (reporter, memory): (&mut Reporter, &Memory),
) -> (Option<Fate>, Option<Instant>) {
    let len = came.payload.len();
    let failed = if !reporter.outcomes.listens(&waiter) {
        Some(unheard())
    } else if let Some(to) = destination {
        to.check(came.meta, len as u64).err()
    } else {
        memory.allocate(came.consumer, len).map(|to| *destination = Some(to.into())).err()
    };
    let (None, Some(to)) = (&failed, destination.as_mut()) else {
        let error = failed.unwrap_or_else(unheard);
        reporter.finish_recv(waiter, Err(Unreceived::returning(error, destination.take())));
        return (Some(Fate::Returned), None);
    };
    to.truncate(len);
    to.volatile_mut().copy_from(came.payload);
    reporter.count_received(1, len);
    let outcome = reporter.outcomes.tensor_of(came.meta, std::mem::take(to).into_memory());
    if reporter.recorder.is_some() {
        let (step, key, bytes) = (came.step, String::from_utf8_lossy(came.key).into(), len as u64);
        reporter.trace(Handle::NONE, || Moment::RecvInMemory { step, key, since, bytes });
    }
    reporter.finish_recv(waiter, outcome);
    (Some(Fate::Taken), Some(since))
}
