//! Steps that end, because a task here or a peer's aborts or cleans them up, and tasks that have gone.

use sealane_transport::trace::Moment;
use sealane_transport::{Error, Handle};

use super::Exchange;
use crate::node::cells::Sender;
use crate::node::context::Context;
use crate::node::pairs::STRANGER;
use crate::rendezvous::{Ended, EndedSteps, Parked, Scope, Unsent};

impl Exchange {
    /// Ends a step of a local task here; false if it had ended before.
    pub(in crate::node) fn abort(&mut self, local: u16, step: i64, reason: &str, context: &mut Context) -> bool {
        if self.ended.has(Scope::Task(local), step) {
            return false;
        }
        self.ended.insert(Scope::Task(local), step, &EndedSteps::reason_to_keep(reason));
        for pair in context.pairs.of_task(local).to_vec() {
            self.end_step(pair, step, reason, context);
        }
        true
    }

    /// Frees what is left of a step of a local task; the step may be used again.
    pub(in crate::node) fn cleanup(&mut self, local: u16, step: i64, context: &mut Context) {
        for pair in context.pairs.of_task(local).to_vec() {
            self.end_step(pair, step, "the step was cleaned up", context);
            self.ended.forget(Scope::Pair(pair), step);
        }
        self.ended.forget(Scope::Task(local), step);
    }

    /// A peer's task ends a step: `handle` is the session that reports it, `None` for a task of this node.
    pub(in crate::node) fn aborted(
        &mut self,
        handle: Option<Handle>,
        (step, peer_task): (i64, u32),
        reason: &str,
        context: &mut Context,
    ) {
        if peer_task == STRANGER {
            return;
        }
        let known = &context.pairs;
        let pairs: Vec<_> = known.of_peer(peer_task).iter().map(|&pair| (pair, known[pair].local)).collect();
        // It was reported, and handled, before: a peer that repeats itself costs no second search of the table.
        if pairs.iter().all(|&(pair, local)| self.ended.reason(local, pair, step).is_some()) {
            return;
        }
        let error = Error::Aborted { step, reason: reason.into() };
        let kept = EndedSteps::reason_to_keep(reason);
        for &(pair, local) in &pairs {
            self.ended.insert(Scope::Pair(pair), step, &kept);
            // First, so that the recvs get their memory back from their requests.
            self.end_there_of(pair, step, &error, context);
            match handle.and_then(|handle| context.peers.session_mut(handle)) {
                Some(with) => with.end_requests(step, local, Some(peer_task), &error),
                None => self.end_here_of(pair, step, &error, &mut context.reporter),
            }
        }
        for (pair, _) in pairs {
            self.end_step(pair, step, reason, context);
        }
    }

    /// Frees the tensors of a pair's step and refuses its parked requests.
    fn end_step(&mut self, pair: u32, step: i64, reason: &str, context: &mut Context) {
        let error = Error::Aborted { step, reason: reason.into() };
        let ended = self.table.end_step(pair, step, &error);
        self.tell_ended(ended, &error, context);
        self.end_ahead_of(pair, step, &error, context);
        self.give_back_of(pair, step, context);
    }

    /// Frees all tensors of a local task and refuses the requests that wait for them.
    pub(in crate::node) fn end_task(&mut self, local: u16, error: &Error, context: &mut Context) {
        let pairs = &context.pairs;
        let ended = self.table.end_pairs(|pair| pairs[pair].local == local, error);
        self.tell_ended(ended, error, context);
        self.end_ahead_of_task(local, error, context);
        self.end_there(Some(local), error, context);
    }

    fn tell_ended(&mut self, ended: Ended<Sender>, error: &Error, context: &mut Context) {
        for Unsent { sender, pending, .. } in ended.unsent {
            context.reporter.trace(pending, || Moment::SendEnded);
            context.reporter.finish_send(sender.waiter, Err(error.clone()));
        }
        self.refuse_parked(ended.parked, error, context);
    }

    /// Refuses the requests that wait here: no send can come for them any more.
    pub(in crate::node) fn refuse_all_parked(&mut self, error: &Error, context: &mut Context) {
        let parked = self.table.take_parked();
        self.refuse_parked(parked, error, context);
    }

    /// Refuses requests that were taken out of the table.
    pub(super) fn refuse_parked(&mut self, parked: Vec<Parked>, error: &Error, context: &mut Context) {
        for by in parked {
            match by {
                Parked::Local(handle) => self.fail_here(handle, error.clone(), &mut context.reporter),
                Parked::Peer { session, id } => {
                    if let Some(with) = context.peers.session_mut(session) {
                        with.end_parked(id, error);
                        context.peers.mark_dirty(session);
                    }
                }
            }
        }
    }

    /// Ends every send that waits here: the engine stops.
    pub(in crate::node) fn end_sends(&mut self, reason: &str, context: &mut Context) {
        for unsent in self.table.take_pending() {
            let error = Error::Aborted { step: unsent.step, reason: reason.into() };
            context.reporter.trace(unsent.pending, || Moment::SendEnded);
            context.reporter.finish_send(unsent.sender.waiter, Err(error));
        }
        self.end_all_ahead(reason, context);
    }
}
