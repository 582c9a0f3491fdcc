//! Plans: sets of keys of one producer, sent once to the shard that serves them, and their pulls.

use std::sync::Arc;
use std::time::Instant;

use sealane_transport::session::PullParams;
use sealane_transport::trace::Moment;
use sealane_transport::{Error, Handle, Keys};

use super::local::{LocalPull, Wish};
use super::store::Planner;
use super::{At, MovedPull, PullRequest, Pulls, UnderWay, named};
use crate::node::cells::{PullWaiter, RecvWaiter};
use crate::node::context::{Context, draining};
use crate::node::pairs::Pair;
use crate::node::reporter::Reporter;

/// A set of keys of a peer, sent once to the shard that serves it.
pub(super) struct Plan {
    pub(super) pair: u32,
    keys: Arc<Keys>,
    agreed: Agreed,
}

impl Plan {
    /// The slots of this node's store that the plan names.
    #[cfg(any(test, feature = "fuzzing"))]
    pub(super) fn slots_here(&self) -> &[u32] {
        match &self.agreed {
            Agreed::Here(slots) => slots,
            _ => &[],
        }
    }
}

enum Agreed {
    Nowhere,
    /// A session, and the plan's set there.
    Session(Handle, Handle),
    /// Slots of this node's store.
    Here(Arc<[u32]>),
}

/// Who serves a plan.
#[derive(Debug, Clone, Copy)]
pub(in crate::node) enum Producer {
    /// A task of this node.
    Here(u16),
    /// The peer of a session.
    Session(Handle),
}

impl Pulls {
    /// Opens a plan: the keys that a pair's consumer pulls together from now on. The producer learns of it with the first pull.
    pub(in crate::node) fn open_plan(&mut self, pair: u32, keys: Arc<Keys>) -> Handle {
        match self.plans.insert(Plan { pair, keys, agreed: Agreed::Nowhere }) {
            Ok(plan) => plan,
            Err(_) => unreachable!("2^32 plans do not fit in memory"),
        }
    }

    /// Closes a plan; a pull of it in progress is cancelled.
    pub(in crate::node) fn close_plan(&mut self, plan: Handle, context: &mut Context) {
        for pull in self.under_way.select(|pull| pull.plan == plan) {
            self.cancel(pull, &mut context.peers);
        }
        if let Some(plan) = self.plans.remove(plan) {
            self.part(plan.agreed, context);
        }
    }

    /// Closes the plans of a local task.
    pub(in crate::node) fn close_plans_of(&mut self, local: u16, context: &mut Context) {
        for plan in self.plans.select(|plan| context.pairs[plan.pair].local == local) {
            self.close_plan(plan, context);
        }
    }

    fn part(&mut self, agreed: Agreed, context: &mut Context) {
        match agreed {
            Agreed::Nowhere => {}
            Agreed::Here(slots) => self.store.let_go(&slots),
            Agreed::Session(session, set) => {
                if let Some(with) = context.peers.session_mut(session) {
                    with.forget_set(set);
                    context.peers.mark_dirty(session);
                }
            }
        }
    }

    /// Checks whether a pull can begin.
    ///
    /// # Errors
    /// InvalidArgument; Unavailable while the engine drains.
    pub(in crate::node) fn check(&self, request: &PullRequest, is_draining: bool) -> Result<(), Error> {
        let places = request.pull_buffer.len();
        match self.plans.get(request.plan) {
            None => Err(Error::invalid("the plan was closed")),
            Some(plan) if plan.keys.len() != places => {
                let keys = plan.keys.len();
                Err(Error::invalid(format!("{places} places for {keys} tensors")))
            }
            Some(_) if is_draining && matches!(request.waiter, PullWaiter::Client(_)) => Err(draining()),
            Some(_) => Ok(()),
        }
    }

    #[inline]
    pub(in crate::node) fn pair_of(&self, plan: Handle) -> u32 {
        self.plans.get(plan).expect("a plan stays while it is pulled").pair
    }

    /// The plan of a pull that is moving from one session to another, unless it has ended.
    pub(in crate::node) fn plan_of(&self, moved: &MovedPull) -> Option<Handle> {
        self.under_way.get(named(&moved.waiter)).map(|pull| pull.plan)
    }

    /// Names the plan's keys to whoever serves them now.
    ///
    /// # Errors
    /// ResourceExhausted if too many keys are named.
    pub(in crate::node) fn agree(
        &mut self,
        handle: Handle,
        producer: Producer,
        context: &mut Context,
    ) -> Result<(), Error> {
        let plan = self.plans.get(handle).expect("the caller looked it up");
        let agreed = match (producer, &plan.agreed) {
            (Producer::Here(_), Agreed::Here(_)) => return Ok(()),
            (Producer::Session(session), &Agreed::Session(with, _)) if with == session => return Ok(()),
            (Producer::Here(task), _) => Agreed::Here(self.store.hold(Planner::Here, task, plan.keys.iter())?.into()),
            (Producer::Session(session), _) => {
                let Pair { local, peer, .. } = context.pairs[plan.pair];
                let with = context.peers.session_mut(session).expect("the caller found it");
                Agreed::Session(session, with.add_set(local, peer, plan.keys.clone())?)
            }
        };
        let plan = self.plans.get_mut(handle).expect("still there");
        let before = std::mem::replace(&mut plan.agreed, agreed);
        if let Agreed::Session(session, _) = before {
            self.end_left_behind(handle, session, context);
        }
        self.part(before, context);
        Ok(())
    }

    /// Ends the pulls of a plan that were requested from a session which no longer serves it: the map has moved its producer.
    fn end_left_behind(&mut self, plan: Handle, session: Handle, context: &mut Context) {
        let is_left = |pull: &UnderWay| {
            pull.plan == plan && matches!(pull.at, At::Peer { session: asked, .. } if asked == session)
        };
        for handle in self.under_way.select(is_left) {
            // Pulls that are being moved are no longer in the session.
            let Some(&At::Peer { pull, .. }) = self.under_way.get(handle).map(|pull| &pull.at) else { continue };
            let Some(with) = context.peers.session_mut(session) else { return };
            let Some((_, mut pull_buffer)) = with.cancel_pull(pull) else { continue };
            let error = Error::unavailable(with.peer(), "the endpoint map has moved the publisher");
            pull_buffer.fail_missing(|_| error.clone());
            self.ended(handle, pull_buffer, &mut context.reporter);
        }
    }

    /// Ends a pull that cannot begin.
    pub(in crate::node) fn refuse(request: PullRequest, error: &Error, reporter: &mut Reporter) {
        let PullRequest { mut pull_buffer, waiter, .. } = request;
        pull_buffer.fail_missing(|_| error.clone());
        reporter.finish_pull(waiter, pull_buffer);
    }

    /// Begins a pull of an agreed plan; returns its handle, unless it has ended at once.
    pub(in crate::node) fn begin(
        &mut self,
        now: Instant,
        request: PullRequest,
        context: &mut Context,
    ) -> Option<Handle> {
        let PullRequest { plan, min_version, deadline, pull_buffer, views, fail_if_gone, waiter } = request;
        let tensors = pull_buffer.len() as u64;
        let Plan { agreed, pair, .. } = self.plans.get(plan).expect("the caller looked it up");
        match agreed {
            Agreed::Nowhere => unreachable!("the caller agreed on it"),
            Agreed::Here(slots) => {
                let consumer = context.pairs[*pair].local;
                let wish = Wish { consumer, min_version, views, fail_if_gone };
                let local = LocalPull::new(slots.clone(), wish, now, deadline, pull_buffer);
                self.pull_here(UnderWay { plan, since: now, waiter, at: At::Here(Box::new(local)) }, context)
            }
            &Agreed::Session(session, set) => {
                let nowhere = At::Peer { session, pull: Handle::NONE };
                let Ok(handle) = self.under_way.insert(UnderWay { plan, since: now, waiter, at: nowhere }) else {
                    unreachable!("2^32 pulls do not fit in memory")
                };
                context.reporter.trace(handle, || Moment::PullQueued { tensors });
                let waiter = RecvWaiter::Pull(handle);
                let params = PullParams { set, min_version, deadline, fail_if_gone, pull_buffer, waiter };
                self.pull_there(now, session, params, context)
            }
        }
    }

    /// Requests a pull from a peer; returns its handle, unless it has ended at once.
    fn pull_there(
        &mut self,
        now: Instant,
        session: Handle,
        params: PullParams<RecvWaiter>,
        context: &mut Context,
    ) -> Option<Handle> {
        let (handle, deadline) = (named(&params.waiter), params.deadline);
        let with = context.peers.session_mut(session).expect("agreed with a session that is there");
        match with.pull(now, params) {
            Ok(pull) => {
                if let Some(under_way) = self.under_way.get_mut(handle) {
                    under_way.at = At::Peer { session, pull };
                }
                context.requested(now, session, deadline);
                Some(handle)
            }
            Err((error, mut pull_buffer, _)) => {
                pull_buffer.fail_missing(|_| error.clone());
                self.ended(handle, pull_buffer, &mut context.reporter);
                None
            }
        }
    }

    /// A pull waiting for a session turned out to belong to another: it is requested again where its plan is `agreed` now.
    pub(in crate::node) fn pull_moved(
        &mut self,
        now: Instant,
        moved: MovedPull,
        agreed: Result<(), Error>,
        context: &mut Context,
    ) {
        let handle = named(&moved.waiter);
        if let Err(error) = agreed {
            let PullParams { mut pull_buffer, .. } = moved;
            pull_buffer.fail_missing(|_| error.clone());
            return self.ended(handle, pull_buffer, &mut context.reporter);
        }
        let pull = self.under_way.get_mut(handle).expect("the caller looked it up");
        let Plan { agreed, pair, .. } = self.plans.get(pull.plan).expect("just agreed");
        match agreed {
            &Agreed::Session(session, set) => {
                self.pull_there(now, session, PullParams { set, ..moved }, context);
            }
            // The map has moved the producer to this node since the pull was requested.
            Agreed::Here(slots) => {
                let consumer = context.pairs[*pair].local;
                let PullParams { min_version, deadline, fail_if_gone, pull_buffer, .. } = moved;
                let wish = Wish { consumer, min_version, views: false, fail_if_gone };
                let local = LocalPull::new(slots.clone(), wish, now, deadline, pull_buffer);
                pull.at = At::Here(Box::new(local));
                self.begin_here(handle, deadline, context);
            }
            Agreed::Nowhere => unreachable!("just agreed"),
        }
    }
}
